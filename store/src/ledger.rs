//! ★ The ledger: tracking events in, the new state of a job's tasks out. Pure: no database, no clock, no broker.
//!
//! A job is a tree of tasks. Its ledger has a *place* for every split that is open (bitmaps of its children that are done
//! and that have failed) and one for every task that is under way or waits to be tried again; nothing else. A caller
//! loads the places that [`keys_of`] and then [`Ledger::also_needed`] name, applies events, and stores what
//! [`Ledger::finish`] gives back.
//!
//! What must stay true:
//! - **Identity, not counting.** An event counts by setting a bit; an event that comes again finds the bit set.
//! - **Order-free.** For one task, done beats failed beats retrying beats progress, whichever is heard first. A place that is
//!   done is closed: events at or below it change nothing. So is the size of a split, which any `*` may tell.
//! - **Small.** A split that is done gives up its rows; its bit in its parent is all that is left.
//! - **Monotone.** The percentage never falls and is 100 exactly when the job is Completed. The first outcome stays.

mod apply;
mod node;
#[cfg(test)]
mod properties;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use contract::{JobStatus, OnFailure, ReportFailure, Step};

pub use node::{ACTIVE_TASK, ActiveTask, NodeKey, NodeRow, PERCENT, position};
use node::{CONFLICT, REPORTED_FAILED, Split};

/// The published percentage, in hundredths: of a job that is Completed, and the most of any other.
pub const COMPLETE: i32 = 10_000;
const ALMOST: i32 = 9_990;
/// How many failures of a job are kept in full.
pub const FAILURES_KEPT: usize = 100;
/// What the failure of a split with contradicting parts is called.
pub const CONFLICT_FAILURE: &str = "SPLIT_SIZE_CONFLICT";
/// How failures are counted that have no id.
pub const UNNAMED_FAILURE: &str = "Unknown";

/// What the ledger reads and changes of the job itself.
#[derive(Debug, Clone, PartialEq)]
pub struct JobTotals {
    pub on_failure: OnFailure,
    /// Hundredths of a percent, as published.
    pub percentage: i32,
    pub completed_items: i64,
    pub failed_tasks: i64,
    pub failure_counts: BTreeMap<String, i64>,
    /// The job's own task, while it waits to be tried again.
    pub own_task: Option<ActiveTask>,
}

impl JobTotals {
    pub fn new(on_failure: OnFailure) -> Self {
        Self {
            on_failure,
            percentage: 0,
            completed_items: 0,
            failed_tasks: 0,
            failure_counts: BTreeMap::new(),
            own_task: None,
        }
    }

    /// Counts one more failed task, by the kind of its failure.
    pub fn count_failure(&mut self, kind: &str) {
        self.failed_tasks += 1;
        *self.failure_counts.entry(kind.to_owned()).or_default() += 1;
    }
}

/// Returns the kind by which a failure is counted.
pub fn failure_kind(failure: &ReportFailure) -> String {
    failure
        .failure_id
        .clone()
        .unwrap_or_else(|| UNNAMED_FAILURE.to_owned())
}

/// A failure that is kept in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFailure {
    /// Which task; empty for the job's own.
    pub path: String,
    pub since: i64,
    pub attempts: Option<i32>,
    pub failure: ReportFailure,
}

/// What is to be stored after a batch of events.
#[derive(Debug)]
pub struct Outcome {
    pub totals: JobTotals,
    /// Something has begun: a job that waits is active now.
    pub active: bool,
    /// What the job has come to, and why.
    pub decision: Option<(JobStatus, String)>,
    pub nodes: NodeChanges,
    pub new_failures: Vec<KeptFailure>,
    pub gone_failures: Vec<String>,
}

/// Changes of a task table, to be made in the order of the fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// Paths of which all rows go, and all rows below them.
    pub pruned: Vec<String>,
    /// Paths of which all rows go; there is nothing below.
    pub gone: Vec<String>,
    /// Paths of exceptional tasks that are exceptional no more.
    pub inactive: Vec<String>,
    /// Rows that are new or have changed.
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

/// The touched part of one job's ledger.
#[derive(Debug)]
pub struct Ledger {
    totals: JobTotals,
    now: i64,
    splits: Vec<Split>,
    by_path: HashMap<String, usize>,
    exceptions: HashMap<String, Slot>,
    /// The failures that are kept, with their kinds.
    kept: HashMap<String, String>,
    new_failures: BTreeMap<String, KeptFailure>,
    gone_failures: Vec<String>,
    pruned: Vec<String>,
    active: bool,
    decision: Option<(JobStatus, String)>,
    /// The split that the last event was about: events come in runs.
    latest: Option<(String, usize)>,
    path: String,
}

/// An exceptional task as loaded and changed.
#[derive(Debug, Default)]
struct Slot {
    now: Option<ActiveTask>,
    stored: bool,
    dirty: bool,
}

/// The rows that events at these tasks are about: of every split on the way its header, and the bits of the next step.
pub fn keys_of<'a>(tasks: impl Iterator<Item = &'a [Step]>) -> Vec<NodeKey> {
    let mut keys = HashSet::new();
    let mut path = String::new();
    let mut latest: (&[Step], i32) = (&[], -1);
    for steps in tasks {
        let Some((own, parents)) = steps.split_last() else {
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
    pub fn new(totals: JobTotals, kept: HashMap<String, String>, now: i64) -> Self {
        Self {
            totals,
            now,
            splits: Vec::new(),
            by_path: HashMap::new(),
            exceptions: HashMap::new(),
            kept,
            new_failures: BTreeMap::new(),
            gone_failures: Vec::new(),
            pruned: Vec::new(),
            active: false,
            decision: None,
            latest: None,
            path: String::new(),
        }
    }

    /// Takes in rows that were asked for; those that do not exist are simply not given.
    pub fn load(&mut self, mut rows: Vec<NodeRow>) {
        // Parents first, so that every split finds its own.
        rows.sort_by_cached_key(|row| (depth(&row.path), row.path.clone(), row.chunk));
        for row in rows {
            if row.chunk == ACTIVE_TASK {
                let slot = Slot {
                    now: Some(ActiveTask::of_row(&row)),
                    stored: true,
                    dirty: false,
                };
                self.exceptions.insert(row.path, slot);
                continue;
            }
            let at = match self.by_path.get(&row.path) {
                Some(at) => *at,
                None => self.add_split(&row.path),
            };
            self.splits[at].load(&row);
        }
    }

    /// What must be loaded besides: the rows of tasks themselves. Only asked for where a parent says that it has such children.
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

    /// Whether the job's outcome is decided: further events change nothing.
    pub fn is_decided(&self) -> bool {
        self.decision.is_some()
    }

    /// What is to be stored.
    pub fn finish(mut self) -> Outcome {
        self.roll_percentages_up();
        let mut nodes = NodeChanges {
            pruned: std::mem::take(&mut self.pruned),
            ..NodeChanges::default()
        };
        let completed = matches!(self.decision, Some((JobStatus::Completed, _)));
        if completed {
            // The whole table goes.
            nodes = NodeChanges::default();
        } else {
            for split in &self.splits {
                if split.closed && split.stored {
                    nodes.gone.push(split.path.clone());
                } else if split.dirty && !split.closed {
                    split.rows(&mut nodes.rows);
                }
            }
            for (path, slot) in &self.exceptions {
                match &slot.now {
                    Some(exception) if slot.dirty => nodes.rows.push(exception.row(path)),
                    None if slot.stored => nodes.inactive.push(path.clone()),
                    _ => {}
                }
            }
            nodes
                .rows
                .sort_by(|a, b| (&a.path, a.chunk).cmp(&(&b.path, b.chunk)));
        }
        Outcome {
            totals: self.totals,
            active: self.active,
            decision: self.decision,
            nodes,
            new_failures: self.new_failures.into_values().collect(),
            gone_failures: self.gone_failures,
        }
    }

    /// Every changed split tells its parent what it contributes now, deepest first; the job publishes what is no less than before.
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
        match self.decision {
            Some((JobStatus::Completed, _)) => self.totals.percentage = COMPLETE,
            _ => {
                if let Some(root) = self.by_path.get("") {
                    let value = self.splits[*root].percent;
                    self.publish(value);
                }
            }
        }
    }

    fn publish(&mut self, percent: i64) {
        let hundredths = (percent + PERCENT / 200) * 100 / PERCENT;
        let hundredths = i32::try_from(hundredths).unwrap_or(0).min(ALMOST);
        self.totals.percentage = self.totals.percentage.max(hundredths);
    }

    /// A split for a path whose parent, if it has one, is there already.
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
            ..Split::default()
        });
        self.by_path.insert(path.to_owned(), at);
        at
    }
}

/// How many steps a path has.
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
    // Writing to a text cannot fail.
    let _ = write!(path, "{number}");
}

/// The path of a task, as rows have it.
pub fn path_of(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut path = String::new();
    for number in numbers {
        extend(&mut path, number);
    }
    path
}
