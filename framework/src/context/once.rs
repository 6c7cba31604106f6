//! Parts of a task that are done once: the job service keeps their results, and a task that runs
//! again passes over them.
//!
//! What must stay true:
//! - A part is done only after a job service has said that it is not done. Silence never means
//!   that.
//! - A part that is done is passed over in every later attempt and round of its task, and has the
//!   same result in all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::{InvalidMemoKey, MAX_MEMO_BYTES, MemoKey};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::Context;
use crate::TaskError;
use crate::job_service::MemoError;

/// The first and the longest wait before a result is sent again that could not be kept.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The parts of a task that are being done.
#[derive(Debug, Default)]
pub(super) struct OpenParts(Mutex<BTreeSet<MemoKey>>);

/// A part counts as being done until this is dropped.
struct OpenPart<'a>(&'a OpenParts, &'a MemoKey);

/// Results of parts by their keys, as JSON, where there is no job service.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemosHere(pub std::sync::Arc<Mutex<BTreeMap<String, String>>>);

/// Why a part of a task is not done, or its result not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OnceError {
    #[error(
        "the part '{0}' is to be done once, but the task belongs to no job, so that nothing would remember it. Send the task as one of \
         a job"
    )]
    Untracked(MemoKey),
    #[error(transparent)]
    Key(#[from] InvalidMemoKey),
    #[error("the part '{0}' is being done already; give each part of a task a key of its own")]
    Open(MemoKey),
    #[error("it is not known whether the part '{key}' is done, and it may not be asked: {reason}")]
    NotAllowed { key: MemoKey, reason: String },
    #[error("it is not known whether the part '{key}' is done: {reason}")]
    NoAnswer { key: MemoKey, reason: String },
    #[error("the part '{key}' is not done: {reason}")]
    Refused { key: MemoKey, reason: String },
    #[error("the part '{key}' is done, but its result is not kept: {reason}")]
    NotKept { key: MemoKey, reason: String },
    #[error(
        "the part '{key}' was done before, but its result cannot be read: {reason}. Let the worker read what it once wrote, or give the \
         part another key to do it again"
    )]
    Unreadable { key: MemoKey, reason: String },
    #[error("the job has ended")]
    Ended,
}

impl OnceError {
    pub const fn is_permanent(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. } | Self::Ended)
    }

    pub fn of_task(&self) -> TaskError {
        match self {
            Self::NoAnswer { .. } => TaskError::unavailable(self.to_string()),
            Self::Ended => TaskError::cancelled(),
            _ => TaskError::failed(self.to_string()),
        }
    }
}

impl Context {
    /// Does a part of this task once, and returns its result: if an earlier attempt has done it,
    /// its result is returned, and `part` is dropped without having begun. The key names the part
    /// in its task: letters, digits, `-`, `_`, `:` and `.`, at most 100.
    ///
    /// The job service keeps the result until the job can no longer be taken up again. So a part
    /// that is done is passed over by every later delivery and attempt of the task, in every round
    /// of its job.
    ///
    /// **The part may be done twice** if the process dies, or the task exceeds its time limit,
    /// after the part is done and before its result is kept; if two processes run the task at the
    /// same time; or if the future is dropped in between. Where even that must not be, hand the key
    /// on: many services take an idempotency key with a request.
    ///
    /// The result is JSON of at most 16 KiB, and a task has at most 100 of them. An error of the
    /// part is returned as it is, and the next attempt does the part again.
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// use batchwright::{Context, NoOutput, Reply, TaskData, TaskError, Worker, testing};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, Clone)]
    /// struct Order { number: u64, cents: u64 }
    /// impl TaskData for Order { const CLASSIFIER: &'static str = "Order"; const API_VERSION: i32 = 1; }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Receipt { number: u64 }
    ///
    /// struct Shop;
    /// impl Worker for Shop {
    ///     type Input = Order;
    ///     type Output = NoOutput;
    ///     async fn run(&self, order: Order, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         let receipt = ctx.once("charge", async { Ok(charge(&order).await?) }).await?;
    ///         // If this fails, the task runs again, and the card is not charged again.
    ///         send_mail(&receipt).await?;
    ///         Ok(Reply::none())
    ///     }
    /// }
    /// # async fn charge(order: &Order) -> Result<Receipt, std::io::Error> { Ok(Receipt { number: order.number }) }
    /// # async fn send_mail(receipt: &Receipt) -> Result<(), std::io::Error> {
    /// #     if receipt.number == 0 { Err(std::io::Error::other("no such receipt")) } else { Ok(()) }
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let order = Order { number: 4711, cents: 1999 };
    /// let task = testing::task(order).of_job("acme:orders.1");
    /// let run = task.clone().run(&Shop).await;
    /// assert_eq!(run.memo::<Receipt>("charge").unwrap().number, 4711);
    /// // A later attempt finds the card charged.
    /// let run = task.attempt(2).with_memo("charge", &Receipt { number: 0 }).run(&Shop).await;
    /// assert_eq!(run.retry().as_deref(), Some("no such receipt"));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the part. Returns one of these, and the task then ends with it whatever
    /// the author's code makes of it, if
    /// - the job service does not answer at the URL in the message, or is of a version that does
    ///   not keep results: nothing is done, and the task comes again after a second, then ever more
    ///   rarely. No attempt is counted, and the worker goes on with other tasks;
    /// - the job has ended: the task is dropped;
    /// - the task belongs to no job, the key is not possible, another part with this key is being
    ///   done, the task has too many results or those of its job have more than 1 GiB, or the URL
    ///   in the message is not allowed: the task fails, and nothing is done;
    /// - the part is done and its result is too large, or is no JSON: the task fails;
    /// - the part was done, and its result is not of the type `T`: the task fails.
    ///
    /// While the job service does not answer after the part is done, this waits for it as long as
    /// the process runs.
    pub async fn once<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        part: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        let refuse = |error: OnceError| self.refuse(error.into());
        let key: MemoKey = key
            .parse()
            .map_err(|error: InvalidMemoKey| refuse(error.into()))?;
        let _open = self.0.open_parts.open(&key).map_err(refuse)?;
        if let Some(result) = self.memo(&key).await.map_err(refuse)? {
            return parse(&key, &result).map_err(refuse);
        }
        let value = part.await?;
        let result = to_json(&key, &value).map_err(refuse)?;
        let kept = self.keep_memo(&key, result).await.map_err(refuse)?;
        // From what is kept, so that the first attempt sees what later ones do.
        parse(&key, &kept).map_err(refuse)
    }

    /// Returns the result of a part, as JSON, if the part is done.
    async fn memo(&self, key: &MemoKey) -> Result<Option<String>, OnceError> {
        let shared = &self.0.shared;
        let Some(tracking) = &self.0.input.tracking else {
            return Err(OnceError::Untracked(key.clone()));
        };
        if let Some(here) = &shared.memos {
            return Ok(here.get(key));
        }
        let memo = shared.job_service.memo(tracking, key).await;
        memo.map_err(|error| of_question(key, error))
    }

    /// Keeps the result of a part. Returns the one that is kept: another process may have done the
    /// part at the same time.
    async fn keep_memo(&self, key: &MemoKey, result: String) -> Result<String, OnceError> {
        let shared = &self.0.shared;
        let Some(tracking) = &self.0.input.tracking else {
            return Err(OnceError::Untracked(key.clone()));
        };
        if let Some(here) = &shared.memos {
            return Ok(here.keep(key, result));
        }
        let (mut wait, longest) = WAITS;
        loop {
            let reason = match shared.job_service.keep_memo(tracking, key, &result).await {
                Err(MemoError::NoAnswer(reason)) => reason,
                answer => return answer.map_err(|error| of_answer(key, error)),
            };
            warn!(key = key.as_str(), %reason, "the result of a part that is done cannot be kept; tries again");
            let waits = shared
                .shutdown
                .run_until_cancelled(tokio::time::sleep(wait));
            if waits.await.is_none() {
                let key = key.clone();
                return Err(OnceError::NoAnswer { key, reason });
            }
            wait = longest.min(wait * 2);
        }
    }
}

impl OpenParts {
    fn open<'a>(&'a self, key: &'a MemoKey) -> Result<OpenPart<'a>, OnceError> {
        let mut open = self.0.lock();
        if open.insert(key.clone()) {
            Ok(OpenPart(self, key))
        } else {
            Err(OnceError::Open(key.clone()))
        }
    }
}

impl Drop for OpenPart<'_> {
    fn drop(&mut self) {
        let mut open = self.0.0.lock();
        open.remove(self.1);
    }
}

impl MemosHere {
    fn get(&self, key: &MemoKey) -> Option<String> {
        let results = self.0.lock();
        results.get(key.as_str()).cloned()
    }

    fn keep(&self, key: &MemoKey, result: String) -> String {
        let mut results = self.0.lock();
        let kept = results.entry(key.as_str().to_owned()).or_insert(result);
        kept.clone()
    }
}

fn to_json<T: Serialize>(key: &MemoKey, value: &T) -> Result<String, OnceError> {
    let not_kept = |reason: String| OnceError::NotKept {
        key: key.clone(),
        reason,
    };
    let result = serde_json::to_string(value)
        .map_err(|error| not_kept(format!("it cannot be written as JSON: {error}")))?;
    if result.len() > MAX_MEMO_BYTES {
        return Err(not_kept(format!(
            "it has {} bytes of JSON, and the limit is {MAX_MEMO_BYTES}. Return where the result is, instead of the result",
            result.len()
        )));
    }
    Ok(result)
}

fn parse<T: DeserializeOwned>(key: &MemoKey, result: &str) -> Result<T, OnceError> {
    serde_json::from_str(result).map_err(|error| OnceError::Unreadable {
        key: key.clone(),
        reason: error.to_string(),
    })
}

/// Returns why it is not known whether a part is done.
fn of_question(key: &MemoKey, error: MemoError) -> OnceError {
    let key = key.clone();
    match error {
        MemoError::Ended => OnceError::Ended,
        MemoError::NotAllowed(reason) => OnceError::NotAllowed { key, reason },
        MemoError::Refused(reason) => OnceError::Refused { key, reason },
        MemoError::NoAnswer(reason) => OnceError::NoAnswer { key, reason },
    }
}

/// Returns why the result of a part that is done is not kept.
fn of_answer(key: &MemoKey, error: MemoError) -> OnceError {
    match error {
        MemoError::Refused(reason) => OnceError::NotKept {
            key: key.clone(),
            reason,
        },
        other => of_question(key, other),
    }
}
