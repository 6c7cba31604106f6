//! The tree of a job's tasks and its progress over time, with valid and invalid parameters.

use contract::ReportFailure;
use contract::rest::TaskEntry;
use reqwest::Method;
use serde_json::json;
use store::EventKind;

use crate::service::{Answer, Service, new_job};

async fn with_tasks() -> Service {
    let service = Service::start().await;
    let mut job = new_job();
    job["onFailure"] = json!("continue");
    service.put("j", &job).await.is(201);
    for (path, kind) in [
        (".1000*", EventKind::Progress(0)),
        (".1", EventKind::Complete),
        (".2", EventKind::Complete),
        (".3", EventKind::Failed(ReportFailure::default())),
        (".4.7*", EventKind::Progress(0)),
        (".4.2", EventKind::Complete),
    ] {
        service.report("j", path, kind).await;
    }
    service
}

#[tokio::test]
async fn tasks_are_listed_as_ranges_and_alone() {
    let service = with_tasks().await;
    let page = service.get("/jobs/j/tasks?limit=3").await.is(200).json();
    assert_eq!(
        (&page["task"]["id"], &page["task"]["subtasks"]),
        (&json!("0"), &json!(999))
    );
    let tasks = page["tasks"].as_array().unwrap();
    assert_eq!(
        tasks[0],
        json!({"under": "0", "first": 1, "last": 2, "state": "done"})
    );
    assert_eq!(
        (&tasks[1]["id"], &tasks[1]["state"]),
        (&json!("3"), &json!("failed"))
    );
    assert_eq!(tasks[1]["failure"]["taskId"], "3");
    assert_eq!(
        tasks[2],
        json!({"id": "4", "state": "running", "subtasks": 6, "completedSubtasks": 1, "progress": 16.66})
    );
    let next = page["next"].as_str().unwrap();
    let path = format!("/jobs/j/tasks?limit=3&after={next}");
    let last = service.get(&path).await.is(200).json();
    assert_eq!(
        (&last["tasks"], last.get("next")),
        (
            &json!([{"under": "0", "first": 5, "last": 999, "state": "waiting"}]),
            None
        )
    );
    let below = service.get("/jobs/j/tasks?under=4&state=done,failed").await;
    assert_eq!(
        below.is(200).json()["tasks"],
        json!([{"id": "4.2", "state": "done"}])
    );
    let counts = service.get("/jobs/j/tasks/count").await.is(200).json();
    assert_eq!(
        (&counts["under"], &counts["done"]),
        (&json!("0"), &json!(3))
    );
    let counts = service
        .get("/jobs/j/tasks/count?under=4")
        .await
        .is(200)
        .json();
    assert_eq!(
        (&counts["under"], &counts["done"]),
        (&json!("4"), &json!(1))
    );
}

#[tokio::test]
async fn all_tasks_of_a_state_are_streamed_at_any_depth() {
    let service = with_tasks().await;
    // More than a stream reads at a time.
    for number in (10..=999).step_by(2) {
        service
            .report("j", &format!(".{number}"), EventKind::Complete)
            .await;
    }
    let request = service.request(
        Method::GET,
        &service.path("/jobs/j/tasks?state=done,waiting"),
    );
    let request = request.header("accept", "application/x-ndjson");
    let streamed = Answer::of(request).await.is(200);
    assert_eq!(streamed.headers["content-type"], "application/x-ndjson");
    let entries: Vec<TaskEntry> = streamed
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let tasks: u32 = entries
        .iter()
        .map(|entry| match entry {
            TaskEntry::Range(range) => range.last - range.first + 1,
            TaskEntry::Task(_) => 1,
        })
        .sum();
    // All but 3, which has failed, and 4, which has split into six.
    assert_eq!((entries.len() > 500, tasks), (true, 999 - 2 + 6));
}

#[tokio::test]
async fn invalid_parameters_of_tasks_are_refused() {
    let service = with_tasks().await;
    for (query, message) in [
        (
            "?state=open",
            "The parameter 'state' names failed, retrying, running, waiting, blocked or done, separated by commas, but has 'open'.",
        ),
        (
            "?after=x",
            "The parameter 'after': 'x' is no place among these tasks; use the value of 'next' of the page before.",
        ),
        (
            "?after=0-4.2",
            "The parameter 'after': '0-4.2' belongs to other parameters; use it with the 'under', 'deep' and 'failedFirst' of the page before.",
        ),
        (
            "?deep=true&failedFirst=true",
            "The parameter 'failedFirst' cannot be combined with 'deep' or application/x-ndjson.",
        ),
        (
            "?deep=yes",
            "The parameter 'deep' must be true or false, but is 'yes'.",
        ),
        (
            "?limit=many",
            "The parameter 'limit' must be a whole number, but is 'many'.",
        ),
        (
            "?under=x",
            "The task id 'x' is not of the form 3.17 or 3.17*, nor 0 for the job's own task.",
        ),
        (
            "/count?under=x",
            "The task id 'x' is not of the form 3.17 or 3.17*, nor 0 for the job's own task.",
        ),
    ] {
        let path = format!("/jobs/j/tasks{query}");
        service.get(&path).await.refuses(400, message);
    }
    for path in ["tasks", "tasks/count", "progress"] {
        let path = format!("/jobs/unknown/{path}");
        service
            .get(&path)
            .await
            .refuses(404, "ERROR: job_id {unknown} not found");
    }
    for path in ["tasks?under=1001", "tasks/count?under=1001"] {
        let path = format!("/jobs/j/{path}");
        service
            .get(&path)
            .await
            .refuses(404, "ERROR: task_id {1001} of job_id {j} not found");
    }
}

#[tokio::test]
async fn progress_over_time_ends_with_the_present_state() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let none = service.get("/jobs/j/progress").await.is(200).json();
    assert_eq!(
        none,
        json!({"points": [], "total": null, "totalIsFinal": false})
    );
    service.report("j", ".3*", EventKind::Progress(0)).await;
    service.report("j", ".1", EventKind::Complete).await;
    let curve = service.get("/jobs/j/progress").await.is(200).json();
    let last = curve["points"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["done"], &last["failed"]), (&json!(1), &json!(0)));
    assert_eq!(curve["total"], 2);
}
