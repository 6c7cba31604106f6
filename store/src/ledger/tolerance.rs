//! How many failures a job tolerates, and when it is decided. Pure.
//!
//! What counts is an *item* that was reported failed. A split stands for any number of items, so
//! its failure is never tolerated. A failed task counts as a split if it has subtasks, if its
//! report says that it is a batch or has dispatched subtasks, or if it is the final subtask of a
//! split, which is that split's own answer.
//!
//! - When every task is done or has failed, the number of items is known, and the job is Completed
//!   or Failed.
//! - A job that stops above its tolerance fails before: by a number as soon as it is exceeded; by a
//!   percentage as soon as the number of items is final.
//!
//! What must stay true: a job with more failed items than it tolerates, or with a failed
//! split, never becomes Completed.

use contract::rest::{Above, FailureLimit, Tolerance};
use contract::{JobStatus, ReportFailure};

use super::{JobTotals, Ledger, REPORTED_FAILED};

impl JobTotals {
    /// Returns the number of items that have failed.
    fn failed_items(&self) -> u64 {
        u64::try_from(self.failed_tasks - self.failed_splits).unwrap_or(0)
    }
}

impl Ledger {
    /// Returns how many failed splits a subtask counts as: 1 if it is one, otherwise 0.
    pub(super) fn count_as_split(&self, parent: usize, number: u32) -> i64 {
        let split = &self.splits[parent];
        if !split.is_failed(number) {
            return 0;
        }
        let is_failed_split = match self.by_path.get(&self.child_path(parent, number)) {
            Some(child) => self.splits[*child].flags & REPORTED_FAILED != 0,
            None => split.size == Some(number),
        };
        i64::from(is_failed_split)
    }

    /// Returns whether this is the failure of a batch in a job that has to know: even without
    /// subtasks it is no item.
    pub(super) fn stands_for_items(&self, failure: &ReportFailure) -> bool {
        self.totals.on_failure.tolerance().is_some()
            && failure.item.as_ref().is_some_and(|item| item.batch)
    }

    /// Returns the outcome of a job of which every task is done or has failed, and its reason.
    pub(super) fn outcome_of_all(&self) -> (JobStatus, String) {
        let failed = self.totals.failed_tasks;
        let reason = format!("every task is done or has failed; {failed} failed");
        let Some(Tolerance { limit, .. }) = self.totals.on_failure.tolerance() else {
            return (JobStatus::Failed, reason);
        };
        if self.totals.failed_splits > 0 {
            let reason = format!("{reason}, among them a split, which is never tolerated");
            return (JobStatus::Failed, reason);
        }
        let items = u64::try_from(self.totals.ended_items()).unwrap_or(0);
        let status = if limit.is_exceeded(self.totals.failed_items(), items) {
            JobStatus::Failed
        } else {
            JobStatus::Completed
        };
        (
            status,
            format!("{reason}, and {limit} {} tolerated", verb(limit)),
        )
    }

    /// Fails a job that stops above its tolerance, if it is certain that more has failed.
    pub(super) fn stop_above_tolerance(&mut self) {
        let Some(Tolerance { limit, above }) = self.totals.on_failure.tolerance() else {
            return;
        };
        if self.totals.failed_tasks == 0 || above == Above::Continue || self.is_decided() {
            return;
        }
        if self.totals.failed_splits > 0 {
            let reason = "a split has failed, which is never tolerated".to_owned();
            return self.decide(JobStatus::Failed, reason);
        }
        let failed = self.totals.failed_items();
        let final_counts = self.totals.counts.filter(|counts| counts.unsettled == 0);
        let items = final_counts.map(|counts| counts.total.max(self.totals.ended_items()));
        let items = items.and_then(|items| u64::try_from(items).ok());
        // Any number of items may still be announced.
        if limit.is_exceeded(failed, items.unwrap_or(u64::MAX)) {
            let of_items = match items.filter(|_| matches!(limit, FailureLimit::Share(_))) {
                Some(items) => format!("{failed} of {items} items have failed"),
                None if failed == 1 => "1 item has failed".to_owned(),
                None => format!("{failed} items have failed"),
            };
            let reason = format!(
                "{of_items}, which is more than the {limit} that {} tolerated",
                verb(limit)
            );
            self.decide(JobStatus::Failed, reason);
        }
    }
}

fn verb(limit: FailureLimit) -> &'static str {
    if limit == FailureLimit::Items(1) {
        "is"
    } else {
        "are"
    }
}
