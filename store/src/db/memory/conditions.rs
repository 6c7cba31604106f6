//! Conditions and the tasks that wait for them, in memory.

use std::collections::{BTreeMap, BTreeSet};

use contract::{Condition, ConditionKey, JobStatus};

use super::outbox::Unsent;
use super::{Memory, MemoryTransaction, State, done};
use crate::condition::{
    ClaimedCondition, ConditionPhase, ConditionQuery, ConditionRow, FullCondition, Heard,
    WaitingJob,
};
use crate::db::conditions::{
    BlockRow, BlockState, ConditionChange, ConditionReads, ConditionSteps, WaitingTask,
};
use crate::db::sql::jobs::{job_id, partition_id};
use crate::db::{DbFuture, JobKey};
use crate::model::{Headers, OutboxMessage, ParkedTask};
use crate::waits::JobWaits;

/// What waits, and for what.
#[derive(Debug, Default)]
pub struct Waits {
    conditions: Conditions,
    pub(super) blocks: Blocks,
}

/// The conditions by their keys, each with the end of the claim on it.
type Conditions = BTreeMap<String, (ConditionRow, i64)>;

/// A task that waits or was let go.
#[derive(Debug, Clone)]
pub struct Block {
    id: i64,
    row: BlockRow,
    time: i64,
    pipe: String,
    message: Option<ParkedTask>,
}

/// The tasks by incarnation, path and identity.
pub type Blocks = BTreeMap<(i64, String, Vec<u8>), Block>;
type Key = (i64, String, Vec<u8>);

impl State {
    /// Returns the tasks that wait, those that have waited longest first.
    fn waiting(&self, key: &str) -> Vec<(&Key, &Block)> {
        let waits =
            |block: &Block| block.row.state == BlockState::Waiting && block.row.condition == key;
        let mut found: Vec<_> = self
            .waits
            .blocks
            .iter()
            .filter(|(_, block)| waits(block))
            .collect();
        found.sort_by_key(|(_, block)| block.id);
        found
    }

    fn blocks_of(&self, incarnation: i64) -> impl Iterator<Item = (&Key, &Block)> {
        let first = (incarnation, String::new(), Vec::new());
        let last = (incarnation + 1, String::new(), Vec::new());
        self.waits.blocks.range(first..last)
    }

    /// Returns what is known of the tasks of a job that wait or were let go.
    pub(super) fn waits_of(&self, incarnation: i64) -> JobWaits {
        let (waiting, let_go): (Vec<_>, Vec<_>) = self
            .blocks_of(incarnation)
            .map(|(_, block)| block)
            .partition(|block| block.row.state == BlockState::Waiting);
        JobWaits {
            incarnation,
            let_go: let_go.len() as u64,
            since: waiting.iter().map(|block| block.time).min(),
        }
    }

    fn job_of(&self, incarnation: i64) -> Option<&JobKey> {
        self.ids.get(&incarnation)
    }

    fn with_waiting(&self, row: &ConditionRow) -> ConditionRow {
        let key = row.key.as_str();
        let is_canary =
            |block: &&Block| block.row.state == BlockState::Canary && block.row.condition == key;
        ConditionRow {
            waiting: self.waiting(key).len() as u64,
            canaries: self.waits.blocks.values().filter(is_canary).count() as u64,
            ..row.clone()
        }
    }

    fn of_path(&self, incarnation: i64, paths: &[String]) -> Vec<(Key, BlockRow)> {
        let found = self
            .blocks_of(incarnation)
            .filter(|((_, path, _), _)| paths.contains(path));
        found
            .map(|(key, block)| (key.clone(), block.row.clone()))
            .collect()
    }
}

impl MemoryTransaction {
    fn change_row(&mut self, key: &str, change: impl FnOnce(&mut ConditionRow, &mut i64)) -> bool {
        let Some((mut row, mut until)) = self.state.waits.conditions.get(key).cloned() else {
            return false;
        };
        change(&mut row, &mut until);
        self.put(
            |s| &mut s.waits.conditions,
            key.to_owned(),
            Some((row, until)),
        );
        true
    }

    /// Returns those of these tasks of a job that still wait for a condition.
    fn still_there(&self, incarnation: i64, key: &str, tasks: &[i64]) -> Vec<(Key, Block)> {
        let waiting = self.state.waiting(key).into_iter();
        waiting
            .filter(|((n, ..), block)| *n == incarnation && tasks.contains(&block.id))
            .map(|(key, block)| (key.clone(), block.clone()))
            .collect()
    }
}

impl ConditionReads for Memory {
    fn conditions<'a>(&'a self, query: &'a ConditionQuery) -> DbFuture<'a, Vec<ConditionRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let after = query.after.as_ref().map_or("", ConditionKey::as_str);
            let is_asked = |(row, _): &&(ConditionRow, i64)| {
                let is_of_job = |n: i64| {
                    state.job_of(n).is_some_and(|(partition, job)| {
                        query.partition.as_ref().is_none_or(|it| it == partition)
                            && query.job.as_ref().is_none_or(|it| it == job)
                    })
                };
                let code = row.condition.code().as_str();
                let is_any = query.partition.is_none() && query.job.is_none();
                row.key.as_str() > after
                    && query.code.as_ref().is_none_or(|it| it == code)
                    && (is_any
                        || state
                            .waiting(row.key.as_str())
                            .iter()
                            .any(|((n, ..), _)| is_of_job(*n)))
            };
            let found = state.waits.conditions.values().filter(is_asked);
            Ok(found
                .take(query.limit as usize)
                .map(|(row, _)| state.with_waiting(row))
                .collect())
        })
    }
    fn condition<'a>(&'a self, key: &'a str) -> DbFuture<'a, Option<ConditionRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let found = state.waits.conditions.get(key);
            Ok(found.map(|(row, _)| state.with_waiting(row)))
        })
    }
    fn waiting_jobs<'a>(&'a self, key: &'a str, limit: u32) -> DbFuture<'a, Vec<WaitingJob>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut counts: BTreeMap<JobKey, u64> = BTreeMap::new();
            for ((n, ..), _) in state.waiting(key) {
                if let Some(job) = state.job_of(*n) {
                    *counts.entry(job.clone()).or_default() += 1;
                }
            }
            let mut counts: Vec<(JobKey, u64)> = counts.into_iter().collect();
            counts.sort_by_key(|(_, tasks)| std::cmp::Reverse(*tasks));
            let job = |((partition, job), tasks): (JobKey, u64)| {
                Ok(WaitingJob {
                    partition: partition_id(&partition)?,
                    job: job_id(&job)?,
                    tasks,
                })
            };
            counts.into_iter().take(limit as usize).map(job).collect()
        })
    }
    fn blocked_by(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<(String, u64)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut by: BTreeMap<&str, u64> = BTreeMap::new();
            for (_, block) in state.blocks_of(incarnation) {
                if block.row.state == BlockState::Waiting {
                    *by.entry(&block.row.condition).or_default() += 1;
                }
            }
            let mut by: Vec<_> = by.into_iter().map(|(key, n)| (key.to_owned(), n)).collect();
            by.sort_by_key(|(_, tasks)| std::cmp::Reverse(*tasks));
            by.truncate(limit as usize);
            Ok(by)
        })
    }
    fn job_waits<'a>(&'a self, incarnations: &'a [i64]) -> DbFuture<'a, Vec<JobWaits>> {
        Box::pin(async move {
            let state = self.read().await?;
            Ok(incarnations.iter().map(|n| state.waits_of(*n)).collect())
        })
    }
    fn full_conditions(&self, tasks: u64, limit: u32) -> DbFuture<'_, Vec<FullCondition>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut full = Vec::new();
            for (key, (row, _)) in &state.waits.conditions {
                let mut pipes: BTreeMap<&str, u64> = BTreeMap::new();
                for (_, block) in state.waiting(key) {
                    *pipes.entry(&block.pipe).or_default() += 1;
                }
                let pipes = pipes.into_iter().filter(|(_, count)| *count >= tasks);
                full.extend(pipes.map(|(pipe, tasks)| FullCondition {
                    key: row.key.clone(),
                    pipe: pipe.to_owned(),
                    tasks,
                }));
            }
            full.sort_by_key(|full| std::cmp::Reverse(full.tasks));
            full.truncate(limit as usize);
            Ok(full)
        })
    }
}

impl ConditionSteps for MemoryTransaction {
    fn meet_condition<'a>(
        &'a mut self,
        key: &'a ConditionKey,
        condition: &'a Condition,
        next: u64,
    ) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        let is_there = self.change_row(key.as_str(), |row, _| {
            if row.phase == ConditionPhase::Idle {
                row.next_time = now;
            }
        });
        if !is_there {
            let row = ConditionRow {
                key: key.clone(),
                condition: condition.clone(),
                since: now,
                tests: 0,
                tested: None,
                result: None,
                phase: ConditionPhase::Testing,
                pace: 0,
                next_time: now.saturating_add_unsigned(next),
                heard: None,
                waiting: 0,
                canaries: 0,
                news: 0,
                lease: 0,
            };
            self.put(|s| &mut s.waits.conditions, key.to_string(), Some((row, 0)));
        }
        done(())
    }
    fn known_conditions<'a>(&'a mut self, keys: &'a [String]) -> DbFuture<'a, Vec<String>> {
        let conditions = &self.state.waits.conditions;
        let known = keys.iter().filter(|key| conditions.contains_key(*key));
        done(known.cloned().collect())
    }
    fn count_conditions<'a>(&'a mut self, besides: &'a ConditionKey) -> DbFuture<'a, u64> {
        let keys = self.state.waits.conditions.keys();
        done(keys.filter(|key| *key != besides.as_str()).count() as u64)
    }
    fn hear_of_condition<'a>(&'a mut self, key: &'a str, heard: Heard) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        self.change_row(key, |row, _| {
            row.heard = Some(heard);
            row.news += 1;
            row.next_time = now;
        });
        done(())
    }
    fn blocks<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<BlockRow>> {
        let found = self.state.of_path(incarnation, paths);
        done(found.into_iter().map(|(_, row)| row).collect())
    }
    fn block<'a>(
        &'a mut self,
        incarnation: i64,
        tasks: &'a [(BlockRow, &'a ParkedTask)],
    ) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        for (row, message) in tasks {
            let key = (incarnation, row.path.clone(), row.identity.clone());
            let known = self.state.waits.blocks.get(&key).map(|block| block.id);
            let block = Block {
                id: known.unwrap_or_else(|| self.state.number()),
                row: row.clone(),
                time: now,
                pipe: message.pipe.clone(),
                message: Some((*message).clone()),
            };
            self.put(|s| &mut s.waits.blocks, key, Some(block));
        }
        done(())
    }
    fn forget_blocks<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<BlockRow>> {
        let found = self.state.of_path(incarnation, paths);
        for (key, _) in &found {
            self.put(|s| &mut s.waits.blocks, key.clone(), None);
        }
        done(found.into_iter().map(|(_, row)| row).collect())
    }
    fn drop_blocks(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<BlockRow>> {
        let found = self.state.blocks_of(incarnation).take(limit as usize);
        let found: Vec<(Key, BlockRow)> = found
            .map(|(key, block)| (key.clone(), block.row.clone()))
            .collect();
        for (key, _) in &found {
            self.put(|s| &mut s.waits.blocks, key.clone(), None);
        }
        done(found.into_iter().map(|(_, row)| row).collect())
    }
    fn wake_canaries(&mut self, incarnation: i64) -> DbFuture<'_, u64> {
        let now = self.shared.clock.now();
        let mut keys: Vec<String> = self
            .state
            .blocks_of(incarnation)
            .filter(|(_, block)| block.row.state == BlockState::Waiting)
            .map(|(_, block)| block.row.condition.clone())
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let mut woken = 0;
        for key in keys {
            self.change_row(&key, |row, _| {
                if row.phase == ConditionPhase::Canary {
                    row.next_time = now;
                    woken += 1;
                }
            });
        }
        done(woken)
    }
    fn tested_by(&mut self, incarnation: i64) -> DbFuture<'_, Vec<String>> {
        let canaries = self
            .state
            .blocks_of(incarnation)
            .filter(|(_, block)| block.row.state == BlockState::Canary);
        let keys: BTreeSet<String> = canaries
            .map(|(_, block)| block.row.condition.clone())
            .collect();
        done(keys.into_iter().collect())
    }
    fn claim_condition(&mut self, lease: u64) -> DbFuture<'_, Option<ClaimedCondition>> {
        let now = self.shared.clock.now();
        let due = self.state.waits.conditions.values();
        let due = due.filter(|(row, until)| row.next_time <= now && *until <= now);
        let Some((row, _)) = due.min_by_key(|(row, _)| row.next_time) else {
            return done(None);
        };
        let key = row.key.to_string();
        self.change_row(&key, |row, until| {
            row.lease += 1;
            *until = now.saturating_add_unsigned(lease);
        });
        let claimed = self.state.waits.conditions.get(&key);
        done(claimed.map(|(row, _)| ClaimedCondition {
            row: self.state.with_waiting(row),
            time: now,
        }))
    }
    fn bring_conditions_back(&mut self) -> DbFuture<'_, u64> {
        // Nobody can set its clock back.
        done(0)
    }
    fn next_condition(&mut self) -> DbFuture<'_, Option<u64>> {
        let now = self.shared.clock.now();
        let times = self.state.waits.conditions.values();
        let next = times.map(|(row, until)| row.next_time.max(*until)).min();
        done(next.map(|next| u64::try_from(next - now).unwrap_or(0)))
    }
    fn waiting_tasks<'a>(
        &'a mut self,
        key: &'a str,
        active: bool,
        limit: u32,
    ) -> DbFuture<'a, Vec<WaitingTask>> {
        let state = &self.state;
        let is_active = |job: &JobKey| {
            let status = state.jobs.get(job).map(|job| job.status);
            status.is_some_and(|status| status != JobStatus::Paused && !status.is_finished())
        };
        let tasks = state.waiting(key).into_iter();
        let tasks = tasks.filter_map(|((n, path, _), block)| {
            Some(WaitingTask {
                id: block.id,
                job: state.job_of(*n)?.clone(),
                incarnation: *n,
                path: path.clone(),
            })
        });
        let tasks = tasks.filter(|task| !active || is_active(&task.job));
        done(tasks.take(limit as usize).collect())
    }
    fn hold_condition<'a>(&'a mut self, key: &'a str, lease: i64) -> DbFuture<'a, bool> {
        let held = self.state.waits.conditions.get(key);
        done(held.is_some_and(|(row, _)| row.lease == lease))
    }
    fn let_go<'a>(
        &'a mut self,
        incarnation: i64,
        key: &'a str,
        tasks: &'a [i64],
        to: BlockState,
        paused: bool,
    ) -> DbFuture<'a, u64> {
        let now = self.shared.clock.now();
        let found = self.still_there(incarnation, key, tasks);
        let gone = found.len() as u64;
        for (key, mut block) in found {
            if let Some(message) = block.message.take() {
                let id = self.state.number();
                let unsent = Unsent {
                    incarnation: Some(incarnation),
                    message: OutboxMessage {
                        id,
                        pipe: message.pipe,
                        body: message.body,
                        headers: message.headers,
                    },
                    due_time: Some(now),
                    leased_until: 0,
                    suspended: false,
                    paused,
                    announces: None,
                };
                self.put(|s| &mut s.outbox, id, Some(unsent));
            }
            block.row.state = to;
            self.put(|s| &mut s.waits.blocks, key, Some(block));
        }
        done(gone)
    }
    fn still_waiting<'a>(
        &'a mut self,
        incarnation: i64,
        key: &'a str,
        tasks: &'a [i64],
    ) -> DbFuture<'a, BTreeMap<String, Headers>> {
        let found = self.still_there(incarnation, key, tasks).into_iter();
        let headers = |block: Block| block.message.map(|message| message.headers);
        done(
            found
                .map(|((_, path, _), block)| (path, headers(block).unwrap_or_default()))
                .collect(),
        )
    }
    fn change_condition<'a>(
        &'a mut self,
        row: &'a ConditionRow,
        change: ConditionChange<'a>,
    ) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        self.change_row(row.key.as_str(), |stored, until| {
            stored.phase = change.phase;
            stored.tests = change.tests;
            stored.pace = change.pace;
            if change.restarts {
                stored.since = now;
            }
            if let Some(result) = change.result {
                stored.result = Some(result.to_owned());
                stored.tested = Some(now);
            }
            if stored.news == row.news {
                stored.heard = None;
                stored.next_time = now.saturating_add_unsigned(change.next);
            } else {
                stored.next_time = now;
            }
            *until = 0;
        });
        done(())
    }
    fn forget_condition<'a>(&'a mut self, key: &'a str) -> DbFuture<'a, bool> {
        let is_free =
            self.state.waiting(key).is_empty() && self.state.waits.conditions.contains_key(key);
        if is_free {
            self.put(|s| &mut s.waits.conditions, key.to_owned(), None);
        }
        done(is_free)
    }
    fn count_waiting<'a>(&'a mut self, key: &'a str) -> DbFuture<'a, u64> {
        done(self.state.waiting(key).len() as u64)
    }
    fn command_condition<'a>(
        &'a mut self,
        key: &'a str,
        phase: ConditionPhase,
    ) -> DbFuture<'a, bool> {
        let now = self.shared.clock.now();
        done(self.change_row(key, |row, until| {
            row.phase = phase;
            row.pace = 0;
            row.heard = None;
            row.lease += 1;
            row.next_time = now;
            *until = 0;
        }))
    }
}
