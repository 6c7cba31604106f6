//! Dead letters, in memory.

use std::collections::BTreeMap;

use super::{Memory, MemoryTransaction, done};
use crate::db::letters::{GoneLetter, LetterReads, LetterSteps, LetterSums};
use crate::db::{DbFuture, JobKey};
use crate::letter::{Letter, LetterQuery, NewLetter};

/// The letters by their numbers, each with the bytes that it counts for.
pub type Letters = BTreeMap<i64, (Letter, i64)>;

impl LetterReads for Memory {
    fn letters<'a>(&'a self, query: &'a LetterQuery) -> DbFuture<'a, Vec<Letter>> {
        Box::pin(async move {
            let state = self.read().await?;
            let letters = state.letters.values().rev().map(|(letter, _)| letter);
            let found = letters.filter(|letter| query.selects(letter));
            let without_body = |letter: &Letter| Letter {
                content: NewLetter {
                    body: Vec::new(),
                    identity: Vec::new(),
                    ..letter.content.clone()
                },
                ..*letter
            };
            Ok(found.take(query.limit as usize).map(without_body).collect())
        })
    }
    fn letter(&self, id: i64) -> DbFuture<'_, Option<Letter>> {
        Box::pin(async move {
            let state = self.read().await?;
            Ok(state.letters.get(&id).map(|(letter, _)| letter.clone()))
        })
    }
    fn letter_sums<'a>(&'a self, key: &'a JobKey) -> DbFuture<'a, LetterSums> {
        Box::pin(async move {
            let state = self.read().await?;
            Ok(state.letter_sums.get(key).copied().unwrap_or_default())
        })
    }
}

impl LetterSteps for MemoryTransaction {
    fn add_to_letter_sums<'a>(
        &'a mut self,
        key: &'a JobKey,
        change: LetterSums,
    ) -> DbFuture<'a, LetterSums> {
        let before = self.state.letter_sums.get(key).copied().unwrap_or_default();
        let sums = LetterSums {
            letters: before.letters + change.letters,
            bytes: before.bytes + change.bytes,
            overflowed: before.overflowed + change.overflowed,
            expired: before.expired + change.expired,
        };
        self.put(|s| &mut s.letter_sums, key.clone(), Some(sums));
        done(sums)
    }
    fn forget_letter_sums(&mut self) -> DbFuture<'_, ()> {
        self.remove_all(
            |s| &mut s.letter_sums,
            |(partition, _), sums| sums.letters <= 0 && !partition.is_empty(),
        );
        done(())
    }
    fn has_letter<'a>(&'a mut self, identity: &'a [u8]) -> DbFuture<'a, bool> {
        let mut letters = self.state.letters.values();
        done(letters.any(|(letter, _)| letter.content.identity == identity))
    }
    fn insert_letter<'a>(&'a mut self, letter: &'a NewLetter, bytes: i64) -> DbFuture<'a, ()> {
        let id = self.state.number();
        let letter = Letter {
            id,
            time: self.shared.clock.now(),
            content: letter.clone(),
            cut: (letter.body.len() as u64) < letter.body_bytes,
        };
        self.put(|s| &mut s.letters, id, Some((letter, bytes)));
        done(())
    }
    fn letters_to_replay<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, Vec<Letter>> {
        let letters = self.state.letters.values();
        let letters = letters.filter(|(letter, _)| ids.contains(&letter.id));
        done(letters.map(|(letter, _)| letter.clone()).collect())
    }
    fn delete_letters<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, Vec<GoneLetter>> {
        let mut gone = Vec::new();
        for id in ids {
            if let Some((letter, bytes)) = self.state.letters.get(id) {
                let task = letter.content.task.as_ref();
                gone.push(GoneLetter {
                    job: task.map(|task| (task.partition.clone(), task.job.clone())),
                    bytes: *bytes,
                });
                self.put(|s| &mut s.letters, *id, None);
            }
        }
        done(gone)
    }
    fn old_letters(&mut self, older_than: u64, limit: u32) -> DbFuture<'_, Vec<i64>> {
        let before = self.shared.clock.now().saturating_sub_unsigned(older_than);
        let letters = self.state.letters.values().map(|(letter, _)| letter);
        let old = letters.filter(|letter| letter.time <= before);
        done(old.take(limit as usize).map(|letter| letter.id).collect())
    }
    fn archive_failures_at<'a>(
        &'a mut self,
        incarnation: i64,
        round: u32,
        paths: &'a [String],
    ) -> DbFuture<'a, ()> {
        for path in paths {
            let key = (incarnation, path.clone());
            let Some(kept) = self.state.failures.get(&key).cloned() else {
                continue;
            };
            let past = (incarnation, path.clone(), round);
            if !self.state.past_failures.contains_key(&past) {
                self.put(|s| &mut s.past_failures, past, Some(kept));
            }
            self.put(|s| &mut s.failures, key, None);
        }
        done(())
    }
}
