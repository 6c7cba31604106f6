//! Applies one event to the ledger.

use contract::{Announced, JobStatus, OnFailure, ReportFailure, SourceDigest, Step};

use super::kept::bounded;
use super::{
    ActiveTask, CONFLICT, CONFLICT_FAILURE, Counts, FAILURES_IN_FULL, KeptFailure, Ledger, PERCENT,
    REPORTED_FAILED, SplitCounts, Statement, TOO_MANY_ITEMS, UNNAMED_FAILURE, extend, failure_kind,
};
use crate::model::EventKind;

/// The highest percentage that a task can report of itself, as in CAF.
const PROGRESS_CAP: i64 = 999 * PERCENT / 10;

impl Ledger {
    /// Applies one event. Returns false if it does not count because the job is Completed: then
    /// only a task that has failed can be done after all.
    pub fn apply(&mut self, steps: &[Step], kind: &EventKind) -> bool {
        if self.is_completed() && (self.is_all_done() || *kind != EventKind::Complete) {
            return false;
        }
        let size_only = matches!(kind, EventKind::Progress(0) | EventKind::Announced { .. });
        // Progress 0 of a final task reports the sizes that the stars show, and nothing about a
        // task.
        let steps = if size_only {
            let Some(last) = steps.iter().rposition(|step| step.last) else {
                return true;
            };
            &steps[..=last]
        } else {
            // An attempt that failed has done nothing: the job waits for the next one.
            self.active |= !matches!(kind, EventKind::Retry { .. });
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
        if let EventKind::Announced { stated, digest } = kind {
            self.announce(parent, stated.as_ref(), *digest);
        }
        let split = &self.splits[parent];
        if size_only || self.is_all_done() || split.closed || split.is_done(own.number) {
            return true;
        }
        match kind {
            EventKind::Announced { .. } => {}
            EventKind::Progress(percent) => {
                let percent = (i64::from(*percent) * PERCENT).min(PROGRESS_CAP);
                self.change_active_task(parent, own.number, |active, _| {
                    active.percent = active.percent.max(percent);
                });
            }
            EventKind::Started { attempts } => {
                self.change_active_task(parent, own.number, |active, now| {
                    active.start(*attempts, now);
                });
            }
            EventKind::Retry { attempts, failure } => {
                self.retry(parent, own.number, *attempts, failure.as_ref());
            }
            EventKind::Complete => self.complete(parent, own.number),
            EventKind::Failed(failure) => self.fail(parent, own.number, failure, 0),
        }
        true
    }

    /// Fails the job if more of its items are done than a job may have.
    pub fn limit_items(&mut self, limit: u64) {
        let items = self.totals.completed_items;
        if self.is_decided() || items <= i64::try_from(limit).unwrap_or(i64::MAX) {
            return;
        }
        let message = format!("{items} items are done; a job has at most {limit} (--max-items)");
        self.fail_job(TOO_MANY_ITEMS, message, "the job");
    }

    /// Fails the job for a reason that the ledger has found.
    fn fail_job(&mut self, kind: &str, message: String, subject: &str) {
        let failure = self.own_failure(kind, message);
        self.count_failure(String::new(), &failure, None);
        self.decide(JobStatus::Failed, failure_summary(subject, &failure));
    }

    fn own_failure(&self, kind: &str, message: String) -> ReportFailure {
        ReportFailure {
            failure_id: Some(kind.to_owned()),
            failure_time: Some(self.now),
            failure_source: Some("ledger".to_owned()),
            failure_message: Some(message),
            item: None,
            run: None,
        }
    }

    /// Applies an event of the job's own task.
    fn apply_to_job(&mut self, kind: &EventKind) {
        let root = self.by_path.get("").copied();
        match kind {
            EventKind::Failed(failure) => self.fail_own_task(root, failure),
            _ if self.is_decided() => {}
            EventKind::Complete => {
                self.totals.completed_items = 1;
                self.decide(
                    JobStatus::Completed,
                    "the job's own task is done".to_owned(),
                );
            }
            EventKind::Announced { .. } => {}
            // Once the task is split, its subtasks determine the percentage.
            EventKind::Progress(_) | EventKind::Started { .. } | EventKind::Retry { .. }
                if let Some(root) = root =>
            {
                if let EventKind::Retry { attempts, failure } = kind {
                    self.retry_split(root, *attempts, failure.as_ref());
                }
            }
            EventKind::Progress(percent) => {
                self.publish((i64::from(*percent) * PERCENT).min(PROGRESS_CAP));
            }
            EventKind::Started { attempts } => {
                let now = self.now;
                let begun = || ActiveTask {
                    since: now,
                    ..ActiveTask::default()
                };
                let own = self.totals.own_task.get_or_insert_with(begun);
                own.start(*attempts, now);
            }
            EventKind::Retry { attempts, failure } => {
                let own = self.totals.own_task.get_or_insert_default();
                let before = own.failed_attempts();
                own.retry(*attempts, failure.as_ref(), self.now);
                self.keep_attempt(String::new(), before, *attempts, failure.as_ref());
            }
        }
    }

    /// Marks the job's own task as failed. `root` is its split, if it was split.
    fn fail_own_task(&mut self, root: Option<usize>, failure: &ReportFailure) {
        let known = root.is_some_and(|root| self.splits[root].flags & REPORTED_FAILED != 0);
        if known || self.kept.contains_key("") {
            return;
        }
        if let Some(root) = root {
            self.splits[root].flags |= REPORTED_FAILED;
            self.splits[root].dirty = true;
        }
        let own = self.totals.own_task.take();
        let attempts = own.as_ref().and_then(ActiveTask::attempts_with_the_last);
        self.know_subtasks(own.and_then(|own| own.subtasks));
        self.count_failure(String::new(), failure, attempts);
        self.decide(
            JobStatus::Failed,
            failure_summary("the job's own task", failure),
        );
    }

    /// Returns the split with this path, and creates the splits on the path that do not exist.
    /// Returns `None` if a task on the path is done.
    pub(super) fn open(&mut self, steps: &[Step]) -> Option<usize> {
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
            None => self.open_path(steps),
        };
        if again.is_none() {
            self.latest = found.map(|at| (path.clone(), at));
        }
        self.path = path;
        found
    }

    fn open_path(&mut self, steps: &[Step]) -> Option<usize> {
        let mut at = if let Some(at) = self.by_path.get("") {
            *at
        } else {
            let own = self.totals.own_task.take();
            let at = self.add_split("");
            self.know_attempts(at, own.map_or(0, |own| own.failed_attempts()));
            at
        };
        for step in steps {
            self.see_child(at, *step);
            let split = &self.splits[at];
            if self.is_all_done() || split.closed || split.is_done(step.number) {
                return None;
            }
            at = self.child_split(at, step.number);
        }
        Some(at)
    }

    /// Returns the split of this subtask. If there is none, the subtask has just turned out to be a
    /// split.
    fn child_split(&mut self, parent: usize, number: u32) -> usize {
        let path = self.child_path(parent, number);
        if let Some(at) = self.by_path.get(&path) {
            return *at;
        }
        // From now on its subtasks determine its percentage, instead of its own reports.
        let before = self.take_active_task(parent, &path);
        let attempts = before.as_ref().map_or(0, ActiveTask::failed_attempts);
        let split = &mut self.splits[parent];
        match before {
            Some(active) => split.open_sum -= active.percent,
            None => split.kept += 1,
        }
        split.dirty = true;
        let failed = split.is_failed(number);
        let counted = self.count_as_split(parent, number);
        let at = self.add_split(&path);
        self.splits[at].dirty = true;
        self.know_attempts(at, attempts);
        if failed {
            self.splits[at].flags |= REPORTED_FAILED;
            self.totals.failed_splits += 1 - counted;
        }
        self.add_counts(parent, SplitCounts::new().seen_from_above());
        self.count_opened(parent, number, 1);
        at
    }

    /// Updates the size of a split from the number of a subtask: a split has at least that many
    /// subtasks, and with a `*` exactly that many.
    fn see_child(&mut self, at: usize, step: Step) {
        let split = &mut self.splits[at];
        let slots = split.slots();
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
        if slots != split.slots() || learned {
            let opened = if learned && self.is_split(at, number) {
                -1 // The final subtask is no item, so nothing replaces it.
            } else {
                0
            };
            self.recount(at, slots, |counts| counts.count_opened(opened));
        }
        if learned && std::mem::take(&mut self.splits[at].counted) == number {
            // The final subtask is no item, and it was counted as one before that was known.
            self.add_items(at, -1);
        }
        if learned
            && self.splits[at].is_failed(number)
            && !self.by_path.contains_key(&self.child_path(at, number))
        {
            // It is no item: only its number has shown that.
            self.totals.failed_splits += 1;
        }
        if conflict && self.splits[at].flags & CONFLICT == 0 {
            let size = self.splits[at].size.unwrap_or_default();
            let message = format!(
                "the split was reported with different numbers of subtasks; {size} is the largest"
            );
            self.contradict(at, CONFLICT_FAILURE, message);
        } else if learned {
            self.check_finished(at);
        }
    }

    /// Fails a split because reports contradict each other about it. Nothing that is reported later
    /// changes that.
    pub(super) fn contradict(&mut self, at: usize, kind: &str, message: String) {
        let split = &mut self.splits[at];
        split.flags |= CONFLICT;
        split.dirty = true;
        let (number, parent) = (split.number, split.parent);
        if let Some(parent) = parent {
            let failure = self.own_failure(kind, message);
            self.fail(parent, number, &failure, CONFLICT);
        } else {
            self.fail_job(kind, message, "the job's own split");
        }
    }

    /// Updates an active subtask; ignored once it is done, failed or split.
    pub(super) fn change_active_task(
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
        let slot = self.active_tasks.entry(path).or_default();
        let is_new = slot.now.is_none();
        let active = slot.now.get_or_insert_with(|| {
            split.kept += 1;
            split.dirty = true;
            ActiveTask {
                since: self.now,
                ..ActiveTask::default()
            }
        });
        let before = (active.percent, active.retrying);
        change(active, self.now);
        if active.percent != before.0 {
            split.open_sum += active.percent - before.0;
            split.dirty = true;
        }
        slot.dirty = true;
        let mut counts = Counts::of_active_task(active.retrying);
        if !is_new {
            counts = counts - Counts::of_active_task(before.1);
        }
        self.add_counts(parent, counts);
    }

    /// Marks a subtask as done.
    fn complete(&mut self, parent: usize, number: u32) {
        let failed_splits = self.count_as_split(parent, number);
        let (contributed, items_before, was_failed) = self.remove_child(parent, number);
        let split = &mut self.splits[parent];
        split.open_sum -= contributed;
        split.set_done(number);
        let is_final = split.size == Some(number);
        if split.size.is_none() {
            split.counted = split.counted.max(number);
        }
        if was_failed {
            self.take_failure_back(parent, number, failed_splits);
        }
        self.add_items(parent, i64::from(!is_final) - items_before);
        self.check_finished(parent);
    }

    /// Removes the nodes of a subtask and below it. Returns its percentage in the open sum, its
    /// items, and whether it was reported failed.
    fn remove_child(&mut self, parent: usize, number: u32) -> (i64, i64, bool) {
        let failed_bit = self.splits[parent].is_failed(number);
        if failed_bit {
            self.splits[parent].clear_failed(number);
        }
        if self.splits[parent].kept == 0 {
            return (0, 0, failed_bit);
        }
        let path = self.child_path(parent, number);
        if let Some(active) = self.take_active_task(parent, &path) {
            self.splits[parent].kept -= 1;
            return (active.percent, 0, failed_bit);
        }
        let Some(child) = self.by_path.get(&path).copied() else {
            return (0, 0, failed_bit);
        };
        self.splits[parent].kept -= 1;
        let split = &self.splits[child];
        let removed = (
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
        let counts = self.splits[child].counts.seen_from_above();
        self.add_counts(parent, -counts);
        self.count_opened(parent, number, -1);
        removed
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
            .active_tasks
            .iter_mut()
            .filter(|(path, _)| is_below(path))
        {
            slot.now = None;
        }
    }

    /// Marks a subtask as failed, because a report says so or because its split is contradictory.
    fn fail(&mut self, parent: usize, number: u32, failure: &ReportFailure, flags: i32) {
        let path = self.child_path(parent, number);
        let active = self
            .active_tasks
            .get(&path)
            .and_then(|slot| slot.now.as_ref());
        let attempts = active.and_then(ActiveTask::attempts_with_the_last);
        if self.stands_for_items(failure) {
            self.child_split(parent, number);
        }
        let child = self.by_path.get(&path).copied();
        let failed_bit = self.splits[parent].is_failed(number);
        let known = match child {
            Some(child) => self.splits[child].flags & REPORTED_FAILED != 0,
            None => failed_bit,
        };
        if known {
            return;
        }
        if let Some(child) = child {
            self.splits[child].flags |= REPORTED_FAILED | flags;
            self.splits[child].dirty = true;
        } else if self.splits[parent].kept > 0
            && let Some(active) = self.take_active_task(parent, &path)
        {
            self.splits[parent].open_sum -= active.percent;
            self.splits[parent].kept -= 1;
        }
        if !failed_bit {
            self.splits[parent].set_failed(number);
        }
        self.totals.failed_splits += self.count_as_split(parent, number);
        let reason = failure_summary(&format!("task {path}"), failure);
        self.count_failure(path, failure, attempts);
        if self.totals.on_failure == OnFailure::Stop {
            self.decide(JobStatus::Failed, reason);
        }
        self.check_finished(parent);
    }

    fn count_failure(&mut self, path: String, failure: &ReportFailure, attempts: Option<i32>) {
        let kind = failure_kind(failure);
        self.batch_failed |= failure.item.as_ref().is_some_and(|item| item.batch);
        // Every failure that is kept is one that is counted, so that no more are kept than this
        // allows.
        let counted = self.totals.failed_tasks;
        self.totals.count_failure(&kind);
        if counted < self.most_kept {
            self.kept.insert(path.clone(), kind);
            let in_full = usize::try_from(counted).is_ok_and(|counted| counted < FAILURES_IN_FULL);
            let kept = KeptFailure {
                path: path.clone(),
                since: self.now,
                attempts,
                failure: if in_full {
                    failure.clone()
                } else {
                    bounded(failure)
                },
            };
            self.new_failures.insert(path, kept);
        }
    }

    /// Uncounts the failure of a task that is done after all, `failed_splits` of which was counted
    /// as that of a split. If the failure was not kept, its kind is unknown and stays counted. Once
    /// the job has failed, its failures stay: they are the reason.
    pub(super) fn take_failure_back(&mut self, parent: usize, number: u32, failed_splits: i64) {
        if self.is_decided() && !self.is_completed() {
            return;
        }
        self.totals.failed_tasks -= 1;
        self.totals.failed_splits -= failed_splits;
        let path = self.child_path(parent, number);
        let Some(kind) = self.kept.remove(&path) else {
            return;
        };
        self.totals.uncount_kind(&kind);
        if self.new_failures.remove(&path).is_none() {
            self.gone_failures.push(path);
        }
    }

    /// Checks whether every subtask of a split is done or has failed. If so, marks the split in its
    /// parent, or decides on the outcome of the job.
    pub(super) fn check_finished(&mut self, at: usize) {
        let split = &self.splits[at];
        let Some(size) = split.size else { return };
        let (parent, number) = (split.parent, split.number);
        if split.flags & CONFLICT != 0 || split.is_contradictory() {
            return;
        }
        if split.done == size {
            let Some(parent) = parent else {
                self.decide(JobStatus::Completed, "every task is done".to_owned());
                return;
            };
            let (percent, was_reported) = (split.percent, split.flags & REPORTED_FAILED != 0);
            // Whatever was stated: these are its items.
            let exact = Counts {
                total: split.items,
                ..Counts::default()
            };
            let change = exact - split.counts.seen_from_above();
            self.add_counts(parent, change);
            self.splits[at].closed = true;
            let above = &mut self.splits[parent];
            above.kept -= 1;
            above.open_sum -= percent;
            if above.is_failed(number) {
                above.clear_failed(number);
            }
            above.set_done(number);
            if was_reported {
                self.take_failure_back(parent, number, 1);
            }
            self.check_finished(parent);
        } else if split.done + split.failed == size {
            match parent {
                None => {
                    let (status, reason) = self.outcome_of_all();
                    self.decide(status, reason);
                }
                Some(parent) if !self.splits[parent].is_failed(number) => {
                    self.splits[parent].set_failed(number);
                    self.check_finished(parent);
                }
                Some(_) => {}
            }
        }
    }

    pub(super) fn decide(&mut self, status: JobStatus, reason: String) {
        if self.is_decided() {
            return;
        }
        if status == JobStatus::Failed {
            // Later events of the same batch must not change the percentage.
            self.roll_percentages_up();
        }
        self.decision = Some((status, reason));
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

    fn take_active_task(&mut self, parent: usize, path: &str) -> Option<ActiveTask> {
        let active = self.active_tasks.get_mut(path)?.now.take()?;
        self.add_counts(parent, -Counts::of_active_task(active.retrying));
        Some(active)
    }

    /// Keeps what a splitter announces about its split.
    fn announce(&mut self, at: usize, stated: Option<&Announced>, digest: Option<SourceDigest>) {
        let was_stated = self.splits[at].counts.is_stated();
        if let Some(Announced { batches, items }) = stated {
            let items = items.map(|items| i64::try_from(items).unwrap_or(i64::MAX));
            let batches = *batches;
            self.state(at, Statement { batches, items });
        }
        self.see_source(at, digest, was_stated);
    }

    /// Keeps what a splitter states about its split.
    fn state(&mut self, at: usize, statement: Statement) {
        if !self.splits[at].closed {
            let slots = self.splits[at].slots();
            self.recount(at, slots, |counts| counts.state(statement));
        }
    }

    /// Counts a subtask that has turned out to be a split, or uncounts it. The final subtask is no
    /// item, and needs no replacement.
    fn count_opened(&mut self, parent: usize, number: u32, change: i64) {
        let split = &self.splits[parent];
        if split.size != Some(number) {
            let slots = split.slots();
            self.recount(parent, slots, |counts| counts.count_opened(change));
        }
    }

    /// Returns whether a subtask is, or was, a split that counted as one; called when it turns out
    /// to be the final subtask.
    fn is_split(&self, at: usize, number: u32) -> bool {
        let split = &self.splits[at];
        if split.is_done(number) {
            split.counted != number
        } else {
            self.by_path.contains_key(&self.child_path(at, number))
        }
    }

    /// Changes what a split contributes itself to the counts. `slots` is the number of its subtasks
    /// before the change.
    fn recount(&mut self, at: usize, slots: u32, change: impl FnOnce(&mut SplitCounts)) {
        let split = &mut self.splits[at];
        let (slots, parent) = ((slots, split.slots()), split.parent);
        let before = split.counts.seen_from_above();
        split.counts.change(slots, change);
        let change = split.counts.seen_from_above() - before;
        split.dirty = true;
        if let Some(parent) = parent {
            self.add_counts(parent, change);
        }
    }

    /// Adds a change of the counts to a split and to those above it.
    fn add_counts(&mut self, at: usize, mut change: Counts) {
        let mut next = Some(at);
        while let Some(at) = next
            && change != Counts::default()
        {
            let split = &mut self.splits[at];
            let before = split.counts.seen_from_above();
            split.counts.add(change);
            change = split.counts.seen_from_above() - before;
            split.dirty = true;
            next = split.parent;
        }
    }

    pub(super) fn child_path(&self, parent: usize, number: u32) -> String {
        let mut path = self.splits[parent].path.clone();
        extend(&mut path, number);
        path
    }
}

/// Describes a failure in one sentence, for the history of the job.
fn failure_summary(task: &str, failure: &ReportFailure) -> String {
    let kind = failure.failure_id.as_deref().unwrap_or(UNNAMED_FAILURE);
    let summary = match &failure.failure_message {
        Some(message) => format!("{task} has failed: {kind}: {message}"),
        None => format!("{task} has failed: {kind}"),
    };
    // PostgreSQL rejects text with a zero character, which must not make a flush fail.
    summary.chars().filter(|c| *c != '\0').take(500).collect()
}
