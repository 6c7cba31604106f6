//! What a worker does with a task that waits for a condition.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contract::headers::{
    BLOCKED_PIPE_HEADER, BLOCKS_HEADER, CONDITION_HEADER, EVERY_CONDITION, FULL_CONDITIONS_HEADER,
    LABEL_HEADER,
};
use contract::{Condition, ConditionCode, RangeItem, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Delivery, HeaderValue, Headers, Outgoing};
use framework::{Context, NoOutput, Reply, RetryPolicy, Runtime, Settings, TaskError, Worker};
use tokio_util::sync::{CancellationToken, DropGuard};
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

const STATUS: &str = "/job-service/v1/partitions/p/jobs/j/status";

fn condition() -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE).because("no route to host")
}

/// Says of each task that it waits for a database, and counts the runs.
struct Away(Arc<AtomicUsize>);

impl Worker for Away {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(TaskError::blocked(condition()))
    }
}

/// A worker on its own broker, and a mock of the job service.
struct Fixture {
    pipes: Memory,
    jobs: MockServer,
    runs: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Fixture {
    async fn start() -> Self {
        let settings = Settings {
            retry: RetryPolicy::none(),
            concurrency: 1,
            ..Settings::new("w")
        };
        let (pipes, runs, stop) = (Memory::new(), Arc::default(), CancellationToken::new());
        let worker = Away(Arc::clone(&runs));
        let ready = Runtime::new(settings, Arc::new(pipes.clone())).worker(worker);
        let until = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "the token stops it")]
        tokio::spawn(async move { ready.run_until(until).await });
        Self {
            pipes,
            jobs: MockServer::start().await,
            runs,
            _stop: stop.drop_guard(),
        }
    }

    /// Makes the job service answer like this from now on.
    async fn job_is(&self, status: &str, headers: &[(&'static str, String)]) {
        self.jobs.reset().await;
        let answer = ResponseTemplate::new(200)
            .set_body_json(status)
            .insert_header("cache-control", "no-transform, max-age=0");
        let answer = headers.iter().fold(answer, |answer, (name, value)| {
            answer.insert_header(*name, value.as_str())
        });
        Mock::given(path(STATUS))
            .respond_with(answer)
            .mount(&self.jobs)
            .await;
    }

    fn item(&self, tracked: bool) -> Vec<u8> {
        let tracking = Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            status_check_url: Some((self.jobs.uri() + STATUS).into()),
            tracking_pipe: Some("tracking".into()),
            ..Tracking::default()
        };
        let item = RangeItem {
            number: 1,
            params: [].into(),
        };
        let message = TaskMessage {
            tracking: tracked.then_some(tracking),
            ..TaskMessage::new("t", "w-in", &item).unwrap()
        };
        message.encode()
    }

    async fn send(&self, body: Vec<u8>, headers: Headers) {
        let message = Outgoing {
            headers,
            ..Outgoing::new("w-in", body)
        };
        self.pipes.publish(message).await.unwrap();
    }

    async fn next(&self, pipe: &str) -> Delivery {
        let mut consumer = self.pipes.consume(pipe, 1).await.unwrap();
        harness::in_time("a delivery", consumer.next())
            .await
            .unwrap()
    }
}

fn pipe() -> (&'static str, String) {
    (BLOCKED_PIPE_HEADER, "waiting".to_owned())
}

#[tokio::test]
async fn blocked_task_goes_to_the_pipe_of_the_job_service_counted_and_with_its_label() {
    let fixture = Fixture::start().await;
    fixture.job_is("Active", &[pipe()]).await;
    let body = fixture.item(true);
    let mut headers = Headers::default();
    headers.set("x-note", HeaderValue::Text("kept".into()));
    for blocks in 1..=2 {
        fixture.send(body.clone(), headers.clone()).await;
        let waiting = fixture.next("waiting").await;
        assert_eq!(waiting.body(), body);
        headers = waiting.headers.clone();
        assert_eq!(
            headers.get(BLOCKS_HEADER),
            Some(&HeaderValue::Integer(blocks))
        );
        let json = HeaderValue::Text(condition().to_json().into());
        assert_eq!(headers.get(CONDITION_HEADER), Some(&json));
        assert_eq!(
            headers.get("x-note"),
            Some(&HeaderValue::Text("kept".into()))
        );
        let label = HeaderValue::Text("number 1".into());
        assert_eq!(headers.get(LABEL_HEADER), Some(&label));
        assert_eq!(headers.iter().count(), 4, "no attempt is counted");
        waiting.ack();
    }
    for pipe in ["tracking", "w-reject", "w-in"] {
        assert_eq!(fixture.pipes.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
}

#[tokio::test]
async fn worker_keeps_a_task_whose_condition_takes_no_more_and_takes_no_other() {
    keeps_a_task(format!("other {}", condition().key())).await;
}

#[tokio::test]
async fn worker_keeps_a_task_when_no_condition_takes_more() {
    keeps_a_task(format!("{EVERY_CONDITION} other")).await;
}

async fn keeps_a_task(full: String) {
    let fixture = Fixture::start().await;
    let full = (FULL_CONDITIONS_HEADER, full);
    fixture.job_is("Active", &[pipe(), full]).await;
    for _ in 0..2 {
        fixture.send(fixture.item(true), Headers::default()).await;
    }
    harness::wait_for("some runs", async || {
        let runs = fixture.runs.load(Ordering::Relaxed);
        if runs > 2 {
            Ok(())
        } else {
            Err(format!("{runs} runs"))
        }
    })
    .await;
    assert_eq!(fixture.pipes.depth("waiting").await.unwrap(), 0);
    fixture.job_is("Active", &[pipe()]).await;
    for _ in 0..2 {
        fixture.next("waiting").await.ack();
    }
}

#[tokio::test]
async fn task_that_nobody_keeps_runs_again_like_any_other_and_one_of_an_ended_job_is_dropped() {
    let fixture = Fixture::start().await;
    // CAF's job service names no pipe.
    fixture.job_is("Active", &[]).await;
    let mut headers = Headers::default();
    headers.set(BLOCKS_HEADER, HeaderValue::Integer(2));
    for tracked in [true, false] {
        fixture.send(fixture.item(tracked), headers.clone()).await;
        let copy = fixture.next("w-reject").await;
        let reason = copy.headers.get(contract::headers::REASON_HEADER).cloned();
        let expected = "DATABASE_NOT_AVAILABLE (no route to host) (given up after 1 attempt)";
        assert_eq!(reason, Some(HeaderValue::Text(expected.into())));
        let blocks = copy.headers.get(BLOCKS_HEADER);
        assert_eq!(blocks, Some(&HeaderValue::Integer(2)), "they go on");
        copy.ack();
    }
    // The job service does not answer: no attempt is counted.
    fixture.jobs.reset().await;
    fixture.send(fixture.item(true), Headers::default()).await;
    let before = fixture.runs.load(Ordering::Relaxed);
    harness::wait_for("two runs", async || {
        let runs = fixture.runs.load(Ordering::Relaxed) - before;
        if runs > 1 {
            Ok(())
        } else {
            Err(format!("{runs} runs"))
        }
    })
    .await;
    fixture.job_is("Cancelled", &[pipe()]).await;
    harness::wait_for("the task to be dropped", async || {
        match fixture.pipes.depth("w-in").await.unwrap() {
            0 => Ok(()),
            some => Err(format!("{some} tasks")),
        }
    })
    .await;
    assert_eq!(fixture.pipes.depth("w-reject").await.unwrap(), 0);
    assert_eq!(fixture.pipes.depth("waiting").await.unwrap(), 0);
}
