//! What jobs were created from, and what a new round changes, in memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use contract::JobStatus;

use super::{MemoryTransaction, State, done};
use crate::db::{DbError, DbFuture, FAILURES_OF_A_ROUND, JobKey, JobRow, RoundSteps};
use crate::definition::PackedDefinition;
use crate::ledger::{ACTIVE_TASK, NodeKey, NodeRow};

/// Returns the pipes to which the start messages of unfinished jobs go.
pub fn task_pipes(state: &State, limit: u32) -> Vec<String> {
    let open = state.jobs.values().filter(|job| !job.status.is_finished());
    let definitions = open.filter_map(|job| state.definitions.get(&job.incarnation));
    let pipes: BTreeSet<String> = definitions.map(|it| it.pipe.clone()).collect();
    pipes.into_iter().take(limit as usize).collect()
}

/// Returns how many items of unfinished jobs wait, by the pipe to which their batches send them:
/// the fullest first.
pub fn waiting_items(state: &State, limit: u32) -> Vec<(String, u64)> {
    let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
    let open = state.jobs.values().filter(|job| !job.status.is_finished());
    for job in open {
        if let Some(pipe) = &job.items_pipe {
            *waiting.entry(pipe).or_default() += items_in_pipe(job);
        }
    }
    let mut waiting: Vec<_> = waiting
        .into_iter()
        .map(|(pipe, items)| (pipe.to_owned(), items))
        .collect();
    waiting.sort_by_key(|(_, items)| Reverse(*items));
    waiting.truncate(limit as usize);
    waiting
}

/// Returns how many items of a job may wait in their pipe: those of a paused job do not, and
/// neither do tasks that wait for a condition.
fn items_in_pipe(job: &JobRow) -> u64 {
    let totals = &job.totals;
    let Some(counts) = totals.counts.filter(|_| job.status != JobStatus::Paused) else {
        return 0;
    };
    let total = counts.total.max(totals.completed_items);
    let elsewhere = counts.retrying + counts.running + job.blocked_tasks;
    let waiting = total - totals.completed_items - totals.failed_tasks - elsewhere;
    u64::try_from(waiting).unwrap_or(0)
}

impl RoundSteps for MemoryTransaction {
    fn definition(&mut self, incarnation: i64) -> DbFuture<'_, PackedDefinition> {
        let found = self.state.definitions.get(&incarnation).cloned();
        let found = found.ok_or_else(|| {
            DbError::Refused(format!("the job {incarnation} has no definition").into())
        });
        Box::pin(async { found })
    }
    fn note_unstarted<'a>(
        &'a mut self,
        ended: &'a [i64],
        fell_with: &'a [(i64, i64)],
    ) -> DbFuture<'a, ()> {
        let unsent = self.state.outbox.values();
        let unsent = unsent.filter_map(|unsent| unsent.incarnation);
        let unsent = unsent.filter(|n| ended.contains(n)).map(|n| (n, None));
        let fallen = fell_with.iter().map(|(n, root)| (*n, Some(*root)));
        let noted: Vec<(i64, Option<i64>)> = fallen.chain(unsent).collect();
        for (incarnation, root) in noted {
            if !self.state.unstarted.contains_key(&incarnation) {
                self.put(|s| &mut s.unstarted, incarnation, Some(root));
            }
        }
        done(())
    }
    fn is_unstarted(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        done(self.state.unstarted.contains_key(&incarnation))
    }
    fn forget_unstarted(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        self.put(|s| &mut s.unstarted, incarnation, None);
        done(())
    }
    fn fallen_with(&mut self, incarnation: i64) -> DbFuture<'_, Vec<(i64, JobKey)>> {
        let fallen = self.state.unstarted.iter();
        let fallen = fallen.filter(|(_, root)| **root == Some(incarnation));
        done(
            fallen
                .filter_map(|(n, _)| Some((*n, self.state.ids.get(n)?.clone())))
                .collect(),
        )
    }
    fn unretire_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        let listed = self.state.retired.contains_key(&incarnation);
        self.put(|s| &mut s.retired, incarnation, None);
        done(listed)
    }
    fn end_active_tasks(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        let mut ended: BTreeMap<String, (i32, i64)> = BTreeMap::new();
        for key in self.paths(incarnation, |_, chunk| chunk == ACTIVE_TASK) {
            let parent = key.1.rsplit_once('.').map_or("", |(parent, _)| parent);
            let sums = ended.entry(parent.to_owned()).or_default();
            let percent = self.state.nodes.get(&key).map_or(0, |row| row.percent);
            *sums = (sums.0 + 1, sums.1 + i64::from(percent));
            self.put(|s| &mut s.nodes, key, None);
        }
        for (parent, (tasks, percent)) in ended {
            let key = (incarnation, parent, 0);
            if let Some(mut row) = self.state.nodes.get(&key).cloned() {
                row.kept -= tasks;
                row.open_sum -= percent;
                self.put(|s| &mut s.nodes, key, Some(row));
            }
        }
        done(())
    }
    fn nodes_to_clear<'a>(
        &'a mut self,
        incarnation: i64,
        (path, chunk): &'a NodeKey,
        limit: u32,
    ) -> DbFuture<'a, Vec<NodeRow>> {
        let keys = self.paths(incarnation, |other, number| {
            (other, number) > (path.as_str(), *chunk)
        });
        let rows = keys.iter().filter_map(|key| self.state.nodes.get(key));
        let is_marked = |row: &&NodeRow| {
            let detail = row.detail.as_deref().unwrap_or_default();
            let counts = ["\"retrying\"", "\"running\"", "\"retried\""];
            row.failed.is_some()
                || row.failed_count != 0
                || row.flags != 0
                || counts.iter().any(|name| detail.contains(name))
        };
        done(
            rows.filter(is_marked)
                .take(limit as usize)
                .cloned()
                .collect(),
        )
    }
    fn archive_failures(&mut self, incarnation: i64, round: u32, rounds: u32) -> DbFuture<'_, ()> {
        let range = (incarnation, String::new())..(incarnation + 1, String::new());
        let mut failures: Vec<_> = self
            .state
            .failures
            .range(range)
            .map(|(key, kept)| (key.clone(), kept.clone()))
            .collect();
        failures.sort_by(|(_, a), (_, b)| (a.since, &a.path).cmp(&(b.since, &b.path)));
        for (at, (key, kept)) in failures.into_iter().enumerate() {
            if at < FAILURES_OF_A_ROUND as usize {
                let past = (incarnation, key.1.clone(), round);
                self.put(|s| &mut s.past_failures, past, Some(kept));
            }
            self.put(|s| &mut s.failures, key, None);
        }
        self.remove_all(
            |s| &mut s.past_failures,
            |(n, _, past), _| *n == incarnation && past.saturating_add(rounds) <= round,
        );
        done(())
    }
}
