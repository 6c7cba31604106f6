//! What a process remembers of announcements. Pure: the caller says what time it is.
//!
//! The memory holds the latest announcement of each of a limited number of jobs. When it is full it
//! forgets the oldest ones, and keeps in mind up to which moment it has forgotten some: every job
//! whose last check is older than that counts as announced.
//!
//! What must stay true:
//! - A check that began before the latest announcement of its job never holds.
//! - A full memory makes only those jobs due whose last check is older than the newest announcement
//!   that was forgotten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

/// A moment by the clock of this process, and by that of the stamps in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    pub at: Instant,
    /// Milliseconds since 1970.
    pub millis: i64,
}

/// The announcements that are remembered.
#[derive(Debug)]
pub(super) struct Memory {
    capacity: usize,
    /// The latest announcement of each job, with its number.
    jobs: HashMap<Arc<str>, (u64, Moment)>,
    /// The same jobs, by the numbers of their latest announcements.
    oldest_first: BTreeMap<u64, Arc<str>>,
    /// The number of the next announcement.
    next: u64,
    /// Up to this moment, announcements may have been missed or were forgotten.
    unknown_until: Moment,
}

impl Memory {
    /// Returns the memory of a process that has missed all announcements until now.
    pub fn new(capacity: usize, now: Moment) -> Self {
        Self {
            capacity,
            jobs: HashMap::new(),
            oldest_first: BTreeMap::new(),
            next: 0,
            unknown_until: now,
        }
    }

    /// Remembers an announcement of these jobs.
    pub fn remember(&mut self, jobs: Vec<String>, now: Moment) {
        for job in jobs {
            let job: Arc<str> = job.into();
            let latest = (self.next, now);
            if let Some((earlier, _)) = self.jobs.insert(Arc::clone(&job), latest) {
                self.oldest_first.remove(&earlier);
            }
            self.oldest_first.insert(self.next, job);
            self.next += 1;
        }
        while self.jobs.len() > self.capacity
            && let Some((_, oldest)) = self.oldest_first.pop_first()
        {
            if let Some((_, moment)) = self.jobs.remove(&oldest) {
                self.miss(moment);
            }
        }
    }

    /// Notes that any announcement until this moment may have been missed.
    pub fn miss(&mut self, until: Moment) {
        self.unknown_until = self.unknown_until.max(until);
    }

    /// Returns whether an announcement is remembered.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns when this job was announced last, if that is remembered.
    pub fn announced_at(&self, job: &str) -> Option<Instant> {
        self.jobs.get(job).map(|(_, moment)| moment.at)
    }

    /// Returns up to when announcements are unknown that a check has not seen. `checked` is its
    /// stamp: the millisecond in which it began.
    pub fn unknown_since(&self, checked: Option<i64>) -> Option<Instant> {
        // Within one millisecond, the check may have begun before the announcement.
        let may_be_older = checked.is_none_or(|checked| checked <= self.unknown_until.millis);
        may_be_older.then_some(self.unknown_until.at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: usize = 3;

    #[derive(Debug, Clone)]
    enum Op {
        /// These jobs are announced.
        Announce(Vec<u8>),
        /// A check of the job begins.
        Check(u8),
        Miss,
    }

    fn ops() -> impl Strategy<Value = Vec<(Op, u64)>> {
        let job = || 0u8..8;
        let op = prop_oneof![
            4 => prop::collection::vec(job(), 0..6).prop_map(Op::Announce),
            4 => job().prop_map(Op::Check),
            1 => Just(Op::Miss),
        ];
        prop::collection::vec((op, 1u64..2000), 1..40)
    }

    fn name(job: u8) -> String {
        format!("p:{job}")
    }

    /// The latest announcements in their order, all of them, and which is the newest that no longer
    /// has a place among the latest ones.
    #[derive(Default)]
    struct Model {
        last: BTreeMap<u8, Moment>,
        latest: Vec<(u8, Moment)>,
        missed: Option<Moment>,
        forgotten: Option<Moment>,
    }

    impl Model {
        fn announce(&mut self, job: u8, now: Moment) {
            self.last.insert(job, now);
            self.latest.retain(|(other, _)| *other != job);
            self.latest.push((job, now));
        }

        fn forget(&mut self) {
            while self.latest.len() > CAPACITY {
                let (_, moment) = self.latest.remove(0);
                self.forgotten = self.forgotten.max(Some(moment));
            }
        }
    }

    proptest! {
        #[test]
        fn no_announcement_after_a_check_is_lost_and_a_full_memory_makes_only_older_checks_invalid(ops in ops()) {
            let begin = Instant::now();
            let moment = |micros: u64| Moment {
                at: begin + Duration::from_micros(micros),
                millis: i64::try_from(micros / 1000).unwrap(),
            };
            let (mut micros, mut model) = (0, Model::default());
            let mut memory = Memory::new(CAPACITY, moment(0));
            let mut checks = Vec::new();
            for (op, pause) in ops {
                micros += pause;
                let now = moment(micros);
                match op {
                    Op::Announce(jobs) => {
                        memory.remember(jobs.iter().copied().map(name).collect(), now);
                        for job in jobs {
                            model.announce(job, now);
                        }
                        model.forget();
                    }
                    Op::Check(job) => checks.push((job, now)),
                    Op::Miss => {
                        memory.miss(now);
                        model.missed = Some(now);
                    }
                }
                prop_assert!(memory.jobs.len() <= CAPACITY);
                prop_assert_eq!(memory.jobs.len(), memory.oldest_first.len());
            }
            for (job, began) in checks {
                let announced = memory.announced_at(&name(job));
                let changed = announced.max(memory.unknown_since(Some(began.millis)));
                let holds = changed.is_none_or(|changed| began.at >= changed);
                let last = model.last.get(&job).copied().max(model.missed);
                if last.is_some_and(|last| began < last) {
                    prop_assert!(!holds, "the announcement of {} is lost", job);
                }
                let unknown = model.forgotten.max(model.missed).unwrap_or(moment(0));
                if last.is_none_or(|last| began > last) && began.millis > unknown.millis {
                    prop_assert!(holds, "a check of {} is invalid without a reason", job);
                }
            }
        }
    }
}
