//! `GET /health-check`: reports whether the service is alive, and whether it is ready to serve
//! requests.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use contract::metrics::READY;
use contract::rest::ErrorCode;
use framework::broker::BrokerState;
use framework::health::{Health, Trouble};
use framework::meters::{Measurement, on_scrape};
use futures_util::FutureExt as _;
use metrics::gauge;
use serde::Serialize;
use store::{Availability, Store};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use crate::http::error::{ApiError, ApiResult};
use crate::state::AppState;

/// How long the database may take to respond. A slower database counts as unhealthy.
const PING_LIMIT: Duration = Duration::from_secs(5);

/// How long a check waits for the size of the outbox.
const BACKLOG_WAIT: Duration = Duration::from_millis(500);

/// How long a scrape waits for the health check. A service that takes longer is not ready.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// The result of one check.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthCheck {
    /// The name of the check: `deadlocks`, `ports-alive`, `ports-ready`, `database`, `ping` or
    /// `queue`. `deadlocks`, `ports-alive`, `ports-ready` and `ping` are healthy whenever the
    /// service responds. Further checks exist while there is something to tell: of a part of the
    /// process that does not work, or of something that grows or lags (`degraded`).
    name: Cow<'static, str>,
    /// Whether the check passed.
    healthy: bool,
    /// The type of the check.
    #[serde(rename = "type")]
    #[schema(rename = "type")]
    kind: HealthType,
    /// Whether a failure of this check makes the service unhealthy.
    critical: bool,
    /// True if the service works, but something grows or lags and needs attention; then `message`
    /// says what. Otherwise absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    /// Details: the reason of a failure, or a warning. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// The type of a health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HealthType {
    /// Liveness: if unhealthy, restart the process.
    Alive,
    /// Readiness: if unhealthy, send no requests to the process.
    Ready,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "only documents the query, which `Requested::parse` reads because `name` may be repeated"
)]
pub struct HealthParams {
    /// The checks to list: `all`, or the name of a check; may be repeated. Default: none. The
    /// status code reflects all checks of the type, listed or not.
    #[param(example = "all")]
    name: Option<String>,
    /// The checks to run: `ALIVE`, or `READY`, which includes `ALIVE`. Default: `READY`.
    #[param(example = "READY")]
    r#type: Option<HealthType>,
}

/// Check the health of the service
///
/// Returns 503 if a critical check fails.
#[utoipa::path(
    get,
    path = "/health-check",
    operation_id = "healthCheck",
    tag = "service",
    params(HealthParams),
    responses(
        (status = 200, description = "Healthy", body = Vec<HealthCheck>, example = json!([
            {"name": "deadlocks", "healthy": true, "type": "ALIVE", "critical": true},
            {"name": "ports-alive", "healthy": true, "type": "ALIVE", "critical": true},
            {"name": "ports-ready", "healthy": true, "type": "READY", "critical": true},
            {"name": "database", "healthy": true, "type": "READY", "critical": true},
            {"name": "ping", "healthy": true, "type": "READY", "critical": true},
            {"name": "queue", "healthy": true, "type": "READY", "critical": true}
        ])),
        (status = 400, description = "Unknown `type`", body = contract::rest::ErrorBody,
            example = json!({"message": "The parameter 'type' must be ALIVE or READY, but is 'DEAD'."})),
        (status = 503, description = "Unhealthy: a critical check fails", body = Vec<HealthCheck>, example = json!([
            {"name": "deadlocks", "healthy": true, "type": "ALIVE", "critical": true},
            {"name": "ports-alive", "healthy": true, "type": "ALIVE", "critical": true},
            {"name": "ports-ready", "healthy": true, "type": "READY", "critical": true},
            {"name": "database", "healthy": false, "type": "READY", "critical": true, "message": "no response within 5s"},
            {"name": "ping", "healthy": true, "type": "READY", "critical": true},
            {"name": "queue", "healthy": true, "type": "READY", "critical": true}
        ]))
    )
)]
pub async fn health_check(
    State(state): State<Arc<AppState>>,
    RawQuery(query): RawQuery,
) -> ApiResult<(StatusCode, Json<Vec<HealthCheck>>)> {
    let Requested { kind, names } = Requested::parse(query.as_deref().unwrap_or_default())?;
    let healthy = |name, kind| HealthCheck::of(name, kind, None);
    let mut checks = vec![
        healthy("deadlocks", HealthType::Alive),
        healthy("ports-alive", HealthType::Alive),
    ];
    if kind == HealthType::Ready {
        checks.push(healthy("ports-ready", HealthType::Ready));
        checks.push(database(&state.store).await);
        checks.push(healthy("ping", HealthType::Ready));
        checks.push(queue(state.broker.state()));
        let health = &state.options.health;
        // What it finds later is told by the next check.
        state.backlog.look(&state.store, health, BACKLOG_WAIT).await;
        checks.extend(process(health));
        if state.options.is_open_to_all() {
            let told = "everybody who reaches the service may do everything (--auth none)";
            checks.push(HealthCheck {
                message: Some(told.to_owned()),
                ..healthy("authentication", HealthType::Ready)
            });
        }
    }
    let all_healthy = checks.iter().all(|check| check.healthy || !check.critical);
    checks.retain(|check| names.contains("all") || names.contains(&*check.name));
    Ok((
        if all_healthy {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        Json(checks),
    ))
}

/// The parsed query of a request.
struct Requested {
    kind: HealthType,
    names: HashSet<String>,
}

impl Requested {
    fn parse(query: &str) -> ApiResult<Self> {
        let mut requested = Self {
            kind: HealthType::Ready,
            names: HashSet::new(),
        };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "name" => _ = requested.names.insert(value.to_owned()),
                "type" if value.eq_ignore_ascii_case("ALIVE") => requested.kind = HealthType::Alive,
                "type" if value.eq_ignore_ascii_case("READY") => requested.kind = HealthType::Ready,
                "type" => {
                    return Err(ApiError::bad_request(
                        ErrorCode::InvalidParameter,
                        format!("The parameter 'type' must be ALIVE or READY, but is '{value}'."),
                    ));
                }
                _ => {}
            }
        }
        Ok(requested)
    }
}

/// Checks the connection to the database.
async fn database(store: &Store) -> HealthCheck {
    let message = match tokio::time::timeout(PING_LIMIT, store.ping()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::warn!(%error, code = error.code().as_str(), "the database is unhealthy");
            Some("the database is not available".to_owned())
        }
        Err(_) => {
            tracing::warn!("the database did not respond within {PING_LIMIT:?}");
            Some(format!("no response within {PING_LIMIT:?}"))
        }
    };
    // A database that responds may still be known to be of no use, for example without its
    // notifications.
    let message = message.or_else(|| match &*store.availability().borrow() {
        Availability::Available => None,
        Availability::Unavailable(reason) => Some(reason.clone()),
        Availability::Unusable(_) => Some("the database can never be used".to_owned()),
    });
    HealthCheck::of("database", HealthType::Ready, message)
}

/// Returns the outages and degradations of everything that runs in this process.
fn process(health: &Health) -> impl Iterator<Item = HealthCheck> {
    let outages = health.outages().into_iter();
    let outages = outages
        .map(|Trouble { name, reason }| HealthCheck::of(name, HealthType::Ready, Some(reason)));
    let degradations = health.degradations().into_iter();
    outages.chain(degradations.map(|Trouble { name, reason }| HealthCheck {
        critical: false,
        degraded: true,
        message: Some(reason),
        ..HealthCheck::of(name, HealthType::Ready, None)
    }))
}

/// Checks the connection to the broker. A broker that blocks publishers, or in which some queues
/// cannot be used, is degraded: start messages wait in the outbox, and operators need this service
/// to cancel jobs and so relieve the broker.
fn queue(state: BrokerState) -> HealthCheck {
    let (outage, degradation) = match state {
        BrokerState::Connected => (None, None),
        BrokerState::Impaired(why) => (None, Some(why)),
        BrokerState::Blocked(why) => (None, Some(format!("the broker blocks publishers: {why}"))),
        BrokerState::Refusing(why) => (Some(format!("the broker can store nothing: {why}")), None),
        BrokerState::Connecting(why) => (Some(format!("not connected: {why}")), None),
        BrokerState::Closed => (Some("closed".to_owned()), None),
    };
    HealthCheck {
        degraded: degradation.is_some(),
        message: outage.clone().or(degradation),
        ..HealthCheck::of("queue", HealthType::Ready, outage)
    }
}

impl HealthCheck {
    /// Returns a critical check, which fails if there is an outage.
    fn of(name: impl Into<Cow<'static, str>>, kind: HealthType, outage: Option<String>) -> Self {
        Self {
            name: name.into(),
            healthy: outage.is_none(),
            kind,
            critical: true,
            degraded: false,
            message: outage,
        }
    }
}

/// Shows at each scrape whether the service is ready, until the result is dropped.
pub fn measure_readiness(state: &Arc<AppState>) -> Measurement {
    let state = Arc::clone(state);
    on_scrape(move || {
        let health = health_check(State(Arc::clone(&state)), RawQuery(None));
        async {
            let ready = match timeout(READY_LIMIT, health).await {
                Ok(Ok((code, _))) => code == StatusCode::OK,
                _ => false,
            };
            gauge!(READY).set(u32::from(ready));
        }
        .boxed()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_check_fails_without_a_connection_but_not_while_publishers_are_blocked() {
        for (state, healthy) in [
            (BrokerState::Connected, true),
            (BrokerState::Impaired("a delay queue".into()), true),
            (BrokerState::Blocked("memory".into()), true),
            (BrokerState::Refusing("disk full".into()), false),
            (BrokerState::Connecting("refused".into()), false),
            (BrokerState::Closed, false),
        ] {
            assert_eq!(queue(state.clone()).healthy, healthy, "{state:?}");
        }
    }

    #[test]
    fn the_default_type_is_ready() {
        assert_eq!(Requested::parse("").unwrap().kind, HealthType::Ready);
        assert_eq!(
            Requested::parse("name=all&type=alive").unwrap().kind,
            HealthType::Alive
        );
        assert!(Requested::parse("type=DEAD").is_err());
    }
}
