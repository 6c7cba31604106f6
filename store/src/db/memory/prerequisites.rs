//! Which jobs wait for which, in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::outbox::Unsent;
use super::{MemoryTransaction, State, done};
use crate::db::{DbFuture, Dependency, JobKey, JobRow, PrerequisiteSteps};

/// What waits by partition, prerequisite and incarnation.
pub type Dependencies = BTreeMap<(String, String, i64), Dependency>;

impl State {
    pub(super) fn waiting_for(
        &self,
        (partition, prerequisite): &JobKey,
    ) -> impl Iterator<Item = &Dependency> {
        let first = (partition.clone(), prerequisite.clone(), i64::MIN);
        let last = (partition.clone(), prerequisite.clone(), i64::MAX);
        self.dependencies.range(first..=last).map(|(_, wait)| wait)
    }
}

impl MemoryTransaction {
    fn forget_dependencies(&mut self, which: impl Fn(&Dependency) -> bool) {
        self.remove_all(|s| &mut s.dependencies, |_, wait| which(wait));
    }
}

impl PrerequisiteSteps for MemoryTransaction {
    fn insert_prerequisites<'a>(
        &'a mut self,
        job: &'a JobRow,
        prerequisites: &'a [String],
    ) -> DbFuture<'a, ()> {
        for prerequisite in prerequisites {
            let (partition, prerequisite) = (job.partition.to_string(), prerequisite.clone());
            let key = (partition.clone(), prerequisite.clone(), job.incarnation);
            let wait = Dependency {
                partition,
                job: job.job.to_string(),
                incarnation: job.incarnation,
                prerequisite,
            };
            self.put(|s| &mut s.dependencies, key, Some(wait));
        }
        done(())
    }
    fn dependents<'a>(&'a mut self, of: &'a [JobKey], all: bool) -> DbFuture<'a, Vec<Dependency>> {
        let mut next: Vec<JobKey> = of.to_vec();
        let (mut seen, mut waits) = (BTreeSet::new(), Vec::new());
        while let Some(key) = next.pop() {
            if seen.insert(key.clone()) {
                for wait in self.state.waiting_for(&key) {
                    waits.push(wait.clone());
                    if all {
                        next.push((wait.partition.clone(), wait.job.clone()));
                    }
                }
            }
        }
        done(waits)
    }
    fn prerequisite_edges<'a>(
        &'a mut self,
        partition: &'a str,
        jobs: &'a [String],
    ) -> DbFuture<'a, Vec<(String, String)>> {
        let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for wait in self
            .state
            .dependencies
            .values()
            .filter(|wait| wait.partition == partition)
        {
            of.entry(&wait.job).or_default().push(&wait.prerequisite);
        }
        let mut next: Vec<&str> = jobs.iter().map(String::as_str).collect();
        let (mut seen, mut ways) = (BTreeSet::new(), Vec::new());
        while let Some(job) = next.pop() {
            if seen.insert(job) {
                for prerequisite in of.get(job).into_iter().flatten() {
                    ways.push((job.to_owned(), (*prerequisite).to_owned()));
                    next.push(prerequisite);
                }
            }
        }
        done(ways)
    }
    fn release<'a>(&'a mut self, completed: &'a [JobKey], waiting: &'a [i64]) -> DbFuture<'a, ()> {
        for key in completed {
            let gone: Vec<_> = self
                .state
                .waiting_for(key)
                .map(|w| (key.0.clone(), key.1.clone(), w.incarnation))
                .collect();
            for wait in gone {
                self.put(|s| &mut s.dependencies, wait, None);
            }
        }
        let now = self.shared.clock.now();
        let still: BTreeSet<i64> = self
            .state
            .dependencies
            .values()
            .map(|wait| wait.incarnation)
            .collect();
        for incarnation in waiting.iter().filter(|n| !still.contains(n)) {
            let job = self
                .state
                .ids
                .get(incarnation)
                .and_then(|id| self.state.jobs.get(id));
            let due = now + 1000 * job.map_or(0, |job| job.delay);
            let starts = |unsent: &Unsent| {
                unsent.incarnation == Some(*incarnation) && unsent.due_time.is_none()
            };
            self.change_outbox(starts, |unsent| unsent.due_time = Some(due));
        }
        done(())
    }
    fn forget_starts<'a>(&'a mut self, incarnations: &'a [i64]) -> DbFuture<'a, ()> {
        let gone: BTreeSet<i64> = incarnations.iter().copied().collect();
        self.remove_all(
            |s| &mut s.outbox,
            |_, unsent| unsent.incarnation.is_some_and(|n| gone.contains(&n)),
        );
        self.forget_dependencies(|wait| gone.contains(&wait.incarnation));
        done(())
    }
}
