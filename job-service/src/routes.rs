//! The router: all URLs, the layers around them, and the OpenAPI document. One file per operation.

mod cancel_job;
mod cancel_jobs;
mod count_jobs;
mod create_job;
mod delete_job;
mod delete_jobs;
mod dispatch_partition;
mod get_definition;
mod get_history;
mod get_job;
mod get_outputs;
mod get_split;
mod get_task;
pub(crate) mod health_check;
mod is_active;
mod job_status;
mod list_failures;
mod list_jobs;
mod pause_job;
mod ping;
mod put_messages;
mod resubmit_job;
mod resume_job;
mod retry_job;
mod retry_jobs;
mod submit_job;
mod take_messages;
mod watch_job;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use contract::metrics::READY;
use contract::rest::ErrorCode;
use framework::meters::{Measurement, on_scrape};
use futures_util::FutureExt as _;
use metrics::gauge;
use tokio::time::timeout;
use tower::ServiceExt as _;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::OpenApi;
use utoipa::openapi::{self, Content, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::access::{self, AccessRules, AllowedOrigin};
use crate::correlation;
use crate::current_request;
use crate::error::ApiError;
use crate::measured;
use crate::options::BASE_PATH;
use crate::server;
use crate::state::AppState;
use crate::submission::KEY_HEADER;

/// How long a scrape waits for the health check. A service that takes longer is not ready.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// The parts of the OpenAPI document that are not generated from the operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Batchwright job service",
        description = "Creates, watches, pauses, cancels and deletes jobs.\n\n\
            Every job belongs to a partition. Partitions need not be created. Ids are case-sensitive and must not contain \
            `. , : ; * ? ! | ( )` or control characters. Times are in milliseconds since 1970, UTC.\n\n\
            Every response has the header `CAF-Correlation-Id`: the one of the request, or a new one. Every error response has the body \
            `{\"message\": \"…\"}`, and a code for programs in the header `X-Batchwright-Error`. Clients that accept \
            `application/problem+json` get code, time and remedy in the body, too. A request that a web page of another origin sends, and that is not a GET, returns 403; a request to \
            a host name that is not the service's returns 421. Request bodies are read as JSON, whatever their content type.",
        license(name = "MIT OR Apache-2.0")
    ),
    tags(
        (name = "jobs", description = "Jobs and their tasks"),
        (name = "pipes", description = "The messages of pipes, where the operator gives access to them"),
        (name = "service", description = "The state of the service")
    )
)]
struct Document;

/// Returns the router with every URL of the service.
///
/// `address` is where the service listens, if that is known.
pub fn router(state: Arc<AppState>, address: Option<SocketAddr>) -> Router {
    let (router, document) = routes().split_for_parts();
    let ui =
        SwaggerUi::new("/job-service-ui").url("/job-service-ui/api-docs/openapi.json", document);
    let options = &state.options;
    let (hosts, origins) = (&options.allowed_hosts, &options.allowed_origins);
    let rules = AccessRules::new(&options.webservice_url, hosts, origins, address);
    let cross_origin = cross_origin(origins);
    let router = router
        .with_state(state)
        .route(
            "/job-service-ui/api-docs/swagger.yaml",
            get(openapi_as_yaml),
        )
        .route("/metrics", get(measured::metrics))
        .merge(Router::from(ui).layer(middleware::from_fn(not_found_as_json)))
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(option_layer(cross_origin))
        .layer(middleware::from_fn(server::refuse_on_spare_connections))
        .layer(middleware::from_fn_with_state(
            Arc::new(rules),
            access::layer,
        ))
        .layer(CatchPanicLayer::custom(ApiError::panic_response))
        .layer(middleware::from_fn(measured::layer))
        .layer(middleware::from_fn(current_request::layer))
        .layer(middleware::from_fn(correlation::layer));
    // A layer runs after routing, but the URL must change before routing.
    Router::new().fallback_service(router.map_request(plain_path))
}

/// Shows at each scrape whether the service is ready, until the result is dropped.
pub fn measure_readiness(state: &Arc<AppState>) -> Measurement {
    let state = Arc::clone(state);
    on_scrape(move || {
        let health = health_check::health_check(State(Arc::clone(&state)), RawQuery(None));
        async {
            let ready = match timeout(READY_LIMIT, health).await {
                Ok(Ok((code, _))) => code == StatusCode::OK,
                _ => false,
            };
            gauge!(READY).set(u32::from(ready));
        }
        .boxed()
    })
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
    let methods = [Method::GET, Method::PUT, Method::POST, Method::DELETE];
    Some(
        CorsLayer::new()
            .allow_origin(is_allowed)
            .allow_methods(methods)
            .allow_headers([
                header::CONTENT_TYPE,
                HeaderName::from_static(KEY_HEADER),
                correlation::HEADER,
            ])
            .expose_headers([header::LOCATION, correlation::HEADER]),
    )
}

/// Treats `…/jobs/` like `…/jobs`, as CAF does, and `POST …/jobs/j:retry` like `POST …/jobs/j/retry`.
fn plain_path(mut request: Request) -> Request {
    let path = request.uri().path();
    let Some(path) = path.strip_prefix(BASE_PATH) else {
        return request;
    };
    let plain = path.strip_suffix('/').unwrap_or(path);
    let operation = (request.method() == Method::POST)
        .then(|| operation_of_job(plain))
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

/// Splits `/partitions/p/jobs/j:retry` into the path of the job and the operation. No id contains a colon.
fn operation_of_job(path: &str) -> Option<(&str, &str)> {
    let (job, operation) = path.rsplit_once(':').or_else(|| path.rsplit_once("%3A"))?;
    let mut segments = job.strip_prefix("/partitions/")?.split('/');
    let (_, jobs, id) = (segments.next()?, segments.next()?, segments.next()?);
    let is_job = jobs == "jobs" && !id.is_empty() && segments.next().is_none();
    (is_job && ["retry", "resubmit"].contains(&operation)).then_some((job, operation))
}

/// Returns the OpenAPI 3.1 document of the API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

/// Collects the operations. Their order here is the order in Swagger UI.
fn routes() -> OpenApiRouter<Arc<AppState>> {
    let api = OpenApiRouter::new()
        .routes(routes!(ping::ping))
        .routes(routes!(list_jobs::list_jobs))
        .routes(routes!(count_jobs::count_jobs))
        .routes(routes!(cancel_jobs::cancel_jobs))
        .routes(routes!(delete_jobs::delete_jobs))
        .routes(routes!(retry_jobs::retry_jobs))
        .routes(routes!(create_job::create_job))
        .routes(routes!(submit_job::submit_job))
        .routes(routes!(dispatch_partition::dispatch_partition))
        .routes(routes!(get_job::get_job))
        .routes(routes!(watch_job::watch_job))
        .routes(routes!(delete_job::delete_job))
        .routes(routes!(cancel_job::cancel_job))
        .routes(routes!(pause_job::pause_job))
        .routes(routes!(resume_job::resume_job))
        .routes(routes!(retry_job::retry_job))
        .routes(routes!(resubmit_job::resubmit_job))
        .routes(routes!(get_definition::get_definition))
        .routes(routes!(get_history::get_history))
        .routes(routes!(job_status::job_status))
        .routes(routes!(is_active::is_active))
        .routes(routes!(get_task::get_task))
        .routes(routes!(get_split::get_split))
        .routes(routes!(list_failures::list_failures))
        .routes(routes!(take_messages::take_messages))
        .routes(routes!(put_messages::put_messages))
        .routes(routes!(get_outputs::get_outputs));
    OpenApiRouter::with_openapi(Document::openapi())
        .nest(BASE_PATH, api)
        .routes(routes!(health_check::health_check))
}

/// Serves the OpenAPI document at CAF's URL. JSON is valid YAML.
async fn openapi_as_yaml() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/yaml")],
        Json(openapi()),
    )
}

async fn unknown_url(uri: Uri) -> ApiError {
    let message = format!(
        "There is nothing at {}. The API is described at /job-service-ui/.",
        uri.path()
    );
    ApiError::NotFound(ErrorCode::UrlNotFound, message)
}

/// Replaces the 404 of Swagger UI, which is not JSON.
async fn not_found_as_json(uri: Uri, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.status() == StatusCode::NOT_FOUND {
        unknown_url(uri).await.into_response()
    } else {
        response
    }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed(format!("{} does not support {method}.", uri.path()))
}

/// The error responses of every operation that uses the store.
struct StoreErrors;

impl utoipa::IntoResponses for StoreErrors {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let response = |status: &str, description: &str| {
            let body = Content::new(Some(openapi::Ref::from_schema_name("ErrorBody")));
            let response = openapi::ResponseBuilder::new()
                .description(description)
                .content("application/json", body)
                .build();
            (status.to_owned(), response.into())
        };
        BTreeMap::from([
            response(
                "500",
                "Internal error. The log has the details under the correlation id of the response",
            ),
            response(
                "503",
                "The service cannot do this now, and the message says why: its database is unavailable, its disk is short of space for \
                 new jobs, or it has as many connections, request bodies or event streams as it may have. Try again later",
            ),
        ])
    }
}
