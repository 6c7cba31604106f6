//! How a worker handles the messages of a paused job.

use std::sync::Arc;
use std::time::Duration;

use contract::{PAUSED_PIPE, RangeItem, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Delivery, HeaderValue, Outgoing};
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

/// The path of the status of the job.
const STATUS: &str = "/job-service/v1/partitions/p/jobs/j/status";

/// Returns each item unchanged once the semaphore admits it.
struct Echo(Arc<Semaphore>);

impl Worker for Echo {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        drop(self.0.acquire().await?);
        ctx.check_cancelled()?;
        Ok(Reply::send(item))
    }
}

/// A worker on its own broker, and a mock of the job service for its status checks.
struct Fixture {
    pipes: Memory,
    jobs: MockServer,
    gate: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Fixture {
    async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_worker(Echo, change).await
    }

    async fn start_worker<W: Worker>(
        worker: impl FnOnce(Arc<Semaphore>) -> W,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings {
            output: Some("out".to_owned()),
            concurrency: 1,
            ..Settings::new("w")
        };
        change(&mut settings);
        let (pipes, gate, stop) = (
            Memory::new(),
            Arc::new(Semaphore::new(1)),
            CancellationToken::new(),
        );
        let ready =
            Runtime::new(settings, Arc::new(pipes.clone())).worker(worker(Arc::clone(&gate)));
        let (tasks, until) = (TaskTracker::new(), stop.clone());
        tasks.spawn(async move { ready.run_until(until).await });
        Self {
            pipes,
            jobs: MockServer::start().await,
            gate,
            tasks,
            stop: stop.drop_guard(),
        }
    }

    /// Makes the job service return this status from now on.
    async fn job_is(&self, status: &str) {
        self.jobs.reset().await;
        // The worker may cache `Paused` for a while; it must check any other status each time.
        let cache = if status == "Paused" {
            "no-transform, max-age=70"
        } else {
            "no-transform, max-age=0"
        };
        let answer = ResponseTemplate::new(200)
            .set_body_json(status)
            .insert_header("cache-control", cache);
        Mock::given(path(STATUS))
            .respond_with(answer)
            .mount(&self.jobs)
            .await;
    }

    fn item(&self, number: u64) -> TaskMessage {
        let tracking = Tracking {
            job_task_id: Some(format!("p:j.{number}")),
            status_check_url: Some((self.jobs.uri() + STATUS).into()),
            ..Tracking::default()
        };
        let item = RangeItem {
            number,
            params: [].into(),
        };
        TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t", "w-in", &item).unwrap()
        }
    }

    async fn send(&self, message: &TaskMessage) {
        self.pipes
            .publish(Outgoing::new("w-in", message.encode()))
            .await
            .unwrap();
    }

    async fn next(&self, pipe: &str) -> Delivery {
        let mut consumer = self.pipes.consume(pipe, 1).await.unwrap();
        harness::in_time("a delivery", consumer.next())
            .await
            .unwrap()
    }

    /// Returns the number of the next item in a pipe.
    async fn next_item(&self, pipe: &str) -> u64 {
        let delivery = self.next(pipe).await;
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        delivery.ack();
        serde_json::from_slice::<RangeItem>(&message.task_data.unwrap())
            .unwrap()
            .number
    }
}

#[tokio::test]
async fn task_of_a_paused_job_goes_to_the_paused_pipe_unchanged() {
    let fixture = Fixture::start(|_| {}).await;
    fixture.job_is("Paused").await;
    let mut sent: Value = serde_json::from_slice(&fixture.item(1).encode()).unwrap();
    sent["new"] = serde_json::json!([1, null]);
    sent["priority"] = 7.into();
    let mut message = Outgoing::new("w-in", serde_json::to_vec(&sent).unwrap());
    message
        .headers
        .set("x-batchwright-attempts", HeaderValue::Integer(2));
    message
        .headers
        .set("x-note", HeaderValue::Text("kept".into()));
    fixture.pipes.publish(message.clone()).await.unwrap();
    let delivery = fixture.next(PAUSED_PIPE).await;
    let mut paused: Value = serde_json::from_slice(&delivery.body()).unwrap();
    assert!(
        paused["tracking"]["lastStatusCheckTime"]
            .take()
            .as_i64()
            .unwrap()
            > 0
    );
    assert_eq!(
        paused["tracking"]["statusCheckIntervalMillis"].take(),
        70_000
    );
    sent["tracking"]["statusCheckIntervalMillis"].take();
    assert_eq!(paused, sent);
    assert_eq!(delivery.headers, message.headers);
    delivery.ack();
    assert_eq!(fixture.pipes.depth("out").await.unwrap(), 0);
}

#[tokio::test]
async fn task_of_a_paused_job_runs_where_there_is_no_paused_pipe() {
    let fixture = Fixture::start(|settings| settings.paused = None).await;
    fixture.job_is("Paused").await;
    fixture.send(&fixture.item(1)).await;
    assert_eq!(fixture.next_item("out").await, 1);
}

#[tokio::test]
async fn diverted_message_of_a_paused_job_is_forwarded() {
    let fixture = Fixture::start(|_| {}).await;
    fixture.job_is("Paused").await;
    fixture
        .send(&TaskMessage {
            to: Some("elsewhere".into()),
            ..fixture.item(1)
        })
        .await;
    assert_eq!(fixture.next_item("elsewhere").await, 1);
}

#[tokio::test]
async fn pause_stops_waiting_tasks_only_and_returned_tasks_run() {
    let fixture = Fixture::start(|_| {}).await;
    fixture.job_is("Active").await;
    fixture.gate.forget_permits(1);
    // The first item runs; the others wait for the only slot.
    for number in 1..=3 {
        fixture.send(&fixture.item(number)).await;
    }
    let waiting = async || match fixture.jobs.received_requests().await.unwrap().len() {
        0 => Err("no status check".to_owned()),
        _ => Ok(()),
    };
    harness::wait_for("the first to be checked", waiting).await;
    fixture.job_is("Paused").await;
    fixture.gate.add_permits(1);
    assert_eq!(fixture.next_item("out").await, 1);
    let (second, third) = (
        fixture.next(PAUSED_PIPE).await,
        fixture.next(PAUSED_PIPE).await,
    );
    // The job is resumed, but the worker still has `Paused` in its cache. The returned messages
    // carry the time of their status check, so the worker runs them instead of diverting them
    // again.
    fixture.job_is("Active").await;
    for delivery in [second, third] {
        fixture
            .pipes
            .publish(Outgoing::new("w-in", delivery.body()))
            .await
            .unwrap();
        delivery.ack();
    }
    assert_eq!(
        (
            fixture.next_item("out").await,
            fixture.next_item("out").await
        ),
        (2, 3)
    );
    drop(fixture.stop);
    fixture.tasks.close();
    fixture.tasks.wait().await;
}

/// Takes long, can begin anew, and gives its slot back while its job is paused.
struct Restartable(Arc<Semaphore>);

impl Worker for Restartable {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        tokio::select! {
            admitted = self.0.acquire() => admitted?.forget(),
            () = ctx.paused() => return Err(TaskError::snooze(Duration::from_millis(400))),
        }
        Ok(Reply::send(item))
    }
}

#[tokio::test]
async fn running_task_learns_of_the_pause_of_its_job_and_waits_in_the_paused_pipe() {
    let fixture = Fixture::start_worker(Restartable, |_| {}).await;
    fixture.job_is("Active").await;
    fixture.gate.forget_permits(1);
    fixture.send(&fixture.item(1)).await;
    let checked = async || match fixture.jobs.received_requests().await.unwrap().len() {
        0 => Err("no status check".to_owned()),
        _ => Ok(()),
    };
    harness::wait_for("the task to be checked", checked).await;
    fixture.job_is("Paused").await;
    framework::announcement::announce(&fixture.pipes, vec!["p:j".to_owned()])
        .await
        .unwrap();
    assert_eq!(fixture.next_item(PAUSED_PIPE).await, 1);
    assert_eq!(fixture.pipes.depth("out").await.unwrap(), 0);
}
