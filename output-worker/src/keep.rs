//! Writes the outputs of jobs to blobs, and commits which tasks have one. Waits as long as one of
//! both is not possible.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use blobs::{BlobError, BlobName, Blobs, Fingerprint};
use bytes::Bytes;
use contract::metrics::{BLOB_SECONDS, BLOBS_MERGED, BLOBS_WRITTEN, OUTPUT_BYTES, OUTPUTS_KEPT};
use contract::rest::{KeptOutputs, OutputStatus};
use framework::handler::Disposition;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use metrics::{counter, histogram};
use store::{Incarnation, Keeping, NewBlob, NewOutputs, OutputsOf, StoreError};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use uuid::Uuid;

use crate::line::Output;
use crate::{Limits, OutputWorker};

/// The size of a blob from which on a further one is begun, in bytes.
pub(crate) const BLOB: usize = 16 << 20;
/// The number of blobs that are written at the same time.
const WRITERS: usize = 16;
/// The first pause after an error. It doubles up to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_millis(50);
/// The longest of these pauses.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// How long a blob may wait for its commit. An older one may be swept as one that nothing names, so
/// it is written again.
const FRESH: Duration = Duration::from_hours(1);
/// How long a job is known to tell why its outputs wait.
const NOTED: Duration = Duration::from_secs(30);
/// How long the number of bytes of all jobs is relied on.
const COUNTED: Duration = Duration::from_secs(10);

/// The outputs of a job that have arrived, each with the index of its delivery.
#[derive(Debug, Clone)]
pub struct JobOutputs {
    pub job: Incarnation,
    /// What is kept already.
    pub kept: KeptOutputs,
    pub outputs: Vec<(usize, Output)>,
}

impl JobOutputs {
    fn key(&self) -> (String, String) {
        let Incarnation { partition, job, .. } = &self.job;
        (partition.to_string(), job.to_string())
    }

    /// Returns what happens to each of the outputs, if none is kept.
    fn others(self, what: impl Fn() -> Disposition) -> impl Iterator<Item = (usize, Disposition)> {
        let outputs = self.outputs.into_iter();
        outputs.map(move |(index, _)| (index, what()))
    }
}

/// Blobs to write, and what the store is told of them.
struct Plan {
    new: NewOutputs,
    contents: Vec<Bytes>,
    /// The index of the delivery of each line of each blob.
    indices: Vec<Vec<usize>>,
}

impl OutputWorker {
    /// Keeps the outputs of jobs. Returns those that are not kept because their job is gone
    /// meanwhile or locked, and what happens to them.
    pub(crate) async fn keep_of(
        &self,
        mut jobs: Vec<JobOutputs>,
    ) -> Result<Vec<(usize, Disposition)>, StoreError> {
        let mut others = self.put_off_locked(&mut jobs).await?;
        while !jobs.is_empty() {
            let room = self.room().await?;
            let plans = plan_all(&jobs, &self.limits, room);
            let results = self.write_and_commit(&plans).await?;
            let mut again = Vec::new();
            for ((mut job, plan), result) in jobs.into_iter().zip(plans).zip(results) {
                match result {
                    Some(Keeping::Kept) => self.count(&plan),
                    Some(Keeping::Repeated(repeated)) => {
                        let repeated = plan.indices_of(&repeated);
                        counter!(OUTPUTS_KEPT, "outcome" => "repeated")
                            .increment(repeated.len() as u64);
                        job.outputs.retain(|(index, _)| !repeated.contains(index));
                        again.push(job);
                    }
                    Some(Keeping::Changed) => match self.look_again(&job).await? {
                        Some(kept) => again.push(JobOutputs { kept, ..job }),
                        None => others.extend(job.others(|| Disposition::Discard)),
                    },
                    Some(Keeping::Locked(delay)) => {
                        others.extend(job.others(|| Disposition::Snooze(delay)));
                    }
                    // Its blobs have become too old.
                    None => again.push(job),
                }
            }
            jobs = again;
        }
        Ok(others)
    }

    /// Takes out the jobs that are known to be locked: a blob of theirs would be written in vain
    /// each time.
    async fn put_off_locked(
        &self,
        jobs: &mut Vec<JobOutputs>,
    ) -> Result<Vec<(usize, Disposition)>, StoreError> {
        let locked = self
            .patiently("kept outputs cannot be recorded", || {
                self.store.still_locked(jobs.iter().map(|job| &job.job))
            })
            .await?;
        let mut others = Vec::new();
        for job in jobs.extract_if(.., |job| locked.contains_key(&job.key())) {
            let delay = locked[&job.key()];
            others.extend(job.others(|| Disposition::Snooze(delay)));
        }
        Ok(others)
    }

    /// Writes the blobs and commits. Returns `None` for each job if that took so long that the
    /// blobs must be written again.
    async fn write_and_commit(&self, plans: &[Plan]) -> Result<Vec<Option<Keeping>>, StoreError> {
        let owner = self.owner().await?;
        let begun = Instant::now();
        self.write(plans, &owner).await;
        let new: Vec<NewOutputs> = plans.iter().map(|plan| plan.new.clone()).collect();
        let committed = self
            .patiently("kept outputs cannot be recorded", || async {
                if begun.elapsed() > FRESH {
                    return Ok(None);
                }
                // If an attempt is in effect although it failed, the next one finds these outputs
                // there.
                self.store.keep_outputs(&new).await.map(Some)
            })
            .await?;
        Ok(match committed {
            Some(results) => results.into_iter().map(Some).collect(),
            None => plans.iter().map(|_| None).collect(),
        })
    }

    /// Writes blobs until all are safe. The jobs tell meanwhile why their outputs wait.
    async fn write(&self, plans: &[Plan], owner: &str) {
        let (mut delays, work) = (delays().build(), self.waiting.begin());
        let mut noted: Option<(String, Instant)> = None;
        let mut left: Vec<(usize, usize)> = Vec::new();
        for (at, plan) in plans.iter().enumerate() {
            left.extend((0..plan.contents.len()).map(|blob| (at, blob)));
        }
        let begun = Instant::now();
        while let Err(error) = self.try_write(plans, owner, &left).await {
            if noted.is_none() {
                warn!(%error, "outputs cannot be kept; they wait");
            }
            let reason = error.to_string();
            // Other outputs of the job may have been kept meanwhile, which removes the note.
            let is_known = noted
                .as_ref()
                .is_some_and(|(known, at)| *known == reason && at.elapsed() < NOTED);
            if !is_known {
                let jobs: Vec<Incarnation> =
                    plans.iter().map(|plan| plan.new.job.clone()).collect();
                // Only the note is missing if this fails.
                let note = self.store.note_waiting_outputs(&jobs, &reason);
                if note.await.is_ok() {
                    noted = Some((reason.clone(), Instant::now()));
                }
            }
            work.waits(reason);
            sleep(delays.next().unwrap_or(MAX_DELAY)).await;
        }
        histogram!(BLOB_SECONDS).record(begun.elapsed());
        if noted.is_some() {
            info!("outputs are kept again");
        }
    }

    async fn try_write(
        &self,
        plans: &[Plan],
        owner: &str,
        blobs: &[(usize, usize)],
    ) -> Result<(), BlobError> {
        let mut writes = Vec::with_capacity(blobs.len());
        for (at, blob) in blobs {
            let plan = &plans[*at];
            let name = BlobName {
                owner: owner.to_owned(),
                group: plan.new.job.number,
                name: plan.new.blobs[*blob].name.clone(),
            };
            writes.push(write_blob(&self.blobs, name, plan.contents[*blob].clone()));
        }
        stream::iter(writes)
            .buffer_unordered(WRITERS)
            .try_collect()
            .await
    }

    /// Reads once more what is kept of a job; `None` if it is gone.
    async fn look_again(&self, job: &JobOutputs) -> Result<Option<KeptOutputs>, StoreError> {
        let Incarnation {
            partition,
            job: id,
            number,
            ..
        } = &job.job;
        let of = self
            .patiently("the outputs of a job cannot be read", || {
                self.store.outputs_of(partition, id, Some(*number))
            })
            .await?;
        Ok(match of {
            OutputsOf::Kept(_, kept) => Some(kept),
            OutputsOf::Gone | OutputsOf::NotKept => None,
        })
    }

    /// Returns how many bytes can be kept before all jobs together have reached their limit.
    async fn room(&self) -> Result<u64, StoreError> {
        let known = self.state().bytes;
        let known = known.filter(|(_, counted)| counted.elapsed() < COUNTED);
        let bytes = if let Some((bytes, _)) = known {
            bytes
        } else {
            let bytes = self
                .patiently("the kept outputs cannot be counted", || {
                    self.store.kept_bytes()
                })
                .await?;
            self.state().bytes = Some((bytes, Instant::now()));
            bytes
        };
        Ok(self.limits.bytes.saturating_sub(bytes))
    }

    pub(crate) async fn owner(&self) -> Result<String, StoreError> {
        let known = self.state().owner.clone();
        if let Some(owner) = known {
            return Ok(owner);
        }
        let owner = self
            .patiently("the name of the database cannot be read", || {
                self.store.blob_owner()
            })
            .await?;
        self.state().owner = Some(owner.clone());
        Ok(owner)
    }

    /// Runs an operation of the store, again and again while the store is unavailable. Any other
    /// error is final.
    pub(crate) async fn patiently<T, F>(
        &self,
        trouble: &str,
        operation: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let (mut delays, work) = (delays().build(), self.waiting.begin());
        loop {
            match operation().await {
                Err(StoreError::Unavailable(cause)) => {
                    work.waits(format!("{trouble}: {cause}"));
                    sleep(delays.next().unwrap_or(MAX_DELAY)).await;
                }
                result => return result,
            }
        }
    }

    fn count(&self, plan: &Plan) {
        let mut bytes = 0;
        for blob in &plan.new.blobs {
            let outcome = match blob.status {
                OutputStatus::Done => "done",
                OutputStatus::Failed => "failed",
            };
            counter!(OUTPUTS_KEPT, "outcome" => outcome).increment(blob.tasks.len() as u64);
            bytes += blob.bytes;
        }
        counter!(OUTPUTS_KEPT, "outcome" => "left-out").increment(plan.new.left_out.len() as u64);
        counter!(OUTPUT_BYTES).increment(bytes);
        // So that it is there before the first ones are merged.
        counter!(BLOBS_MERGED).increment(0);
        self.count_small(&plan.new.job, &plan.new.blobs);
        counter!(BLOBS_WRITTEN).increment(plan.new.blobs.len() as u64);
        if let Some((known, _)) = &mut self.state().bytes {
            *known += bytes;
        }
    }
}

async fn write_blob(blobs: &Blobs, name: BlobName, content: Bytes) -> Result<(), BlobError> {
    blobs.write(&name, content).await
}

fn delays() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .without_max_times()
}

/// Plans the blobs of all jobs, which have this many bytes of room together.
fn plan_all(jobs: &[JobOutputs], limits: &Limits, mut room: u64) -> Vec<Plan> {
    let mut plans = Vec::with_capacity(jobs.len());
    for job in jobs {
        let plan = Plan::of(job, limits, room);
        let bytes: u64 = plan.new.blobs.iter().map(|blob| blob.bytes).sum();
        room = room.saturating_sub(bytes);
        plans.push(plan);
    }
    plans
}

impl Plan {
    fn of(job: &JobOutputs, limits: &Limits, room: u64) -> Self {
        let mut plan = Self {
            new: NewOutputs {
                job: job.job.clone(),
                blobs: Vec::new(),
                left_out: Vec::new(),
                reason: None,
            },
            contents: Vec::new(),
            indices: Vec::new(),
        };
        let kept = &job.kept;
        let mut left = Left {
            outputs: limits
                .per_job
                .saturating_sub((kept.done + kept.failed).unsigned_abs()),
            bytes: limits
                .bytes_per_job
                .saturating_sub(kept.bytes.unsigned_abs()),
            room,
        };
        let mut seen = HashSet::new();
        // Failures first: a task that has failed and is done now has both.
        for status in [OutputStatus::Failed, OutputStatus::Done] {
            let mut blob = Vec::new();
            let (mut tasks, mut indices) = (Vec::new(), Vec::new());
            let outputs = job.outputs.iter().filter(|(_, it)| it.status == status);
            for (index, output) in outputs {
                if !seen.insert((&output.task, status)) {
                    continue;
                }
                let reason = if kept.removed_time.is_some() {
                    Some(
                        "the outputs of the job were removed, because their time was over"
                            .to_owned(),
                    )
                } else {
                    left.take(output.line.len() as u64, limits)
                };
                if reason.is_some() {
                    plan.new.left_out.push((output.task.clone(), status));
                    plan.new.reason = reason;
                    continue;
                }
                blob.extend_from_slice(&output.line);
                tasks.push(output.task.clone());
                indices.push(*index);
                if blob.len() >= BLOB {
                    plan.add(
                        status,
                        std::mem::take(&mut blob),
                        std::mem::take(&mut tasks),
                        std::mem::take(&mut indices),
                    );
                }
            }
            if !tasks.is_empty() {
                plan.add(status, blob, tasks, indices);
            }
        }
        plan
    }

    fn add(
        &mut self,
        status: OutputStatus,
        content: Vec<u8>,
        tasks: Vec<Vec<u32>>,
        indices: Vec<usize>,
    ) {
        let Fingerprint { bytes, crc32 } = Fingerprint::of(&content);
        self.new.blobs.push(NewBlob {
            name: format!("{}.ndjson", Uuid::now_v7()),
            bytes,
            crc32,
            status,
            tasks,
        });
        self.contents.push(content.into());
        self.indices.push(indices);
    }

    fn indices_of(&self, lines: &BTreeSet<(usize, usize)>) -> HashSet<usize> {
        lines
            .iter()
            .map(|(blob, line)| self.indices[*blob][*line])
            .collect()
    }
}

/// How much more of a job may be kept.
struct Left {
    outputs: u64,
    bytes: u64,
    room: u64,
}

impl Left {
    /// Takes the room of one output of this many bytes. Returns which limit leaves none for it.
    fn take(&mut self, bytes: u64, limits: &Limits) -> Option<String> {
        if self.outputs == 0 {
            let limit = limits.per_job;
            return Some(format!(
                "the job has {limit} outputs, which is the limit (--outputs-per-job)"
            ));
        }
        if self.bytes < bytes {
            let limit = limits.bytes_per_job >> 20;
            return Some(format!(
                "the outputs of the job have reached the limit of {limit} MiB (--outputs-size-per-job)"
            ));
        }
        if self.room < bytes {
            let limit = limits.bytes >> 20;
            return Some(format!(
                "the outputs of all jobs have reached the limit of {limit} MiB (--outputs-size)"
            ));
        }
        self.outputs -= 1;
        self.bytes -= bytes;
        self.room -= bytes;
        None
    }
}

#[cfg(test)]
mod tests {
    use contract::{JobId, PartitionId};
    use harness::{HeldLock, wait_for};
    use store::{Creation, JobRequest, Store};

    use super::*;

    /// Creates a job. Returns an output of it, of the delivery with this index.
    async fn output_of(store: &Store, id: &str, index: usize) -> (Incarnation, (usize, Output)) {
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse(id).unwrap());
        let request = JobRequest {
            output_pipe: Some("out".to_owned()),
            ..JobRequest::new(partition.clone(), job.clone())
        };
        let created = store.create_job(&request, |_| ("in".to_owned(), Vec::new()));
        let Creation::Created(incarnation) = created.await.unwrap() else {
            panic!("{id} is there")
        };
        let output = Output {
            partition,
            job,
            incarnation: None,
            task: vec![1],
            status: OutputStatus::Done,
            line: b"{\"task\":\"1\"}\n".to_vec(),
        };
        (incarnation, (index, output))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn outputs_of_a_locked_job_come_again_and_those_of_another_one_are_kept() {
        let database = harness::postgres().await.unwrap();
        let worker = OutputWorker::new(Store::open(&database.url).await.unwrap(), Blobs::memory());
        let (locked, first) = output_of(&worker.store, "locked", 0).await;
        let (_, second) = output_of(&worker.store, "other", 1).await;
        let row = "select 1 from batchwright.job where job_id = 'locked' for update";
        let lock = HeldLock::by(&database.url, row).await.unwrap();
        let blobs = async || {
            let owner = worker.owner().await.unwrap();
            worker
                .blobs
                .list(&owner, locked.number)
                .await
                .unwrap()
                .len()
        };
        let keep =
            async |outputs: &[(usize, Output)]| worker.keep_all(outputs.to_vec()).await.unwrap();
        let others = keep(&[first.clone(), second.clone()]).await;
        assert!(
            matches!(others[..], [(0, Disposition::Snooze(_))]),
            "{others:?}"
        );
        let written = blobs().await;
        let others = keep(std::slice::from_ref(&first)).await;
        assert!(
            matches!(others[..], [(0, Disposition::Snooze(_))]),
            "{others:?}"
        );
        // None is written in vain while the job is known to be locked.
        assert_eq!(blobs().await, written);
        lock.let_go().await.unwrap();
        wait_for("the output to be kept", async || {
            let others = keep(std::slice::from_ref(&first)).await;
            others.is_empty().then_some(()).ok_or(format!("{others:?}"))
        })
        .await;
        let kept = worker
            .store
            .last_kept_blobs(locked.number, 10)
            .await
            .unwrap();
        assert_eq!(kept.len(), 1);
    }
}
