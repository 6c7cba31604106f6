//! Creating, reading, cancelling and deleting jobs.

use contract::ReportFailure;
use futures_util::future::join_all;
use harness::wait_for;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::service::{Answer, Backend, Service, new_job};

on_both_databases![
    texts_of_any_script_are_returned_unchanged,
    unavailable_database_is_a_503,
    a_job_shows_its_policy_and_its_time_limit_and_the_answer_to_a_status_check_brings_the_policy,
];

#[tokio::test]
async fn get_returns_every_field_of_a_new_job() {
    let service = Service::start().await;
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
    assert!(job["correlationId"].take().is_string());
    let expected = json!({
        "id": "reindex-7", "name": "Reindex", "description": "All of them", "externalData": "ticket 7",
        "createTime": null, "lastUpdateTime": null, "status": "Waiting", "percentageComplete": 0.0, "failures": [],
        "labels": {"team": "search", "empty": null}, "onFailure": "stop",
        "completedItems": 0, "failedTasks": 0, "failureCounts": {}, "incarnation": null,
        "correlationId": null, "progress": null, "startTime": null, "endTime": null, "itemsPerSecond": null,
        "estimatedEndTime": null, "items": {
            "total": null, "totalIsFinal": false, "done": 0, "failed": 0, "retrying": null, "running": null, "waiting": null
        }
    });
    assert_eq!(job, expected);
}

#[tokio::test]
async fn location_follows_the_host_and_forwarded_headers() {
    let service = Service::start().await;
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

#[tokio::test]
async fn job_needs_nothing_but_a_task() {
    let service = Service::start().await;
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
        json!(["The job has no target pipe: it completes only if its workers send no output."])
    );
    // Once it has ended, its notes ask for nothing.
    service.report("j", "", EventKind::Complete).await;
    let job = service.get("/jobs/j").await.json();
    assert_eq!(
        (&job["status"], &job["notes"]),
        (&json!("Completed"), &Value::Null)
    );
}

#[tokio::test]
async fn tolerated_failures_are_returned_as_they_were_asked_for() {
    let service = Service::start().await;
    let task =
        json!({"taskClassifier": "W", "taskApiVersion": 1, "taskData": "x", "taskPipe": "in"});
    for (job, tolerance, shown) in [
        (
            "number",
            json!({"tolerate": 100}),
            json!({"tolerate": 100, "above": "stop"}),
        ),
        (
            "share",
            json!({"above": "continue", "tolerate": "02.50%"}),
            json!({"tolerate": "2.5%", "above": "continue"}),
        ),
    ] {
        let body = json!({"task": task, "onFailure": {"continue": tolerance}});
        service.put(job, &body).await.is(201);
        // The same request again.
        service.put(job, &body).await.is(204);
        let found = service.get(&format!("/jobs/{job}")).await.json();
        assert_eq!(found["onFailure"], json!({"continue": shown}));
    }
    let body = json!({"task": task, "onFailure": {"continue": {"tolerate": "101%"}}});
    service.put("invalid", &body).await.is(400);
    service.get("/jobs/invalid").await.is(404);
}

#[tokio::test]
async fn repeated_request_changes_nothing() {
    let service = Service::start().await;
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

#[tokio::test]
async fn different_request_for_an_existing_job_is_refused() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let mut other = new_job();
    other["task"]["taskData"]["batchDefinition"] = json!("[1-101]");
    service
        .put("j", &other)
        .await
        .refuses(403, "Job already exists");
}

#[tokio::test]
async fn one_of_several_equal_concurrent_requests_creates_the_job() {
    let service = Service::start().await;
    let job = new_job();
    let answers = join_all((0..12).map(|_| service.put("j", &job))).await;
    assert_eq!(statuses(&answers), [vec![201], vec![204; 11]].concat());
}

#[tokio::test]
async fn one_of_several_different_concurrent_requests_creates_the_job() {
    let service = Service::start().await;
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

#[tokio::test]
async fn deleted_job_is_not_found_and_can_be_created_again() {
    let service = Service::start().await;
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

#[tokio::test]
async fn status_of_a_past_incarnation_is_not_found() {
    let service = Service::start().await;
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

#[tokio::test]
async fn status_says_how_long_it_may_be_cached() {
    let service = Service::start().await;
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

#[tokio::test]
async fn job_is_active_until_it_ends() {
    let service = Service::start().await;
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

#[tokio::test]
async fn unknown_job_is_not_found() {
    let service = Service::start().await;
    for path in [
        "/jobs/no-such",
        "/jobs/no-such/status",
        "/jobs/no-such/tasks/1",
    ] {
        let answer = service.get(path).await;
        answer.refuses(404, "ERROR: job_id {no-such} not found");
        // By this, workers tell it from the 404 of a gateway.
        assert_eq!(answer.header("x-batchwright-not-found"), "job", "{path}");
    }
    service
        .cancel("no-such")
        .await
        .refuses(404, "ERROR: job_id {no-such} not found");
    assert_eq!(service.get("/jobs").await.is(200).body, "[]");
    assert_eq!(service.get("/jobStats/count").await.is(200).body, "0");
}

#[tokio::test]
async fn cancelled_job_stays_cancelled() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    assert_eq!(service.cancel("j").await.is(204).body, "");
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["status"], "Cancelled");
    service.cancel("j").await.is(204);
    service.report("j", "", EventKind::Complete).await;
    assert_eq!(service.get("/jobs/j").await.json(), job);
    assert_eq!(service.get("/jobs/j/isActive").await.body, "false");
}

#[tokio::test]
async fn finished_job_cannot_be_cancelled() {
    let service = Service::start().await;
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

#[tokio::test]
async fn failed_job_shows_its_failure() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let failure = ReportFailure {
        failure_id: Some("RESULT_EXCEPTION".into()),
        failure_time: Some(1_767_225_605_123),
        failure_source: Some("worker-order".into()),
        failure_message: Some("no such file: ü".into()),
        item: None,
        run: None,
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

#[tokio::test]
async fn jobs_of_another_partition_are_invisible() {
    let mut service = Service::start().await;
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

#[tokio::test]
async fn get_task_returns_its_state() {
    let options = store::StoreOptions {
        failed_tables_kept: std::time::Duration::ZERO,
        ..store::StoreOptions::default()
    };
    let store = store::Store::temporary(options);
    let service = Service::start_over(store).await;
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
        let task_json = service
            .get(&format!("/jobs/j/tasks/{task}"))
            .await
            .is(200)
            .json();
        assert_eq!(
            (task_json["id"].as_str(), task_json["status"].as_str()),
            (Some(id), Some(status)),
            "{task}: {task_json}"
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
    // The split has four subtasks.
    service
        .get("/jobs/j/tasks/5")
        .await
        .refuses(404, "ERROR: task_id {5} of job_id {j} not found");
    // Below a completed task it is not stored which tasks existed.
    let below = service.get("/jobs/j/tasks/1.9").await.is(200).json();
    assert_eq!(
        (&below["status"], &below["remark"]),
        (
            &json!("Completed"),
            &json!(
                "All that is stored is that task 1 is completed. It is not known whether this task existed."
            )
        )
    );
    service.cancel("j").await.is(204);
    let gone = "ERROR: task_id {2} of job_id {j} not found. The job has ended and its tasks are no longer stored, so it is not \
                known whether it had this one.";
    wait_for("the task table to be dropped", async || {
        let answer = service.get("/jobs/j/tasks/2").await;
        if answer.status == 404 {
            answer.refuses(404, gone);
            Ok(())
        } else {
            Err(answer.body)
        }
    })
    .await;
}

#[tokio::test]
async fn ids_may_use_any_script_and_are_decoded() {
    let service = Service::start().await;
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
    // The maximum number of characters, each of four bytes.
    service
        .put(&"%F0%9F%A6%80".repeat(48), &new_job())
        .await
        .is(201);
}

async fn texts_of_any_script_are_returned_unchanged(backend: Backend) {
    let service = Service::start_on(backend).await;
    let text = "Zürich 東京 🦀 \u{1}\u{202e} \\ \" ' %_ \r\n";
    let mut job = new_job();
    for field in ["name", "description", "externalData"] {
        job[field] = json!(text);
    }
    job["labels"] = json!({"a:b-C_1": text});
    service.put("j", &job).await.is(201);
    let found = service.get("/jobs/j").await.is(200).json();
    for field in ["name", "description", "externalData", "labels"] {
        assert_eq!(found[field], job[field], "{field}");
    }
    service.put("j", &job).await.is(204);
}

async fn unavailable_database_is_a_503(backend: Backend) {
    let service = Service::start_on(backend).await;
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
    // The process stays alive.
    service
        .call(Method::GET, "/health-check?name=all&type=ALIVE", None)
        .await
        .is(200);
}

async fn a_job_shows_its_policy_and_its_time_limit_and_the_answer_to_a_status_check_brings_the_policy(
    backend: Backend,
) {
    let service = Service::start_on(backend).await;
    let mut request = new_job();
    service.put("without", &request).await.is(201);
    request["retry"] = json!({"policy": "constant", "delay": "90s", "attempts": 3});
    request["taskTimeLimit"] = json!(90);
    service.put("with", &request).await.is(201);
    service.put("with", &request).await.is(204);
    let in_full = "constant,delay=90s,attempts=3,within=1d";
    let status = service.get("/jobs/with/status").await.is(200);
    assert_eq!(status.header("x-batchwright-retry"), in_full);
    let job = service.get("/jobs/with").await.is(200).json();
    assert_eq!(
        (&job["retry"], &job["taskTimeLimit"]),
        (&json!(in_full), &json!(90))
    );
    let without = service.get("/jobs/without").await.is(200).json();
    assert_eq!(without.get("taskTimeLimit"), None);
    let status = service.get("/jobs/without/status").await.is(200);
    assert!(!status.headers.contains_key("x-batchwright-retry"));

    for (retry, problem) in [
        (
            json!("weekly"),
            "The body is not a job: retry: \"weekly\" is no retry policy; expected none, immediate,",
        ),
        (
            json!({"policy": "constant", "delay": "soon"}),
            "retry: delay is \"soon\": expected a whole number and a unit",
        ),
        (json!(5), "expected a retry policy: the name of a preset"),
    ] {
        request["retry"] = retry;
        let refused = service.put("refused", &request).await.is(400);
        assert!(
            refused.body.replace("\\\"", "\"").contains(problem),
            "{}",
            refused.body
        );
    }
    service.get("/jobs/refused").await.is(404);
}
