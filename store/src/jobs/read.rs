//! Reads jobs, one or a page at a time.

use std::collections::{BTreeMap, HashMap};

use contract::{JobId, JobStatus, PartitionId, rest};

use crate::curve::{self, Moment};
use crate::db::{DbError, JobSignal, sql};
use crate::job_row::{JobRow, JobTexts, LongText, Part};
use crate::jobs::progress::Progress;
use crate::ledger::FAILURES_IN_FULL;
use crate::life::{Asked, AskedJob};
use crate::model::{Definition, JobForWorkers, JobOfPipe, KeyedRequest, Source};
use crate::query::JobQuery;
use crate::waits;
use crate::{Result, Store};

/// The note on a job whose request named no target pipe.
const WITHOUT_TARGET: &str =
    "The job has no target pipe: it completes only if its workers send no output.";

/// How many jobs are described at a time.
const DESCRIBED_AT_ONCE: usize = 64;
/// The number of failures that a job in brief shows.
const BRIEF_FAILURES: usize = 3;
/// The bytes of the message of such a failure.
const BRIEF_MESSAGE: usize = 1000;
/// The number of labels, and of jobs that it waits for, that a job in brief shows.
const BRIEF_ENTRIES: usize = 20;

impl Store {
    /// Returns the row of a job.
    pub(crate) async fn job_row(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<JobRow>, DbError> {
        let db = &mut self.database.reader().await?;
        sql::jobs::find(db, partition.as_str(), job.as_str()).await
    }

    /// Returns the rows of a page of jobs.
    pub(crate) async fn job_rows(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
    ) -> Result<Vec<JobRow>, DbError> {
        let db = &mut self.database.lister().await?;
        sql::job_query::page(db, partition.as_str(), query).await
    }

    /// Returns a job, or `None` if there is none with this id.
    pub async fn job(&self, partition: &PartitionId, job: &JobId) -> Result<Option<rest::Job>> {
        let row = self.job_row(partition, job).await?;
        let has_texts = row.as_ref().is_some_and(|row| row.has_texts);
        let rows = row.into_iter().collect();
        let mut job = self.describe(rows, Detail::Whole).await?.pop();
        if let Some(job) = job.as_mut().filter(|_| has_texts) {
            let db = &mut self.database.reader().await?;
            let texts = sql::jobs::texts(db, &[job.incarnation], Part::WHOLE).await?;
            if let Some((_, texts)) = texts.into_iter().next() {
                (job.description, job.external_data) = (texts.description, texts.external_data);
            }
        }
        Ok(job)
    }

    /// Returns a job with the beginnings of its long texts, or `None` if there is none with this
    /// id.
    pub async fn listed_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<ListedJob>> {
        let row = self.job_row(partition, job).await?;
        let rows = row.into_iter().collect();
        Ok(self.list(rows, Detail::Whole).await?.pop())
    }

    /// Returns the status of a job, or `None` if there is no such job. With the number of an
    /// incarnation, past incarnations count as unknown; with the number of a round, so do past
    /// rounds.
    pub async fn job_status(
        &self,
        partition: &PartitionId,
        job: &JobId,
        incarnation: Option<i64>,
        round: Option<u32>,
    ) -> Result<Option<JobStatus>> {
        let row = self.job_row(partition, job).await?;
        let current = row.filter(|row| row.is_in(incarnation, round));
        Ok(current.map(|row| row.status))
    }

    /// Returns what workers ask of a job: its status and more.
    pub async fn job_for_workers(&self, job: AskedJob<'_>) -> Result<Asked<JobForWorkers>> {
        let asked = self.asked_job(job).await?;
        Ok(asked.map(|row| JobForWorkers {
            status: row.status,
            retry: row.retry,
            share: row.share,
        }))
    }

    /// Returns a page of the jobs that match a query, in brief.
    ///
    /// The query sees the same values that it returns: a flush rolls up the totals of a job when it
    /// counts reports, so that reading leaves nothing to compute.
    pub async fn jobs(&self, partition: &PartitionId, query: &JobQuery) -> Result<Vec<rest::Job>> {
        let rows = self.job_rows(partition, query).await?;
        let mut jobs = Vec::with_capacity(rows.len());
        for rows in rows.chunks(DESCRIBED_AT_ONCE) {
            let listed = self.list(rows.to_vec(), Detail::Brief).await?;
            jobs.extend(listed.into_iter().map(|listed| listed.job));
        }
        Ok(jobs)
    }

    /// Returns the incarnations of a page of the jobs that match a query. Many are small, so a list
    /// can be read in parts that are all of this page.
    pub async fn job_numbers(&self, partition: &PartitionId, query: &JobQuery) -> Result<Vec<i64>> {
        let db = &mut self.database.lister().await?;
        Ok(sql::job_query::numbers(db, partition.as_str(), query).await?)
    }

    /// Returns those of these incarnations that exist still, in this order, as they are now.
    pub async fn listed_jobs(
        &self,
        incarnations: &[i64],
        detail: Detail,
    ) -> Result<Vec<ListedJob>> {
        let mut rows =
            sql::jobs::numbered(&mut self.database.reader().await?, incarnations).await?;
        let at: HashMap<i64, usize> = (0..).zip(incarnations).map(|(at, n)| (*n, at)).collect();
        rows.sort_by_key(|row| at.get(&row.incarnation).copied());
        Ok(self.list(rows, detail).await?)
    }

    /// Returns so many characters of a long text of a job, from the character with this number on,
    /// which counts from 1. Returns `None` if the incarnation is gone.
    pub async fn text_of_job(
        &self,
        incarnation: i64,
        text: LongText,
        first: u32,
        chars: u32,
    ) -> Result<Option<String>> {
        let part = Part { first, chars };
        Ok(sql::jobs::text(&mut self.database.reader().await?, incarnation, text, part).await?)
    }

    /// Counts the jobs that match a query. Its limit, offset and order are ignored.
    pub async fn count_jobs(&self, partition: &PartitionId, query: &JobQuery) -> Result<u64> {
        let db = &mut self.database.lister().await?;
        Ok(sql::job_query::count(db, partition.as_str(), query).await?)
    }

    /// Counts the jobs that match a query, by the status that people are shown. Its limit, offset
    /// and order are ignored.
    pub async fn count_jobs_by_status(
        &self,
        partition: &PartitionId,
        query: &JobQuery,
    ) -> Result<Vec<(JobStatus, u64)>> {
        let db = &mut self.database.lister().await?;
        Ok(sql::job_query::count_by_status(db, partition.as_str(), query).await?)
    }

    /// Returns the partitions that have jobs, in order: those that follow `after`, all if it is
    /// empty.
    pub async fn partitions(&self, after: &str, limit: u32) -> Result<Vec<String>> {
        Ok(sql::jobs::partitions(&mut self.database.reader().await?, after, limit).await?)
    }

    /// Returns the pipe to which the batch of a job sends its items, if it is a batch.
    pub async fn items_pipe(&self, incarnation: i64) -> Result<Option<String>> {
        Ok(sql::jobs::items_pipe(&mut self.database.reader().await?, incarnation).await?)
    }

    /// Returns the active jobs whose batches send items to this pipe: at most `limit`.
    pub async fn jobs_of_pipe(&self, pipe: &str, limit: u32) -> Result<Vec<JobOfPipe>> {
        Ok(sql::jobs::of_pipe(&mut self.database.reader().await?, pipe, limit).await?)
    }

    /// Returns the jobs that wait for this one, in the order of their ids; none for an unknown job.
    pub async fn dependents(
        &self,
        partition: &PartitionId,
        job: &JobId,
        limit: u32,
    ) -> Result<Vec<rest::AwaitedJob>> {
        let db = &mut self.database.reader().await?;
        let waiting =
            sql::prerequisites::waiting_for(db, partition.as_str(), job.as_str(), limit).await?;
        Ok(waiting.into_iter().map(awaited).collect())
    }

    /// Returns the jobs that ended with this one before they started, oldest first; none for an
    /// unknown job. A retry takes them up again if it is asked to.
    pub async fn fallen_with(
        &self,
        partition: &PartitionId,
        job: &JobId,
        limit: u32,
    ) -> Result<Vec<rest::AwaitedJob>> {
        let row = self.job_row(partition, job).await?;
        let Some(row) = row.filter(|row| row.status.is_finished()) else {
            return Ok(Vec::new());
        };
        let db = &mut self.database.reader().await?;
        let fallen = sql::rounds::fallen_jobs(db, row.incarnation, limit).await?;
        Ok(fallen.into_iter().map(awaited).collect())
    }

    /// Returns how the items of a job ended over time; `None` if there is no such job.
    pub async fn progress_curve(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<rest::ProgressCurve>> {
        let row = self.job_row(partition, job).await?;
        let Some(row) = row else { return Ok(None) };
        let stored = sql::curve::find(&mut self.database.reader().await?, row.incarnation).await?;
        let items = Progress::of(&row, self.database.clock().now()).items;
        Ok(Some(rest::ProgressCurve {
            points: curve::shown(row.curve, stored.as_deref(), present(&row)),
            total: items.total,
            total_is_final: items.total_is_final,
        }))
    }

    /// Returns what a job was created from. Returns `None` if there is no such job.
    pub async fn definition(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<Definition>> {
        let source = self.source(partition, job).await?;
        Ok(source.map(|source| source.definition))
    }

    /// Returns the incarnation of a job, and what it was created from. Returns `None` if there is
    /// no such job.
    pub async fn source(&self, partition: &PartitionId, job: &JobId) -> Result<Option<Source>> {
        let db = &mut self.database.reader().await?;
        let found = sql::rounds::source(db, partition.as_str(), job.as_str());
        let Some((incarnation, packed)) = found.await? else {
            return Ok(None);
        };
        Ok(Some(Source {
            incarnation,
            definition: packed.unpack().map_err(DbError::from)?,
        }))
    }

    /// Returns what is known of the request that has this key; `None` if none has it.
    pub async fn request_with_key(
        &self,
        partition: &PartitionId,
        key: &str,
    ) -> Result<Option<KeyedRequest>> {
        let db = &mut self.database.reader().await?;
        Ok(sql::request_keys::find(db, partition.as_str(), key).await?)
    }

    /// Returns the pipes to which the start messages of unfinished jobs go, at most `limit`.
    pub async fn task_pipes(&self, limit: u32) -> Result<Vec<String>> {
        Ok(sql::rounds::task_pipes(&mut self.database.reader().await?, limit).await?)
    }

    /// Returns how many items of unfinished jobs wait, by the pipe to which their batches send
    /// them, the fullest first: what the splits have announced, less what has ended, runs, or waits
    /// for another attempt. Items of a paused job do not wait in a pipe, and neither do tasks that
    /// wait for a condition. Reads the jobs that have not ended.
    pub async fn waiting_items(&self, limit: u32) -> Result<Vec<(String, u64)>> {
        Ok(sql::jobs::waiting_items(&mut self.database.reader().await?, limit).await?)
    }

    /// Returns the signal that wakes a task when this job changes.
    pub fn job_signal(&self, partition: &PartitionId, job: &JobId) -> JobSignal {
        self.database.signals().of_job(partition, job)
    }

    /// Returns the signal that wakes a task when this job ends. It may also wake it at other times.
    pub fn job_end_signal(&self, partition: &PartitionId, job: &JobId) -> JobSignal {
        self.database.signals().of_end(partition, job)
    }

    /// Returns these jobs as a list shows them, in the same order.
    async fn list(&self, rows: Vec<JobRow>, detail: Detail) -> Result<Vec<ListedJob>, DbError> {
        let with_texts = rows.iter().filter(|row| row.has_texts);
        let with_texts: Vec<i64> = with_texts.map(|row| row.incarnation).collect();
        let jobs = self.describe(rows, detail).await?;
        let mut texts = HashMap::new();
        if !with_texts.is_empty() {
            let part = Part::beginning(detail.chars() + 1);
            let db = &mut self.database.reader().await?;
            texts.extend(sql::jobs::texts(db, &with_texts, part).await?);
        }
        let listed = jobs.into_iter().map(|job| {
            let texts = texts.remove(&job.incarnation).unwrap_or_default();
            ListedJob::new(job, texts, detail)
        });
        Ok(listed.collect())
    }

    /// Returns these jobs as the API shows them, in the same order, with labels, failures,
    /// prerequisites and due times, and without their long texts.
    async fn describe(&self, rows: Vec<JobRow>, detail: Detail) -> Result<Vec<rest::Job>, DbError> {
        let numbers = |accept: fn(&JobRow) -> bool| -> Vec<i64> {
            let accepted = rows.iter().filter(|row| accept(row));
            accepted.map(|row| row.incarnation).collect()
        };
        let all = numbers(|_| true);
        let failed = numbers(|row| row.totals.failed_tasks > 0);
        let unstarted = numbers(may_be_unstarted);
        let keeping = numbers(|row| row.output_pipe.is_some());
        let retrying = numbers(JobRow::is_retrying);
        let may_be_blocked = |row: &&JobRow| row.blocked_tasks > 0 && !row.status.is_finished();
        let blocked: HashMap<i64, JobRow> = rows
            .iter()
            .filter(may_be_blocked)
            .map(|row| (row.incarnation, row.clone()))
            .collect();
        let now = self.database.clock().now();
        let describe = |row| describe_row(row, now);
        let mut jobs: Vec<rest::Job> = rows.into_iter().map(describe).collect();
        let at: HashMap<i64, usize> = all.iter().enumerate().map(|(at, n)| (*n, at)).collect();
        if !all.is_empty() {
            let db = &mut self.database.reader().await?;
            for (n, name, value) in sql::jobs::labels(db, &all).await? {
                jobs[at[&n]].labels.insert(name, value);
            }
        }
        if !failed.is_empty() {
            // One more shows that there are more.
            let limit = detail.failures() + 1;
            let db = &mut self.database.reader().await?;
            for (n, kept) in sql::failures::first_of_each(db, &failed, limit).await? {
                jobs[at[&n]]
                    .failures
                    .push(rest::Failure::of_task(kept.path, kept.failure));
            }
        }
        if !retrying.is_empty() {
            let db = &mut self.database.reader().await?;
            for (n, next) in sql::attempts::next_times(db, &retrying).await? {
                jobs[at[&n]].next_attempt_time = Some(next);
            }
        }
        if !blocked.is_empty() {
            let numbers: Vec<i64> = blocked.keys().copied().collect();
            let db = &mut self.database.reader().await?;
            for waits in sql::conditions::job_waits(db, &numbers).await? {
                let n = waits.incarnation;
                jobs[at[&n]].blocked = waits::describe(&blocked[&n], &waits);
            }
        }
        if !keeping.is_empty() {
            let db = &mut self.database.reader().await?;
            for kept in sql::outputs::kept(db, &keeping).await? {
                let job = &mut jobs[at[&kept.incarnation]];
                let mut kept = kept.into_rest();
                if job.is_all_done() {
                    // Also splits have failed, of which no report says that they are done.
                    kept.failed = 0;
                }
                let waiting = kept.waiting.as_ref();
                job.notes
                    .extend(waiting.map(|reason| format!("Outputs wait to be kept: {reason}.")));
                let damaged = kept.damaged.as_ref();
                job.notes.extend(damaged.map(|blob| {
                    format!(
                        "Outputs are damaged: their blob {blob} is not as it was written. They are read up to it, and not exported, \
                         until it is restored."
                    )
                }));
                job.outputs = Some(kept);
            }
        }
        if !unstarted.is_empty() {
            let waiting_for =
                sql::prerequisites::of_jobs(&mut self.database.reader().await?, &unstarted).await?;
            for (n, job_id, status) in waiting_for {
                jobs[at[&n]]
                    .waiting_for
                    .push(rest::AwaitedJob { job_id, status });
            }
            let db = &mut self.database.reader().await?;
            for start in sql::outbox::unsent_starts(db, &unstarted).await? {
                let job = &mut jobs[at[&start.incarnation]];
                job.suspended = start.suspended;
                // The due time of a job without a delay is over before a client reads it.
                job.due_time = start.due_time.filter(|_| job.delay > 0);
            }
        }
        for job in &mut jobs {
            job.failures.truncate(FAILURES_IN_FULL);
            if detail == Detail::Brief {
                cut(job);
            }
        }
        Ok(jobs)
    }
}

fn awaited((job_id, status): (String, JobStatus)) -> rest::AwaitedJob {
    let status = Some(status);
    rest::AwaitedJob { job_id, status }
}

/// How much of a job a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    Whole,
    /// The beginnings of what may be long.
    Brief,
}

impl Detail {
    /// Returns the number of characters of a text that a list reads with other jobs.
    const fn chars(self) -> u32 {
        match self {
            Self::Whole => 2048,
            Self::Brief => 200,
        }
    }

    const fn failures(self) -> usize {
        match self {
            Self::Whole => FAILURES_IN_FULL,
            Self::Brief => BRIEF_FAILURES,
        }
    }
}

/// A job of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedJob {
    /// The job.
    pub job: rest::Job,
    /// Those of its texts that are too long to be read with other jobs. The job has their
    /// beginnings ([`Store::text_of_job`] reads all).
    pub long_texts: Vec<LongText>,
}

impl ListedJob {
    /// Adds the beginnings of its texts to a job.
    fn new(job: rest::Job, mut texts: JobTexts, detail: Detail) -> Self {
        let (mut job, mut long_texts) = (job, Vec::new());
        for which in LongText::ALL {
            let mut text = texts.take(which);
            let end = text.as_ref().and_then(|text| {
                let mut ends = text.char_indices().skip(detail.chars() as usize);
                ends.next().map(|(at, _)| at)
            });
            if let Some(end) = end {
                text = text.map(|text| text[..end].to_owned());
                match detail {
                    Detail::Whole => long_texts.push(which),
                    Detail::Brief => job.cut.push(which.name().to_owned()),
                }
            }
            match which {
                LongText::Description => job.description = text,
                LongText::ExternalData => job.external_data = text,
            }
        }
        Self { job, long_texts }
    }
}

/// Cuts the lists of a job, and names those that are cut.
fn cut(job: &mut rest::Job) {
    let mut note = |is_cut: bool, name: &str| {
        if is_cut {
            job.cut.push(name.to_owned());
        }
    };
    let mut is_cut = job.failures.len() > BRIEF_FAILURES;
    job.failures.truncate(BRIEF_FAILURES);
    for message in job
        .failures
        .iter_mut()
        .filter_map(|it| it.failure_message.as_mut())
    {
        is_cut |= message.len() > BRIEF_MESSAGE;
        message.truncate(message.floor_char_boundary(BRIEF_MESSAGE));
    }
    note(is_cut, "failures");
    note(job.labels.len() > BRIEF_ENTRIES, "labels");
    note(job.waiting_for.len() > BRIEF_ENTRIES, "waitingFor");
    job.waiting_for.truncate(BRIEF_ENTRIES);
    while job.labels.len() > BRIEF_ENTRIES {
        job.labels.pop_last();
    }
}

/// Returns whether the start message of a job may still be in the outbox. The status does not show
/// this: a job that was paused while it was Waiting is Active once it is resumed.
fn may_be_unstarted(row: &JobRow) -> bool {
    !row.status.is_finished() && !row.task_table && row.totals.percentage == 0
}

/// Returns the last point of the curve of a job; `None` before anything is reported.
fn present(row: &JobRow) -> Option<Moment> {
    let time = row.finish_time.unwrap_or(row.last_update_time);
    let (done, failed) = (row.totals.completed_items, row.totals.failed_tasks);
    let is_reported = row.pace.start.is_some() || done + failed > 0;
    is_reported.then_some(Moment(time, done, failed))
}

fn describe_row(row: JobRow, now: i64) -> rest::Job {
    let progress = Progress::of(&row, now);
    let notes = match &row.output_pipe {
        Some(pipe) => vec![format!(
            "The service keeps the outputs. A worker that has an output pipe of its own, as each of CAF's has, must send them to the \
             pipe '{pipe}'."
        )],
        // Of a job that has ended, it says nothing that its status does not.
        None if row.without_target && !row.status.is_finished() => vec![WITHOUT_TARGET.to_owned()],
        None => Vec::new(),
    };
    rest::Job {
        id: row.job.into(),
        name: row.name,
        description: None,
        external_data: None,
        create_time: row.create_time,
        last_update_time: row.last_update_time,
        status: row.status,
        percentage_complete: f64::from(row.totals.percentage) / 100.0,
        failures: Vec::new(),
        labels: BTreeMap::new(),
        on_failure: row.totals.on_failure,
        completed_items: row.totals.completed_items,
        items: progress.items,
        progress: progress.percent,
        start_time: row.pace.start,
        end_time: row.finish_time,
        items_per_second: progress.items_per_second,
        estimated_end_time: progress.estimated_end_time,
        failed_tasks: row.totals.failed_tasks,
        failure_counts: row.totals.failure_counts,
        failed_attempts: row.failed_attempts,
        next_attempt_time: None,
        incarnation: row.incarnation,
        round: (row.round > 1).then_some(row.round),
        expiry: row.expiry,
        expiry_time: row.expiry_time,
        waiting_for: Vec::new(),
        delay: row.delay,
        due_time: None,
        suspended: false,
        correlation_id: row.correlation_id,
        outputs: row.output_pipe.map(|_| rest::KeptOutputs::default()),
        retry: row.retry,
        task_time_limit: row.task_time_limit,
        share: row.share,
        owner: row.owner,
        blocked: None,
        cut: Vec::new(),
        notes,
    }
}
