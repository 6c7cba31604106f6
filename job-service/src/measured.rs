//! The metrics of the job service: its requests, which are counted, and what waits in the store, which is measured at a scrape.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use contract::JobStatus;
use contract::metrics::{
    EVENT_STREAMS, HTTP_REQUESTS, HTTP_SECONDS, JOBS, OUTBOX_AGE, OUTBOX_MESSAGES, PARKED_TASKS,
};
use framework::meters::{self, Measurement, on_scrape};
use futures_util::FutureExt as _;
use metrics::{counter, gauge, histogram};
use store::{Backlog, Store};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::state::AppState;

/// How long a measurement of the store counts as new.
const BACKLOG_AGE: Duration = Duration::from_secs(15);
/// A measurement that takes long is made more rarely: it takes at most this share of the time.
const BACKLOG_SHARE: u32 = 100;
/// How long a scrape waits for the store. The gauges follow when the store has responded.
const BACKLOG_WAIT: Duration = Duration::from_secs(2);
/// How long the store may take.
const BACKLOG_LIMIT: Duration = Duration::from_mins(1);

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

/// Measures the service, its store and its broker at each scrape, until the result is dropped or `end` is cancelled.
pub fn measure(state: &Arc<AppState>, tasks: &TaskTracker, end: &CancellationToken) -> Measurement {
    meters::install();
    let (state, again_at) = (Arc::clone(state), Arc::new(Mutex::default()));
    let (tasks, end) = (tasks.clone(), end.clone());
    on_scrape(move || {
        let (state, again_at, end) = (Arc::clone(&state), Arc::clone(&again_at), end.clone());
        let store = state.store.clone();
        let reading = tasks.spawn(async move {
            end.run_until_cancelled(measure_backlog(&store, &again_at))
                .await
        });
        async move {
            state.broker.measure().await;
            gauge!(EVENT_STREAMS).set(number(state.open_event_streams() as u64));
            // An error means that the store takes longer, or that the service stops.
            let _ = timeout(BACKLOG_WAIT, reading).await;
        }
        .boxed()
    })
}

/// Reads the store, unless it is being read, or was read a moment ago. `again_at` is when to read it again.
async fn measure_backlog(store: &Store, again_at: &Mutex<Option<Instant>>) {
    let Ok(mut again_at) = again_at.try_lock() else {
        return;
    };
    let begun = Instant::now();
    if again_at.is_some_and(|at| begun < at) {
        return;
    }
    let backlog = timeout(BACKLOG_LIMIT, store.backlog()).await;
    *again_at = Some(begun + BACKLOG_AGE.max(begun.elapsed() * BACKLOG_SHARE));
    let Ok(Ok(backlog)) = backlog else {
        for status in JobStatus::ALL {
            gauge!(JOBS, "status" => status.name()).set(f64::NAN);
        }
        for name in [PARKED_TASKS, OUTBOX_MESSAGES, OUTBOX_AGE] {
            gauge!(name).set(f64::NAN);
        }
        return;
    };
    let Backlog {
        jobs,
        parked_tasks,
        due_messages,
        oldest_due,
    } = backlog;
    for status in JobStatus::ALL {
        let count = jobs.get(status.name()).copied().unwrap_or_default();
        gauge!(JOBS, "status" => status.name()).set(number(count));
    }
    gauge!(PARKED_TASKS).set(number(parked_tasks));
    gauge!(OUTBOX_MESSAGES).set(number(due_messages));
    gauge!(OUTBOX_AGE).set(oldest_due);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: u64) -> f64 {
    count as f64
}
