//! The outputs that the service keeps: which tasks have one, and which lines of which blobs they
//! are. The blobs themselves are not in the database.
//!
//! What must stay true:
//! - An output is kept once: the transaction that adds its line marks its task, and refuses a line
//!   of a task that is marked.
//! - A line is in a blob that was complete before the transaction began. A blob without a row in
//!   the manifest is an orphan.
//! - Nothing is forgotten: the rows of a deleted job stay until its blobs are deleted.
//! - The manifest has the checksum of each blob as it was written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::rest::{self, OutputStatus};
use contract::{JobId, PartitionId};

use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::{DbError, KeptBlobRow, KeptRow, KeptTaskRow, millis, sql};
use crate::job_row::JobRow;
use crate::ledger::{Bits, CHUNK, NodeKey, path_of, position};
use crate::model::{Incarnation, LeftOut};
use crate::{Result, Store};

/// The chunk of the job's own task, which has no parent.
const OWN_TASK: i32 = -1;
/// The first bit of the failures that are not kept.
const LEFT_OUT: usize = CHUNK as usize;
/// How many rows of each table one transaction deletes.
const ROWS: u32 = 10_000;
/// How many jobs one sweep looks at.
const JOBS: u32 = 50;

/// What the store knows of a job whose output has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputsOf {
    /// There is no such job, or it is another incarnation.
    Gone,
    /// The job does not keep its outputs.
    NotKept,
    /// The job keeps its outputs; these are there already.
    Kept(Box<Incarnation>, rest::KeptOutputs),
}

/// The new outputs of one job, in blobs that are written.
#[derive(Debug, Clone)]
pub struct NewOutputs {
    /// The job.
    pub job: Incarnation,
    /// The blobs with their outputs.
    pub blobs: Vec<NewBlob>,
    /// The outputs that are counted and not kept.
    pub left_out: Vec<(Vec<u32>, OutputStatus)>,
    /// Why they are not kept.
    pub reason: Option<String>,
}

/// A blob that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBlob {
    /// The name of the blob.
    pub name: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The CRC-32 of the bytes.
    pub crc32: u32,
    /// What the lines are.
    pub status: OutputStatus,
    /// The path of the task of each line.
    pub tasks: Vec<Vec<u32>>,
}

/// The result of keeping the outputs of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeping {
    /// They are kept.
    Kept,
    /// These outputs (number of the blob, number of its line) are kept already, so none of the
    /// job's were kept now.
    Repeated(BTreeSet<(usize, usize)>),
    /// The job is gone, or its outputs were removed. None were kept.
    Changed,
    /// Another transaction keeps the job locked. None were kept; it must be tried again after this
    /// delay.
    Locked(Duration),
}

/// A blob with lines of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBlob {
    /// The name of the blob.
    pub name: String,
    /// The number of its first line among all lines of the job.
    pub first_line: u64,
    /// The number of its lines.
    pub lines: u64,
    /// The number of its bytes.
    pub bytes: u64,
    /// The CRC-32 of its bytes.
    pub crc32: u32,
    /// What the lines are.
    pub status: OutputStatus,
}

impl Store {
    /// Returns the name of this database among others that keep blobs in the same place.
    pub async fn blob_owner(&self) -> Result<String> {
        Ok(sql::outputs::owner(&mut self.database.reader().await?).await?)
    }

    /// Returns what is kept of a job, and the number of its lines: they have the failures of tasks
    /// that are done meanwhile, too. Both are of one moment.
    pub async fn kept_with_lines(&self, incarnation: i64) -> Result<(rest::KeptOutputs, i64)> {
        let db = &mut self.database.reader().await?;
        let kept = sql::outputs::kept(db, &[incarnation]).await?.pop();
        Ok(kept.map_or_else(Default::default, |kept| {
            let lines = kept.lines;
            (kept.into_rest(), lines)
        }))
    }

    /// Returns the bytes of all outputs that are kept.
    pub async fn kept_bytes(&self) -> Result<u64> {
        Ok(sql::outputs::bytes(&mut self.database.reader().await?).await?)
    }

    /// Returns what is kept of a job. Without an incarnation, a first one is meant, as in job task
    /// ids.
    pub async fn outputs_of(
        &self,
        partition: &PartitionId,
        job: &JobId,
        incarnation: Option<i64>,
    ) -> Result<OutputsOf> {
        let row = self.job_row(partition, job).await?;
        let Some(row) = row.filter(|row| row.matches(incarnation)) else {
            return Ok(OutputsOf::Gone);
        };
        if row.output_pipe.is_none() {
            return Ok(OutputsOf::NotKept);
        }
        let db = &mut self.database.reader().await?;
        let kept = sql::outputs::kept(db, &[row.incarnation]).await?.pop();
        let kept = kept.map(KeptRow::into_rest).unwrap_or_default();
        Ok(OutputsOf::Kept(Box::new(row.to_incarnation()), kept))
    }

    /// Keeps the outputs of several jobs: for each job all of them or none, as the result says, in
    /// the same order.
    pub async fn keep_outputs(&self, new: &[NewOutputs]) -> Result<Vec<Keeping>> {
        let locks: JobLocks = new.iter().map(|new| key(&new.job)).collect();
        let kept =
            self.run_tx_on_free_jobs("keep_outputs", locks, |tx| Box::pin(keep_all(tx, new)));
        let (mut results, left_out) = kept.await?;
        for (new, result) in new.iter().zip(&mut results) {
            if let Some(delay) = left_out.get(&key(&new.job)) {
                *result = Keeping::Locked(*delay);
            }
        }
        Ok(results)
    }

    /// Returns those of these jobs that another transaction keeps locked, as far as they were
    /// locked when they were last tried.
    pub async fn still_locked(
        &self,
        jobs: impl IntoIterator<Item = &Incarnation>,
    ) -> Result<LeftOut> {
        let known = self.locked_jobs.known_among(jobs.into_iter().map(key));
        if known.is_empty() {
            return Ok(LeftOut::new());
        }
        let tried = self.run_tx_on_free_jobs("still_locked", known, |tx| {
            Box::pin(async move {
                tx.lock_known_jobs().await?;
                Ok(End::Rollback(()))
            })
        });
        let ((), left_out) = tried.await?;
        Ok(left_out)
    }

    /// Notes that the outputs of these jobs wait for this reason. Jobs that another transaction
    /// keeps locked are left out.
    pub async fn note_waiting_outputs(&self, jobs: &[Incarnation], reason: &str) -> Result<()> {
        let locks: JobLocks = jobs.iter().map(key).collect();
        let noted = self.run_tx_on_free_jobs("note_waiting_outputs", locks, |tx| {
            Box::pin(async move {
                for job in tx.lock_known_jobs().await? {
                    if jobs.iter().any(|wanted| wanted.number == job.incarnation) {
                        let kept = sql::outputs::lock_kept(tx, job.incarnation).await?;
                        let mut kept = kept.unwrap_or_else(|| KeptRow::new(job.incarnation));
                        kept.waiting = Some(reason.to_owned());
                        sql::outputs::save_kept(tx, &kept).await?;
                        tx.notify_job(job.partition.as_str(), job.job.as_str());
                    }
                }
                Ok(End::Commit(()))
            })
        });
        noted.await.map(drop)
    }

    /// Notes which blob of a job was found to be not as it was written, or, without one, that none
    /// is any more.
    pub async fn note_damaged_outputs(&self, incarnation: i64, blob: Option<&str>) -> Result<()> {
        self.run_tx("note_damaged_outputs", |tx| {
            Box::pin(async move {
                let Some(mut kept) = sql::outputs::lock_kept(tx, incarnation).await? else {
                    return Ok(End::Rollback(()));
                };
                kept.damaged = blob.map(str::to_owned);
                sql::outputs::save_kept(tx, &kept).await?;
                Ok(End::Commit(()))
            })
        })
        .await
    }

    /// Returns some blobs with lines of a job, from the one with this line on, or after it.
    pub async fn kept_blobs(
        &self,
        incarnation: i64,
        from_line: u64,
        status: Option<OutputStatus>,
        limit: u32,
    ) -> Result<Vec<KeptBlob>> {
        let from_line = i64::try_from(from_line).unwrap_or(i64::MAX);
        let failed = status.map(|status| status == OutputStatus::Failed);
        let db = &mut self.database.reader().await?;
        let rows = sql::outputs::blobs(db, incarnation, from_line, failed, limit).await?;
        Ok(rows.into_iter().map(KeptBlobRow::into_blob).collect())
    }

    /// Returns the blobs with the last lines of a job, in the order of their lines.
    pub async fn last_kept_blobs(&self, incarnation: i64, limit: u32) -> Result<Vec<KeptBlob>> {
        let db = &mut self.database.reader().await?;
        let rows = sql::outputs::last_blobs(db, incarnation, limit).await?;
        Ok(rows.into_iter().map(KeptBlobRow::into_blob).collect())
    }

    /// Puts the blob `name`, which has the lines of these blobs one after the other and this
    /// CRC-32, in their place. Returns false, and changes nothing, if they are not all there any
    /// more.
    pub async fn merge_kept_blobs(
        &self,
        job: &Incarnation,
        blobs: &[KeptBlob],
        (name, crc32): (&str, u32),
    ) -> Result<bool> {
        self.run_tx_on_jobs("merge_kept_blobs", JobLocks::from([key(job)]), |tx| {
            Box::pin(merge(tx, job.number, blobs, (name, crc32)))
        })
        .await
    }

    /// Returns which of these tasks have a result that is kept.
    pub async fn have_results(&self, incarnation: i64, tasks: &[Vec<u32>]) -> Result<Vec<bool>> {
        let keys = keys_of(tasks);
        let db = &mut self.database.reader().await?;
        let rows = sql::outputs::tasks(db, incarnation, &keys, false).await?;
        let marks = Marks::new(rows);
        Ok(tasks.iter().map(|task| marks.is_done(task)).collect())
    }

    /// Removes the outputs of jobs that have ended longer than `keep` ago, unless that is `None`:
    /// they cannot be read any more. Returns some incarnations whose blobs are to be deleted, of
    /// deleted jobs, too, and then forgotten ([`Self::forget_outputs`]).
    pub async fn doomed_outputs(&self, keep: Option<Duration>) -> Result<Vec<i64>> {
        if let Some(keep) = keep {
            self.run_tx("expire_outputs", |tx| {
                Box::pin(
                    async move { Ok(End::Commit(sql::outputs::expire(tx, millis(keep)).await?)) },
                )
            })
            .await?;
        }
        Ok(sql::outputs::doomed(&mut self.database.reader().await?, JOBS).await?)
    }

    /// Forgets the outputs of an incarnation whose blobs are deleted. If its job is there, what was
    /// kept stays known.
    pub async fn forget_outputs(&self, incarnation: i64) -> Result<()> {
        loop {
            let is_over = self.run_tx("forget_outputs", |tx| {
                Box::pin(async move {
                    Ok(End::Commit(
                        sql::outputs::forget(tx, incarnation, ROWS).await?,
                    ))
                })
            });
            if is_over.await? {
                return Ok(());
            }
        }
    }
}

fn key(job: &Incarnation) -> (String, String) {
    (job.partition.to_string(), job.job.to_string())
}

async fn keep_all(tx: &mut Tx<'_>, new: &[NewOutputs]) -> Result<End<Vec<Keeping>>, DbError> {
    let now = tx.now();
    let jobs: BTreeMap<i64, JobRow> = tx
        .lock_known_jobs()
        .await?
        .into_iter()
        .map(|job| (job.incarnation, job))
        .collect();
    let mut results = Vec::with_capacity(new.len());
    for new in new {
        results.push(if let Some(job) = jobs.get(&new.job.number) {
            tx.set_at_hand(Some(job));
            keep(tx, new, now).await?
        } else {
            Keeping::Changed
        });
    }
    Ok(End::Commit(results))
}

/// Keeps the outputs of a locked job. Writes nothing unless all of them can be kept.
async fn keep(tx: &mut Tx<'_>, new: &NewOutputs, now: i64) -> Result<Keeping, DbError> {
    let incarnation = new.job.number;
    let kept = sql::outputs::lock_kept(tx, incarnation).await?;
    let mut kept = kept.unwrap_or_else(|| KeptRow::new(incarnation));
    if kept.removed_time.is_some() && !new.blobs.is_empty() {
        return Ok(Keeping::Changed);
    }
    let tasks: Vec<Vec<u32>> = new
        .blobs
        .iter()
        .flat_map(|blob| blob.tasks.iter())
        .chain(new.left_out.iter().map(|(task, _)| task))
        .cloned()
        .collect();
    let mut marks = Marks::new(sql::outputs::tasks(tx, incarnation, &keys_of(&tasks), true).await?);
    let (mut repeated, mut superseded) = (BTreeSet::new(), 0);
    for (number, blob) in new.blobs.iter().enumerate() {
        for (line, task) in blob.tasks.iter().enumerate() {
            match marks.mark(task, Mark::of(blob.status)) {
                Marked::Repeated => drop(repeated.insert((number, line))),
                Marked::Superseding => superseded += 1,
                Marked::New => {}
            }
        }
    }
    if !repeated.is_empty() {
        return Ok(Keeping::Repeated(repeated));
    }
    for (task, status) in &new.left_out {
        let marked = marks.mark(task, Mark::of_left_out(*status));
        kept.not_kept += i64::from(marked != Marked::Repeated);
        superseded += i64::from(marked == Marked::Superseding);
    }
    let mut rows = Vec::with_capacity(new.blobs.len());
    for blob in &new.blobs {
        let lines = i64::try_from(blob.tasks.len()).unwrap_or(i64::MAX);
        let row = KeptBlobRow {
            incarnation,
            first_line: kept.lines,
            lines,
            bytes: i64::try_from(blob.bytes).unwrap_or(i64::MAX),
            failed: blob.status == OutputStatus::Failed,
            name: blob.name.clone(),
            time: now,
            crc32: blob.crc32.into(),
        };
        kept.lines += lines;
        kept.bytes += row.bytes;
        *(if row.failed {
            &mut kept.failed
        } else {
            &mut kept.done
        }) += lines;
        rows.push(row);
    }
    kept.failed -= superseded;
    if new.reason.is_some() {
        kept.reason.clone_from(&new.reason);
    }
    kept.waiting = None;
    sql::outputs::save_tasks(tx, incarnation, &marks.changed()).await?;
    sql::outputs::insert_blobs(tx, &rows).await?;
    sql::outputs::save_kept(tx, &kept).await?;
    Ok(Keeping::Kept)
}

/// Marks tasks of a locked job as done that have ended without a result. Their failures are kept
/// and do not count any more.
pub(crate) async fn supersede_failures(
    tx: &mut Tx<'_>,
    incarnation: i64,
    tasks: &[Vec<u32>],
) -> Result<(), DbError> {
    let kept = sql::outputs::lock_kept(tx, incarnation).await?;
    let Some(mut kept) = kept.filter(|kept| kept.failed > 0) else {
        return Ok(());
    };
    let mut marks = Marks::new(sql::outputs::tasks(tx, incarnation, &keys_of(tasks), true).await?);
    let superseded = tasks.iter().filter(|task| marks.supersede(task)).count();
    if superseded > 0 {
        kept.failed -= i64::try_from(superseded).unwrap_or(i64::MAX);
        kept.failed = kept.failed.max(0);
        sql::outputs::save_tasks(tx, incarnation, &marks.changed()).await?;
        sql::outputs::save_kept(tx, &kept).await?;
    }
    Ok(())
}

/// Replaces the rows of blobs whose lines follow each other by one row.
async fn merge(
    tx: &mut Tx<'_>,
    incarnation: i64,
    blobs: &[KeptBlob],
    (name, crc32): (&str, u32),
) -> Result<End<bool>, DbError> {
    let jobs = tx.lock_known_jobs().await?;
    let kept = sql::outputs::lock_kept(tx, incarnation).await?;
    let is_there = jobs.iter().any(|job| job.incarnation == incarnation);
    let kept = kept.filter(|kept| is_there && kept.removed_time.is_none());
    let ([first, ..], Some(last), Some(mut kept)) = (blobs, blobs.last(), kept) else {
        return Ok(End::Rollback(false));
    };
    let line = |line: u64| i64::try_from(line).unwrap_or(i64::MAX);
    let lines = line(first.first_line)..line(last.first_line + last.lines);
    let rows = sql::outputs::take_blobs(tx, incarnation, lines).await?;
    let Some(newest) = rows.last().cloned() else {
        return Ok(End::Rollback(false));
    };
    let merged = KeptBlobRow {
        first_line: line(first.first_line),
        lines: rows.iter().map(|row| row.lines).sum(),
        bytes: rows.iter().map(|row| row.bytes).sum(),
        name: name.to_owned(),
        crc32: crc32.into(),
        ..newest
    };
    let found: Vec<KeptBlob> = rows.into_iter().map(KeptBlobRow::into_blob).collect();
    if found != blobs || blobs.iter().any(|blob| blob.status != first.status) {
        return Ok(End::Rollback(false));
    }
    sql::outputs::insert_blobs(tx, &[merged]).await?;
    // It was as it was written when it was merged.
    let is_damaged = |blob: &KeptBlob| kept.damaged.as_ref() == Some(&blob.name);
    if blobs.iter().any(is_damaged) {
        kept.damaged = None;
        sql::outputs::save_kept(tx, &kept).await?;
    }
    Ok(End::Commit(true))
}

impl KeptRow {
    fn new(incarnation: i64) -> Self {
        Self {
            incarnation,
            ..Self::default()
        }
    }

    pub(crate) fn into_rest(self) -> rest::KeptOutputs {
        rest::KeptOutputs {
            done: self.done,
            failed: self.failed,
            bytes: self.bytes,
            not_kept: self.not_kept,
            reason: self.reason,
            waiting: self.waiting,
            damaged: self.damaged,
            removed_time: self.removed_time,
        }
    }
}

impl KeptBlobRow {
    fn into_blob(self) -> KeptBlob {
        KeptBlob {
            name: self.name,
            first_line: u64::try_from(self.first_line).unwrap_or_default(),
            lines: u64::try_from(self.lines).unwrap_or_default(),
            bytes: u64::try_from(self.bytes).unwrap_or_default(),
            crc32: u32::try_from(self.crc32).unwrap_or_default(),
            status: if self.failed {
                OutputStatus::Failed
            } else {
                OutputStatus::Done
            },
        }
    }
}

/// Returns the row with the bits of a task, and the number of its bit.
fn place_of(task: &[u32]) -> (NodeKey, usize) {
    match task {
        [] => ((String::new(), OWN_TASK), 0),
        [above @ .., number] => {
            let (chunk, bit) = position(*number);
            ((path_of(above.iter().copied()), chunk), bit)
        }
    }
}

fn keys_of(tasks: &[Vec<u32>]) -> Vec<NodeKey> {
    let keys: BTreeSet<NodeKey> = tasks.iter().map(|task| place_of(task).0).collect();
    keys.into_iter().collect()
}

/// What a task is marked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Done,
    Failed,
    /// Its failure is counted and not kept.
    LeftOutFailure,
}

impl Mark {
    const fn of(status: OutputStatus) -> Self {
        match status {
            OutputStatus::Done => Self::Done,
            OutputStatus::Failed => Self::Failed,
        }
    }

    const fn of_left_out(status: OutputStatus) -> Self {
        match status {
            OutputStatus::Done => Self::Done,
            OutputStatus::Failed => Self::LeftOutFailure,
        }
    }
}

/// What a mark has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marked {
    /// The task had no output.
    New,
    /// The task is done, and its failure is kept.
    Superseding,
    /// Nothing.
    Repeated,
}

/// Which tasks have an output that is kept.
#[derive(Debug, Default)]
struct Marks {
    chunks: BTreeMap<NodeKey, MarkedChunk>,
}

#[derive(Debug, Default)]
struct MarkedChunk {
    done: Bits,
    /// The failures that are kept, and from [`LEFT_OUT`] on those that are not.
    failed: Bits,
    is_changed: bool,
}

impl Marks {
    fn new(rows: Vec<KeptTaskRow>) -> Self {
        let chunk = |row: KeptTaskRow| {
            let chunk = MarkedChunk {
                done: Bits(row.done),
                failed: Bits(row.failed),
                is_changed: false,
            };
            ((row.path, row.chunk), chunk)
        };
        Self {
            chunks: rows.into_iter().map(chunk).collect(),
        }
    }

    fn is_done(&self, task: &[u32]) -> bool {
        let (key, bit) = place_of(task);
        self.chunks
            .get(&key)
            .is_some_and(|chunk| chunk.done.get(bit))
    }

    /// Marks a task, unless it has an output of this status already, or a result, which a failure
    /// does not follow.
    fn mark(&mut self, task: &[u32], mark: Mark) -> Marked {
        let (key, bit) = place_of(task);
        let chunk = self.chunks.entry(key).or_default();
        let is_failure = mark != Mark::Done;
        let (is_kept, is_left_out) = (chunk.failed.get(bit), chunk.failed.get(LEFT_OUT + bit));
        if chunk.done.get(bit) || (is_failure && (is_kept || is_left_out)) {
            return Marked::Repeated;
        }
        match mark {
            Mark::Done => chunk.done.set(bit),
            Mark::Failed => chunk.failed.set(bit),
            Mark::LeftOutFailure => chunk.failed.set(LEFT_OUT + bit),
        }
        chunk.is_changed = true;
        if is_kept {
            Marked::Superseding
        } else {
            Marked::New
        }
    }

    /// Marks a task as done whose failure is kept. Returns false if it has none, or is done
    /// already.
    fn supersede(&mut self, task: &[u32]) -> bool {
        let (key, bit) = place_of(task);
        let chunk = self.chunks.get(&key);
        chunk.is_some_and(|chunk| chunk.failed.get(bit))
            && self.mark(task, Mark::Done) == Marked::Superseding
    }

    fn changed(self) -> Vec<KeptTaskRow> {
        let changed = self
            .chunks
            .into_iter()
            .filter(|(_, chunk)| chunk.is_changed);
        changed
            .map(|((path, number), chunk)| KeptTaskRow {
                path,
                chunk: number,
                done: chunk.done.0,
                failed: chunk.failed.0,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_output_of_a_task_is_kept_and_a_failure_never_follows_a_result() {
        use Mark::{Done, Failed, LeftOutFailure};
        use Marked::{New, Repeated, Superseding};
        let mut marks = Marks::default();
        for (task, mark, expected) in [
            (&[3, 17][..], Done, New),
            (&[3, 17], Done, Repeated),
            (&[3, 17], Failed, Repeated),
            (&[3, 18], Failed, New),
            (&[3, 18], Failed, Repeated),
            (&[3, 18], LeftOutFailure, Repeated),
            (&[3, 18], Done, Superseding),
            (&[3, 18], Failed, Repeated),
            // A failure that is not kept is none of those that are superseded.
            (&[3, 20], LeftOutFailure, New),
            (&[3, 20], LeftOutFailure, Repeated),
            (&[3, 20], Failed, Repeated),
            (&[3, 20], Done, New),
            // The next chunk, another split, and the job's own task have bits of their own.
            (&[3, 4096 + 17], Done, New),
            (&[3, 4096 + 20], Failed, New),
            (&[17], Done, New),
            (&[], Done, New),
            (&[], Done, Repeated),
        ] {
            assert_eq!(marks.mark(task, mark), expected, "{task:?} {mark:?}");
        }
        assert!(!marks.supersede(&[3, 19]) && !marks.supersede(&[3, 17]));
        assert!(marks.supersede(&[3, 4096 + 20]) && !marks.supersede(&[3, 4096 + 20]));
        assert!(marks.is_done(&[3, 18]) && !marks.is_done(&[3, 19]));
        let rows = marks.changed();
        assert_eq!(rows.len(), 4);
        assert!(Marks::new(rows).is_done(&[3, 4096 + 17]));
    }
}
