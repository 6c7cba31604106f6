//! What the batch worker sends and what the tracking worker makes of CAF's messages, on RabbitMQ, against CAF's wire format: one
//! test a line of the list of what must match. What every worker sends is tested in `framework/tests/wire_parity.rs`.

use std::collections::BTreeMap;

use batchwright::{BatchResults, Role, Stack, StackOptions};
use contract::rest::{NewJob, TaskState};
use contract::{
    BatchTask, JobStatus, JobTrackingEvent, OnFailure, RangeItem, ReportFailure, ReportStatus,
    SourceInfo, TaskData, TaskMessage, TaskStatus, Tracking, TrackingReport, TrackingReportTask,
};
use framework::broker::{HeaderValue, Outgoing};
use framework::config::Route;
use harness::wait_for;
use serde_json::{Value, json};

use crate::place::{Place, Servers, System};

const ID: &str = "p:j";

async fn place() -> Place {
    Place::new(Route::Direct, Servers::Real).await
}

/// A batch as CAF's job service sends it, for the batch pipe in capital letters: sub-batches go where nobody takes them.
fn batch(place: &Place, batch_type: &str, definition: &str) -> TaskMessage {
    let task = BatchTask {
        batch_definition: Some(definition.to_owned()),
        batch_type: Some(batch_type.to_owned()),
        task_message_params: Some(BTreeMap::from([("region".to_owned(), "eu".to_owned())])),
        target_pipe: Some(place.pipe("items")),
        ..BatchTask::default()
    };
    let tracking = Tracking {
        job_task_id: Some(ID.to_owned()),
        tracking_pipe: Some(place.pipe("reports")),
        track_to: Some(place.pipe("end")),
        ..Tracking::default()
    };
    let message = TaskMessage::new("T", place.pipe("batch").to_uppercase(), &task).unwrap();
    TaskMessage {
        tracking: Some(tracking),
        correlation_id: Some("corr-42".to_owned()),
        ..message
    }
}

/// A batch worker that sends such results, and nobody who takes what it sends.
async fn batch_worker(place: &Place, results: BatchResults) -> System {
    let roles = vec![Role::JobService, Role::BatchWorker];
    let mut options = place.options();
    options.roles = roles;
    options.batch.results = results;
    options.batch.output = Some(place.pipe("batch-out"));
    place.start(Stack::new(options)).await
}

/// Takes messages until so many different ones are there, by their task id. A broker may have one twice.
async fn take(system: &System, pipe: &str, count: usize) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    system
        .take(pipe, |delivery| {
            let message: Value = serde_json::from_slice(&delivery.body).unwrap();
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
async fn is_complete(system: &System, place: &Place, id: &str) {
    system
        .take(&place.pipe("reports"), |delivery| {
            let message = TaskMessage::decode(&delivery.body).unwrap();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            !task
                .tracking_reports
                .contains(&TrackingReport::new(id, ReportStatus::Complete))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_becomes_sub_batches_for_whom_it_was_for_itself() {
    let place = place().await;
    let system = batch_worker(&place, BatchResults::None).await;
    let sent = batch(&place, "range", "1-25");
    system.publish(&place.pipe("batch"), sent.encode()).await;
    let own_input = place.pipe("batch").to_uppercase();
    let parts = take(&system, &own_input, 3).await;
    for (number, definition) in [(1, "1-10"), (2, "11-20"), (3, "21-25")] {
        let part = &parts[&format!("T.{number}")];
        let mut expected = payload(&serde_json::to_value(&sent).unwrap());
        expected["batchDefinition"] = definition.into();
        assert_eq!(payload(part), expected);
        let (classifier, version, status) = (
            &part["taskClassifier"],
            &part["taskApiVersion"],
            &part["taskStatus"],
        );
        assert_eq!(
            (classifier, version, status),
            (&json!("BatchWorker"), &json!(1), &json!("NEW_TASK"))
        );
        assert_eq!(
            (&part["to"], &part["context"], &part["priority"]),
            (&json!(own_input), &json!({}), &Value::Null)
        );
        assert_eq!(
            (&part["sourceInfo"]["name"], &part["correlationId"]),
            (&json!("worker-batch"), &json!("corr-42"))
        );
        assert_eq!(part["tracking"]["jobTaskId"], format!("{ID}.{number}"));
        assert_eq!(part["tracking"]["trackTo"], place.pipe("end"));
    }
    is_complete(&system, &place, "p:j.4*").await;
    assert_eq!(
        system
            .running
            .broker()
            .depth(&place.pipe("batch-out"))
            .await
            .unwrap(),
        0
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_batch_becomes_items_for_its_target_pipe() {
    let place = place().await;
    let system = batch_worker(&place, BatchResults::None).await;
    system
        .publish(&place.pipe("batch"), batch(&place, "range", "7-8").encode())
        .await;
    let items = take(&system, &place.pipe("items"), 2).await;
    for (id, number) in [("T.1", 7), ("T.2", 8)] {
        assert_eq!(
            payload(&items[id]),
            json!({"number": number, "params": {"region": "eu"}})
        );
        assert_eq!(items[id]["to"], place.pipe("items"));
    }
    is_complete(&system, &place, "p:j.3*").await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_worker_that_is_asked_for_results_sends_them_and_is_done_there() {
    let place = place().await;
    let system = batch_worker(&place, BatchResults::All).await;
    system
        .publish(&place.pipe("batch"), batch(&place, "range", "7-8").encode())
        .await;
    let result = take(&system, &place.pipe("batch-out"), 1)
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
        (&json!(place.pipe("batch-out")), &Value::Null)
    );
    is_complete(&system, &place, "p:j.3*").await;
    // Without a job the result names where the items went.
    let untracked = TaskMessage {
        tracking: None,
        task_id: "U".to_owned(),
        ..batch(&place, "range", "7-8")
    };
    system
        .publish(&place.pipe("batch"), untracked.encode())
        .await;
    let mut result = None;
    system
        .take(&place.pipe("batch-out"), |delivery| {
            let message: Value = serde_json::from_slice(&delivery.body).unwrap();
            result = (message["taskId"] == "U.3*").then_some(message);
            result.is_none()
        })
        .await;
    assert_eq!(
        payload(&result.unwrap()),
        json!({"batchTask": place.pipe("items")})
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_worker_may_send_results_of_empty_batches_only() {
    let place = place().await;
    let system = batch_worker(&place, BatchResults::OnlyOfEmptyBatches).await;
    system
        .publish(&place.pipe("batch"), batch(&place, "range", "7-8").encode())
        .await;
    is_complete(&system, &place, "p:j.3*").await;
    let empty = TaskMessage {
        task_id: "E".to_owned(),
        ..batch(&place, "list", "[]")
    };
    system.publish(&place.pipe("batch"), empty.encode()).await;
    let results = take(&system, &place.pipe("batch-out"), 1).await;
    let result = results.values().next().unwrap();
    assert!(
        result["taskId"].as_str().unwrap().starts_with('E'),
        "{result}"
    );
    assert_eq!(payload(result), json!({"batchTask": ID}));
    system.stop().await;
}

/// A job of which CAF's workers do the tasks, and a tracking worker.
struct Tracked {
    place: Place,
    system: System,
    job_task_id: String,
}

impl Tracked {
    async fn start() -> Self {
        let place = place().await;
        let options = StackOptions {
            roles: vec![Role::JobService, Role::TrackingWorker],
            ..place.options()
        };
        let system = place.start(Stack::new(options)).await;
        let new_job = NewJob {
            on_failure: OnFailure::Continue,
            ..place.range(9)
        };
        system.client.put("j", &new_job).await.unwrap();
        let (start, _) = system.take_one(&place.pipe("batch")).await;
        let job_task_id = start.job_task_id().unwrap().to_owned();
        Self {
            place,
            system,
            job_task_id,
        }
    }

    /// A message of the task with this number on its way to `to`, as a worker of CAF's sends it through the tracking pipe.
    fn message(
        &self,
        task: u32,
        status: Option<TaskStatus>,
        to: Option<&str>,
        track_to: Option<&str>,
    ) -> TaskMessage {
        let tracking = Tracking {
            job_task_id: Some(format!("{}.{task}", self.job_task_id)),
            // Not to be checked now.
            last_status_check_time: Some(i64::MAX / 2),
            tracking_pipe: Some(self.place.pipe("tracking")),
            track_to: track_to.map(|pipe| self.place.pipe(pipe)),
            ..Tracking::default()
        };
        let item = RangeItem {
            number: 1,
            params: BTreeMap::new(),
        };
        let message = TaskMessage::new(format!("T.{task}"), "", &item).unwrap();
        TaskMessage {
            task_status: status,
            to: to.map(|pipe| self.place.pipe(pipe)),
            tracking: Some(tracking),
            ..message
        }
    }

    async fn send(&self, message: &TaskMessage) {
        self.system
            .publish(&self.place.pipe("tracking"), message.encode())
            .await;
    }

    /// Sends a payload to the tracking worker itself.
    async fn tell<T: TaskData>(&self, data: &T) {
        self.send(&TaskMessage::new("report", self.place.pipe("tracking"), data).unwrap())
            .await;
    }

    async fn report(&self, reports: Vec<TrackingReport>) {
        self.tell(&TrackingReportTask {
            tracking_reports: reports,
        })
        .await;
    }

    /// The message of this task that comes to a pipe.
    async fn forwarded(&self, pipe: &str, task_id: &str) -> TaskMessage {
        let mut found = None;
        self.system
            .take(&self.place.pipe(pipe), |delivery| {
                let message = TaskMessage::decode(&delivery.body).unwrap();
                found = (message.task_id == task_id).then_some(message);
                found.is_none()
            })
            .await;
        found.unwrap()
    }

    async fn state(&self, task: u32) -> Value {
        self.system
            .read(&format!("/jobs/j/tasks/{task}"))
            .await
            .body["status"]
            .clone()
    }

    async fn becomes(&self, task: u32, state: TaskState) {
        let expected = serde_json::to_value(state).unwrap();
        wait_for("the task", async || match self.state(task).await {
            state if state == expected => Ok(()),
            state => Err(format!("task {task} is {state}")),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxied_message_without_tracking_goes_on_as_it_is() {
    let tracked = Tracked::start().await;
    let mut message = tracked.message(1, Some(TaskStatus::NewTask), Some("next"), Some("end"));
    message.tracking.as_mut().unwrap().job_task_id = None;
    for (task_id, tracking) in [("no-job", message.tracking.clone()), ("untracked", None)] {
        let sent = TaskMessage {
            task_id: task_id.to_owned(),
            tracking,
            ..message.clone()
        };
        tracked.send(&sent).await;
        assert_eq!(tracked.forwarded("next", task_id).await, sent);
    }
    tracked.system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxied_message_that_is_no_failure_completes_its_task_where_its_tracking_ends_and_only_there()
 {
    let tracked = Tracked::start().await;
    let statuses = [
        TaskStatus::NewTask,
        TaskStatus::ResultSuccess,
        TaskStatus::ResultFailure,
    ];
    for (task, status) in (1..).zip(statuses) {
        let sent = tracked.message(task, Some(status), Some("next"), Some("end"));
        tracked.send(&sent).await;
        assert_eq!(
            tracked.forwarded("next", &sent.task_id).await,
            sent,
            "it is not there yet"
        );
        assert_ne!(tracked.state(task).await, "Completed");
        let mut sent = tracked.message(task, Some(status), Some("end"), Some("end"));
        let tracking = sent.tracking.as_mut().unwrap();
        tracking.track_to = tracking.track_to.as_ref().map(|pipe| pipe.to_uppercase());
        tracked.send(&sent).await;
        assert_eq!(
            tracked.forwarded("end", &sent.task_id).await,
            TaskMessage {
                tracking: None,
                ..sent
            }
        );
        tracked.becomes(task, TaskState::Completed).await;
    }
    // For nobody, and tracked to nowhere: it has only come to be counted.
    tracked
        .send(&tracked.message(4, Some(TaskStatus::ResultSuccess), None, None))
        .await;
    tracked.becomes(4, TaskState::Completed).await;
    let job = tracked.system.job("j").await;
    assert_eq!(
        (job.completed_items, job.failed_tasks),
        (4, 0),
        "a negative result is a result"
    );
    tracked.system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxied_failure_fails_its_task_and_goes_on() {
    let tracked = Tracked::start().await;
    let source = |name: Option<&str>| SourceInfo {
        name: name.map(str::to_owned),
        version: None,
    };
    for (task, status, source_info, text, told_source) in [
        (
            1,
            TaskStatus::ResultException,
            Some(source(Some("worker-x"))),
            "boom",
            "worker-x",
        ),
        (
            2,
            TaskStatus::InvalidTask,
            Some(source(None)),
            "Task failed validation",
            "Unknown - worker name not set",
        ),
        (
            3,
            TaskStatus::InvalidTask,
            None,
            "Task failed validation",
            "Unknown - no source info",
        ),
    ] {
        let data = Some(text.as_bytes().to_vec());
        let sent = TaskMessage {
            source_info,
            task_data: data,
            ..tracked.message(task, Some(status), Some("next"), Some("end"))
        };
        tracked.send(&sent).await;
        assert_eq!(tracked.forwarded("next", &sent.task_id).await, sent);
        tracked.becomes(task, TaskState::Failed).await;
        let job = tracked.system.job("j").await;
        let failure = job
            .failures
            .iter()
            .find(|failure| failure.task_id == task.to_string())
            .unwrap();
        let told = (
            failure.failure_id.as_deref(),
            failure.failure_source.as_deref(),
            failure.failure_message.as_deref(),
        );
        assert_eq!(told, (Some(status.name()), Some(told_source), Some(text)));
    }
    tracked.system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxied_message_without_a_status_fails_its_task_when_its_header_says_that_it_was_given_up()
 {
    let tracked = Tracked::start().await;
    let pipe = tracked.place.pipe("tracking");
    let mut given_up = Outgoing::new(
        &*pipe,
        tracked.message(1, None, Some("next"), Some("end")).encode(),
    );
    given_up.headers.set(
        "x-caf-worker-rejected",
        HeaderValue::Text("RETRIES_EXCEEDED".to_owned()),
    );
    given_up
        .headers
        .set("x-caf-worker-retry", HeaderValue::Text("3".to_owned()));
    tracked
        .system
        .running
        .broker()
        .publish(given_up)
        .await
        .unwrap();
    tracked.forwarded("next", "T.1").await;
    tracked.becomes(1, TaskState::Failed).await;
    let failure = tracked.system.job("j").await.failures.remove(0);
    assert_eq!(failure.failure_id.as_deref(), Some("x-caf-worker-rejected"));
    assert_eq!(
        failure.failure_message.as_deref(),
        Some("RETRIES_EXCEEDED. Execution of this job task was retried 3 times.")
    );
    // Without the header it says nothing.
    tracked
        .send(&tracked.message(2, None, Some("next"), Some("end")))
        .await;
    tracked.forwarded("next", "T.2").await;
    assert_eq!(tracked.system.job("j").await.failed_tasks, 1);
    tracked.system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_cafs_workers_are_counted() {
    let tracked = Tracked::start().await;
    let id = |task: u32| format!("{}.{task}", tracked.job_task_id);
    let new = |task: u32, status| TrackingReport::new(id(task), status);
    let failure = ReportFailure {
        failure_id: Some("RESULT_EXCEPTION".to_owned()),
        ..ReportFailure::default()
    };
    tracked
        .report(vec![
            new(1, ReportStatus::Progress),
            new(1, ReportStatus::Complete),
            TrackingReport {
                retries: Some(3),
                ..new(2, ReportStatus::Retry)
            },
            TrackingReport {
                estimated_percentage_completed: 40,
                ..new(3, ReportStatus::Progress)
            },
            TrackingReport::failed(id(4), failure),
        ])
        .await;
    for (task, state) in [
        (1, TaskState::Completed),
        (2, TaskState::Retrying),
        (3, TaskState::Active),
        (4, TaskState::Failed),
    ] {
        tracked.becomes(task, state).await;
    }
    // The size of the split may come last, and what was tried again may be done after all.
    tracked
        .report(vec![
            new(2, ReportStatus::Complete),
            new(3, ReportStatus::Complete),
            TrackingReport::new(
                format!("{}.5*", tracked.job_task_id),
                ReportStatus::Complete,
            ),
        ])
        .await;
    let job = tracked.system.ended("j").await;
    assert_eq!(
        (job.status, job.completed_items, job.failed_tasks),
        (JobStatus::Failed, 3, 1)
    );
    tracked.system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_tells_the_progress_of_a_task_and_zero_tells_nothing() {
    let tracked = Tracked::start().await;
    let event = |percent| JobTrackingEvent {
        job_task_id: tracked.job_task_id.clone(),
        estimated_percentage_completed: percent,
    };
    tracked.tell(&event(0)).await;
    tracked.tell(&event(40)).await;
    let job = wait_for("the progress", async || {
        let job = tracked.system.job("j").await;
        if job.percentage_complete > 0.0 {
            Ok(job)
        } else {
            Err(format!("{job:?}"))
        }
    });
    let job = job.await;
    assert_eq!(
        (job.percentage_complete, job.status),
        (40.0, JobStatus::Active)
    );
    tracked.system.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_without_a_partition_is_of_the_default_one() {
    let tracked = Tracked::start().await;
    let client =
        batchwright::client::Client::new(&tracked.system.running.api_url(), "default").unwrap();
    client.put("old", &tracked.place.range(1)).await.unwrap();
    tracked
        .report(vec![TrackingReport::new("old", ReportStatus::Complete)])
        .await;
    wait_for("the job to be done", async || {
        match client.get("old").await.unwrap().status {
            JobStatus::Completed => Ok(()),
            status => Err(format!("{status}")),
        }
    })
    .await;
    tracked.system.stop().await;
}
