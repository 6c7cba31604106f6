//! The operations on tasks of jobs.

mod count_tasks;
mod get_split;
pub mod get_task;
pub mod list_failures;
pub mod list_tasks;
mod memos;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(list_tasks::list_tasks))
        .routes(routes!(count_tasks::count_tasks))
        .routes(routes!(get_task::get_task))
        .routes(routes!(get_split::get_split))
        .routes(routes!(memos::get_memo, memos::put_memo))
        .routes(routes!(list_failures::list_failures))
}
