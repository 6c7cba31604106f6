//! The metrics of the job service: its requests, which are counted, and what is measured at a
//! scrape.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use contract::metrics::{EVENT_STREAMS, HTTP_REQUESTS, HTTP_SECONDS};
use framework::meters::{self, Measurement, on_scrape};
use futures_util::FutureExt as _;
use metrics::{counter, gauge, histogram};
use tokio::time::Instant;

use crate::state::AppState;

/// How long a scrape waits for the store. The gauges follow when the store has responded.
const BACKLOG_WAIT: Duration = Duration::from_secs(2);

/// `GET /metrics`: every metric of this process in Prometheus' format.
pub async fn metrics() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, meters::CONTENT_TYPE)],
        meters::scrape().await,
    )
}

/// The layer that counts requests by route, method and status.
pub async fn layer(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "other".to_owned(), |route| route.as_str().to_owned());
    let method = known(request.method());
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    histogram!(HTTP_SECONDS, "route" => route.clone(), "method" => method).record(begun.elapsed());
    counter!(HTTP_REQUESTS, "route" => route, "method" => method, "status" => status).increment(1);
    response
}

/// Returns the name of a method. A client may send any text.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Measures the service, its store and its broker at each scrape, until the result is dropped or
/// `end` is cancelled.
pub fn measure(state: &Arc<AppState>) -> Measurement {
    meters::install();
    let state = Arc::clone(state);
    on_scrape(move || {
        let state = Arc::clone(&state);
        async move {
            gauge!(EVENT_STREAMS).set(number(state.http.open_event_streams() as u64));
            tokio::join!(
                state.broker.measure(),
                state.pipes.measured.measure(state.waiting_items()),
                state
                    .backlog
                    .look(&state.store, &state.options.health, BACKLOG_WAIT),
            );
        }
        .boxed()
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: u64) -> f64 {
    count as f64
}
