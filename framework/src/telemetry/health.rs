//! The health checks of a worker: what is asked, and what is answered.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::broker::{Broker, BrokerState};

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
pub(super) struct Check {
    name: &'static str,
    healthy: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    critical: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Selection {
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

    /// Returns whether READY passes.
    pub(super) fn is_ready(&self) -> bool {
        let ready = Selection {
            name: None,
            kind: Some("READY".to_owned()),
        };
        self.respond(&ready).0 == StatusCode::OK
    }

    pub(super) fn respond(&self, selection: &Selection) -> (StatusCode, Vec<Check>) {
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
