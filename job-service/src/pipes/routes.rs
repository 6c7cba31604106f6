//! The operations on pipes and workers.

mod get_pipe;
mod list_pipes;
mod list_workers;
mod put_messages;
mod take_messages;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(take_messages::take_messages))
        .routes(routes!(put_messages::put_messages))
        .routes(routes!(list_workers::list_workers))
        .routes(routes!(list_pipes::list_pipes))
        .routes(routes!(get_pipe::get_pipe))
}
