//! Feeds the ledger with what workers report, so that the progress of every job is known.
//!
//! [`TrackingWorker`] is a [`BatchHandler`] that takes up to a thousand messages at a time, of two
//! kinds:
//! - *tracking reports* of workers whose outputs travel directly to their pipes;
//! - *diverted messages*, which are addressed to other pipes and pass through here to be recorded
//!   (the route `reroute`).
//!
//! What must stay true:
//! - It forwards diverted messages, waits for the confirms, commits the ledger, and only then
//!   settles. Once a task is counted its job may be finished, and deliveries of a finished job are
//!   discarded.
//! - It never gives up on a report, except one that it cannot understand. If the store rejects a
//!   flush, the flush is split in halves until the offending message is alone.
//! - A job that somebody keeps locked holds up no other: its messages come again later, and hold
//!   neither the slot nor the prefetch meanwhile.
//! - A diverted message that can never reach its pipe, or that the store rejects, fails its task.
#![warn(missing_docs)]

mod events;
mod held;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_recursion::async_recursion;
use backon::{ExponentialBuilder, Retryable};
use contract::JobTaskId;
use contract::headers::FORWARDED_HEADER;
use framework::broker::{HeaderValue, PublishError};
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use framework::health::{Health, Waiting as Unwritten};
use futures_util::future::OptionFuture;
use store::{LeftOut, Store, StoreError, TrackingEvent};
use tokio::time::timeout_at;
use tracing::{info, warn};

use crate::events::{Reported, read};
use crate::held::{Ended, Held, Share, Waiting};

/// The default of [`TrackingWorker::max_batch`].
const MAX_BATCH: usize = 1000;
/// The largest number of bytes of the messages of a batch: some tens of thousands of reports.
const MAX_BYTES: usize = 2 * 1024 * 1024;
/// The approximate number of events in one transaction.
const EVENTS: usize = 20_000;
/// The first delay before the ledger is written again while the store is unavailable. It doubles up
/// to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_millis(50);
/// The longest of these delays.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The degradation of a ledger that is written later, and what reports it.
const LEDGER: &str = "ledger";
const SOURCE: &str = "tracking worker";

/// Counts tracking reports into the ledger.
#[derive(Debug, Clone)]
pub struct TrackingWorker {
    store: Store,
    reports: Arc<AtomicU64>,
    /// The reports, which wait while the ledger cannot be written.
    unwritten: Unwritten,
    held: Arc<Held>,
    max_batch: usize,
}

impl TrackingWorker {
    /// Returns a worker that writes to the ledger of this store.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            reports: Arc::default(),
            unwritten: Unwritten::new(Health::default(), LEDGER, SOURCE),
            held: Arc::default(),
            max_batch: MAX_BATCH,
        }
    }

    /// Sets what the process can do, to which the worker adds a ledger that cannot be written.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.unwritten = Unwritten::new(health, LEDGER, SOURCE);
        self
    }

    /// Sets the largest number of messages that are read at a time; 1000 by default.
    #[must_use]
    pub const fn max_batch(mut self, messages: usize) -> Self {
        self.max_batch = messages;
        self
    }

    /// Returns the counter of the reports that this worker has written to the ledger, repeated ones
    /// included.
    pub fn reports(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reports)
    }
}

impl BatchHandler for TrackingWorker {
    fn max_batch(&self) -> usize {
        self.max_batch
    }

    fn max_bytes(&self) -> Option<usize> {
        Some(MAX_BYTES)
    }

    async fn handle(&self, batch: &[Received], publisher: &Publisher) -> Vec<Disposition> {
        // Publish all of them before awaiting the first confirm.
        let forwards: Vec<_> = batch
            .iter()
            .map(|received| {
                received
                    .forwarded()
                    .filter(|_| received.is_diverted() && !was_forwarded(received))
                    .map(|message| publisher.publish(message))
            })
            .collect();
        let mut reported: Vec<Reported> = batch
            .iter()
            .enumerate()
            .map(|(index, received)| read(index, received))
            .collect();
        let mut dispositions = Vec::with_capacity(batch.len());
        for (forward, reported) in forwards.into_iter().zip(&reported) {
            dispositions.push(match OptionFuture::from(forward).await {
                Some(Err(error)) if error.is_permanent() => {
                    Disposition::Fail(reported.reason_with(&error))
                }
                Some(Err(error)) => Disposition::Redeliver(error.to_string()),
                Some(Ok(())) | None => Disposition::Done(Outputs::default()),
            });
        }
        // A message that could not be forwarded is redelivered, and counted then.
        reported.retain(|reported| matches!(dispositions[reported.index], Disposition::Done(_)));
        let (waiting, shares) = self.held.hold(&mut reported, self.max_batch);
        let own = reported
            .iter_mut()
            .map(|reported| (reported.index, std::mem::take(&mut reported.events)));
        let mut not_recorded = self.record_all(own.collect(), shares).await;
        for reported in reported {
            if let Some(problem) = reported.problem {
                dispositions[reported.index] = Disposition::Invalid(problem);
            }
        }
        if !waiting.is_empty() {
            publisher.let_next_begin();
            for (index, ended) in self.wait(waiting).await {
                if ended != Ended::Recorded {
                    not_recorded.push((index, ended));
                }
            }
        }
        // The last one decides: a message that is put aside or comes again is so with all of its
        // reports.
        not_recorded.sort_by_key(|(_, ended)| ended.rank());
        for (index, ended) in not_recorded {
            change(&mut dispositions[index], ended, &batch[index]);
        }
        dispositions
    }

    /// Its only outputs are messages that come again, which they then do in another way.
    fn on_undeliverable(&self, _: &Received, error: &PublishError) -> Disposition {
        Disposition::Redeliver(error.to_string())
    }

    fn unready_reason(&self) -> Option<String> {
        let outage = self.store.availability().borrow().outage();
        outage.or_else(|| self.unwritten.outage())
    }

    /// A report is never given up.
    fn gives_up(&self) -> bool {
        false
    }
}

impl TrackingWorker {
    /// Commits the events of messages of this batch, by their indexes, and those of earlier ones.
    /// Returns the index of each message of this batch of which not all events are recorded, and
    /// why.
    async fn record_all(
        &self,
        own: Vec<(usize, Vec<TrackingEvent>)>,
        mut shares: Vec<Share>,
    ) -> Vec<(usize, Ended)> {
        let after_own = own.last().map_or(0, |(index, _)| index + 1);
        let others = (after_own..).zip(&mut shares);
        let others = others.map(|(index, share)| (index, std::mem::take(&mut share.events)));
        let (mut messages, mut events) = (Vec::with_capacity(own.len()), Vec::new());
        for (index, mut of_message) in own.into_iter().chain(others) {
            messages.push((index, of_message.len()));
            events.append(&mut of_message);
        }
        let (mut not_recorded, mut rest) = (Vec::new(), &events[..]);
        for group in groups(&messages) {
            let (events, later) = rest.split_at(sum(group));
            not_recorded.extend(self.record(group, events).await);
            rest = later;
        }
        let of_shares = not_recorded.extract_if(.., |(index, _)| *index >= after_own);
        let mut of_shares: HashMap<usize, Ended> = of_shares.collect();
        for (index, share) in (after_own..).zip(shares) {
            share.end(of_shares.remove(&index).unwrap_or(Ended::Recorded));
        }
        not_recorded
    }

    /// Waits until the events of these messages are recorded together with others of their jobs,
    /// and records those that are due. Returns the index of each message, and how that ended.
    async fn wait(&self, mut waiting: Vec<Waiting>) -> Vec<(usize, Ended)> {
        let mut ended = Vec::with_capacity(waiting.len());
        waiting.sort_unstable_by_key(|message| Reverse(message.due));
        while let Some(mut message) = waiting.pop() {
            let how = if let Ok(how) = timeout_at(message.due, message.ended()).await {
                how
            } else {
                let due = waiting.iter().filter(|other| other.due <= message.due);
                let shares = self.held.take(due.chain([&message]));
                self.record_all(Vec::new(), shares).await;
                message.ended().await
            };
            ended.push((message.index, how));
        }
        ended
    }

    /// Commits the events of these messages. Returns the index of each message of which not all
    /// events are recorded, and why.
    #[async_recursion]
    async fn record(
        &self,
        messages: &[MessageEvents],
        events: &[TrackingEvent],
    ) -> Vec<(usize, Ended)> {
        if events.is_empty() {
            return Vec::new();
        }
        match self.record_when_available(events).await {
            Ok(left_out) => locked_among(messages, events, &left_out),
            Err(error) => match messages {
                [(index, _)] => vec![(*index, Ended::Rejected(error.to_string()))],
                many => {
                    warn!(%error, code = error.code().as_str(), messages = many.len(), "the store rejects a flush; it is split in halves");
                    let (first, second) = many.split_at(many.len() / 2);
                    let (of_first, of_second) = events.split_at(sum(first));
                    let mut not_recorded = self.record(first, of_first).await;
                    not_recorded.extend(self.record(second, of_second).await);
                    not_recorded
                }
            },
        }
    }

    /// Commits events and waits as long as the store is unavailable. Any other error is final.
    /// Returns the locked jobs, whose events are left out.
    async fn record_when_available(&self, events: &[TrackingEvent]) -> Result<LeftOut, StoreError> {
        let delays = ExponentialBuilder::new()
            .with_min_delay(MIN_DELAY)
            .with_max_delay(MAX_DELAY)
            .without_max_times();
        let work = self.unwritten.begin();
        let recorded = (|| self.store.record(events))
            .retry(delays)
            .when(|error| matches!(error, StoreError::Unavailable(_)))
            .notify(|error, delay| {
                // Once per outage.
                if delay == MIN_DELAY {
                    warn!(%error, code = error.code().as_str(), "the ledger cannot be written; the reports are kept and written later");
                }
                work.waits(format!("the ledger cannot be written: {error}"));
            })
            .await;
        drop(work);
        let recorded = recorded?;
        let left_out = events
            .iter()
            .filter(|event| delay_of(event, &recorded.left_out).is_some());
        let written = events.len() - left_out.count();
        self.reports.fetch_add(written as u64, Ordering::Relaxed);
        for (incarnation, status) in recorded.finished {
            info!(job = %format_args!("{}:{}", incarnation.partition, incarnation.job), incarnation = incarnation.number, %status, "a job has ended");
        }
        Ok(recorded.left_out)
    }
}

/// Puts a message aside whose reports the store rejects, and makes one come again whose reports are
/// not recorded.
fn change(disposition: &mut Disposition, ended: Ended, received: &Received) {
    *disposition = match ended {
        Ended::Recorded => return,
        Ended::Rejected(reason) if received.is_diverted() => Disposition::Fail(reason),
        Ended::Rejected(reason) => Disposition::Invalid(reason),
        Ended::Locked(delay) if received.is_diverted() => {
            let mut again = received.again(delay);
            again
                .headers
                .set(FORWARDED_HEADER, HeaderValue::Text("true".into()));
            Disposition::Done(Outputs::default().with_message(again))
        }
        Ended::Locked(delay) => Disposition::Snooze(delay),
        Ended::Unknown => {
            Disposition::Redeliver("it is not known whether its reports are recorded".to_owned())
        }
    };
}

/// Returns whether a diverted message has come again only to be counted.
fn was_forwarded(received: &Received) -> bool {
    received.headers().get(FORWARDED_HEADER).is_some()
}

/// Returns the index of each of these messages that has events of a job that was left out.
fn locked_among(
    messages: &[MessageEvents],
    events: &[TrackingEvent],
    left_out: &LeftOut,
) -> Vec<(usize, Ended)> {
    let (mut locked, mut rest) = (Vec::new(), events);
    for (index, count) in messages {
        let (of_message, later) = rest.split_at(*count);
        let delays = of_message
            .iter()
            .filter_map(|event| delay_of(event, left_out));
        locked.extend(delays.max().map(|delay| (*index, Ended::Locked(delay))));
        rest = later;
    }
    locked
}

/// Returns the delay after which the worker records an event again, if its job was left out.
fn delay_of(event: &TrackingEvent, left_out: &LeftOut) -> Option<Duration> {
    if left_out.is_empty() {
        return None;
    }
    let JobTaskId { partition, job, .. } = &event.task;
    left_out.get(&(partition.clone(), job.clone())).copied()
}

/// A message, by its index in its batch, and how many events it has.
type MessageEvents = (usize, usize);

/// Divides messages into groups of about as many events as belong in one transaction.
fn groups(messages: &[MessageEvents]) -> Vec<&[MessageEvents]> {
    let (mut groups, mut start, mut size) = (Vec::new(), 0, 0);
    for (at, (_, events)) in messages.iter().enumerate() {
        size += events;
        if size >= EVENTS || at + 1 == messages.len() {
            groups.push(&messages[start..=at]);
            (start, size) = (at + 1, 0);
        }
    }
    groups
}

/// Returns how many events these messages have.
fn sum(messages: &[MessageEvents]) -> usize {
    messages.iter().map(|(_, events)| events).sum()
}

#[cfg(test)]
mod tests {
    use contract::headers::{GATHERED_HEADER, REPORT_DETAILS_HEADER};
    use contract::{
        CompleteTasks, GatheredReports, JobId, JobStatus, PartitionId, ReportDetails, ReportStatus,
        SourceDigest, TaskMessage, TaskStatus, Tracking, TrackingReport, TrackingReportTask,
    };
    use framework::broker::memory::Memory;
    use framework::broker::{Broker, HeaderValue, Outgoing};
    use framework::handler::REASON_HEADER;
    use framework::{Runtime, Settings};
    use store::{JobRequest, StoreOptions};
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[test]
    fn messages_are_grouped_by_their_number_of_events() {
        let messages = [(0, 15_000), (1, 6_000), (2, 1), (5, 0)];
        let sizes: Vec<usize> = groups(&messages).iter().map(|group| group.len()).collect();
        assert_eq!(sizes, [2, 2]);
        assert!(groups(&[]).is_empty());
    }

    /// Returns a store with the job `p:j`.
    async fn store_with_job() -> (Store, PartitionId, JobId) {
        let store = Store::temporary(StoreOptions::default());
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        store
            .create_job(&JobRequest::new(partition.clone(), job.clone()), |_| {
                ("in".to_owned(), Vec::new())
            })
            .await
            .unwrap();
        (store, partition, job)
    }

    /// Runs the worker on the pipe `tracking` until `act` has ended. Then nothing is left in the
    /// pipe.
    async fn run<T>(broker: &Memory, store: &Store, act: impl Future<Output = T>) -> T {
        let settings = Settings {
            input: "tracking".to_owned(),
            ..Settings::new("tracker")
        };
        let service = Runtime::new(settings, Arc::new(broker.clone()))
            .handler(TrackingWorker::new(store.clone()));
        let stop = CancellationToken::new();
        let act = async {
            let told = act.await;
            stop.cancel();
            told
        };
        let both = Box::pin(async { tokio::join!(service.run_until(stop.clone()), act) });
        let (ended, told) = tokio::time::timeout(Duration::from_secs(30), both)
            .await
            .unwrap();
        ended.unwrap();
        assert_eq!(broker.depth("tracking").await.unwrap(), 0);
        told
    }

    /// Runs the worker on a message for a pipe that cannot exist, until it is in the invalid pipe
    /// and the job has ended. Returns the reason there, and the job's failure.
    async fn end_of_undeliverable(change: impl FnOnce(&mut TaskMessage)) -> (String, String) {
        let broker = Memory::new();
        let (store, partition, job) = store_with_job().await;
        let to = "x".repeat(256);
        let mut message = TaskMessage::new("t", &to, &contract::BatchTask::default()).unwrap();
        message.tracking = Some(Tracking {
            job_task_id: Some("p:j.1".to_owned()),
            tracking_pipe: Some("tracking".into()),
            track_to: Some(to.into()),
            ..Tracking::default()
        });
        change(&mut message);
        broker
            .publish(Outgoing::new("tracking", message.encode()))
            .await
            .unwrap();
        let until_over = async {
            let mut invalid = broker.consume("tracker-invalid", 1).await.unwrap();
            let delivery = invalid.next().await.unwrap();
            let Some(HeaderValue::Text(reason)) = delivery.headers.get(REASON_HEADER).cloned()
            else {
                panic!("{:?}", delivery.headers)
            };
            delivery.ack();
            let changes = store.job_signal(&partition, &job);
            let failure = loop {
                let job = store.job(&partition, &job).await.unwrap().unwrap();
                if job.status.is_finished() {
                    assert_eq!(job.status, JobStatus::Failed);
                    break job.failures[0].failure_message.clone().unwrap();
                }
                changes.changed().await;
            };
            (reason.to_string(), failure)
        };
        run(&broker, &store, until_over).await
    }

    #[tokio::test]
    async fn diverted_message_for_a_pipe_that_cannot_exist_fails_its_task() {
        let cannot = "cannot exist: the name has 256 bytes; the limit is 255";
        let (reason, failure) = end_of_undeliverable(|_| {}).await;
        assert!(reason.ends_with(cannot), "{reason}");
        assert_eq!(failure, reason);
        // A task that has failed before keeps its own reason, too.
        let (reason, failure) = end_of_undeliverable(|message| {
            message.task_status = Some(TaskStatus::ResultException);
            message.task_data = Some(b"\"the page is torn\"".to_vec());
        })
        .await;
        assert!(
            reason.ends_with(&format!("{cannot}; it reports: \"the page is torn\"")),
            "{reason}"
        );
        assert_eq!(failure, reason);
    }

    #[tokio::test]
    async fn gathered_reports_count_unless_few_bytes_stand_for_too_many_tasks() {
        let broker = Memory::new();
        let (store, partition, job) = store_with_job().await;
        let gathered = |last: u32| GatheredReports {
            complete: vec![CompleteTasks {
                split: "p:j".to_owned(),
                numbers: vec![(1, last)],
            }],
            others: vec![TrackingReport::new(
                format!("p:j.{}*", last + 1),
                ReportStatus::Complete,
            )],
        };
        for last in [2, 2_000_000_000] {
            let message = TaskMessage::new("t", "tracking", &gathered(last)).unwrap();
            let message = Outgoing::new("tracking", message.encode());
            broker.publish(message).await.unwrap();
        }
        let until_over = async {
            let mut invalid = broker.consume("tracker-invalid", 1).await.unwrap();
            let refused = invalid.next().await.unwrap();
            let reason = refused.headers.get(REASON_HEADER).cloned();
            let expected = "more than 2000 tasks are complete".to_owned();
            assert_eq!(reason, Some(HeaderValue::Text(expected.into())));
            refused.ack();
            let changes = store.job_signal(&partition, &job);
            while store.job(&partition, &job).await.unwrap().unwrap().status != JobStatus::Completed
            {
                changes.changed().await;
            }
        };
        run(&broker, &store, until_over).await;
    }

    #[tokio::test]
    async fn report_is_counted_whatever_processes_crashed_while_they_held_it() {
        let broker = Memory::new();
        let (store, partition, job) = store_with_job().await;
        let task = TrackingReportTask {
            tracking_reports: vec![TrackingReport::new("p:j", ReportStatus::Complete)],
        };
        let message = TaskMessage::new("t", "tracking", &task).unwrap();
        let mut message = Outgoing::new("tracking.suspects", message.encode());
        // The number of crashes while a process handled the message alone.
        let crashes = HeaderValue::Integer(30);
        message.headers.set("x-batchwright-deaths", crashes);
        broker.publish(message).await.unwrap();
        let until_over = async {
            let changes = store.job_signal(&partition, &job);
            while store.job(&partition, &job).await.unwrap().unwrap().status != JobStatus::Completed
            {
                changes.changed().await;
            }
        };
        run(&broker, &store, until_over).await;
    }

    /// Publishes the beginning of a job of two subtasks and a final one, and its end once `is_time`
    /// says so. Returns the statuses that the job has had.
    async fn statuses(is_time: impl AsyncFn(&Memory, &[JobStatus]) -> bool) -> Vec<JobStatus> {
        let broker = Memory::new();
        let (store, partition, job) = store_with_job().await;
        let publish = async |reports: Vec<TrackingReport>| {
            let headers = ReportDetails::of(&reports);
            let task = TrackingReportTask {
                tracking_reports: reports,
            };
            let message = TaskMessage::new("t", "tracking", &task).unwrap();
            let mut outgoing = Outgoing::new("tracking", message.encode());
            let gathered = HeaderValue::Text("true".into());
            outgoing.headers.set(GATHERED_HEADER, gathered);
            if let Some(details) = headers {
                let details = HeaderValue::Text(details.into());
                outgoing.headers.set(REPORT_DETAILS_HEADER, details);
            }
            broker.publish(outgoing).await.unwrap();
        };
        let done = |id| TrackingReport::new(id, ReportStatus::Complete);
        let size = TrackingReport {
            digest: Some(SourceDigest([0; 32])),
            ..TrackingReport::new("p:j.3*", ReportStatus::Progress)
        };
        publish(vec![size, done("p:j.1")]).await;
        let until_over = async {
            let changes = store.job_signal(&partition, &job);
            let seen = async || {
                let history = store.history(&partition, &job).await.unwrap();
                history.iter().map(|change| change.to).collect::<Vec<_>>()
            };
            while !is_time(&broker, &seen().await).await {
                tokio::task::yield_now().await;
            }
            publish(vec![done("p:j.2"), done("p:j.3*")]).await;
            loop {
                let seen = seen().await;
                if seen.last() == Some(&JobStatus::Completed) {
                    return seen;
                }
                changes.changed().await;
            }
        };
        run(&broker, &store, until_over).await
    }

    // No time passes while the test or the worker has anything to do, so the end of the job always
    // comes in time.
    #[tokio::test(start_paused = true)]
    async fn small_job_ends_in_the_transaction_in_which_it_begins() {
        let once_taken =
            async |broker: &Memory, _: &[JobStatus]| broker.depth("tracking").await.unwrap() == 0;
        let seen = statuses(once_taken).await;
        assert_eq!(seen, [JobStatus::Waiting, JobStatus::Completed]);
    }

    #[tokio::test]
    async fn small_job_that_does_not_end_at_once_is_seen_to_begin() {
        let once_active =
            async |_: &Memory, seen: &[JobStatus]| seen.last() == Some(&JobStatus::Active);
        let seen = statuses(once_active).await;
        let all = [JobStatus::Waiting, JobStatus::Active, JobStatus::Completed];
        assert_eq!(seen, all);
    }
}
