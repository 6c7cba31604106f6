//! Task tables and failures, in memory.

use std::collections::HashMap;

use contract::ReportFailure;

use super::{MemoryTransaction, State, done};
use crate::db::{DbFuture, LedgerSteps};
use crate::ledger::{KeptAttempt, KeptFailure, NodeChanges, NodeKey, NodeRow, failure_kind};

impl MemoryTransaction {
    pub fn paths(
        &self,
        incarnation: i64,
        which: impl Fn(&str, i32) -> bool,
    ) -> Vec<(i64, String, i32)> {
        let rows = self.state.nodes.range(
            (incarnation, String::new(), i32::MIN)..(incarnation + 1, String::new(), i32::MIN),
        );
        rows.map(|(key, _)| key)
            .filter(|(_, path, chunk)| which(path, *chunk))
            .cloned()
            .collect()
    }
}

impl State {
    pub(super) fn nodes_of(&self, incarnation: i64, keys: &[NodeKey]) -> Vec<NodeRow> {
        let key = |(path, chunk): &NodeKey| (incarnation, path.clone(), *chunk);
        let found = keys.iter().filter_map(|node| self.nodes.get(&key(node)));
        let mut rows: Vec<NodeRow> = found.cloned().collect();
        rows.sort_by(|a, b| (&a.path, a.chunk).cmp(&(&b.path, b.chunk)));
        rows
    }
}

impl LedgerSteps for MemoryTransaction {
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
        done(self.state.nodes_of(incarnation, keys))
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
            self.put(|s| &mut s.nodes, key, None);
        }
        for row in &changes.rows {
            self.put(
                |s| &mut s.nodes,
                (incarnation, row.path.clone(), row.chunk),
                Some(row.clone()),
            );
        }
        done(())
    }
    fn failure_kinds<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, HashMap<String, String>> {
        let kind = |path: &String| {
            let kept = self.state.failures.get(&(incarnation, path.clone()))?;
            Some((path.clone(), failure_kind(&kept.failure)))
        };
        done(paths.iter().filter_map(kind).collect())
    }
    fn first_failure(&mut self, incarnation: i64) -> DbFuture<'_, Option<ReportFailure>> {
        let failures = self.state.failures_of(incarnation);
        done(failures.first().map(|kept| kept.failure.clone()))
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
    fn curve(&mut self, incarnation: i64) -> DbFuture<'_, Option<String>> {
        done(self.state.curves.get(&incarnation).cloned())
    }
    fn extend_curve<'a>(&'a mut self, incarnation: i64, points: &'a str) -> DbFuture<'a, ()> {
        let stored = self.state.curves.get(&incarnation);
        let all = stored.cloned().unwrap_or_default() + points;
        self.put(|s| &mut s.curves, incarnation, Some(all));
        done(())
    }
    fn replace_curve<'a>(&'a mut self, incarnation: i64, points: &'a str) -> DbFuture<'a, ()> {
        self.put(|s| &mut s.curves, incarnation, Some(points.to_owned()));
        done(())
    }
    fn insert_failures<'a>(&'a mut self, failures: &'a [(i64, KeptFailure)]) -> DbFuture<'a, ()> {
        for (incarnation, kept) in failures {
            let key = (*incarnation, kept.path.clone());
            if !self.state.failures.contains_key(&key) {
                self.put(|s| &mut s.failures, key, Some(kept.clone()));
            }
        }
        done(())
    }
    fn insert_attempts<'a>(
        &'a mut self,
        incarnation: i64,
        round: u32,
        attempts: &'a [KeptAttempt],
    ) -> DbFuture<'a, ()> {
        for kept in attempts {
            let key = (incarnation, kept.path.clone(), round, kept.attempt);
            if !self.state.attempts.contains_key(&key) {
                self.put(|s| &mut s.attempts, key, Some(kept.clone()));
            }
        }
        done(())
    }
}
