//! The pages of jobs: lists, one job, its forms and actions.

mod action;
mod again;
mod bulk;
mod confirm;
mod job;
pub mod job_head;
mod list;
mod parameters;
mod plot;
mod submit;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::state::AppState;

pub use self::job::groups;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/", get(list::partitions))
        .route("/partitions/{partition}/jobs", get(list::jobs))
        .route(
            "/partitions/{partition}/bulk",
            get(bulk::confirm).post(bulk::act),
        )
        .route(
            "/partitions/{partition}/submit",
            get(submit::form).post(submit::act),
        )
        .route("/partitions/{partition}/jobs/{job}", get(job::overview))
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
}
