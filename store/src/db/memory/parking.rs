//! Tasks of paused jobs, in memory.

use super::outbox::Unsent;
use super::{MemoryTransaction, done};
use crate::db::{DbFuture, ParkingSteps};
use crate::model::{OutboxMessage, ParkedTask};

impl MemoryTransaction {
    fn oldest_parked(
        &self,
        incarnation: i64,
        limit: u32,
    ) -> impl Iterator<Item = (&(i64, i64), &ParkedTask)> {
        self.state
            .parked
            .range((incarnation, 0)..(incarnation + 1, 0))
            .take(limit as usize)
    }
}

impl ParkingSteps for MemoryTransaction {
    fn park<'a>(&'a mut self, tasks: &'a [(i64, &'a ParkedTask)]) -> DbFuture<'a, ()> {
        for (incarnation, task) in tasks {
            let id = self.state.number();
            self.put(|s| &mut s.parked, (*incarnation, id), Some((*task).clone()));
        }
        done(())
    }
    fn mark_for_unparking<'a>(
        &'a mut self,
        incarnations: &'a [i64],
        always: bool,
    ) -> DbFuture<'a, bool> {
        let mut news = false;
        for n in incarnations {
            let mut parked = self.state.parked.range((*n, 0)..(n + 1, 0));
            let has_some = always || parked.next().is_some();
            if has_some && !self.state.unparking.contains_key(n) {
                self.put(|s| &mut s.unparking, *n, Some(()));
                news = true;
            }
        }
        done(news)
    }
    fn unmark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        self.put(|s| &mut s.unparking, incarnation, None);
        done(())
    }
    fn next_for_unparking(&mut self) -> DbFuture<'_, Option<(String, String, i64)>> {
        let next = self
            .state
            .unparking
            .keys()
            .find_map(|n| Some((*n, self.state.ids.get(n)?)));
        done(next.map(|(n, (partition, job))| (partition.clone(), job.clone(), n)))
    }
    fn unpark(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        let tasks: Vec<ParkedTask> = self
            .oldest_parked(incarnation, limit)
            .map(|(_, task)| task.clone())
            .collect();
        for ParkedTask {
            pipe,
            body,
            headers,
        } in tasks
        {
            let id = self.state.number();
            let message = OutboxMessage {
                id,
                pipe,
                body,
                headers,
            };
            let due_time = Some(self.shared.clock.now());
            let unsent = Unsent {
                incarnation: Some(incarnation),
                message,
                due_time,
                leased_until: 0,
                suspended: false,
                paused: false,
                announces: None,
            };
            self.put(|s| &mut s.outbox, id, Some(unsent));
        }
        self.drop_parked(incarnation, limit)
    }
    fn drop_parked(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        let keys: Vec<(i64, i64)> = self
            .oldest_parked(incarnation, limit)
            .map(|(key, _)| *key)
            .collect();
        let gone = keys.len() as u64;
        for key in keys {
            self.put(|s| &mut s.parked, key, None);
        }
        done(gone)
    }
}
