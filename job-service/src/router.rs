//! The router: the API, the page, Swagger UI and the metrics, with the layers around them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, Method, Uri, header};
use axum::middleware;
use axum::routing::get;
use bytes::Bytes;
use contract::UPLOAD_OFFSET_HEADER;
use contract::rest::{ERROR_HEADER, ErrorCode};
use tower::ServiceExt as _;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::openapi::OpenApi;
#[cfg(feature = "swagger-ui")]
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::api;
use crate::http::ApiError;
use crate::http::access::{self, AccessRules, AllowedOrigin};
use crate::http::between;
use crate::http::connections;
use crate::http::correlation;
use crate::http::current_request;
use crate::http::idempotency::KEY_HEADER;
use crate::http::measured;
use crate::options::BASE_PATH;
use crate::page;
use crate::rights;
use crate::state::AppState;

/// Where the description of the API is.
const DESCRIPTION: &str = "/job-service-ui/api-docs/openapi.json";
const DESCRIPTION_OF_CAF: &str = "/job-service-ui/api-docs/swagger.yaml";

/// Returns the router with every URL of the service.
///
/// `address` is where the service listens, if that is known.
pub fn router(state: Arc<AppState>, address: Option<SocketAddr>) -> Router {
    let (router, document) = api::routes().split_for_parts();
    let options = &state.options;
    let (hosts, origins) = (&options.allowed_hosts, &options.allowed_origins);
    let rules = AccessRules::new(&options.webservice_url, hosts, origins, address);
    let cross_origin = cross_origin(origins);
    let page = if options.page {
        page::router()
    } else {
        Router::new()
    };
    let router = router
        .merge(page)
        .with_state(Arc::clone(&state))
        .route("/metrics", get(measured::metrics))
        .merge(description(&document))
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(state, rights::layer))
        .layer(option_layer(cross_origin))
        .layer(middleware::from_fn(
            connections::refuse_on_spare_connections,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::new(rules),
            access::layer,
        ))
        .layer(middleware::from_fn(between::layer))
        .layer(CatchPanicLayer::custom(ApiError::panic_response))
        .layer(middleware::from_fn(measured::layer))
        .layer(middleware::from_fn(current_request::layer))
        .layer(middleware::from_fn(correlation::layer));
    // A layer runs after routing, but the URL must change before routing.
    Router::new().fallback_service(router.map_request(plain_path))
}

/// Returns the description of the API for programs, also at CAF's URL, and for people.
fn description(document: &OpenApi) -> Router {
    // As text, because the document takes some MB. JSON is valid YAML.
    let text = document.to_json().map(Bytes::from);
    let text = text.unwrap_or_else(|error| unreachable!("its keys are texts: {error}"));
    let text_as = |kind: &'static str| {
        let text = text.clone();
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route(DESCRIPTION, text_as("application/json"))
        .route(DESCRIPTION_OF_CAF, text_as("application/yaml"))
        .merge(for_people())
}

#[cfg(feature = "swagger-ui")]
fn for_people() -> Router {
    /// Swagger UI sets styles of its own, and has pictures in them.
    const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; \
         frame-ancestors 'none'";
    let ui = SwaggerUi::new("/job-service-ui").config(Config::new([DESCRIPTION]));
    let confine = async |mut response: axum::response::Response| {
        let policy = axum::http::HeaderValue::from_static(POLICY);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        response
    };
    Router::from(ui)
        .layer(middleware::from_fn(not_found_as_json))
        .layer(middleware::map_response(confine))
}

/// Leads people to the description for programs.
#[cfg(not(feature = "swagger-ui"))]
fn for_people() -> Router {
    let elsewhere = || async { axum::response::Redirect::temporary(DESCRIPTION) };
    Router::new()
        .route("/job-service-ui", get(elsewhere))
        .route("/job-service-ui/", get(elsewhere))
}

/// Returns the layer that tells browsers which origins may call the service, if any are allowed.
fn cross_origin(allowed: &[AllowedOrigin]) -> Option<CorsLayer> {
    if allowed.is_empty() {
        return None;
    }
    let allowed = allowed.to_vec();
    let is_allowed = AllowOrigin::predicate(move |origin, _| {
        allowed.iter().any(|allowed| allowed.matches(origin))
    });
    let methods = [
        Method::GET,
        Method::PUT,
        Method::POST,
        Method::PATCH,
        Method::DELETE,
    ];
    Some(
        CorsLayer::new()
            .allow_origin(is_allowed)
            .allow_methods(methods)
            .allow_headers([
                header::AUTHORIZATION,
                header::CONTENT_TYPE,
                HeaderName::from_static(KEY_HEADER),
                HeaderName::from_static(UPLOAD_OFFSET_HEADER),
                correlation::HEADER,
            ])
            .expose_headers([
                header::LOCATION,
                header::RETRY_AFTER,
                HeaderName::from_static(ERROR_HEADER),
                HeaderName::from_static(UPLOAD_OFFSET_HEADER),
                correlation::HEADER,
            ]),
    )
}

/// Treats `…/jobs/` like `…/jobs`, as CAF does, and `POST …/jobs/j:retry` like `POST
/// …/jobs/j/retry`; those of a dead letter and of a condition likewise.
fn plain_path(mut request: Request) -> Request {
    let path = request.uri().path();
    let Some(path) = path.strip_prefix(BASE_PATH) else {
        return request;
    };
    let plain = path.strip_suffix('/').unwrap_or(path);
    let operation = (request.method() == Method::POST)
        .then(|| {
            operation_of_job(plain)
                .or_else(|| replay_of_letter(plain))
                .or_else(|| command_to_condition(plain))
        })
        .flatten();
    let plain = match operation {
        Some((job, operation)) => format!("{BASE_PATH}{job}/{operation}"),
        None if plain.len() < path.len() => format!("{BASE_PATH}{plain}"),
        None => return request,
    };
    let plain = match request.uri().query() {
        Some(query) => format!("{plain}?{query}"),
        None => plain,
    };
    let mut parts = request.uri().clone().into_parts();
    if let Ok(plain) = plain.parse() {
        parts.path_and_query = Some(plain);
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// Splits `/partitions/p/jobs/j:retry` into the path of the job and the operation. No id contains a
/// colon.
fn operation_of_job(path: &str) -> Option<(&str, &str)> {
    let (job, operation) = path.rsplit_once(':').or_else(|| path.rsplit_once("%3A"))?;
    let mut segments = job.strip_prefix("/partitions/")?.split('/');
    let (_, jobs, id) = (segments.next()?, segments.next()?, segments.next()?);
    let is_job = jobs == "jobs" && !id.is_empty() && segments.next().is_none();
    (is_job && ["retry", "resubmit"].contains(&operation)).then_some((job, operation))
}

/// Splits `/deadLetters/4711:replay` into the path of the letter and the operation.
fn replay_of_letter(path: &str) -> Option<(&str, &str)> {
    let (letter, operation) = path.rsplit_once(':').or_else(|| path.rsplit_once("%3A"))?;
    let id = letter.strip_prefix("/deadLetters/")?;
    (operation == "replay" && !id.is_empty() && !id.contains('/')).then_some((letter, operation))
}

/// Splits `/conditions/0d3a…:test` into the path of the condition and the operation.
fn command_to_condition(path: &str) -> Option<(&str, &str)> {
    let (condition, operation) = path.rsplit_once(':').or_else(|| path.rsplit_once("%3A"))?;
    let key = condition.strip_prefix("/conditions/")?;
    let is_known = ["test", "release", "fail"].contains(&operation);
    (is_known && !key.is_empty() && !key.contains('/')).then_some((condition, operation))
}

async fn unknown_url(uri: Uri) -> ApiError {
    let message = format!(
        "There is nothing at {}. The API is described at /job-service-ui/.",
        uri.path()
    );
    ApiError::NotFound(ErrorCode::UrlNotFound, message)
}

/// Replaces the 404 of Swagger UI, which is not JSON.
#[cfg(feature = "swagger-ui")]
async fn not_found_as_json(
    uri: Uri,
    request: Request,
    next: middleware::Next,
) -> axum::response::Response {
    use axum::response::IntoResponse as _;

    let response = next.run(request).await;
    if response.status() == axum::http::StatusCode::NOT_FOUND {
        unknown_url(uri).await.into_response()
    } else {
        response
    }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed(format!("{} does not support {method}.", uri.path()))
}
