//! Jobs as JSON, of which long texts are read in pieces.
//!
//! What must stay true: a job is in the body once and as it was when it was read. Its long texts
//! can be read later, because they do not change while it exists; if it is deleted before they are
//! read, the body breaks off.

use std::collections::VecDeque;

use contract::PartitionId;
use store::{Detail, ListedJob, LongText};

use crate::http::in_pieces::{PIECE, Pieces};
use crate::http::ndjson::{json, not_json};
use crate::http::{ApiError, ApiResult};
use crate::state::AppState;

/// The content type of the bodies.
pub const JSON: &str = "application/json";
/// The number of characters of a text that one piece has: at most four bytes each. Both databases
/// read a text from its beginning for each piece, so smaller pieces make a list slower: with a
/// sixteenth, 25 jobs of 2 MiB took nine seconds instead of half a second.
const CHARS: u32 = 256 * 1024;
/// The largest number of jobs that are read at a time.
const MOST_JOBS: usize = 16;
/// The number of jobs that are read first: it is not known how large they are.
const FIRST_JOBS: usize = 4;

/// A list of jobs. Jobs that are deleted after their numbers were read are left out.
#[derive(Debug)]
pub struct JobList {
    partition: PartitionId,
    /// The incarnations.
    numbers: Vec<i64>,
    detail: Detail,
    /// How many of the numbers are done.
    done: usize,
    /// How many jobs are read next.
    at_once: usize,
    /// What is left of the last job that was begun.
    rest: LongTexts,
    has_jobs: bool,
    has_begun: bool,
    is_over: bool,
}

impl JobList {
    pub fn new(partition: PartitionId, numbers: Vec<i64>, detail: Detail) -> Self {
        Self {
            partition,
            numbers,
            detail,
            done: 0,
            at_once: FIRST_JOBS,
            rest: LongTexts::default(),
            has_jobs: false,
            has_begun: false,
            is_over: false,
        }
    }

    /// Adds the next jobs: several small ones, or one up to its long texts. What was read beyond a
    /// piece is dropped and read again.
    async fn push_jobs(&mut self, state: &AppState, piece: &mut String) -> ApiResult<()> {
        let end = self.numbers.len().min(self.done + self.at_once);
        let numbers = &self.numbers[self.done..end];
        let found = state.store.listed_jobs(numbers, self.detail).await?;
        let running = state.pipes.workers.running();
        for mut listed in found {
            running.show(&self.partition, &mut listed.job);
            let number = listed.job.incarnation;
            if self.has_jobs {
                piece.push(',');
            }
            self.has_jobs = true;
            self.rest = LongTexts::begin(listed, piece)?;
            if !self.rest.is_over() || piece.len() >= PIECE {
                let taken = numbers.iter().take_while(|it| **it != number).count() + 1;
                self.done += taken;
                self.at_once = taken;
                return Ok(());
            }
        }
        self.done = end;
        self.at_once = MOST_JOBS.min(2 * self.at_once);
        Ok(())
    }
}

impl Pieces for JobList {
    const WHAT: &'static str = "jobs";

    async fn next(&mut self, state: &AppState) -> ApiResult<String> {
        let mut piece = String::new();
        if !self.has_begun {
            self.has_begun = true;
            piece.push('[');
        }
        if self.rest.is_over() {
            self.push_jobs(state, &mut piece).await?;
        } else {
            self.rest.push_next(state, &mut piece).await?;
        }
        if self.done == self.numbers.len() && self.rest.is_over() {
            self.is_over = true;
            piece.push(']');
        }
        Ok(piece)
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

/// One job.
#[derive(Debug)]
pub struct OneJob {
    beginning: String,
    rest: LongTexts,
}

impl OneJob {
    pub fn new(listed: ListedJob) -> ApiResult<Self> {
        let mut beginning = String::new();
        let rest = LongTexts::begin(listed, &mut beginning)?;
        Ok(Self { beginning, rest })
    }
}

impl Pieces for OneJob {
    const WHAT: &'static str = "a job";

    async fn next(&mut self, state: &AppState) -> ApiResult<String> {
        let mut piece = std::mem::take(&mut self.beginning);
        if !self.rest.is_over() {
            self.rest.push_next(state, &mut piece).await?;
        }
        Ok(piece)
    }

    fn is_over(&self) -> bool {
        self.rest.is_over()
    }
}

/// The long texts of a job that are not read yet. They are the last fields of its object.
#[derive(Debug, Default)]
struct LongTexts {
    job: String,
    incarnation: i64,
    texts: VecDeque<LongText>,
    /// The number of the first character that is not read, from 1.
    first: u32,
}

impl LongTexts {
    /// Adds a job up to its long texts, and returns these.
    fn begin(listed: ListedJob, piece: &mut String) -> ApiResult<Self> {
        let ListedJob { job, long_texts } = listed;
        if long_texts.is_empty() {
            piece.push_str(&json(&job)?);
            return Ok(Self::default());
        }
        let mut fields = serde_json::to_value(&job).map_err(|error| not_json(&error))?;
        if let Some(fields) = fields.as_object_mut() {
            fields.retain(|name, _| long_texts.iter().all(|text| text.name() != name));
        }
        piece.push_str(&json(&fields)?);
        // The object goes on.
        piece.pop();
        Ok(Self {
            incarnation: job.incarnation,
            job: job.id,
            texts: long_texts.into(),
            first: 1,
        })
    }

    fn is_over(&self) -> bool {
        self.texts.is_empty()
    }

    /// Adds the next part of a text. The last one ends the object.
    async fn push_next(&mut self, state: &AppState, piece: &mut String) -> ApiResult<()> {
        let Some(text) = self.texts.front().copied() else {
            return Ok(());
        };
        let part = state
            .store
            .text_of_job(self.incarnation, text, self.first, CHARS);
        let part = part
            .await?
            .ok_or_else(|| ApiError::job_not_found(&self.job))?;
        if self.first == 1 {
            piece.extend([",\"", text.name(), "\":\""]);
        }
        let quoted = json(&part)?;
        piece.push_str(&quoted[1..quoted.len() - 1]);
        self.first += CHARS;
        if part.chars().count() < CHARS as usize {
            piece.push('"');
            self.texts.pop_front();
            self.first = 1;
        }
        if self.texts.is_empty() {
            piece.push('}');
        }
        Ok(())
    }
}
