//! Responses that are pages: what a person sees of the service in a browser.
//!
//! Here is what all pages need: the layout around them, the assets that they load, URLs, and how
//! values are written. The templates are in `templates/`, the assets in `assets/`.
//!
//! What must stay true:
//! - **Every text is escaped.** The templates are HTML to askama, which escapes each value; none of
//!   them is marked as safe.
//! - **A page needs no script.** Links and forms do everything; a script makes it live, and shows
//!   times in the zone of the viewer.
//! - **Nothing is inline and nothing comes from elsewhere**: no style, no script, no handler. Every
//!   page forbids what it does not need ([`POLICY`]), so that text of a job that got past the
//!   escaping could still do nothing.
//!
//! Why so little JavaScript: server-rendered pages that are replaced by their newer version
//! (idiomorph) need no state in the browser, and a plot is a drawing that the server makes.

mod assets;
pub mod bar;
mod error_page;
pub mod fields;
pub mod filters;
pub mod job_action;
mod layout;
pub mod message;
pub mod text;
pub mod url;

use askama::Template;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

pub use self::assets::{Asset, url as asset_url};
pub use self::error_page::ErrorPage;
pub use self::layout::{Layout, Live, Place};

/// The `Content-Security-Policy` of every page: nothing inline, nothing from elsewhere, no frame
/// around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What every page says to the browser: what it may load, and that no other site learns its URL.
/// The policy of referrers must let a form name its origin.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (header::CONTENT_SECURITY_POLICY, POLICY),
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
