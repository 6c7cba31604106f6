//! Does the work of the writer within its callers, before their calls return.
//!
//! What must stay true: a command that is sent while the work goes on, by another thread or by the
//! work itself, waits, and is done before the work ends. Dropping a delivery sends one.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::volatile::Volatile;
use crate::broker::BrokerState;
use crate::broker::local::pipe::Bounds;
use crate::broker::local::storage::Recovered;
use crate::broker::local::wall_clock::WallClock;
use crate::broker::local::writer::Writer;
use crate::broker::local::{Command, Commands};
use crate::clock::Clock;
use crate::health::Health;

/// A writer, and what is to do.
pub struct AtOnce {
    this: Weak<Self>,
    waiting: Mutex<VecDeque<Command>>,
    at_work: Mutex<(Writer, Volatile)>,
    timers: TaskTracker,
    end: CancellationToken,
    _guard: DropGuard,
}

impl AtOnce {
    pub fn new() -> Arc<Self> {
        let end = CancellationToken::new();
        Arc::new_cyclic(|this| {
            let recovered = Recovered {
                free: u64::MAX,
                ..Recovered::default()
            };
            // Delays follow tokio's clock.
            let clock = Clock::simulated(Clock::system().now_millis());
            let writer = Writer::new(
                Weak::clone(this) as _,
                watch::Sender::new(BrokerState::Connected),
                recovered,
                Bounds::default(),
                0,
                WallClock::new(clock),
                Health::default(),
            );
            Self {
                this: Weak::clone(this),
                waiting: Mutex::default(),
                at_work: Mutex::new((writer, Volatile::default())),
                timers: TaskTracker::new(),
                _guard: end.clone().drop_guard(),
                end,
            }
        })
    }

    /// Does what waits, unless somebody is at it already.
    fn work(&self) {
        while !self.waiting.lock().is_empty()
            && let Some(mut at_work) = self.at_work.try_lock()
        {
            let (writer, storage) = &mut *at_work;
            while let Some(command) = self.next() {
                let delay = delay_of(&command);
                writer.take(command);
                let Ok(()) = writer.do_all(storage);
                // Not earlier: the delay is counted from when the writer takes the message.
                if let Some(delay) = delay {
                    self.wake_later(delay);
                }
            }
        }
    }

    fn next(&self) -> Option<Command> {
        self.waiting.lock().pop_front()
    }

    /// Wakes the writer when a message is due that was published with this delay.
    fn wake_later(&self, delay: Duration) {
        let (this, end) = (Weak::clone(&self.this), self.end.clone());
        self.timers.spawn(async move {
            // The writer's clock shows whole milliseconds.
            let sleep = tokio::time::sleep(delay + Duration::from_millis(1));
            if end.run_until_cancelled(sleep).await.is_some()
                && let Some(this) = this.upgrade()
            {
                this.send(Command::Wake);
            }
        });
    }
}

impl Commands for AtOnce {
    fn send(&self, command: Command) {
        self.waiting.lock().push_back(command);
        self.work();
    }
}

fn delay_of(command: &Command) -> Option<Duration> {
    match command {
        Command::Publish(message, _) => message.delay,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::memory::{Memory, Process};
    use crate::broker::{Broker as _, Outgoing};

    #[tokio::test(start_paused = true)]
    #[expect(
        clippy::await_holding_lock,
        reason = "as if another thread were at work"
    )]
    async fn delayed_message_that_waits_for_other_work_is_not_late_for_ever() {
        let (at_once, process) = (AtOnce::new(), Process::first());
        let broker = Memory::at(process, Arc::clone(&at_once) as _, Health::default());
        let mut consumer = broker.consume("in", 1).await.unwrap();
        let busy = at_once.at_work.lock();
        let published = broker.publish(Outgoing {
            delay: Some(Duration::from_millis(100)),
            ..Outgoing::new("in", "late")
        });
        tokio::time::advance(Duration::from_millis(50)).await;
        drop(busy);
        at_once.work();
        published.await.unwrap();
        harness::in_time("the message", consumer.next())
            .await
            .unwrap()
            .ack();
    }
}
