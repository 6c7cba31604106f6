//! The correlation id: one per request, taken from the client or made here.
//!
//! It is in every log line of the request (span), in the response (header) and in the start message, from where workers
//! copy it to everything that the job causes.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;
use uuid::Uuid;

/// CAF's header, in requests and responses.
pub const HEADER: HeaderName = HeaderName::from_static("caf-correlation-id");

#[derive(Debug, Clone)]
pub struct CorrelationId(pub String);

/// The outermost layer of the service.
pub async fn layer(mut request: Request, next: Next) -> Response {
    // One that is no visible ASCII could not be logged or sent on safely: as if there were none.
    let given = request
        .headers()
        .get(HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|text| !text.is_empty());
    let id = given.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
    let span = tracing::info_span!("request", method = %request.method(), path = request.uri().path(), correlation_id = %id);
    let echo = HeaderValue::from_str(&id);
    request.extensions_mut().insert(CorrelationId(id));
    let mut response = next.run(request).instrument(span.clone()).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    if let Ok(echo) = echo {
        response.headers_mut().insert(HEADER, echo);
    }
    response
}
