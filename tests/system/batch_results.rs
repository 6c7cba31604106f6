//! The optional results of the batch worker, on RabbitMQ: off by default, of all batches, or of
//! empty batches only.

use std::collections::BTreeMap;

use batchwright::{Role, Stack, advanced::BatchResults};
use contract::{
    BatchTask, ReportStatus, TaskMessage, Tracking, TrackingReport, TrackingReportTask,
};
use framework::config::Route;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Servers, System};

const ID: &str = "p:j";

async fn fixture() -> Fixture {
    Fixture::new(Route::Direct, Servers::Real).await
}

/// Returns a batch as CAF's job service sends it. It names the batch pipe in capital letters, so no
/// worker consumes its sub-batches.
fn batch(fixture: &Fixture, batch_type: &str, definition: &str) -> TaskMessage {
    let task = BatchTask {
        batch_definition: Some(definition.to_owned()),
        batch_type: Some(batch_type.to_owned()),
        task_message_params: Some(BTreeMap::from([("region".to_owned(), "eu".to_owned())])),
        target_pipe: Some(fixture.pipe("items")),
        ..BatchTask::default()
    };
    let tracking = Tracking {
        job_task_id: Some(ID.to_owned()),
        tracking_pipe: Some(fixture.pipe("reports").into()),
        track_to: Some(fixture.pipe("end").into()),
        ..Tracking::default()
    };
    let message = TaskMessage::new("T", fixture.pipe("batch").to_uppercase(), &task).unwrap();
    TaskMessage {
        tracking: Some(tracking),
        correlation_id: Some("corr-42".into()),
        ..message
    }
}

/// Starts a batch worker that sends these results, and no worker that consumes its messages.
async fn batch_worker(fixture: &Fixture, results: BatchResults) -> System {
    let roles = vec![Role::JobService, Role::BatchWorker];
    let mut options = fixture.options();
    options.roles = roles;
    options.batch.results = results;
    options.batch.output = Some(fixture.pipe("batch-out"));
    fixture.start(Stack::new(options)).await
}

/// Takes messages until `count` different tasks have been seen. Returns them by task id; a broker
/// may deliver one twice.
async fn take(system: &System, pipe: &str, count: usize) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    system
        .take(pipe, |delivery| {
            let message: Value = serde_json::from_slice(&delivery.body()).unwrap();
            found.insert(message["taskId"].as_str().unwrap().to_owned(), message);
            found.len() < count
        })
        .await;
    found
}

fn payload(message: &Value) -> Value {
    let message = TaskMessage::decode(message.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&message.task_data.unwrap()).unwrap()
}

/// Waits until this task is reported complete.
async fn is_complete(system: &System, fixture: &Fixture, id: &str) {
    system
        .take(&fixture.pipe("reports"), |delivery| {
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            !task
                .tracking_reports
                .contains(&TrackingReport::new(id, ReportStatus::Complete))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_worker_sends_the_results_it_is_asked_for() {
    let fixture = fixture().await;
    let system = batch_worker(&fixture, BatchResults::All).await;
    system
        .publish(
            &fixture.pipe("batch"),
            batch(&fixture, "range", "7-8").encode(),
        )
        .await;
    let result = take(&system, &fixture.pipe("batch-out"), 1)
        .await
        .remove("T.3*")
        .unwrap();
    assert_eq!(payload(&result), json!({"batchTask": ID}));
    let (classifier, version, status) = (
        &result["taskClassifier"],
        &result["taskApiVersion"],
        &result["taskStatus"],
    );
    assert_eq!(
        (classifier, version, status),
        (&json!("BatchWorker"), &json!(1), &json!("RESULT_SUCCESS"))
    );
    assert_eq!(
        (&result["to"], &result["tracking"]),
        (&json!(fixture.pipe("batch-out")), &Value::Null)
    );
    is_complete(&system, &fixture, "p:j.3*").await;
    // Without a job, the result names the pipe of the items.
    let untracked = TaskMessage {
        tracking: None,
        task_id: "U".to_owned(),
        ..batch(&fixture, "range", "7-8")
    };
    system
        .publish(&fixture.pipe("batch"), untracked.encode())
        .await;
    let mut result = None;
    system
        .take(&fixture.pipe("batch-out"), |delivery| {
            let message: Value = serde_json::from_slice(&delivery.body()).unwrap();
            result = (message["taskId"] == "U.3*").then_some(message);
            result.is_none()
        })
        .await;
    assert_eq!(
        payload(&result.unwrap()),
        json!({"batchTask": fixture.pipe("items")})
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_can_be_limited_to_empty_batches() {
    let fixture = fixture().await;
    let system = batch_worker(&fixture, BatchResults::OnlyOfEmptyBatches).await;
    system
        .publish(
            &fixture.pipe("batch"),
            batch(&fixture, "range", "7-8").encode(),
        )
        .await;
    is_complete(&system, &fixture, "p:j.3*").await;
    let empty = TaskMessage {
        task_id: "E".to_owned(),
        ..batch(&fixture, "list", "[]")
    };
    system.publish(&fixture.pipe("batch"), empty.encode()).await;
    let results = take(&system, &fixture.pipe("batch-out"), 1).await;
    let result = results.values().next().unwrap();
    assert!(
        result["taskId"].as_str().unwrap().starts_with('E'),
        "{result}"
    );
    assert_eq!(payload(result), json!({"batchTask": ID}));
    system.stop().await;
}
