//! The event streams.

mod watch_job;
mod watch_jobs;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(watch_job::watch_job))
        .routes(routes!(watch_jobs::watch_jobs))
        .routes(routes!(watch_jobs::watch_all_jobs))
}
