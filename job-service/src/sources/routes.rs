//! The operations on uploaded sources.

mod read_source;
mod sources;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(sources::create_source, sources::list_sources))
        .routes(routes!(
            sources::get_source,
            sources::append_to_source,
            sources::delete_source
        ))
        .routes(routes!(sources::commit_source))
        .routes(routes!(read_source::read_source))
}
