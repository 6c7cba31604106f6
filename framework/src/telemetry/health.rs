//! The health checks of a worker: the parameters of a request, and the code and body of the answer.
//!
//! Beside the three checks that CAF's workers have, the answer lists each outage of the process as
//! a failed check, and each degradation as one that passes and has `"degraded": true`. READY is
//! false only while there is an outage.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::broker::{Broker, BrokerState};
use crate::health::{Health, Trouble};

/// What the health checks look at.
#[derive(Clone)]
pub(crate) struct Checks {
    /// The name of the worker.
    pub worker: String,
    pub broker: Arc<dyn Broker>,
    pub health: Health,
    /// Whether the runtime takes deliveries.
    pub is_consuming: watch::Receiver<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    name: String,
    healthy: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    critical: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Selection {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Check {
    fn of(name: impl Into<String>, kind: &'static str, outage: Option<String>) -> Self {
        Self {
            name: name.into(),
            healthy: outage.is_none(),
            kind,
            critical: true,
            degraded: false,
            message: outage,
        }
    }

    fn degraded(Trouble { name, reason }: Trouble) -> Self {
        Self {
            name,
            healthy: true,
            kind: "READY",
            critical: false,
            degraded: true,
            message: Some(reason),
        }
    }
}

impl Checks {
    fn all(&self) -> Vec<Check> {
        let (queue, impairment) = match self.broker.state() {
            BrokerState::Connected => (None, None),
            BrokerState::Impaired(why) => (None, Some(why)),
            BrokerState::Blocked(why) => {
                (None, Some(format!("the broker blocks publishers: {why}")))
            }
            BrokerState::Refusing(why) => {
                (Some(format!("the broker can store nothing: {why}")), None)
            }
            BrokerState::Connecting(why) => {
                (Some(format!("the broker is not connected: {why}")), None)
            }
            BrokerState::Closed => (Some("the broker is closed".to_owned()), None),
        };
        let alive =
            (!*self.is_consuming.borrow()).then(|| "the worker takes no deliveries".to_owned());
        let (own, other): (Vec<_>, Vec<_>) = self
            .health
            .outages()
            .into_iter()
            .partition(|outage| outage.name == self.worker);
        let ready = own.into_iter().next().map(|outage| outage.reason);
        let mut checks = vec![
            Check::of("worker-alive", "ALIVE", alive),
            Check {
                degraded: impairment.is_some(),
                message: queue.clone().or(impairment),
                ..Check::of("queue", "READY", queue)
            },
            Check::of("worker-ready", "READY", ready),
        ];
        let outages = other.into_iter();
        checks
            .extend(outages.map(|Trouble { name, reason }| Check::of(name, "READY", Some(reason))));
        checks.extend(self.health.degradations().into_iter().map(Check::degraded));
        checks
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
        let mut checks: Vec<_> = self.all().into_iter().filter(of_kind).collect();
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

    fn checks() -> (Checks, watch::Sender<bool>) {
        let (consuming, is_consuming) = watch::channel(true);
        let checks = Checks {
            worker: "worker-w".into(),
            broker: Arc::new(Memory::new()),
            health: Health::default(),
            is_consuming,
        };
        (checks, consuming)
    }

    fn ask(checks: &Checks, kind: &str) -> (StatusCode, Vec<Check>) {
        checks.respond(&Selection {
            name: Some("all".into()),
            kind: Some(kind.into()),
        })
    }

    #[test]
    fn health_names_the_problem_and_readiness_is_not_liveness() {
        let (checks, consuming) = checks();
        let codes = || (ask(&checks, "ALIVE").0, ask(&checks, "READY").0);
        assert_eq!(codes(), (StatusCode::OK, StatusCode::OK));
        let full = checks.health.outage("worker-w", "the disk is full");
        assert_eq!(codes(), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
        let ready = &ask(&checks, "READY").1[1];
        assert_eq!(
            (ready.name.as_str(), ready.message.as_deref()),
            ("worker-ready", Some("the disk is full"))
        );
        drop(full);
        assert_eq!(codes(), (StatusCode::OK, StatusCode::OK));
        consuming.send_replace(false);
        assert_eq!(ask(&checks, "ALIVE").0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn a_loop_that_begins_again_is_named_and_a_degradation_leaves_the_worker_ready() {
        let (checks, _consuming) = checks();
        checks
            .health
            .degrade("status-checks", "worker-w", "every check says Gone");
        let (code, list) = ask(&checks, "READY");
        assert_eq!(code, StatusCode::OK);
        assert_eq!(
            serde_json::to_value(&list[2]).unwrap(),
            serde_json::json!({
                "name": "status-checks", "healthy": true, "type": "READY", "critical": false,
                "degraded": true, "message": "every check says Gone"
            })
        );
        let _restarts = checks.health.outage("worker-w: reports", "begins again");
        let (code, list) = ask(&checks, "READY");
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            serde_json::to_value(&list[2]).unwrap(),
            serde_json::json!({
                "name": "worker-w: reports", "healthy": false, "type": "READY", "critical": true,
                "message": "begins again"
            })
        );
    }
}
