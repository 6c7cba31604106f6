//! Takes messages out of the quarantine pipe, to handle each of them alone.
//!
//! What alone means depends on the handler ([`BatchHandler::gives_up`]). The code of an author runs
//! one message at a time, while nothing else runs in the process. A handler that never gives up
//! gets each message as a batch of one, beside the others.
//!
//! What must stay true:
//! - A quarantined message waits in its pipe, not in a process. A crash of a process meanwhile is
//!   not counted against it.
//! - A shutdown does not count as a crash. A quarantined message that still runs then is published
//!   to its pipe again, confirmed and acknowledged.
//! - Quarantined messages do not block other tasks for long. While other tasks run, the loop holds
//!   new ones back for a fifth of the time at most, and longer with each try, so that the
//!   quarantined message runs in the end. If there are many quarantined messages, half of the time
//!   belongs to ordinary tasks. Those of a handler that never gives up block none.
//! - The code of an author gets a quarantined message only after the earlier acknowledgements of
//!   this process have had [time](LAST_ACKNOWLEDGED) to reach the broker. Otherwise, one that this
//!   process has just moved here, and that kills it, comes again also from where it was.
//! - A quarantined message is found within [`LOOK_INTERVAL`], also when the process that moved it
//!   there has died. Only a pipe that did not exist when this process looked last may take
//!   [`UNUSED_INTERVAL`]: most quarantines are never used, and each question for a queue that does
//!   not exist closes a channel and is an error in `RabbitMQ`'s log. The process that creates the
//!   pipe announces it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout};

use crate::RetryPolicy;
use crate::handler::BatchHandler;
use crate::pipeline::Pipeline;
use crate::pipeline::in_flight::InFlight;

/// How often the loop looks for messages that other processes have quarantined.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How often the loop looks for a pipe that has not been announced.
const UNUSED_INTERVAL: Duration = Duration::from_mins(10);
/// How many times the loop finds the pipe empty before it asks again whether the pipe exists.
const EMPTY_LOOKS: u32 = 12;
/// How long new tasks are held back so that the running ones can end: longer with each try.
static HOLD_BACK: RetryPolicy =
    RetryPolicy::exponential(Duration::from_millis(200), 2.0, Duration::from_hours(1)).forever();
/// After holding back in vain, new tasks run for this many times as long.
const RELEASE_FACTOR: u32 = 4;
/// How long a broker may need for the last acknowledgements of a process. `RabbitMQ` is slow if
/// there are many, and does not tell when it has applied them.
const LAST_ACKNOWLEDGED: Duration = Duration::from_millis(500);
/// How long quarantined messages run one after another before ordinary tasks get a turn.
const TURN: Duration = Duration::from_secs(1);
/// How long to wait for a message although the pipe is not empty. Another process may have been
/// faster.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(1);
/// How many quarantined messages a handler that never gives up gets at a time, each as a batch of
/// its own. One that waits for something does not keep the others waiting.
const BESIDE: u32 = 16;

/// Runs quarantined messages whenever there are some. Never returns.
pub(crate) async fn run<H: BatchHandler>(pipeline: &Arc<Pipeline<H>>, in_flight: &InFlight) {
    let mut hold_back = HOLD_BACK.delays();
    let mut empty_looks = 0;
    // The subscription to announcements begins with the news that some may have been missed.
    wait_for_news(pipeline, LOOK_INTERVAL).await;
    wait_until_used(pipeline).await;
    loop {
        if !has_messages(pipeline).await {
            hold_back = HOLD_BACK.delays();
            wait_for_news(pipeline, LOOK_INTERVAL).await;
            empty_looks += 1;
            if empty_looks % EMPTY_LOOKS == 0 {
                wait_until_used(pipeline).await;
            }
            continue;
        }
        if pipeline.handler.gives_up() {
            let limit = hold_back.next().unwrap_or(LOOK_INTERVAL);
            if take_turn(pipeline, in_flight, limit).await {
                hold_back = HOLD_BACK.delays();
            }
        } else {
            run_beside(pipeline, in_flight).await;
        }
    }
}

/// Runs quarantined messages one after another while nothing else runs, and gives ordinary tasks as
/// much time after that. Returns `false` if the other tasks do not end while new ones are held back
/// for at most `limit`.
async fn take_turn<H: BatchHandler>(
    pipeline: &Arc<Pipeline<H>>,
    in_flight: &InFlight,
    limit: Duration,
) -> bool {
    let exclusive = match timeout(limit, in_flight.exclusive()).await {
        Err(_) => timeout(limit * RELEASE_FACTOR, in_flight.exclusive_when_idle()).await,
        exclusive => exclusive,
    };
    let Ok(exclusive) = exclusive else {
        return false;
    };
    let held = Instant::now();
    sleep(LAST_ACKNOWLEDGED).await;
    let began = Instant::now();
    while began.elapsed() < TURN && has_messages(pipeline).await {
        if !run_one(pipeline, in_flight).await {
            break;
        }
    }
    drop(exclusive);
    sleep(held.elapsed()).await;
    true
}

/// Handles quarantined messages beside the deliveries of the input pipe, each as a batch of one,
/// until no more come.
async fn run_beside<H: BatchHandler>(pipeline: &Arc<Pipeline<H>>, in_flight: &InFlight) {
    let pipe = &pipeline.quarantine.pipe;
    let Ok(mut consumer) = pipeline.broker.consume(pipe, BESIDE).await else {
        return sleep(LOOK_INTERVAL).await;
    };
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(()) = running.next() => {}
            arrived = timeout(ARRIVAL_LIMIT, consumer.next()) => match arrived {
                Ok(Some(delivery)) => {
                    pipeline.open.add(1);
                    running.push(in_flight.run_isolated(pipeline, delivery));
                }
                // If the broker takes back what runs, the consumer must know of it when it comes
                // again.
                Err(_) if !running.is_empty() => {}
                _ => return,
            }
        }
    }
}

/// Waits until the quarantine pipe exists.
async fn wait_until_used<H: BatchHandler>(pipeline: &Pipeline<H>) {
    loop {
        let interval = match pipeline.broker.exists(&pipeline.quarantine.pipe).await {
            Ok(true) => return,
            Ok(false) => UNUSED_INTERVAL,
            Err(_) => LOOK_INTERVAL,
        };
        wait_for_news(pipeline, interval).await;
    }
}

/// Waits until this process or another one has moved a message to the quarantine, or this time is
/// over.
async fn wait_for_news<H: BatchHandler>(pipeline: &Pipeline<H>, limit: Duration) {
    let news = async {
        tokio::select! {
            () = pipeline.quarantine.added.notified() => {}
            () = pipeline.job_service.quarantined() => {}
        }
    };
    let _ = timeout(limit, news).await;
}

async fn has_messages<H: BatchHandler>(pipeline: &Pipeline<H>) -> bool {
    // After an error the loop looks again later. The broker logs the error itself.
    pipeline
        .broker
        .depth(&pipeline.quarantine.pipe)
        .await
        .is_ok_and(|depth| depth > 0)
}

/// Takes one quarantined message and waits until it is settled. Returns `false` if none came.
async fn run_one<H: BatchHandler>(pipeline: &Arc<Pipeline<H>>, in_flight: &InFlight) -> bool {
    let pipe = &pipeline.quarantine.pipe;
    let Ok(mut consumer) = pipeline.broker.consume(pipe, 1).await else {
        return false;
    };
    let Ok(Some(delivery)) = timeout(ARRIVAL_LIMIT, consumer.next()).await else {
        return false;
    };
    // Drop the consumer before the message is settled. Otherwise the broker would deliver the next
    // one, which may not run.
    drop(consumer);
    pipeline.open.add(1);
    in_flight.run_isolated(pipeline, delivery).await;
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU32, Ordering};

    use contract::{
        RangeItem, ReportStatus, TaskMessage, Tracking, TrackingReport, TrackingReportTask,
    };
    use parking_lot::Mutex;
    use tokio::sync::Notify;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::announcement::announce_quarantine;
    use crate::broker::memory::Memory;
    use crate::broker::{Broker as _, Outgoing};
    use crate::handler::{Disposition, Outputs, Publisher, Received};
    use crate::runtime::WorkerService;
    use crate::steps::quarantine::{POISON_AT, crash_count};
    use crate::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};

    /// Records which items it gets. Holds the item `HELD` until `may_go_on` is cancelled.
    #[derive(Clone, Default)]
    struct Recording {
        given: Arc<Mutex<Vec<u64>>>,
        changed: Arc<Notify>,
        may_go_on: CancellationToken,
    }

    /// A message that comes back this often is quarantined.
    const OFTEN: u32 = 5;
    const HELD: u64 = 1;
    const QUARANTINED: u64 = 7;

    impl Worker for Recording {
        type Input = RangeItem;
        type Output = NoOutput;

        async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
            self.given.lock().push(item.number);
            self.changed.notify_waiters();
            if item.number == HELD {
                self.may_go_on.cancelled().await;
            }
            Ok(Reply::none())
        }
    }

    impl Recording {
        fn given(&self) -> Vec<u64> {
            self.given.lock().clone()
        }

        async fn given_all_of(&self, numbers: &[u64]) {
            loop {
                let changed = self.changed.notified();
                if numbers.iter().all(|number| self.given().contains(number)) {
                    return;
                }
                changed.await;
            }
        }
    }

    fn item(number: u64) -> Vec<u8> {
        let item = RangeItem {
            number,
            params: BTreeMap::new(),
        };
        let tracking = Tracking {
            job_task_id: Some(format!("p:j.{number}")),
            tracking_pipe: Some("tracking".into()),
            ..Tracking::default()
        };
        TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new(format!("t.{number}"), "w-in", &item).unwrap()
        }
        .encode()
    }

    /// Crashes this many processes, each while it has the message of this pipe.
    async fn crash(pipes: &Memory, pipe: &str, times: u32) {
        for _ in 0..times {
            let process = pipes.process();
            let mut consumer = process.consume(pipe, 1).await.unwrap();
            let _held = consumer.next().await.unwrap();
            process.crash();
        }
    }

    /// Runs the worker in a process of its own until `until` resolves, then stops it at once.
    async fn run_until<T>(pipes: &Memory, worker: &Recording, until: impl Future<Output = T>) -> T {
        let service = |runtime: Runtime| runtime.worker(worker.clone());
        run_service_until(&pipes.process(), service, until).await
    }

    async fn run_service_until<H: BatchHandler, T>(
        process: &Memory,
        service: impl FnOnce(Runtime) -> WorkerService<H>,
        until: impl Future<Output = T>,
    ) -> T {
        let settings = Settings {
            concurrency: 2,
            drain: Duration::from_millis(1),
            abort: Duration::from_secs(3),
            ..Settings::new("w")
        };
        let stop = CancellationToken::new();
        let service = service(Runtime::new(settings, Arc::new(process.clone())));
        let stopping = async {
            let seen = until.await;
            stop.cancel();
            seen
        };
        let (ended, seen) = tokio::join!(service.run_until(stop.clone()), stopping);
        ended.unwrap();
        process.close().await;
        seen
    }

    /// Returns the first report, except for those that a task runs.
    async fn first_report(pipes: &Memory) -> TrackingReport {
        let mut reports = pipes.consume("tracking", 1).await.unwrap();
        loop {
            let delivery = reports.next().await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            delivery.ack();
            let task: TrackingReportTask =
                serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            let mut list = task.tracking_reports.into_iter();
            if let Some(report) = list.find(|report| report.status != ReportStatus::Progress) {
                return report;
            }
        }
    }

    async fn publish(pipes: &Memory, pipe: &str, number: u64) {
        pipes
            .publish(Outgoing::new(pipe, item(number)))
            .await
            .unwrap();
    }

    /// Moves a message to the quarantine as another process does.
    async fn quarantine(pipes: &Memory, number: u64) {
        publish(pipes, "w-in.suspects", number).await;
        announce_quarantine(pipes, "w-in.suspects").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn message_in_a_new_quarantine_is_found_at_once_or_if_its_process_died_within_minutes() {
        for (is_announced, limit) in [(true, LOOK_INTERVAL), (false, UNUSED_INTERVAL)] {
            let (pipes, worker) = (Memory::new(), Recording::default());
            let found = async {
                sleep(LOOK_INTERVAL * 2).await;
                let began = Instant::now();
                if is_announced {
                    quarantine(&pipes, QUARANTINED).await;
                } else {
                    publish(&pipes, "w-in.suspects", QUARANTINED).await;
                }
                worker.given_all_of(&[QUARANTINED]).await;
                let elapsed = began.elapsed();
                assert!(elapsed < limit, "{is_announced}: {elapsed:?}");
            };
            run_until(&pipes, &worker, found).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn message_present_at_five_crashes_runs_alone_and_is_not_rejected() {
        let (pipes, worker) = (Memory::new(), Recording::default());
        publish(&pipes, "w-in", QUARANTINED).await;
        crash(&pipes, "w-in", OFTEN).await;
        let report = run_until(&pipes, &worker, first_report(&pipes)).await;
        assert_eq!(
            (worker.given(), report.status),
            (vec![QUARANTINED], ReportStatus::Complete)
        );
        assert_eq!(pipes.depth("w-reject").await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn message_runs_alone_only_after_earlier_acknowledgements_had_time_to_reach_the_broker() {
        let (pipes, worker) = (Memory::new(), Recording::default());
        publish(&pipes, "w-in", QUARANTINED).await;
        crash(&pipes, "w-in", OFTEN).await;
        let early = async {
            let ran = timeout(LAST_ACKNOWLEDGED / 2, worker.given_all_of(&[QUARANTINED]));
            ran.await.is_ok()
        };
        assert!(!run_until(&pipes, &worker, early).await);
        assert_eq!(pipes.depth("w-in").await.unwrap(), 0);
        assert_eq!(pipes.depth("w-in.suspects").await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn message_alone_at_three_crashes_is_rejected_without_running() {
        let (pipes, worker) = (Memory::new(), Recording::default());
        publish(&pipes, "w-in.suspects", QUARANTINED).await;
        crash(&pipes, "w-in.suspects", POISON_AT).await;
        let report = run_until(&pipes, &worker, first_report(&pipes)).await;
        assert_eq!(
            (worker.given(), report.status),
            (Vec::new(), ReportStatus::Failed)
        );
        assert_eq!(
            report.failure.unwrap().failure_message.as_deref(),
            Some("w could not process the item.")
        );
        assert_eq!(pipes.depth("w-reject").await.unwrap(), 1);
        assert_eq!(pipes.depth("w-in.suspects").await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_quarantined_message_is_not_blamed_for_a_stop() {
        let (pipes, worker) = (Memory::new(), Recording::default());
        publish(&pipes, "w-in", HELD).await;
        let waiting = async {
            worker.given_all_of(&[HELD]).await;
            quarantine(&pipes, QUARANTINED).await;
            // Longer than the loop needs to see the message and to hold others back for it.
            sleep(LOOK_INTERVAL * 4).await;
        };
        run_until(&pipes, &worker, waiting).await;
        assert_eq!(worker.given(), [HELD]);
        let delivery = pipes
            .consume("w-in.suspects", 1)
            .await
            .unwrap()
            .next()
            .await
            .unwrap();
        assert_eq!(crash_count(&delivery), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn quarantined_message_running_at_shutdown_keeps_its_crash_count() {
        let (pipes, worker) = (Memory::new(), Recording::default());
        publish(&pipes, "w-in.suspects", HELD).await;
        crash(&pipes, "w-in.suspects", POISON_AT - 1).await;
        for round in 0..4 {
            run_until(&pipes, &worker, worker.given_all_of(&[HELD])).await;
            assert_eq!(
                std::mem::take(&mut *worker.given.lock()),
                [HELD],
                "round {round}"
            );
        }
        crash(&pipes, "w-in.suspects", 1).await;
        let report = run_until(&pipes, &worker, first_report(&pipes)).await;
        assert_eq!(
            (worker.given(), report.status),
            (Vec::new(), ReportStatus::Failed)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn other_tasks_run_while_a_quarantined_message_waits() {
        let (pipes, worker) = (Memory::new(), Recording::default());
        publish(&pipes, "w-in", HELD).await;
        let others: Vec<u64> = (100..1100).collect();
        let all = async {
            worker.given_all_of(&[HELD]).await;
            quarantine(&pipes, QUARANTINED).await;
            sleep(LOOK_INTERVAL).await;
            let began = Instant::now();
            for other in &others {
                publish(&pipes, "w-in", *other).await;
            }
            worker.given_all_of(&others).await;
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the other tasks took {:?}",
                began.elapsed()
            );
            assert!(
                !worker.given().contains(&QUARANTINED),
                "the quarantined message did not run alone"
            );
            worker.may_go_on.cancel();
            worker.given_all_of(&[QUARANTINED]).await;
        };
        run_until(&pipes, &worker, all).await;
    }

    /// Never gives up. Does not end with a message until it may.
    #[derive(Clone, Default)]
    struct Patient {
        has_one: Arc<Notify>,
        may_end: CancellationToken,
        /// How often a message that it got had come back at the most.
        came_back: Arc<AtomicU32>,
    }

    impl BatchHandler for Patient {
        fn max_batch(&self) -> usize {
            10
        }

        fn gives_up(&self) -> bool {
            false
        }

        async fn handle(&self, batch: &[Received], _: &Publisher) -> Vec<Disposition> {
            let [one] = batch else { unreachable!() };
            let came_back = one.delivery.delivery_count;
            self.came_back.fetch_max(came_back, Ordering::Relaxed);
            self.has_one.notify_one();
            self.may_end.cancelled().await;
            let id = one.message.job_task_id().unwrap();
            let report = TrackingReport::new(id, ReportStatus::Complete);
            vec![Disposition::Done(Outputs::default().with_report(report))]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn message_that_is_never_given_up_ends_after_any_number_of_crashes() {
        let (pipes, handler) = (Memory::new(), Patient::default());
        publish(&pipes, "w-in", QUARANTINED).await;
        let service = |runtime: Runtime| runtime.handler(handler.clone());
        for _ in 0..30 {
            let process = pipes.process();
            let crash = async {
                handler.has_one.notified().await;
                process.crash();
            };
            run_service_until(&process, service, crash).await;
        }
        handler.may_end.cancel();
        let report = run_service_until(&pipes.process(), service, first_report(&pipes)).await;
        assert_eq!(report.status, ReportStatus::Complete);
        assert_eq!(handler.came_back.load(Ordering::Relaxed), OFTEN - 1);
        for pipe in ["w-in", "w-in.suspects", "w-invalid"] {
            assert_eq!(pipes.depth(pipe).await.unwrap(), 0, "{pipe}");
        }
    }
}
