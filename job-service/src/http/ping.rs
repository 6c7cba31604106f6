//! `GET /ping`: reports that the service accepts requests.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// The response of a ping.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pong {
    /// Always true.
    success: bool,
}

/// Check that the service responds
///
/// Checks neither the database nor the broker; use `/health-check` for that.
#[utoipa::path(
    get,
    path = "/ping",
    operation_id = "ping",
    tag = "service",
    responses((status = 200, description = "The service responds", body = Pong, example = json!({"success": true})))
)]
pub async fn ping() -> Json<Pong> {
    Json(Pong { success: true })
}
