//! Creates a job together with its start message: a new one, or one in the place of a job that has
//! ended.
//!
//! What must stay true: a key of a client creates one job, however many requests carry it at
//! once. A job is replaced only after its end, in the transaction that creates the new one.

mod together;

use std::sync::Arc;

use contract::JobStatus;

use crate::curve::CurveState;
use crate::db::DueTime;
use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::db::{DbError, JobRow, JobTexts, KeyState, NewIncarnation, NewParts, Signal, sql};
use crate::definition::PackedDefinition;
use crate::jobs::{delete_locked, deletion};
use crate::ledger::JobTotals;
use crate::life::new_key;
use crate::model::{Creation, Incarnation, JobRequest, Transition};
use crate::pace::Pace;
use crate::prerequisites::{self, Lookup};
use crate::transition::Actor;
use crate::uploads::use_uploads;
use crate::{Result, Store};

pub(crate) use self::together::Creations;

/// Makes the pipe and the body of the start message for a new incarnation.
type MakeStart = dyn Fn(&Incarnation) -> (String, Vec<u8>) + Send + Sync;

/// How an attempt to create a job ended.
enum Attempt {
    Done(Creation),
    /// A job with this id exists.
    IdTaken,
    /// The job can only be created while no other job is created in the partition.
    NeedsExclusive,
}

impl Store {
    /// Creates a job and, in the same transaction, writes its start message to the outbox.
    ///
    /// `start` makes the pipe and the body of the start message for the new incarnation. It runs
    /// once per attempt at the transaction. Creations that come at the same time may share one,
    /// which goes on if the future of one of them is dropped.
    ///
    /// A request that only tries changes nothing, and tells what would become of it.
    ///
    /// A request with a key creates a job only if the key is new. One that replaces a job deletes
    /// that one in the same transaction.
    pub async fn create_job(
        &self,
        request: &JobRequest,
        start: impl Fn(&Incarnation) -> (String, Vec<u8>) + Send + Sync + 'static,
    ) -> Result<Creation> {
        let start: Arc<MakeStart> = Arc::new(start);
        let locks = locks_to_replace(request);
        let mut attempt = self.create_with_others(request, &start).await?;
        let mut exclusive = false;
        loop {
            let attempted = match attempt.take() {
                Some(attempted) => attempted,
                None => {
                    self.run_tx_on_jobs("create_job", locks.clone(), |tx| {
                        Box::pin(create(tx, request, &*start, exclusive))
                    })
                    .await?
                }
            };
            match attempted {
                Attempt::Done(creation) => return Ok(creation),
                Attempt::NeedsExclusive => exclusive = true,
                Attempt::IdTaken => {
                    match self.job_row(&request.partition, &request.job).await? {
                        Some(existing) if existing.content_hash == request.content_hash => {
                            return Ok(Creation::AlreadyThere);
                        }
                        Some(_) => return Ok(Creation::Conflict),
                        // It was deleted in the meantime.
                        None => {}
                    }
                }
            }
        }
    }
}

async fn create(
    tx: &mut Tx<'_>,
    request: &JobRequest,
    start: &MakeStart,
    exclusive: bool,
) -> Result<End<Attempt>, DbError> {
    let (partition, id) = (request.partition.as_str(), request.job.as_str());
    if exclusive || may_wait(request) {
        sql::prerequisites::lock_creations(tx, partition, !exclusive).await?;
    }
    let refused = |creation| Ok(End::Rollback(Attempt::Done(creation)));
    if let Some(key) = &request.key {
        match sql::request_keys::give(tx, partition, key, id).await? {
            KeyState::Given => tx.notify(Signal::Sweep),
            KeyState::Lost => return Ok(End::Rerun),
            KeyState::Taken(other, job) if other == key.fingerprint => {
                return refused(Creation::Repeated(job));
            }
            KeyState::Taken(_, job) => return refused(Creation::KeyTaken(job)),
        }
    }
    if let Some(incarnation) = request.replaces
        && let Some(refusal) = make_way(tx, request, incarnation).await?
    {
        return refused(refusal);
    }
    let waits_for = match prerequisites::look_up(tx, request, exclusive).await? {
        Lookup::WaitFor(jobs) => jobs,
        Lookup::IdTaken => return Ok(End::Rollback(Attempt::IdTaken)),
        Lookup::NeedsExclusive => return Ok(End::Rollback(Attempt::NeedsExclusive)),
        Lookup::Refused(refusal) => {
            return refused(Creation::Refused(refusal));
        }
    };
    let new = NewJob {
        request,
        start,
        waits_for,
    };
    let created = match insert(tx, &[new]).await?.pop() {
        Some(Inserted::Created(created)) => created,
        Some(Inserted::IdTaken) => return Ok(End::Rollback(Attempt::IdTaken)),
        Some(Inserted::Outdated) | None => return Ok(End::Rerun),
    };
    let unreadable = use_uploads(tx, &request.partition, created.number, &request.uploads);
    if let Some(refusal) = unreadable.await? {
        return refused(Creation::NoUpload(refusal));
    }
    if request.only_tries {
        return refused(Creation::Possible);
    }
    tx.notify(Signal::Outbox);
    Ok(End::Commit(Attempt::Done(Creation::Created(created))))
}

/// A new job, against which nothing stands but its id.
struct NewJob<'r> {
    request: &'r JobRequest,
    start: &'r MakeStart,
    /// The jobs that it waits for.
    waits_for: Vec<String>,
}

/// What has become of a new job.
enum Inserted {
    Created(Incarnation),
    /// A job with this id exists.
    IdTaken,
    /// While the insertion waited, the incarnation before was deleted, or forgotten. The next
    /// attempt at the transaction sees that.
    Outdated,
}

/// Inserts jobs with different ids, in (partition, job) order, and what belongs to them.
async fn insert(tx: &mut Tx<'_>, new: &[NewJob<'_>]) -> Result<Vec<Inserted>, DbError> {
    let now = tx.now();
    let jobs = new.iter().map(|it| new_job(it.request, now));
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    let incarnations = sql::creation::insert(tx, &jobs).await?;
    let (mut inserted, mut parts, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for ((new, (mut job, _)), incarnation) in new.iter().zip(jobs).zip(incarnations) {
        let Some(NewIncarnation { number, first_life }) = incarnation else {
            inserted.push(Inserted::IdTaken);
            continue;
        };
        (job.incarnation, job.first_life) = (number, first_life);
        let created = job.to_incarnation();
        if !new.request.labels.is_empty() {
            labels.push((number, &new.request.labels));
        }
        if !new.waits_for.is_empty() {
            sql::prerequisites::insert(tx, &job, &new.waits_for).await?;
        }
        parts.push(parts_of(job, new, &created, now)?);
        inserted.push(Inserted::Created(created));
    }
    if !labels.is_empty() {
        sql::jobs::insert_labels(tx, &labels).await?;
    }
    let mut are_remembered = sql::creation::insert_parts(tx, parts).await?.into_iter();
    for inserted in &mut inserted {
        if let Inserted::Created(created) = inserted {
            let was_remembered = !created.first;
            if are_remembered.next() != Some(was_remembered) {
                *inserted = Inserted::Outdated;
            }
        }
    }
    Ok(inserted)
}

/// Returns what belongs to a new job.
fn parts_of(
    job: JobRow,
    new: &NewJob<'_>,
    created: &Incarnation,
    now: i64,
) -> Result<NewParts, DbError> {
    let NewJob {
        request,
        start,
        waits_for,
    } = new;
    let reason = match &request.remark {
        Some(remark) => format!("created. {remark}"),
        None => "created".to_owned(),
    };
    let step = Transition {
        time: now,
        from: None,
        to: JobStatus::Waiting,
        actor: Actor::Client.name().to_owned(),
        reason,
        round: job.round,
        correlation_id: job.correlation_id.clone(),
        prerequisite: None,
    };
    let (pipe, start) = start(created);
    let due = DueTime {
        after: waits_for
            .is_empty()
            .then(|| u64::from(request.start.delay) * 1000),
        suspended: request.start.suspended,
    };
    Ok(NewParts {
        job,
        step,
        due,
        definition: PackedDefinition::of(request, pipe, &start)?,
        start,
    })
}

/// Returns whether the creation looks at other jobs before it inserts its own, or waits for another
/// creation.
fn may_wait(request: &JobRequest) -> bool {
    let is_plain = request.key.is_none() && request.replaces.is_none();
    !is_plain || !request.start.prerequisites.is_empty()
}

/// Returns the jobs that a creation locks first, in one go: if it replaces a job, that one and all
/// prerequisites.
fn locks_to_replace(request: &JobRequest) -> JobLocks {
    if request.replaces.is_none() {
        return JobLocks::new();
    }
    let prerequisites = request.start.prerequisites.iter().map(|it| &it.job);
    prerequisites
        .chain([&request.job])
        .map(|job| job_key(&request.partition, job))
        .collect()
}

/// Deletes the incarnation that the new job replaces. Returns why it stays, if it does. No job
/// waits for one that has ended.
async fn make_way(
    tx: &mut Tx<'_>,
    request: &JobRequest,
    incarnation: i64,
) -> Result<Option<Creation>, DbError> {
    let locked = tx.lock_known_jobs().await?;
    let Some(old) = locked
        .into_iter()
        .find(|job| job.incarnation == incarnation && job.job == request.job)
    else {
        return Ok(Some(Creation::NotThere));
    };
    if !old.status.is_finished() {
        return Ok(Some(Creation::NotEnded(old.status)));
    }
    let by = request.correlation_id.as_deref();
    let why = deletion(Actor::Client, "replaced by a new job", by);
    delete_locked(tx, &[old], why).await?;
    Ok(None)
}

fn new_job(request: &JobRequest, now: i64) -> Result<(JobRow, JobTexts), DbError> {
    let texts = JobTexts {
        description: request.description.clone(),
        external_data: request.external_data.clone(),
    };
    let row = JobRow {
        partition: request.partition.clone(),
        job: request.job.clone(),
        incarnation: 0,
        first_life: true,
        round: 1,
        name: request.name.clone(),
        has_texts: !texts.is_empty(),
        content_hash: request.content_hash.to_vec(),
        status: JobStatus::Waiting,
        totals: JobTotals::new(request.on_failure),
        failed_attempts: 0,
        delay: i64::from(request.start.delay),
        task_table: false,
        create_time: now,
        last_update_time: now,
        finish_time: None,
        expiry: request.expiry.clone(),
        expiry_time: None,
        without_target: request.without_target,
        correlation_id: request.correlation_id.clone(),
        pace: Pace::default(),
        curve: CurveState::default(),
        output_pipe: request.output_pipe.clone(),
        items_pipe: request.items_pipe.clone(),
        retry: request.retry.as_ref().map(ToString::to_string),
        task_time_limit: request.task_time_limit,
        share: request.share,
        owner: request.owner.clone(),
        blocked_tasks: 0,
        life_key: Some(new_key()?),
    };
    Ok((row, texts))
}
