//! Reads the subtasks of one split, a stretch at a time.

use std::collections::{BTreeMap, BTreeSet};

use contract::rest::SubtaskState;

use super::fold::{Mark, Marks};
use crate::Store;
use crate::db::sql::views::{FailedBelow, Siblings};
use crate::db::{JobRow, Result, sql};
use crate::ledger::{ACTIVE_TASK, ActiveTask, CHUNK, NodeKey, NodeRow, path_of, position};

/// The number of chunks that are read at a time.
const CHUNKS: i32 = 64;
/// The number of subtasks that are looked up one by one. Beyond it, those with rows are searched
/// below the split.
const KEYS: usize = 256;
/// The number of subtasks with rows of their own, or with failures, that are read at a time.
const ALONE: u32 = 1000;

/// An open split.
#[derive(Debug)]
pub struct Level {
    pub path: Vec<u32>,
    /// The number of the last subtask that is known.
    top: u32,
    /// Whether subtasks have rows of their own.
    has_nodes: bool,
    /// The number of the final subtask, once it is known.
    mark: Option<u32>,
    /// Whether all others have ended.
    others_ended: bool,
}

/// Siblings in the same state, or one task with what is stored of it.
#[derive(Debug, Clone)]
pub struct Group {
    pub first: u32,
    pub last: u32,
    pub state: SubtaskState,
    /// What is stored of the one task beside its bits.
    pub alone: Option<Box<Alone>>,
}

/// What is stored of one task.
#[derive(Debug, Clone, Default)]
pub struct Alone {
    pub node: Option<NodeRow>,
    /// Whether its own failure is kept.
    pub own_failure: bool,
    /// How many failures below it are kept.
    pub failures_below: i64,
}

/// A stretch of subtasks.
#[derive(Debug)]
pub struct Stretch {
    pub groups: Vec<Group>,
    /// The number of the last subtask that was read.
    pub last: u32,
}

impl Alone {
    pub fn split(&self) -> Option<&NodeRow> {
        self.node.as_ref().filter(|node| node.chunk == 0)
    }
}

impl Level {
    /// Returns the split that this row stores.
    pub fn of_row(path: Vec<u32>, row: &NodeRow) -> Self {
        let known = row.size.unwrap_or(row.top).max(0);
        let others = row.size.map(|size| size - 1);
        Self {
            path,
            mark: row.final_number(),
            others_ended: others.is_some_and(|all| row.done_count + row.failed_count >= all),
            top: u32::try_from(known).unwrap_or(0),
            has_nodes: row.kept > 0,
        }
    }

    /// Returns whether there is no subtask behind this number.
    pub const fn ends_at(&self, number: u32) -> bool {
        number >= self.top
    }

    /// Reads subtasks from this number on.
    pub async fn read(&self, store: &Store, job: &JobRow, first: u32) -> Result<Stretch> {
        let (chunk, _) = position(first);
        let last_chunk = chunk.saturating_add(CHUNKS - 1).min(position(self.top).0);
        let end = (u32::try_from(last_chunk).unwrap_or(0) + 1) * CHUNK;
        let path = path_of(self.path.iter().copied());
        let keys: Vec<NodeKey> = (chunk..=last_chunk).map(|at| (path.clone(), at)).collect();
        let nodes =
            sql::ledger::nodes(&mut store.database.reader().await?, job.incarnation, &keys).await?;
        let marks = Marks::of_rows(nodes);
        let mut siblings = Siblings {
            incarnation: job.incarnation,
            parent: &path,
            first,
            last: end.min(self.top),
        };
        let nodes = self.nodes(store, &marks, &mut siblings).await?;
        let failed = failed(store, job, &mut siblings).await?;
        let mut alone: BTreeMap<u32, Alone> = BTreeMap::new();
        for (number, node) in nodes {
            alone.entry(number).or_default().node = Some(node);
        }
        for of in failed {
            let entry = alone.entry(of.number).or_default();
            (entry.own_failure, entry.failures_below) = (of.own, of.below);
        }
        // The stretch may have become shorter; and what is done has nothing to show.
        alone.retain(|number, _| *number <= siblings.last && marks.of(*number) != Mark::Done);
        let numbers: BTreeSet<u32> = alone.keys().copied().collect();
        let is_over = job.status.is_finished();
        let shown = match self.mark {
            Some(mark) if mark == siblings.last && !numbers.contains(&mark) => {
                self.last_shown(marks.of(mark), is_over)
            }
            _ => siblings.last,
        };
        let runs = marks.runs(first, shown, &numbers).into_iter();
        let groups = runs.map(|run| {
            let alone = alone.remove(&run.first);
            Group {
                first: run.first,
                last: run.last,
                state: state(run.mark, alone.as_ref(), is_over),
                alone: alone.map(Box::new),
            }
        });
        Ok(Stretch {
            groups: groups.collect(),
            last: siblings.last,
        })
    }

    /// Returns the number of the last subtask that is shown of a stretch to the end, by the mark of
    /// the final one. The final subtask says that the split itself is done, and is no task of its
    /// own. It is shown if it has failed, or if the job waits for nothing else here.
    fn last_shown(&self, mark: Mark, is_over: bool) -> u32 {
        let is_shown = match mark {
            Mark::Failed => true,
            Mark::Open => self.others_ended && !is_over,
            Mark::Done => false,
        };
        if is_shown { self.top } else { self.top - 1 }
    }

    /// Reads the rows of subtasks that are not done. Shortens the stretch if there are too many.
    async fn nodes(
        &self,
        store: &Store,
        marks: &Marks,
        siblings: &mut Siblings<'_>,
    ) -> Result<Vec<(u32, NodeRow)>> {
        if !self.has_nodes {
            return Ok(Vec::new());
        }
        let Some(numbers) = marks.not_done(siblings.first, siblings.last, KEYS) else {
            let rows =
                sql::views::child_nodes(&mut store.database.reader().await?, *siblings, ALONE)
                    .await?;
            let rows: Vec<_> = rows
                .into_iter()
                .filter_map(|row| Some((own_number(&row)?, row)))
                .collect();
            shorten(siblings, rows.len(), rows.last().map(|(number, _)| *number));
            return Ok(rows);
        };
        let keys: Vec<NodeKey> = numbers
            .iter()
            .flat_map(|number| {
                let path = path_of(self.path.iter().copied().chain([*number]));
                [(path.clone(), ACTIVE_TASK), (path, 0)]
            })
            .collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sql::ledger::nodes(
            &mut store.database.reader().await?,
            siblings.incarnation,
            &keys,
        )
        .await?;
        let rows = rows.into_iter();
        Ok(rows
            .filter_map(|row| Some((own_number(&row)?, row)))
            .collect())
    }
}

/// Reads which subtasks have failures. Shortens the stretch if there are too many.
async fn failed(
    store: &Store,
    job: &JobRow,
    siblings: &mut Siblings<'_>,
) -> Result<Vec<FailedBelow>> {
    if job.totals.failed_tasks == 0 {
        return Ok(Vec::new());
    }
    let found =
        sql::views::failed_below(&mut store.database.reader().await?, *siblings, ALONE).await?;
    shorten(siblings, found.len(), found.last().map(|last| last.number));
    Ok(found)
}

/// Ends a stretch at the last subtask that was found, if there may be more behind it.
fn shorten(siblings: &mut Siblings<'_>, found: usize, last: Option<u32>) {
    if let Some(last) = last.filter(|_| found >= ALONE as usize) {
        siblings.last = siblings.last.min(last);
    }
}

/// Returns the number of the task of a row among its siblings.
fn own_number(row: &NodeRow) -> Option<u32> {
    row.path.rsplit('.').next()?.parse().ok()
}

/// Returns the state of a task. Nobody waits for the tasks of a job that is over.
fn state(mark: Mark, alone: Option<&Alone>, is_over: bool) -> SubtaskState {
    match mark {
        Mark::Done => return SubtaskState::Done,
        Mark::Failed => return SubtaskState::Failed,
        Mark::Open => {}
    }
    let Some(node) = alone.and_then(|alone| alone.node.as_ref()) else {
        return SubtaskState::Waiting;
    };
    if node.chunk == 0 && node.is_reported_failed() {
        return SubtaskState::Failed;
    }
    if is_over {
        SubtaskState::Waiting
    } else if node.chunk == ACTIVE_TASK && ActiveTask::of_row(node).waits() {
        SubtaskState::Retrying
    } else {
        SubtaskState::Running
    }
}
