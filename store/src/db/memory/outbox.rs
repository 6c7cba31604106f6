//! Messages for the broker, in memory.

use std::collections::BTreeSet;

use super::{MemoryTransaction, done};
use crate::db::{DbFuture, DueTime, OutboxSteps};
use crate::model::{Announcement, Headers, OutboxMessage};

/// A message on its way to the broker, or an announcement, which has no due time.
#[derive(Debug, Clone)]
pub struct Unsent {
    pub incarnation: Option<i64>,
    pub message: OutboxMessage,
    pub due_time: Option<i64>,
    pub leased_until: i64,
    pub suspended: bool,
    pub paused: bool,
    /// The job that it announces.
    pub announces: Option<String>,
}

impl Unsent {
    /// Returns whether it is a message that is due.
    pub fn is_due(&self, now: i64) -> bool {
        !self.suspended && !self.paused && self.due_time.is_some_and(|due| due <= now)
    }

    /// From when on it may be claimed as a message, where that is a matter of time.
    fn free_at(&self) -> Option<i64> {
        self.due_time
            .filter(|_| !self.suspended && !self.paused)
            .map(|due| due.max(self.leased_until))
    }
}

impl MemoryTransaction {
    pub fn change_outbox(&mut self, which: impl Fn(&Unsent) -> bool, change: impl Fn(&mut Unsent)) {
        let changed: Vec<(i64, Unsent)> = self
            .state
            .outbox
            .iter()
            .filter(|(_, unsent)| which(unsent))
            .map(|(id, unsent)| (*id, unsent.clone()))
            .collect();
        for (id, mut unsent) in changed {
            change(&mut unsent);
            self.put(|s| &mut s.outbox, id, Some(unsent));
        }
    }
}

impl OutboxSteps for MemoryTransaction {
    fn push_outbox<'a>(
        &'a mut self,
        incarnation: Option<i64>,
        pipe: &'a str,
        body: &'a [u8],
        headers: &'a Headers,
        due: DueTime,
    ) -> DbFuture<'a, ()> {
        let id = self.state.number();
        let message = OutboxMessage {
            id,
            pipe: pipe.to_owned(),
            body: body.to_vec(),
            headers: headers.clone(),
        };
        let now = self.shared.clock.now();
        let due_time = due.after.map(|after| now.saturating_add_unsigned(after));
        let unsent = Unsent {
            incarnation,
            message,
            due_time,
            leased_until: 0,
            suspended: due.suspended,
            paused: false,
            announces: None,
        };
        self.put(|s| &mut s.outbox, id, Some(unsent));
        done(())
    }
    fn claim_outbox(
        &mut self,
        limit: u32,
        bytes: u64,
        lease: u64,
    ) -> DbFuture<'_, Vec<OutboxMessage>> {
        let now = self.shared.clock.now();
        let free = |unsent: &&Unsent| unsent.free_at().is_some_and(|at| at <= now);
        let mut messages: Vec<Unsent> = self.state.outbox.values().filter(free).cloned().collect();
        messages.sort_by_key(|unsent| (unsent.due_time, unsent.message.id));
        let mut before = 0;
        let few = messages.iter().take_while(|unsent| {
            let fits = before < bytes;
            before += unsent.message.body.len() as u64;
            fits
        });
        let few = few.take(limit as usize).count();
        messages.truncate(few);
        for unsent in &messages {
            let leased = Unsent {
                leased_until: now.saturating_add_unsigned(lease),
                ..unsent.clone()
            };
            self.put(|s| &mut s.outbox, unsent.message.id, Some(leased));
        }
        done(messages.into_iter().map(|unsent| unsent.message).collect())
    }
    fn outbox_due(&mut self) -> DbFuture<'_, Option<u64>> {
        let now = self.shared.clock.now();
        let next = self.state.outbox.values().filter_map(Unsent::free_at).min();
        done(next.map(|at| u64::try_from(at - now).unwrap_or(0)))
    }
    fn push_announcements<'a>(&'a mut self, jobs: &'a [String]) -> DbFuture<'a, ()> {
        for job in jobs {
            let id = self.state.number();
            let message = OutboxMessage {
                id,
                pipe: String::new(),
                body: Vec::new(),
                headers: Headers::new(),
            };
            let unsent = Unsent {
                incarnation: None,
                message,
                due_time: None,
                leased_until: 0,
                suspended: false,
                paused: false,
                announces: Some(job.clone()),
            };
            self.put(|s| &mut s.outbox, id, Some(unsent));
        }
        done(())
    }
    fn claim_announcements(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<Announcement>> {
        let now = self.shared.clock.now();
        let free = self.state.outbox.values();
        let free = free.filter(|unsent| unsent.leased_until <= now);
        let announcement = |unsent: &Unsent| {
            Some(Announcement {
                id: unsent.message.id,
                job: unsent.announces.clone()?,
            })
        };
        let claimed = free.filter_map(announcement).take(limit as usize);
        let claimed: Vec<_> = claimed.collect();
        let ids: BTreeSet<i64> = claimed.iter().map(|announcement| announcement.id).collect();
        self.change_outbox(
            |unsent| ids.contains(&unsent.message.id),
            |unsent| unsent.leased_until = now.saturating_add_unsigned(lease),
        );
        done(claimed)
    }
    fn announcements_due(&mut self) -> DbFuture<'_, Option<u64>> {
        let now = self.shared.clock.now();
        let announcements = self.state.outbox.values();
        let announcements = announcements.filter(|unsent| unsent.announces.is_some());
        let next = announcements.map(|unsent| unsent.leased_until).min();
        done(next.map(|at| u64::try_from(at - now).unwrap_or(0)))
    }
    fn lease_outbox<'a>(&'a mut self, leases: &'a [(i64, u64)]) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        for (id, lease) in leases {
            if let Some(unsent) = self.state.outbox.get(id) {
                let kept = Unsent {
                    leased_until: now.saturating_add_unsigned(*lease),
                    ..unsent.clone()
                };
                self.put(|s| &mut s.outbox, *id, Some(kept));
            }
        }
        done(())
    }
    fn bring_outbox_back(&mut self) -> DbFuture<'_, u64> {
        // Nobody can set its clock back.
        done(0)
    }
    fn outbox_sent<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, ()> {
        for id in ids {
            self.put(|s| &mut s.outbox, *id, None);
        }
        done(())
    }
    fn pause_outbox_of(&mut self, incarnation: i64, paused: bool) -> DbFuture<'_, ()> {
        self.change_outbox(
            |unsent| unsent.incarnation == Some(incarnation),
            |unsent| unsent.paused = paused,
        );
        done(())
    }
    fn dispatch_partition<'a>(&'a mut self, partition: &'a str) -> DbFuture<'a, u64> {
        let of_partition: BTreeSet<i64> = self
            .state
            .ids
            .iter()
            .filter(|(_, (p, _))| p == partition)
            .map(|(n, _)| *n)
            .collect();
        let suspended = |unsent: &Unsent| {
            unsent.suspended
                && unsent
                    .incarnation
                    .is_some_and(|n| of_partition.contains(&n))
        };
        let jobs: BTreeSet<i64> = self
            .state
            .outbox
            .values()
            .filter(|unsent| suspended(unsent))
            .filter_map(|unsent| unsent.incarnation)
            .collect();
        self.change_outbox(suspended, |unsent| unsent.suspended = false);
        done(jobs.len() as u64)
    }
}
