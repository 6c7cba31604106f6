//! The steps on memos, and the reads of them.

use super::DbFuture;

/// Where a memo is: the incarnation of the job, the path of the task, and the name.
pub type MemoKey = (i64, String, String);

/// The number of memos of a job, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoSums {
    pub memos: i64,
    pub bytes: i64,
}

/// A job that has memos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobWithMemos {
    pub incarnation: i64,
    /// Whether it is deleted, or has ended and can never be taken up again.
    pub is_over: bool,
}

/// Steps on memos. A transaction that adds some holds the lock of the job.
pub trait MemoSteps {
    /// Returns the result of a memo, as JSON.
    fn memo<'a>(&'a mut self, key: &'a MemoKey) -> DbFuture<'a, Option<String>>;

    /// Returns how many memos the task of this one has.
    fn memos_of_task<'a>(&'a mut self, key: &'a MemoKey) -> DbFuture<'a, u64>;

    /// Adds to the sums of a job and returns them.
    fn add_to_memo_sums(&mut self, incarnation: i64, change: MemoSums) -> DbFuture<'_, MemoSums>;

    /// Adds a memo.
    fn insert_memo<'a>(&'a mut self, key: &'a MemoKey, result: &'a str) -> DbFuture<'a, ()>;

    /// Deletes memos of a job, and with the last of them its sums. Returns how many.
    fn delete_memos(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64>;
}

/// Reads of memos, outside transactions.
pub trait MemoReads {
    /// Returns the result of a memo, as JSON.
    fn memo<'a>(&'a self, key: &'a MemoKey) -> DbFuture<'a, Option<String>>;

    /// Returns how many memos the task of this one has, and the sums of its job.
    fn memo_counts<'a>(&'a self, key: &'a MemoKey) -> DbFuture<'a, (u64, MemoSums)>;

    /// Returns jobs with memos whose incarnations follow this one, in their order.
    fn jobs_with_memos(&self, after: i64, limit: u32) -> DbFuture<'_, Vec<JobWithMemos>>;
}
