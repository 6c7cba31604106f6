//! The URLs: which there are, what lies around them all, and the API document made from them.

mod dispatch;
mod end_job;
mod end_jobs;
mod get_job;
mod get_task;
mod health;
mod job_events;
mod job_status;
mod list_jobs;
mod pause_job;
mod put_job;
mod which_jobs;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use contract::rest::ErrorBody;
use contract::{JobId, PartitionId};
use tower::ServiceExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::error::ApiError;
use crate::{BASE_PATH, Parts, correlation};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Batchwright job service",
        description = "Create, watch, pause, cancel and delete jobs.\n\n\
            A job belongs to a partition, which needs no creation. Ids are case-sensitive and contain none of `. , : ; * ? ! | ( )`. \
            Times are milliseconds since 1970, UTC.\n\n\
            Every response carries `CAF-Correlation-Id`: that of the request, or a new one. Every error has the body \
            `{\"message\": \"…\"}`. Whatever its content type, a body is read as JSON.",
        license(name = "MIT OR Apache-2.0")
    ),
    tags(
        (name = "jobs", description = "Jobs and their tasks"),
        (name = "service", description = "The service itself")
    )
)]
struct Document;

pub fn router(parts: Arc<Parts>) -> Router {
    let (router, document) = routes().split_for_parts();
    let ui =
        SwaggerUi::new("/job-service-ui").url("/job-service-ui/api-docs/openapi.json", document);
    let body_limit = DefaultBodyLimit::max(parts.options.max_body_bytes);
    let router = router
        .with_state(parts)
        .route(
            "/job-service-ui/api-docs/swagger.yaml",
            get(described_in_yaml),
        )
        .merge(Router::from(ui).layer(middleware::from_fn(not_found_as_json)))
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(body_limit)
        .layer(CatchPanicLayer::custom(ApiError::panic_response))
        .layer(middleware::from_fn(correlation::layer));
    // A layer of a router comes after its route has been found; this must come before.
    Router::new().fallback_service(router.map_request(without_last_slash))
}

/// To clients of the CAF, `…/jobs/` is the same as `…/jobs`.
fn without_last_slash(mut request: Request) -> Request {
    let Some(path) = request
        .uri()
        .path()
        .strip_suffix('/')
        .filter(|path| path.starts_with(BASE_PATH))
    else {
        return request;
    };
    let path = request
        .uri()
        .query()
        .map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let mut parts = request.uri().clone().into_parts();
    if let Ok(path) = path.parse() {
        parts.path_and_query = Some(path);
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// The document that describes the API (version 3.1 of that format).
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

fn routes() -> OpenApiRouter<Arc<Parts>> {
    let api = OpenApiRouter::new()
        .routes(routes!(health::ping))
        .routes(routes!(list_jobs::list))
        .routes(routes!(list_jobs::count))
        .routes(routes!(end_jobs::cancel))
        .routes(routes!(end_jobs::delete))
        .routes(routes!(put_job::put))
        .routes(routes!(dispatch::dispatch))
        .routes(routes!(get_job::get))
        .routes(routes!(job_events::events))
        .routes(routes!(end_job::delete))
        .routes(routes!(end_job::cancel))
        .routes(routes!(pause_job::pause))
        .routes(routes!(pause_job::resume))
        .routes(routes!(job_status::status))
        .routes(routes!(job_status::is_active))
        .routes(routes!(get_task::get));
    OpenApiRouter::with_openapi(Document::openapi())
        .nest(BASE_PATH, api)
        .routes(routes!(health::health_check))
}

/// Where CAF has its description. JSON is YAML, too.
async fn described_in_yaml() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/yaml")],
        Json(openapi()),
    )
}

async fn unknown_url(uri: Uri) -> ApiError {
    ApiError::NotFound(format!(
        "There is nothing at {}. The API is described at /job-service-ui/.",
        uri.path()
    ))
}

/// The UI has a refusal of its own, which is not JSON.
async fn not_found_as_json(uri: Uri, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.status() == StatusCode::NOT_FOUND {
        unknown_url(uri).await.into_response()
    } else {
        response
    }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed(format!("{} does not take {method}.", uri.path()))
}

/// Has the workers ask for the job's status at once. One that does not hear it asks when its last answer no longer holds.
fn announce(parts: &Parts, partition: &PartitionId, job: &JobId) {
    drop(framework::announce(
        &*parts.broker,
        vec![format!("{partition}:{job}")],
    ));
}

/// What every route that needs the store may answer besides.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "documentation only")]
enum StoreTrouble {
    #[response(
        status = 500,
        description = "The service has failed; its log tells why, under the correlation id"
    )]
    Failed(#[to_schema] ErrorBody),
    #[response(
        status = 503,
        description = "The database is not available; try again later"
    )]
    Unavailable(#[to_schema] ErrorBody),
}
