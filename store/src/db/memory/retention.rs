//! What the sweeper removes, in memory.

use super::{MemoryTransaction, done};
use crate::db::{DbFuture, KeptTimes, RetentionSteps};

impl RetentionSteps for MemoryTransaction {
    fn retire_table(&mut self, incarnation: i64, delay: u64) -> DbFuture<'_, ()> {
        let due = self.shared.clock.now().saturating_add_unsigned(delay);
        let due = self
            .state
            .retired
            .get(&incarnation)
            .map_or(due, |before| due.min(*before));
        self.put(|s| &mut s.retired, incarnation, Some(due));
        done(())
    }
    fn hold_retired_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        done(self.state.retired.contains_key(&incarnation))
    }
    fn due_tables(&mut self, limit: u32, most: u32) -> DbFuture<'_, Vec<i64>> {
        let now = self.shared.clock.now();
        let listed = self.state.retired.iter();
        let mut tables: Vec<(i64, i64)> = listed.map(|(n, due)| (*due, *n)).collect();
        tables.sort_unstable();
        let too_many = tables.len().saturating_sub(most as usize);
        let due = tables.into_iter().enumerate();
        let due = due.filter(|(at, (due, _))| *at < too_many || *due <= now);
        done(due.map(|(_, (_, n))| n).take(limit as usize).collect())
    }
    fn drop_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        let there = self.state.tables.contains_key(&incarnation);
        self.put(|s| &mut s.tables, incarnation, None);
        self.put(|s| &mut s.retired, incarnation, None);
        for key in self.paths(incarnation, |_, _| true) {
            self.put(|s| &mut s.nodes, key, None);
        }
        done(there)
    }
    fn due_jobs(&mut self, limit: u32) -> DbFuture<'_, Vec<(String, String, i64)>> {
        let now = self.shared.clock.now();
        let jobs = self
            .state
            .jobs
            .iter()
            .filter_map(|((partition, job), row)| Some((partition, job, row.expiry_time?)));
        let mut due: Vec<_> = jobs
            .filter(|(.., time)| *time <= now)
            .map(|(p, j, time)| (p.clone(), j.clone(), time))
            .collect();
        due.sort_by_key(|(.., time)| *time);
        due.truncate(limit as usize);
        done(due)
    }
    fn forget_incarnations(&mut self, older_than: u64) -> DbFuture<'_, ()> {
        let limit = self.shared.clock.now().saturating_sub_unsigned(older_than);
        self.remove_all(|s| &mut s.past_incarnations, |_, ended| *ended <= limit);
        done(())
    }
    fn forget_keys(&mut self, older_than: u64) -> DbFuture<'_, ()> {
        let limit = self.shared.clock.now().saturating_sub_unsigned(older_than);
        self.remove_all(|s| &mut s.request_keys, |_, (.., given)| *given <= limit);
        done(())
    }
    fn sweep_events(&mut self, older_than: u64, most: u64) -> DbFuture<'_, bool> {
        done(self.delete_events(older_than, most))
    }
    fn next_due(&mut self, kept: KeptTimes) -> DbFuture<'_, Option<u64>> {
        let tables = self.state.retired.values().copied();
        let past_incarnations = self
            .state
            .past_incarnations
            .values()
            .map(|ended| ended.saturating_add_unsigned(kept.past_incarnations));
        let keys = self
            .state
            .request_keys
            .values()
            .map(|(.., given)| given.saturating_add_unsigned(kept.request_keys));
        let event = self.state.events.rows.values().next();
        let event = event.map(|event| event.time.saturating_add_unsigned(kept.events));
        let letter = self.state.letters.values().next();
        let letter = letter.map(|(letter, _)| letter.time.saturating_add_unsigned(kept.letters));
        let now = self.shared.clock.now();
        let jobs = self.state.jobs.values().filter_map(|job| job.expiry_time);
        done(
            tables
                .chain(past_incarnations)
                .chain(keys)
                .chain(jobs)
                .chain(event)
                .chain(letter)
                .min()
                .map(|due| u64::try_from(due - now).unwrap_or(0)),
        )
    }
}
