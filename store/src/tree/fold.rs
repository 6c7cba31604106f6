//! Folds the bits of the subtasks of a split into runs of siblings in the same state. Pure.
//!
//! What must stay true: the runs are disjoint, in order and complete; a run is as long as it can
//! be, but for the siblings that stand alone. A chunk whose bits are all the same costs one step,
//! so that a split of ten million costs its rows and not its subtasks.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::{Bits, CHUNK, NodeRow, position};

/// What the bits of a subtask say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It is neither done nor failed.
    Open,
    Failed,
    Done,
}

/// Siblings with the same mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub first: u32,
    pub last: u32,
    pub mark: Mark,
}

/// Bits of subtasks by chunk: those that are done, and those that have failed.
#[derive(Debug, Default)]
pub struct Marks(BTreeMap<i32, (Bits, Bits)>);

impl Marks {
    pub fn of_rows(rows: impl IntoIterator<Item = NodeRow>) -> Self {
        let bits = |row: NodeRow| (row.chunk, (Bits(row.done), row.failed));
        let rows = rows.into_iter().map(bits);
        Self(
            rows.map(|(chunk, (done, failed))| (chunk, (done, Bits(failed.unwrap_or_default()))))
                .collect(),
        )
    }

    pub fn of(&self, number: u32) -> Mark {
        let (chunk, bit) = position(number);
        match self.0.get(&chunk) {
            Some((done, _)) if done.get(bit) => Mark::Done,
            Some((_, failed)) if failed.get(bit) => Mark::Failed,
            _ => Mark::Open,
        }
    }

    /// Returns the mark of all subtasks of a chunk, if they have the same.
    fn of_all(&self, chunk: i32) -> Option<Mark> {
        let Some((done, failed)) = self.0.get(&chunk) else {
            return Some(Mark::Open);
        };
        let is_full =
            |bits: &Bits| bits.0.len() == CHUNK as usize / 8 && bits.0.iter().all(|b| *b == 0xff);
        match (done.any(), failed.any()) {
            (false, false) => Some(Mark::Open),
            (true, _) if is_full(done) => Some(Mark::Done),
            (false, true) if is_full(failed) => Some(Mark::Failed),
            _ => None,
        }
    }

    /// Returns the numbers of the subtasks that are not done, or `None` if there are more than
    /// `most`.
    pub fn not_done(&self, first: u32, last: u32, most: usize) -> Option<Vec<u32>> {
        let mut numbers = Vec::new();
        for (first, last, all) in self.pieces(first, last) {
            if all == Some(Mark::Done) {
                continue;
            }
            for number in first..=last {
                if self.of(number) != Mark::Done {
                    if numbers.len() == most {
                        return None;
                    }
                    numbers.push(number);
                }
            }
        }
        Some(numbers)
    }

    /// Folds subtasks into runs. Those `alone` have a run each.
    pub fn runs(&self, first: u32, last: u32, alone: &BTreeSet<u32>) -> Vec<Run> {
        let mut runs = Runs::default();
        for (first, last, all) in self.pieces(first, last) {
            match all {
                Some(mark) if alone.range(first..=last).next().is_none() => {
                    runs.add(first, last, mark, false);
                }
                _ => {
                    for number in first..=last {
                        runs.add(number, number, self.of(number), alone.contains(&number));
                    }
                }
            }
        }
        runs.found
    }

    /// Returns the parts of these numbers that lie in one chunk, each with the mark that all of
    /// that chunk have.
    fn pieces(&self, first: u32, last: u32) -> impl Iterator<Item = (u32, u32, Option<Mark>)> {
        let mut next = Some(first).filter(|first| *first <= last);
        std::iter::from_fn(move || {
            let first = next?;
            let (chunk, bit) = position(first);
            let rest = CHUNK - u32::try_from(bit).unwrap_or(0);
            let end = first.saturating_add(rest - 1).min(last);
            next = end.checked_add(1).filter(|next| *next <= last);
            Some((first, end, self.of_all(chunk)))
        })
    }
}

#[derive(Default)]
struct Runs {
    found: Vec<Run>,
    /// Whether the last one stands alone.
    ended: bool,
}

impl Runs {
    fn add(&mut self, first: u32, last: u32, mark: Mark, alone: bool) {
        match self.found.last_mut() {
            Some(run) if run.mark == mark && !alone && !self.ended => run.last = last,
            _ => self.found.push(Run { first, last, mark }),
        }
        self.ended = alone;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marks(done: &BTreeSet<u32>, failed: &BTreeSet<u32>) -> Marks {
        let mut rows: BTreeMap<i32, (Bits, Bits)> = BTreeMap::new();
        for number in done {
            let (chunk, bit) = position(*number);
            rows.entry(chunk).or_default().0.set(bit);
        }
        for number in failed {
            let (chunk, bit) = position(*number);
            rows.entry(chunk).or_default().1.set(bit);
        }
        let row = |(chunk, (done, failed)): (i32, (Bits, Bits))| NodeRow {
            chunk,
            done: done.0,
            failed: failed.any().then_some(failed.0),
            ..NodeRow::default()
        };
        Marks::of_rows(rows.into_iter().map(row))
    }

    /// Numbers in stretches, some of which fill whole chunks.
    fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
        let stretch = (1u32..13_000, 1u32..6000);
        prop::collection::vec(stretch, 0..5).prop_map(|stretches| {
            let of = |(first, length)| first..first + length;
            stretches.into_iter().flat_map(of).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn runs_are_disjoint_ordered_complete_and_as_long_as_they_can_be(
            done in numbers(),
            failed in numbers(),
            alone in prop::collection::btree_set(1u32..14_000, 0..6),
            (first, length) in (1u32..9000, 0u32..13_000),
        ) {
            let last = first + length;
            let marks = marks(&done, &failed);
            let runs = marks.runs(first, last, &alone);
            let expected = |number: &u32| {
                if done.contains(number) {
                    Mark::Done
                } else if failed.contains(number) {
                    Mark::Failed
                } else {
                    Mark::Open
                }
            };
            let mut next = first;
            for (at, run) in runs.iter().enumerate() {
                prop_assert_eq!(run.first, next);
                prop_assert!((run.first..=run.last).all(|number| expected(&number) == run.mark));
                let stands_alone = run.first == run.last && alone.contains(&run.first);
                prop_assert!(stands_alone || alone.range(run.first..=run.last).next().is_none());
                if let Some(following) = runs.get(at + 1) {
                    let follows_alone = alone.contains(&following.first);
                    prop_assert!(following.mark != run.mark || stands_alone || follows_alone);
                }
                next = run.last + 1;
            }
            prop_assert_eq!(next, last + 1);
            let open: Vec<u32> = (first..=last).filter(|n| !done.contains(n)).collect();
            prop_assert_eq!(marks.not_done(first, last, open.len()), Some(open.clone()));
            if !open.is_empty() {
                prop_assert_eq!(marks.not_done(first, last, open.len() - 1), None);
            }
        }
    }

    #[test]
    fn ten_million_subtasks_without_bits_are_one_run() {
        let runs = Marks::default().runs(1, 10_000_000, &BTreeSet::new());
        let [run] = runs.as_slice() else {
            panic!("{runs:?}");
        };
        assert_eq!((run.first, run.last, run.mark), (1, 10_000_000, Mark::Open));
    }
}
