//! The operations of the API, one file each, and the OpenAPI document.

pub(crate) mod cancel_job;
pub(crate) mod cancel_jobs;
pub(crate) mod conditions;
mod count_jobs;
mod count_tasks;
mod create_job;
pub(crate) mod dead_letters;
pub(crate) mod delete_job;
pub(crate) mod delete_jobs;
mod dispatch_partition;
mod explain_job;
mod export_outputs;
pub(crate) mod get_definition;
pub(crate) mod get_history;
pub(crate) mod get_job;
pub(crate) mod get_outputs;
mod get_pipe;
mod get_progress;
mod get_split;
pub(crate) mod get_task;
pub(crate) mod health_check;
mod in_pieces;
mod is_active;
mod job_pieces;
mod job_status;
pub(crate) mod list_failures;
mod list_jobs;
mod list_pipes;
pub(crate) mod list_tasks;
mod list_workers;
mod memos;
mod ndjson;
pub(crate) mod pause_job;
mod ping;
mod put_messages;
mod read_source;
pub(crate) mod resubmit_job;
pub(crate) mod resume_job;
pub(crate) mod retry_job;
pub(crate) mod retry_jobs;
mod sources;
mod submit_job;
mod take_messages;
mod watch_job;
mod watch_jobs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use contract::metrics::READY;
use framework::meters::{Measurement, on_scrape};
use futures_util::FutureExt as _;
use metrics::gauge;
use tokio::time::timeout;
use utoipa::OpenApi;
use utoipa::openapi::{self, Content, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::options::BASE_PATH;
use crate::state::AppState;

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
        (name = "sources", description = "Large inputs, which clients send before the jobs that read them"),
        (name = "pipes", description = "The messages of pipes, where the operator gives access to them"),
        (name = "dead letters", description = "The messages that were given up, rejected, not understood or not deliverable"),
        (name = "conditions", description = "The conditions that tasks wait for"),
        (name = "service", description = "The state of the service")
    )
)]
struct Document;

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

/// Returns the OpenAPI 3.1 document of the API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

/// Collects the operations. Their order here is the order in Swagger UI.
pub(crate) fn routes() -> OpenApiRouter<Arc<AppState>> {
    let api = OpenApiRouter::new()
        .routes(routes!(ping::ping))
        .routes(routes!(list_jobs::list_jobs))
        .routes(routes!(count_jobs::count_jobs))
        .routes(routes!(cancel_jobs::cancel_jobs))
        .routes(routes!(delete_jobs::delete_jobs))
        .routes(routes!(retry_jobs::retry_jobs))
        .routes(routes!(create_job::create_job))
        .routes(routes!(submit_job::submit_job))
        .routes(routes!(explain_job::explain_job))
        .routes(routes!(dispatch_partition::dispatch_partition))
        .routes(routes!(get_job::get_job))
        .routes(routes!(watch_job::watch_job))
        .routes(routes!(watch_jobs::watch_jobs))
        .routes(routes!(watch_jobs::watch_all_jobs))
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
        .routes(routes!(list_tasks::list_tasks))
        .routes(routes!(count_tasks::count_tasks))
        .routes(routes!(get_task::get_task))
        .routes(routes!(get_split::get_split))
        .routes(routes!(memos::get_memo, memos::put_memo))
        .routes(routes!(get_progress::get_progress))
        .routes(routes!(list_failures::list_failures))
        .routes(routes!(take_messages::take_messages))
        .routes(routes!(put_messages::put_messages))
        .routes(routes!(list_workers::list_workers))
        .routes(routes!(list_pipes::list_pipes))
        .routes(routes!(get_pipe::get_pipe))
        .routes(routes!(
            dead_letters::list_dead_letters,
            dead_letters::delete_dead_letters
        ))
        .routes(routes!(
            dead_letters::get_dead_letter,
            dead_letters::delete_dead_letter
        ))
        .routes(routes!(dead_letters::replay_dead_letter))
        .routes(routes!(dead_letters::replay_dead_letters))
        .routes(routes!(conditions::list_conditions))
        .routes(routes!(conditions::get_condition))
        .routes(routes!(conditions::test_condition))
        .routes(routes!(conditions::release_condition))
        .routes(routes!(conditions::fail_condition))
        .routes(routes!(get_outputs::get_outputs))
        .routes(routes!(export_outputs::export_outputs))
        .routes(routes!(sources::create_source, sources::list_sources))
        .routes(routes!(
            sources::get_source,
            sources::append_to_source,
            sources::delete_source
        ))
        .routes(routes!(sources::commit_source))
        .routes(routes!(read_source::read_source));
    OpenApiRouter::with_openapi(Document::openapi())
        .nest(BASE_PATH, api)
        .routes(routes!(health_check::health_check))
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
                "The service cannot do this now, and the message says why: its database or the batch worker that it asks is unavailable, its disk is short of \
                 space for new jobs, or it has as many connections, request bodies or event streams as it may have. Try again later",
            ),
        ])
    }
}
