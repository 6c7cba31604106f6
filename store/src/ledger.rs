//! ★ The ledger: takes tracking events, and computes the new state of a job's tasks. Pure: no
//! database, no clock, no broker.
//!
//! A job is a tree of tasks. Its ledger has a *node* for every open split, with bitmaps of the
//! subtasks that are done and that have failed, and one for every active task, which has reported
//! progress or waits for another attempt. It has no node for any other task. A caller loads the
//! nodes that [`keys_of`] and then [`Ledger::also_needed`] name, applies events, and saves what
//! [`Ledger::finish`] returns.
//!
//! What must stay true:
//! - **Identity, not counting.** An event counts by setting a bit; when the event is repeated, the
//!   bit is set already.
//! - **Independent of order.** Of one task, done beats failed, failed beats retrying, and retrying
//!   beats progress, whichever is reported first. An attempt that runs beats the failed ones before
//!   it, by their numbers. A task that is done is closed: events of it or below it change nothing.
//!   The same holds for the size of a split, which any event with a `*` may report.
//! - **Small.** The rows of a split are deleted once it is done; the only trace is its bit in its
//!   parent.
//! - **Monotone.** The percentage never falls, and is 100 exactly when the job is Completed. The
//!   first outcome of a round is final: of a job that has failed or was cancelled, later events
//!   mark tasks as done and add failures, and change neither its status nor its percentage; of one
//!   that is Completed although tasks have failed ([`tolerance`]), they mark those as done. Only a
//!   person begins another round ([`round`]). What is done stays done in it.
//!
//! # Example
//!
//! A job splits into `1`, `2` and the final `3*`; task `2` splits into `2.1` and the final `2.2*`.
//! Each line is a flush of one event, with the split of the job itself (path `""`) and the node of
//! `2` afterwards.
//!
//! | event | size | top | done | kept | open sum | items | published | node of `2` |
//! |---|---|---|---|---|---|---|---|---|
//! | `1` complete | ? | 1 | 1 | 0 | 0 | 1 | 50.00 % | none |
//! | `2` at 40 % | ? | 2 | 1 | 1 | 40 | 1 | 50.00 % | active task, 40 % |
//! | `2.1` complete | ? | 2 | 1 | 1 | 50 | 2 | 50.00 % | split, 50 % |
//! | `2.2*` complete | ? | 2 | 2 | 0 | 0 | 2 | 66.67 % | none |
//! | `3*` complete | 3 | 3 | 3 | 0 | 0 | 2 | 100 % | none |
//!
//! - The percentage is the mean of the subtasks: 100 for each that is done, and the open sum for
//!   the others. Until the size is known, one subtask more than `top` is assumed. The second event
//!   makes the mean fall to 46.67, so the job continues to publish 50.
//! - `2.1` shows that `2` is a split. A split node replaces the active task, so `kept` stays 1; the
//!   40 % leave the open sum, and the percentage of the new split enters it.
//! - `2.2*` completes the split `2`. Its node is deleted, its percentage leaves the open sum, and
//!   it sets its bit in the parent, which `done` counts.
//! - The items are `1` and `2.1`. A split is no item, and neither is a final subtask. If `3` were
//!   reported complete without its star, it would count as an item until a report with the star
//!   shows that it is final.

mod apply;
mod attempts;
mod bitmap;
mod counts;
mod ended;
mod kept;
mod node;
#[cfg(test)]
mod properties;
mod reopen;
mod round;
mod source;
mod tolerance;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use contract::{JobStatus, OnFailure, Step};

pub use bitmap::{Bits, CHUNK, position};
use counts::SplitCounts;
pub use counts::{Counts, SplitSource, Statement};
pub use kept::{
    ATTEMPTS_OF_A_TASK, FAILURES_IN_FULL, KeptAttempt, KeptFailure, failure_json, failure_kind,
    parse_failure,
};
pub use node::{ACTIVE_TASK, ActiveTask, NodeKey, NodeRow, PERCENT};
use node::{CONFLICT, REPORTED_FAILED, Split};
pub use reopen::Reopening;
pub use round::{counts_in, steps_of};

/// The percentage of a Completed job, in hundredths.
pub const COMPLETE: i32 = 10_000;
/// The highest percentage of any other job, in hundredths.
const ALMOST: i32 = 9_990;
/// The kind of the failure of a split of which reports disagree about the number of subtasks.
pub const CONFLICT_FAILURE: &str = "SPLIT_SIZE_CONFLICT";
/// The kind of the failure of a job that has more items than a job may have.
pub const TOO_MANY_ITEMS: &str = "TOO_MANY_ITEMS";
/// The kind by which failures without an id are counted.
pub const UNNAMED_FAILURE: &str = "Unknown";
/// The kind by which failures are counted whose own kind has no count, because the job has too many
/// kinds.
const OTHER_FAILURES: &str = "Other";
/// The number of kinds of failures that a job counts, besides that of all others. A worker may
/// report a kind of its own for each task.
const KINDS_COUNTED: usize = 1000;

/// The part of the job's own row that the ledger reads and changes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobTotals {
    /// Whether the job ends at the first failure, and how many failures it tolerates.
    pub on_failure: OnFailure,
    /// Hundredths of a percent, as published.
    pub percentage: i32,
    pub completed_items: i64,
    pub failed_tasks: i64,
    /// How many of these are no items ([`tolerance`]).
    pub failed_splits: i64,
    /// The number of failed tasks, by kind of failure.
    pub failure_counts: BTreeMap<String, i64>,
    /// The job's own task, while it is known to run or waits for another attempt, and once the
    /// number of its subtasks is known.
    pub own_task: Option<ActiveTask>,
    /// What is known about the items; `None` before the job's own task is split.
    pub counts: Option<Counts>,
}

impl JobTotals {
    pub fn new(on_failure: OnFailure) -> Self {
        Self {
            on_failure,
            percentage: 0,
            completed_items: 0,
            failed_tasks: 0,
            failed_splits: 0,
            failure_counts: BTreeMap::new(),
            own_task: None,
            counts: None,
        }
    }

    /// Returns the number of items that are done or have failed.
    pub fn ended_items(&self) -> i64 {
        self.completed_items + self.failed_tasks
    }

    /// Counts one more failed task, by the kind of its failure.
    pub fn count_failure(&mut self, kind: &str) {
        self.failed_tasks += 1;
        let counts = &mut self.failure_counts;
        let has_count = counts.len() < KINDS_COUNTED || counts.contains_key(kind);
        let kind = if has_count { kind } else { OTHER_FAILURES };
        *counts.entry(kind.to_owned()).or_default() += 1;
    }

    /// Counts one failure less of this kind.
    fn uncount_kind(&mut self, kind: &str) {
        let counts = &mut self.failure_counts;
        let has_count = counts.contains_key(kind);
        let kind = if has_count { kind } else { OTHER_FAILURES };
        if let Some(count) = counts.get_mut(kind) {
            *count -= 1;
            if *count == 0 {
                counts.remove(kind);
            }
        }
    }
}

/// The changes to save after a batch of events.
#[derive(Debug)]
pub struct Outcome {
    pub totals: JobTotals,
    /// Whether a task has begun, so that a Waiting job becomes Active.
    pub active: bool,
    /// The outcome of the job and its reason, once it is decided.
    pub decision: Option<(JobStatus, String)>,
    /// Whether tasks of the job may still run or wait although it has failed now.
    pub leaves_work: bool,
    pub nodes: NodeChanges,
    pub new_failures: Vec<KeptFailure>,
    pub gone_failures: Vec<String>,
    /// The number of failed attempts of the job that another attempt follows.
    pub failed_attempts: i64,
    pub new_attempts: Vec<KeptAttempt>,
}

/// The changes of a task table. They must be made in the order of the fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// Delete all rows of these paths and of all paths below them.
    pub pruned: Vec<String>,
    /// Delete all rows of these paths; there are none below them.
    pub gone: Vec<String>,
    /// Delete the active-task row of these paths.
    pub inactive: Vec<String>,
    /// Insert or replace these rows.
    pub rows: Vec<NodeRow>,
}

impl NodeChanges {
    pub fn is_empty(&self) -> bool {
        self.pruned.is_empty()
            && self.gone.is_empty()
            && self.inactive.is_empty()
            && self.rows.is_empty()
    }
}

/// The part of one job's ledger that a batch of events touches.
#[derive(Debug)]
pub struct Ledger {
    totals: JobTotals,
    now: i64,
    /// The round of the job.
    round: u32,
    splits: Vec<Split>,
    by_path: HashMap<String, usize>,
    active_tasks: HashMap<String, Slot>,
    /// The kinds of those failures that are kept, by path, which the events may take back.
    kept: HashMap<String, String>,
    /// The number of failures that the job keeps.
    most_kept: i64,
    new_failures: BTreeMap<String, KeptFailure>,
    gone_failures: Vec<String>,
    /// The number of failed attempts of the job that another attempt follows.
    failed_attempts: i64,
    new_attempts: BTreeMap<(String, i32), KeptAttempt>,
    pruned: Vec<String>,
    active: bool,
    /// Whether a batch is among the tasks that have failed now. What it had dispatched may not be
    /// known yet.
    batch_failed: bool,
    decision: Option<(JobStatus, String)>,
    /// How the job ended before this batch of events.
    ended: Option<JobStatus>,
    /// The split of the last event. Most often the next event is of the same split.
    latest: Option<(String, usize)>,
    path: String,
}

/// An active task as loaded and changed; `now` is `None` once it is no longer active.
#[derive(Debug, Default)]
struct Slot {
    now: Option<ActiveTask>,
    stored: bool,
    dirty: bool,
}

/// Returns the keys of the rows that events of these tasks touch: for every split on the path to a
/// task its first row, and the row with the bit of the next step. Of the job's own task, that is
/// the first row of its split.
pub fn keys_of<'a>(tasks: impl Iterator<Item = &'a [Step]>) -> Vec<NodeKey> {
    let mut keys = HashSet::new();
    let mut path = String::new();
    let mut latest: (&[Step], i32) = (&[], -1);
    for steps in tasks {
        let Some((own, parents)) = steps.split_last() else {
            keys.insert((String::new(), 0));
            continue;
        };
        let (chunk, _) = position(own.number);
        if latest == (parents, chunk) {
            continue;
        }
        latest = (parents, chunk);
        path.clear();
        for step in steps {
            let (chunk, _) = position(step.number);
            for chunk in [0, chunk] {
                keys.insert((path.clone(), chunk));
            }
            extend(&mut path, step.number);
        }
    }
    keys.into_iter().collect()
}

impl Ledger {
    /// Returns the ledger of a job that keeps at most `most_kept` failures.
    pub fn new(totals: JobTotals, most_kept: u32, now: i64) -> Self {
        Self {
            totals,
            now,
            round: 1,
            splits: Vec::new(),
            by_path: HashMap::new(),
            active_tasks: HashMap::new(),
            kept: HashMap::new(),
            most_kept: i64::from(most_kept),
            new_failures: BTreeMap::new(),
            gone_failures: Vec::new(),
            failed_attempts: 0,
            new_attempts: BTreeMap::new(),
            pruned: Vec::new(),
            active: false,
            batch_failed: false,
            decision: None,
            ended: None,
            latest: None,
            path: String::new(),
        }
    }

    /// Makes this the ledger of a job in this round.
    #[must_use]
    pub fn in_round(self, round: u32) -> Self {
        Self { round, ..self }
    }

    /// Makes this the ledger of a job that has ended in this status: its outcome and its percentage
    /// stay.
    #[must_use]
    pub fn of_ended_job(self, status: JobStatus) -> Self {
        Self {
            ended: Some(status),
            ..self
        }
    }

    /// Makes this the ledger of a job of which so many attempts have failed before another one.
    #[must_use]
    pub fn with_failed_attempts(self, failed_attempts: i64) -> Self {
        Self {
            failed_attempts,
            ..self
        }
    }

    /// Loads the rows that exist of those that were asked for.
    pub fn load(&mut self, mut rows: Vec<NodeRow>) {
        // Parents first, because a split looks up its parent.
        rows.sort_by_cached_key(|row| (depth(&row.path), row.path.clone(), row.chunk));
        for row in rows {
            if row.chunk == ACTIVE_TASK {
                let slot = Slot {
                    now: Some(ActiveTask::of_row(&row)),
                    stored: true,
                    dirty: false,
                };
                self.active_tasks.insert(row.path, slot);
                continue;
            }
            let at = match self.by_path.get(&row.path) {
                Some(at) => *at,
                None => self.add_split(&row.path),
            };
            self.splits[at].load(&row);
        }
    }

    /// Returns the keys of further rows to load: those of the tasks themselves. Most tasks have
    /// none; the `kept` counter of the parent shows whether one of its subtasks does.
    pub fn also_needed<'a>(&self, tasks: impl Iterator<Item = &'a [Step]>) -> Vec<NodeKey> {
        let mut keys = HashSet::new();
        if self.splits.iter().all(|split| split.kept == 0) {
            return Vec::new();
        }
        let mut path = String::new();
        for steps in tasks {
            path.clear();
            for step in steps {
                let Some(parent) = self.by_path.get(&path) else {
                    break;
                };
                extend(&mut path, step.number);
                if self.splits[*parent].kept == 0 || self.by_path.contains_key(&path) {
                    continue;
                }
                keys.insert((path.clone(), ACTIVE_TASK));
                keys.insert((path.clone(), 0));
            }
        }
        keys.into_iter().collect()
    }

    /// Returns the paths of the failures that events of these tasks may take back; their kinds are
    /// to be loaded. Most often there are none, however many tasks have failed: the bits show which
    /// have.
    pub fn failed_among<'a>(&self, tasks: impl Iterator<Item = &'a [Step]>) -> Vec<String> {
        if self.totals.failed_tasks == 0 {
            return Vec::new();
        }
        let mut paths = HashSet::new();
        let mut path = String::new();
        for steps in tasks {
            path.clear();
            if steps.is_empty() {
                paths.insert(path.clone());
            }
            for step in steps {
                let Some(parent) = self.by_path.get(&path) else {
                    break;
                };
                extend(&mut path, step.number);
                let split = self.by_path.get(&path).map(|at| &self.splits[*at]);
                if self.splits[*parent].is_failed(step.number)
                    || split.is_some_and(|split| split.flags & REPORTED_FAILED != 0)
                {
                    paths.insert(path.clone());
                }
            }
        }
        paths.into_iter().collect()
    }

    /// Loads the kinds of those failures that are kept.
    pub fn load_kept(&mut self, kinds: HashMap<String, String>) {
        self.kept = kinds;
    }

    /// Returns whether the job's outcome is decided. Further events change neither the outcome nor
    /// the percentage.
    pub fn is_decided(&self) -> bool {
        self.outcome().is_some()
    }

    fn outcome(&self) -> Option<JobStatus> {
        let decided = || self.decision.as_ref().map(|(status, _)| *status);
        self.ended.or_else(decided)
    }

    /// Returns whether the job is Completed.
    fn is_completed(&self) -> bool {
        self.outcome() == Some(JobStatus::Completed)
    }

    /// Returns whether the job is Completed and no task has failed. Further events change nothing.
    fn is_all_done(&self) -> bool {
        self.is_completed() && self.totals.failed_tasks == 0
    }

    /// Returns the changes to save.
    pub fn finish(mut self) -> Outcome {
        let root = self.by_path.get("");
        self.know_subtasks(root.and_then(|root| self.splits[*root].size));
        self.conclude_counts();
        self.stop_above_tolerance();
        self.roll_percentages_up();
        let mut nodes = NodeChanges {
            pruned: std::mem::take(&mut self.pruned),
            ..NodeChanges::default()
        };
        if self.ended.is_none() && self.is_all_done() {
            // The whole table is dropped.
            nodes = NodeChanges::default();
        } else {
            for split in &self.splits {
                if split.closed && split.stored {
                    nodes.gone.push(split.path.clone());
                } else if split.dirty && !split.closed {
                    split.rows(&mut nodes.rows);
                }
            }
            for (path, slot) in &self.active_tasks {
                match &slot.now {
                    Some(active) if slot.dirty => nodes.rows.push(active.row(path)),
                    None if slot.stored => nodes.inactive.push(path.clone()),
                    _ => {}
                }
            }
            nodes
                .rows
                .sort_by(|a, b| (&a.path, a.chunk).cmp(&(&b.path, b.chunk)));
        }
        Outcome {
            leaves_work: self.leaves_work(),
            totals: self.totals,
            active: self.active,
            decision: self.decision,
            nodes,
            new_failures: self.new_failures.into_values().collect(),
            gone_failures: self.gone_failures,
            failed_attempts: self.failed_attempts,
            new_attempts: self.new_attempts.into_values().collect(),
        }
    }

    /// Returns whether the job has failed with these events, and tasks of it may still run or wait:
    /// some of its split are neither done nor failed, or a split has failed as a whole.
    fn leaves_work(&self) -> bool {
        let has_failed = matches!(self.decision, Some((JobStatus::Failed, _)));
        let is_split = self.by_path.contains_key("");
        let is_open = is_split && !self.has_all_ended();
        has_failed && (is_open || self.batch_failed || self.totals.failed_splits > 0)
    }

    /// Keeps the number of subtasks of the job's own task, by which it is known which of them
    /// existed once the task table is gone.
    fn know_subtasks(&mut self, subtasks: Option<u32>) {
        let known = self.totals.own_task.as_ref().and_then(|own| own.subtasks);
        if subtasks.is_some() && subtasks != known {
            let own = self.totals.own_task.get_or_insert_with(|| ActiveTask {
                since: self.now,
                ..ActiveTask::default()
            });
            own.subtasks = subtasks;
        }
    }

    /// Computes the percentage of every changed split, deepest first, and adds the difference to
    /// the open sum of its parent. The job publishes the result unless it is lower than before.
    fn roll_percentages_up(&mut self) {
        let mut order: Vec<usize> = (0..self.splits.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.splits[*at].depth));
        for at in order {
            let split = &self.splits[at];
            let value = split.formula();
            if split.closed || !split.dirty || value == split.percent {
                continue;
            }
            let (change, parent) = (value - split.percent, split.parent);
            self.splits[at].percent = value;
            if let Some(parent) = parent {
                self.splits[parent].open_sum += change;
                self.splits[parent].dirty = true;
            }
        }
        if self.is_completed() {
            self.totals.percentage = COMPLETE;
        } else if !self.is_decided()
            && let Some(root) = self.by_path.get("")
        {
            let value = self.splits[*root].percent;
            self.publish(value);
        }
    }

    /// Takes the counts of the job from its own split.
    fn conclude_counts(&mut self) {
        if let Some(root) = self.by_path.get("") {
            self.totals.counts = Some(self.splits[*root].counts.seen_from_above());
        }
    }

    fn publish(&mut self, percent: i64) {
        let hundredths = (percent + PERCENT / 200) * 100 / PERCENT;
        let hundredths = i32::try_from(hundredths).unwrap_or(0).min(ALMOST);
        self.totals.percentage = self.totals.percentage.max(hundredths);
    }

    /// Adds a split. Its parent must have been added before.
    fn add_split(&mut self, path: &str) -> usize {
        let (parent, number) = match path.rsplit_once('.') {
            Some((parent, number)) => (self.by_path.get(parent).copied(), number),
            None if path.is_empty() => (None, ""),
            None => (self.by_path.get("").copied(), path),
        };
        let at = self.splits.len();
        let depth = depth(path);
        let number = number.parse().unwrap_or_default();
        self.splits.push(Split {
            path: path.to_owned(),
            parent,
            number,
            depth,
            counts: SplitCounts::new(),
            ..Split::default()
        });
        self.by_path.insert(path.to_owned(), at);
        at
    }
}

/// Returns the number of steps of a path.
fn depth(path: &str) -> usize {
    if path.is_empty() {
        0
    } else {
        path.bytes().filter(|b| *b == b'.').count() + 1
    }
}

/// Appends a step to a path.
pub fn extend(path: &mut String, number: u32) {
    if !path.is_empty() {
        path.push('.');
    }
    // Writing to a string cannot fail.
    let _ = write!(path, "{number}");
}

/// Returns the path of a task, in the form that rows have.
pub fn path_of(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut path = String::new();
    for number in numbers {
        extend(&mut path, number);
    }
    path
}
