//! The correlation id of a request (the client's, or a new one), and its trace.
//!
//! It appears in the log span of the request, in the response header, in the job that the request
//! creates and in its start message. Workers copy it to every message of the job.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use framework::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use tracing::Instrument;
use uuid::Uuid;

/// CAF's header for the correlation id, in requests and responses.
pub const HEADER: HeaderName = HeaderName::from_static("caf-correlation-id");

/// The longest correlation id, in bytes.
const LONGEST: usize = 255;

/// The correlation id of the current request. [`layer`] adds it to the request's extensions.
#[derive(Debug, Clone)]
pub struct CorrelationId(pub String);

/// The outermost layer: determines the correlation id, runs the request in its span and sets the
/// response header.
pub async fn layer(mut request: Request, next: Next) -> Response {
    // An id that is not visible ASCII cannot be logged and forwarded safely, and a long one would
    // be in every message of a job. So it is ignored.
    let client_id = request
        .headers()
        .get(HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|text| (1..=LONGEST).contains(&text.len()));
    let id = client_id.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
    let span = tracing::info_span!("request", method = %request.method(), path = request.uri().path(), correlation_id = %id);
    let echo = HeaderValue::from_str(&id);
    request.extensions_mut().insert(CorrelationId(id));
    let mut response = next.run(request).instrument(span.clone()).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "responded"));
    if let Ok(echo) = echo {
        response.headers_mut().insert(HEADER, echo);
    }
    response
}

/// Returns the trace that the request belongs to. A client may spread the state over several
/// headers.
pub fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get_all(name).iter().map(|value| value.to_str());
    let mut parents = text(TRACEPARENT);
    let (Some(Ok(parent)), None) = (parents.next(), parents.next()) else {
        return None;
    };
    let state: Vec<&str> = text(TRACESTATE)
        .collect::<Result<_, _>>()
        .unwrap_or_default();
    TraceContext::parse(parent, Some(&state.join(",")))
}
