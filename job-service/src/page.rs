//! The web page at `/`: what a person sees of the service in a browser, and does with it.
//!
//! A page shows the types of the API, read by the functions that the API's routes use, so that page
//! and API never disagree. Each feature has pages of its own; `html` has what they share.
//!
//! What must stay true:
//! - A page costs what the same request to the API costs: never more for a job with more items.
//! - Every change is a `POST` that only the page itself can send (`access::only_from_own_page`).
//! - What concerns several jobs, and what cannot be undone, is asked about first.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use contract::rest::ErrorCode;

use crate::html::Asset;
use crate::http::access;
use crate::http::{ApiError, ApiResult};
use crate::state::AppState;
use crate::{conditions, events, jobs, letters, outputs, pipes, rights, sources, tasks};

/// Returns the routes of the page.
pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .merge(jobs::page::router())
        .merge(tasks::page::router())
        .merge(outputs::page::router())
        .merge(sources::page::router())
        .merge(conditions::page::router())
        .merge(letters::page::router())
        .merge(pipes::page::router())
        .merge(events::page::router())
        .merge(rights::page::router())
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
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    Ok((headers, asset.content).into_response())
}
