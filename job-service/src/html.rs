//! Responses that are pages.
//!
//! What must stay true: every page forbids what it does not need, so that text of a job that got
//! past the escaping could still do nothing.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use page::Template;

/// What every page says to the browser: what it may load, that its type is what it says, and that
/// no other site learns its URL. The policy of referrers must let a form name its origin.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (header::CONTENT_SECURITY_POLICY, page::POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// Returns the response with this page.
pub fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, HEADERS, text).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
