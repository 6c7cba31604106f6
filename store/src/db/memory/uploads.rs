//! Uploads, in memory.

use std::collections::BTreeMap;

use super::{Memory, MemoryTransaction, State, done};
use crate::db::DbFuture;
use crate::db::uploads::{PieceRow, UploadReads, UploadRow, UploadSteps, UploadSum};

/// What is known of uploads.
#[derive(Debug, Default)]
pub struct Uploads {
    rows: BTreeMap<String, UploadRow>,
    pieces: BTreeMap<(i64, i64), PieceRow>,
    #[expect(
        clippy::zero_sized_map_values,
        reason = "a set, whose changes are undone as those of the maps"
    )]
    uses: BTreeMap<(i64, i64), ()>,
    sums: BTreeMap<String, UploadSum>,
}

impl State {
    /// Returns the jobs that read an upload; `None` for one that is deleted.
    fn users_of(&self, number: i64) -> impl Iterator<Item = Option<String>> {
        let uses = self.uploads.uses.range((number, 0)..(number + 1, 0));
        uses.map(|((_, incarnation), ())| self.ids.get(incarnation).map(|(_, job)| job.clone()))
    }
}

impl UploadReads for Memory {
    fn upload<'a>(&'a self, id: &'a str) -> DbFuture<'a, Option<UploadRow>> {
        Box::pin(async move { Ok(self.read().await?.uploads.rows.get(id).cloned()) })
    }
    fn uploads<'a>(
        &'a self,
        partition: &'a str,
        after: i64,
        limit: u32,
    ) -> DbFuture<'a, Vec<UploadRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let is_listed =
                |row: &&UploadRow| row.partition == partition && row.number > after && !row.doomed;
            let rows = state.uploads.rows.values().filter(is_listed);
            let mut rows: Vec<UploadRow> = rows.cloned().collect();
            rows.sort_by_key(|row| row.number);
            rows.truncate(limit as usize);
            Ok(rows)
        })
    }
    fn pieces(&self, number: i64, byte: i64, limit: u32) -> DbFuture<'_, Vec<PieceRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let pieces = state.uploads.pieces.range((number, 0)..(number + 1, 0));
            let pieces = pieces.map(|(_, piece)| piece);
            let pieces = pieces.filter(|piece| piece.first_byte + piece.bytes > byte);
            Ok(pieces.take(limit as usize).cloned().collect())
        })
    }
    fn jobs_of_uploads<'a>(&'a self, numbers: &'a [i64]) -> DbFuture<'a, Vec<(i64, String)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut found = Vec::new();
            for number in numbers {
                let jobs = state.users_of(*number).flatten();
                found.extend(jobs.map(|job| (*number, job)));
            }
            Ok(found)
        })
    }
    fn upload_sum<'a>(&'a self, partition: &'a str) -> DbFuture<'a, UploadSum> {
        Box::pin(async move {
            let state = self.read().await?;
            Ok(state
                .uploads
                .sums
                .get(partition)
                .copied()
                .unwrap_or_default())
        })
    }
    fn doomed_uploads(&self, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(async move {
            let state = self.read().await?;
            let doomed = state.uploads.rows.values().filter(|row| row.doomed);
            Ok(doomed.take(limit as usize).map(|row| row.number).collect())
        })
    }
}

impl UploadSteps for MemoryTransaction {
    fn lock_upload<'a>(&'a mut self, id: &'a str) -> DbFuture<'a, Option<UploadRow>> {
        done(self.state.uploads.rows.get(id).cloned())
    }
    fn insert_upload<'a>(&'a mut self, upload: &'a UploadRow) -> DbFuture<'a, ()> {
        let number = self.state.number();
        let row = UploadRow {
            number,
            ..upload.clone()
        };
        self.put(|s| &mut s.uploads.rows, row.id.clone(), Some(row));
        done(())
    }
    fn save_upload<'a>(&'a mut self, upload: &'a UploadRow) -> DbFuture<'a, ()> {
        let id = upload.id.clone();
        self.put(|s| &mut s.uploads.rows, id, Some(upload.clone()));
        done(())
    }
    fn insert_piece<'a>(&'a mut self, piece: &'a PieceRow) -> DbFuture<'a, ()> {
        let key = (piece.number, piece.first_byte);
        self.put(|s| &mut s.uploads.pieces, key, Some(piece.clone()));
        done(())
    }
    fn add_to_upload_sum<'a>(
        &'a mut self,
        partition: &'a str,
        change: UploadSum,
    ) -> DbFuture<'a, UploadSum> {
        let before = self.state.uploads.sums.get(partition).copied();
        let before = before.unwrap_or_default();
        let sum = UploadSum {
            uploads: before.uploads + change.uploads,
            room: before.room + change.room,
        };
        self.put(|s| &mut s.uploads.sums, partition.to_owned(), Some(sum));
        done(sum)
    }
    fn insert_upload_use(&mut self, number: i64, incarnation: i64) -> DbFuture<'_, ()> {
        self.put(|s| &mut s.uploads.uses, (number, incarnation), Some(()));
        done(())
    }
    fn upload_users(&mut self, number: i64) -> DbFuture<'_, (bool, Option<String>)> {
        let was_used = self.state.users_of(number).next().is_some();
        let job = self.state.users_of(number).flatten().next();
        done((was_used, job))
    }
    fn unneeded_uploads(&mut self, unused: u64, limit: u32) -> DbFuture<'_, Vec<String>> {
        let before = self.shared.clock.now().saturating_sub_unsigned(unused);
        let state = &self.state;
        let is_unneeded = |row: &&UploadRow| {
            let mut users = state.users_of(row.number).peekable();
            let is_old = row.touched_time <= before || users.peek().is_some();
            !row.doomed && is_old && users.flatten().next().is_none()
        };
        let rows = state.uploads.rows.values().filter(is_unneeded);
        done(
            rows.take(limit as usize)
                .map(|row| row.id.clone())
                .collect(),
        )
    }
    fn forget_upload(&mut self, number: i64, _limit: u32) -> DbFuture<'_, bool> {
        self.remove_all(|s| &mut s.uploads.pieces, |(n, _), _| *n == number);
        self.remove_all(|s| &mut s.uploads.uses, |(n, _), ()| *n == number);
        self.remove_all(|s| &mut s.uploads.rows, |_, row| row.number == number);
        self.remove_all(
            |s| &mut s.uploads.sums,
            |partition, sum| sum.uploads <= 0 && !partition.is_empty(),
        );
        done(true)
    }
}
