//! Decides what happens to a batch that the disk refuses to commit.

use std::time::Duration;

use tokio::time::Instant;

use super::{RETRY_DELAY, Work, Writer, pipe_of};

impl Writer {
    /// Decides how refused work goes on: the messages of its batch wait for space, and the rest is tried again, at once
    /// if it has become less. Returns `None` if the broker is closing and can do no more.
    pub(super) fn refused(
        &mut self,
        mut work: Work,
        error: &sqlx::Error,
    ) -> Option<(Work, Duration)> {
        let now = Instant::now();
        let reason = error.to_string();
        let bytes = work.pending.bytes;
        let withdraws = !work.committed && work.pending.has_messages();
        if withdraws {
            self.withdraw(&mut work);
        } else if self.closing {
            return None;
        }
        self.space.refused(bytes as u64, reason, now);
        self.show_state(now);
        Some((
            work,
            if withdraws {
                Duration::ZERO
            } else {
                RETRY_DELAY
            },
        ))
    }

    /// Takes the messages out of a refused batch and out of the next one. They wait for space before those that wait
    /// already. Dropping them instead, when the broker is closing, resolves their confirms to `Closed`.
    fn withdraw(&mut self, work: &mut Work) {
        for mark in &mut work.pending.batch.marks {
            let messages = work.pending.batch.messages.iter();
            let of_pipe = messages.filter(|message| pipe_of(message.id) == mark.number);
            mark.stored -= of_pipe.count() as u64;
        }
        if !work.pending.batch.released.is_empty() || !self.next.batch.released.is_empty() {
            self.next_due = Some(self.clock.now());
        }
        let mut withdrawn = work.pending.withdraw();
        withdrawn.extend(self.next.withdraw());
        for (index, pipe) in self.pipes.iter_mut().enumerate() {
            if pipe.withdraw() {
                self.touched.insert(index);
            }
        }
        if self.closing {
            return;
        }
        self.waiting_for
            .extend(withdrawn.iter().map(|message| message.pipe));
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = withdrawn.into_iter().chain(waiting).collect();
    }
}
