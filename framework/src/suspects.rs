//! Suspects: deliveries that were there each time when processes died, run one at a time with nothing beside them.
//!
//! The broker's delivery count tells of processes, not of messages: it rises for every neighbour of a crash. In the pipe of the
//! suspects it tells more, because a process takes a suspect out of it only in the moment when nothing else runs, and lets nothing
//! run beside it. So who is there when the process dies has killed it, and may be condemned.
//!
//! What must stay true:
//! - A suspect waits in its pipe, not in a process: whatever happens to the process meanwhile is not counted.
//! - A shutdown counts nobody: a suspect that still runs then is handed back by hand (published, confirmed, acknowledged).
//! - A suspect keeps nobody from working for long: while others run it holds back new tasks for a fifth of the time at most, and when
//!   many suspects are run, every other moment is for ordinary tasks. It holds back longer each time, so its turn comes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::broker::{Delivery, HeaderValue, Headers};
use crate::collector::Collector;
use crate::process::Process;
use crate::runtime::UnderWay;

/// A delivery that came back this often is not run beside others any more.
const SUSPECT_AT: u32 = 5;
/// A suspect that came back this often, alone each time, is condemned.
const CONDEMNED_AT: u32 = 3;
/// How many processes have died of a suspect before it was handed back, which makes the broker's count begin anew.
const DEATHS_HEADER: &str = "x-batchwright-deaths";

/// How often is looked for suspects that others have left.
const LOOK: Duration = Duration::from_secs(5);
/// How long new tasks are held back at first, so that nothing runs any more.
const FIRST_PATIENCE: Duration = Duration::from_millis(200);
const LONGEST_PATIENCE: Duration = Duration::from_hours(1);
/// After that they go on for so many times longer.
const PAUSES: u32 = 4;
/// How long suspects are run one after another.
const TURN: Duration = Duration::from_secs(1);
/// How long a suspect that somebody has seen may take to come. Another process may have been faster.
const COMING: Duration = Duration::from_secs(1);

/// The pipe of the suspects.
#[derive(Debug)]
pub(crate) struct Suspects {
    pub pipe: String,
    /// This process has put one there.
    pub added: Notify,
}

impl Suspects {
    /// Those of the tasks of this pipe.
    pub fn of(input: &str) -> Self {
        Self {
            pipe: format!("{input}.suspects"),
            added: Notify::new(),
        }
    }

    /// It is not to be run beside others any more.
    pub fn suspects(&self, delivery: &Delivery) -> bool {
        delivery.delivery_count >= SUSPECT_AT && !self.is_one(delivery)
    }

    /// It comes from the pipe of the suspects: nothing runs beside it.
    pub fn is_one(&self, delivery: &Delivery) -> bool {
        *delivery.pipe == *self.pipe
    }

    pub fn condemns(&self, delivery: &Delivery) -> bool {
        self.is_one(delivery) && deaths(delivery) >= CONDEMNED_AT
    }

    /// The headers of a delivery that is handed back to its pipe: what it was guilty of is not forgotten.
    pub fn headers(&self, delivery: &Delivery) -> Headers {
        let mut headers = delivery.headers.clone();
        if self.is_one(delivery) && deaths(delivery) > 0 {
            headers.set(DEATHS_HEADER, HeaderValue::Integer(deaths(delivery).into()));
        }
        headers
    }
}

/// How many processes have died while they had it, alone.
fn deaths(delivery: &Delivery) -> u32 {
    let before = match delivery.headers.get(DEATHS_HEADER) {
        Some(HeaderValue::Integer(deaths)) => u32::try_from(*deaths).unwrap_or(0),
        _ => 0,
    };
    delivery.delivery_count.saturating_add(before)
}

/// Runs suspects when there are some, for ever.
pub(crate) async fn take_turns<C: Collector>(process: &Arc<Process<C>>, under_way: &UnderWay) {
    let mut patience = FIRST_PATIENCE;
    loop {
        if !is_anybody_there(process).await {
            patience = FIRST_PATIENCE;
            let _ = timeout(LOOK, process.suspects.added.notified()).await;
            continue;
        }
        let held_back = timeout(patience, under_way.alone()).await;
        let alone = match held_back {
            Err(_) => timeout(patience * PAUSES, under_way.alone_by_chance()).await,
            alone => alone,
        };
        let Ok(alone) = alone else {
            patience = (patience * 2).min(LONGEST_PATIENCE);
            continue;
        };
        patience = FIRST_PATIENCE;
        let began = Instant::now();
        while began.elapsed() < TURN && is_anybody_there(process).await {
            if !take_one(process, under_way).await {
                break;
            }
        }
        drop(alone);
        sleep(began.elapsed()).await;
    }
}

async fn is_anybody_there<C: Collector>(process: &Process<C>) -> bool {
    // A broker that does not answer is looked at again; others say what is wrong with it.
    process
        .broker
        .depth(&process.suspects.pipe)
        .await
        .is_ok_and(|depth| depth > 0)
}

/// Takes one suspect and waits for its end. False when there was none.
async fn take_one<C: Collector>(process: &Arc<Process<C>>, under_way: &UnderWay) -> bool {
    let Ok(mut consumer) = process.broker.consume(&process.suspects.pipe, 1).await else {
        return false;
    };
    let Ok(Some(suspect)) = timeout(COMING, consumer.next()).await else {
        return false;
    };
    // Before it is settled: the next one must not come here, where it might not be run.
    drop(consumer);
    warn!(pipe = %suspect.pipe, deaths = deaths(&suspect), "a suspect is run alone");
    process.open.add(1);
    under_way.run_suspect(process, suspect).await;
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use contract::{
        RangeItem, ReportStatus, TaskMessage, Tracking, TrackingReport, TrackingReportTask,
    };
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::broker::memory::Memory;
    use crate::broker::{Broker as _, Outgoing};
    use crate::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};

    /// Notes which items it is given; holds the first item until it may go on, whatever else is wanted.
    #[derive(Clone, Default)]
    struct Noting {
        given: Arc<Mutex<Vec<u64>>>,
        changed: Arc<Notify>,
        may_go_on: CancellationToken,
    }

    const HELD: u64 = 1;
    const SUSPECT: u64 = 7;

    impl Worker for Noting {
        type Input = RangeItem;
        type Output = NoOutput;

        async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
            self.given.lock().unwrap().push(item.number);
            self.changed.notify_waiters();
            if item.number == HELD {
                self.may_go_on.cancelled().await;
            }
            Ok(Reply::none())
        }
    }

    impl Noting {
        fn given(&self) -> Vec<u64> {
            self.given.lock().unwrap().clone()
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

    /// So many processes die while they have the message of this pipe.
    async fn die(pipes: &Memory, pipe: &str, times: u32) {
        for _ in 0..times {
            let process = pipes.process();
            let mut consumer = process.consume(pipe, 1).await.unwrap();
            let _held = consumer.next().await.unwrap();
            process.crash();
        }
    }

    /// A process that runs the worker until `until` resolves, and then stops with little patience.
    async fn run_until<T>(pipes: &Memory, worker: &Noting, until: impl Future<Output = T>) -> T {
        let settings = Settings {
            concurrency: 2,
            drain: Duration::from_millis(1),
            abort: Duration::from_secs(3),
            ..Settings::new("w")
        };
        let stop = CancellationToken::new();
        let process = pipes.process();
        let runtime = Runtime::new(settings, Arc::new(process.clone())).worker(worker.clone());
        let stopping = async {
            let seen = until.await;
            stop.cancel();
            seen
        };
        let (ended, seen) = tokio::join!(runtime.run_until(stop.clone()), stopping);
        ended.unwrap();
        process.close().await;
        seen
    }

    async fn first_report(pipes: &Memory) -> TrackingReport {
        let mut reports = pipes.consume("tracking", 1).await.unwrap();
        let delivery = reports.next().await.unwrap();
        let message = TaskMessage::decode(&delivery.body).unwrap();
        delivery.ack();
        serde_json::from_slice::<TrackingReportTask>(&message.task_data.unwrap())
            .unwrap()
            .tracking_reports
            .remove(0)
    }

    async fn publish(pipes: &Memory, pipe: &str, number: u64) {
        pipes
            .publish(Outgoing::new(pipe, item(number)))
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_was_there_when_five_processes_died_is_run_alone_and_not_condemned() {
        let (pipes, worker) = (Memory::new(), Noting::default());
        publish(&pipes, "w-in", SUSPECT).await;
        die(&pipes, "w-in", SUSPECT_AT).await;
        let report = run_until(&pipes, &worker, first_report(&pipes)).await;
        assert_eq!(
            (worker.given(), report.status),
            (vec![SUSPECT], ReportStatus::Complete)
        );
        assert_eq!(pipes.depth("w-reject").await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_was_alone_when_three_processes_died_is_rejected_without_being_run() {
        let (pipes, worker) = (Memory::new(), Noting::default());
        publish(&pipes, "w-in.suspects", SUSPECT).await;
        die(&pipes, "w-in.suspects", CONDEMNED_AT).await;
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
    async fn a_suspect_that_waits_for_its_turn_when_its_process_stops_or_dies_is_not_counted() {
        let (pipes, worker) = (Memory::new(), Noting::default());
        publish(&pipes, "w-in", HELD).await;
        let waiting = async {
            worker.given_all_of(&[HELD]).await;
            publish(&pipes, "w-in.suspects", SUSPECT).await;
            // Longer than it takes to see the suspect, and to hold back others for it.
            sleep(LOOK * 4).await;
        };
        run_until(&pipes, &worker, waiting).await;
        assert_eq!(worker.given(), [HELD]);
        let suspect = pipes
            .consume("w-in.suspects", 1)
            .await
            .unwrap()
            .next()
            .await
            .unwrap();
        assert_eq!(deaths(&suspect), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_that_runs_when_its_process_stops_is_not_counted_and_nothing_is_forgotten() {
        let (pipes, worker) = (Memory::new(), Noting::default());
        publish(&pipes, "w-in.suspects", HELD).await;
        die(&pipes, "w-in.suspects", CONDEMNED_AT - 1).await;
        for life in 0..4 {
            run_until(&pipes, &worker, worker.given_all_of(&[HELD])).await;
            assert_eq!(
                std::mem::take(&mut *worker.given.lock().unwrap()),
                [HELD],
                "life {life}"
            );
        }
        die(&pipes, "w-in.suspects", 1).await;
        let report = run_until(&pipes, &worker, first_report(&pipes)).await;
        assert_eq!(
            (worker.given(), report.status),
            (Vec::new(), ReportStatus::Failed)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_done_while_a_suspect_waits_for_a_long_task_and_then_it_is_run() {
        let (pipes, worker) = (Memory::new(), Noting::default());
        publish(&pipes, "w-in", HELD).await;
        let others: Vec<u64> = (100..1100).collect();
        let all = async {
            worker.given_all_of(&[HELD]).await;
            publish(&pipes, "w-in.suspects", SUSPECT).await;
            sleep(LOOK).await;
            let began = Instant::now();
            for other in &others {
                publish(&pipes, "w-in", *other).await;
            }
            worker.given_all_of(&others).await;
            assert!(
                began.elapsed() < FIRST_PATIENCE * 100,
                "they took {:?}",
                began.elapsed()
            );
            assert!(!worker.given().contains(&SUSPECT), "it was not alone");
            worker.may_go_on.cancel();
            worker.given_all_of(&[SUSPECT]).await;
        };
        run_until(&pipes, &worker, all).await;
    }
}
