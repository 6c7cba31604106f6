//! `/conditions`: lists and shows the conditions that tasks wait for, and does what a person asks
//! of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, State};
use contract::ConditionKey;
use contract::rest::{ErrorCode, WaitedCondition, WaitedConditions};
use serde::Deserialize;
use store::{ConditionPhase, ConditionQuery, WaitingJob};
use utoipa::IntoParams;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::conditions::{shown, state_of};
use crate::http::current_request::CurrentRequest;
use crate::http::{
    ApiError, ApiResult, ConditionPath, InvalidParameter, NoCondition, QueryParams, StoreErrors,
    condition_key, only_known, page_limit, reject_nul,
};
use crate::state::AppState;
use crate::stuck::now;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(list_conditions))
        .routes(routes!(get_condition))
        .routes(routes!(test_condition))
        .routes(routes!(release_condition))
        .routes(routes!(fail_condition))
}

/// The number of conditions on a page if the request sets no limit.
const PAGE: u32 = 100;
/// The number of jobs that are shown of a condition.
const JOBS: u32 = 20;

/// The parameters of a list. Each that is absent or empty selects all.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ConditionSelector {
    /// The code of the conditions.
    #[param(example = "DATABASE_NOT_AVAILABLE")]
    pub code: Option<String>,
    /// The partition of jobs whose tasks wait.
    #[param(example = "acme")]
    pub partition: Option<String>,
    /// The id of the job whose tasks wait.
    #[param(example = "reindex-7")]
    pub job: Option<String>,
    /// The maximum number of conditions: absent, 0 or negative means 100.
    #[param(value_type = Option<i64>, example = 100)]
    pub limit: Option<String>,
    /// The `next` of the page before this one.
    #[param(example = "0d3a506323d39ba742675eceb7c8cf7c")]
    pub after: Option<String>,
}

impl ConditionSelector {
    fn query(&self, most: u32) -> ApiResult<ConditionQuery> {
        let text = |name: &str, value: &Option<String>| {
            reject_nul(name, value.as_deref())?;
            Ok::<_, ApiError>(value.clone().filter(|value| !value.is_empty()))
        };
        let after = text("after", &self.after)?;
        Ok(ConditionQuery {
            code: text("code", &self.code)?,
            partition: text("partition", &self.partition)?,
            job: text("job", &self.job)?,
            after: after.as_deref().map(condition_key).transpose()?,
            limit: page_limit(self.limit.as_deref(), PAGE, most)?,
        })
    }
}

/// List conditions
///
/// Returns a page of the conditions for which tasks wait, in the order of their keys. All tasks
/// with the same code, tester and parameters wait for the same condition, of whatever job.
#[utoipa::path(
    get,
    path = "/conditions",
    operation_id = "listConditions",
    tag = "conditions",
    params(ConditionSelector),
    responses(
        (status = 200, description = "The conditions", body = WaitedConditions, example = json!({
            "conditions": [{
                "key": "0d3a506323d39ba742675eceb7c8cf7c", "code": "DATABASE_NOT_AVAILABLE", "parameters": {"database": "orders"},
                "tester": {"kind": "tcp", "host": "db.example.com", "port": 5432},
                "policy": "stepwise,steps=2x10s/10x20s/10x1m/100x2m/5m,attempts=none,within=2d", "reason": "connection refused",
                "since": 1_767_225_605_123_i64, "state": "waiting", "tests": 3, "nextTest": 1_767_225_665_123_i64,
                "expires": 1_767_398_405_123_i64, "lastResult": "tcp://db.example.com:5432: connection refused", "tasks": 1200
            }]
        })),
        InvalidParameter, StoreErrors
    )
)]
pub async fn list_conditions(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<ConditionSelector>,
) -> ApiResult<Json<WaitedConditions>> {
    only_known(&uri, &["code", "partition", "job", "limit", "after"])?;
    Ok(Json(state.conditions(&selector).await?))
}

/// Get a condition
///
/// Returns the condition with the jobs of which most tasks wait for it.
#[utoipa::path(
    get,
    path = "/conditions/{key}",
    operation_id = "getCondition",
    tag = "conditions",
    params(ConditionPath),
    responses(
        (status = 200, description = "The condition", body = WaitedCondition, example = json!({
            "key": "0d3a506323d39ba742675eceb7c8cf7c", "code": "DATABASE_NOT_AVAILABLE", "tester": {"kind": "canary"},
            "policy": "constant,delay=1m,attempts=none,within=2d", "reason": "connection refused", "since": 1_767_225_605_123_i64,
            "state": "canary", "tests": 4, "lastResult": "a canary runs", "tasks": 1200, "jobs": {"acme:reindex-7": 1200}
        })),
        NoCondition, StoreErrors
    )
)]
pub async fn get_condition(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<WaitedCondition>> {
    only_known(&uri, &[])?;
    Ok(Json(state.condition(&key).await?))
}

/// Test a condition now
///
/// Tests the condition at once and not at its next time. If it passes, its tasks are sent again.
///
/// `/conditions/{key}:test` is the same operation.
#[utoipa::path(
    post,
    path = "/conditions/{key}/test",
    operation_id = "testCondition",
    tag = "conditions",
    params(ConditionPath),
    responses(
        (status = 200, description = "The condition is being tested", body = WaitedCondition, example = json!({
            "key": "0d3a506323d39ba742675eceb7c8cf7c", "code": "DATABASE_NOT_AVAILABLE", "tester": {"kind": "canary"},
            "policy": "constant,delay=1m,attempts=none,within=2d", "reason": "connection refused", "since": 1_767_225_605_123_i64,
            "state": "waiting", "tests": 4, "tasks": 1200
        })),
        NoCondition, StoreErrors
    )
)]
pub async fn test_condition(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<WaitedCondition>> {
    only_known(&uri, &[])?;
    Ok(Json(state.command(&key, ConditionPhase::Testing).await?))
}

/// Release the tasks of a condition
///
/// Sends the tasks again without a test, a few more each second. If one of them is blocked again,
/// the others go on waiting.
///
/// `/conditions/{key}:release` is the same operation.
#[utoipa::path(
    post,
    path = "/conditions/{key}/release",
    operation_id = "releaseCondition",
    tag = "conditions",
    params(ConditionPath),
    responses(
        (status = 200, description = "The tasks are being sent again", body = WaitedCondition, example = json!({
            "key": "0d3a506323d39ba742675eceb7c8cf7c", "code": "DATABASE_NOT_AVAILABLE", "tester": {"kind": "canary"},
            "policy": "constant,delay=1m,attempts=none,within=2d", "reason": "connection refused", "since": 1_767_225_605_123_i64,
            "state": "releasing", "tests": 4, "tasks": 1200
        })),
        NoCondition, StoreErrors
    )
)]
pub async fn release_condition(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<WaitedCondition>> {
    only_known(&uri, &[])?;
    Ok(Json(state.command(&key, ConditionPhase::Releasing).await?))
}

/// Give up a condition
///
/// Fails the tasks that wait for the condition, with the condition as the reason.
///
/// `/conditions/{key}:fail` is the same operation.
#[utoipa::path(
    post,
    path = "/conditions/{key}/fail",
    operation_id = "failCondition",
    tag = "conditions",
    params(ConditionPath),
    responses(
        (status = 200, description = "The tasks are failing", body = WaitedCondition, example = json!({
            "key": "0d3a506323d39ba742675eceb7c8cf7c", "code": "DATABASE_NOT_AVAILABLE", "tester": {"kind": "canary"},
            "policy": "constant,delay=1m,attempts=none,within=2d", "reason": "connection refused", "since": 1_767_225_605_123_i64,
            "state": "failing", "tests": 4, "tasks": 1200
        })),
        NoCondition, StoreErrors
    )
)]
pub async fn fail_condition(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<WaitedCondition>> {
    only_known(&uri, &[])?;
    Ok(Json(state.command(&key, ConditionPhase::Failing).await?))
}

impl AppState {
    /// Returns a page of the conditions that tasks wait for.
    pub async fn conditions(&self, selector: &ConditionSelector) -> ApiResult<WaitedConditions> {
        let query = selector.query(self.options.limits.page)?;
        let asked = query.limit;
        let query = ConditionQuery {
            limit: asked.saturating_add(1),
            ..query
        };
        let mut rows = self.store.conditions(&query).await?;
        let has_more = rows.len() > asked as usize;
        rows.truncate(asked as usize);
        let next = rows.last().filter(|_| has_more);
        Ok(WaitedConditions {
            next: next.map(|row| row.key.to_string()),
            conditions: rows.into_iter().map(shown).collect(),
        })
    }

    /// Returns a condition with the jobs of which most tasks wait for it.
    pub async fn condition(&self, key: &ConditionKey) -> ApiResult<WaitedCondition> {
        let row = self.store.condition(key).await?;
        let row = row.ok_or_else(|| not_found(key))?;
        let jobs = self.store.waiting_jobs(key, JOBS).await?;
        let job = |waiting: WaitingJob| {
            let name = format!("{}:{}", waiting.partition, waiting.job);
            (name, waiting.tasks)
        };
        let jobs: BTreeMap<String, u64> = jobs.into_iter().map(job).collect();
        Ok(WaitedCondition {
            jobs: Some(jobs),
            ..shown(row)
        })
    }

    /// Does what a person asks of a condition. Returns it as it is then: a moment later it may be
    /// forgotten.
    pub async fn command(
        &self,
        key: &ConditionKey,
        phase: ConditionPhase,
    ) -> ApiResult<WaitedCondition> {
        let condition = self.condition(key).await?;
        if !self.store.command_condition(key, phase).await? {
            return Err(not_found(key));
        }
        tell(&condition, phase);
        Ok(WaitedCondition {
            state: state_of(phase),
            next_test: (phase == ConditionPhase::Testing).then(now),
            ..condition
        })
    }
}

/// Logs what a person does with a condition.
fn tell(condition: &WaitedCondition, phase: ConditionPhase) {
    let WaitedCondition {
        key, code, tasks, ..
    } = condition;
    let request = CurrentRequest::get().correlation_id;
    match phase {
        ConditionPhase::Failing => {
            tracing::warn!(
                condition = key,
                code,
                tasks,
                correlation_id = request,
                "a client gives a condition up; its tasks fail"
            );
        }
        ConditionPhase::Releasing => {
            tracing::warn!(
                condition = key,
                code,
                tasks,
                correlation_id = request,
                "a client sends the tasks of a condition again without a test"
            );
        }
        _ => {
            tracing::info!(
                condition = key,
                code,
                tasks,
                correlation_id = request,
                "a client has a condition tested now"
            );
        }
    }
}

fn not_found(key: &ConditionKey) -> ApiError {
    let message = format!("There is no condition {key}.");
    ApiError::NotFound(ErrorCode::ConditionNotFound, message)
}
