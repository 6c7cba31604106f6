//! Creates a job together with its start message: a new one, or one in the place of a job that has ended.

use contract::JobStatus;

use crate::curve::CurveState;
use crate::db::DueTime;
use crate::db::run_tx::{End, JobLocks, Tx, job_key};
use crate::db::{DbError, JobRow, KeyState, NewIncarnation, NewParts, Signal};
use crate::definition::PackedDefinition;
use crate::jobs::{delete_locked, deletion};
use crate::ledger::JobTotals;
use crate::model::{Creation, Incarnation, JobRequest, Transition};
use crate::pace::Pace;
use crate::prerequisites::{self, Lookup};
use crate::transition::Actor;
use crate::uploads::use_uploads;
use crate::{Store, StoreError};

/// Makes the pipe and the body of the start message for a new incarnation.
type MakeStart<'f> = &'f (dyn Fn(&Incarnation) -> (String, Vec<u8>) + Send + Sync);

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
    /// `start` makes the pipe and the body of the start message for the new incarnation. It runs once per attempt at the
    /// transaction.
    ///
    /// A request that only tries changes nothing, and tells what would become of it.
    ///
    /// A request with a key creates a job only if the key is new. One that replaces a job deletes that one in the same transaction.
    pub async fn create_job(
        &self,
        request: &JobRequest,
        start: impl Fn(&Incarnation) -> (String, Vec<u8>) + Send + Sync,
    ) -> Result<Creation, StoreError> {
        let start: MakeStart<'_> = &start;
        let locks = locks_to_replace(request);
        let mut exclusive = false;
        loop {
            let attempt = self
                .run_tx("create_job", locks.clone(), |tx| {
                    Box::pin(create(tx, request, start, exclusive))
                })
                .await?;
            match attempt {
                Attempt::Done(creation) => return Ok(creation),
                Attempt::NeedsExclusive => exclusive = true,
                Attempt::IdTaken => {
                    let (partition, job) = (request.partition.as_str(), request.job.as_str());
                    match self.backend.job(partition, job).await? {
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
    start: MakeStart<'_>,
    exclusive: bool,
) -> Result<End<Attempt>, DbError> {
    let now = tx.now();
    let mut job = new_job(request, now);
    let (partition, id) = (request.partition.as_str(), request.job.as_str());
    if exclusive || may_wait(request) {
        tx.lock_creations(partition, !exclusive).await?;
    }
    let refused = |creation| Ok(End::Rollback(Attempt::Done(creation)));
    if let Some(key) = &request.key {
        match tx.give_key(partition, key, id).await? {
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
    let Some(NewIncarnation { number, recreates }) = tx.insert_job(&job).await? else {
        return Ok(End::Rollback(Attempt::IdTaken));
    };
    let unreadable = use_uploads(tx, &request.partition, number, &request.uploads);
    if let Some(refusal) = unreadable.await? {
        return refused(Creation::NoUpload(refusal));
    }
    if request.only_tries {
        return refused(Creation::Possible);
    }
    job.incarnation = number;
    if recreates {
        tx.mark_recreated(number).await?;
        job.first_life = false;
    }
    let created = job.to_incarnation();
    if !request.labels.is_empty() {
        tx.insert_labels(number, &request.labels).await?;
    }
    if !waits_for.is_empty() {
        tx.insert_prerequisites(&job, &waits_for).await?;
    }
    let step = Transition {
        time: now,
        from: None,
        to: JobStatus::Waiting,
        actor: Actor::Client.name().to_owned(),
        reason: request.remark.as_ref().map_or_else(
            || "created".to_owned(),
            |remark| format!("created. {remark}"),
        ),
        round: job.round,
        correlation_id: job.correlation_id.clone(),
        prerequisite: None,
    };
    let (pipe, body) = start(&created);
    let parts = NewParts {
        step: &step,
        start: &body,
        due: DueTime {
            after: waits_for
                .is_empty()
                .then(|| u64::from(request.start.delay) * 1000),
            suspended: request.start.suspended,
        },
        definition: &PackedDefinition::of(request, pipe, &body)?,
    };
    if tx.insert_parts(&job, parts).await? != recreates {
        // The insertion has waited for the deletion of the incarnation before, which the next attempt sees.
        return Ok(End::Rerun);
    }
    tx.notify(Signal::Outbox);
    Ok(End::Commit(Attempt::Done(Creation::Created(created))))
}

/// Returns whether the creation looks at other jobs before it inserts its own, or waits for another creation.
fn may_wait(request: &JobRequest) -> bool {
    let is_plain = request.key.is_none() && request.replaces.is_none();
    !is_plain || !request.start.prerequisites.is_empty()
}

/// Returns the jobs that a creation locks first, in one go: if it replaces a job, that one and all prerequisites.
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

/// Deletes the incarnation that the new job replaces. Returns why it stays, if it does. No job waits for one that has ended.
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

fn new_job(request: &JobRequest, now: i64) -> JobRow {
    JobRow {
        partition: request.partition.clone(),
        job: request.job.clone(),
        incarnation: 0,
        first_life: true,
        round: 1,
        name: request.name.clone(),
        description: request.description.clone(),
        external_data: request.external_data.clone(),
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
        retry: request.retry.as_ref().map(ToString::to_string),
        task_time_limit: request.task_time_limit,
        blocked_tasks: 0,
    }
}
