//! Decides what happens to a batch that the disk refuses to commit, and shows how the disk is.

use std::time::Duration;

use tokio::time::Instant;

use super::{RETRY_DELAY, SOURCE, Work, Writer, pipe_of};
use crate::broker::BrokerState;

impl Writer {
    /// Decides how refused work goes on: the messages of its batch wait for space, and the rest is
    /// tried again, at once if it has become less. Returns `None` if the broker is closing and can
    /// do no more.
    pub(super) fn refused(&mut self, mut work: Work, reason: String) -> Option<(Work, Duration)> {
        let now = Instant::now();
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

    /// Takes the messages out of a refused batch and out of the next one. They wait for space
    /// before those that wait already. Dropping them instead, when the broker is closing, resolves
    /// their confirms to `Closed`.
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

    /// Stores messages that wait, if there is room for them, and shows in the state whether others
    /// wait.
    pub(super) fn use_space(&mut self, free: u64) {
        let now = Instant::now();
        if self.waiting.is_empty() {
            self.space.nothing_waits(now);
        }
        self.space.counted(free, self.next.bytes as u64);
        self.store_waiting();
        self.show_state(now);
    }

    /// Shows in the health whether pipes wait for memory.
    pub(super) fn show_memory(&mut self) {
        let is_short = !self.wait_for_memory.is_empty();
        if is_short == self.is_short_of_memory {
            return;
        }
        self.is_short_of_memory = is_short;
        if is_short {
            let (pipes, megabytes) = (self.wait_for_memory.len(), self.memory.used() >> 20);
            let reason = format!(
                "{megabytes} MB of messages in memory are not settled, and {pipes} pipes wait on disk until some are; let workers hold fewer (--prefetch), or make messages smaller"
            );
            self.health.degrade("memory", SOURCE, reason);
        } else {
            self.health.recover("memory", SOURCE);
        }
    }

    /// Shows in the state, the health and the log whether messages wait for space.
    pub(super) fn show_state(&mut self, now: Instant) {
        self.look_at = self.space.look_at(now);
        let state = match (self.space.refusal(), self.space.shortage()) {
            (Some(reason), _) => BrokerState::Refusing(reason.to_owned()),
            (None, Some(reason)) => BrokerState::Blocked(reason.to_owned()),
            (None, None) => BrokerState::Connected,
        };
        let was_connected = match &*self.state.borrow() {
            shown if *shown == state => return,
            shown => *shown == BrokerState::Connected,
        };
        match &state {
            BrokerState::Blocked(reason) | BrokerState::Refusing(reason) if was_connected => {
                tracing::error!(
                    reason,
                    "the disk is short of space; new messages wait until there is room for them"
                );
                // What consumers have settled before is deleted, and its space is needed now.
                self.give_back_at = Some(now);
            }
            BrokerState::Connected => tracing::info!("the embedded broker takes messages again"),
            _ => {}
        }
        match &state {
            BrokerState::Blocked(reason) => self.health.degrade("disk", SOURCE, reason),
            _ => self.health.recover("disk", SOURCE),
        }
        self.state.send_replace(state);
    }
}
