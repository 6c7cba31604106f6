//! `GET /partitions/{partitionId}/jobs` and `…/jobStats/count`: the jobs of a partition, a page at a time, and how many
//! there are.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::JobStatus;
use contract::rest::{ErrorBody, Job};
use serde::Deserialize;
use store::JobQuery;
use utoipa::IntoParams;

use super::StoreTrouble;
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::{InPartition, Params, whole_number};

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct WhichJobs {
    /// Jobs whose id begins with exactly this.
    #[param(example = "reindex-")]
    job_id_starts_with: Option<String>,
    /// `NotFinished` (Waiting, Active, Paused, Blocked), `NotCompleted` (those, Cancelled and Failed), `Completed`, `Inactive`
    /// (Completed, Cancelled, Failed). Anything else: jobs of every status.
    #[param(example = "NotFinished")]
    status_type: Option<String>,
    /// Refused.
    #[param(ignore)]
    filter: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct WhichPage {
    /// How many jobs to show; the page size of the service when it is left out or not above 0.
    #[param(value_type = Option<i64>, example = 25)]
    limit: Option<String>,
    /// How many jobs to leave out before.
    #[param(value_type = Option<i64>, example = 0)]
    offset: Option<String>,
    /// `createTime:desc` (newest first) or `createTime:asc`.
    #[param(example = "createTime:desc")]
    sort: Option<String>,
    /// Refused.
    #[param(ignore)]
    label_exist: Option<String>,
}

/// List jobs
///
/// Newest first, unless sorted otherwise.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs",
    operation_id = "getJobs",
    tag = "jobs",
    params(("partitionId" = String, Path, description = "1 to 40 characters", example = "acme"), WhichJobs, WhichPage),
    responses(
        (status = 200, description = "The jobs of the page; none of a partition that nobody has used", body = Vec<Job>, example = json!([{
            "id": "reindex-7", "name": "Reindex", "description": null, "externalData": null,
            "createTime": 1_767_225_600_000_i64, "lastUpdateTime": 1_767_225_605_123_i64,
            "status": "Active", "percentageComplete": 46.67, "failures": [], "labels": {"team": "search"},
            "onFailure": "stop", "completedItems": 1400, "failedTasks": 0, "failureCounts": {}, "incarnation": 42
        }])),
        (status = 400, description = "The partition id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "Invalid value for sort direction: up"})),
        StoreTrouble
    )
)]
pub async fn list(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
    Params(jobs): Params<WhichJobs>,
    Params(page): Params<WhichPage>,
) -> ApiResult<Json<Vec<Job>>> {
    let query = with_page(jobs.query()?, &page, parts.options.page_size)?;
    Ok(Json(parts.store.jobs(&partition, &query).await?))
}

/// Count jobs
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobStats/count",
    operation_id = "getJobStatsCount",
    tag = "jobs",
    params(("partitionId" = String, Path, description = "1 to 40 characters", example = "acme"), WhichJobs),
    responses(
        (status = 200, description = "How many there are", body = u64, content_type = "application/json", example = json!(3)),
        (status = 400, description = "The partition id or a parameter is not well-formed", body = ErrorBody,
            example = json!({"message": "The partition ID is longer than 40 characters."})),
        StoreTrouble
    )
)]
pub async fn count(
    State(parts): State<Arc<Parts>>,
    InPartition(partition): InPartition,
    Params(jobs): Params<WhichJobs>,
) -> ApiResult<Json<u64>> {
    Ok(Json(parts.store.count_jobs(&partition, &jobs.query()?).await?))
}

impl WhichJobs {
    fn query(self) -> ApiResult<JobQuery> {
        refuse("filter", self.filter.as_deref())?;
        let id_prefix = self.job_id_starts_with.filter(|prefix| !prefix.is_empty());
        if id_prefix.as_deref().is_some_and(|prefix| prefix.contains('\0')) {
            return Err(ApiError::bad_request("The parameter 'jobIdStartsWith' contains the character U+0000."));
        }
        let statuses = self.status_type.as_deref().map(statuses).unwrap_or_default();
        Ok(JobQuery { id_prefix, statuses, ..JobQuery::default() })
    }
}

/// CAF's table, with Blocked where Active is. Empty = no filter, which is also what an unknown type means.
fn statuses(status_type: &str) -> Vec<JobStatus> {
    use JobStatus::{Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting};
    match status_type {
        "NotCompleted" => vec![Active, Blocked, Paused, Waiting, Cancelled, Failed],
        "Completed" => vec![Completed],
        "Inactive" => vec![Completed, Cancelled, Failed],
        "NotFinished" => vec![Active, Blocked, Paused, Waiting],
        _ => Vec::new(),
    }
}

fn with_page(query: JobQuery, page: &WhichPage, page_size: u32) -> ApiResult<JobQuery> {
    refuse("labelExist", page.label_exist.as_deref())?;
    let limit = whole_number::<i64>("limit", page.limit.as_deref())?.filter(|limit| *limit > 0);
    let offset = whole_number::<i64>("offset", page.offset.as_deref())?.unwrap_or(0);
    Ok(JobQuery {
        limit: limit.map_or(page_size, |limit| u32::try_from(limit).unwrap_or(u32::MAX)),
        offset: u64::try_from(offset).unwrap_or(0),
        ascending: ascending(page.sort.as_deref())?,
        ..query
    })
}

fn ascending(sort: Option<&str>) -> ApiResult<bool> {
    let Some(sort) = sort.filter(|sort| !sort.is_empty()) else { return Ok(false) };
    let refused = |what: &str, value: &str| Err(ApiError::bad_request(format!("{what}: {value}")));
    match sort.split_once(':') {
        None => refused("Invalid format for sort", sort),
        Some(("createTime", "asc")) => Ok(true),
        Some(("createTime", "desc")) => Ok(false),
        Some(("createTime", direction)) => refused("Invalid value for sort direction", direction),
        Some((field, _)) => refused("Invalid value for sort field", field),
    }
}

/// A parameter of CAF's that this service does not know yet. To ignore it would be to answer another question.
fn refuse(name: &str, value: Option<&str>) -> ApiResult<()> {
    match value.filter(|value| !value.is_empty()) {
        Some(_) => Err(ApiError::bad_request(format!("The parameter '{name}' is not supported. Leave it out."))),
        None => Ok(()),
    }
}
