//! Dead letters: keeps messages that the collector of the job service has taken from reject and
//! invalid pipes, reads them, and deletes them.
//!
//! What must stay true:
//! - A message that is delivered twice is one letter.
//! - The letters are bounded, of a job and of all, by number and by bytes; and what is above a
//!   bound is not lost: the caller is told, and leaves it in a pipe.
//! - The sums are those of the letters.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::db::run_tx::{End, Tx};
use crate::db::sql::failures::PAGE_BYTES;
use crate::db::sql::letters::{GoneLetter, LetterSums, all_letters};
use crate::db::{DbError, JobKey, Signal, sql};
use crate::letter::{Letter, LetterLimits, LetterQuery, NewLetter};
use crate::{Result, Store};

/// The number of letters that one transaction deletes.
pub(crate) const DELETED: u32 = 500;

/// What became of a message that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is a letter.
    Kept,
    /// It was a letter before.
    Known,
    /// Its job has as many letters as it may have.
    AboveBoundOfJob,
    /// There are as many letters as there may be.
    Full,
}

/// How many dead letters there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LetterCounts {
    /// The number of letters.
    pub letters: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many were above the bound of their job.
    pub overflowed: u64,
    /// How many were deleted because they were too old.
    pub expired: u64,
    /// Whether there are as many as there may be.
    pub full: bool,
}

/// How many dead letters of a page are read at a time.
const LETTERS_AT_ONCE: u32 = 100;

impl Store {
    /// Returns how many dead letters are kept.
    pub const fn letter_limits(&self) -> LetterLimits {
        self.options.letters
    }

    /// Keeps messages as dead letters, in one transaction. Returns what became of each.
    pub async fn keep_letters(&self, letters: &[NewLetter]) -> Result<Vec<Keep>> {
        if letters.is_empty() {
            return Ok(Vec::new());
        }
        let limits = self.options.letters;
        self.run_tx("keep_letters", |tx| Box::pin(keep(tx, letters, limits)))
            .await
    }

    /// Returns dead letters without their bodies, the latest first.
    pub async fn letters(&self, query: &LetterQuery) -> Result<Vec<Letter>> {
        Ok(sql::letters::page(&mut self.database.lister().await?, query).await?)
    }

    /// Returns a page of dead letters without their bodies, the latest first, and whether further
    /// ones follow. A page of large letters has fewer than the limit of the query.
    pub async fn page_of_letters(&self, query: &LetterQuery) -> Result<(Vec<Letter>, bool)> {
        let (mut page, mut bytes) = (Vec::<Letter>::new(), 0);
        loop {
            let step = LetterQuery {
                before: page.last().map(|last| last.id).or(query.before),
                limit: LETTERS_AT_ONCE,
                ..query.clone()
            };
            let read = sql::letters::page(&mut self.database.lister().await?, &step).await?;
            let is_last = read.len() < LETTERS_AT_ONCE as usize;
            for letter in read {
                if page.len() == query.limit as usize || bytes >= PAGE_BYTES as u64 {
                    return Ok((page, true));
                }
                bytes += letter.content.bytes();
                page.push(letter);
            }
            if is_last {
                return Ok((page, false));
            }
        }
    }

    /// Returns a dead letter with its body.
    pub async fn letter(&self, id: i64) -> Result<Option<Letter>> {
        Ok(sql::letters::find(&mut self.database.reader().await?, id).await?)
    }

    /// Returns how many dead letters there are.
    pub async fn count_letters(&self) -> Result<LetterCounts> {
        let db = &mut self.database.reader().await?;
        let sums = sql::letters::sums_of(db, &all_letters()).await?;
        Ok(counts(sums, self.options.letters))
    }

    /// Deletes these dead letters, as far as they exist. Returns how many.
    pub async fn delete_letters(&self, ids: &[i64]) -> Result<u64> {
        if ids.is_empty() {
            return Ok(0);
        }
        self.run_tx("delete_letters", |tx| {
            Box::pin(async move {
                let gone = delete(tx, ids, 0).await?;
                tx.notify(Signal::Letters);
                Ok(End::Commit(gone))
            })
        })
        .await
    }

    /// Deletes some dead letters that match, the latest first: up to the limit of the query, or
    /// 500. Returns how many.
    pub async fn delete_matching_letters(&self, query: &LetterQuery) -> Result<u64> {
        let query = LetterQuery {
            limit: query.limit.min(DELETED),
            ..query.clone()
        };
        let found = self.letters(&query).await?;
        let ids: Vec<i64> = found.into_iter().map(|letter| letter.id).collect();
        self.delete_letters(&ids).await
    }

    /// Returns a receiver that changes whenever there is room for dead letters. A new receiver
    /// counts as changed.
    pub fn letter_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Letters)
    }
}

fn counts(sums: LetterSums, limits: LetterLimits) -> LetterCounts {
    let number = |sum: i64| u64::try_from(sum).unwrap_or(0);
    LetterCounts {
        letters: number(sums.letters),
        bytes: number(sums.bytes),
        overflowed: number(sums.overflowed),
        expired: number(sums.expired),
        full: number(sums.letters) >= limits.letters || number(sums.bytes) >= limits.bytes,
    }
}

async fn keep(
    tx: &mut Tx<'_>,
    letters: &[NewLetter],
    limits: LetterLimits,
) -> Result<End<Vec<Keep>>, DbError> {
    let nothing = LetterSums::default();
    let mut all = sql::letters::add_to_sums(tx, &all_letters(), nothing).await?;
    let mut change = nothing;
    // The sums of each job as they become, and their changes.
    let mut jobs: BTreeMap<JobKey, (LetterSums, LetterSums)> = BTreeMap::new();
    let mut outcomes = Vec::with_capacity(letters.len());
    for letter in letters {
        if sql::letters::exists(tx, &letter.identity).await? {
            outcomes.push(Keep::Known);
            continue;
        }
        let bytes = letter.bytes();
        let own = LetterSums {
            letters: 1,
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            ..nothing
        };
        let key = letter
            .task
            .as_ref()
            .map(|task| (task.partition.clone(), task.job.clone()));
        if let Some(key) = key {
            if !jobs.contains_key(&key) {
                let sums = sql::letters::add_to_sums(tx, &key, nothing).await?;
                jobs.insert(key.clone(), (sums, nothing));
            }
            let of_job = jobs.entry(key).or_default();
            if !fits(of_job.0, bytes, limits.letters_of_job, limits.bytes_of_job) {
                of_job.1.overflowed += 1;
                change.overflowed += 1;
                outcomes.push(Keep::AboveBoundOfJob);
                continue;
            }
            if fits(all, bytes, limits.letters, limits.bytes) {
                add(&mut of_job.0, own);
                add(&mut of_job.1, own);
            }
        }
        if !fits(all, bytes, limits.letters, limits.bytes) {
            outcomes.push(Keep::Full);
            continue;
        }
        add(&mut all, own);
        add(&mut change, own);
        sql::letters::insert(tx, letter, own.bytes).await?;
        outcomes.push(Keep::Kept);
    }
    if change == nothing {
        return Ok(End::Rollback(outcomes));
    }
    sql::letters::add_to_sums(tx, &all_letters(), change).await?;
    for (key, (_, change)) in &jobs {
        sql::letters::add_to_sums(tx, key, *change).await?;
    }
    // The sweeper has to come when the oldest of them is too old.
    tx.notify(Signal::Sweep);
    Ok(End::Commit(outcomes))
}

/// Returns whether one more letter fits. A single one always does, unless there is room for none.
fn fits(sums: LetterSums, bytes: u64, most: u64, most_bytes: u64) -> bool {
    let number = |sum: i64| u64::try_from(sum).unwrap_or(0);
    let is_first = sums.letters <= 0;
    number(sums.letters) < most
        && (is_first || number(sums.bytes).saturating_add(bytes) <= most_bytes)
}

fn add(sums: &mut LetterSums, change: LetterSums) {
    sums.letters += change.letters;
    sums.bytes += change.bytes;
    sums.overflowed += change.overflowed;
    sums.expired += change.expired;
}

/// Deletes letters and their part of the sums. Returns how many. `expired` is 1 if they are too
/// old.
pub(crate) async fn delete(tx: &mut Tx<'_>, ids: &[i64], expired: i64) -> Result<u64, DbError> {
    let nothing = LetterSums::default();
    sql::letters::add_to_sums(tx, &all_letters(), nothing).await?;
    let gone = sql::letters::delete(tx, ids).await?;
    let mut changes: BTreeMap<JobKey, LetterSums> = BTreeMap::new();
    for GoneLetter { job, bytes } in &gone {
        let change = LetterSums {
            letters: -1,
            bytes: -bytes,
            overflowed: 0,
            expired,
        };
        for key in job.iter().cloned().chain([all_letters()]) {
            add(changes.entry(key).or_default(), change);
        }
    }
    for (key, change) in &changes {
        sql::letters::add_to_sums(tx, key, *change).await?;
    }
    Ok(gone.len() as u64)
}

/// Deletes some of the letters that are too old. Returns how many.
pub(crate) async fn expire(tx: &mut Tx<'_>, older_than: u64) -> Result<u64, DbError> {
    let old = sql::letters::old(tx, older_than, DELETED).await?;
    if old.is_empty() {
        return Ok(0);
    }
    let gone = delete(tx, &old, 1).await?;
    sql::letters::forget_sums(tx).await?;
    tx.notify(Signal::Letters);
    Ok(gone)
}
