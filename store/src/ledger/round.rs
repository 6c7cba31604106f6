//! What the beginning of a new round clears: that tasks have failed, wait or run. What is done
//! stays done.
//!
//! The rows of a task table are cleared one by one and a page at a time, whatever the size of the
//! job. Active tasks are not among them: the database deletes their rows at once
//! (`RoundSteps::end_active_tasks`).

use contract::Step;

use super::counts::{Counts, SplitCounts};
use super::node::{ActiveTask, CONFLICT, NodeRow};
use super::{COMPLETE, JobTotals, Ledger};
use crate::model::EventKind;

impl NodeRow {
    /// Clears what a new round does not know of this split. Returns whether nothing but its
    /// contradiction has kept it from being done, so that [`Ledger::conclude`] has to look at it.
    pub fn begin_round(&mut self) -> bool {
        let is_complete = self.flags & CONFLICT != 0 && self.size == Some(self.done_count);
        (self.failed, self.failed_count, self.flags) = (None, 0, 0);
        let counts = self.detail.as_deref().map(serde_json::from_str);
        if let Some(Ok(counts)) = counts {
            let counts: SplitCounts = counts;
            self.detail = serde_json::to_string(&counts.without_active_tasks()).ok();
        }
        is_complete
    }
}

impl JobTotals {
    /// Clears what a new round does not know. The number of items that are done stays, and so does
    /// the percentage, unless the job is Completed: what is not done brings it below 100.
    pub fn begin_round(&mut self) {
        if self.percentage == COMPLETE {
            self.percentage = 0;
        }
        self.failed_tasks = 0;
        self.failed_splits = 0;
        self.failure_counts.clear();
        self.counts = self.counts.map(Counts::without_active_tasks);
        // The number of subtasks stays known.
        self.own_task = self.own_task.take().and_then(|own| {
            own.subtasks.map(|subtasks| ActiveTask {
                since: own.since,
                subtasks: Some(subtasks),
                ..ActiveTask::default()
            })
        });
    }
}

impl Ledger {
    /// Looks whether these splits are done, each named by its path, and with them the splits above
    /// and the job. Their nodes must be loaded.
    pub fn conclude(&mut self, splits: &[Vec<Step>]) {
        for path in splits {
            if self.by_path.contains_key("")
                && let Some(at) = self.open(path)
            {
                self.check_finished(at);
            }
        }
    }
}

/// Returns whether an event of one round counts in another. What is done is done, whatever the
/// round; that a task runs, waits or has failed counts only in the round in which that is so.
pub fn counts_in(event: &EventKind, of: u32, now: u32) -> bool {
    of == now || *event == EventKind::Complete
}

/// Returns the steps of the path of a row.
pub fn steps_of(path: &str) -> Vec<Step> {
    let number = |part: &str| {
        let number = part.parse().ok()?;
        Some(Step {
            number,
            last: false,
        })
    };
    path.split('.').filter_map(number).collect()
}
