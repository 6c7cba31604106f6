//! CAF's endpoints: the response of each to a valid request, and the refusals of invalid ones.

use harness::{unique, wait_for};
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, STATUSES, Service, Store};
use crate::urls::OF_PARTITION;

on_both_stores![
    unknown_job_is_not_found,
    job_is_created_read_completed_and_deleted,
    status_response_says_how_long_it_may_be_cached,
    cancel_pause_and_resume_depend_on_the_status,
    list_count_bulk_cancel_and_delete_cover_one_partition,
];

/// The endpoints of a job.
pub const OF_JOB: [(Method, &str); 8] = [
    (Method::GET, ""),
    (Method::PUT, ""),
    (Method::DELETE, ""),
    (Method::GET, "/isActive"),
    (Method::GET, "/status"),
    (Method::POST, "/cancel"),
    (Method::POST, "/pause"),
    (Method::POST, "/resume"),
];

/// Sends a request to any URL. A `PUT` request has a job as its body.
pub async fn send(service: &Service, method: &Method, path: &str) -> Answer {
    let job = service.new_job("in").to_string();
    let body = (*method == Method::PUT).then_some(job.as_str());
    service.call(method.clone(), path, body, &[]).await
}

/// Checks that this is an error in the common form, with any text.
#[track_caller]
pub fn is_refused(answer: &Answer, status: u16, what: &str) {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (status, Some("application/json")),
        "{what}: {}",
        answer.body
    );
    let body = answer.json();
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{what}: {body}"
    );
    assert_eq!(body.as_object().unwrap().len(), 1, "{what}: {body}");
}

async fn unknown_job_is_not_found(store: Store) {
    let service = Service::start(store).await;
    service.create("here", &service.new_job("in")).await;
    let elsewhere = format!("/job-service/v1/partitions/{}", unique("elsewhere"));
    let too_long = "j".repeat(49);
    let nowhere = [
        (service.path("/jobs/j-1"), "j-1"),
        (format!("{elsewhere}/jobs/here"), "here"),
        (service.path(&format!("/jobs/{too_long}")), &too_long),
    ];
    for (path, id) in nowhere {
        for (method, below) in OF_JOB
            .into_iter()
            .filter(|(method, below)| *method != Method::PUT && *below != "/isActive")
        {
            send(&service, &method, &format!("{path}{below}"))
                .await
                .refuses(404, &format!("ERROR: job_id {{{id}}} not found"));
        }
        let answer = send(&service, &Method::GET, &format!("{path}/isActive"))
            .await
            .is(200);
        assert_eq!(
            (answer.json(), answer.header("CacheableJobStatus")),
            (json!(false), Some("true"))
        );
    }
    // A partition exists without being created.
    for ((method, path), expected) in OF_PARTITION.into_iter().zip([
        json!([]),
        json!({"jobsDeleted": 0}),
        json!({"jobsCanceled": 0}),
        json!(0),
    ]) {
        let answer = send(&service, &method, &format!("{elsewhere}{path}"))
            .await
            .is(200);
        assert_eq!(
            (answer.json(), answer.header("content-type")),
            (expected, Some("application/json")),
            "{method} {path}"
        );
    }
    assert_eq!(service.state("here").await, ("Waiting".to_owned(), 0.0));
}

async fn job_is_created_read_completed_and_deleted(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let mut body = service.new_job("in");
    (body["name"], body["description"], body["externalData"]) =
        (json!("Naïve"), json!("line 1\nline 2"), json!("{\"a\": 1}"));
    body["labels"] = json!({"team": "search", "tag:1": null});
    let created = service.put("j", &body).await.is(201);
    assert_eq!(created.body, "");
    assert_eq!(
        created.header("location"),
        Some(format!("{}{}", service.root, service.path("/jobs/j")).as_str())
    );
    let again = service.put("j", &body).await.is(204);
    assert_eq!((again.body.as_str(), again.header("location")), ("", None));
    service
        .put("j", &service.new_job("in"))
        .await
        .refuses(403, "Job already exists");

    let job = service.job("j").await;
    for (field, value) in [
        ("id", json!("j")),
        ("name", json!("Naïve")),
        ("description", json!("line 1\nline 2")),
        ("externalData", json!("{\"a\": 1}")),
        ("status", json!("Waiting")),
        ("percentageComplete", json!(0.0)),
        ("failures", json!([])),
        ("labels", json!({"team": "search", "tag:1": null})),
    ] {
        assert_eq!(job[field], value, "{field}");
    }
    assert!(
        job["createTime"].as_i64().unwrap() > 1_700_000_000_000,
        "milliseconds: {job}"
    );
    assert_eq!(job["createTime"], job["lastUpdateTime"]);
    assert_eq!(service.get("/jobs").await.is(200).json(), json!([job]));

    // Missing values are null or absent.
    service.create("bare", &service.new_job("other")).await;
    let bare = service.job("bare").await;
    for (field, value) in [
        ("name", json!(null)),
        ("description", json!(null)),
        ("externalData", json!(null)),
        ("labels", json!({})),
    ] {
        assert_eq!(bare.get(field), Some(&value), "{field}");
    }
    // Its task is in its pipe, which did not exist before.
    wait_for("the task to be in its pipe", async || {
        match service.depth("other").await {
            1 => Ok(()),
            depth => Err(format!("{depth} messages")),
        }
    })
    .await;

    let (message, _) = workers.next().await;
    assert_eq!(message["tracking"]["jobTaskId"], service.task("j", ""));
    service.complete("j", "").await;
    service.becomes("j", "Completed", 100.0).await;

    assert_eq!(service.delete("j").await.is(204).body, "");
    service
        .get("/jobs/j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    service
        .delete("j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    assert_eq!(service.get("/jobs").await.ids(), ["bare"]);
}

async fn status_response_says_how_long_it_may_be_cached(store: Store) {
    let service = Service::start_with(store, &[("CAF_STATUS_CHECK_INTERVAL_SECONDS", "7")]).await;
    service.create_in_every_status().await;
    for status in STATUSES {
        let active = matches!(status, "Active" | "Waiting");
        for (url, body) in [
            ("status", format!("\"{status}\"")),
            ("isActive", active.to_string()),
        ] {
            let answer = service.get(&format!("/jobs/{status}/{url}")).await.is(200);
            assert_eq!(answer.body, body, "{url} of {status}");
            assert_eq!(
                answer.header("content-type"),
                Some("application/json"),
                "{url} of {status}"
            );
            assert_eq!(
                answer.header("CacheableJobStatus"),
                Some("true"),
                "{url} of {status}"
            );
            assert_eq!(
                answer.header("Cache-Control"),
                Some("no-transform, max-age=7"),
                "{url} of {status}"
            );
        }
    }
    // A client must not cache an error: the next status check sends a new request.
    assert_eq!(
        service
            .get("/jobs/none/status")
            .await
            .is(404)
            .header("CacheableJobStatus"),
        None
    );
}

async fn cancel_pause_and_resume_depend_on_the_status(store: Store) {
    let service = Service::start(store).await;
    service.create_in_every_status().await;
    let cancel = |job: &str| format!("ERROR: job_id {{{job}}} cannot be cancelled");
    let pause = |job: &str| {
        format!(
            "ERROR: job_id {{{job}}} cannot be paused as it has a status of {{{job}}}. \
             Only jobs with a status of Active or Waiting can be paused."
        )
    };
    let resume = |job: &str| {
        format!(
            "job_id {{{job}}} cannot be resumed as it has a status of {{{job}}}. Only jobs with a status of Paused can be resumed."
        )
    };
    let post =
        async |job: &str, what: &str| service.post(&format!("/jobs/{job}/{what}"), &[]).await;
    for job in ["Completed", "Failed"] {
        // Only the beginning of this text is exactly CAF's.
        let answer = post(job, "cancel").await;
        is_refused(&answer, 400, job);
        assert!(
            answer.json()["message"]
                .as_str()
                .unwrap()
                .starts_with(&cancel(job)),
            "{answer:?}"
        );
    }
    for job in ["Cancelled", "Completed", "Failed"] {
        post(job, "pause").await.refuses(400, &pause(job));
    }
    for job in ["Cancelled", "Completed", "Failed", "Waiting"] {
        post(job, "resume").await.refuses(400, &resume(job));
    }
    for status in STATUSES {
        assert_eq!(service.state(status).await.0, status);
    }
    for (job, what, status) in [
        ("Active", "resume", "Active"),
        ("Cancelled", "cancel", "Cancelled"),
        ("Paused", "pause", "Paused"),
        ("Waiting", "pause", "Paused"),
        ("Waiting", "resume", "Active"),
        ("Active", "pause", "Paused"),
        ("Active", "cancel", "Cancelled"),
        ("Paused", "resume", "Active"),
        ("Waiting", "cancel", "Cancelled"),
    ] {
        assert_eq!(post(job, what).await.is(204).body, "", "{what} {job}");
        assert_eq!(service.state(job).await.0, status, "{what} {job}");
    }
}

async fn list_count_bulk_cancel_and_delete_cover_one_partition(store: Store) {
    let service = Service::start(store).await;
    service.create_in_every_status().await;
    let elsewhere = format!("/job-service/v1/partitions/{}/jobs", unique("elsewhere"));
    // The same id in two partitions names two jobs, each with its own status.
    let job = service.new_job("in").to_string();
    for id in ["Completed", "Active"] {
        service
            .call(Method::PUT, &format!("{elsewhere}/{id}"), Some(&job), &[])
            .await
            .is(201);
    }
    let listed = async |path: &str| -> Vec<(String, String)> {
        let jobs = service
            .call(Method::GET, path, None, &[])
            .await
            .is(200)
            .json();
        let text = |job: &Value, field: &str| job[field].as_str().unwrap().to_owned();
        jobs.as_array()
            .unwrap()
            .iter()
            .map(|job| (text(job, "id"), text(job, "status")))
            .collect()
    };
    let pairs = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(id, status)| ((*id).to_owned(), (*status).to_owned()))
            .collect::<Vec<_>>()
    };
    // The newest job is first.
    let mut all = STATUSES.map(|status| (status, status));
    all.reverse();
    assert_eq!(listed(&service.path("/jobs")).await, pairs(&all));
    assert_eq!(
        listed(&elsewhere).await,
        pairs(&[("Active", "Waiting"), ("Completed", "Waiting")])
    );

    assert_eq!(service.get("/jobStats/count").await.is(200).body, "6");
    assert_eq!(
        service.post("/jobs:cancel", &[]).await.is(200).json(),
        json!({"jobsCanceled": 3})
    );
    for (id, status) in [
        ("Active", "Cancelled"),
        ("Paused", "Cancelled"),
        ("Waiting", "Cancelled"),
        ("Completed", "Completed"),
    ] {
        assert_eq!(service.state(id).await.0, status, "{id}");
    }
    assert_eq!(
        service.post("/jobs:delete", &[]).await.is(200).json(),
        json!({"jobsDeleted": 6})
    );
    assert_eq!(service.get("/jobs").await.is(200).json(), json!([]));
    assert_eq!(
        listed(&elsewhere).await,
        pairs(&[("Active", "Waiting"), ("Completed", "Waiting")])
    );
}
