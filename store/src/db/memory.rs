//! The store in memory, for tests and for the simulation under a paused clock. It has no threads
//! and no files, and waits only for its one lock. A transaction holds the lock and notes how to
//! undo each of its steps.

mod conditions;
mod events;
mod inspect;
mod jobs;
mod ledger;
mod letters;
mod memos;
mod outbox;
mod outputs;
mod parking;
mod prerequisites;
mod retention;
mod rounds;
mod shards;
mod shared;
mod uploads;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use contract::{JobId, JobStatus};
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::letters::LetterSums;
use super::{
    Backend, Clock, DbError, DbFuture, Dependency, Inspect, JobKey, JobRow, JobTexts, KeptBlobRow,
    KeptRow, KeptTaskRow, Label, LongText, Part, Reads, Signal, Signals, Transaction,
    TransitionRow, UnsentStart, Wakes,
};
use crate::definition::PackedDefinition;
use crate::error::Availability;
use crate::ledger::{KeptAttempt, KeptFailure, NodeKey, NodeRow};
use crate::model::{Backlog, KeyedRequest, OutboxMessage, ParkedTask, StuckJob};
use crate::query::JobQuery;
use outbox::Unsent;
use prerequisites::Dependencies;
pub use shared::FaultPoint;
use shared::Shared;

#[derive(Debug)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<JobKey, JobRow>,
    ids: BTreeMap<i64, JobKey>,
    texts: BTreeMap<i64, JobTexts>,
    labels: BTreeMap<(i64, String), Option<String>>,
    failures: BTreeMap<(i64, String), KeptFailure>,
    curves: BTreeMap<i64, String>,
    history: BTreeMap<(i64, i64), TransitionRow>,
    events: events::Events,
    outbox: BTreeMap<i64, Unsent>,
    letters: letters::Letters,
    letter_sums: BTreeMap<JobKey, LetterSums>,
    memos: memos::Memos,
    waits: conditions::Waits,
    dependencies: Dependencies,
    /// With the time of their deletion.
    past_incarnations: BTreeMap<(String, String, i64), i64>,
    /// By partition and key: the fingerprint of the request, its job and the time.
    request_keys: BTreeMap<(String, String), (Vec<u8>, JobId, i64)>,
    parked: BTreeMap<(i64, i64), ParkedTask>,
    #[expect(
        clippy::zero_sized_map_values,
        reason = "a set, whose changes are undone as those of the maps"
    )]
    unparking: BTreeMap<i64, ()>,
    uploads: uploads::Uploads,
    /// With the time of creation.
    tables: BTreeMap<i64, i64>,
    nodes: BTreeMap<(i64, String, i32), NodeRow>,
    retired: BTreeMap<i64, i64>,
    tracking_shards: BTreeMap<String, i32>,
    kept: BTreeMap<i64, KeptRow>,
    kept_blobs: BTreeMap<(i64, i64), KeptBlobRow>,
    kept_tasks: BTreeMap<(i64, String, i32), KeptTaskRow>,
    definitions: BTreeMap<i64, PackedDefinition>,
    /// Jobs that have ended before their start, and the job with which they ended.
    unstarted: BTreeMap<i64, Option<i64>>,
    /// By incarnation, path and round.
    past_failures: BTreeMap<(i64, String, u32), KeptFailure>,
    /// By incarnation, path, round and number.
    attempts: BTreeMap<(i64, String, u32, i32), KeptAttempt>,
    last_incarnation: i64,
    last_number: i64,
}

impl State {
    /// Returns a number that was never used before. A rollback does not give it back.
    fn number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }
}

impl Memory {
    /// Returns a store that fails at the points for which `fails` returns true.
    pub fn new(fails: impl Fn(FaultPoint) -> bool + Send + Sync + 'static) -> Self {
        let shared = Shared {
            clock: Clock::tokio(),
            signals: Signals::default(),
            fails: Box::new(fails),
        };
        Self {
            state: Arc::default(),
            shared: Arc::new(shared),
        }
    }

    async fn read(&self) -> Result<OwnedMutexGuard<State>, DbError> {
        self.shared.pass(FaultPoint::Read)?;
        Ok(self.state.clone().lock_owned().await)
    }
}

impl Backend for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }
    fn signals(&self) -> &Signals {
        &self.shared.signals
    }
    fn begin(&self) -> DbFuture<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            self.shared.pass(FaultPoint::Begin)?;
            let state = self.state.clone().lock_owned().await;
            let undo = Vec::new();
            let transaction = MemoryTransaction {
                state,
                shared: self.shared.clone(),
                undo,
                wakes: Wakes::default(),
            };
            Ok(Box::new(transaction) as Box<dyn Transaction>)
        })
    }
    fn availability(&self) -> watch::Receiver<Availability> {
        watch::Sender::new(Availability::Available).subscribe()
    }
    fn ping(&self) -> DbFuture<'_, ()> {
        Box::pin(async { self.shared.pass(FaultPoint::Read) })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Reads for Memory {
    fn job<'a>(&'a self, partition: &'a str, job: &'a str) -> DbFuture<'a, Option<JobRow>> {
        Box::pin(async move {
            Ok(self
                .read()
                .await?
                .jobs
                .get(&(partition.to_owned(), job.to_owned()))
                .cloned())
        })
    }
    fn jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(async move {
            let mut jobs = self.read().await?.matching(partition, query);
            jobs.sort_by(|a, b| a.compare(b, &query.sort));
            let offset = usize::try_from(query.offset).unwrap_or(usize::MAX);
            Ok(jobs
                .into_iter()
                .skip(offset)
                .take(query.limit as usize)
                .map(|candidate| candidate.job)
                .collect())
        })
    }
    fn job_numbers<'a>(
        &'a self,
        partition: &'a str,
        query: &'a JobQuery,
    ) -> DbFuture<'a, Vec<i64>> {
        Box::pin(async move {
            let jobs = self.jobs(partition, query).await?;
            Ok(jobs.into_iter().map(|job| job.incarnation).collect())
        })
    }
    fn jobs_numbered<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let keys = incarnations.iter().filter_map(|n| state.ids.get(n));
            Ok(keys
                .filter_map(|key| state.jobs.get(key))
                .cloned()
                .collect())
        })
    }
    fn texts<'a>(
        &'a self,
        incarnations: &'a [i64],
        part: Part,
    ) -> DbFuture<'a, Vec<(i64, JobTexts)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let found = |n: &i64| Some((*n, state.texts.get(n)?.part(part)));
            Ok(incarnations.iter().filter_map(found).collect())
        })
    }
    fn text(&self, incarnation: i64, which: LongText, part: Part) -> DbFuture<'_, Option<String>> {
        Box::pin(async move {
            let state = self.read().await?;
            let texts = state.texts.get(&incarnation);
            Ok(texts.and_then(|texts| texts.part(part).take(which)))
        })
    }
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64> {
        Box::pin(async move { Ok(self.read().await?.matching(partition, query).len() as u64) })
    }
    fn count_by_status<'a>(
        &'a self,
        partition: &'a str,
        query: &'a JobQuery,
    ) -> DbFuture<'a, Vec<(JobStatus, u64)>> {
        Box::pin(async move {
            let mut counts = BTreeMap::new();
            for candidate in self.read().await?.matching(partition, query) {
                *counts.entry(candidate.shown_status()).or_default() += 1;
            }
            Ok(counts.into_iter().collect())
        })
    }
    fn partitions<'a>(&'a self, after: &'a str, limit: u32) -> DbFuture<'a, Vec<String>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut names: Vec<&str> = state.jobs.keys().map(|(name, _)| name.as_str()).collect();
            names.dedup();
            let follow = names.into_iter().filter(|name| *name > after);
            Ok(follow.take(limit as usize).map(str::to_owned).collect())
        })
    }
    fn dependents_of<'a>(
        &'a self,
        partition: &'a str,
        job: &'a str,
        limit: u32,
    ) -> DbFuture<'a, Vec<(String, JobStatus)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut found: Vec<_> = state
                .waiting_for(&(partition.to_owned(), job.to_owned()))
                .filter_map(|wait| {
                    let job = state
                        .jobs
                        .get(&(wait.partition.clone(), wait.job.clone()))?;
                    Some((wait.job.clone(), job.status))
                })
                .collect();
            found.sort();
            found.truncate(limit as usize);
            Ok(found)
        })
    }
    fn labels<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<Label>> {
        Box::pin(async move {
            let state = self.read().await?;
            let of = |n: i64| {
                state
                    .labels
                    .range((n, String::new())..(n + 1, String::new()))
            };
            Ok(incarnations
                .iter()
                .flat_map(|n| of(*n))
                .map(|((n, key), value)| (*n, key.clone(), value.clone()))
                .collect())
        })
    }
    fn failures<'a>(
        &'a self,
        incarnations: &'a [i64],
        limit: usize,
    ) -> DbFuture<'a, Vec<(i64, KeptFailure)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut sorted = incarnations.to_vec();
            sorted.sort_unstable();
            let of = |n: i64| state.first_failures_of(n, limit);
            let first = sorted
                .iter()
                .flat_map(|n| of(*n).map(|kept| (*n, kept.clone())));
            Ok(first.collect())
        })
    }
    fn failures_after<'a>(
        &'a self,
        incarnation: i64,
        after: (i64, &'a str),
        limit: usize,
    ) -> DbFuture<'a, Vec<KeptFailure>> {
        Box::pin(async move {
            let state = self.read().await?;
            let follows = |kept: &&KeptFailure| (kept.since, kept.path.as_str()) > after;
            let failures = state.failures_of(incarnation).into_iter().filter(follows);
            Ok(failures.take(limit).cloned().collect())
        })
    }
    fn failures_kept(&self, incarnation: i64) -> DbFuture<'_, i64> {
        Box::pin(async move {
            let kept = self.read().await?.failures_of(incarnation).len();
            Ok(i64::try_from(kept).unwrap_or(i64::MAX))
        })
    }
    fn failure<'a>(&'a self, incarnation: i64, path: &'a str) -> DbFuture<'a, Option<KeptFailure>> {
        Box::pin(async move {
            let key = (incarnation, path.to_owned());
            Ok(self.read().await?.failures.get(&key).cloned())
        })
    }
    fn history(
        &self,
        incarnation: i64,
        after: i64,
        limit: u32,
    ) -> DbFuture<'_, Vec<TransitionRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let rows = state.history.range((incarnation, 0)..(incarnation + 1, 0));
            let further = rows.filter(|((_, id), _)| *id > after);
            Ok(further
                .take(limit as usize)
                .map(|(_, row)| row.clone())
                .collect())
        })
    }
    fn nodes<'a>(&'a self, incarnation: i64, keys: &'a [NodeKey]) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move { Ok(self.read().await?.nodes_of(incarnation, keys)) })
    }
    fn task_pipes(&self, limit: u32) -> DbFuture<'_, Vec<String>> {
        Box::pin(async move { Ok(rounds::task_pipes(&*self.read().await?, limit)) })
    }
    fn source<'a>(
        &'a self,
        partition: &'a str,
        job: &'a str,
    ) -> DbFuture<'a, Option<(i64, PackedDefinition)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let row = state.jobs.get(&(partition.to_owned(), job.to_owned()));
            Ok(row.and_then(|row| {
                let definition = state.definitions.get(&row.incarnation)?;
                Some((row.incarnation, definition.clone()))
            }))
        })
    }
    fn request_with_key<'a>(
        &'a self,
        partition: &'a str,
        key: &'a str,
    ) -> DbFuture<'a, Option<KeyedRequest>> {
        Box::pin(async move {
            let state = self.read().await?;
            let own = (partition.to_owned(), key.to_owned());
            let found = state.request_keys.get(&own).cloned();
            Ok(found.map(|(fingerprint, job, _)| {
                let row = state.jobs.get(&(partition.to_owned(), job.to_string()));
                let content_hash = row.map(|row| row.content_hash.clone());
                KeyedRequest {
                    fingerprint,
                    job,
                    content_hash,
                }
            }))
        })
    }
    fn past_failures<'a>(
        &'a self,
        incarnation: i64,
        path: &'a str,
    ) -> DbFuture<'a, Vec<(u32, KeptFailure)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let of = (incarnation, path.to_owned(), 0)..=(incarnation, path.to_owned(), u32::MAX);
            let failures = state.past_failures.range(of);
            Ok(failures
                .map(|((.., round), kept)| (*round, kept.clone()))
                .collect())
        })
    }
    fn attempts<'a>(
        &'a self,
        incarnation: i64,
        path: &'a str,
    ) -> DbFuture<'a, Vec<(u32, KeptAttempt)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let first = (incarnation, path.to_owned(), 0, i32::MIN);
            let last = (incarnation, path.to_owned(), u32::MAX, i32::MAX);
            let attempts = state.attempts.range(first..=last);
            Ok(attempts
                .map(|((_, _, round, _), kept)| (*round, kept.clone()))
                .collect())
        })
    }
    fn next_attempts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, i64)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let now = self.shared.clock.now();
            let next = |n: &i64| {
                let round = state.jobs.get(state.ids.get(n)?)?.round;
                let first = (*n, String::new(), 0, i32::MIN);
                let rows = state
                    .attempts
                    .range(first..)
                    .take_while(|(key, _)| key.0 == *n);
                let of_round = rows.filter(|(key, _)| key.2 == round);
                let times = of_round.filter_map(|(_, kept)| kept.next);
                Some((*n, times.filter(|time| *time > now).min()?))
            };
            Ok(incarnations.iter().filter_map(next).collect())
        })
    }
    fn parked(&self, incarnation: i64) -> DbFuture<'_, u64> {
        Box::pin(async move {
            Ok(self
                .read()
                .await?
                .parked
                .range((incarnation, 0)..(incarnation + 1, 0))
                .count() as u64)
        })
    }
    fn outbox(&self, limit: u32) -> DbFuture<'_, Vec<OutboxMessage>> {
        Box::pin(async move {
            let state = self.read().await?;
            let now = self.shared.clock.now();
            let due = state.outbox.values().filter(|unsent| unsent.is_due(now));
            let mut messages: Vec<&Unsent> = due.collect();
            messages.sort_by_key(|unsent| (unsent.due_time, unsent.message.id));
            Ok(messages
                .into_iter()
                .take(limit as usize)
                .map(|unsent| unsent.message.clone())
                .collect())
        })
    }
    fn blob_owner(&self) -> DbFuture<'_, String> {
        // No other process sees it.
        done("memory".to_owned())
    }
    fn kept_bytes(&self) -> DbFuture<'_, u64> {
        Box::pin(async move {
            let state = self.read().await?;
            let bytes = state.kept.values().map(|kept| kept.bytes);
            Ok(bytes.sum::<i64>().unsigned_abs())
        })
    }
    fn kept<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<KeptRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let kept = incarnations.iter().filter_map(|n| state.kept.get(n));
            Ok(kept.cloned().collect())
        })
    }
    fn kept_blobs(
        &self,
        incarnation: i64,
        from_line: i64,
        failed: Option<bool>,
        limit: u32,
    ) -> DbFuture<'_, Vec<KeptBlobRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            Ok(state.kept_blobs_of(incarnation, from_line, failed, limit))
        })
    }
    fn last_kept_blobs(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<KeptBlobRow>> {
        Box::pin(async move { Ok(self.read().await?.last_kept_blobs_of(incarnation, limit)) })
    }
    fn kept_tasks<'a>(
        &'a self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<KeptTaskRow>> {
        Box::pin(async move { Ok(self.read().await?.kept_tasks_of(incarnation, keys)) })
    }
    fn doomed_outputs(&self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(async move { Ok(self.read().await?.doomed_outputs(limit)) })
    }
    fn backlog(&self) -> DbFuture<'_, Backlog> {
        Box::pin(async move {
            let state = self.read().await?;
            let now = self.shared.clock.now();
            let mut backlog = Backlog {
                parked_tasks: state.parked.len() as u64,
                ..Backlog::default()
            };
            for job in state.jobs.values() {
                let status = state.candidate(job).shown_status();
                *backlog.jobs.entry(status.name()).or_default() += 1;
            }
            for unsent in state.outbox.values() {
                let is_due = unsent.is_due(now);
                backlog.due_messages += u64::from(is_due || unsent.announces.is_some());
                if let Some(due) = unsent.due_time.filter(|_| is_due) {
                    let age = Duration::from_millis((now - due).cast_unsigned());
                    backlog.oldest_due = backlog.oldest_due.max(age);
                }
            }
            Ok(backlog)
        })
    }
    fn stuck_jobs(&self, idle: u64, limit: u32) -> DbFuture<'_, Vec<StuckJob>> {
        Box::pin(async move {
            let state = self.read().await?;
            let before = self.shared.clock.now().saturating_sub_unsigned(idle);
            let may_move =
                |job: &&JobRow| matches!(job.status, JobStatus::Active | JobStatus::Waiting);
            let sent = |job: &&JobRow| {
                let mut unsent = state.outbox.values();
                !unsent.any(|unsent| unsent.incarnation == Some(job.incarnation))
            };
            let idle = |job: &&JobRow| job.last_update_time <= before;
            let stuck = state
                .jobs
                .values()
                .filter(may_move)
                .filter(idle)
                .filter(sent);
            let mut stuck: Vec<StuckJob> = stuck
                .map(|job| StuckJob {
                    partition: job.partition.clone(),
                    job: job.job.clone(),
                    incarnation: job.incarnation,
                    since: job.last_update_time,
                })
                .collect();
            stuck.sort_by_key(|job| job.incarnation);
            stuck.truncate(limit as usize);
            Ok(stuck)
        })
    }
    fn prerequisites<'a>(
        &'a self,
        incarnations: &'a [i64],
    ) -> DbFuture<'a, Vec<(i64, String, Option<JobStatus>)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let wanted: BTreeSet<i64> = incarnations.iter().copied().collect();
            let of = state
                .dependencies
                .values()
                .filter(|wait| wanted.contains(&wait.incarnation));
            let status = |wait: &Dependency| {
                Some(
                    state
                        .jobs
                        .get(&(wait.partition.clone(), wait.prerequisite.clone()))?
                        .status,
                )
            };
            let mut found: Vec<_> = of
                .map(|wait| (wait.incarnation, wait.prerequisite.clone(), status(wait)))
                .collect();
            found.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
            Ok(found)
        })
    }
    fn unsent_starts<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<UnsentStart>> {
        Box::pin(async move {
            let state = self.read().await?;
            let of = |n: i64| {
                state
                    .outbox
                    .values()
                    .find(move |unsent| unsent.incarnation == Some(n))
            };
            let start = |(n, unsent): (i64, &Unsent)| UnsentStart {
                incarnation: n,
                due_time: unsent.due_time,
                suspended: unsent.suspended,
            };
            Ok(incarnations
                .iter()
                .filter_map(|n| Some((*n, of(*n)?)))
                .map(start)
                .collect())
        })
    }
}

type Undo = Box<dyn FnOnce(&mut State) + Send>;

struct MemoryTransaction {
    state: OwnedMutexGuard<State>,
    shared: Arc<Shared>,
    undo: Vec<Undo>,
    wakes: Wakes,
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        while let Some(undo) = self.undo.pop() {
            undo(&mut self.state);
        }
    }
}

impl MemoryTransaction {
    /// Inserts a value into one of the maps, or removes it, and notes what was there.
    fn put<K, V>(&mut self, map: fn(&mut State) -> &mut BTreeMap<K, V>, key: K, value: Option<V>)
    where
        K: Ord + Clone + Send + 'static,
        V: Send + 'static,
    {
        let set = |map: &mut BTreeMap<K, V>, key: K, value: Option<V>| match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
        let before = set(map(&mut self.state), key.clone(), value);
        self.undo.push(Box::new(move |state| {
            set(map(state), key, before);
        }));
    }

    fn remove_all<K, V>(
        &mut self,
        map: fn(&mut State) -> &mut BTreeMap<K, V>,
        which: impl Fn(&K, &V) -> bool,
    ) where
        K: Ord + Clone + Send + 'static,
        V: Send + 'static,
    {
        let keys: Vec<K> = map(&mut self.state)
            .iter()
            .filter(|(key, value)| which(key, value))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.put(map, key, None);
        }
    }

    fn change_job(&mut self, incarnation: i64, change: impl FnOnce(&mut JobRow)) {
        if let Some(id) = self.state.ids.get(&incarnation).cloned()
            && let Some(mut job) = self.state.jobs.get(&id).cloned()
        {
            change(&mut job);
            self.put(|s| &mut s.jobs, id, Some(job));
        }
    }
}

/// Returns a future that is ready: the steps of a memory transaction happen when they are called.
fn done<'a, T: Send + 'a>(value: T) -> DbFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, DbError>(value)))
}

impl Transaction for MemoryTransaction {
    fn notify(&mut self, signal: Signal) {
        self.wakes.add(signal);
    }
    fn notify_job(&mut self, partition: &str, job: &str) {
        self.wakes.add_job(partition, job);
    }
    fn notify_any_job(&mut self) {
        self.wakes.add_any_job();
    }
    fn commit(mut self: Box<Self>) -> DbFuture<'static, ()> {
        if let Err(fault) = self.shared.pass(FaultPoint::Commit) {
            return Box::pin(std::future::ready(Err(fault)));
        }
        self.undo.clear();
        let (shared, wakes) = (self.shared.clone(), std::mem::take(&mut self.wakes));
        // The lock first: a woken receiver can read what was committed.
        drop(self);
        shared.signals.wake(&wakes);
        Box::pin(std::future::ready(shared.pass(FaultPoint::Committed)))
    }
    fn rollback(self: Box<Self>) -> DbFuture<'static, ()> {
        drop(self);
        done(())
    }
}
