//! Walks through the tasks of a job in the order of their paths, and collects a page of them.

use std::collections::{HashMap, VecDeque};

use contract::rest::{Failure, ListedTask, SubtaskState, TaskEntry};

use super::entry_of_range;
use super::level::{Alone, Group, Level};
use super::query::{TaskCursor, TaskQuery};
use crate::Store;
use crate::db::{JobRow, Result, sql};
use crate::ledger::{ACTIVE_TASK, ActiveTask, KeptFailure, NodeKey, NodeRow, PERCENT, path_of};

/// The number of stretches that a page may read.
const READINGS: u32 = 256;
/// The number of failures that a page may have. Each has about 3 KiB at most, so a page of them has
/// about 256 KiB.
const FAILURES: usize = 80;

/// A walk, which stands somewhere in the tree.
pub struct Walk<'s> {
    store: &'s Store,
    job: &'s JobRow,
    query: &'s TaskQuery,
    /// The pass: see [`TaskCursor::pass`].
    pass: u8,
    /// The splits on the way to where it stands.
    frames: Vec<Frame>,
    found: Vec<Found>,
    /// How many of these have failed by themselves.
    failures: usize,
    readings: u32,
}

struct Frame {
    level: Level,
    /// The number of the last subtask that the walk has passed.
    passed: u32,
    /// The number of the last subtask that was read.
    read: u32,
    /// What was read and not passed.
    groups: VecDeque<Group>,
}

/// What a page has.
struct Found {
    under: Vec<u32>,
    group: Group,
}

impl Frame {
    const fn new(level: Level, passed: u32) -> Self {
        Self {
            level,
            passed,
            read: passed,
            groups: VecDeque::new(),
        }
    }
}

impl<'s> Walk<'s> {
    pub const fn new(store: &'s Store, job: &'s JobRow, query: &'s TaskQuery) -> Self {
        Self {
            store,
            job,
            query,
            pass: 0,
            frames: Vec::new(),
            found: Vec::new(),
            failures: 0,
            readings: 0,
        }
    }

    /// Goes to the place where the page begins. Returns false if the task has no open split.
    pub async fn begin(&mut self) -> Result<bool> {
        let under = &self.query.under;
        let place = self.query.after.clone();
        let place = place.unwrap_or_else(|| TaskCursor {
            pass: 0,
            path: under.clone(),
            number: 0,
        });
        self.pass = place.pass;
        let depths = under.len()..=place.path.len();
        let path_at = |depth: usize| path_of(place.path[..depth].iter().copied());
        let keys: Vec<NodeKey> = depths.clone().map(|depth| (path_at(depth), 0)).collect();
        let db = &mut self.store.database.reader().await?;
        let nodes = sql::ledger::nodes(db, self.job.incarnation, &keys).await?;
        let nodes: HashMap<&str, &NodeRow> =
            nodes.iter().map(|row| (row.path.as_str(), row)).collect();
        for depth in depths {
            // A split that is done by now has nothing more to show, and nothing below it.
            let Some(row) = nodes.get(path_at(depth).as_str()) else {
                break;
            };
            let passed = place.path.get(depth).copied().unwrap_or(place.number);
            let level = Level::of_row(place.path[..depth].to_vec(), row);
            self.frames.push(Frame::new(level, passed));
        }
        Ok(!self.frames.is_empty())
    }

    /// Returns the page, and where the next one begins if there may be more.
    pub async fn page(mut self) -> Result<(Vec<TaskEntry>, Option<String>)> {
        let next = self.collect().await?;
        let entries = self.entries().await?;
        Ok((entries, next.map(|next| next.to_string())))
    }

    async fn collect(&mut self) -> Result<Option<TaskCursor>> {
        let limit = self.query.limit.max(1);
        loop {
            let is_first = self.frames.len() == 1;
            let Some(frame) = self.frames.last_mut() else {
                return Ok(None);
            };
            if let Some(group) = frame.groups.pop_front() {
                let is_split = group.alone.as_ref().and_then(|alone| alone.split());
                let is_opened = |row: &&NodeRow| self.query.deep && self.query.may_find_below(row);
                let below = is_split.filter(is_opened).map(|row| {
                    let path = [&frame.level.path[..], &[group.first]].concat();
                    Frame::new(Level::of_row(path, row), 0)
                });
                if self.query.wants(group.state) && of_pass(self.pass, self.query, &group) {
                    let under = frame.level.path.clone();
                    let is_full = self.found.len() >= limit || self.failures >= FAILURES;
                    if !continues(self.found.last(), &under, &group) && is_full {
                        return Ok(Some(self.place()));
                    }
                    frame.passed = group.last;
                    self.add(under, group);
                } else {
                    frame.passed = group.last;
                }
                self.frames.extend(below);
            } else if !frame.level.ends_at(frame.read) {
                if self.found.len() >= limit || self.readings >= READINGS {
                    return Ok(Some(self.place()));
                }
                let stretch = frame
                    .level
                    .read(self.store, self.job, frame.read + 1)
                    .await?;
                frame.groups.extend(stretch.groups);
                frame.read = stretch.last;
                self.readings += 1;
            } else if is_first && self.query.failed_first && self.pass == 0 {
                // Once more, for the tasks that have not failed.
                self.pass = 1;
                (frame.passed, frame.read) = (0, 0);
            } else {
                self.frames.pop();
            }
        }
    }

    /// Returns where the walk stands.
    fn place(&self) -> TaskCursor {
        let (path, number) = self
            .frames
            .last()
            .map(|frame| (frame.level.path.clone(), frame.passed))
            .unwrap_or_default();
        TaskCursor {
            pass: self.pass,
            path,
            number,
        }
    }

    fn add(&mut self, under: Vec<u32>, group: Group) {
        if continues(self.found.last(), &under, &group)
            && let Some(last) = self.found.last_mut()
        {
            last.group.last = group.last;
        } else {
            let alone = group.alone.as_ref();
            self.failures += usize::from(alone.is_some_and(|alone| alone.own_failure));
            self.found.push(Found { under, group });
        }
    }

    /// Returns what was found as the API shows it, with the failures.
    async fn entries(&mut self) -> Result<Vec<TaskEntry>> {
        let found = std::mem::take(&mut self.found);
        let has_failure = |found: &&Found| {
            let alone = found.group.alone.as_ref();
            alone.is_some_and(|alone| alone.own_failure)
        };
        let paths: Vec<String> = found.iter().filter(has_failure).map(Found::path).collect();
        let kept = if paths.is_empty() {
            Vec::new()
        } else {
            let db = &mut self.store.database.reader().await?;
            sql::views::failures_at(db, self.job.incarnation, &paths).await?
        };
        let mut kept: HashMap<String, KeptFailure> = kept
            .into_iter()
            .map(|kept| (kept.path.clone(), kept))
            .collect();
        let marks = self.rows_of_finals(&found).await?;
        let entry = |found: Found| {
            let Group {
                first, last, state, ..
            } = found.group;
            match &found.group.alone {
                None => entry_of_range(&found.under, (first, last), state),
                Some(alone) => {
                    let path = found.path();
                    let failure = kept.remove(&path);
                    let with_final = marks.get(&path);
                    let task = describe(path, state, alone, failure, with_final);
                    TaskEntry::Task(Box::new(task))
                }
            }
        };
        Ok(found.into_iter().map(entry).collect())
    }

    /// Reads the rows with the final subtasks of those splits that are too wide for one row, by
    /// their paths.
    async fn rows_of_finals(&self, found: &[Found]) -> Result<HashMap<String, NodeRow>> {
        let splits = found
            .iter()
            .filter_map(|it| it.group.alone.as_ref()?.split());
        let keys: Vec<NodeKey> = splits.filter_map(NodeRow::row_of_final).collect();
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let db = &mut self.store.database.reader().await?;
        let nodes = sql::ledger::nodes(db, self.job.incarnation, &keys).await?;
        Ok(nodes
            .into_iter()
            .map(|row| (row.path.clone(), row))
            .collect())
    }
}

impl Found {
    /// Returns the path of the one task.
    fn path(&self) -> String {
        path_of(self.under.iter().copied().chain([self.group.first]))
    }
}

/// Returns whether a group belongs to this pass.
fn of_pass(pass: u8, query: &TaskQuery, group: &Group) -> bool {
    if !query.failed_first {
        return true;
    }
    let has_failed_below = group.alone.as_ref().is_some_and(|alone| {
        alone.failures_below > 0 || alone.split().is_some_and(|split| split.failed_count > 0)
    });
    let has_failed = group.state == SubtaskState::Failed || has_failed_below;
    has_failed == (pass == 0)
}

/// Returns whether a group is the rest of a range whose beginning ended the stretch before.
fn continues(last: Option<&Found>, under: &[u32], group: &Group) -> bool {
    last.is_some_and(|last| {
        last.under == under
            && last.group.state == group.state
            && last.group.alone.is_none()
            && group.alone.is_none()
            && last.group.last + 1 == group.first
    })
}

fn describe(
    path: String,
    state: SubtaskState,
    alone: &Alone,
    failure: Option<KeptFailure>,
    with_final: Option<&NodeRow>,
) -> ListedTask {
    let mut task = ListedTask {
        failures_below: alone.failures_below,
        ..ListedTask::new(path.clone(), state)
    };
    if let Some(node) = &alone.node {
        task.progress = progress(i64::from(node.percent));
        if node.chunk == ACTIVE_TASK {
            let active = ActiveTask::of_row(node);
            task.since = Some(active.since);
            task.attempts = active.attempts;
            task.failure = active
                .failure
                .map(|failure| Failure::of_task(path, failure));
        } else {
            let done = node.parts_done(with_final);
            task.subtasks = node.final_number().map(|mark| i64::from(mark) - 1);
            task.completed_subtasks = Some(done);
            if let Some(percent) = node.parts_percent(done) {
                task.progress = progress(percent);
            }
        }
    }
    if let Some(kept) = failure {
        task.since = Some(kept.since);
        task.attempts = kept.attempts();
        task.failure = Some(Failure::of_task(kept.path, kept.failure));
    }
    task.label = task
        .failure
        .as_ref()
        .and_then(|failure| failure.label.clone());
    task
}

/// Returns a percentage with two decimals, if it is above 0.
fn progress(millionths: i64) -> Option<f64> {
    let hundredths = millionths * 100 / PERCENT;
    let hundredths = u32::try_from(hundredths).ok().filter(|h| *h > 0)?;
    Some(f64::from(hundredths) / 100.0)
}
