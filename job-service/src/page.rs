//! The web page at `/`: what a person sees of the service in a browser, and does with it.
//!
//! A page shows the types of the API, read by the functions that the API's routes use, so that page
//! and API never disagree.
//!
//! What must stay true:
//! - A page costs what the same request to the API costs: never more for a job with more items.
//! - Every change is a `POST` that only the page itself can send (`access::only_from_own_page`).
//! - What concerns several jobs, and what cannot be undone, is asked about first.

mod action;
mod again;
mod bar;
mod bulk;
mod conditions;
mod confirm;
mod fields;
mod form;
mod job;
mod job_action;
mod job_head;
mod letters;
mod list;
mod live;
mod message;
mod outputs;
mod parameters;
mod plot;
mod sight;
mod sources;
mod submit;
mod task;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use contract::rest::ErrorCode;

use crate::access;
use crate::error::{ApiError, ApiResult};
use crate::html::Asset;
use crate::state::AppState;

/// Returns the routes of the page.
pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/", get(list::partitions))
        .route("/pipes", get(sight::pipes))
        .route("/pipes/{pipe}", get(sight::pipe))
        .route("/workers", get(sight::workers))
        .route("/conditions", get(conditions::list))
        .route("/conditions/{key}", get(conditions::condition))
        .route("/conditions/{key}/confirm", get(conditions::confirm))
        .route("/conditions/{key}/{action}", post(conditions::act))
        .route("/dead-letters", get(letters::list).post(letters::act))
        .route("/dead-letters/confirm", get(letters::confirm))
        .route("/dead-letters/{id}", get(letters::letter))
        .route("/dead-letters/{id}/confirm", get(letters::confirm_one))
        .route("/dead-letters/{id}/{action}", post(letters::act_on_one))
        .route("/partitions/{partition}/jobs", get(list::jobs))
        .route("/partitions/{partition}/live", get(live::live_jobs))
        .route("/conditions/live", get(live::live_conditions))
        .route(
            "/partitions/{partition}/bulk",
            get(bulk::confirm).post(bulk::act),
        )
        .route(
            "/partitions/{partition}/submit",
            get(submit::form).post(submit::act),
        )
        .route("/partitions/{partition}/sources", get(sources::list))
        .route(
            "/partitions/{partition}/sources/{source}/confirm",
            get(sources::confirm),
        )
        .route(
            "/partitions/{partition}/sources/{source}/delete",
            post(sources::delete),
        )
        .route("/partitions/{partition}/jobs/{job}", get(job::overview))
        .route("/partitions/{partition}/jobs/{job}/live", get(live::live))
        .route(
            "/partitions/{partition}/jobs/{job}/failures",
            get(job::failures),
        )
        .route(
            "/partitions/{partition}/jobs/{job}/tasks/{task}",
            get(task::task),
        )
        .route(
            "/partitions/{partition}/jobs/{job}/outputs",
            get(outputs::outputs),
        )
        .route(
            "/partitions/{partition}/jobs/{job}/definition",
            get(job::definition),
        )
        .route(
            "/partitions/{partition}/jobs/{job}/confirm",
            get(action::confirm),
        )
        .route(
            "/partitions/{partition}/jobs/{job}/resubmit",
            get(again::form).post(again::act),
        )
        .route(
            "/partitions/{partition}/jobs/{job}/{action}",
            get(action::no_page).post(action::act),
        )
        .route("/assets/{hash}/{name}", get(asset))
        .layer(middleware::from_fn(access::only_from_own_page))
}

/// Serves a file that pages load. Its URL changes with its content, so browsers may keep it.
async fn asset(Path((hash, name)): Path<(String, String)>) -> ApiResult<Response> {
    let Some(asset) = Asset::find(&hash, &name) else {
        let message =
            format!("There is no file {name} of this version. Load the page that uses it again.");
        return Err(ApiError::NotFound(ErrorCode::UrlNotFound, message));
    };
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, asset.content).into_response())
}
