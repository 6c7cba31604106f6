//! Reads what happens to all jobs, in one order that every reader sees, each event once.
//!
//! An event gets its id while its transaction is open, and transactions commit in another order
//! than that of their ids. So a reader goes no further than to an id below which all transactions
//! have ended: it is *settled*. Events of one job are in the order in which they happened, because
//! the transactions that change a job wait for each other.
//!
//! What must stay true: the number and the age of the events are bounded ([`sweep`](crate::sweep)).

use std::time::Duration;

use tokio::sync::watch;

use crate::db::sql::events::EventMarks;
use crate::db::{Signal, millis, sql};
use crate::model::Events;
use crate::{Result, Store};

impl Store {
    /// Returns a receiver that changes whenever there are new events. A new receiver counts as
    /// changed.
    pub fn event_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Events)
    }

    /// Returns events between these ids, of one partition or of all, at most `limit`. `up_to` must
    /// be settled: see [`SettledEvents`].
    pub async fn events(
        &self,
        partition: Option<&str>,
        after: i64,
        up_to: i64,
        limit: u32,
    ) -> Result<Events> {
        let db = &mut self.database.reader().await?;
        Ok(sql::events::page(db, partition, after, up_to, limit).await?)
    }

    /// Returns the last id that an event may have by now.
    pub async fn last_event(&self) -> Result<i64> {
        let db = &mut self.database.reader().await?;
        Ok(sql::events::marks(db).await?.last)
    }

    /// Returns the first event that happened in this last span of time.
    pub async fn first_event_within(&self, span: Duration) -> Result<Option<i64>> {
        let span = millis(span);
        let time = self.database.clock().now().saturating_sub_unsigned(span);
        Ok(sql::events::first_since(&mut self.database.reader().await?, time).await?)
    }
}

/// Knows up to which id the events are settled: none with an id up to there appears any more.
#[derive(Debug, Default)]
pub struct SettledEvents {
    up_to: Option<i64>,
    /// The ids up to there are settled when its writers have ended.
    next: Option<EventMarks>,
}

impl SettledEvents {
    /// Looks at the store once. Returns up to which id the events are settled; `None` if that is
    /// not known of any yet.
    pub async fn look(&mut self, store: &Store) -> Result<Option<i64>> {
        let marks = sql::events::marks(&mut store.database.reader().await?).await?;
        self.see(marks);
        Ok(self.up_to)
    }

    /// Returns whether transactions are open on which further ids wait. They may end without a
    /// signal, so look again soon.
    pub const fn waits(&self) -> bool {
        self.next.is_some()
    }

    fn see(&mut self, marks: EventMarks) {
        if let Some(next) = &self.next
            && next.writers.is_disjoint(&marks.writers)
        {
            self.up_to = Some(next.last);
            self.next = None;
        }
        if self.next.is_none() {
            if marks.writers.is_empty() {
                self.up_to = Some(marks.last);
            } else if self.up_to.is_none_or(|up_to| up_to < marks.last) {
                self.next = Some(marks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_settled_when_every_transaction_has_ended_that_was_open_when_they_were_given() {
        // Each line: the last id, the open transactions, and up to where the events are settled
        // then.
        let seen = [
            (5, "a", None),
            (7, "a b", None),
            (8, "b c", Some(5)),
            (9, "c d", Some(5)),
            (9, "d", Some(8)),
            (9, "e", Some(9)),
            (9, "", Some(9)),
            (12, "", Some(12)),
        ];
        let mut settled = SettledEvents::default();
        for (last, writers, expected) in seen {
            settled.see(EventMarks {
                last,
                writers: writers.split_whitespace().map(str::to_owned).collect(),
            });
            assert_eq!(settled.up_to, expected, "{last} {writers}");
        }
        assert!(!settled.waits());
    }
}
