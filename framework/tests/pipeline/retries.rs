//! The effects of a worker's errors, as seen in its pipes and at its health endpoint.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use contract::headers::REPORT_DETAILS_HEADER;
use contract::{
    RangeItem, ReportDetails, ReportStatus, SignOfLife, TaskMessage, Tracking, TrackingReport,
    TrackingReportTask,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Confirm, Event, HeaderValue, Outgoing, PublishError};
use framework::config::Route;
use framework::handler::{ORIGIN_HEADER, REASON_HEADER};
use framework::{Context, NoOutput, Reply, RetryPolicy, Runtime, Settings, TaskError, Worker};
use harness::{free_port, wait_for};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Records each attempt and returns the result of a closure.
#[derive(Clone)]
pub(super) struct Noting<F> {
    attempts: Arc<Mutex<Vec<(u64, u32)>>>,
    act: F,
}

impl<F: Fn(u64, u32) -> Result<(), TaskError> + Send + Sync + 'static> Worker for Noting<F> {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        self.attempts.lock().push((item.number, ctx.attempt()));
        (self.act)(item.number, ctx.attempt())?;
        Ok(Reply::none())
    }
}

pub(super) fn noting<F: Fn(u64, u32) -> Result<(), TaskError> + Send + Sync + 'static>(
    act: F,
) -> Noting<F> {
    Noting {
        attempts: Arc::default(),
        act,
    }
}

pub(super) fn message(number: u64, tracking_pipe: &str) -> Outgoing {
    let item = RangeItem {
        number,
        params: BTreeMap::new(),
    };
    let tracking = Tracking {
        job_task_id: Some(format!("p:j.{number}")),
        tracking_pipe: Some(tracking_pipe.into()),
        ..Tracking::default()
    };
    let message = TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new(format!("t.{number}"), "w-in", &item).unwrap()
    };
    Outgoing::new("w-in", message.encode())
}

/// Runs a worker until `until` resolves.
pub(super) async fn run_until<T>(
    pipes: &Memory,
    settings: Settings,
    worker: impl Worker,
    until: impl Future<Output = T>,
) -> T {
    let stop = CancellationToken::new();
    let runtime = Runtime::new(settings, Arc::new(pipes.clone())).worker(worker);
    let (ended, seen) = tokio::join!(runtime.run_until(stop.clone()), async {
        let seen = until.await;
        stop.cancel();
        seen
    });
    ended.unwrap();
    seen
}

/// Returns the reports up to the one with which this many tasks are complete or failed.
pub(super) async fn reports(pipes: &Memory, ends: usize) -> Vec<TrackingReport> {
    let mut consumer = pipes.consume("tracking", 10).await.unwrap();
    let mut reports = Vec::new();
    let is_end = |report: &&TrackingReport| {
        matches!(report.status, ReportStatus::Complete | ReportStatus::Failed)
    };
    while reports.iter().filter(is_end).count() < ends {
        let delivery = harness::in_time("a report", consumer.next()).await.unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        let details = delivery.headers.get(REPORT_DETAILS_HEADER).cloned();
        delivery.ack();
        let mut task: TrackingReportTask =
            serde_json::from_slice(&message.task_data.unwrap()).unwrap();
        if let Some(HeaderValue::Text(details)) = details {
            ReportDetails::add_to(&details, &mut task.tracking_reports);
        }
        reports.extend(task.tracking_reports);
    }
    reports
}

#[tokio::test]
async fn immediate_retry_runs_in_place_before_the_next_task() {
    let pipes = Memory::new();
    let worker = noting(|number, attempt| match (number, attempt) {
        (1, 1 | 2) => Err(TaskError::retry("not yet")),
        (2, _) => Err(TaskError::retry("never")),
        _ => Ok(()),
    });
    for number in 1..=3 {
        pipes.publish(message(number, "tracking")).await.unwrap();
    }
    let settings = Settings {
        concurrency: 1,
        retry: RetryPolicy::immediate().attempts(3),
        ..Settings::new("w")
    };
    let reports = run_until(&pipes, settings, worker.clone(), reports(&pipes, 3)).await;
    let attempts = worker.attempts.lock().clone();
    assert_eq!(
        attempts,
        [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1)]
    );
    let of = |id: &str| {
        reports
            .iter()
            .filter(|report| report.job_task_id == id)
            .map(|r| (r.status, r.retries))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("p:j.1"),
        [
            (ReportStatus::Retry, Some(1)),
            (ReportStatus::Retry, Some(2)),
            (ReportStatus::Complete, None)
        ]
    );
    assert_eq!(
        of("p:j.2").last().map(|(status, _)| *status),
        Some(ReportStatus::Failed)
    );
    let failed = reports
        .iter()
        .find(|report| report.status == ReportStatus::Failed)
        .unwrap();
    let reason = failed
        .failure
        .as_ref()
        .and_then(|failure| failure.failure_message.as_deref());
    assert_eq!(reason, Some("never (given up after 3 attempts)"));
    let mut rejected = pipes.consume("w-reject", 1).await.unwrap();
    let copy = harness::in_time("the copy", rejected.next()).await.unwrap();
    let header = |name| copy.headers.get(name).map(|value| format!("{value:?}"));
    assert_eq!(
        [REASON_HEADER, ORIGIN_HEADER].map(header),
        ["never (given up after 3 attempts)", "w-in"]
            .map(|text| Some(format!("{:?}", HeaderValue::Text(text.into()))))
    );
}

#[tokio::test]
async fn unready_worker_keeps_its_task_takes_no_other_and_reports_it() {
    let (pipes, up) = (Memory::new(), Arc::new(AtomicBool::new(false)));
    let worker = noting({
        let up = Arc::clone(&up);
        move |_, _| {
            if up.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(TaskError::unavailable("the warehouse is closed"))
            }
        }
    });
    // Another test may have installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let settings = Settings {
        listen: Some(listen),
        retry: RetryPolicy::constant(Duration::ZERO).attempts(1),
        ..Settings::new("w")
    };
    let ready = async || {
        let answer = reqwest::get(format!("http://{listen}/health-check?name=all&type=READY"))
            .await
            .map_err(|e| e.to_string())?;
        Ok::<_, String>((
            answer.status().as_u16(),
            answer.text().await.map_err(|e| e.to_string())?,
        ))
    };
    let attempts = || worker.attempts.lock().clone();
    let story = async {
        // The worker is ready and waits for a delivery before the first task finds the dependency
        // unavailable.
        wait_for("readiness", async || {
            ready()
                .await
                .and_then(|(code, text)| if code == 200 { Ok(()) } else { Err(text) })
        })
        .await;
        pipes.publish(message(1, "tracking")).await.unwrap();
        wait_for("the outage in the health check", async || {
            match ready().await? {
                (503, text) if text.contains("the warehouse is closed") => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;
        for number in 2..=5 {
            pipes.publish(message(number, "tracking")).await.unwrap();
        }
        wait_for("four runs in place", async || match attempts().len() {
            4.. => Ok(()),
            runs => Err(format!("{runs} runs")),
        })
        .await;
        assert!(
            attempts()
                .iter()
                .all(|(number, attempt)| (*number, *attempt) == (1, 1)),
            "{:?}",
            attempts()
        );
        up.store(true, Ordering::Relaxed);
        let reports = reports(&pipes, 5).await;
        assert!(
            reports
                .iter()
                .all(|report| report.status == ReportStatus::Complete),
            "{reports:?}"
        );
        wait_for("readiness", async || {
            ready()
                .await
                .and_then(|(code, text)| if code == 200 { Ok(()) } else { Err(text) })
        })
        .await;
    };
    run_until(&pipes, settings, worker.clone(), story).await;
    assert!(
        attempts().iter().all(|(_, attempt)| *attempt == 1),
        "no attempt was spent: {:?}",
        attempts()
    );
    assert_eq!(
        pipes.depth("w-in").await.unwrap() + pipes.depth("w-reject").await.unwrap(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn delivery_that_cannot_be_delayed_runs_again_without_counting_as_a_crash() {
    let memory = Memory::new();
    memory.publish(message(1, "tracking")).await.unwrap();
    let refusals = Arc::new(AtomicU32::new(20));
    let left = Arc::clone(&refusals);
    let broker = memory.clone().intercepting(move |message| {
        let one_less = |count: u32| count.checked_sub(1);
        let refuses = message.delay.is_some()
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
                .is_ok();
        if refuses {
            let error = PublishError::refused(&*message.pipe, "the pipe is full");
            return Err(Confirm::ready(Err(error)));
        }
        Ok(message)
    });
    let snoozes = Arc::new(AtomicU32::new(0));
    let worker = noting(move |_, _| {
        if snoozes.fetch_add(1, Ordering::Relaxed) == 20 {
            Ok(())
        } else {
            Err(TaskError::snooze(Duration::from_secs(1)))
        }
    });
    let stop = CancellationToken::new();
    let runtime = Runtime::new(Settings::new("w"), Arc::new(broker)).worker(worker.clone());
    let (ended, reports) = tokio::join!(runtime.run_until(stop.clone()), async {
        let reports = reports(&memory, 1).await;
        stop.cancel();
        reports
    });
    ended.unwrap();
    assert_eq!(reports.last().unwrap().status, ReportStatus::Complete);
    assert_eq!(
        refusals.load(Ordering::Relaxed),
        0,
        "each republish was refused"
    );
    assert_eq!(worker.attempts.lock().len(), 21);
    assert_eq!(memory.depth("w-in.suspects").await.unwrap(), 0);
}

/// Takes this many milliseconds, and fails in its first attempt.
struct Slow;

impl Worker for Slow {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
        tokio::time::sleep(Duration::from_millis(item.number)).await;
        if ctx.attempt() == 1 {
            return Err(TaskError::retry("not yet"));
        }
        Ok(Reply::none())
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_that_lasts_longer_than_a_second_is_reported_as_running_once() {
    use ReportStatus::{Complete, Progress, Retry};
    for route in [Route::Direct, Route::Reroute] {
        let pipes = Memory::new();
        for number in [900, 5000] {
            pipes.publish(message(number, "tracking")).await.unwrap();
        }
        let settings = Settings {
            route,
            ..Settings::new("w")
        };
        let reports = run_until(&pipes, settings, Slow, reports(&pipes, 2)).await;
        let of = |id: &str| {
            let own = reports.iter().filter(|report| report.job_task_id == id);
            own.map(|r| (r.status, r.estimated_percentage_completed, r.retries))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("p:j.900"), [(Retry, 0, Some(1)), (Complete, 0, None)]);
        assert_eq!(
            of("p:j.5000"),
            [
                (Progress, 0, Some(0)),
                (Retry, 0, Some(1)),
                (Progress, 0, Some(1)),
                (Complete, 0, None)
            ]
        );
    }
}

/// Blocks its thread until it may end.
struct Blocking(Mutex<mpsc::Receiver<()>>);

impl Worker for Blocking {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        let limit = Duration::from_mins(1);
        let end = self.0.lock().recv_timeout(limit);
        end.map_err(TaskError::failed)?;
        Ok(Reply::none())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_task_that_blocks_its_thread_is_reported_as_running() {
    let pipes = Memory::new();
    pipes.publish(message(1, "tracking")).await.unwrap();
    let (may_end, ends) = mpsc::channel();
    let worker = Blocking(Mutex::new(ends));
    let mut reports = pipes.consume("tracking", 10).await.unwrap();
    let seen = async {
        let mut seen = Vec::new();
        for _ in 0..2 {
            let delivery = harness::in_time("a report", reports.next()).await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            delivery.ack();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            seen.extend(task.tracking_reports.iter().map(|report| report.status));
            // It is told before it may end.
            let _ = may_end.send(());
        }
        seen
    };
    let seen = run_until(&pipes, Settings::new("w"), worker, seen).await;
    assert_eq!(seen, [ReportStatus::Progress, ReportStatus::Complete]);
}

/// A worker that knows nothing of outages, whose server is away until it was asked twenty times.
#[tokio::test(start_paused = true)]
async fn behind_a_circuit_breaker_no_task_fails_while_a_server_is_away() {
    const TASKS: u64 = 30;
    let pipes = Memory::new();
    let asked = Arc::new(AtomicU32::new(0));
    let worker = noting(move |_, _| {
        if asked.fetch_add(1, Ordering::Relaxed) < 20 {
            Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
        }
        Ok(())
    });
    for number in 1..=TASKS {
        let job = if number % 2 == 0 { "j" } else { "k" };
        let item = RangeItem {
            number,
            params: BTreeMap::new(),
        };
        let message = TaskMessage {
            tracking: Some(Tracking {
                job_task_id: Some(format!("p:{job}.{number}")),
                tracking_pipe: Some("tracking".into()),
                ..Tracking::default()
            }),
            ..TaskMessage::new(format!("t.{number}"), "w-in", &item).unwrap()
        };
        let message = Outgoing::new("w-in", message.encode());
        pipes.publish(message).await.unwrap();
    }
    let settings = Settings {
        concurrency: 2,
        circuit_breaker: NonZeroU32::new(4),
        retry: RetryPolicy::constant(Duration::ZERO).attempts(3),
        ..Settings::new("w")
    };
    let mut signs = pipes.signs().await.unwrap();
    let told = async {
        loop {
            if let Some(Event::Message(sign)) = signs.next().await {
                let sign: SignOfLife = serde_json::from_slice(&sign).unwrap();
                if let Some(reason) = sign.unavailable {
                    return reason;
                }
            }
        }
    };
    let story = async { tokio::join!(reports(&pipes, 30), harness::in_time("a sign", told)) };
    let (reports, told) = run_until(&pipes, settings, worker.clone(), story).await;
    let failed = reports
        .iter()
        .filter(|report| report.status == ReportStatus::Failed)
        .count();
    assert_eq!(failed, 0);
    assert!(
        told.starts_with("4 attempts in a row have failed in the same way (connection refused)"),
        "{told}"
    );
    // While the server was away, the worker took what it had room for.
    let attempts = worker.attempts.lock().clone();
    let tried: std::collections::BTreeSet<u64> =
        attempts[..20].iter().map(|(number, _)| *number).collect();
    assert!(tried.len() <= 6, "{tried:?}");
    assert_eq!(pipes.depth("w-reject").await.unwrap(), 0);
}
