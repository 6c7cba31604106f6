//! Creating jobs whose id the service makes, once for each key, and running jobs again as new ones.

use contract::{JobId, TaskMessage};
use framework::broker::Broker;
use harness::in_time;
use job_service::JobTypes;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, Service, new_job};

async fn post(service: &Service, path: &str, key: Option<&str>, body: &Value) -> Answer {
    let request = service.request(Method::POST, &service.path(path));
    let request = match key {
        Some(key) => request.header("Idempotency-Key", key),
        None => request,
    };
    Answer::of(request.body(body.to_string())).await
}

fn id_of(answer: &Answer) -> String {
    answer.json()["jobId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn service_makes_an_id_and_a_repeated_key_names_the_same_job() {
    let service = Service::start().await;
    let first = post(&service, "/jobs", None, &new_job()).await.is(201);
    let id = id_of(&first);
    assert!(JobId::parse(&id).is_ok());
    assert_eq!(
        first.header("location"),
        service.url(&format!("/jobs/{id}"))
    );
    let second = post(&service, "/jobs/", None, &new_job()).await.is(201);
    assert_ne!(id_of(&second), id);

    let keyed = post(&service, "/jobs", Some("k 1"), &new_job())
        .await
        .is(201);
    let again = post(&service, "/jobs", Some("k 1"), &new_job())
        .await
        .is(200);
    assert_eq!(again.json(), keyed.json());
    assert_eq!(again.header("location"), keyed.header("location"));
    let id = id_of(&keyed);
    let mut other = new_job();
    other["name"] = json!("Other");
    let refused = post(&service, "/jobs", Some("k 1"), &other).await;
    refused.refuses(
        422,
        &format!(
            "The Idempotency-Key 'k 1' belongs to another request, which created the job '{id}'. Give each request a key of its own, \
             and repeat a request unchanged."
        ),
    );
    assert_eq!(
        refused.header("x-batchwright-error"),
        "IDEMPOTENCY_KEY_TAKEN"
    );
}

#[tokio::test]
async fn impossible_keys_and_jobs_are_refused_and_leave_nothing() {
    let service = Service::start().await;
    let long = "k".repeat(256);
    for key in ["", " ", &long, "a\tb"] {
        post(&service, "/jobs", Some(key), &new_job()).await.refuses(
            400,
            "The header 'Idempotency-Key' must be there once, with 1 to 255 visible ASCII characters.",
        );
    }
    let twice = service
        .request(Method::POST, &service.path("/jobs"))
        .header("Idempotency-Key", "a")
        .header("Idempotency-Key", "b");
    Answer::of(twice.body(new_job().to_string())).await.is(400);
    post(&service, "/jobs", Some("k"), &json!({}))
        .await
        .refuses(400, "The task has not been specified.");
    let unknown = json!({"task": new_job()["task"], "nmae": "x"});
    post(&service, "/jobs?strict=true", Some("k"), &unknown)
        .await
        .refuses(
            400,
            "The field 'nmae' is unknown. Correct or remove it; without 'strict=true', it is ignored.",
        );
    assert_eq!(service.get("/jobs").await.json(), json!([]));
    // The key is free, because nothing was created.
    let created = post(&service, "/jobs", Some("k"), &unknown).await.is(201);
    assert_eq!(
        created.json()["notes"],
        json!(["The field 'nmae' is unknown and was ignored."])
    );
}

#[tokio::test]
async fn job_is_replaced_once_it_has_ended() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let same = json!({"sameId": true});
    post(&service, "/jobs/j/resubmit", None, &same)
        .await
        .refuses(
            409,
            "job_id {j} cannot be replaced as it has a status of {Waiting}. Cancel it first, or resubmit it under another id.",
        );
    service.cancel("j").await.is(204);
    let before = service.get("/jobs/j").await.json();
    let mut consumer = service.broker.consume("batch-in", 3).await.unwrap();
    let answer = post(&service, "/jobs/j:resubmit", Some("k"), &same).await;
    assert_eq!(answer.is(201).json(), json!({"jobId": "j"}));
    let after = service.get("/jobs/j").await.json();
    assert_ne!(after["incarnation"], before["incarnation"]);
    // A repeated request with the key does not replace it again.
    let again = post(&service, "/jobs/j:resubmit", Some("k"), &same).await;
    assert_eq!(again.is(200).json(), json!({"jobId": "j"}));
    let own = format!("{}:j!{}", service.partition, after["incarnation"]);
    let started = async {
        loop {
            let delivery = consumer.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            delivery.ack();
            if message.tracking.unwrap().job_task_id.as_deref() == Some(&own) {
                return;
            }
        }
    };
    in_time("the start message of the new incarnation", started).await;
}

#[tokio::test]
async fn resubmitted_job_is_like_the_first_one() {
    let service = Service::start().await;
    let mut request = new_job();
    request["delay"] = json!(3600);
    request["prerequisiteJobIds"] = json!(["other"]);
    request["onFailure"] = json!("continue");
    request["retry"] = json!({"policy": "jobweaver", "attempts": 3});
    request["expiry"] =
        json!({"Completed": {"operation": "Delete", "expiryTime": "lastUpdateTime+P1D"}});
    service.put("j", &request).await.is(201);
    // A job may be resubmitted whatever its status.
    let answer = post(
        &service,
        "/jobs/j/resubmit",
        None,
        &json!({"jobId": "new", "colour": 1}),
    )
    .await
    .is(201);
    assert_eq!(
        answer.json(),
        json!({"jobId": "new", "notes": ["The field 'colour' is unknown and was ignored."]})
    );
    assert_eq!(answer.header("location"), service.url("/jobs/new"));
    let of = async |job: &str| {
        let mut json = service.get(&format!("/jobs/{job}")).await.is(200).json();
        for own in [
            "id",
            "incarnation",
            "createTime",
            "lastUpdateTime",
            "correlationId",
        ] {
            json.as_object_mut().unwrap().remove(own);
        }
        json
    };
    assert_eq!(of("new").await, of("j").await);
    let definition = service.get("/jobs/new/definition").await.is(200);
    assert_eq!(definition.body, request.to_string());
    // It is the same request as a PUT of the definition, and creates no second job.
    service.put("new", &request).await.is(204);
    let named = json!({"jobId": "new"});
    let again = post(&service, "/jobs/j/resubmit", None, &named)
        .await
        .is(200);
    assert_eq!(again.json(), json!({"jobId": "new"}));
    let made = post(&service, "/jobs/j/resubmit", None, &json!({}))
        .await
        .is(201);
    assert_eq!(of(&id_of(&made)).await, of("j").await);
    // The source of a key's request counts.
    post(&service, "/jobs/j/resubmit", Some("k"), &json!({}))
        .await
        .is(201);
    post(&service, "/jobs/new/resubmit", Some("k"), &json!({}))
        .await
        .is(422);
}

#[tokio::test]
async fn repeated_key_names_the_same_job_also_when_the_one_it_was_made_from_is_gone() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let resubmit =
        async |key: &str, body: Value| post(&service, "/jobs/j/resubmit", Some(key), &body).await;
    let made = id_of(&resubmit("k", json!({})).await.is(201));
    service.delete("j").await.is(204);
    assert_eq!(id_of(&resubmit("k", json!({})).await.is(200)), made);
    // Neither another key nor another request.
    resubmit("other", json!({})).await.is(404);
    resubmit("k", json!({"jobId": "x"})).await.is(422);
    service.delete(&made).await.is(204);
    resubmit("k", json!({})).await.is(404);
}

#[tokio::test]
async fn job_that_cannot_be_resubmitted_says_why() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let mut other = new_job();
    other["name"] = json!("Other");
    service.put("other", &other).await.is(201);
    for (path, body, status, message) in [
        (
            "/jobs/unknown/resubmit",
            json!({}),
            404,
            "ERROR: job_id {unknown} not found",
        ),
        (
            "/jobs/j/resubmit",
            json!({"jobId": "other"}),
            403,
            "Job already exists",
        ),
        (
            "/jobs/j/resubmit",
            json!({"jobId": "a:b"}),
            400,
            "The job identifier contains one or more invalid characters.",
        ),
        (
            "/jobs/j/resubmit",
            json!({"jobId": "j"}),
            400,
            "The 'jobId' is that of the job itself. Send another id, or \"sameId\": true to replace the job once it has ended.",
        ),
        (
            "/jobs/j/resubmit",
            json!({"jobId": "x", "sameId": true}),
            400,
            "The body has both 'jobId' and 'sameId'. Send the id of the new job, or \"sameId\": true to replace this one.",
        ),
        (
            "/jobs/j/resubmit?strict=true",
            json!({"same": true}),
            400,
            "The field 'same' is unknown. Correct or remove it; without 'strict=true', it is ignored.",
        ),
        (
            "/jobs/j/resubmit",
            json!([]),
            400,
            "The body cannot be understood: invalid type: sequence, expected a map at line 1 column 0.",
        ),
    ] {
        let answer = post(&service, path, None, &body).await;
        answer.refuses(status, message);
    }
    assert_eq!(service.get("/jobs").await.job_ids().len(), 2);
}

#[tokio::test]
async fn operation_may_follow_a_colon() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    service.cancel("j").await.is(204);
    let none = json!({});
    for (path, status) in [
        ("/jobs/j:retry?dependents=true", 200),
        ("/jobs/j%3Aretry", 409),
        ("/jobs/j:retry/", 409),
        ("/jobs/j:resubmit", 201),
        ("/jobs/unknown:retry", 404),
        ("/jobs/a*b:retry", 400),
        ("/jobs/:retry", 405),
        ("/jobs/j:cancel", 405),
        ("/jobs/j:retry:retry", 400),
    ] {
        let answer = post(&service, path, None, &none).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    // A partition may have any name.
    let path = format!("{}/partitions/jobs/jobs:retry", job_service::BASE_PATH);
    let all = service.call(Method::POST, &path, None).await.is(200);
    assert_eq!(all.json()["jobsRetried"], 0);
    // Only POST.
    service.get("/jobs/j:retry").await.is(400);
}

#[tokio::test]
async fn job_type_builds_the_task_again_with_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let definition = r#"
jobParametersSchema:
  type: object
  properties:
    password: {type: string, writeOnly: true}
taskScript: '{taskClassifier: "W", taskApiVersion: 1, taskPipe: "in", taskData: {login: .parameters}}'
"#;
    std::fs::write(folder.path().join("export.yaml"), definition).unwrap();
    let types = JobTypes::load(folder.path(), |_| None).unwrap();
    let service = Service::start_configured(|options| options.job_types = types).await;
    let request = json!({"type": "export", "parameters": {"password": "s3cret"}});
    service.put("j", &request).await.is(201);
    let named = json!({"jobId": "k"});
    let answer = post(&service, "/jobs/j/resubmit", None, &named)
        .await
        .is(201);
    assert!(!answer.body.contains("s3cret"));
    let mut consumer = service.broker.consume("in", 2).await.unwrap();
    for _ in 0..2 {
        let delivery = in_time("a start message", consumer.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        delivery.ack();
        let data = String::from_utf8(message.task_data.unwrap()).unwrap();
        assert_eq!(data, r#"{"login":{"password":"s3cret"}}"#);
    }
    let shown = service.get("/jobs/k/definition").await.is(200);
    assert_eq!(shown.json()["parameters"]["password"], "***");
}
