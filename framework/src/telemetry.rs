//! The counters of a worker, and the HTTP endpoint that serves them with the health checks:
//! `/health-check?name=all&type=ALIVE|READY` and `/metrics`.
//!
//! No other file of the framework serves HTTP.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use metrics::{Counter, counter};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, BrokerState};

/// The counters of one worker. Their names follow CAF's (`core.tasksReceived`, …) in Prometheus' spelling.
#[derive(Clone)]
pub(crate) struct Counters {
    pub received: Counter,
    pub done: Counter,
    pub forwarded: Counter,
    pub paused: Counter,
    pub discarded: Counter,
    pub invalid: Counter,
}

impl Counters {
    pub fn of(worker: &str) -> Self {
        let counter = |name: &'static str| counter!(name, "worker" => worker.to_owned());
        Self {
            received: counter("batchwright_tasks_received_total"),
            done: counter("batchwright_tasks_done_total"),
            forwarded: counter("batchwright_tasks_forwarded_total"),
            paused: counter("batchwright_tasks_paused_total"),
            discarded: counter("batchwright_tasks_discarded_total"),
            invalid: counter("batchwright_tasks_rejected_total"),
        }
    }
}

/// Returns the counter of the status checks that a worker does not make, because their URL is not allowed.
pub(crate) fn refused_status_checks(worker: &str) -> Counter {
    counter!("batchwright_status_checks_refused_total", "worker" => worker.to_owned())
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters")
    }
}

/// What the health checks look at.
#[derive(Clone)]
pub(crate) struct Health {
    pub broker: Arc<dyn Broker>,
    /// Returns why the handler cannot work, if it cannot.
    pub unready_reason: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// Whether the runtime takes deliveries.
    pub is_consuming: watch::Receiver<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    healthy: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    critical: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Selection {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Health {
    fn checks(&self) -> Vec<Check> {
        let queue = match self.broker.state() {
            BrokerState::Connected => None,
            BrokerState::Impaired(why) => Some(why),
            BrokerState::Connecting(why) => Some(format!("the broker is not connected: {why}")),
            BrokerState::Blocked(why) => Some(format!("the broker blocks publishers: {why}")),
            BrokerState::Closed => Some("the broker is closed".to_owned()),
        };
        let alive =
            (!*self.is_consuming.borrow()).then(|| "the worker takes no deliveries".to_owned());
        let ready = (self.unready_reason)();
        [
            ("worker-alive", "ALIVE", alive),
            ("queue", "READY", queue),
            ("worker-ready", "READY", ready),
        ]
        .map(|(name, kind, message)| Check {
            name,
            healthy: message.is_none(),
            kind,
            critical: true,
            message,
        })
        .into()
    }

    fn respond(&self, selection: &Selection) -> (StatusCode, Vec<Check>) {
        let of_kind = |check: &Check| {
            selection
                .kind
                .as_deref()
                .is_none_or(|kind| kind.eq_ignore_ascii_case(check.kind))
        };
        let mut checks: Vec<_> = self.checks().into_iter().filter(of_kind).collect();
        let healthy = checks.iter().all(|check| check.healthy);
        checks.retain(|check| {
            selection
                .name
                .as_deref()
                .is_some_and(|name| name == "all" || name == check.name)
        });
        (
            if healthy {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            },
            checks,
        )
    }
}

/// Installs the recorder of the counters of this process. Later calls return the same one; `None` if the program has
/// installed another one.
pub(crate) fn install_recorder() -> Option<PrometheusHandle> {
    static RECORDER: std::sync::OnceLock<Option<PrometheusHandle>> = std::sync::OnceLock::new();
    RECORDER
        .get_or_init(|| PrometheusBuilder::new().install_recorder().ok())
        .clone()
}

/// Binds the address. The error names it.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; choose another address"))
}

/// Serves health checks and metrics until `shutdown` is cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    health: Health,
    recorder: Option<PrometheusHandle>,
    shutdown: CancellationToken,
) {
    let metrics = get(move || async move {
        recorder
            .map(|recorder| recorder.render())
            .unwrap_or_default()
    });
    let check = get(
        |State(health): State<Health>, Query(selection): Query<Selection>| async move {
            let (code, checks) = health.respond(&selection);
            (code, Json(checks))
        },
    );
    let router = Router::new()
        .route("/health-check", check)
        .route("/metrics", metrics)
        .with_state(health);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::warn!(%error, "the health endpoint has stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::memory::Memory;

    #[test]
    fn health_names_the_problem_and_readiness_is_not_liveness() {
        let (unavailable, unavailable_now) = watch::channel::<Option<String>>(None);
        let unready_reason = Arc::new(move || unavailable_now.borrow().clone());
        let (consuming, is_consuming) = watch::channel(true);
        let health = Health {
            broker: Arc::new(Memory::new()),
            unready_reason,
            is_consuming,
        };
        let ask = |kind: &str| {
            health.respond(&Selection {
                name: Some("all".into()),
                kind: Some(kind.into()),
            })
        };
        assert_eq!(
            (ask("ALIVE").0, ask("READY").0),
            (StatusCode::OK, StatusCode::OK)
        );
        unavailable.send_replace(Some("the disk is full".into()));
        assert_eq!(
            (ask("ALIVE").0, ask("READY").0),
            (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE)
        );
        assert!(
            ask("READY")
                .1
                .iter()
                .any(|check| check.message.as_deref() == Some("the disk is full"))
        );
        consuming.send_replace(false);
        assert_eq!(ask("ALIVE").0, StatusCode::SERVICE_UNAVAILABLE);
    }
}
