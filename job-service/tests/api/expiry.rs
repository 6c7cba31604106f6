//! How long jobs are kept after their end.

use contract::rest::{Expiry, ExpiryPolicy, Policer};
use harness::wait_for;
use serde_json::{Value, json};
use store::EventKind;

use crate::service::{Service, new_job};

fn with_expiry(expiry: Value) -> Value {
    let mut job = new_job();
    job["expiry"] = expiry;
    job
}

async fn is_gone(service: &Service, job: &str) {
    wait_for(&format!("{job} to be deleted"), async || {
        let answer = service.get(&format!("/jobs/{job}")).await;
        if answer.status == 404 {
            Ok(())
        } else {
            Err(answer.body)
        }
    })
    .await;
}

#[tokio::test]
async fn default_expiry_applies_where_the_request_has_none() {
    let policy = |text: &str| {
        Some(ExpiryPolicy {
            expiry_time: text.into(),
            policer: Some(Policer::System),
            ..Default::default()
        })
    };
    let expiry = Expiry {
        completed: policy("lastUpdateTime+P7D"),
        failed: policy("createTime+PT1S"),
        cancelled: None,
    };
    let service = Service::start_configured(|options| options.expiry = expiry).await;
    service.put("bare", &new_job()).await.is(201);
    let expected = json!({
        "Completed": {"expiryTime": "lastUpdateTime+P7D", "operation": "Delete", "policer": "System"},
        "Failed": {"expiryTime": "createTime+PT1S", "operation": "Delete", "policer": "System"},
    });
    assert_eq!(service.get("/jobs/bare").await.json()["expiry"], expected);
    service
        .put(
            "own",
            &with_expiry(json!({"Failed": {"expiryTime": "none"}})),
        )
        .await
        .is(201);
    let expected = json!({
        "Completed": {"expiryTime": "lastUpdateTime+P7D", "operation": "Delete", "policer": "System"},
        "Failed": {"expiryTime": "none", "operation": "Delete", "policer": "User"},
    });
    assert_eq!(service.get("/jobs/own").await.json()["expiry"], expected);
    assert_eq!(service.get("/jobs").await.json()[0]["expiry"], expected);
    for job in ["own", "bare"] {
        service
            .report(
                job,
                "",
                EventKind::Failed(contract::ReportFailure::default()),
            )
            .await;
    }
    is_gone(&service, "bare").await;
    service.get("/jobs/own").await.is(200);
}

#[tokio::test]
async fn expiry_is_part_of_the_request() {
    let service = Service::start().await;
    let policy = json!({"Completed": {"expiryTime": "lastUpdateTime+P1D"}});
    service.put("j", &with_expiry(policy)).await.is(201);
    let spelled = json!({"Completed": {"operation": "Delete", "expiryTime": "lastUpdateTime+P1D", "policer": "System"}});
    service.put("j", &with_expiry(spelled)).await.is(204);
    service
        .put(
            "j",
            &with_expiry(json!({"Completed": {"expiryTime": "lastUpdateTime+P2D"}})),
        )
        .await
        .is(403);
    service.put("j", &new_job()).await.is(403);
    service.put("k", &new_job()).await.is(201);
    for nothing in [json!(null), json!({})] {
        service.put("k", &with_expiry(nothing)).await.is(204);
    }
}

#[tokio::test]
async fn invalid_expiry_is_refused() {
    let service = Service::start().await;
    for (expiry, text) in [
        (
            json!({"Failed": {"expiryTime": "createTime+PT9H", "operation": "Expire"}}),
            "The expiry of a Failed job is not supported: this service can delete a job, not mark it as expired.",
        ),
        (
            json!({"Completed": {"expiryTime": "lastUpdateTime+P1M"}}),
            "The expiry of a Completed job is not valid: 'P1M' is not a time span; expected weeks, days, hours, minutes and seconds",
        ),
        (
            json!({"Completed": {"expiryTime": "tomorrow"}}),
            "The expiry of a Completed job is not valid: 'tomorrow' is not an expiry time;",
        ),
        (
            json!({"Completed": {}}),
            "The body is not a job: missing field `expiryTime`",
        ),
        (
            json!({"Active": {"expiryTime": "none"}}),
            "The body is not a job: unknown field `Active`",
        ),
        (
            json!({"Failed": {"expiryTime": "none", "operation": "Burn"}}),
            "The body is not a job: unknown variant `Burn`",
        ),
        (
            json!("none"),
            "The body is not a job: invalid type: string \"none\"",
        ),
    ] {
        let refusal = service.put("j", &with_expiry(expiry)).await.is(400).error();
        assert!(refusal.starts_with(text), "{refusal}");
    }
}
