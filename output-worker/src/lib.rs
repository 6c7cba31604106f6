//! Keeps the outputs of jobs: writes them to blobs, and tells the tracking worker then that their
//! tasks are complete.
//!
//! [`OutputWorker`] is a [`BatchHandler`] on the pipe of the outputs. The results of a job that
//! keeps its outputs arrive there with their tracking, which ends elsewhere (`trackTo`), so nothing
//! counts them before this worker reports them.
//!
//! What must stay true:
//! - **Completed means all is kept.** A blob is safe before the store knows it; the store has
//!   marked its tasks before they are reported complete; the report is confirmed before the
//!   delivery is acknowledged.
//! - An output is kept once, however often it arrives. A process that is killed in between leaves
//!   at most a blob that nothing names.
//! - Nothing is lost while outputs cannot be written: deliveries wait, and the job says why.
//! - A job that somebody keeps locked holds up no other: its outputs come again later.
//!
//! A failure that is kept is not reported: its worker, or the tracking worker that forwarded it,
//! has done that.
#![warn(missing_docs)]

mod keep;
mod line;
mod merge;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use blobs::Blobs;
use contract::headers::LABEL_HEADER;
use contract::rest::OutputStatus;
use contract::{JobId, PartitionId, ReportStatus, TrackingReport};
use framework::broker::HeaderValue;
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use framework::health::{Health, Waiting};
use parking_lot::Mutex;
use store::{Incarnation, OutputsOf, Store, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use self::keep::JobOutputs;
use self::line::{NoOutput, Output, read};

/// The largest number of messages in a batch.
const MAX_BATCH: usize = 500;
/// The largest number of bytes of their bodies. All are in memory, several times: as messages, as
/// lines and as blobs.
const MAX_BYTES: usize = 16 << 20;
/// The shortest time between two batches that are not full. Each batch is at least one file for
/// each of its jobs.
const GATHERED: Duration = Duration::from_millis(100);
/// The degradation of outputs that wait, and what reports it.
const OUTPUTS: &str = "outputs";
const SOURCE: &str = "output worker";

/// How much is kept. What is over a limit is counted and not kept, and its task is complete all the
/// same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of outputs of a job.
    pub per_job: u64,
    /// The bytes of the outputs of a job.
    pub bytes_per_job: u64,
    /// The bytes of the outputs of all jobs.
    pub bytes: u64,
}

impl Limits {
    /// The default of [`Self::per_job`].
    pub const DEFAULT_PER_JOB: u64 = 100_000_000;
    /// The default of [`Self::bytes_per_job`].
    pub const DEFAULT_BYTES_PER_JOB: u64 = 10 << 30;
    /// The default of [`Self::bytes`].
    pub const DEFAULT_BYTES: u64 = 100 << 30;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_job: Self::DEFAULT_PER_JOB,
            bytes_per_job: Self::DEFAULT_BYTES_PER_JOB,
            bytes: Self::DEFAULT_BYTES,
        }
    }
}

/// Keeps outputs in blobs.
#[derive(Debug, Clone)]
pub struct OutputWorker {
    store: Store,
    blobs: Blobs,
    limits: Limits,
    /// The outputs, which wait while they cannot be kept.
    waiting: Waiting,
    state: Arc<Mutex<State>>,
    /// Told when a job has many small blobs.
    due: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// When the last batch began.
    batch: Option<Instant>,
    /// The name of the database among others.
    owner: Option<String>,
    /// The jobs with small blobs, and how many of these were written since the last ones were
    /// merged.
    small: HashMap<i64, (Incarnation, u32)>,
    /// The bytes that are kept of all jobs, and when they were counted.
    bytes: Option<(u64, Instant)>,
}

impl OutputWorker {
    /// Returns a worker that keeps outputs in `blobs` and tells `store` which.
    pub fn new(store: Store, blobs: Blobs) -> Self {
        Self {
            store,
            blobs,
            limits: Limits::default(),
            waiting: Waiting::new(Health::default(), OUTPUTS, SOURCE),
            state: Arc::default(),
            due: Arc::default(),
        }
    }

    /// Sets how much is kept.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets what the process can do, to which the worker adds outputs that cannot be kept.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.waiting = Waiting::new(health, OUTPUTS, SOURCE);
        self
    }
}

impl BatchHandler for OutputWorker {
    fn max_batch(&self) -> usize {
        MAX_BATCH
    }

    fn max_bytes(&self) -> Option<usize> {
        Some(MAX_BYTES)
    }

    /// What a failed or cancelled job has made is kept, too.
    fn handles_ended_jobs(&self) -> bool {
        true
    }

    async fn handle(&self, batch: &[Received], _: &Publisher) -> Vec<Disposition> {
        self.gather(batch).await;
        let (mut dispositions, mut outputs) = (Vec::with_capacity(batch.len()), Vec::new());
        for (index, received) in batch.iter().enumerate() {
            if received.is_diverted() {
                dispositions.push(Disposition::Forward);
                continue;
            }
            let label = match received.headers().get(LABEL_HEADER) {
                Some(HeaderValue::Text(label)) => Some(label.as_str()),
                _ => None,
            };
            dispositions.push(match read(received.message(), label) {
                Ok(output) => {
                    let disposition = when_kept(received, output.status);
                    outputs.push((index, output));
                    disposition
                }
                Err(NoOutput::Untracked(reason)) => Disposition::Invalid(reason),
                Err(NoOutput::OfNoUse(reason)) => Disposition::Fail(reason),
            });
        }
        let all: Vec<usize> = outputs.iter().map(|(index, _)| *index).collect();
        match self.keep_all(outputs).await {
            Ok(others) => {
                for (index, disposition) in others {
                    dispositions[index] = disposition;
                }
            }
            Err(error) => {
                for index in all {
                    dispositions[index] = Disposition::Redeliver(error.to_string());
                }
            }
        }
        dispositions
    }

    fn unready_reason(&self) -> Option<String> {
        let outage = self.store.availability().borrow().outage();
        outage.or_else(|| self.waiting.outage())
    }

    /// The task that has made an output is done. Crashes say nothing about the output.
    fn gives_up(&self) -> bool {
        false
    }
}

/// Returns what happens to a delivery whose output is kept.
fn when_kept(received: &Received, status: OutputStatus) -> Disposition {
    let outputs = Outputs::default();
    Disposition::Done(match (received.message().job_task_id(), status) {
        (Some(id), OutputStatus::Done) => {
            outputs.with_report(TrackingReport::new(id, ReportStatus::Complete))
        }
        _ => outputs,
    })
}

impl OutputWorker {
    /// Merges small blobs of jobs that have many of them, until this is dropped. Runs beside the
    /// worker, whose batches do not wait for it.
    pub async fn merge(&self) {
        loop {
            self.due.notified().await;
            self.merge_small().await;
        }
    }

    /// Lets further outputs arrive, unless the batch has many or the last one is some time ago.
    async fn gather(&self, batch: &[Received]) {
        let now = Instant::now();
        let begin = self.state().batch.map_or(now, |last| last + GATHERED);
        let bytes: usize = batch.iter().map(Received::bytes).sum();
        let is_large = batch.len() >= MAX_BATCH / 2 || bytes >= MAX_BYTES / 2;
        if !is_large && begin > now {
            sleep_until(begin).await;
        }
        self.state().batch = Some(Instant::now());
    }

    /// Keeps outputs. Returns those that are not kept because of their job, and what happens to
    /// them.
    async fn keep_all(
        &self,
        outputs: Vec<(usize, Output)>,
    ) -> Result<Vec<(usize, Disposition)>, StoreError> {
        type Job = (PartitionId, JobId, Option<i64>);
        let mut found: HashMap<Job, OutputsOf> = HashMap::new();
        let mut jobs: BTreeMap<i64, JobOutputs> = BTreeMap::new();
        let mut others = Vec::new();
        for (index, output) in outputs {
            let key = (
                output.partition.clone(),
                output.job.clone(),
                output.incarnation,
            );
            if !found.contains_key(&key) {
                let of = self
                    .patiently("the outputs of a job cannot be read", || {
                        self.store.outputs_of(&key.0, &key.1, key.2)
                    })
                    .await?;
                found.insert(key.clone(), of);
            }
            match &found[&key] {
                OutputsOf::Gone => others.push((index, Disposition::Discard)),
                OutputsOf::NotKept => {
                    let reason = format!(
                        "the job {} does not keep its outputs: its workers must send them elsewhere",
                        output.job
                    );
                    others.push((index, Disposition::Fail(reason)));
                }
                OutputsOf::Kept(incarnation, kept) => {
                    let job = jobs
                        .entry(incarnation.number)
                        .or_insert_with(|| JobOutputs {
                            job: (**incarnation).clone(),
                            kept: kept.clone(),
                            outputs: Vec::new(),
                        });
                    job.outputs.push((index, output));
                }
            }
        }
        others.extend(self.keep_of(jobs.into_values().collect()).await?);
        Ok(others)
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}
