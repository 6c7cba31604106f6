//! The store in memory, for tests and for the simulation under a paused clock: no threads, no files, no waiting but for the
//! one lock. A transaction holds the lock and notes how to undo each of its steps.

mod scheduling;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::db::DbError;
use crate::db::{Backend, Clock, DbFuture, JobRow, Label, Signal, Signals, Transaction};
use crate::ledger::{KeptFailure, NodeChanges, NodeKey, NodeRow, UNNAMED_FAILURE};
use crate::query::Candidate;
use crate::{CatalogueSize, JobQuery, OutboxMessage, ParkedTask, TaskTableSize, Transition};
use scheduling::{Unsent, Waits};

#[derive(Debug)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    signals: Signals,
    fails: Box<dyn Fn(FaultPoint) -> bool + Send + Sync>,
}

/// A point at which the store in memory can be made to fail, like a database whose connection is lost there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// Before a read outside a transaction.
    Read,
    /// Before a transaction begins.
    Begin,
    /// Before a commit: the transaction leaves nothing behind.
    Commit,
    /// After a commit: the transaction is in effect, but the caller gets an error.
    Committed,
}

impl Shared {
    fn pass(&self, point: FaultPoint) -> Result<(), DbError> {
        if (self.fails)(point) {
            Err(DbError::Unavailable(
                format!("a fault was planned here: {point:?}").into(),
            ))
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("clock", &self.clock)
            .field("signals", &self.signals)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<(String, String), JobRow>,
    ids: BTreeMap<i64, (String, String)>,
    labels: BTreeMap<(i64, String), Option<String>>,
    failures: BTreeMap<(i64, String), KeptFailure>,
    history: BTreeMap<(i64, i64), Transition>,
    outbox: BTreeMap<i64, Unsent>,
    waits: Waits,
    lives: BTreeMap<(String, String, i64), i64>,
    stowed: BTreeMap<(i64, i64), ParkedTask>,
    #[expect(
        clippy::zero_sized_map_values,
        reason = "a set, whose changes are undone as those of the maps"
    )]
    unstowing: BTreeMap<i64, ()>,
    /// With the time of creation.
    tables: BTreeMap<i64, i64>,
    rows: BTreeMap<(i64, String, i32), NodeRow>,
    retired: BTreeMap<i64, i64>,
    last_number: i64,
}

impl State {
    /// A number that was never given before, in no transaction's way.
    fn number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }

    fn rows_of(&self, incarnation: i64, keys: &[NodeKey]) -> Vec<NodeRow> {
        let mut rows: Vec<NodeRow> = keys
            .iter()
            .filter_map(|(path, chunk)| {
                self.rows.get(&(incarnation, path.clone(), *chunk)).cloned()
            })
            .collect();
        rows.sort_by(|a, b| (&a.path, a.chunk).cmp(&(&b.path, b.chunk)));
        rows
    }

    fn labels_of(&self, incarnation: i64) -> BTreeMap<String, Option<String>> {
        let labels = self
            .labels
            .range((incarnation, String::new())..(incarnation + 1, String::new()));
        labels
            .map(|((_, name), value)| (name.clone(), value.clone()))
            .collect()
    }

    fn matching(&self, partition: &str, query: &JobQuery) -> Vec<Candidate> {
        let first = (partition.to_owned(), String::new());
        let jobs = self
            .jobs
            .range(first..)
            .take_while(|((p, _), _)| p == partition)
            .map(|(_, job)| job);
        let candidates = jobs.map(|job| Candidate {
            job: job.clone(),
            labels: self.labels_of(job.incarnation),
        });
        candidates
            .filter(|candidate| candidate.matches(query))
            .collect()
    }
}

impl Memory {
    /// A store that fails wherever `fails` says so.
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
                wake: Vec::new(),
            };
            Ok(Box::new(transaction) as Box<dyn Transaction>)
        })
    }
    fn ping(&self) -> DbFuture<'_, ()> {
        Box::pin(async { self.shared.pass(FaultPoint::Read) })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

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
    fn count_jobs<'a>(&'a self, partition: &'a str, query: &'a JobQuery) -> DbFuture<'a, u64> {
        Box::pin(async move { Ok(self.read().await?.matching(partition, query).len() as u64) })
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
    fn failures<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<(i64, KeptFailure)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let of = |n: i64| {
                state
                    .failures
                    .range((n, String::new())..(n + 1, String::new()))
            };
            let mut failures: Vec<_> = incarnations
                .iter()
                .flat_map(|n| of(*n))
                .map(|((n, _), f)| (*n, f.clone()))
                .collect();
            failures.sort_by(|(a, f), (b, g)| (a, f.since, &f.path).cmp(&(b, g.since, &g.path)));
            Ok(failures)
        })
    }
    fn history(&self, incarnation: i64) -> DbFuture<'_, Vec<Transition>> {
        Box::pin(async move {
            let state = self.read().await?;
            Ok(state
                .history
                .range((incarnation, 0)..(incarnation + 1, 0))
                .map(|(_, step)| step.clone())
                .collect())
        })
    }
    fn nodes<'a>(&'a self, incarnation: i64, keys: &'a [NodeKey]) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move { Ok(self.read().await?.rows_of(incarnation, keys)) })
    }
    fn parked(&self, incarnation: i64) -> DbFuture<'_, u64> {
        Box::pin(async move {
            Ok(self
                .read()
                .await?
                .stowed
                .range((incarnation, 0)..(incarnation + 1, 0))
                .count() as u64)
        })
    }
    fn catalogue_size(&self) -> DbFuture<'_, CatalogueSize> {
        Box::pin(async move {
            Ok(CatalogueSize {
                entries: self.read().await?.tables.len() as u64,
                bytes: 0,
            })
        })
    }
    fn task_table_size(&self) -> DbFuture<'_, TaskTableSize> {
        Box::pin(async move {
            let state = self.read().await?;
            let bytes = |row: &NodeRow| {
                let texts =
                    row.path.len() + row.done.len() + row.failed.as_ref().map_or(0, Vec::len);
                (size_of::<NodeRow>() + texts + row.detail.as_ref().map_or(0, String::len)) as u64
            };
            Ok(TaskTableSize {
                tables: state.tables.len() as u64,
                rows: state.rows.len() as u64,
                bytes: state.rows.values().map(bytes).sum(),
            })
        })
    }
}

type Undo = Box<dyn FnOnce(&mut State) + Send>;

struct MemoryTransaction {
    state: OwnedMutexGuard<State>,
    shared: Arc<Shared>,
    undo: Vec<Undo>,
    wake: Vec<Signal>,
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        while let Some(undo) = self.undo.pop() {
            undo(&mut self.state);
        }
    }
}

impl MemoryTransaction {
    /// Puts a value into one of the maps, or takes it out, and notes what was there.
    fn put<K, V>(&mut self, map: fn(&mut State) -> &mut BTreeMap<K, V>, key: K, value: Option<V>)
    where
        K: Ord + Clone + Send + 'static,
        V: Send + 'static,
    {
        let place = |map: &mut BTreeMap<K, V>, key: K, value: Option<V>| match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
        let before = place(map(&mut self.state), key.clone(), value);
        self.undo.push(Box::new(move |state| {
            place(map(state), key, before);
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

    fn oldest_stowed(
        &self,
        incarnation: i64,
        limit: u32,
    ) -> impl Iterator<Item = (&(i64, i64), &ParkedTask)> {
        self.state
            .stowed
            .range((incarnation, 0)..(incarnation + 1, 0))
            .take(limit as usize)
    }

    fn paths(
        &self,
        incarnation: i64,
        which: impl Fn(&str, i32) -> bool,
    ) -> Vec<(i64, String, i32)> {
        let rows = self.state.rows.range(
            (incarnation, String::new(), i32::MIN)..(incarnation + 1, String::new(), i32::MIN),
        );
        rows.map(|(key, _)| key)
            .filter(|(_, path, chunk)| which(path, *chunk))
            .cloned()
            .collect()
    }
}

/// The steps of a memory transaction are done when they are called.
fn done<'a, T: Send + 'a>(value: T) -> DbFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, DbError>(value)))
}

impl Transaction for MemoryTransaction {
    fn lock_jobs<'a>(&'a mut self, keys: &'a [(String, String)]) -> DbFuture<'a, Vec<JobRow>> {
        done(
            keys.iter()
                .filter_map(|key| self.state.jobs.get(key).cloned())
                .collect(),
        )
    }
    fn insert_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, Option<i64>> {
        let id = (job.partition.to_string(), job.job.to_string());
        if self.state.jobs.contains_key(&id) {
            return done(None);
        }
        let incarnation = self.state.number();
        self.put(
            |s| &mut s.jobs,
            id.clone(),
            Some(JobRow {
                incarnation,
                ..job.clone()
            }),
        );
        self.put(|s| &mut s.ids, incarnation, Some(id));
        done(Some(incarnation))
    }
    fn save_job<'a>(&'a mut self, job: &'a JobRow) -> DbFuture<'a, ()> {
        self.change_job(job.incarnation, |stored| *stored = job.clone());
        done(())
    }
    fn delete_job(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        if let Some(id) = self.state.ids.get(&incarnation).cloned() {
            self.put(|s| &mut s.jobs, id, None);
        }
        self.put(|s| &mut s.ids, incarnation, None);
        self.remove_all(|s| &mut s.labels, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.failures, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.history, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.stowed, |(n, _), _| *n == incarnation);
        self.put(|s| &mut s.unstowing, incarnation, None);
        self.remove_all(
            |s| &mut s.outbox,
            |_, unsent| unsent.incarnation == incarnation,
        );
        self.remove_all(|s| &mut s.waits, |_, wait| wait.incarnation == incarnation);
        done(())
    }
    fn insert_labels<'a>(
        &'a mut self,
        incarnation: i64,
        labels: &'a BTreeMap<String, Option<String>>,
    ) -> DbFuture<'a, ()> {
        for (key, value) in labels {
            self.put(
                |s| &mut s.labels,
                (incarnation, key.clone()),
                Some(value.clone()),
            );
        }
        done(())
    }
    fn insert_samples<'a>(&'a mut self, partition: &'a str, count: u32) -> DbFuture<'a, ()> {
        Box::pin(async move {
            for number in 1..=count {
                let (job, labels) = crate::db::samples::sample(partition, number)?;
                if let Some(incarnation) = self.insert_job(&job).await? {
                    self.insert_labels(incarnation, &labels).await?;
                }
            }
            Ok(())
        })
    }
    fn append_history<'a>(
        &'a mut self,
        incarnation: i64,
        transition: &'a Transition,
    ) -> DbFuture<'a, ()> {
        let number = self.state.number();
        self.put(
            |s| &mut s.history,
            (incarnation, number),
            Some(transition.clone()),
        );
        done(())
    }

    fn has_past_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
    ) -> DbFuture<'a, bool> {
        let first = (partition.to_owned(), job.to_owned(), i64::MIN);
        done(
            self.state
                .lives
                .range(first..)
                .next()
                .is_some_and(|((p, j, _), _)| p == partition && j == job),
        )
    }
    fn mark_recreated(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        self.change_job(incarnation, |job| job.first_life = false);
        done(())
    }
    fn remember_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
        incarnation: i64,
    ) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        self.put(
            |s| &mut s.lives,
            (partition.to_owned(), job.to_owned(), incarnation),
            Some(now),
        );
        done(())
    }
    fn forget_incarnations(&mut self, older_than: u64) -> DbFuture<'_, ()> {
        let limit = self.shared.clock.now().saturating_sub_unsigned(older_than);
        self.remove_all(|s| &mut s.lives, |_, ended| *ended <= limit);
        done(())
    }

    fn park<'a>(&'a mut self, tasks: &'a [(i64, &'a ParkedTask)]) -> DbFuture<'a, ()> {
        for (incarnation, task) in tasks {
            let id = self.state.number();
            self.put(|s| &mut s.stowed, (*incarnation, id), Some((*task).clone()));
        }
        done(())
    }
    fn mark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        let has_some = self
            .state
            .stowed
            .range((incarnation, 0)..(incarnation + 1, 0))
            .next()
            .is_some();
        let is_news = has_some && !self.state.unstowing.contains_key(&incarnation);
        if is_news {
            self.put(|s| &mut s.unstowing, incarnation, Some(()));
        }
        done(is_news)
    }
    fn unmark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        self.put(|s| &mut s.unstowing, incarnation, None);
        done(())
    }
    fn next_for_unparking(&mut self) -> DbFuture<'_, Option<(String, String, i64)>> {
        let next = self
            .state
            .unstowing
            .keys()
            .find_map(|n| Some((*n, self.state.ids.get(n)?)));
        done(next.map(|(n, (partition, job))| (partition.clone(), job.clone(), n)))
    }
    fn unpark(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        let tasks: Vec<ParkedTask> = self
            .oldest_stowed(incarnation, limit)
            .map(|(_, task)| task.clone())
            .collect();
        for ParkedTask {
            pipe,
            body,
            headers,
        } in tasks
        {
            let id = self.state.number();
            let message = OutboxMessage {
                id,
                pipe,
                body,
                headers,
            };
            let due_time = Some(self.shared.clock.now());
            let unsent = Unsent {
                incarnation,
                message,
                due_time,
                leased_until: 0,
                suspended: false,
                paused: false,
            };
            self.put(|s| &mut s.outbox, id, Some(unsent));
        }
        self.drop_parked(incarnation, limit)
    }
    fn drop_parked(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        let keys: Vec<(i64, i64)> = self
            .oldest_stowed(incarnation, limit)
            .map(|(key, _)| *key)
            .collect();
        let gone = keys.len() as u64;
        for key in keys {
            self.put(|s| &mut s.stowed, key, None);
        }
        done(gone)
    }

    fn create_task_table(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        let now = self.shared.clock.now();
        self.put(|s| &mut s.tables, incarnation, Some(now));
        done(())
    }
    fn load_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<NodeRow>> {
        done(self.state.rows_of(incarnation, keys))
    }
    fn change_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        changes: &'a NodeChanges,
    ) -> DbFuture<'a, ()> {
        let mut gone = Vec::new();
        for path in &changes.pruned {
            let below = format!("{path}.");
            gone.extend(self.paths(incarnation, |other, _| {
                other == path || other.starts_with(&below)
            }));
        }
        for path in &changes.gone {
            gone.extend(self.paths(incarnation, |other, _| other == path));
        }
        gone.extend(
            changes
                .inactive
                .iter()
                .map(|path| (incarnation, path.clone(), -1)),
        );
        for key in gone {
            self.put(|s| &mut s.rows, key, None);
        }
        for row in &changes.rows {
            self.put(
                |s| &mut s.rows,
                (incarnation, row.path.clone(), row.chunk),
                Some(row.clone()),
            );
        }
        done(())
    }
    fn kept_failures(&mut self, incarnation: i64) -> DbFuture<'_, HashMap<String, String>> {
        let failures = self
            .state
            .failures
            .range((incarnation, String::new())..(incarnation + 1, String::new()));
        let kind = |f: &KeptFailure| {
            f.failure
                .failure_id
                .clone()
                .unwrap_or_else(|| UNNAMED_FAILURE.to_owned())
        };
        done(
            failures
                .map(|((_, path), failure)| (path.clone(), kind(failure)))
                .collect(),
        )
    }
    fn change_failures<'a>(
        &'a mut self,
        incarnation: i64,
        new: &'a [KeptFailure],
        gone: &'a [String],
    ) -> DbFuture<'a, ()> {
        for path in gone {
            self.put(|s| &mut s.failures, (incarnation, path.clone()), None);
        }
        for failure in new {
            self.put(
                |s| &mut s.failures,
                (incarnation, failure.path.clone()),
                Some(failure.clone()),
            );
        }
        done(())
    }

    fn retire_table(&mut self, incarnation: i64, delay: u64) -> DbFuture<'_, ()> {
        let due = self.shared.clock.now().saturating_add_unsigned(delay);
        let due = self
            .state
            .retired
            .get(&incarnation)
            .map_or(due, |before| due.min(*before));
        self.put(|s| &mut s.retired, incarnation, Some(due));
        done(())
    }
    fn due_tables(&mut self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        let now = self.shared.clock.now();
        let due = self
            .state
            .retired
            .iter()
            .filter(|(_, due)| **due <= now)
            .map(|(n, _)| *n);
        done(due.take(limit as usize).collect())
    }
    fn drop_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        let there = self.state.tables.contains_key(&incarnation);
        self.put(|s| &mut s.tables, incarnation, None);
        self.put(|s| &mut s.retired, incarnation, None);
        for key in self.paths(incarnation, |_, _| true) {
            self.put(|s| &mut s.rows, key, None);
        }
        done(there)
    }
    fn due_jobs(&mut self, limit: u32) -> DbFuture<'_, Vec<(String, String, i64)>> {
        let now = self.shared.clock.now();
        let jobs = self
            .state
            .jobs
            .iter()
            .filter_map(|((partition, job), row)| Some((partition, job, row.expiry_time?)));
        let mut due: Vec<_> = jobs
            .filter(|(.., time)| *time <= now)
            .map(|(p, j, time)| (p.clone(), j.clone(), time))
            .collect();
        due.sort_by_key(|(.., time)| *time);
        due.truncate(limit as usize);
        done(due)
    }
    fn next_due(&mut self, lives_kept: u64) -> DbFuture<'_, Option<u64>> {
        let tables = self.state.retired.values().copied();
        let lives = self
            .state
            .lives
            .values()
            .map(|ended| ended.saturating_add_unsigned(lives_kept));
        let now = self.shared.clock.now();
        let jobs = self.state.jobs.values().filter_map(|job| job.expiry_time);
        done(
            tables
                .chain(lives)
                .chain(jobs)
                .min()
                .map(|due| u64::try_from(due - now).unwrap_or(0)),
        )
    }

    fn notify(&mut self, signal: Signal) {
        if !self.wake.contains(&signal) {
            self.wake.push(signal);
        }
    }
    fn commit(mut self: Box<Self>) -> DbFuture<'static, ()> {
        if let Err(fault) = self.shared.pass(FaultPoint::Commit) {
            return Box::pin(std::future::ready(Err(fault)));
        }
        self.undo.clear();
        let (shared, wake) = (self.shared.clone(), std::mem::take(&mut self.wake));
        // The lock first: whoever is woken finds what was committed.
        drop(self);
        for signal in wake {
            shared.signals.wake(signal);
        }
        Box::pin(std::future::ready(shared.pass(FaultPoint::Committed)))
    }
    fn rollback(self: Box<Self>) -> DbFuture<'static, ()> {
        drop(self);
        done(())
    }
}
