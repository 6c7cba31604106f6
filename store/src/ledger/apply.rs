//! How one event changes the ledger.

use contract::{JobStatus, OnFailure, ReportFailure, Step};

use super::{
    ActiveTask, CONFLICT, CONFLICT_FAILURE, FAILURES_KEPT, KeptFailure, Ledger, PERCENT,
    REPORTED_FAILED, UNNAMED_FAILURE, extend, failure_kind,
};
use crate::model::EventKind;

/// CAF's cap for a task that says itself how far it is.
const PROGRESS_CAP: i64 = 999 * PERCENT / 10;

impl Ledger {
    /// Counts one event in. False when the job's outcome had been decided before, so that it does not count.
    pub fn apply(&mut self, steps: &[Step], kind: &EventKind) -> bool {
        if self.is_decided() {
            return false;
        }
        let announcement = matches!(kind, EventKind::Progress(0));
        // An announcement says what its stars say, and nothing of the tasks after the last one.
        let steps = if announcement {
            let Some(last) = steps.iter().rposition(|step| step.last) else {
                return true;
            };
            &steps[..=last]
        } else {
            self.active = true;
            steps
        };
        let Some((own, parents)) = steps.split_last() else {
            self.apply_to_job(kind);
            return true;
        };
        let Some(parent) = self.open(parents) else {
            return true;
        };
        self.see_child(parent, *own);
        let split = &self.splits[parent];
        if announcement || self.is_decided() || split.closed || split.is_done(own.number) {
            return true;
        }
        match kind {
            EventKind::Progress(percent) => {
                let percent = (i64::from(*percent) * PERCENT).min(PROGRESS_CAP);
                self.change_exception(parent, own.number, |exception, _| {
                    exception.percent = exception.percent.max(percent);
                });
            }
            EventKind::Retry { attempts, failure } => {
                self.change_exception(parent, own.number, |exception, now| {
                    exception.retry(*attempts, failure.as_ref(), now);
                });
            }
            EventKind::Complete => self.complete(parent, own.number),
            EventKind::Failed(failure) => self.fail(parent, own.number, failure, 0),
        }
        true
    }

    /// An event of the job's own task.
    fn apply_to_job(&mut self, kind: &EventKind) {
        let split = self.by_path.contains_key("");
        match kind {
            EventKind::Complete => {
                self.totals.completed_items = 1;
                self.decide(
                    JobStatus::Completed,
                    "the job's own task is done".to_owned(),
                );
            }
            EventKind::Failed(failure) => {
                let attempts = self.totals.own_task.take().and_then(|own| own.attempts);
                self.count_failure(String::new(), failure, attempts);
                self.decide(JobStatus::Failed, told("the job's own task", failure));
            }
            // Once it is split, its subtasks tell how far it is.
            EventKind::Progress(_) | EventKind::Retry { .. } if split => {}
            EventKind::Progress(percent) => {
                self.publish((i64::from(*percent) * PERCENT).min(PROGRESS_CAP));
            }
            EventKind::Retry { attempts, failure } => {
                self.totals.own_task.get_or_insert_default().retry(
                    *attempts,
                    failure.as_ref(),
                    self.now,
                );
            }
        }
    }

    /// Goes down from the job to the split with these steps, creating what is missing; `None` when something on the way is done.
    fn open(&mut self, steps: &[Step]) -> Option<usize> {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        for step in steps {
            extend(&mut path, step.number);
        }
        let again = match &self.latest {
            Some((latest, at)) if *latest == path && steps.iter().all(|step| !step.last) => {
                Some(*at)
            }
            _ => None,
        };
        let found = match again {
            Some(at) => (!self.splits[at].closed).then_some(at),
            None => self.go_down(steps),
        };
        if again.is_none() {
            self.latest = found.map(|at| (path.clone(), at));
        }
        self.path = path;
        found
    }

    fn go_down(&mut self, steps: &[Step]) -> Option<usize> {
        let mut at = if let Some(at) = self.by_path.get("") {
            *at
        } else {
            self.totals.own_task = None;
            self.add_split("")
        };
        for step in steps {
            self.see_child(at, *step);
            let split = &self.splits[at];
            if self.is_decided() || split.closed || split.is_done(step.number) {
                return None;
            }
            at = self.child_split(at, step.number);
        }
        Some(at)
    }

    /// The split that this child is, or turns out to be now.
    fn child_split(&mut self, parent: usize, number: u32) -> usize {
        let path = self.child_path(parent, number);
        if let Some(at) = self.by_path.get(&path) {
            return *at;
        }
        // What it said about its progress before is told by its subtasks from now on.
        let before = self.take_exception(&path);
        let split = &mut self.splits[parent];
        match before {
            Some(exception) => split.open_sum -= exception.percent,
            None => split.kept += 1,
        }
        split.dirty = true;
        let failed = split.is_failed(number);
        let at = self.add_split(&path);
        self.splits[at].dirty = true;
        if failed {
            self.splits[at].flags |= REPORTED_FAILED;
        }
        at
    }

    /// A child is named: that tells how many there are at least, and with a `*` how many there are.
    fn see_child(&mut self, at: usize, step: Step) {
        let split = &mut self.splits[at];
        let (number, mut learned, mut conflict) = (step.number, false, false);
        if number > split.top {
            split.top = number;
            split.dirty = true;
        }
        if step.last && split.size != Some(number) {
            conflict = split.size.is_some();
            learned = !conflict;
            split.size = split.size.max(Some(number));
            split.dirty = true;
        }
        if split.size.is_some_and(|size| split.top > size) {
            conflict = true;
            split.size = Some(split.top);
        }
        if learned && std::mem::take(&mut split.counted) == number {
            // The final answer of a split is no item of its own, and it was counted before that was known.
            self.add_items(at, -1);
        }
        if conflict && self.splits[at].flags & CONFLICT == 0 {
            self.contradict(at);
        } else if learned {
            self.settle(at);
        }
    }

    /// The parts of a split do not fit together: it has failed, whatever else is reported of its parts.
    fn contradict(&mut self, at: usize) {
        let split = &mut self.splits[at];
        split.flags |= CONFLICT;
        split.dirty = true;
        let size = split.size.unwrap_or_default();
        let failure = ReportFailure {
            failure_id: Some(CONFLICT_FAILURE.to_owned()),
            failure_time: Some(self.now),
            failure_source: Some("ledger".to_owned()),
            failure_message: Some(format!(
                "the split was reported with different numbers of subtasks; {size} is the largest"
            )),
        };
        let number = split.number;
        if let Some(parent) = split.parent {
            self.fail(parent, number, &failure, CONFLICT);
        } else {
            self.count_failure(String::new(), &failure, None);
            self.decide(JobStatus::Failed, told("the job's own split", &failure));
        }
    }

    /// Makes a change to what is kept of a child that is under way, unless more than that is known of it.
    fn change_exception(
        &mut self,
        parent: usize,
        number: u32,
        change: impl FnOnce(&mut ActiveTask, i64),
    ) {
        let path = self.child_path(parent, number);
        let split = &mut self.splits[parent];
        if split.is_failed(number) || self.by_path.contains_key(&path) {
            return;
        }
        let slot = self.exceptions.entry(path).or_default();
        let exception = slot.now.get_or_insert_with(|| {
            split.kept += 1;
            split.dirty = true;
            ActiveTask {
                since: self.now,
                ..ActiveTask::default()
            }
        });
        let before = exception.percent;
        change(exception, self.now);
        if exception.percent != before {
            split.open_sum += exception.percent - before;
            split.dirty = true;
        }
        slot.dirty = true;
    }

    /// A child is reported done.
    fn complete(&mut self, parent: usize, number: u32) {
        let (contributed, items_before, was_failed) = self.give_up_child(parent, number);
        let split = &mut self.splits[parent];
        split.open_sum -= contributed;
        split.set_done(number);
        let is_final = split.size == Some(number);
        if split.size.is_none() {
            split.counted = split.counted.max(number);
        }
        if was_failed {
            self.take_failure_back(parent, number);
        }
        self.add_items(parent, i64::from(!is_final) - items_before);
        self.settle(parent);
    }

    /// Everything that is kept of a child and below it goes. Answers what it contributed, its items, and whether it was reported failed.
    fn give_up_child(&mut self, parent: usize, number: u32) -> (i64, i64, bool) {
        let failed_bit = self.splits[parent].is_failed(number);
        if failed_bit {
            self.splits[parent].clear_failed(number);
        }
        if self.splits[parent].kept == 0 {
            return (0, 0, failed_bit);
        }
        let path = self.child_path(parent, number);
        if let Some(exception) = self.take_exception(&path) {
            self.splits[parent].kept -= 1;
            return (exception.percent, 0, failed_bit);
        }
        let Some(child) = self.by_path.get(&path).copied() else {
            return (0, 0, failed_bit);
        };
        self.splits[parent].kept -= 1;
        let split = &self.splits[child];
        let answer = (
            split.percent,
            split.items,
            split.flags & REPORTED_FAILED != 0,
        );
        if split.stored && split.kept > 0 {
            self.pruned.push(path.clone());
        }
        self.splits[child].closed = true;
        if self.splits[child].kept > 0 {
            self.close_below(&path);
        }
        answer
    }

    fn close_below(&mut self, path: &str) {
        let is_below = |other: &str| {
            other
                .strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        for split in self.splits.iter_mut().filter(|split| is_below(&split.path)) {
            split.closed = true;
        }
        for (_, slot) in self
            .exceptions
            .iter_mut()
            .filter(|(path, _)| is_below(path))
        {
            slot.now = None;
        }
    }

    /// A child is reported failed, or found to be.
    fn fail(&mut self, parent: usize, number: u32, failure: &ReportFailure, flags: i32) {
        let path = self.child_path(parent, number);
        let child = self.by_path.get(&path).copied();
        let failed_bit = self.splits[parent].is_failed(number);
        let known = match child {
            Some(child) => self.splits[child].flags & REPORTED_FAILED != 0,
            None => failed_bit,
        };
        if known {
            return;
        }
        let mut attempts = None;
        if let Some(child) = child {
            self.splits[child].flags |= REPORTED_FAILED | flags;
            self.splits[child].dirty = true;
        } else if self.splits[parent].kept > 0
            && let Some(exception) = self.take_exception(&path)
        {
            attempts = exception.attempts;
            self.splits[parent].open_sum -= exception.percent;
            self.splits[parent].kept -= 1;
        }
        if !failed_bit {
            self.splits[parent].set_failed(number);
        }
        let reason = told(&format!("task {path}"), failure);
        self.count_failure(path, failure, attempts);
        match self.totals.on_failure {
            OnFailure::Stop => self.decide(JobStatus::Failed, reason),
            OnFailure::Continue => self.settle(parent),
        }
    }

    fn count_failure(&mut self, path: String, failure: &ReportFailure, attempts: Option<i32>) {
        let kind = failure_kind(failure);
        self.totals.count_failure(&kind);
        if self.kept.len() < FAILURES_KEPT {
            self.kept.insert(path.clone(), kind);
            let kept = KeptFailure {
                path: path.clone(),
                since: self.now,
                attempts,
                failure: failure.clone(),
            };
            self.new_failures.insert(path, kept);
        }
    }

    /// A task that had failed is done after all. Where its failure is no longer kept, its kind stays counted.
    fn take_failure_back(&mut self, parent: usize, number: u32) {
        self.totals.failed_tasks -= 1;
        let path = self.child_path(parent, number);
        let Some(kind) = self.kept.remove(&path) else {
            return;
        };
        if let Some(count) = self.totals.failure_counts.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.totals.failure_counts.remove(&kind);
            }
        }
        if self.new_failures.remove(&path).is_none() {
            self.gone_failures.push(path);
        }
    }

    /// Looks whether a split is done, or has nothing left that could be done, and tells its parent so.
    fn settle(&mut self, at: usize) {
        let split = &self.splits[at];
        let Some(size) = split.size else { return };
        let (parent, number) = (split.parent, split.number);
        if split.flags & CONFLICT != 0 {
            return;
        }
        if split.done == size {
            let Some(parent) = parent else {
                self.decide(JobStatus::Completed, "every task is done".to_owned());
                return;
            };
            let (percent, was_reported) = (split.percent, split.flags & REPORTED_FAILED != 0);
            self.splits[at].closed = true;
            let above = &mut self.splits[parent];
            above.kept -= 1;
            above.open_sum -= percent;
            if above.is_failed(number) {
                above.clear_failed(number);
            }
            above.set_done(number);
            if was_reported {
                self.take_failure_back(parent, number);
            }
            self.settle(parent);
        } else if split.done + split.failed == size {
            match parent {
                None => {
                    let reason = format!(
                        "every task is done or has failed; {} failed",
                        self.totals.failed_tasks
                    );
                    self.decide(JobStatus::Failed, reason);
                }
                Some(parent) if !self.splits[parent].is_failed(number) => {
                    self.splits[parent].set_failed(number);
                    self.settle(parent);
                }
                Some(_) => {}
            }
        }
    }

    fn decide(&mut self, status: JobStatus, reason: String) {
        self.decision.get_or_insert((status, reason));
    }

    fn add_items(&mut self, at: usize, change: i64) {
        if change == 0 {
            return;
        }
        let mut next = Some(at);
        while let Some(at) = next {
            let split = &mut self.splits[at];
            split.items += change;
            split.dirty = true;
            next = split.parent;
        }
        self.totals.completed_items += change;
    }

    fn take_exception(&mut self, path: &str) -> Option<ActiveTask> {
        self.exceptions
            .get_mut(path)
            .and_then(|slot| slot.now.take())
    }

    fn child_path(&self, parent: usize, number: u32) -> String {
        let mut path = self.splits[parent].path.clone();
        extend(&mut path, number);
        path
    }
}

/// A failure in one sentence, for the history of a job.
fn told(who: &str, failure: &ReportFailure) -> String {
    let kind = failure.failure_id.as_deref().unwrap_or(UNNAMED_FAILURE);
    let said = match &failure.failure_message {
        Some(message) => format!("{who} has failed: {kind}: {message}"),
        None => format!("{who} has failed: {kind}"),
    };
    // PostgreSQL takes no text with a zero character, and a report must not be refused for one.
    said.chars().filter(|c| *c != '\0').take(500).collect()
}
