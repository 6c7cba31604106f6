//! Sends dead letters again: each leaves the store with the message that takes its place in the
//! outbox, in one transaction.
//!
//! - A letter of no job goes to the outbox as it is.
//! - A task of a job that has not ended is opened again in its ledger if it had failed, so that the
//!   job waits for it.
//! - A task of a job that has ended begins a round: only the tasks of the letters are opened again,
//!   and no start message is sent. All other tasks must have ended, because nothing would do them.
//!
//! What must stay true:
//! - A message is a letter, or in the outbox, or was sent; never two of these, and never none.
//! - No job waits for a task that nothing sends.

use std::collections::BTreeMap;

use contract::{JobStatus, Step};

use crate::blocked::forget_blocked;
use crate::db::run_tx::{End, JobLocks, Tx};
use crate::db::{DbError, DueTime, JobRow, Signal, sql};
use crate::ledger::{Ledger, Reopening, keys_of, steps_of};
use crate::letter::Letter;
use crate::letters;
use crate::model::{Headers, Incarnation};
use crate::transition::{Actor, StatusChange, reopen_job};
use crate::{Result, Store};

/// The number of letters whose bodies are in memory at the same time.
const PAGE: usize = 100;

/// A message that takes the place of a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// The pipe to which it goes.
    pub pipe: String,
    /// The body.
    pub body: Vec<u8>,
    /// The headers.
    pub headers: Headers,
}

/// What became of a letter that was to be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replay {
    /// Its message is in the outbox. Its job counts it in this incarnation and round.
    Sent {
        /// The pipe to which it goes.
        pipe: String,
        /// The job; `None` if it belongs to none.
        job: Option<Incarnation>,
    },
    /// It stays a letter.
    Not(NotReplayed),
}

/// Why a letter is not replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReplayed {
    /// There is no such letter.
    NotFound,
    /// Only the beginning of its body is kept.
    Cut,
    /// There is no message to send, for this reason.
    Impossible(String),
    /// Its job was deleted.
    JobGone,
    /// Its job was deleted and created again.
    PastIncarnation,
    /// The task is done.
    Done,
    /// The status of the job does not allow it.
    WrongStatus(JobStatus),
    /// What was known about the tasks of the job is deleted.
    Forgotten,
    /// The job has ended, and other tasks of it have not, for this reason.
    RetryInstead(String),
}

/// Makes the message that takes the place of a letter, for its job in the round in which it counts.
type MakeMessage<'f> =
    &'f (dyn Fn(&Letter, Option<&Incarnation>) -> Result<NewMessage, String> + Send + Sync);

impl Store {
    /// Replays dead letters, which must all be of one job, or all of none, in one transaction, so
    /// that at most one round begins. Returns what became of each, in the order of the ids.
    pub async fn replay_letters(
        &self,
        ids: &[i64],
        make: impl Fn(&Letter, Option<&Incarnation>) -> Result<NewMessage, String> + Send + Sync,
    ) -> Result<Vec<(i64, Replay)>> {
        let mut locks = JobLocks::new();
        for id in ids {
            let letter = sql::letters::find(&mut self.database.reader().await?, *id).await?;
            locks.extend(
                letter
                    .and_then(|letter| letter.content.task)
                    .map(|task| (task.partition, task.job)),
            );
        }
        let make: MakeMessage<'_> = &make;
        self.run_tx_on_jobs("replay_letters", locks, |tx| {
            Box::pin(replay(tx, ids, make))
        })
        .await
    }
}

async fn replay(
    tx: &mut Tx<'_>,
    ids: &[i64],
    make: MakeMessage<'_>,
) -> Result<End<Vec<(i64, Replay)>>, DbError> {
    let mut jobs = tx.lock_known_jobs().await?;
    let job = jobs.pop().filter(|_| jobs.is_empty());
    let mut outcomes: BTreeMap<i64, Replay> = ids
        .iter()
        .map(|id| (*id, Replay::Not(NotReplayed::NotFound)))
        .collect();
    let (mut sent, mut of_jobs) = (Vec::new(), Vec::new());
    for page in ids.chunks(PAGE) {
        for letter in sql::letters::to_replay(tx, page).await? {
            if letter.content.task.is_some() {
                of_jobs.push(letter.id);
                continue;
            }
            let sending = send(tx, &letter, None, make).await?;
            let outcome = sending.map(|pipe| Replay::Sent { pipe, job: None });
            note(&mut outcomes, &mut sent, letter.id, outcome);
        }
    }
    if !of_jobs.is_empty() {
        for (id, outcome) in replay_tasks(tx, job, &of_jobs, make).await? {
            note(&mut outcomes, &mut sent, id, outcome);
        }
    }
    let outcomes = outcomes.into_iter().collect();
    if sent.is_empty() {
        return Ok(End::Rollback(outcomes));
    }
    letters::delete(tx, &sent, 0).await?;
    tx.notify(Signal::Outbox);
    tx.notify(Signal::Letters);
    Ok(End::Commit(outcomes))
}

type Outcome = Result<Replay, NotReplayed>;

fn note(outcomes: &mut BTreeMap<i64, Replay>, sent: &mut Vec<i64>, id: i64, outcome: Outcome) {
    if outcome.is_ok() {
        sent.push(id);
    }
    outcomes.insert(id, outcome.unwrap_or_else(Replay::Not));
}

/// Puts the message of a letter into the outbox, with the headers that all tasks of its job have,
/// such as their time limit. Returns the pipe to which it goes.
async fn send(
    tx: &mut Tx<'_>,
    letter: &Letter,
    job: Option<(&JobRow, &Headers)>,
    make: MakeMessage<'_>,
) -> Result<Result<String, NotReplayed>, DbError> {
    let (job, of_job) = job.unzip();
    let incarnation = job.map(JobRow::to_incarnation);
    if letter.cut {
        return Ok(Err(NotReplayed::Cut));
    }
    let message = match make(letter, incarnation.as_ref()) {
        Ok(message) => message,
        Err(reason) => return Ok(Err(NotReplayed::Impossible(reason))),
    };
    let due = DueTime {
        after: Some(0),
        suspended: false,
    };
    let number = job.map(|job| job.incarnation);
    let mut headers = of_job.cloned().unwrap_or_default();
    headers.extend(message.headers);
    sql::outbox::push(tx, number, &message.pipe, &message.body, &headers, due).await?;
    Ok(Ok(message.pipe))
}

/// Replays tasks of one locked job: opens all of them at once, and then sends each.
async fn replay_tasks(
    tx: &mut Tx<'_>,
    job: Option<JobRow>,
    ids: &[i64],
    make: MakeMessage<'_>,
) -> Result<Vec<(i64, Outcome)>, DbError> {
    let Some(mut job) = job else {
        return Ok(refused(ids, &NotReplayed::JobGone));
    };
    let mut outcomes = Vec::with_capacity(ids.len());
    let (mut asked, mut paths) = (Vec::new(), Vec::new());
    for page in ids.chunks(PAGE) {
        for letter in &sql::letters::to_replay(tx, page).await? {
            if let Some(refusal) = refusal(letter, &job, make) {
                outcomes.push((letter.id, Err(refusal)));
            } else {
                asked.push(letter.id);
                paths.push(path(letter).to_owned());
            }
        }
    }
    if asked.is_empty() {
        return Ok(outcomes);
    }
    let was_finished = job.status.is_finished();
    let opened = if was_finished && !job.can_go_on() {
        Err(NotReplayed::Done)
    } else if paths.iter().any(String::is_empty) {
        reopen_own_task(tx, &mut job).await?
    } else {
        reopen_tasks(tx, &mut job, &paths).await?
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(reason) => {
            outcomes.extend(refused(&asked, &reason));
            return Ok(outcomes);
        }
    };
    // A worker that gives up a task copies its message, and not all of its headers.
    let of_job = sql::rounds::definition(tx, job.incarnation).await?.headers;
    for page in asked.chunks(PAGE) {
        for letter in &sql::letters::to_replay(tx, page).await? {
            let reopening = opened.get(path(letter)).copied();
            let outcome = match reopening {
                Some(Reopening::Done) => Err(NotReplayed::Done),
                Some(Reopening::Split | Reopening::Unknown) if was_finished => {
                    Err(retry_for_split())
                }
                _ => send(tx, letter, Some((&job, &of_job)), make)
                    .await?
                    .map(|pipe| Replay::Sent {
                        pipe,
                        job: Some(job.to_incarnation()),
                    }),
            };
            outcomes.push((letter.id, outcome));
        }
    }
    Ok(outcomes)
}

/// Returns why a letter cannot be replayed, whatever has become of its task. Asked before anything
/// is opened that nothing would send.
fn refusal(letter: &Letter, job: &JobRow, make: MakeMessage<'_>) -> Option<NotReplayed> {
    let incarnation = letter.content.task.as_ref().map(|task| task.incarnation);
    if !incarnation.is_some_and(|incarnation| job.matches(incarnation)) {
        return Some(NotReplayed::PastIncarnation);
    }
    if letter.cut {
        return Some(NotReplayed::Cut);
    }
    let message = make(letter, Some(&job.to_incarnation()));
    message.err().map(NotReplayed::Impossible)
}

fn refused(ids: &[i64], reason: &NotReplayed) -> Vec<(i64, Outcome)> {
    let refuse = |id: &i64| (*id, Err(reason.clone()));
    ids.iter().map(refuse).collect()
}

fn path(letter: &Letter) -> &str {
    letter
        .content
        .task
        .as_ref()
        .map_or("", |task| task.path.as_str())
}

fn retry_for_split() -> NotReplayed {
    NotReplayed::RetryInstead(
        "the task has subtasks, or is part of a split that has failed as a whole".to_owned(),
    )
}

type Opened<'p> = BTreeMap<&'p str, Reopening>;

/// Begins a round of a job whose own task is sent again and has no subtasks. A job that has not
/// ended needs none.
async fn reopen_own_task<'p>(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
) -> Result<Result<Opened<'p>, NotReplayed>, DbError> {
    if !job.status.is_finished() {
        return Ok(Ok(Opened::new()));
    }
    if job.task_table {
        return Ok(Err(NotReplayed::RetryInstead(
            "the job's first task has subtasks".to_owned(),
        )));
    }
    sql::letters::archive_failures_at(tx, job.incarnation, job.round, &[String::new()]).await?;
    sql::rounds::forget_unstarted(tx, job.incarnation).await?;
    job.totals.begin_round();
    begin_round(tx, job).await?;
    Ok(Ok(Opened::new()))
}

/// Opens failed tasks of a job again, and begins a round if the job has ended.
async fn reopen_tasks<'p>(
    tx: &mut Tx<'_>,
    job: &mut JobRow,
    asked: &'p [String],
) -> Result<Result<Opened<'p>, NotReplayed>, DbError> {
    let was_finished = job.status.is_finished();
    if !job.task_table {
        // A job that runs has counted nothing yet.
        return Ok(if was_finished {
            Err(NotReplayed::Forgotten)
        } else {
            Ok(Opened::new())
        });
    }
    if was_finished && !sql::retention::hold_retired_table(tx, job.incarnation).await? {
        return Ok(Err(NotReplayed::Forgotten));
    }
    let steps: Vec<Vec<Step>> = asked.iter().map(|path| steps_of(path)).collect();
    let mut ledger = load(tx, job, &steps).await?;
    if was_finished && !ledger.has_all_ended() {
        let reason = "other tasks of it are neither done nor failed, and nothing would do them";
        return Ok(Err(NotReplayed::RetryInstead(reason.to_owned())));
    }
    let mut opened = Opened::new();
    for (path, steps) in asked.iter().zip(&steps) {
        let reopening = match opened.get(path.as_str()) {
            Some(Reopening::Open) => Reopening::Open,
            _ => ledger.reopen(steps),
        };
        opened.insert(path, reopening);
    }
    let is_open = |(_, reopening): &(&&str, &Reopening)| **reopening == Reopening::Open;
    let paths: Vec<String> = opened
        .iter()
        .filter(is_open)
        .map(|(path, _)| (*path).to_owned())
        .collect();
    if paths.is_empty() {
        return Ok(Ok(opened));
    }
    let outcome = ledger.finish();
    if outcome.decision.is_some() {
        let reason = "more of its other tasks have failed than it tolerates";
        return Ok(Err(NotReplayed::RetryInstead(reason.to_owned())));
    }
    sql::ledger::change_nodes(tx, job.incarnation, &outcome.nodes).await?;
    sql::letters::archive_failures_at(tx, job.incarnation, job.round, &paths).await?;
    job.totals = outcome.totals;
    if was_finished {
        sql::rounds::unretire_table(tx, job.incarnation).await?;
        begin_round(tx, job).await?;
    } else {
        sql::jobs::save_one(tx, job).await?;
        tx.notify_job(job.partition.as_str(), job.job.as_str());
    }
    Ok(Ok(opened))
}

async fn load(tx: &mut Tx<'_>, job: &JobRow, tasks: &[Vec<Step>]) -> Result<Ledger, DbError> {
    let steps = || tasks.iter().map(Vec::as_slice);
    let mut totals = job.totals.clone();
    if job.status == JobStatus::Completed {
        // What is not done brings it below 100.
        totals.percentage = 0;
    }
    let mut ledger = Ledger::new(totals, 0, tx.now()).in_round(job.round);
    let rows = sql::ledger::load_nodes(tx, job.incarnation, &keys_of(steps())).await?;
    ledger.load(rows);
    let more = ledger.also_needed(steps());
    if !more.is_empty() {
        ledger.load(sql::ledger::load_nodes(tx, job.incarnation, &more).await?);
    }
    let failed = ledger.failed_among(steps());
    if !failed.is_empty() {
        ledger.load_kept(sql::failures::kinds(tx, job.incarnation, &failed).await?);
    }
    Ok(ledger)
}

/// Begins a round of a job that has ended, without a start message.
async fn begin_round(tx: &mut Tx<'_>, job: &mut JobRow) -> Result<(), DbError> {
    sql::parking::delete_oldest(tx, job.incarnation, u32::MAX).await?;
    forget_blocked(tx, job, u32::MAX).await?;
    sql::parking::unmark(tx, job.incarnation).await?;
    let before = job.status;
    job.round += 1;
    job.pace.restart(tx.now(), job.totals.ended_items());
    let reason = format!(
        "dead letters are replayed: round {} after {before}",
        job.round
    );
    let change = StatusChange {
        to: JobStatus::Active,
        actor: Actor::Client,
        reason: &reason,
        time: tx.now(),
    };
    reopen_job(tx, job, change).await
}
