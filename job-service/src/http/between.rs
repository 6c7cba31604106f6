//! Headers for the browsers and proxies between a client and the service, and the refusal of bodies
//! that they have compressed.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::http::error::ApiError;

/// The header that lets nginx send each piece of a response at once.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// The beginnings of the content types of responses whose pieces are read as they come.
const STREAMS: [&str; 2] = ["text/event-stream", "application/x-ndjson"];

/// The layer that refuses encoded bodies, and adds headers to responses.
pub async fn layer(request: Request, next: Next) -> Response {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    let encoding = encoding.filter(|encoding| *encoding != "identity");
    let mut response = match encoding {
        Some(encoding) => {
            let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
            ApiError::Encoded(encoding).into_response()
        }
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|it| it.to_str().ok());
    if content_type.is_some_and(|it| STREAMS.iter().any(|stream| it.starts_with(stream))) {
        headers.insert(BUFFERING, HeaderValue::from_static("no"));
    }
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}
