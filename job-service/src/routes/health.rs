//! `GET /ping` and `GET /health-check`: whether the service is there, and whether it can do its work.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use framework::broker::BrokerState;
use serde::Serialize;
use store::Store;
use utoipa::{IntoParams, ToSchema};

use crate::Parts;
use crate::error::{ApiError, ApiResult};

/// A database that takes longer to answer is no help to a request either.
const PING_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, ToSchema)]
pub struct Pong {
    success: bool,
}

/// Tell that the service is there
#[utoipa::path(
    get,
    path = "/ping",
    operation_id = "ping",
    tag = "service",
    responses((status = 200, description = "It is", body = Pong, example = json!({"success": true})))
)]
pub async fn ping() -> Json<Pong> {
    Json(Pong { success: true })
}

/// One thing that was looked at.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthCheck {
    /// `deadlocks`, `ports-alive`, `ports-ready`, `database`, `ping` or `queue`, as CAF's service names them. The answer itself
    /// shows that work goes on and that the port is open.
    name: &'static str,
    healthy: bool,
    #[serde(rename = "type")]
    #[schema(rename = "type")]
    kind: HealthType,
    /// Whether the service is unhealthy without it.
    critical: bool,
    /// What is wrong, or worth knowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HealthType {
    /// The process works; when not, start it anew.
    Alive,
    /// So does what it needs; when not, send it no requests.
    Ready,
}

#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "documentation only: a name may be given more than once"
)]
pub struct HealthParams {
    /// The checks to show: `all`, or names; none when left out. The status tells of all, whichever are shown.
    #[param(example = "all")]
    name: Option<String>,
    /// What to look at; `READY` when left out, which includes `ALIVE`.
    #[param(example = "READY")]
    r#type: Option<HealthType>,
}

/// Tell how the service is
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
        (status = 400, description = "There is no such type", body = contract::rest::ErrorBody,
            example = json!({"message": "The parameter 'type' must be ALIVE or READY, but is 'DEAD'."})),
        (status = 503, description = "Something critical is unhealthy", body = Vec<HealthCheck>, example = json!([
            {"name": "deadlocks", "healthy": true, "type": "ALIVE", "critical": true},
            {"name": "ports-alive", "healthy": true, "type": "ALIVE", "critical": true},
            {"name": "ports-ready", "healthy": true, "type": "READY", "critical": true},
            {"name": "database", "healthy": false, "type": "READY", "critical": true, "message": "no answer within 5s"},
            {"name": "ping", "healthy": true, "type": "READY", "critical": true},
            {"name": "queue", "healthy": true, "type": "READY", "critical": true}
        ]))
    )
)]
pub async fn health_check(
    State(parts): State<Arc<Parts>>,
    RawQuery(query): RawQuery,
) -> ApiResult<(StatusCode, Json<Vec<HealthCheck>>)> {
    let Asked { kind, names } = asked(query.as_deref().unwrap_or_default())?;
    let answered = |name, kind| HealthCheck {
        name,
        healthy: true,
        kind,
        critical: true,
        message: None,
    };
    let mut checks = vec![
        answered("deadlocks", HealthType::Alive),
        answered("ports-alive", HealthType::Alive),
    ];
    if kind == HealthType::Ready {
        checks.push(answered("ports-ready", HealthType::Ready));
        checks.push(database(&parts.store).await);
        checks.push(answered("ping", HealthType::Ready));
        checks.push(queue(parts.broker.state()));
    }
    let healthy = checks.iter().all(|check| check.healthy || !check.critical);
    checks.retain(|check| names.contains("all") || names.contains(check.name));
    Ok((
        if healthy {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        Json(checks),
    ))
}

struct Asked {
    kind: HealthType,
    names: HashSet<String>,
}

fn asked(query: &str) -> ApiResult<Asked> {
    let mut asked = Asked {
        kind: HealthType::Ready,
        names: HashSet::new(),
    };
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "name" => _ = asked.names.insert(value.to_owned()),
            "type" if value.eq_ignore_ascii_case("ALIVE") => asked.kind = HealthType::Alive,
            "type" if value.eq_ignore_ascii_case("READY") => asked.kind = HealthType::Ready,
            "type" => {
                return Err(ApiError::bad_request(format!(
                    "The parameter 'type' must be ALIVE or READY, but is '{value}'."
                )));
            }
            _ => {}
        }
    }
    Ok(asked)
}

async fn database(store: &Store) -> HealthCheck {
    let message = match tokio::time::timeout(PING_LIMIT, store.ping()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the database is unhealthy");
            Some("the database is not available".to_owned())
        }
        Err(_) => {
            tracing::warn!("the database has not answered within {PING_LIMIT:?}");
            Some(format!("no answer within {PING_LIMIT:?}"))
        }
    };
    HealthCheck {
        name: "database",
        healthy: message.is_none(),
        kind: HealthType::Ready,
        critical: true,
        message,
    }
}

/// A broker that holds publishers back is worth a word, but start messages can wait, and whoever cancels jobs to relieve
/// it needs this service.
fn queue(state: BrokerState) -> HealthCheck {
    let (healthy, message) = match state {
        BrokerState::Connected => (true, None),
        BrokerState::Blocked(why) => (
            true,
            Some(format!("the broker holds publishers back: {why}")),
        ),
        BrokerState::Connecting(why) => (false, Some(format!("not connected: {why}"))),
        BrokerState::Closed => (false, Some("closed".to_owned())),
    };
    HealthCheck {
        name: "queue",
        healthy,
        kind: HealthType::Ready,
        critical: true,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_unhealthy_when_it_is_not_connected_and_not_when_it_holds_back() {
        for (state, healthy) in [
            (BrokerState::Connected, true),
            (BrokerState::Blocked("memory".into()), true),
            (BrokerState::Connecting("refused".into()), false),
            (BrokerState::Closed, false),
        ] {
            assert_eq!(queue(state.clone()).healthy, healthy, "{state:?}");
        }
    }

    #[test]
    fn readiness_is_asked_when_nothing_is() {
        assert_eq!(asked("").unwrap().kind, HealthType::Ready);
        assert_eq!(
            asked("name=all&type=alive").unwrap().kind,
            HealthType::Alive
        );
        assert!(asked("type=DEAD").is_err());
    }
}
