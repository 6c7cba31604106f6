//! The operations on kept outputs.

mod export_outputs;
pub mod get_outputs;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(get_outputs::get_outputs))
        .routes(routes!(export_outputs::export_outputs))
}
