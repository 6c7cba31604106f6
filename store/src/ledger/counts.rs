//! How many items there are below a split, and what is known about them. Pure sums, kept while
//! events are applied.
//!
//! A split contributes each subtask but the final one as an item, unless the subtask is a split
//! itself, which contributes its own items instead. A splitter can state how many of its subtasks
//! are sub-batches, and how many items there will be below in the end; then nothing has to be
//! corrected later.
//!
//! # Example
//!
//! A range of 2,500 numbers is split into three sub-batches of at most 1,000; their splitter states
//! both numbers.
//!
//! | event | total | unsettled | without the statement of the number of items | |
//! |---|---|---|---|---|
//! | the job announces 3 sub-batches and 2,500 items | 2,500 | 0 | 0 | 3 unsettled |
//! | `1` announces 1,000 items | 2,500 | 0 | 1,000 | 2 unsettled |
//! | `2` announces 1,000 items | 2,500 | 0 | 2,000 | 1 unsettled |
//! | `3` announces 500 items | 2,500 | 0 | 2,500 | 0 unsettled |
//!
//! What must stay true:
//! - The sums depend on the events that have arrived, and not on their order. A split can be stated
//!   several times: in each round, and by workers of different versions. The largest numbers hold,
//!   so that no job stops above a share of fewer items than stated.
//! - Of a split that is done, the total is the number of its items that are done.
//! - The total of a job is what its splits have announced. A total without unsettled subtasks is
//!   the true number of items. The API shows a number that is not known as null.

use std::ops::{Add, Neg, Sub};

use contract::SourceDigest;
use serde::{Deserialize, Serialize};

/// Sums over the tasks below a split. Statements come from messages, so that the sums may overflow:
/// they wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// The number of items.
    #[serde(skip_serializing_if = "is_zero")]
    pub total: i64,
    /// The number of reasons why `total` may still change: sub-batches that are still to be split,
    /// and splits whose subtasks may be sub-batches.
    #[serde(skip_serializing_if = "is_zero")]
    pub unsettled: i64,
    /// The number of tasks that wait for another attempt, or run it.
    #[serde(skip_serializing_if = "is_zero")]
    pub retrying: i64,
    /// The number of tasks that have reported progress and no end.
    #[serde(skip_serializing_if = "is_zero")]
    pub running: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_none_of_them(number: &i32) -> bool {
    *number == 0
}

impl Counts {
    /// Returns the counts as they are when no task runs or waits.
    #[must_use]
    pub const fn without_active_tasks(self) -> Self {
        Self {
            retrying: 0,
            running: 0,
            ..self
        }
    }

    /// Returns the counts of one task that is neither done nor failed nor split.
    pub const fn of_active_task(retrying: bool) -> Self {
        Self {
            total: 0,
            unsettled: 0,
            retrying: retrying as i64,
            running: !retrying as i64,
        }
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            total: self.total.wrapping_add(other.total),
            unsettled: self.unsettled.wrapping_add(other.unsettled),
            retrying: self.retrying.wrapping_add(other.retrying),
            running: self.running.wrapping_add(other.running),
        }
    }
}

impl Neg for Counts {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            total: self.total.wrapping_neg(),
            unsettled: self.unsettled.wrapping_neg(),
            retrying: self.retrying.wrapping_neg(),
            running: self.running.wrapping_neg(),
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

/// What is known about the items of one split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SplitCounts {
    /// The sum of what the split and those below it contribute.
    #[serde(flatten)]
    sum: Counts,
    /// What the splitter has stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    stated: Option<Statement>,
    /// The number of subtasks that have turned out to be splits, without the final one.
    #[serde(skip_serializing_if = "is_zero")]
    opened: i64,
    /// From what the split was made, as far as its splitter states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<SplitSource>,
    /// The number of attempts of the task itself that have failed in this round.
    #[serde(skip_serializing_if = "is_none_of_them")]
    pub retried: i32,
}

/// What a splitter states about its split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// The number of subtasks that are sub-batches.
    pub batches: u32,
    /// The number of items below the split in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<i64>,
}

impl Statement {
    /// Returns what is known after a further statement.
    fn and(self, other: Self) -> Self {
        Self {
            batches: self.batches.max(other.batches),
            // Any number is more than none.
            items: self.items.max(other.items),
        }
    }
}

impl SplitCounts {
    /// Returns the counts of a split without known subtasks.
    pub fn new() -> Self {
        let mut counts = Self::default();
        counts.sum = counts.own(0);
        counts
    }

    /// Returns what the split adds to the one above it.
    pub fn seen_from_above(&self) -> Counts {
        match self.stated.and_then(|stated| stated.items) {
            Some(items) => Counts {
                total: self.sum.total.max(items),
                unsettled: 0,
                ..self.sum
            },
            None => self.sum,
        }
    }

    /// Returns the counts as they are when no task runs or waits.
    #[must_use]
    pub fn without_active_tasks(self) -> Self {
        Self {
            sum: self.sum.without_active_tasks(),
            retried: 0,
            ..self
        }
    }

    /// Adds a change below the split.
    pub fn add(&mut self, change: Counts) {
        self.sum = self.sum + change;
    }

    /// Changes what the split contributes itself. `slots` are the numbers of subtasks besides the
    /// final one, before and after.
    pub fn change(&mut self, slots: (u32, u32), change: impl FnOnce(&mut Self)) {
        let before = self.own(slots.0);
        change(self);
        self.sum = self.sum + (self.own(slots.1) - before);
    }

    /// Keeps what the splitter states.
    pub fn state(&mut self, statement: Statement) {
        let known = self.stated.unwrap_or(statement);
        self.stated = Some(known.and(statement));
    }

    /// Returns whether the splitter has stated anything.
    pub const fn is_stated(&self) -> bool {
        self.stated.is_some()
    }

    /// Counts a subtask that has turned out to be a split, or uncounts it.
    pub fn count_opened(&mut self, change: i64) {
        self.opened += change;
    }

    fn own(&self, slots: u32) -> Counts {
        let batches = self.stated.map_or(0, |stated| i64::from(stated.batches));
        Counts {
            total: i64::from(slots) - batches.max(self.opened),
            unsettled: (batches - self.opened).max(0) + i64::from(self.stated.is_none()),
            ..Counts::default()
        }
    }
}

/// The digests that were stated of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitSource {
    /// The digest; the smallest of several.
    pub digest: SourceDigest,
    /// The first round in which one was stated.
    pub round: u32,
    /// Whether different ones were stated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contradictory: bool,
    /// Whether the split was also announced without one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unstated: bool,
}

impl SplitSource {
    /// Returns what is known after a further statement.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            digest: self.digest.min(other.digest),
            round: self.round.min(other.round),
            contradictory: self.contradictory || other.contradictory || self.digest != other.digest,
            unstated: self.unstated || other.unstated,
        }
    }
}
