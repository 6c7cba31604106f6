//! When jobs start, in memory.

use std::collections::{BTreeMap, BTreeSet};

use contract::{JobStatus, ReportFailure};

use super::{Memory, MemoryTransaction, State, done};
use crate::db::scheduling::{DueTime, JobKey, Scheduling, SchedulingReads, UnsentStart, Wait};
use crate::db::{DbFuture, JobRow, Transaction as _};
use crate::ledger::KeptFailure;
use crate::{OutboxMessage, Transition};

/// A message on its way to the broker.
#[derive(Debug, Clone)]
pub struct Unsent {
    pub incarnation: i64,
    pub message: OutboxMessage,
    pub due_time: Option<i64>,
    pub leased_until: i64,
    pub suspended: bool,
    pub paused: bool,
}

impl Unsent {
    /// From when on it may be claimed, where that is a matter of time.
    fn free_at(&self) -> Option<i64> {
        self.due_time
            .filter(|_| !self.suspended && !self.paused)
            .map(|due| due.max(self.leased_until))
    }
}

/// What waits by partition, prerequisite and incarnation.
pub type Waits = BTreeMap<(String, String, i64), Wait>;

impl State {
    fn waiting_for(&self, (partition, prerequisite): &JobKey) -> impl Iterator<Item = &Wait> {
        let first = (partition.clone(), prerequisite.clone(), i64::MIN);
        let last = (partition.clone(), prerequisite.clone(), i64::MAX);
        self.waits.range(first..=last).map(|(_, wait)| wait)
    }
}

impl SchedulingReads for Memory {
    fn outbox(&self, limit: u32) -> DbFuture<'_, Vec<OutboxMessage>> {
        Box::pin(async move {
            let state = self.read().await?;
            let now = self.shared.clock.now();
            let due = |unsent: &&Unsent| {
                !unsent.suspended && !unsent.paused && unsent.due_time.is_some_and(|due| due <= now)
            };
            let mut messages: Vec<&Unsent> = state.outbox.values().filter(due).collect();
            messages.sort_by_key(|unsent| (unsent.due_time, unsent.message.id));
            Ok(messages
                .into_iter()
                .take(limit as usize)
                .map(|unsent| unsent.message.clone())
                .collect())
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
                .waits
                .values()
                .filter(|wait| wanted.contains(&wait.incarnation));
            let status = |wait: &Wait| {
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
                    .find(move |unsent| unsent.incarnation == n)
            };
            let start = |unsent: &Unsent| UnsentStart {
                incarnation: unsent.incarnation,
                due_time: unsent.due_time,
                suspended: unsent.suspended,
            };
            Ok(incarnations
                .iter()
                .filter_map(|n| of(*n))
                .map(start)
                .collect())
        })
    }
}

impl MemoryTransaction {
    fn change_outbox(&mut self, which: impl Fn(&Unsent) -> bool, change: impl Fn(&mut Unsent)) {
        let changed: Vec<(i64, Unsent)> = self
            .state
            .outbox
            .iter()
            .filter(|(_, unsent)| which(unsent))
            .map(|(id, unsent)| (*id, unsent.clone()))
            .collect();
        for (id, mut unsent) in changed {
            change(&mut unsent);
            self.put(|s| &mut s.outbox, id, Some(unsent));
        }
    }

    fn forget_waits(&mut self, which: impl Fn(&Wait) -> bool) {
        self.remove_all(|s| &mut s.waits, |_, wait| which(wait));
    }
}

impl Scheduling for MemoryTransaction {
    fn lock_creations<'a>(&'a mut self, _partition: &'a str, _shared: bool) -> DbFuture<'a, ()> {
        done(())
    }

    fn push_outbox<'a>(
        &'a mut self,
        incarnation: i64,
        pipe: &'a str,
        body: &'a [u8],
        due: DueTime,
    ) -> DbFuture<'a, ()> {
        let id = self.state.number();
        let message = OutboxMessage {
            id,
            pipe: pipe.to_owned(),
            body: body.to_vec(),
            headers: crate::Headers::new(),
        };
        let now = self.shared.clock.now();
        let due_time = due.after.map(|after| now.saturating_add_unsigned(after));
        let unsent = Unsent {
            incarnation,
            message,
            due_time,
            leased_until: 0,
            suspended: due.suspended,
            paused: false,
        };
        self.put(|s| &mut s.outbox, id, Some(unsent));
        done(())
    }
    fn claim_outbox(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<OutboxMessage>> {
        let now = self.shared.clock.now();
        let free = |unsent: &&Unsent| unsent.free_at().is_some_and(|at| at <= now);
        let mut messages: Vec<Unsent> = self.state.outbox.values().filter(free).cloned().collect();
        messages.sort_by_key(|unsent| (unsent.due_time, unsent.message.id));
        messages.truncate(limit as usize);
        for unsent in &messages {
            let leased = Unsent {
                leased_until: now.saturating_add_unsigned(lease),
                ..unsent.clone()
            };
            self.put(|s| &mut s.outbox, unsent.message.id, Some(leased));
        }
        done(messages.into_iter().map(|unsent| unsent.message).collect())
    }
    fn outbox_due(&mut self) -> DbFuture<'_, Option<u64>> {
        let now = self.shared.clock.now();
        let next = self.state.outbox.values().filter_map(Unsent::free_at).min();
        done(next.map(|at| u64::try_from(at - now).unwrap_or(0)))
    }
    fn lease_outbox<'a>(&'a mut self, leases: &'a [(i64, u64)]) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        for (id, lease) in leases {
            if let Some(unsent) = self.state.outbox.get(id) {
                let kept = Unsent {
                    leased_until: now.saturating_add_unsigned(*lease),
                    ..unsent.clone()
                };
                self.put(|s| &mut s.outbox, *id, Some(kept));
            }
        }
        done(())
    }
    fn outbox_sent<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, ()> {
        for id in ids {
            self.put(|s| &mut s.outbox, *id, None);
        }
        done(())
    }
    fn pause_outbox_of(&mut self, incarnation: i64, paused: bool) -> DbFuture<'_, ()> {
        self.change_outbox(
            |unsent| unsent.incarnation == incarnation,
            |unsent| unsent.paused = paused,
        );
        done(())
    }
    fn dispatch_partition<'a>(&'a mut self, partition: &'a str) -> DbFuture<'a, u64> {
        let of_partition: BTreeSet<i64> = self
            .state
            .ids
            .iter()
            .filter(|(_, (p, _))| p == partition)
            .map(|(n, _)| *n)
            .collect();
        let suspended =
            |unsent: &Unsent| unsent.suspended && of_partition.contains(&unsent.incarnation);
        let jobs: BTreeSet<i64> = self
            .state
            .outbox
            .values()
            .filter(|unsent| suspended(unsent))
            .map(|unsent| unsent.incarnation)
            .collect();
        self.change_outbox(suspended, |unsent| unsent.suspended = false);
        done(jobs.len() as u64)
    }

    fn insert_prerequisites<'a>(
        &'a mut self,
        job: &'a JobRow,
        prerequisites: &'a [String],
    ) -> DbFuture<'a, ()> {
        for prerequisite in prerequisites {
            let (partition, prerequisite) = (job.partition.to_string(), prerequisite.clone());
            let key = (partition.clone(), prerequisite.clone(), job.incarnation);
            let wait = Wait {
                partition,
                job: job.job.to_string(),
                incarnation: job.incarnation,
                prerequisite,
            };
            self.put(|s| &mut s.waits, key, Some(wait));
        }
        done(())
    }
    fn dependents<'a>(&'a mut self, of: &'a [JobKey], all: bool) -> DbFuture<'a, Vec<Wait>> {
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
            .waits
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
                self.put(|s| &mut s.waits, wait, None);
            }
        }
        let now = self.shared.clock.now();
        let still: BTreeSet<i64> = self
            .state
            .waits
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
            let starts =
                |unsent: &Unsent| unsent.incarnation == *incarnation && unsent.due_time.is_none();
            self.change_outbox(starts, |unsent| unsent.due_time = Some(due));
        }
        done(())
    }
    fn forget_starts<'a>(&'a mut self, incarnations: &'a [i64]) -> DbFuture<'a, ()> {
        let gone: BTreeSet<i64> = incarnations.iter().copied().collect();
        self.remove_all(
            |s| &mut s.outbox,
            |_, unsent| gone.contains(&unsent.incarnation),
        );
        self.forget_waits(|wait| gone.contains(&wait.incarnation));
        done(())
    }

    fn first_failure(&mut self, incarnation: i64) -> DbFuture<'_, Option<ReportFailure>> {
        let failures = self
            .state
            .failures
            .range((incarnation, String::new())..(incarnation + 1, String::new()));
        done(
            failures
                .map(|(_, kept)| kept)
                .min_by_key(|kept| (kept.since, &kept.path))
                .map(|kept| kept.failure.clone()),
        )
    }
    fn save_ended<'a>(&'a mut self, jobs: &'a [JobRow]) -> DbFuture<'a, ()> {
        Box::pin(async move {
            for job in jobs {
                self.save_job(job).await?;
            }
            Ok(())
        })
    }
    fn append_histories<'a>(&'a mut self, steps: &'a [(i64, Transition)]) -> DbFuture<'a, ()> {
        for (incarnation, step) in steps {
            let number = self.state.number();
            self.put(
                |s| &mut s.history,
                (*incarnation, number),
                Some(step.clone()),
            );
        }
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
}
