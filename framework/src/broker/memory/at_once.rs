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
                writer.take(command);
                let Ok(()) = writer.do_all(storage);
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
        let delay = match &command {
            Command::Publish(message, _) => message.delay,
            _ => None,
        };
        self.waiting.lock().push_back(command);
        self.work();
        if let Some(delay) = delay {
            self.wake_later(delay);
        }
    }
}
