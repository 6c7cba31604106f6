//! The operations on jobs.

pub mod adjust_job;
pub mod cancel_and_delete_jobs;
pub mod cancel_job;
mod count_jobs;
mod create_job;
pub mod delete_job;
mod dispatch_partition;
mod explain_job;
pub mod get_definition;
mod get_history;
pub mod get_job;
mod get_progress;
mod is_active;
mod job_pieces;
mod job_status;
mod list_jobs;
pub mod pause_job;
pub mod resubmit_job;
pub mod resume_job;
pub mod retry_job;
pub mod retry_jobs;
mod submit_job;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(list_jobs::list_jobs))
        .routes(routes!(count_jobs::count_jobs))
        .routes(routes!(cancel_and_delete_jobs::cancel_jobs))
        .routes(routes!(cancel_and_delete_jobs::delete_jobs))
        .routes(routes!(retry_jobs::retry_jobs))
        .routes(routes!(create_job::create_job))
        .routes(routes!(submit_job::submit_job))
        .routes(routes!(explain_job::explain_job))
        .routes(routes!(dispatch_partition::dispatch_partition))
        .routes(routes!(get_job::get_job))
        .routes(routes!(delete_job::delete_job))
        .routes(routes!(adjust_job::adjust_job))
        .routes(routes!(cancel_job::cancel_job))
        .routes(routes!(pause_job::pause_job))
        .routes(routes!(resume_job::resume_job))
        .routes(routes!(retry_job::retry_job))
        .routes(routes!(resubmit_job::resubmit_job))
        .routes(routes!(get_definition::get_definition))
        .routes(routes!(get_history::get_history))
        .routes(routes!(job_status::job_status))
        .routes(routes!(is_active::is_active))
        .routes(routes!(get_progress::get_progress))
}
