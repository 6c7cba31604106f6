//! Opens a task again that has failed, so that the job waits for it: its message is sent once more.
//! All others stay as they are.

use contract::Step;

use super::{CONFLICT, Ledger, REPORTED_FAILED};

/// What became of a task that was to be opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopening {
    /// It had failed, and the job waits for it now.
    Open,
    /// It is done, or belongs to one that is.
    Done,
    /// It has neither failed nor is it done.
    Unknown,
    /// It has subtasks, or belongs to a split that was reported failed as a whole. A retry of the
    /// job does the rest of such a split.
    Split,
}

impl Ledger {
    /// Returns whether every task is done or has failed.
    pub fn has_all_ended(&self) -> bool {
        let root = self.by_path.get("").map(|at| &self.splits[*at]);
        root.is_some_and(|root| {
            root.flags & CONFLICT == 0
                && !root.is_contradictory()
                && root.size == Some(root.done + root.failed)
        })
    }

    /// Opens a task again. The nodes of the task and of the splits above it must be loaded, and the
    /// kind of its failure.
    pub fn reopen(&mut self, steps: &[Step]) -> Reopening {
        let Some((own, parents)) = steps.split_last() else {
            return Reopening::Split;
        };
        let mut above = Vec::with_capacity(steps.len());
        let mut path = String::new();
        let Some(root) = self.by_path.get("") else {
            return Reopening::Unknown;
        };
        above.push(*root);
        for step in parents {
            let split = &self.splits[above[above.len() - 1]];
            if split.is_done(step.number) {
                return Reopening::Done;
            }
            super::extend(&mut path, step.number);
            let Some(at) = self.by_path.get(&path) else {
                return Reopening::Unknown;
            };
            above.push(*at);
        }
        let parent = above[above.len() - 1];
        if self.splits[parent].is_done(own.number) {
            return Reopening::Done;
        }
        let is_split = self
            .by_path
            .contains_key(&self.child_path(parent, own.number));
        let whole = |at: &usize| self.splits[*at].flags & (REPORTED_FAILED | CONFLICT) != 0;
        if is_split || above.iter().any(whole) {
            return Reopening::Split;
        }
        if !self.splits[parent].is_failed(own.number) {
            return Reopening::Unknown;
        }
        let failed_splits = self.count_as_split(parent, own.number);
        self.splits[parent].clear_failed(own.number);
        // A split whose tasks had all ended had failed with them.
        for at in above.into_iter().rev() {
            let (number, parent) = (self.splits[at].number, self.splits[at].parent);
            match parent.map(|parent| &mut self.splits[parent]) {
                Some(parent) if parent.is_failed(number) => parent.clear_failed(number),
                _ => break,
            }
        }
        self.take_failure_back(parent, own.number, failed_splits);
        Reopening::Open
    }
}
