//! The jobs that somebody keeps locked, which operations on many jobs leave out.
//!
//! A session that holds the row of a job in PostgreSQL, such as one that hangs within a transaction
//! or a person who looks around, stops everything that changes the job. An operation on many jobs
//! does its work for all others, and says which jobs it has left out. What it was asked to do for
//! those comes again later. Meanwhile it does not try them, so that the others do not wait for them
//! either. SQLite has one writer: a transaction that has begun has the locks of all jobs, and what
//! holds it up holds up every job alike.
//!
//! What must stay true:
//! - A job is left out for [`LONGEST_PAUSE`] at most after it was last found locked. Then it is
//!   tried again.
//! - A transaction that tries a job again waits for no job.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::db::JobKey;
use crate::db::run_tx::{JobLocks, Locks};
use crate::model::LeftOut;

/// The first pause before a locked job is tried again. It doubles each time that the job is still
/// locked.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// The largest number of jobs that are known to be locked. What is about further ones is tried
/// again after the first pause.
const MOST: usize = 10_000;

/// The jobs that were locked when they were last tried.
#[derive(Debug, Default)]
pub(crate) struct LockedJobs(Mutex<HashMap<JobKey, LockedJob>>);

#[derive(Debug, Clone, Copy)]
struct LockedJob {
    /// When it is tried again.
    due: Instant,
    pause: Duration,
}

impl LockedJobs {
    /// Returns the locks of a transaction on these jobs. It leaves out those that are to be tried
    /// later.
    pub fn locks(&self, wanted: JobLocks) -> Locks {
        let known = self.known();
        if known.is_empty() {
            return Locks::leaving_out(wanted, JobLocks::new(), false);
        }
        let now = Instant::now();
        let (mut later, mut skips) = (JobLocks::new(), false);
        for key in &wanted {
            match known.get(key) {
                Some(job) if job.due > now => drop(later.insert(key.clone())),
                Some(_) => skips = true,
                None => {}
            }
        }
        drop(known);
        Locks::leaving_out(wanted, later, skips)
    }

    /// Returns those of these jobs that were locked when they were last tried.
    pub fn known_among(&self, jobs: impl Iterator<Item = JobKey>) -> JobLocks {
        let known = self.known();
        if known.is_empty() {
            return JobLocks::new();
        }
        jobs.filter(|key| known.contains_key(key)).collect()
    }

    /// Notes which jobs a transaction has left out. Returns them.
    pub fn note(&self, locks: &Locks) -> LeftOut {
        let (wanted, left_out) = (locks.wanted(), locks.left_out());
        let mut known = self.known();
        if known.is_empty() && left_out.is_empty() {
            return LeftOut::new();
        }
        for key in wanted.difference(left_out) {
            if known.remove(key).is_some_and(|job| job.pause > FIRST_PAUSE) {
                let (partition, job) = key;
                tracing::info!(job = %format_args!("{partition}:{job}"), "a job is free again that was locked");
            }
        }
        let now = Instant::now();
        let left_out = left_out.iter();
        left_out
            .map(|key| (key.clone(), delay(still_locked(&mut known, key, now))))
            .collect()
    }

    fn known(&self) -> parking_lot::MutexGuard<'_, HashMap<JobKey, LockedJob>> {
        self.0.lock()
    }
}

/// Notes that a job is locked. Returns for how long it is left out from now on.
fn still_locked(known: &mut HashMap<JobKey, LockedJob>, key: &JobKey, now: Instant) -> Duration {
    if let Some(job) = known.get_mut(key) {
        if job.due <= now {
            // Once for each job: most locks are gone by now.
            if job.pause == FIRST_PAUSE {
                let (partition, job) = key;
                tracing::warn!(job = %format_args!("{partition}:{job}"), "another transaction keeps a job locked; what is about this job waits");
            }
            job.pause = (job.pause * 2).min(LONGEST_PAUSE);
            job.due = now + job.pause;
        }
        return job.due - now;
    }
    if known.len() >= MOST {
        // Nothing has come that is about these.
        known.retain(|_, job| job.due + LONGEST_PAUSE > now);
    }
    if known.len() < MOST {
        let pause = FIRST_PAUSE;
        let due = now + pause;
        known.insert(key.clone(), LockedJob { due, pause });
    }
    FIRST_PAUSE
}

/// Returns the shortest of the pauses that is not over before this time is. Brokers keep a queue
/// for each different delay.
fn delay(left: Duration) -> Duration {
    let mut delay = FIRST_PAUSE;
    while delay < left {
        delay *= 2;
    }
    delay
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const N: usize>(jobs: [&str; N]) -> JobLocks {
        jobs.map(|job| ("p".to_owned(), job.to_owned())).into()
    }

    /// Tries these jobs, of which `locked` are locked. Returns those that were left out, and for
    /// how many seconds.
    fn tried<const N: usize>(
        jobs: &LockedJobs,
        wanted: [&str; N],
        locked: &JobLocks,
    ) -> Vec<(String, u64)> {
        let mut locks = jobs.locks(keys(wanted));
        locks.leave_out(wanted_among(&locks, locked));
        let left_out = jobs.note(&locks).into_iter();
        left_out
            .map(|((_, job), delay)| (job, delay.as_secs()))
            .collect()
    }

    fn wanted_among(locks: &Locks, locked: &JobLocks) -> JobLocks {
        locks.wanted().intersection(locked).cloned().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn locked_job_is_tried_again_after_ever_longer_pauses_and_the_others_at_once() {
        let (jobs, locked) = (LockedJobs::default(), keys(["a"]));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let left_out = tried(&jobs, ["a", "b"], &locked);
            let [(job, seconds)] = &left_out[..] else {
                panic!("{left_out:?}")
            };
            assert_eq!(job, "a");
            pauses.push(*seconds);
            tokio::time::advance(Duration::from_secs(*seconds)).await;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(tried(&jobs, ["a", "b"], &keys([])), []);
        assert_eq!(tried(&jobs, ["a"], &locked), [("a".to_owned(), 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn job_that_is_not_due_is_not_tried_and_its_delay_is_one_of_few() {
        let (jobs, locked) = (LockedJobs::default(), keys(["a"]));
        for seconds in [1, 2, 4, 8] {
            assert_eq!(tried(&jobs, ["a"], &locked), [("a".to_owned(), seconds)]);
            tokio::time::advance(Duration::from_secs(seconds)).await;
        }
        assert_eq!(tried(&jobs, ["a"], &locked), [("a".to_owned(), 16)]);
        tokio::time::advance(Duration::from_secs(7)).await;
        // Although it is free again.
        assert_eq!(tried(&jobs, ["a"], &keys([])), [("a".to_owned(), 16)]);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(tried(&jobs, ["a"], &keys([])), []);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_jobs_that_are_known_to_be_locked_is_bounded() {
        let jobs = LockedJobs::default();
        for number in 0..=MOST {
            let name = number.to_string();
            tried(&jobs, [&name], &keys([&name]));
        }
        assert_eq!(jobs.known().len(), MOST);
        tokio::time::advance(FIRST_PAUSE + LONGEST_PAUSE).await;
        tried(&jobs, ["new"], &keys(["new"]));
        assert_eq!(jobs.known().len(), 1);
    }
}
