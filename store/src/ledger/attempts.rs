//! Counts failed attempts that another attempt follows, and keeps some of them. What counts is the
//! number that the worker gives: a task of which a third attempt has failed has three, whichever of
//! them were reported, how often and in which order.

use contract::ReportFailure;

use super::kept::{ATTEMPTS_OF_A_FLUSH, COUNTED_OF_A_TASK, bounded};
use super::{ATTEMPTS_OF_A_TASK, KeptAttempt, Ledger};

impl Ledger {
    /// Counts and keeps a failed attempt of a subtask that is attempted again.
    pub(super) fn retry(
        &mut self,
        parent: usize,
        number: u32,
        attempts: Option<i32>,
        failure: Option<&ReportFailure>,
    ) {
        let path = self.child_path(parent, number);
        if let Some(at) = self.by_path.get(&path) {
            return self.retry_split(*at, attempts, failure);
        }
        let mut before = None;
        self.change_active_task(parent, number, |active, now| {
            before = Some(active.failed_attempts());
            active.retry(attempts, failure, now);
        });
        if let Some(before) = before {
            self.keep_attempt(path, before, attempts, failure);
        }
    }

    /// Counts and keeps a failed attempt of a task that has split already. Whether it waits is not
    /// known: other workers may have its subtasks.
    pub(super) fn retry_split(
        &mut self,
        at: usize,
        attempts: Option<i32>,
        failure: Option<&ReportFailure>,
    ) {
        let split = &self.splits[at];
        if !split.closed {
            let (path, before) = (split.path.clone(), split.counts.retried);
            self.keep_attempt(path, before, attempts, failure);
            self.know_attempts(at, attempts.unwrap_or(1));
        }
    }

    /// Keeps with a split how many attempts of its task have failed.
    pub(super) fn know_attempts(&mut self, at: usize, attempts: i32) {
        let split = &mut self.splits[at];
        if split.counts.retried < attempts {
            split.counts.retried = attempts;
            split.dirty = true;
        }
    }

    /// Counts a failed attempt of a task of which so many have failed `before`, and keeps it within
    /// the bounds.
    pub(super) fn keep_attempt(
        &mut self,
        path: String,
        before: i32,
        attempts: Option<i32>,
        failure: Option<&ReportFailure>,
    ) {
        let attempt = attempts.unwrap_or(1).max(1);
        // There are no more rows than are counted: each task has rows up to the number of its
        // attempts.
        let counted = self.failed_attempts;
        let more = attempt.min(COUNTED_OF_A_TASK) - before.min(COUNTED_OF_A_TASK);
        self.failed_attempts = counted.saturating_add(i64::from(more.max(0)));
        if counted < self.most_kept
            && attempt <= ATTEMPTS_OF_A_TASK
            && self.new_attempts.len() < ATTEMPTS_OF_A_FLUSH
        {
            let kept = KeptAttempt {
                path: path.clone(),
                attempt,
                since: self.now,
                next: failure.and_then(ReportFailure::next_attempt),
                failure: failure.map(bounded).unwrap_or_default(),
            };
            self.new_attempts.entry((path, attempt)).or_insert(kept);
        }
    }
}
