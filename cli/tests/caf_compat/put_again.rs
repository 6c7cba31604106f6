//! Repeated `PUT` requests for a job id. The same request changes nothing, whatever the status of
//! the job. A different request is refused. Concurrent requests create one job. Only a deleted job
//! can be created, and started, again.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, STATUSES, Service, Store};

on_both_stores![
    repeated_request_in_any_spelling_changes_nothing,
    repeated_request_starts_nothing_in_any_status,
    request_that_differs_in_any_field_is_refused,
    one_of_many_identical_concurrent_requests_creates_the_job,
    one_of_many_conflicting_concurrent_requests_wins,
    deleted_job_created_again_is_a_new_incarnation,
];

/// The number of concurrent requests.
const MANY: usize = 40;

/// Returns a job with every field of CAF's except `type`.
fn full_job(service: &Service) -> Value {
    json!({
        "name": "Full", "description": "d", "externalData": "e", "delay": 0, "prerequisiteJobIds": ["gone,pc"],
        "labels": {"team": "search", "tag:1": null},
        "task": {
            "taskClassifier": "W", "taskApiVersion": 1, "taskData": "eA==", "taskDataEncoding": "base64",
            "taskPipe": service.pipe("in"), "targetPipe": service.pipe("target")
        }
    })
}

async fn put_text(service: &Service, job: &str, body: &str) -> Answer {
    service
        .call(
            Method::PUT,
            &service.path(&format!("/jobs/{job}")),
            Some(body),
            &[],
        )
        .await
}

/// Counts the responses by status code.
fn tally(responses: &[Answer]) -> BTreeMap<u16, usize> {
    responses.iter().fold(BTreeMap::new(), |mut tally, answer| {
        *tally.entry(answer.status).or_default() += 1;
        tally
    })
}

async fn repeated_request_in_any_spelling_changes_nothing(store: Store) {
    let service = Service::start_own(store).await;
    let mut workers = service.consume("in").await;
    let job = full_job(&service);
    service.create("j", &job).await;
    assert_eq!(workers.next_jobs(1).await, ["j"]);
    let before = service.job("j").await;

    let (task_pipe, target_pipe) = (service.pipe("in"), service.pipe("target"));
    let backwards = format!(
        r#"{{ "task" : {{ "targetPipe": "{target_pipe}", "taskPipe": "{task_pipe}", "taskDataEncoding": "base64",
              "taskData": "eA==", "taskApiVersion": 1, "taskClassifier": "\u0057" }},
            "labels": {{"tag:1": null, "team": "search"}}, "prerequisiteJobIds": ["gone,pc"],
            "delay": 0, "externalData": "e", "description": "d", "name": "Full" }}"#
    );
    for body in [&job.to_string(), &backwards] {
        let answer = put_text(&service, "j", body).await.is(204);
        assert_eq!(
            (answer.body.as_str(), answer.header("location")),
            ("", None)
        );
    }
    // Task data that is an object, with its fields in a different order.
    let object = |data: &str| {
        format!(
            r#"{{"task":{{"taskClassifier":"W","taskApiVersion":1,"taskPipe":"{task_pipe}","taskData":{data}}}}}"#
        )
    };
    put_text(&service, "object", &object(r#"{"a":1,"b":{"c":2,"d":3}}"#))
        .await
        .is(201);
    put_text(
        &service,
        "object",
        &object(r#"{ "b": {"d": 3, "c": 2}, "a": 1 }"#),
    )
    .await
    .is(204);
    // No start message is sent a second time.
    assert_eq!(workers.next_jobs(1).await, ["object"]);

    service.restart().await;
    for body in [&job.to_string(), &backwards] {
        put_text(&service, "j", body).await.is(204);
    }
    assert_eq!(service.job("j").await, before);
    assert_eq!(service.get("/jobStats/count").await.json(), 2);
}

async fn repeated_request_starts_nothing_in_any_status(store: Store) {
    let service = Service::start_own(store).await;
    service.create_in_every_status().await;
    let before = jobs_without_rates(&service).await;
    for status in STATUSES {
        service.put(status, &service.new_job(status)).await.is(204);
        service
            .put(status, &service.new_job("other"))
            .await
            .refuses(403, "Job already exists");
    }
    for status in STATUSES {
        let (mut pipe, after) = (service.consume(status).await, format!("after-{status}"));
        service.create(&after, &service.new_job(status)).await;
        let mut next = pipe.next_jobs(1).await;
        if next == [status] {
            // This is the start message from before the job got its status.
            next = pipe.next_jobs(1).await;
        }
        assert_eq!(next, [after]);
    }
    service.restart().await;
    for status in STATUSES {
        service.put(status, &service.new_job(status)).await.is(204);
        service
            .put(status, &service.new_job("other"))
            .await
            .refuses(403, "Job already exists");
        service.delete(&format!("after-{status}")).await.is(204);
    }
    assert_eq!(jobs_without_rates(&service).await, before);
}

/// Lists the jobs without what changes by itself as time passes.
async fn jobs_without_rates(service: &Service) -> Value {
    let mut jobs = service.get("/jobs").await.is(200).json();
    for job in jobs.as_array_mut().unwrap() {
        job["itemsPerSecond"] = Value::Null;
        job["estimatedEndTime"] = Value::Null;
    }
    jobs
}

async fn request_that_differs_in_any_field_is_refused(store: Store) {
    let service = Service::start_own(store).await;
    let job = full_job(&service);
    service.create("j", &job).await;
    let before = service.job("j").await;
    let others: Vec<(&str, Value)> = [
        ("/name", vec![json!("full"), json!(null), json!("")]),
        ("/description", vec![json!("D"), json!(null)]),
        ("/externalData", vec![json!("E"), json!(null)]),
        ("/delay", vec![json!(1)]),
        (
            "/prerequisiteJobIds",
            vec![json!(["gone"]), json!(["away,pc"]), json!([])],
        ),
        ("/labels/team", vec![json!("Search"), json!(null)]),
        (
            "/labels",
            vec![json!({"team": "search"}), json!({}), json!(null)],
        ),
        ("/task/taskClassifier", vec![json!("w")]),
        ("/task/taskApiVersion", vec![json!(2)]),
        ("/task/taskData", vec![json!("eB==")]),
        ("/task/taskDataEncoding", vec![json!("utf8")]),
        ("/task/taskPipe", vec![json!("another")]),
        ("/task/targetPipe", vec![json!("another"), json!(null)]),
    ]
    .into_iter()
    .flat_map(|(pointer, values)| values.into_iter().map(move |value| (pointer, value)))
    .collect();
    for restarted in [false, true] {
        if restarted {
            service.restart().await;
        }
        for (pointer, value) in &others {
            let mut other = job.clone();
            *other.pointer_mut(pointer).unwrap() = value.clone();
            let answer = service.put("j", &other).await;
            assert_eq!(
                (answer.status, answer.json()),
                (403, json!({"message": "Job already exists"})),
                "{pointer} is {value}"
            );
        }
        service.put("j", &job).await.is(204);
    }
    assert_eq!(service.job("j").await, before);
}

async fn one_of_many_identical_concurrent_requests_creates_the_job(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let mut waits = service.new_job("in");
    waits["prerequisiteJobIds"] = json!(["first"]);
    for (id, job) in [
        ("plain", service.new_job("in")),
        ("full", full_job(&service)),
        ("waits", waits),
    ] {
        let responses = join_all((0..MANY).map(|_| service.put(id, &job))).await;
        assert_eq!(
            tally(&responses),
            BTreeMap::from([(201, 1), (204, MANY - 1)]),
            "{id}"
        );
    }
    service.create("first", &service.new_job("in")).await;
    // Each start message is sent once.
    let mut sent = workers.next_jobs(3).await;
    sent.sort();
    assert_eq!(sent, ["first", "full", "plain"]);
    service.complete("first", "").await;
    assert_eq!(workers.next_jobs(1).await, ["waits"]);
    service.create("last", &service.new_job("in")).await;
    assert_eq!(workers.next_jobs(1).await, ["last"]);
}

async fn one_of_many_conflicting_concurrent_requests_wins(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let named = |name: String| {
        let mut job = service.new_job("in");
        job["name"] = json!(name);
        job["task"]["taskData"] = json!({"name": name});
        job
    };
    for (id, names) in [("all-differ", MANY), ("two-kinds", 2)] {
        let jobs: Vec<Value> = (0..MANY).map(|n| named((n % names).to_string())).collect();
        let responses = join_all(jobs.iter().map(|job| service.put(id, job))).await;
        let winner = responses
            .iter()
            .position(|answer| answer.status == 201)
            .unwrap()
            % names;
        for (n, answer) in responses.iter().enumerate() {
            match answer.status {
                201 | 204 => assert_eq!(n % names, winner, "{id}: {answer:?}"),
                _ => answer.refuses(403, "Job already exists"),
            }
        }
        let alike = MANY / names;
        assert_eq!(
            responses
                .iter()
                .filter(|answer| answer.status == 201)
                .count(),
            1,
            "{id}"
        );
        assert_eq!(
            responses
                .iter()
                .filter(|answer| answer.status == 204)
                .count(),
            alike - 1,
            "{id}"
        );
        // The job and its only start message are those of the request that created it.
        assert_eq!(service.job(id).await["name"], winner.to_string(), "{id}");
        assert_eq!(
            workers.next().await.1,
            json!({"name": winner.to_string()}),
            "{id}"
        );
    }
    service.create("last", &service.new_job("in")).await;
    assert_eq!(workers.next_jobs(1).await, ["last"]);
}

async fn deleted_job_created_again_is_a_new_incarnation(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let status_of = async |message: &Value| {
        let url = message["tracking"]["statusCheckUrl"].as_str().unwrap();
        service
            .call(
                Method::GET,
                url.strip_prefix(&service.root).unwrap(),
                None,
                &[],
            )
            .await
    };
    service.create("j", &service.new_job("in")).await;
    let (first, _) = workers.next().await;
    assert_eq!(first["tracking"]["jobTaskId"], service.task("j", ""));
    service.progress("j", "", 60).await;
    service.becomes("j", "Active", 60.0).await;
    service.delete("j").await.is(204);
    status_of(&first)
        .await
        .refuses(404, "ERROR: job_id {j} not found");

    // After the deletion, any request creates a new job.
    let mut other = service.new_job("in");
    other["name"] = json!("second incarnation");
    service.create("j", &other).await;
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
    let (second, _) = workers.next().await;
    let second_id = second["tracking"]["jobTaskId"].as_str().unwrap().to_owned();
    assert!(
        second_id.starts_with(&format!("{}!", service.task("j", ""))),
        "{second_id}"
    );
    assert_eq!(status_of(&second).await.is(200).json(), "Waiting");
    // Status checks of the first incarnation find no job, and its reports do not count.
    status_of(&first).await.is(404);
    service.fail("j", "", "of the first incarnation").await;
    service.complete("j", "").await;
    service.report(&[json!({"jobTaskId": second_id, "status": "Progress", "estimatedPercentageCompleted": 30})]).await;
    service.becomes("j", "Active", 30.0).await;
    assert_eq!(service.job("j").await["failures"], json!([]));
    service
        .report(&[json!({"jobTaskId": second_id, "status": "Complete"})])
        .await;
    service.becomes("j", "Completed", 100.0).await;

    // The same request after another deletion creates a third incarnation.
    service.put("j", &other).await.is(204);
    service.delete("j").await.is(204);
    service.create("j", &other).await;
    let third_id = workers.next().await.0["tracking"]["jobTaskId"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        third_id.starts_with(&format!("{}!", service.task("j", ""))) && third_id != second_id,
        "{third_id}"
    );
    service
        .report(&[json!({"jobTaskId": third_id, "status": "Complete"})])
        .await;
    service.becomes("j", "Completed", 100.0).await;
}
