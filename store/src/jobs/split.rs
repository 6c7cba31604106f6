//! Reads what a later round needs of a split that is made again: from what it was made, and which
//! of its subtasks are done.

use contract::{SplitState, SubtaskRange};

use crate::db::sql;
use crate::job_row::JobRow;
use crate::ledger::{Bits, CHUNK, NodeRow, SplitSource, extend, path_of, position};
use crate::life::{Asked, AskedJob};
use crate::{Result, Store};

/// The most chunks of bits that one answer tells about.
const CHUNKS: i32 = 16;
/// The most ranges in one answer.
const RANGES: usize = 1000;
/// The highest number of a subtask.
const LAST: u32 = i32::MAX.unsigned_abs();

impl Store {
    /// Returns what is known of a split, named by the numbers on the path from the job to it, and
    /// which of its subtasks behind the number `after` are done.
    ///
    /// The answer is bounded; [`SplitState::up_to`] says how far it goes.
    pub async fn split(
        &self,
        job: AskedJob<'_>,
        path: &[u32],
        after: u32,
    ) -> Result<Asked<SplitState>> {
        let asked = self.asked_job(job).await?;
        let Asked::Found(row) = asked else {
            return Ok(asked.map(|_| SplitState::default()));
        };
        let from = position(after.saturating_add(1)).0;
        let chunks = from..=from.saturating_add(CHUNKS - 1);
        let nodes = self.nodes_of_split(&row, path, chunks.clone()).await?;
        let ways = || (0..path.len()).map(|depth| (&path[..depth], path[depth]));
        let is_done = ways().any(|(above, number)| {
            let (chunk, bit) = position(number);
            let row = find(&nodes, &path_of(above.iter().copied()), chunk);
            row.is_some_and(|row| row.bits().get(bit))
        });
        if row.status == contract::JobStatus::Completed || is_done {
            return Ok(Asked::Found(completed()));
        }
        let own = path_of(path.iter().copied());
        let Some(split) = find(&nodes, &own, 0) else {
            return Ok(Asked::Found(SplitState::default()));
        };
        let source = split.source().filter(|source| !source.unstated);
        let mut state = described(source);
        if let Some(SplitSource {
            contradictory: false,
            ..
        }) = source
        {
            let bits = chunks.map(|chunk| {
                let row = find(&nodes, &own, chunk);
                (chunk, row.map(NodeRow::bits).unwrap_or_default())
            });
            add_done(&mut state, bits, after, split.size.unwrap_or(split.top));
        }
        Ok(Asked::Found(state))
    }

    /// Reads the nodes on the path to a split, and these chunks of it, as they are at one moment.
    async fn nodes_of_split(
        &self,
        job: &JobRow,
        path: &[u32],
        chunks: impl Iterator<Item = i32>,
    ) -> Result<Vec<NodeRow>> {
        if !job.task_table {
            return Ok(Vec::new());
        }
        let (mut keys, mut id) = (Vec::new(), String::new());
        for number in path {
            keys.push((id.clone(), position(*number).0));
            extend(&mut id, *number);
        }
        keys.push((id.clone(), 0));
        keys.extend(chunks.filter(|chunk| *chunk > 0).map(|it| (id.clone(), it)));
        Ok(sql::ledger::nodes(&mut self.database.reader().await?, job.incarnation, &keys).await?)
    }
}

fn find<'n>(nodes: &'n [NodeRow], path: &str, chunk: i32) -> Option<&'n NodeRow> {
    nodes
        .iter()
        .find(|row| row.chunk == chunk && row.path == path)
}

/// Returns the state of a split whose bit is set: its nodes are gone.
fn completed() -> SplitState {
    SplitState {
        known: true,
        completed: true,
        done: vec![SubtaskRange {
            first: 1,
            last: LAST,
        }],
        ..SplitState::default()
    }
}

fn described(source: Option<SplitSource>) -> SplitState {
    SplitState {
        known: true,
        digest: source.map(|source| source.digest),
        round: source.map(|source| source.round),
        contradictory: source.is_some_and(|source| source.contradictory),
        ..SplitState::default()
    }
}

/// Adds the subtasks behind the number `after` that are done, up to `RANGES` ranges of them. `last`
/// is the highest number that a subtask of the split has, as far as is known.
fn add_done(
    state: &mut SplitState,
    chunks: impl Iterator<Item = (i32, Bits)>,
    after: u32,
    last: i32,
) {
    let last = last.unsigned_abs();
    for (chunk, bits) in chunks {
        let first = chunk.unsigned_abs() * CHUNK + 1;
        for bit in 0..CHUNK {
            let number = first + bit;
            if number > last {
                state.up_to = None;
                return;
            }
            if number <= after || !bits.get(bit as usize) {
                continue;
            }
            let ranges = state.done.len();
            match state.done.last_mut() {
                Some(range) if range.last + 1 == number => range.last = number,
                _ if ranges == RANGES => {
                    state.up_to = Some(number - 1);
                    return;
                }
                _ => state.done.push(SubtaskRange {
                    first: number,
                    last: number,
                }),
            }
        }
        state.up_to = Some(first + CHUNK - 1);
    }
}
