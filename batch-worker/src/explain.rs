//! Says what a batch would be split into, by splitting it and dispatching nothing.
//!
//! What must stay true:
//! - The numbers agree with what a run makes, as long as the sources stay as they are. If the time
//!   ends before everything was looked at, they are those of the part that was.
//! - Each split that reads does so in a slot of the questions, and none beyond the time.
//! - The memory is that of the open sub-batches of one path, never of all items.

use std::collections::VecDeque;

use contract::{BatchTask, ExplainedItem, Explanation};
use framework::Payload;
use tokio::time::{Instant, timeout_at};

use crate::reading::Readers;
use crate::splitter::{Known, bytes_without_definition, problem_of};
use crate::{Batch, Part, SplitError, Totals};

/// How many of the first and of the last items are shown.
const SHOWN: usize = 3;
/// The most bytes of a label, and of the data of an item.
const LABEL_BYTES: usize = 200;
const DATA_BYTES: usize = 1000;
/// The most levels of splits. A job has no deeper ones.
const LEVELS: u32 = 62;
/// How many splits the search for the last items takes at the most.
const SPLITS_TO_THE_END: u64 = 200;
/// What is said of a batch whose first items are behind splits that take long.
const NO_ITEM: &str = "No item of the batch was reached in the time that an explanation may take, so their number is not known.";
/// The bytes of the definition of a batch without one, in its task data.
const NO_DEFINITION: usize = "null".len();

/// Explains a batch until this time, and reads in these slots. One that is refused only because it
/// has too many items is explained as if there were no limit, with the refusal. Asks for no check:
/// the first split finds what one finds, and looking at many sources twice would take the time.
///
/// # Errors
/// Returns the error of the plugin if the batch itself cannot be split.
pub async fn explain_or_refuse(
    known: Known<'_>,
    task: &BatchTask,
    (until, readers): (Instant, &Readers),
) -> Result<Explanation, SplitError> {
    let explained = explain(known, task, (until, readers)).await;
    let Err(SplitError::Definition(refusal)) = explained else {
        return explained;
    };
    let batch = Batch {
        max_items: u64::MAX,
        ..known.batch
    };
    let unlimited = Known { batch, ..known };
    let explanation = explain(unlimited, task, (until, readers)).await?;
    Ok(Explanation {
        refusal: Some(problem_of(known.plugin, &refusal)),
        ..explanation
    })
}

/// Explains a batch until this time.
async fn explain(
    known: Known<'_>,
    task: &BatchTask,
    (until, readers): (Instant, &Readers),
) -> Result<Explanation, SplitError> {
    let totals = known.plugin.totals(known.batch);
    let mut walk = Walk::new(known, Direction::Forth, (until, readers));
    walk.only_shown = totals.is_some();
    walk.run().await?;
    let first: Vec<ExplainedItem> = walk
        .shown
        .iter()
        .take(SHOWN)
        .map(|it| it.item(known))
        .collect();
    let (seen, covered) = (walk.seen, walk.covered());
    let is_whole = walk.is_whole();
    let last = if is_whole {
        Vec::from(walk.latest)
    } else {
        last_of(known, (until, readers)).await
    };
    let exact = totals.is_some() || is_whole;
    let totals = totals.unwrap_or(seen);
    // Those among the first ones are not shown twice. What is not known as a whole is so large that
    // its ends are far apart.
    let is_further =
        |found: &Found| is_whole || !exact || found.number + (SHOWN as u64) < totals.items;
    let last = last.into_iter().filter(is_further);
    let last = last.map(|it| it.item(known)).collect();
    let sub_batches = totals.splits.saturating_sub(1);
    let is_unknown = !exact && totals.items == 0 && walk.problem.is_none();
    let note = is_unknown.then(|| NO_ITEM.to_owned());
    let repeated = bytes_without_definition(task).unwrap_or_default();
    let repeated = repeated.saturating_sub(NO_DEFINITION) as u64;
    Ok(Explanation {
        batch_type: known.plugin.name().to_owned(),
        exact,
        items: totals.items,
        splits: totals.splits,
        messages: totals.items.saturating_add(sub_batches),
        bytes: sub_batches
            .saturating_mul(repeated)
            .saturating_add(totals.definition_bytes)
            .saturating_add(totals.item_bytes),
        levels: totals.levels,
        looked_at: (!exact).then_some(covered),
        estimated_items: (!exact).then(|| estimated(totals.items, covered)).flatten(),
        problem: walk.problem,
        refusal: None,
        first,
        last,
        target_pipe: task.target_pipe.clone(),
        notes: note.into_iter().collect(),
    })
}

/// Returns about how many there are in all if a part has so many.
fn estimated(items: u64, part: f64) -> Option<u64> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    (part > 0.0).then(|| (items as f64 / part).round() as u64)
}

/// Looks for the last items. Returns none if they are not found soon.
async fn last_of(known: Known<'_>, (until, readers): (Instant, &Readers)) -> Vec<Found> {
    let mut walk = Walk::new(known, Direction::Back, (until, readers));
    walk.only_shown = true;
    walk.most_splits = SPLITS_TO_THE_END;
    let walked = walk.run().await;
    let is_found = walked.is_ok() && walk.problem.is_none() && walk.shown.len() == SHOWN;
    let mut found = if is_found { walk.shown } else { Vec::new() };
    found.reverse();
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forth,
    Back,
}

/// Splits a batch and its sub-batches, in order or from the end.
struct Walk<'a> {
    known: Known<'a>,
    direction: Direction,
    until: Instant,
    readers: &'a Readers,
    /// Whether it ends with the items that are shown.
    only_shown: bool,
    most_splits: u64,
    /// What is still to be split: a definition, its level, and its part of the whole. The next one
    /// comes last.
    open: Vec<(String, u32, f64)>,
    seen: Totals,
    /// The items that come first.
    shown: Vec<Found>,
    /// The items that came last.
    latest: VecDeque<Found>,
    problem: Option<String>,
    has_ended: bool,
}

/// An item that was found.
struct Found {
    number: u64,
    payload: Payload,
}

impl<'a> Walk<'a> {
    fn new(
        known: Known<'a>,
        direction: Direction,
        (until, readers): (Instant, &'a Readers),
    ) -> Self {
        Self {
            known,
            direction,
            until,
            readers,
            only_shown: false,
            most_splits: u64::MAX,
            open: vec![(known.batch.definition.to_owned(), 1, 1.0)],
            seen: Totals::default(),
            shown: Vec::new(),
            latest: VecDeque::new(),
            problem: None,
            has_ended: false,
        }
    }

    /// Splits until everything is split, or the time is over, or enough was found.
    async fn run(&mut self) -> Result<(), SplitError> {
        while let Some((definition, level, weight)) = self.open.pop() {
            // A split that is done at once is no time limit's business.
            let is_over = Instant::now() >= self.until;
            if is_over || self.seen.splits >= self.most_splits || level > LEVELS {
                self.open.push((definition, level, weight));
                return Ok(());
            }
            let batch = Batch {
                definition: &definition,
                ..self.known.batch
            };
            // A split between two of which nothing waits would keep a thread from the batches of
            // running jobs.
            tokio::task::yield_now().await;
            let known = Known {
                batch,
                ..self.known
            };
            let parts = match timeout_at(self.until, self.split(known)).await {
                Ok(Ok(parts)) => parts,
                Ok(Err(error)) if level == 1 => return Err(error),
                Ok(Err(SplitError::Definition(problem) | SplitError::Missing(problem))) => {
                    self.problem = Some(problem_of(self.known.plugin, &problem));
                    self.open.push((definition, level, weight));
                    return Ok(());
                }
                Ok(Err(SplitError::Temporary(error))) => {
                    self.problem = Some(error.to_string());
                    self.open.push((definition, level, weight));
                    return Ok(());
                }
                Err(_) => {
                    self.open.push((definition, level, weight));
                    return Ok(());
                }
            };
            self.take(parts, level, weight);
            if self.only_shown && self.shown.len() >= SHOWN {
                return Ok(());
            }
        }
        self.has_ended = true;
        Ok(())
    }

    /// Splits a batch, in a slot if it reads.
    async fn split(&self, known: Known<'_>) -> Result<Vec<Part>, SplitError> {
        let reading = known.begin_soon(self.readers).await?;
        let Known { plugin, batch } = known.read_for(&reading);
        plugin.split(batch).await
    }

    fn take(&mut self, mut parts: Vec<Part>, level: u32, weight: f64) {
        self.seen.splits += 1;
        self.seen.levels = self.seen.levels.max(level);
        #[expect(clippy::cast_precision_loss, reason = "a share needs no precision")]
        let weight = weight / parts.len().max(1) as f64;
        if self.direction == Direction::Back {
            parts.reverse();
        }
        let from = self.open.len();
        for part in parts {
            match part {
                Part::Batch(definition) => {
                    let bytes = serde_json::to_string(&definition).map_or(0, |text| text.len());
                    self.seen.definition_bytes += bytes as u64;
                    self.open.push((definition, level + 1, weight));
                }
                Part::Item(payload) => self.take_item(payload),
            }
        }
        // The first of them comes next.
        if let Some(new) = self.open.get_mut(from..) {
            new.reverse();
        }
    }

    fn take_item(&mut self, payload: Payload) {
        let number = self.seen.items;
        self.seen.items += 1;
        self.seen.item_bytes += payload.data.len() as u64;
        let found = Found { number, payload };
        if self.shown.len() < SHOWN {
            self.shown.push(found);
        } else if !self.only_shown {
            if self.latest.len() == SHOWN {
                self.latest.pop_front();
            }
            self.latest.push_back(found);
        }
    }

    const fn is_whole(&self) -> bool {
        self.has_ended && self.problem.is_none()
    }

    /// Returns which part of the whole was looked at.
    fn covered(&self) -> f64 {
        let open: f64 = self.open.iter().map(|(_, _, weight)| weight).sum();
        (1.0 - open).clamp(0.0, 1.0)
    }
}

impl Found {
    fn item(&self, known: Known<'_>) -> ExplainedItem {
        let Payload {
            classifier, data, ..
        } = &self.payload;
        let text = String::from_utf8_lossy(&data[..data.len().min(DATA_BYTES * 2)]);
        let data = beginning(&text, DATA_BYTES);
        let own = self.payload.label.clone();
        let label = own.or_else(|| known.plugin.label(&self.payload));
        ExplainedItem {
            label: label.map_or_else(
                || beginning(&text, LABEL_BYTES),
                |label| beginning(&label, LABEL_BYTES),
            ),
            item_type: classifier.clone(),
            data,
        }
    }
}

fn beginning(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes)])
}

#[cfg(test)]
mod tests;
