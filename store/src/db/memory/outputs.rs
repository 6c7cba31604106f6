//! The outputs that are kept, in memory.

use std::ops::Range;

use super::{MemoryTransaction, State, done};
use crate::db::{DbFuture, KeptBlobRow, KeptRow, KeptTaskRow, OutputSteps};
use crate::ledger::NodeKey;

impl State {
    pub fn kept_tasks_of(&self, incarnation: i64, keys: &[NodeKey]) -> Vec<KeptTaskRow> {
        keys.iter()
            .filter_map(|(path, chunk)| {
                let key = (incarnation, path.clone(), *chunk);
                self.kept_tasks.get(&key).cloned()
            })
            .collect()
    }

    pub fn kept_blobs_of(
        &self,
        incarnation: i64,
        from_line: i64,
        failed: Option<bool>,
        limit: u32,
    ) -> Vec<KeptBlobRow> {
        self.kept_blobs
            .range((incarnation, 0)..(incarnation + 1, 0))
            .map(|(_, blob)| blob)
            .filter(|blob| blob.first_line + blob.lines > from_line)
            .filter(|blob| failed.is_none_or(|failed| failed == blob.failed))
            .take(limit as usize)
            .cloned()
            .collect()
    }

    pub fn last_kept_blobs_of(&self, incarnation: i64, limit: u32) -> Vec<KeptBlobRow> {
        let blobs = self
            .kept_blobs
            .range((incarnation, 0)..(incarnation + 1, 0));
        let last = blobs.rev().take(limit as usize).map(|(_, blob)| blob);
        let mut last: Vec<KeptBlobRow> = last.cloned().collect();
        last.reverse();
        last
    }

    pub fn doomed_outputs(&self, limit: u32) -> Vec<i64> {
        self.kept
            .values()
            .filter(|kept| {
                let is_removed = kept.removed_time.is_some() && kept.bytes > 0;
                is_removed || !self.ids.contains_key(&kept.incarnation)
            })
            .map(|kept| kept.incarnation)
            .take(limit as usize)
            .collect()
    }
}

impl OutputSteps for MemoryTransaction {
    fn lock_kept(&mut self, incarnation: i64) -> DbFuture<'_, Option<KeptRow>> {
        done(self.state.kept.get(&incarnation).cloned())
    }
    fn save_kept<'a>(&'a mut self, kept: &'a KeptRow) -> DbFuture<'a, ()> {
        self.put(|s| &mut s.kept, kept.incarnation, Some(kept.clone()));
        done(())
    }
    fn load_kept_tasks<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<KeptTaskRow>> {
        done(self.state.kept_tasks_of(incarnation, keys))
    }
    fn save_kept_tasks<'a>(
        &'a mut self,
        incarnation: i64,
        rows: &'a [KeptTaskRow],
    ) -> DbFuture<'a, ()> {
        for row in rows {
            let key = (incarnation, row.path.clone(), row.chunk);
            self.put(|s| &mut s.kept_tasks, key, Some(row.clone()));
        }
        done(())
    }
    fn insert_kept_blobs<'a>(&'a mut self, blobs: &'a [KeptBlobRow]) -> DbFuture<'a, ()> {
        for blob in blobs {
            let key = (blob.incarnation, blob.first_line);
            self.put(|s| &mut s.kept_blobs, key, Some(blob.clone()));
        }
        done(())
    }
    fn take_kept_blobs(
        &mut self,
        incarnation: i64,
        lines: Range<i64>,
    ) -> DbFuture<'_, Vec<KeptBlobRow>> {
        let keys = (incarnation, lines.start)..(incarnation, lines.end);
        let taken: Vec<KeptBlobRow> = self
            .state
            .kept_blobs
            .range(keys)
            .map(|(_, blob)| blob.clone())
            .collect();
        for blob in &taken {
            self.put(|s| &mut s.kept_blobs, (incarnation, blob.first_line), None);
        }
        done(taken)
    }
    fn expire_kept(&mut self, keep: u64) -> DbFuture<'_, u64> {
        let now = self.shared.clock.now();
        let limit = now.saturating_sub_unsigned(keep);
        let state = &self.state;
        let is_over = |kept: &&KeptRow| {
            let job = state.ids.get(&kept.incarnation);
            let job = job.and_then(|key| state.jobs.get(key));
            let is_over = job
                .and_then(|job| job.finish_time)
                .is_some_and(|end| end <= limit);
            is_over && kept.removed_time.is_none() && kept.lines > 0
        };
        let over: Vec<KeptRow> = state.kept.values().filter(is_over).cloned().collect();
        let count = over.len() as u64;
        for mut kept in over {
            kept.removed_time = Some(now);
            (kept.waiting, kept.damaged) = (None, None);
            self.put(|s| &mut s.kept, kept.incarnation, Some(kept));
        }
        done(count)
    }
    fn forget_kept(&mut self, incarnation: i64, _limit: u32) -> DbFuture<'_, bool> {
        self.remove_all(|s| &mut s.kept_blobs, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.kept_tasks, |(n, ..), _| *n == incarnation);
        let kept = self.state.kept.get(&incarnation).cloned();
        let is_there = self.state.ids.contains_key(&incarnation);
        let kept = kept.filter(|_| is_there);
        let kept = kept.map(|kept| KeptRow { bytes: 0, ..kept });
        self.put(|s| &mut s.kept, incarnation, kept);
        done(true)
    }
}
