//! A dead letter as it is stored, which letters a query selects, and how many are kept. Pure.

use std::time::Duration;

use contract::rest::LetterCause;

use crate::model::{Header, Headers};

/// What a row needs beside its texts and its body, in bytes.
const ROW_BYTES: u64 = 200;

/// A message that becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLetter {
    /// By what a message is known that is delivered twice. Empty in a letter that was read.
    pub identity: Vec<u8>,
    /// Why it is dead.
    pub cause: LetterCause,
    /// The reason in words.
    pub reason: String,
    /// The pipe in which it was found.
    pub pipe: String,
    /// The pipe from which it came.
    pub origin: Option<String>,
    /// The worker that has given it up or rejected it.
    pub worker: Option<String>,
    /// The number of attempts at the task.
    pub attempts: Option<u32>,
    /// The task, if it belongs to a job.
    pub task: Option<LetterTask>,
    /// The label of the item.
    pub label: Option<String>,
    /// The headers of the message.
    pub headers: Headers,
    /// The body, or its beginning.
    pub body: Vec<u8>,
    /// The bytes of the whole body.
    pub body_bytes: u64,
}

impl NewLetter {
    /// Returns the cause of this name. Only another version knows further ones.
    pub(crate) fn cause_of(name: &str) -> LetterCause {
        LetterCause::from_name(name).unwrap_or(LetterCause::NotUnderstood)
    }

    /// Returns the bytes for which the letter counts.
    pub(crate) fn bytes(&self) -> u64 {
        let header = |(name, value): (&String, &Header)| match value {
            Header::Text(text) => name.len() + text.len(),
            Header::Integer(_) => name.len() + 8,
        };
        let headers = self.headers.iter().map(header);
        let texts = [
            Some(&self.reason),
            Some(&self.pipe),
            self.origin.as_ref(),
            self.label.as_ref(),
        ];
        let texts = texts.into_iter().flatten().map(String::len);
        let bytes = self.body.len() + headers.chain(texts).sum::<usize>();
        ROW_BYTES + bytes as u64
    }
}

/// The task of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterTask {
    /// The partition of the job.
    pub partition: String,
    /// The job.
    pub job: String,
    /// The incarnation; `None` for the first job with this id.
    pub incarnation: Option<i64>,
    /// The path of the task in the job, such as `3.17`; empty for the job's own task.
    pub path: String,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its number. A later letter has a higher one.
    pub id: i64,
    /// When it was kept, in milliseconds since 1970.
    pub time: i64,
    /// What it is. Of a list, without the body.
    pub content: NewLetter,
    /// Whether only the beginning of the body is kept.
    pub cut: bool,
}

/// Which dead letters to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterQuery {
    /// Those of the jobs of this partition.
    pub partition: Option<String>,
    /// Those of the jobs with this id.
    pub job: Option<String>,
    /// Those that were found in this pipe or came from it.
    pub pipe: Option<String>,
    /// Those that are dead for this cause.
    pub cause: Option<LetterCause>,
    /// Those whose reason contains this text.
    pub reason: Option<String>,
    /// Those that were kept at this time or later, in milliseconds since 1970.
    pub since: Option<i64>,
    /// Those that were kept before this time.
    pub until: Option<i64>,
    /// Those with a lower number.
    pub before: Option<i64>,
    /// The most letters.
    pub limit: u32,
}

/// How many dead letters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterLimits {
    /// The largest number of letters. Further ones wait in their pipes.
    pub letters: u64,
    /// The largest number of their bytes.
    pub bytes: u64,
    /// The largest number of letters of one job. Further ones go to overflow pipes.
    pub letters_of_job: u64,
    /// The largest number of their bytes.
    pub bytes_of_job: u64,
    /// How long they are kept.
    pub kept: Duration,
}

impl LetterLimits {
    /// The limits of a store that is not told others.
    pub const DEFAULT: Self = Self {
        letters: 100_000,
        bytes: 1024 * 1024 * 1024,
        letters_of_job: 10_000,
        bytes_of_job: 128 * 1024 * 1024,
        kept: Duration::from_hours(30 * 24),
    };
}
