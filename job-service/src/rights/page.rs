//! Signing in and out of the page: the browser keeps the token in a cookie that no script reads.

use std::sync::Arc;

use askama::Template;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::secret::TokenSecret;
use crate::html::{Layout, Place, html};
use crate::http::connections::Peer;
use crate::http::form::Fields;
use crate::http::{ApiError, ApiResult, RequestBody};
use crate::state::AppState;

/// The name of the cookie with the token.
const SESSION: &str = "batchwright-session";
/// How long a browser keeps it, in seconds.
const MAX_AGE: u32 = 12 * 60 * 60;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/sign-in", get(form).post(sign_in))
        .route("/sign-out", post(sign_out))
}

/// The form that asks for a token.
#[derive(Debug, Template)]
#[template(path = "sign-in.html")]
struct SignInPage {
    layout: Layout,
    /// The page that the person wanted to see.
    to: String,
    problem: Option<String>,
}

/// `GET /sign-in?to=…`: asks for a token.
async fn form(OriginalUri(uri): OriginalUri) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    Ok(page(StatusCode::OK, fields.get("to"), None))
}

/// `POST /sign-in`: keeps the token in the browser, if it is valid.
async fn sign_in(
    State(state): State<Arc<AppState>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: RequestBody,
) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let to = fields.get("to");
    let Some(token) = TokenSecret::sent(fields.get("token").trim()) else {
        let problem = "Enter a token.".to_owned();
        return Ok(page(StatusCode::BAD_REQUEST, to, Some(problem)));
    };
    match state.subject_of(Some(&token)).await {
        Ok(_) => {
            let cookie = cookie(&headers, token.as_text(), MAX_AGE);
            Ok(([(header::SET_COOKIE, cookie)], Redirect::to(own_path(to))).into_response())
        }
        Err(ApiError::TokenNeeded(why)) => {
            let refused = state
                .tokens
                .refuse(peer.map(|Extension(peer)| peer), why)
                .await;
            Ok(page(refused.status(), to, Some(refused.message())))
        }
        Err(error) => Err(error),
    }
}

/// `POST /sign-out`: forgets the token.
async fn sign_out(headers: HeaderMap) -> Response {
    let cookie = cookie(&headers, "", 0);
    ([(header::SET_COOKIE, cookie)], Redirect::to("/sign-in")).into_response()
}

fn page(status: StatusCode, to: &str, problem: Option<String>) -> Response {
    let page = SignInPage {
        layout: Layout::new("Sign in".to_owned(), Place::Nowhere),
        to: own_path(to).to_owned(),
        problem,
    };
    html(status, &page)
}

/// Returns the URL of the form, which leads back to the page that the person wanted to see.
pub fn sign_in_url(wanted: &Uri) -> String {
    let wanted = wanted.path_and_query().map_or("/", |it| it.as_str());
    format!(
        "/sign-in?to={}",
        utf8_percent_encode(wanted, NON_ALPHANUMERIC)
    )
}

/// Returns the token of a browser that has signed in.
pub fn session_of(headers: &HeaderMap) -> Option<TokenSecret> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut cookies = cookies
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split(';'));
    let value =
        cookies.find_map(|cookie| cookie.trim().strip_prefix(SESSION)?.strip_prefix('='))?;
    TokenSecret::sent(value)
}

/// Returns the cookie that keeps a token. Only encrypted connections send it where the browser uses
/// one now, which a proxy says that ends it.
fn cookie(headers: &HeaderMap, token: &str, max_age: u32) -> String {
    let forwarded = headers.get("x-forwarded-proto");
    let origin = headers.get(header::ORIGIN);
    let is_encrypted = forwarded.is_some_and(|scheme| scheme == "https")
        || origin.is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_encrypted { "; Secure" } else { "" };
    format!("{SESSION}={token}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{secure}")
}

/// Returns a path of this page; for anything else, the first page.
fn own_path(path: &str) -> &str {
    let is_own = path.starts_with('/') && !path.starts_with("//");
    let is_own = is_own
        && !path.contains('\\')
        && !path.contains(char::is_control)
        && !path.starts_with("/sign-");
    if is_own { path } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn person_is_led_only_to_pages_of_this_service() {
        for (path, own) in [
            ("/partitions/a/jobs?limit=3", "/partitions/a/jobs?limit=3"),
            ("", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
            ("/\t/evil.example", "/"),
            ("/\0", "/"),
            ("/sign-out", "/"),
        ] {
            assert_eq!(own_path(path), own, "{path}");
        }
    }

    #[test]
    fn cookie_is_read_back_and_is_secure_behind_an_encrypted_connection() {
        let token = TokenSecret::random();
        let mut headers = HeaderMap::new();
        let plain = cookie(&headers, token.as_text(), 5);
        assert!(
            plain.ends_with("; Path=/; Max-Age=5; HttpOnly; SameSite=Lax"),
            "{plain}"
        );
        headers.insert("x-forwarded-proto", "https".parse().unwrap());
        assert!(cookie(&headers, "x", 5).ends_with("; Secure"));
        let (sent, _) = plain.split_once(';').unwrap();
        headers.insert(header::COOKIE, format!("a=b; {sent}").parse().unwrap());
        assert_eq!(session_of(&headers).unwrap().as_text(), token.as_text());
    }
}
