//! Taking jobs up again, and the requests that created them.

use contract::rest::ErrorCode;
use contract::{ReportFailure, SourceDigest, TaskMessage};
use framework::broker::Broker;
use harness::in_time;
use job_service::JobTypes;
use reqwest::Method;
use serde_json::json;
use store::EventKind;

use crate::list::call;
use crate::service::{Answer, Service, new_job};

async fn retry(service: &Service, job: &str, query: &[(&str, &str)]) -> Answer {
    call(service, Method::POST, &format!("/jobs/{job}/retry"), query).await
}

fn failed() -> EventKind {
    EventKind::Failed(ReportFailure::default())
}

#[tokio::test]
async fn round_begins_with_a_start_message_of_its_own_and_ends_the_round_before() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let mut consumer = service.broker.consume("batch-in", 1).await.unwrap();
    let mut next = async || {
        let delivery = in_time("a start message", consumer.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        delivery.ack();
        message
    };
    let first = next().await;
    service.report("j", ".1", EventKind::Complete).await;
    service.report("j", ".2", failed()).await;
    let number = service.get("/jobs/j").await.json()["incarnation"].clone();
    let retried = retry(&service, "j", &[]).await.is(200).json();
    assert_eq!(
        retried,
        json!({"jobId": "j", "round": 2, "status": "Active", "dependents": [], "fallen": []})
    );
    let job = service.get("/jobs/j").await.json();
    assert_eq!(
        (&job["status"], &job["round"], &job["failedTasks"]),
        (&json!("Active"), &json!(2), &json!(0))
    );
    let second = next().await;
    assert_ne!(second.task_id, first.task_id);
    let (before, now) = (first.tracking.unwrap(), second.tracking.unwrap());
    assert_eq!(
        now.job_task_id,
        Some(format!("{}:j!{number}r2", service.partition))
    );
    let (old, new) = (
        before.status_check_url.unwrap(),
        now.status_check_url.unwrap(),
    );
    assert_eq!(*new, old.replace("&k=", "&r=2&k="));
    assert_eq!(
        (second.task_data, second.to, now.track_to),
        (first.task_data, first.to, before.track_to)
    );
    // Workers discard what the first round has left in the pipes.
    let status = async |url: &str| {
        let path = url.strip_prefix(&service.root).unwrap();
        service.call(Method::GET, path, None).await
    };
    let gone = status(&old).await.is(404);
    assert_eq!(gone.header("x-batchwright-not-found"), "job");
    assert_eq!(status(&new).await.is(200).json(), "Active");
    assert_eq!(service.get("/jobs/j/status").await.json(), "Active");
    service
        .get("/jobs/j/status?r=x")
        .await
        .refuses(400, "The parameter 'r' must be a whole number, but is 'x'.");
}

#[tokio::test]
async fn split_tells_what_is_done_to_the_workers_of_its_round() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let announced = EventKind::Announced {
        stated: None,
        digest: Some(SourceDigest([0xab; 32])),
    };
    service.report("j", ".4*", announced).await;
    service.report("j", ".2", EventKind::Complete).await;
    service.report("j", ".3", failed()).await;
    retry(&service, "j", &[]).await.is(200);
    let number = service.get("/jobs/j").await.json()["incarnation"].clone();
    let url = format!("/jobs/j/splits/0?n={number}&r=2&after=0");
    let split = service.get(&url);
    assert_eq!(
        split.await.is(200).json(),
        json!({
            "known": true, "completed": false, "digest": "ab".repeat(32), "round": 1, "contradictory": false,
            "done": [{"first": 2, "last": 2}], "upTo": null
        })
    );
    for query in [format!("?n={number}"), format!("?n={number}&r=3")] {
        let gone = service
            .get(&format!("/jobs/j/splits/0{query}"))
            .await
            .is(404);
        assert_eq!(gone.header("x-batchwright-not-found"), "job");
    }
    for (path, reason) in [
        (
            "/jobs/j/splits/x",
            "The task id 'x' is not of the form 3.17 or 3.17*, nor 0 for the job's own task.",
        ),
        (
            "/jobs/j/splits/0?after=x",
            "The parameter 'after' must be a whole number, but is 'x'.",
        ),
        (
            "/jobs/j/splits/0?after=2147483648",
            "The parameter 'after' must be at most 2147483647, but is 2147483648.",
        ),
    ] {
        service.get(path).await.refuses(400, reason);
    }
}

#[tokio::test]
async fn job_that_cannot_be_retried_says_why() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let refused = retry(&service, "j", &[]).await;
    refused.refuses(
        409,
        "job_id {j} cannot be retried as it has a status of {Waiting}. Only jobs with a status of Failed or Cancelled can be retried, and those that are Completed although items have failed.",
    );
    assert_eq!(
        refused.header("x-batchwright-error"),
        ErrorCode::WrongJobStatus.as_str()
    );
    retry(&service, "unknown", &[])
        .await
        .refuses(404, "ERROR: job_id {unknown} not found");
    retry(&service, "j", &[("dependents", "maybe")])
        .await
        .refuses(
            400,
            "The parameter 'dependents' must be true or false, but is 'maybe'.",
        );
    let waiting = json!({"task": new_job()["task"], "prerequisiteJobIds": ["j"]});
    service.put("waiting", &waiting).await.is(201);
    service.cancel("j").await.is(204);
    retry(&service, "waiting", &[("dependents", "true")])
        .await
        .refuses(
            409,
            "One or more prerequisite jobs have been cancelled. Cancelled Job IDs: j",
        );
    let retried = retry(&service, "j", &[("dependents", "true")]).await.json();
    assert_eq!(
        (&retried["dependents"], &retried["fallen"]),
        (&json!(["waiting"]), &json!([]))
    );
}

#[tokio::test]
async fn bulk_retry_takes_up_what_matches_and_names_what_it_cannot() {
    let service = Service::start_configured(|options| options.cancel_batch = 2).await;
    for job in ["job-1", "job-2", "job-3", "job-4", "other"] {
        service.put(job, &new_job()).await.is(201);
    }
    let waiting = json!({"task": new_job()["task"], "prerequisiteJobIds": ["other"]});
    service.put("job-5", &waiting).await.is(201);
    service.cancel("job-1").await.is(204);
    service.report("job-2", "", failed()).await;
    service.report("job-3", "", EventKind::Complete).await;
    service.cancel("other").await.is(204);
    let retry = async |query: &[(&str, &str)]| {
        let answer = call(&service, Method::POST, "/jobs:retry", query).await;
        answer.is(200).json()
    };
    assert_eq!(
        retry(&[("jobIdStartsWith", "job-")]).await,
        json!({"jobsRetried": 2, "jobsRefused": 1, "refusals": [{"jobId": "job-5",
            "message": "One or more prerequisite jobs have been cancelled. Cancelled Job IDs: other"}]})
    );
    assert_eq!(
        retry(&[("statusType", "Completed"), ("colour", "red")]).await,
        json!({"jobsRetried": 0, "jobsRefused": 0, "notes": ["The parameter 'colour' is unknown and was ignored."]})
    );
    assert_eq!(
        retry(&[("filter", "id==other"), ("dependents", "true")]).await,
        json!({"jobsRetried": 2, "jobsRefused": 0})
    );
    call(
        &service,
        Method::POST,
        "/jobs:retry",
        &[("statusType", "x")],
    )
    .await
    .is(400);
}

#[tokio::test]
async fn definition_is_the_request_as_it_was_sent() {
    let service = Service::start().await;
    let request = new_job()
        .to_string()
        .replace(',', " ,\n")
        .replace("[1-100]", "[1-1.0e2]");
    let path = service.path("/jobs/j");
    service
        .call(Method::PUT, &path, Some(request.clone()))
        .await
        .is(201);
    let definition = service.get("/jobs/j/definition").await.is(200);
    assert_eq!(definition.header("content-type"), "application/json");
    assert_eq!(definition.body, request);
    service
        .get("/jobs/unknown/definition")
        .await
        .refuses(404, "ERROR: job_id {unknown} not found");
}

#[tokio::test]
async fn definition_hides_the_parameters_that_the_job_type_marks_as_secret() {
    let folder = tempfile::tempdir().unwrap();
    let definition = r#"
jobParametersSchema:
  type: object
  properties:
    user: {type: string}
    password: {type: string, writeOnly: true}
taskScript: '{taskClassifier: "W", taskApiVersion: 1, taskPipe: "in", taskData: {login: .parameters}}'
"#;
    std::fs::write(folder.path().join("export.yaml"), definition).unwrap();
    let types = JobTypes::load(folder.path(), |_| None).unwrap();
    let service = Service::start_configured(|options| options.job_types = types).await;
    let request = json!({"type": "export", "parameters": {"user": "ann", "password": "s3cret"}});
    service.put("j", &request).await.is(201);
    let shown = service.get("/jobs/j/definition").await.is(200).json();
    assert_eq!(
        shown,
        json!({"type": "export", "parameters": {"user": "ann", "password": "***"}})
    );
    // What the task needs is kept.
    service.cancel("j").await.is(204);
    let mut consumer = service.broker.consume("in", 2).await.unwrap();
    retry(&service, "j", &[]).await.is(200);
    let again = async {
        loop {
            let delivery = consumer.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            delivery.ack();
            let id = message.tracking.unwrap().job_task_id.unwrap();
            if id.ends_with("r2") {
                return message.task_data.unwrap();
            }
        }
    };
    let data = in_time("the message of the second round", again).await;
    assert!(String::from_utf8(data).unwrap().contains("s3cret"));
}
