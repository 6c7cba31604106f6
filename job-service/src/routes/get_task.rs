//! `GET …/jobs/{jobId}/tasks/{taskId}`: what is known about one task.
//!
//! A task is named by the way to it: `3.17` is the seventeenth subtask of the third. A `*` names the same task as none.
//! Numbers begin at 1, so `0` is free to name the job's own first task, which has no way to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use contract::rest::{ErrorBody, Task};
use contract::{JobTaskId, Step};

use super::StoreTrouble;
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::{OfJob, OfTask};

/// Get a task of a job
///
/// Every task of a job can be asked for, also one that is done or that nobody has reported yet.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/tasks/{taskId}",
    operation_id = "getTask",
    tag = "jobs",
    params(
        OfJob,
        ("taskId" = String, Path, example = "3.17", pattern = r"^(0|[1-9][0-9]*\*?(\.[1-9][0-9]*\*?)*)$", description = "The way from the job to the task: numbers from 1 with dots between, \
            each with or without `*`. `0` is the job's own first task")
    ),
    responses(
        (status = 200, description = "The task", body = Task, example = json!({
            "id": "3.17", "status": "Failed", "since": 1_767_225_605_123_i64, "attempts": 3,
            "failure": {
                "failureId": "RESULT_EXCEPTION", "failureTime": 1_767_225_605_123_i64, "failureSource": "worker-order",
                "failureMessage": "no such file", "taskId": "3.17"
            },
            "subtasks": null, "completedSubtasks": null
        })),
        (status = 400, description = "An id is not well-formed", body = ErrorBody,
            example = json!({"message": "The task id 'x' is not of the form 3.17 or 3.17*, nor 0 for the job's own task."})),
        (status = 404, description = "There is no such job, or no such task in it", body = ErrorBody,
            example = json!({"message": "ERROR: task_id {3.17} of job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn get(
    State(parts): State<Arc<Parts>>,
    OfTask(partition, job, task): OfTask,
) -> ApiResult<Json<Task>> {
    let path = parse(&task)?;
    match parts.store.task(&partition, &job, &path).await? {
        Some(found) => Ok(Json(Task {
            id: spell(&path),
            ..found
        })),
        None if parts
            .store
            .job_status(&partition, &job, None)
            .await?
            .is_none() =>
        {
            Err(ApiError::job_not_found(&job))
        }
        None => Err(ApiError::NotFound(format!(
            "ERROR: task_id {{{}}} of job_id {{{job}}} not found",
            spell(&path)
        ))),
    }
}

/// The numbers on the way; none for the job's own task.
fn parse(text: &str) -> ApiResult<Vec<u32>> {
    if text == "0" {
        return Ok(Vec::new());
    }
    // The grammar is that of a job task id behind the job.
    let id = JobTaskId::parse(&format!("p:j.{text}")).map_err(|_| {
        ApiError::bad_request(format!(
            "The task id '{text}' is not of the form 3.17 or 3.17*, nor 0 for the job's own task."
        ))
    })?;
    Ok(id.steps.iter().map(|Step { number, .. }| *number).collect())
}

fn spell(path: &[u32]) -> String {
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
    fn a_task_is_named_by_the_way_to_it_and_stars_do_not_count() {
        for (text, path, spelled) in [
            ("0", vec![], "0"),
            ("3", vec![3], "3"),
            ("3.17*", vec![3, 17], "3.17"),
            ("3*.1", vec![3, 1], "3.1"),
        ] {
            assert_eq!(parse(text).unwrap(), path, "{text}");
            assert_eq!(spell(&path), spelled);
        }
    }

    #[test]
    fn what_is_no_way_is_refused() {
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
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
