//! The steps on dead letters, and the reads of them.

use super::{DbFuture, JobKey};
use crate::letter::{Letter, LetterQuery, NewLetter};

/// The number of letters and their bytes: of a job, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LetterSums {
    pub letters: i64,
    pub bytes: i64,
    /// Above the bound of the job.
    pub overflowed: i64,
    /// Deleted because they were too old.
    pub expired: i64,
}

/// The key of the sums of all letters. No partition has an empty id.
pub fn all_letters() -> JobKey {
    (String::new(), String::new())
}

/// What a letter that is gone counted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneLetter {
    pub job: Option<JobKey>,
    pub bytes: i64,
}

/// Steps on dead letters. A transaction that adds or deletes letters changes the sums of all of
/// them first, and so waits for any other one that does.
pub trait LetterSteps {
    /// Adds to the sums of a job or, with the key [`all_letters`], of all, locks them, and returns
    /// them.
    fn add_to_letter_sums<'a>(
        &'a mut self,
        key: &'a JobKey,
        change: LetterSums,
    ) -> DbFuture<'a, LetterSums>;

    /// Deletes the sums of jobs without letters.
    fn forget_letter_sums(&mut self) -> DbFuture<'_, ()>;

    /// Returns whether there is a letter with this identity.
    fn has_letter<'a>(&'a mut self, identity: &'a [u8]) -> DbFuture<'a, bool>;

    /// Adds a letter that has so many `bytes`.
    fn insert_letter<'a>(&'a mut self, letter: &'a NewLetter, bytes: i64) -> DbFuture<'a, ()>;

    /// Returns those of these letters that exist, with their bodies, in the order of their numbers.
    fn letters_to_replay<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, Vec<Letter>>;

    /// Deletes letters and returns what they counted for.
    fn delete_letters<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, Vec<GoneLetter>>;

    /// Returns the oldest letters that are older than this many milliseconds.
    fn old_letters(&mut self, older_than: u64, limit: u32) -> DbFuture<'_, Vec<i64>>;

    /// Moves the failures at these paths to those of the earlier rounds, as those of this `round`.
    fn archive_failures_at<'a>(
        &'a mut self,
        incarnation: i64,
        round: u32,
        paths: &'a [String],
    ) -> DbFuture<'a, ()>;
}

/// Reads of dead letters, outside transactions.
pub trait LetterReads {
    /// Returns letters without their bodies, the latest first.
    fn letters<'a>(&'a self, query: &'a LetterQuery) -> DbFuture<'a, Vec<Letter>>;

    fn letter(&self, id: i64) -> DbFuture<'_, Option<Letter>>;

    /// Returns the sums of a job or, with the key [`all_letters`], of all.
    fn letter_sums<'a>(&'a self, key: &'a JobKey) -> DbFuture<'a, LetterSums>;
}
