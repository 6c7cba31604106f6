//! Creating, reading, cancelling and deleting jobs.

use harness::wait_for;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::service::{Answer, Backend, Service, new_job};

on_both_databases![
    texts_of_any_script_are_returned_unchanged,
    unavailable_database_is_a_503,
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
async fn status_is_asked_of_any_incarnation_or_of_one() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let job = service.get("/jobs/j").await.json();
    let incarnation = job["incarnation"].as_i64().unwrap();
    for n in [String::new(), incarnation.to_string()] {
        let path = format!("/jobs/j/status?n={n}");
        assert_eq!(service.get(&path).await.is(200).json(), "Waiting");
    }
    let past = format!("/jobs/j/status?n={}", incarnation - 1);
    service
        .get(&past)
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    service.get("/jobs/j/status?n=one").await.refuses(
        400,
        "The parameter 'n' must be a whole number, but is 'one'.",
    );
}

#[tokio::test]
async fn status_and_activity_say_how_long_they_may_be_cached() {
    let service = Service::start().await;
    for job in ["waits", "works", "rests", "is-done"] {
        service.put(job, &new_job()).await.is(201);
    }
    service.report("works", "", EventKind::Progress(40)).await;
    service.pause("rests").await.is(204);
    service.report("is-done", "", EventKind::Complete).await;
    for (path, body) in [
        ("waits/status", r#""Waiting""#),
        ("waits/isActive", "true"),
        ("works/isActive", "true"),
        ("rests/isActive", "false"),
        ("is-done/isActive", "false"),
        ("unknown/isActive", "false"),
    ] {
        let answer = service.get(&format!("/jobs/{path}")).await.is(200);
        assert_eq!(answer.body, body, "{path}");
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.header("CacheableJobStatus"), "true");
        assert_eq!(answer.header("cache-control"), "no-transform, max-age=10");
    }
}

#[tokio::test]
async fn unknown_job_is_told_from_an_unknown_url() {
    let service = Service::start().await;
    for path in [
        "/jobs/no-such",
        "/jobs/no-such/status",
        "/jobs/no-such/tasks/1",
    ] {
        let answer = service.get(path).await;
        answer.refuses(404, "ERROR: job_id {no-such} not found");
        // By this, workers tell it from the 404 of a gateway, too.
        assert_eq!(answer.header("x-batchwright-not-found"), "job", "{path}");
    }
}

/// The laws of the store say which operation changes what; `caf_compat` tries each in each status.
#[tokio::test]
async fn operations_on_a_job_are_answered_by_what_they_find() {
    let service = Service::start().await;
    for job in ["j", "done"] {
        service.put(job, &new_job()).await.is(201);
    }
    service.report("done", "", EventKind::Complete).await;
    for (job, operation, refusal) in [
        ("j", "pause", None),
        ("j", "pause", None),
        ("j", "resume", None),
        ("j", "cancel", None),
        ("j", "cancel", None),
        (
            "j",
            "pause",
            Some(
                "ERROR: job_id {j} cannot be paused as it has a status of {Cancelled}. \
                 Only jobs with a status of Active or Waiting can be paused.",
            ),
        ),
        (
            "j",
            "resume",
            Some(
                "job_id {j} cannot be resumed as it has a status of {Cancelled}. \
                 Only jobs with a status of Paused can be resumed.",
            ),
        ),
        (
            "done",
            "cancel",
            Some("ERROR: job_id {done} cannot be cancelled as it has a status of Completed."),
        ),
    ] {
        let path = service.path(&format!("/jobs/{job}/{operation}"));
        let answer = service.call(Method::POST, &path, None).await;
        match refusal {
            Some(text) => answer.refuses(400, text),
            None => assert_eq!(answer.is(204).body, ""),
        }
    }
    assert_eq!(service.delete("j").await.is(204).body, "");
    let gone = "ERROR: job_id {j} not found";
    for operation in ["pause", "resume", "cancel"] {
        let path = service.path(&format!("/jobs/j/{operation}"));
        let answer = service.call(Method::POST, &path, None).await;
        answer.refuses(404, gone);
    }
    service.delete("j").await.refuses(404, gone);
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
async fn ids_are_decoded_and_encoded_in_the_location() {
    let service = Service::start().await;
    for (encoded, id) in [("gr%C3%BCn%20und%20%2F", "grün und /"), ("a+b%25", "a+b%")] {
        let path = format!("/jobs/{encoded}");
        let created = service.put(encoded, &new_job()).await.is(201);
        assert_eq!(created.header("location"), service.url(&path));
        assert_eq!(service.get(&path).await.is(200).json()["id"], id);
    }
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

#[tokio::test]
async fn a_job_shows_its_policy_and_its_time_limit_and_the_answer_to_a_status_check_brings_the_policy()
 {
    let service = Service::start().await;
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
