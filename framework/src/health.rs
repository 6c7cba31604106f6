//! The endpoint of a worker process: `/health-check?name=all&type=ALIVE|READY` and `/metrics`.
//!
//! The only file of the framework that speaks HTTP as a server.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, BrokerState};

/// What health is told from.
#[derive(Clone)]
pub(crate) struct Health {
    pub broker: Arc<dyn Broker>,
    /// What is missing around the worker.
    pub missing: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// Whether the consume loop runs.
    pub consuming: watch::Receiver<bool>,
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
struct Which {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Health {
    fn checks(&self) -> Vec<Check> {
        let queue = match self.broker.state() {
            BrokerState::Connected => None,
            BrokerState::Connecting(why) => Some(format!("the broker is not connected: {why}")),
            BrokerState::Blocked(why) => Some(format!("the broker blocks publishers: {why}")),
            BrokerState::Closed => Some("the broker is closed".to_owned()),
        };
        let loop_ended = (!*self.consuming.borrow()).then(|| "no deliveries are taken".to_owned());
        let surroundings = (self.missing)();
        [
            ("worker-alive", "ALIVE", loop_ended),
            ("queue", "READY", queue),
            ("worker-ready", "READY", surroundings),
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

    fn answer(&self, which: &Which) -> (StatusCode, Vec<Check>) {
        let of_kind = |check: &Check| {
            which
                .kind
                .as_deref()
                .is_none_or(|kind| kind.eq_ignore_ascii_case(check.kind))
        };
        let mut checks: Vec<_> = self.checks().into_iter().filter(of_kind).collect();
        let healthy = checks.iter().all(|check| check.healthy);
        checks.retain(|check| {
            which
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

/// Makes the counters of this process readable. The first call of a process counts.
pub(crate) fn install_recorder() -> Option<PrometheusHandle> {
    static RECORDER: std::sync::OnceLock<Option<PrometheusHandle>> = std::sync::OnceLock::new();
    RECORDER
        .get_or_init(|| PrometheusBuilder::new().install_recorder().ok())
        .clone()
}

/// Binds the port; an address in use is an error that names it.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; choose another address"))
}

/// Serves until the token trips.
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
        |State(health): State<Health>, Query(which): Query<Which>| async move {
            let (code, checks) = health.answer(&which);
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
        tracing::warn!(%error, "the health endpoint has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::memory::Memory;

    #[test]
    fn health_tells_what_is_wrong_and_readiness_is_not_liveness() {
        let (unavailable, unavailable_now) = watch::channel::<Option<String>>(None);
        let missing = Arc::new(move || unavailable_now.borrow().clone());
        let (consuming, consuming_now) = watch::channel(true);
        let health = Health {
            broker: Arc::new(Memory::new()),
            missing,
            consuming: consuming_now,
        };
        let ask = |kind: &str| {
            health.answer(&Which {
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
