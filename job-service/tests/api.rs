//! Every route, good and bad input, over real HTTP: the same suite on `SQLite` and on `PostgreSQL`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

#[macro_use]
mod service;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use contract::{ReportFailure, rest};
use framework::broker::Broker;
use framework::broker::memory::Memory;
use futures_util::future::join_all;
use job_service::{JobService, ServiceOptions};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use service::{Answer, Backend, Service, new_job};
use store::{EventKind, Store};
use tower::ServiceExt;

suite![Service:
    a_new_job_is_told_in_full,
    a_job_is_where_the_client_has_asked_for_it,
    a_job_needs_no_more_than_a_task,
    the_same_request_again_changes_nothing,
    another_request_for_the_same_job_is_refused,
    of_equal_requests_at_the_same_time_one_creates_the_job,
    of_different_requests_at_the_same_time_one_creates_the_job,
    a_deleted_job_is_gone_and_can_be_created_anew,
    a_past_life_of_a_job_is_not_found,
    the_status_may_be_kept_for_a_while,
    a_job_is_active_until_its_outcome_is_decided,
    an_unknown_job_is_not_found,
    a_cancelled_job_stays_cancelled,
    a_finished_job_cannot_be_cancelled,
    a_failed_job_tells_why,
    a_watcher_sees_the_states_of_a_job_to_its_end,
    a_watcher_is_told_when_its_job_is_deleted_and_when_the_service_ends,
    jobs_are_listed_newest_first_a_page_at_a_time,
    jobs_are_found_by_the_beginning_of_their_id,
    jobs_are_found_by_what_has_become_of_them,
    jobs_of_another_partition_are_not_seen,
    the_state_of_a_task_is_told,
    ids_may_be_of_any_script_and_are_decoded,
    texts_of_any_script_come_back_as_they_were,
    a_database_that_is_gone_is_said_to_be_unavailable,
];

async fn a_new_job_is_told_in_full(service: Service) {
    let created = service.put("reindex-7", &new_job()).await.is(201);
    assert_eq!(
        (created.header("location"), created.body.as_str()),
        (service.url("/jobs/reindex-7").as_str(), "")
    );

    let mut job = service.get("/jobs/reindex-7").await.is(200).json();
    let [created, updated, incarnation] = ["createTime", "lastUpdateTime", "incarnation"]
        .map(|field| job[field].take().as_i64().unwrap());
    assert_eq!(created, updated);
    assert!(incarnation > 0);
    let expected = json!({
        "id": "reindex-7", "name": "Reindex", "description": "All of them", "externalData": "ticket 7",
        "createTime": null, "lastUpdateTime": null, "status": "Waiting", "percentageComplete": 0.0, "failures": [],
        "labels": {"team": "search", "empty": null}, "onFailure": "stop",
        "completedItems": 0, "failedTasks": 0, "failureCounts": {}, "incarnation": null
    });
    assert_eq!(job, expected);
}

async fn a_job_is_where_the_client_has_asked_for_it(service: Service) {
    let path = service.path("/jobs/j");
    let proxied = [
        ("Host", "10.0.0.7:8080"),
        ("X-Forwarded-Host", "jobs.example.com, 10.0.0.9"),
        ("X-Forwarded-Proto", "https"),
    ];
    for (headers, root) in [
        (&proxied[..1], "http://10.0.0.7:8080"),
        (&proxied, "https://jobs.example.com"),
    ] {
        let request = service
            .request(Method::PUT, &path)
            .body(new_job().to_string());
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let created = Answer::of(request).await.is(201);
        assert_eq!(created.header("location"), format!("{root}{path}"));
        service.call(Method::DELETE, &path, None).await.is(204);
    }
}

async fn a_job_needs_no_more_than_a_task(service: Service) {
    let task =
        json!({"taskClassifier": "W", "taskApiVersion": 1, "taskData": "x", "taskPipe": "in"});
    service
        .put("j", &json!({"task": task, "onFailure": "continue"}))
        .await
        .is(201);
    let job = service.get("/jobs/j").await.json();
    for field in ["name", "description", "externalData"] {
        assert_eq!(job[field], Value::Null, "{field}");
    }
    assert_eq!(
        (&job["labels"], &job["onFailure"]),
        (&json!({}), &json!("continue"))
    );
    assert_eq!(
        job["notes"],
        json!(["The job names no target pipe: it completes only by workers without output."])
    );
}

async fn the_same_request_again_changes_nothing(service: Service) {
    service.put("j", &new_job()).await.is(201);
    let reordered = r#"{"task": {"targetPipe": "orders-out", "taskPipe": "batch-in",
        "taskData": {"batchType": "RangePlugin", "batchDefinition": "[1-100]"}, "taskApiVersion": 1, "taskClassifier": "BatchWorker"},
        "labels": {"empty": null, "team": "search"}, "externalData": "ticket 7", "description": "All of them", "name": "Reindex"}"#;
    let again = service
        .call(
            Method::PUT,
            &service.path("/jobs/j"),
            Some(reordered.into()),
        )
        .await
        .is(204);
    assert_eq!(
        (again.body.as_str(), again.headers.get("location")),
        ("", None)
    );

    service.cancel("j").await.is(204);
    let before = service.get("/jobs/j").await.json();
    service.put("j", &new_job()).await.is(204);
    assert_eq!(service.get("/jobs/j").await.json(), before);
}

async fn another_request_for_the_same_job_is_refused(service: Service) {
    service.put("j", &new_job()).await.is(201);
    let mut other = new_job();
    other["task"]["taskData"]["batchDefinition"] = json!("[1-101]");
    service
        .put("j", &other)
        .await
        .refuses(403, "Job already exists");
}

async fn of_equal_requests_at_the_same_time_one_creates_the_job(service: Service) {
    let job = new_job();
    let answers = join_all((0..12).map(|_| service.put("j", &job))).await;
    assert_eq!(statuses(&answers), [vec![201], vec![204; 11]].concat());
}

async fn of_different_requests_at_the_same_time_one_creates_the_job(service: Service) {
    let job = |n: usize| {
        let mut job = new_job();
        job["name"] = json!(n.to_string());
        job
    };
    let jobs: Vec<Value> = (0..8).map(job).collect();
    let answers = join_all(jobs.iter().map(|job| service.put("j", job))).await;
    assert_eq!(statuses(&answers), [vec![201], vec![403; 7]].concat());
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    let mut statuses: Vec<u16> = answers
        .iter()
        .map(|answer| answer.status.as_u16())
        .collect();
    statuses.sort_unstable();
    statuses
}

async fn a_deleted_job_is_gone_and_can_be_created_anew(service: Service) {
    service.put("j", &new_job()).await.is(201);
    service.cancel("j").await.is(204);
    service.delete("j").await.is(204);
    service
        .get("/jobs/j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    service
        .delete("j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    service.put("j", &new_job()).await.is(201);
    assert_eq!(service.get("/jobs/j").await.json()["status"], "Waiting");
}

async fn a_past_life_of_a_job_is_not_found(service: Service) {
    let mut lives = Vec::new();
    for _ in 0..2 {
        service.delete("j").await;
        service.put("j", &new_job()).await.is(201);
        lives.push(
            service.get("/jobs/j").await.json()["incarnation"]
                .as_i64()
                .unwrap(),
        );
    }
    assert!(lives[0] < lives[1], "{lives:?}");
    service
        .get(&format!("/jobs/j/status?n={}", lives[0]))
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    service
        .get(&format!("/jobs/j/status?n={}", lives[1]))
        .await
        .is(200);
    service.get("/jobs/j/status").await.is(200);
    service.get("/jobs/j/status?n=").await.is(200);
    service.get("/jobs/j/status?n=one").await.refuses(
        400,
        "The parameter 'n' must be a whole number, but is 'one'.",
    );
}

async fn the_status_may_be_kept_for_a_while(service: Service) {
    service.put("j", &new_job()).await.is(201);
    for (path, body) in [
        ("/jobs/j/status", r#""Waiting""#),
        ("/jobs/j/isActive", "true"),
        ("/jobs/unknown/isActive", "false"),
    ] {
        let answer = service.get(path).await.is(200);
        assert_eq!(answer.body, body);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.header("CacheableJobStatus"), "true");
        assert_eq!(answer.header("cache-control"), "no-transform, max-age=10");
    }
}

async fn a_job_is_active_until_its_outcome_is_decided(service: Service) {
    let failed = EventKind::Failed(ReportFailure::default());
    for (job, event, status, active) in [
        ("waits", None, "Waiting", "true"),
        ("works", Some(EventKind::Progress(40)), "Active", "true"),
        ("is-done", Some(EventKind::Complete), "Completed", "false"),
        ("has-failed", Some(failed), "Failed", "false"),
    ] {
        service.put(job, &new_job()).await.is(201);
        if let Some(event) = event {
            service.report(job, "", event).await;
        }
        assert_eq!(
            service
                .get(&format!("/jobs/{job}/status"))
                .await
                .is(200)
                .json(),
            status
        );
        assert_eq!(
            service
                .get(&format!("/jobs/{job}/isActive"))
                .await
                .is(200)
                .body,
            active,
            "{job}"
        );
        assert_eq!(
            service.get(&format!("/jobs/{job}")).await.is(200).json()["status"],
            status
        );
    }
}

async fn an_unknown_job_is_not_found(service: Service) {
    for path in [
        "/jobs/no-such",
        "/jobs/no-such/status",
        "/jobs/no-such/tasks/1",
    ] {
        service
            .get(path)
            .await
            .refuses(404, "ERROR: job_id {no-such} not found");
    }
    service
        .cancel("no-such")
        .await
        .refuses(404, "ERROR: job_id {no-such} not found");
    assert_eq!(service.get("/jobs").await.is(200).body, "[]");
    assert_eq!(service.get("/jobStats/count").await.is(200).body, "0");
}

async fn a_cancelled_job_stays_cancelled(service: Service) {
    service.put("j", &new_job()).await.is(201);
    assert_eq!(service.cancel("j").await.is(204).body, "");
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["status"], "Cancelled");
    service.cancel("j").await.is(204);
    service.report("j", "", EventKind::Complete).await;
    assert_eq!(service.get("/jobs/j").await.json(), job);
    assert_eq!(service.get("/jobs/j/isActive").await.body, "false");
}

async fn a_finished_job_cannot_be_cancelled(service: Service) {
    for (job, event, status) in [
        ("done", EventKind::Complete, "Completed"),
        (
            "failed",
            EventKind::Failed(ReportFailure::default()),
            "Failed",
        ),
    ] {
        service.put(job, &new_job()).await.is(201);
        service.report(job, "", event).await;
        let text =
            format!("ERROR: job_id {{{job}}} cannot be cancelled as it has a status of {status}.");
        service.cancel(job).await.refuses(400, &text);
    }
}

async fn a_watcher_sees_the_states_of_a_job_to_its_end(service: Service) {
    service.put("j", &new_job()).await.is(201);
    let mut watcher = Watcher::of(&service, "j").await;
    assert_eq!(watcher.next().await.unwrap()["status"], "Waiting");
    service.report("j", ".1", EventKind::Complete).await;
    let job = watcher.next().await.unwrap();
    assert_eq!(
        (&job["status"], &job["completedItems"]),
        (&json!("Active"), &json!(1))
    );
    assert_eq!(job, service.get("/jobs/j").await.json());
    service.report("j", ".2*", EventKind::Complete).await;
    assert_eq!(watcher.next().await.unwrap()["status"], "Completed");
    assert_eq!(watcher.next().await, None, "the stream ends with the job");
    service
        .get("/jobs/unknown/events")
        .await
        .refuses(404, "ERROR: job_id {unknown} not found");
}

async fn a_watcher_is_told_when_its_job_is_deleted_and_when_the_service_ends(service: Service) {
    for job in ["deleted", "left"] {
        service.put(job, &new_job()).await.is(201);
    }
    let (mut deleted, mut left) = (
        Watcher::of(&service, "deleted").await,
        Watcher::of(&service, "left").await,
    );
    deleted.next().await.unwrap();
    left.next().await.unwrap();
    service.delete("deleted").await.is(204);
    assert_eq!(deleted.next().await, Some(json!({})));
    assert_eq!(deleted.next().await, None);
    service.stop().await;
    assert_eq!(left.next().await, None);
}

/// Reads the events of a job.
struct Watcher {
    response: reqwest::Response,
    read: String,
}

impl Watcher {
    async fn of(service: &Service, job: &str) -> Self {
        let response = service
            .request(Method::GET, &service.path(&format!("/jobs/{job}/events")))
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            read: String::new(),
        }
    }

    /// The data of the next event.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let data = event
                    .lines()
                    .find_map(|line| line.strip_prefix("data:"))
                    .map(|data| serde_json::from_str(data).unwrap());
                self.read = rest.to_string();
                if data.is_some() {
                    return data;
                }
                continue;
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

async fn a_failed_job_tells_why(service: Service) {
    service.put("j", &new_job()).await.is(201);
    let failure = ReportFailure {
        failure_id: Some("RESULT_EXCEPTION".into()),
        failure_time: Some(1_767_225_605_123),
        failure_source: Some("worker-order".into()),
        failure_message: Some("no such file: ü".into()),
    };
    service.report("j", ".3", EventKind::Failed(failure)).await;
    let job = service.get("/jobs/j").await.json();
    let failures = json!([{
        "failureId": "RESULT_EXCEPTION", "failureTime": 1_767_225_605_123_i64, "failureSource": "worker-order",
        "failureMessage": "no such file: ü", "taskId": "3"
    }]);
    assert_eq!(
        (&job["status"], &job["failures"], &job["failedTasks"]),
        (&json!("Failed"), &failures, &json!(1))
    );
}

async fn jobs_are_listed_newest_first_a_page_at_a_time(service: Service) {
    let names: Vec<String> = (0..27).map(|n| format!("j{n:02}")).collect();
    for name in &names {
        service.put(name, &new_job()).await.is(201);
    }
    let newest_first: Vec<String> = names.iter().rev().cloned().collect();
    for (query, expected) in [
        ("", &newest_first[..25]),
        ("?limit=", &newest_first[..25]),
        ("?limit=0&offset=-1", &newest_first[..25]),
        ("?limit=-5", &newest_first[..25]),
        ("?limit=3", &newest_first[..3]),
        ("?limit=99999999999", &newest_first[..]),
        ("?offset=25", &newest_first[25..]),
        ("?offset=2&limit=2", &newest_first[2..4]),
        ("?offset=27", &[]),
        ("?sort=createTime:desc&limit=2", &newest_first[..2]),
        ("?sort=createTime:asc&limit=2", &names[..2]),
        ("?sort=createTime%3Aasc&limit=2&offset=1", &names[1..3]),
    ] {
        assert_eq!(
            service
                .get(&format!("/jobs{query}"))
                .await
                .is(200)
                .job_ids(),
            expected,
            "{query}"
        );
    }
    let listed = service.get("/jobs?limit=1").await.json();
    assert_eq!(listed[0], service.get("/jobs/j26").await.json());
}

async fn jobs_are_found_by_the_beginning_of_their_id(service: Service) {
    for name in ["ab", "a_b", "a%25b", "A_b", "xab"] {
        service.put(name, &new_job()).await.is(201);
    }
    for (prefix, expected) in [
        ("a", vec!["a%b", "a_b", "ab"]),
        ("a_", vec!["a_b"]),
        ("a%25", vec!["a%b"]),
        ("A", vec!["A_b"]),
        ("a%5C", vec![]),
        ("b", vec![]),
    ] {
        assert_eq!(
            service
                .get(&format!("/jobs?jobIdStartsWith={prefix}"))
                .await
                .is(200)
                .job_ids(),
            expected,
            "{prefix}"
        );
        let count = service
            .get(&format!("/jobStats/count?jobIdStartsWith={prefix}"))
            .await
            .is(200);
        assert_eq!(count.json(), expected.len(), "{prefix}");
    }
    assert_eq!(
        service.get("/jobs?jobIdStartsWith=").await.job_ids().len(),
        5
    );
}

async fn jobs_are_found_by_what_has_become_of_them(service: Service) {
    for job in ["waiting", "active", "completed", "failed", "cancelled"] {
        service.put(job, &new_job()).await.is(201);
    }
    service.report("active", "", EventKind::Progress(1)).await;
    service.report("completed", "", EventKind::Complete).await;
    service
        .report("failed", "", EventKind::Failed(ReportFailure::default()))
        .await;
    service.cancel("cancelled").await.is(204);
    let all = ["active", "cancelled", "completed", "failed", "waiting"];
    for (status_type, expected) in [
        (
            "NotCompleted",
            &["active", "cancelled", "failed", "waiting"][..],
        ),
        ("Completed", &["completed"]),
        ("Inactive", &["cancelled", "completed", "failed"]),
        ("NotFinished", &["active", "waiting"]),
        ("All", &all),
        ("completed", &all),
        ("", &all),
    ] {
        let listed: BTreeSet<String> = service
            .get(&format!("/jobs?statusType={status_type}"))
            .await
            .is(200)
            .job_ids()
            .into_iter()
            .collect();
        assert!(listed.iter().eq(expected), "{status_type}: {listed:?}");
        let count = service
            .get(&format!("/jobStats/count?statusType={status_type}&limit=1"))
            .await
            .is(200);
        assert_eq!(count.json(), expected.len(), "{status_type}");
    }
    let both = "jobIdStartsWith=c&statusType=Inactive";
    assert_eq!(
        service
            .get(&format!("/jobs?{both}&sort=createTime:asc"))
            .await
            .job_ids(),
        ["completed", "cancelled"]
    );
    assert_eq!(
        service.get(&format!("/jobStats/count?{both}")).await.body,
        "2"
    );
}

async fn jobs_of_another_partition_are_not_seen(mut service: Service) {
    service.put("j", &new_job()).await.is(201);
    service.partition = harness::unique("q");
    service
        .get("/jobs/j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    assert_eq!(service.get("/jobs").await.body, "[]");
    assert_eq!(service.get("/jobStats/count").await.body, "0");
    service
        .put("j", &json!({"task": new_job()["task"]}))
        .await
        .is(201);
    service.cancel("j").await.is(204);
    assert_eq!(service.get("/jobs").await.job_ids(), ["j"]);
}

async fn the_state_of_a_task_is_told(service: Service) {
    service.put("j", &new_job()).await.is(201);
    // Three subtasks: one done, one failed, one not reported. (The size is announced.)
    service.report("j", ".4*", EventKind::Progress(0)).await;
    service.report("j", ".1", EventKind::Complete).await;
    service
        .report(
            "j",
            ".2",
            EventKind::Retry {
                attempts: Some(2),
                failure: None,
            },
        )
        .await;
    for (task, id, status) in [
        ("0", "0", "Active"),
        ("1", "1", "Completed"),
        ("1*", "1", "Completed"),
        ("2", "2", "Retrying"),
        ("3", "3", "Waiting"),
    ] {
        let told = service
            .get(&format!("/jobs/j/tasks/{task}"))
            .await
            .is(200)
            .json();
        assert_eq!(
            (told["id"].as_str(), told["status"].as_str()),
            (Some(id), Some(status)),
            "{task}: {told}"
        );
    }
    for bad in ["x", "0.1", "1..2", "1.", "-1", "4294967296"] {
        let text = format!(
            "The task id '{bad}' is not of the form 3.17 or 3.17*, nor 0 for the job's own task."
        );
        service
            .get(&format!("/jobs/j/tasks/{bad}"))
            .await
            .refuses(400, &text);
    }
    // The split has four.
    service
        .get("/jobs/j/tasks/5")
        .await
        .refuses(404, "ERROR: task_id {5} of job_id {j} not found");
}

async fn ids_may_be_of_any_script_and_are_decoded(service: Service) {
    for (encoded, id) in [
        ("gr%C3%BCn%20und%20%2F", "grün und /"),
        ("%F0%9F%A6%80", "🦀"),
        ("a+b", "a+b"),
        ("100%25", "100%"),
    ] {
        let created = service.put(encoded, &new_job()).await.is(201);
        assert_eq!(
            created.header("location"),
            service.url(&format!("/jobs/{encoded}"))
        );
        assert_eq!(
            service
                .get(&format!("/jobs/{encoded}"))
                .await
                .is(200)
                .json()["id"],
            id
        );
        assert_eq!(
            service
                .get(&format!("/jobs/{encoded}/status"))
                .await
                .is(200)
                .json(),
            "Waiting"
        );
    }
    // As many characters as are allowed, each of four bytes.
    service
        .put(&"%F0%9F%A6%80".repeat(48), &new_job())
        .await
        .is(201);
}

async fn texts_of_any_script_come_back_as_they_were(service: Service) {
    let text = "Zürich 東京 🦀 \u{1}\u{202e} \\ \" ' %_ \r\n";
    let mut job = new_job();
    for field in ["name", "description", "externalData"] {
        job[field] = json!(text);
    }
    job["labels"] = json!({"a:b-C_1": text});
    service.put("j", &job).await.is(201);
    let told = service.get("/jobs/j").await.is(200).json();
    for field in ["name", "description", "externalData", "labels"] {
        assert_eq!(told[field], job[field], "{field}");
    }
    service.put("j", &job).await.is(204);
}

async fn a_database_that_is_gone_is_said_to_be_unavailable(service: Service) {
    service.store.close().await;
    let text = "The database is not available. Try again later.";
    service.get("/jobs/j").await.refuses(503, text);
    service.get("/jobs").await.refuses(503, text);
    service.put("j", &new_job()).await.refuses(503, text);
    let ready = service
        .call(Method::GET, "/health-check?name=all&type=READY", None)
        .await
        .is(503)
        .json();
    assert_eq!(
        ready[3],
        json!({"name": "database", "healthy": false, "type": "READY", "critical": true, "message": ready[3]["message"]})
    );
    // Nobody should kill the process for it.
    service
        .call(Method::GET, "/health-check?name=all&type=ALIVE", None)
        .await
        .is(200);
}

// What no database has a part in.

async fn without_jobs() -> Service {
    Service::start(Backend::Memory).await
}

#[tokio::test]
async fn a_ping_is_answered() {
    let pong = without_jobs()
        .await
        .call(Method::GET, "/job-service/v1/ping", None)
        .await
        .is(200);
    assert_eq!(pong.json(), json!({"success": true}));
}

#[tokio::test]
async fn a_healthy_service_says_so_check_by_check() {
    let service = without_jobs().await;
    let check = |name: &str, kind: &str| json!({"name": name, "healthy": true, "type": kind, "critical": true});
    let alive = [check("deadlocks", "ALIVE"), check("ports-alive", "ALIVE")];
    let ready = ["ports-ready", "database", "ping", "queue"].map(|name| check(name, "READY"));
    let all = json!([&alive[..], &ready[..]].concat());
    for (query, expected) in [
        ("?name=all&type=READY", all.clone()),
        ("?name=all", all),
        ("?name=all&type=ALIVE", json!(alive)),
        ("", json!([])),
        ("?type=ALIVE", json!([])),
        ("?name=queue&name=deadlocks", json!([alive[0], ready[3]])),
        ("?type=ready&name=queue", json!([ready[3]])),
    ] {
        assert_eq!(
            service
                .call(Method::GET, &format!("/health-check{query}"), None)
                .await
                .is(200)
                .json(),
            expected,
            "{query}"
        );
    }
    let dead = service
        .call(Method::GET, "/health-check?type=DEAD", None)
        .await;
    dead.refuses(
        400,
        "The parameter 'type' must be ALIVE or READY, but is 'DEAD'.",
    );
}

#[tokio::test]
async fn a_service_without_its_broker_is_alive_and_not_ready() {
    let service = without_jobs().await;
    service.broker.close().await;
    let ready = service
        .call(Method::GET, "/health-check?name=all&type=READY", None)
        .await
        .is(503)
        .json();
    assert_eq!(
        (
            &ready[3]["healthy"],
            &ready[5]["name"],
            &ready[5]["healthy"]
        ),
        (&json!(true), &json!("queue"), &json!(false))
    );
    service
        .call(Method::GET, "/health-check", None)
        .await
        .is(503);
    service
        .call(Method::GET, "/health-check?name=all&type=ALIVE", None)
        .await
        .is(200);
    service.put("j", &new_job()).await.is(201);
}

#[tokio::test]
async fn bad_ids_are_refused_the_partition_first() {
    let service = without_jobs().await;
    let long_partition = "p".repeat(41);
    let partition = |p: &str| format!("/job-service/v1/partitions/{p}/jobs/a.b");
    for (path, message) in [
        (partition(""), "The partition ID has not been specified."),
        (
            partition("a.b"),
            "The partition ID contains one or more invalid characters.",
        ),
        (
            partition("a%3Ab"),
            "The partition ID contains one or more invalid characters.",
        ),
        (
            partition("%00"),
            "The partition ID contains one or more invalid characters.",
        ),
        (
            partition(&long_partition),
            "The partition ID is longer than 40 characters.",
        ),
        (
            service.path("/jobs/a!b"),
            "The job identifier contains one or more invalid characters.",
        ),
        (
            service.path("/jobs/a%0Ab"),
            "The job identifier contains one or more invalid characters.",
        ),
        (
            service.path("/jobs/(a)"),
            "The job identifier contains one or more invalid characters.",
        ),
    ] {
        for method in [Method::GET, Method::DELETE, Method::PUT] {
            service
                .call(method, &path, Some("no job".into()))
                .await
                .refuses(400, message);
        }
        for sub in ["status", "isActive", "tasks/x"] {
            service
                .call(Method::GET, &format!("{path}/{sub}"), None)
                .await
                .refuses(400, message);
        }
        service
            .call(Method::POST, &format!("{path}/cancel"), None)
            .await
            .refuses(400, message);
    }
    let long_job = "j".repeat(49);
    service
        .put(&long_job, &new_job())
        .await
        .refuses(400, "The job identifier is longer than 48 characters.");
    for sub in ["", "/status", "/tasks/1", "/events"] {
        let text = format!("ERROR: job_id {{{long_job}}} not found");
        service
            .get(&format!("/jobs/{long_job}{sub}"))
            .await
            .refuses(404, &text);
    }
    for path in ["jobs", "jobStats/count"] {
        let path = format!("/job-service/v1/partitions/a.b/{path}");
        service.call(Method::GET, &path, None).await.refuses(
            400,
            "The partition ID contains one or more invalid characters.",
        );
    }
    let no_text = service
        .call(Method::GET, &service.path("/jobs/%FF"), None)
        .await
        .is(400);
    assert!(no_text.error().contains("UTF-8"), "{no_text:?}");
}

#[tokio::test]
async fn a_body_that_is_no_job_is_refused_with_the_place_where_it_can_be_told() {
    let service = without_jobs().await;
    let path = service.path("/jobs/j");
    let missing = service.call(Method::PUT, &path, None).await;
    missing.refuses(
        400,
        "The body has not been specified. Send the job as a JSON object.",
    );
    let deep = format!(
        r#"{{"task": {{"taskData": {}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for (body, expected) in [
        (
            "{\n  \"name\": x\n}",
            "The body is not valid JSON: expected value at line 2 column 11",
        ),
        (
            "{\"name\": \"a\"",
            "The body is not valid JSON: EOF while parsing an object at line 1 column 12",
        ),
        (
            "null",
            "The body is not a job: invalid type: null, expected a map at line 1 column 4",
        ),
        (
            r#"{"delay": 1.5}"#,
            "The body is not a job: invalid type: floating point `1.5`, expected i32 at line 1 column 13",
        ),
        (
            deep.as_str(),
            "The body is not valid JSON: recursion limit exceeded at line 1 column",
        ),
        ("{}", "The task has not been specified."),
    ] {
        let refused = service
            .call(Method::PUT, &path, Some(body.into()))
            .await
            .is(400);
        assert!(refused.error().starts_with(expected), "{refused:?}");
    }
    let no_text = Answer::of(
        service
            .request(Method::PUT, &path)
            .body(&b"{\"name\": \"\xff\"}"[..]),
    )
    .await
    .is(400);
    assert!(
        no_text
            .error()
            .starts_with("The body is not valid JSON: invalid unicode code point at line 1 column"),
        "{no_text:?}"
    );
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_whether_or_not_it_tells_its_size() {
    let store = Store::open("memory:").await.unwrap();
    let options = ServiceOptions {
        max_body_bytes: 1000,
        ..ServiceOptions::default()
    };
    let router = JobService::new(store, Arc::new(Memory::new()), options).router();
    let whole = Body::from(" ".repeat(1001));
    let in_parts = Body::from_stream(futures_util::stream::iter(
        (0..11).map(|_| Ok::<_, std::io::Error>(" ".repeat(100))),
    ));
    for body in [whole, in_parts] {
        let request = Request::put("/job-service/v1/partitions/p/jobs/j")
            .body(body)
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(
            (response.status(), &response.headers()["content-type"]),
            (
                StatusCode::PAYLOAD_TOO_LARGE,
                &"application/json".parse().unwrap()
            )
        );
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        assert_eq!(body, r#"{"message":"The body is larger than 1000 bytes."}"#);
    }
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    let service = without_jobs().await;
    let request = service
        .request(Method::PUT, &service.path("/jobs/j"))
        .header("Content-Type", "application/x-www-form-urlencoded");
    Answer::of(request.body(new_job().to_string()))
        .await
        .is(201);
}

#[tokio::test]
async fn bad_parameters_are_refused_by_name() {
    let service = without_jobs().await;
    for (query, message) in [
        (
            "limit=ten",
            "The parameter 'limit' must be a whole number, but is 'ten'.",
        ),
        (
            "limit=1.5",
            "The parameter 'limit' must be a whole number, but is '1.5'.",
        ),
        (
            "offset=99999999999999999999",
            "The parameter 'offset' must be a whole number, but is '99999999999999999999'.",
        ),
        ("sort=createTime", "Invalid format for sort: createTime"),
        (
            "sort=colour:asc",
            "Invalid value for sort field: colour:asc",
        ),
        (
            "sort=createTime:ASC",
            "Invalid value for sort direction: ASC",
        ),
        (
            "jobIdStartsWith=%00",
            "The parameter 'jobIdStartsWith' contains the character U+0000.",
        ),
    ] {
        service
            .get(&format!("/jobs?{query}"))
            .await
            .refuses(400, message);
    }
    let twice = service.get("/jobs?limit=1&limit=2").await.is(400);
    assert!(twice.error().contains("limit"), "{twice:?}");
}

#[tokio::test]
async fn an_unknown_url_and_a_wrong_method_are_told_apart() {
    let service = without_jobs().await;
    for path in [
        "/",
        "/job-service/v1",
        "/job-service/v1/partitions/p/jobs/j/unknown",
        "/job-service-ui/unknown",
    ] {
        let text = format!("There is nothing at {path}. The API is described at /job-service-ui/.");
        service
            .call(Method::GET, path, None)
            .await
            .refuses(404, &text);
    }
    for (method, path, allow) in [
        (
            Method::POST,
            service.path("/jobs/j"),
            vec!["DELETE", "GET", "HEAD", "PUT"],
        ),
        (Method::PUT, service.path("/jobs"), vec!["GET", "HEAD"]),
        (Method::GET, service.path("/jobs/j/cancel"), vec!["POST"]),
        (Method::GET, service.path("/jobs:delete"), vec!["POST"]),
        (
            Method::DELETE,
            "/job-service/v1/ping".into(),
            vec!["GET", "HEAD"],
        ),
    ] {
        let refused = service.call(method.clone(), &path, None).await;
        let mut allowed: Vec<&str> = refused.header("allow").split(',').map(str::trim).collect();
        allowed.sort_unstable();
        assert_eq!(allowed, allow, "{path}");
        refused.refuses(405, &format!("{path} does not support {method}."));
    }
}

#[tokio::test]
async fn every_answer_carries_the_correlation_id_of_its_request_or_a_new_one() {
    let service = without_jobs().await;
    for path in [
        "/job-service/v1/ping",
        "/nothing",
        "/job-service/v1/partitions/p/jobs/j",
        "/job-service-ui/",
    ] {
        let given = Answer::of(
            service
                .request(Method::GET, path)
                .header("CAF-Correlation-Id", "corr-42"),
        )
        .await;
        assert_eq!(given.header("CAF-Correlation-Id"), "corr-42", "{path}");
        let [first, second] = [
            service.call(Method::GET, path, None).await,
            service.call(Method::GET, path, None).await,
        ];
        let made = first.header("CAF-Correlation-Id");
        assert!(
            uuid::Uuid::parse_str(made).is_ok() && made != second.header("CAF-Correlation-Id"),
            "{path}"
        );
    }
    let empty = Answer::of(
        service
            .request(Method::GET, "/job-service/v1/ping")
            .header("CAF-Correlation-Id", ""),
    )
    .await;
    assert!(uuid::Uuid::parse_str(empty.header("CAF-Correlation-Id")).is_ok());
}

#[tokio::test]
async fn the_api_can_be_tried_out_in_a_browser() {
    let service = without_jobs().await;
    let redirect = service.call(Method::GET, "/job-service-ui", None).await;
    assert!(redirect.status.is_redirection());
    assert_eq!(redirect.header("location"), "/job-service-ui/");
    let page = service
        .call(Method::GET, "/job-service-ui/", None)
        .await
        .is(200);
    assert!(page.header("content-type").starts_with("text/html"));
    let start = service
        .call(Method::GET, "/job-service-ui/swagger-initializer.js", None)
        .await
        .is(200);
    assert!(
        start.body.contains("/job-service-ui/api-docs/openapi.json"),
        "{}",
        start.body
    );
    let document = service
        .call(Method::GET, "/job-service-ui/api-docs/openapi.json", None)
        .await
        .is(200);
    assert_eq!(
        document.json(),
        serde_json::to_value(job_service::openapi()).unwrap()
    );
}

#[test]
fn the_api_is_described_like_this() {
    insta::assert_json_snapshot!("openapi", job_service::openapi());
}

#[test]
fn every_body_in_the_description_has_an_example_and_every_error_is_described() {
    let document = serde_json::to_value(job_service::openapi()).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            for (status, response) in responses {
                let contents = response
                    .get("content")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flat_map(|contents| contents.values());
                let shared = ["500", "503"].contains(&status.as_str());
                for content in contents.filter(|_| !shared) {
                    let has_example = content.get("example").or(content.get("examples")).is_some();
                    assert!(has_example, "{method} {path} {status} has no example");
                }
            }
            if path.contains("{partitionId}") {
                for status in ["400", "500", "503"] {
                    assert!(
                        responses.contains_key(status),
                        "{method} {path} does not say what {status} means"
                    );
                }
            }
        }
    }
}

#[test]
fn the_example_of_a_job_is_one() {
    let document = serde_json::to_value(job_service::openapi()).unwrap();
    let put = &document["paths"]["/job-service/v1/partitions/{partitionId}/jobs/{jobId}"]["put"];
    let example = put["requestBody"]["content"]["application/json"]["example"].clone();
    serde_json::from_value::<rest::NewJob>(example).unwrap();
    let get = &document["paths"]["/job-service/v1/partitions/{partitionId}/jobs/{jobId}"]["get"];
    let example = get["responses"]["200"]["content"]["application/json"]["example"].clone();
    serde_json::from_value::<rest::Job>(example).unwrap();
}
