//! `GET …/jobs/{jobId}/tasks/{taskId}`: returns a task of a job.
//!
//! A task id is the path from the job to the task: `3.17` is the 17th subtask of the third subtask.
//! A `*` after a number is ignored. Numbers start at 1, so `0` is free to name the job's first
//! task, whose path is empty.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::rest::{ErrorBody, ErrorCode, Task};
use contract::{JobId, JobTaskId, Step};
use store::TaskAnswer;

use crate::http::{ApiError, ApiResult, InvalidParameter, JobPath, StoreErrors, TaskPath};
use crate::state::AppState;

/// Get a task of a job
///
/// Returns a task of any status, including tasks that are done and tasks that no worker has
/// reported yet. Below a completed task it is not known which tasks existed; the `remark` says so.
/// Lists the failed attempts of the task, with when, how long and where each ran, as far as its
/// worker reports that, and when the next one is due.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/tasks/{taskId}",
    operation_id = "getTask",
    tag = "jobs",
    params(
        JobPath,
        ("taskId" = String, Path, example = "3.17", pattern = r"^(0|[1-9][0-9]*\*?(\.[1-9][0-9]*\*?)*)$", description = "The path from the job to the task: numbers from 1, \
            separated by dots, each optionally followed by `*`. `0` is the job's first task")
    ),
    responses(
        (status = 200, description = "The task", body = Task, example = json!({
            "id": "3.17", "status": "Failed", "since": 1_767_225_605_123_i64, "attempts": 3,
            "failure": {
                "failureId": "RESULT_EXCEPTION", "failureTime": 1_767_225_605_123_i64, "failureSource": "worker-order",
                "failureMessage": "no such file", "taskId": "3.17"
            },
            "subtasks": null, "completedSubtasks": null,
            "failedAttempts": [{
                "round": 1, "attempt": 1, "nextAttemptTime": 1_767_225_604_000_i64,
                "failure": {
                    "failureId": "RETRY", "failureTime": 1_767_225_602_000_i64, "failureSource": "worker-order",
                    "failureMessage": "the share is busy", "taskId": "3.17", "startTime": 1_767_225_601_480_i64, "host": "node-4",
                    "process": 71
                }
            }]
        })),
        (status = 404, description = "The job or the task does not exist, or the job has ended and its tasks are no longer stored", body = ErrorBody,
            example = json!({"message": "ERROR: task_id {3.17} of job_id {reindex-7} not found"})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn get_task(
    State(state): State<Arc<AppState>>,
    TaskPath(partition, job, task): TaskPath,
) -> ApiResult<Json<Task>> {
    let path = parse_id(&task)?;
    match state.store.task(&partition, &job, &path).await? {
        TaskAnswer::Task(found) => Ok(Json(Task {
            id: format_id(&path),
            ..*found
        })),
        TaskAnswer::NoJob => Err(ApiError::job_not_found(&job)),
        TaskAnswer::NoTask => Err(task_not_found(&job, &path, "")),
        TaskAnswer::NotKnown => Err(task_not_found(
            &job,
            &path,
            ". The job has ended and its tasks are no longer stored, so it is not known whether it had this one.",
        )),
    }
}

/// Returns the error that the job has no task with this path.
pub fn task_not_found(job: &JobId, path: &[u32], why: &str) -> ApiError {
    let id = format_id(path);
    let message = format!("ERROR: task_id {{{id}}} of job_id {{{job}}} not found{why}");
    ApiError::NotFound(ErrorCode::TaskNotFound, message)
}

/// Returns the numbers of the path; none for the job's first task.
pub(super) fn parse_id(text: &str) -> ApiResult<Vec<u32>> {
    if text == "0" {
        return Ok(Vec::new());
    }
    // A job task id has the same grammar after the job id.
    let id = JobTaskId::parse(&format!("p:j.{text}")).map_err(|_| {
        ApiError::bad_request(ErrorCode::InvalidId, format!(
            "The task id '{text}' is not of the form 3.17 or 3.17*, nor 0 for the job's own task."
        ))
    })?;
    Ok(id.steps.iter().map(|Step { number, .. }| *number).collect())
}

/// Writes a path as a task id without `*`.
fn format_id(path: &[u32]) -> String {
    match path {
        [] => "0".to_owned(),
        path => path
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_is_a_path_and_stars_are_ignored() {
        for (text, path, id) in [
            ("0", vec![], "0"),
            ("3", vec![3], "3"),
            ("3.17*", vec![3, 17], "3.17"),
            ("3*.1", vec![3, 1], "3.1"),
        ] {
            assert_eq!(parse_id(text).unwrap(), path, "{text}");
            assert_eq!(format_id(&path), id);
        }
    }

    #[test]
    fn an_invalid_task_id_is_rejected() {
        let deep = "1.".repeat(70) + "1";
        for text in [
            "",
            "x",
            "0.1",
            "1.0",
            "-1",
            "1..2",
            "1.",
            ".1",
            "*",
            "1**",
            "+1",
            "1 ",
            "2147483648",
            deep.as_str(),
        ] {
            assert!(parse_id(text).is_err(), "{text:?}");
        }
    }
}
