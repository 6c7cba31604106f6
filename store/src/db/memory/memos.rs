//! Memos, in memory.

use std::collections::BTreeMap;

use contract::JobStatus;

use super::{Memory, MemoryTransaction, State, done};
use crate::db::DbFuture;
use crate::db::memos::{JobWithMemos, MemoKey, MemoReads, MemoSteps, MemoSums};

#[derive(Debug, Default)]
pub struct Memos {
    results: BTreeMap<MemoKey, String>,
    sums: BTreeMap<i64, MemoSums>,
}

impl State {
    fn memos_of_task(&self, (incarnation, path, _): &MemoKey) -> u64 {
        let first = (*incarnation, path.clone(), String::new());
        let rows = self.memos.results.range(first..);
        let own = rows.take_while(|((n, at, _), _)| n == incarnation && at == path);
        own.count() as u64
    }

    fn is_over(&self, incarnation: i64) -> bool {
        let Some(job) = self.ids.get(&incarnation).and_then(|id| self.jobs.get(id)) else {
            return true;
        };
        let is_complete = job.status == JobStatus::Completed && job.totals.failed_tasks == 0;
        let is_swept = job.task_table && !self.retired.contains_key(&incarnation);
        is_complete || job.finish_time.is_some() && is_swept
    }
}

impl MemoReads for Memory {
    fn memo<'a>(&'a self, key: &'a MemoKey) -> DbFuture<'a, Option<String>> {
        Box::pin(async move { Ok(self.read().await?.memos.results.get(key).cloned()) })
    }
    fn memo_counts<'a>(&'a self, key: &'a MemoKey) -> DbFuture<'a, (u64, MemoSums)> {
        Box::pin(async move {
            let state = self.read().await?;
            let sums = state.memos.sums.get(&key.0).copied();
            Ok((state.memos_of_task(key), sums.unwrap_or_default()))
        })
    }
    fn jobs_with_memos(&self, after: i64, limit: u32) -> DbFuture<'_, Vec<JobWithMemos>> {
        Box::pin(async move {
            let state = self.read().await?;
            let jobs = state.memos.sums.range(after.saturating_add(1)..);
            let described = jobs.map(|(incarnation, _)| JobWithMemos {
                incarnation: *incarnation,
                is_over: state.is_over(*incarnation),
            });
            Ok(described.take(limit as usize).collect())
        })
    }
}

impl MemoSteps for MemoryTransaction {
    fn memo<'a>(&'a mut self, key: &'a MemoKey) -> DbFuture<'a, Option<String>> {
        done(self.state.memos.results.get(key).cloned())
    }
    fn memos_of_task<'a>(&'a mut self, key: &'a MemoKey) -> DbFuture<'a, u64> {
        done(self.state.memos_of_task(key))
    }
    fn add_to_memo_sums(&mut self, incarnation: i64, change: MemoSums) -> DbFuture<'_, MemoSums> {
        let before = self.state.memos.sums.get(&incarnation).copied();
        let before = before.unwrap_or_default();
        let sums = MemoSums {
            memos: before.memos + change.memos,
            bytes: before.bytes + change.bytes,
        };
        self.put(|s| &mut s.memos.sums, incarnation, Some(sums));
        done(sums)
    }
    fn insert_memo<'a>(&'a mut self, key: &'a MemoKey, result: &'a str) -> DbFuture<'a, ()> {
        let result = Some(result.to_owned());
        self.put(|s| &mut s.memos.results, key.clone(), result);
        done(())
    }
    fn delete_memos(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        let first = (incarnation, String::new(), String::new());
        let rows = self.state.memos.results.range(first..);
        let of_job = rows.map(|(key, _)| key.clone());
        let of_job = of_job.take_while(|key| key.0 == incarnation);
        let keys: Vec<MemoKey> = of_job.take(limit as usize).collect();
        let gone = keys.len() as u64;
        for key in keys {
            self.put(|s| &mut s.memos.results, key, None);
        }
        if gone < u64::from(limit) {
            self.put(|s| &mut s.memos.sums, incarnation, None);
        }
        done(gone)
    }
}
