//! A local broker that keeps its messages in memory. They do not survive the process; all other
//! rules of [`Broker`](super::Broker) hold.
//!
//! It serves tests and the simulation. It has no task and no thread: each caller does the work of
//! the writer before it goes on, so the same calls always have the same effects. It works under a
//! paused tokio clock, because delays are tokio's and nothing else takes time.

mod at_once;
mod volatile;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};

use self::at_once::AtOnce;
use super::local::{Command, Commands, Local, Place};
use super::{BrokerState, Confirm, Outgoing, PublishError};
use crate::health::Health;

/// A [`Broker`](super::Broker) in memory, as one process sees it.
///
/// Clones belong to the same simulated process. [`Memory::process`] returns the view of another
/// process with the same pipes.
pub type Memory = Local<Process>;

/// A simulated process.
#[derive(Clone)]
pub struct Process {
    number: u32,
    /// The number of the latest process.
    latest: Arc<AtomicU32>,
    has_ended: Arc<AtomicBool>,
    intercept: Option<Arc<Intercept>>,
}

type Intercept = dyn Fn(Outgoing) -> Result<Outgoing, Confirm> + Send + Sync;

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Returns a broker without pipes.
    pub fn new() -> Self {
        Self::at(Process::first(), AtOnce::new(), Health::default())
    }

    /// Returns the view of another process with the same pipes. It crashes and closes independently
    /// of this one.
    #[must_use]
    pub fn process(&self) -> Self {
        let mut other = self.clone();
        other.place.number = self.place.latest.fetch_add(1, Ordering::Relaxed) + 1;
        other.place.has_ended = Arc::default();
        other
    }

    /// Simulates the death of this process: its consumers end, its unsettled messages are delivered
    /// again with a higher count, and from now on everything that it settles or publishes is
    /// ignored.
    pub fn crash(&self) {
        self.place.end(self.commands());
    }

    /// Returns this process with a function that its messages go through first. It returns the
    /// message to publish it, or the confirm of one that it refuses or holds back.
    #[must_use]
    pub fn intercepting<F>(mut self, intercept: F) -> Self
    where
        F: Fn(Outgoing) -> Result<Outgoing, Confirm> + Send + Sync + 'static,
    {
        self.place.intercept = Some(Arc::new(intercept));
        self
    }
}

impl Process {
    fn first() -> Self {
        Self {
            number: 0,
            latest: Arc::default(),
            has_ended: Arc::default(),
            intercept: None,
        }
    }

    fn end(&self, commands: &dyn Commands) {
        self.has_ended.store(true, Ordering::Relaxed);
        commands.send(Command::Leave(self.number));
    }
}

impl Place for Process {
    const KIND: &'static str = "memory";

    fn process(&self) -> u32 {
        self.number
    }

    fn admit(&self, message: Outgoing) -> Result<Outgoing, Confirm> {
        let message = match &self.intercept {
            Some(intercept) => intercept(message)?,
            None => message,
        };
        match self.state() {
            BrokerState::Closed => Err(Confirm::ready(Err(PublishError::Closed))),
            _ => Ok(message),
        }
    }

    fn state(&self) -> BrokerState {
        if self.has_ended.load(Ordering::Relaxed) {
            BrokerState::Closed
        } else {
            BrokerState::Connected
        }
    }

    fn close<'a>(&'a self, commands: &'a dyn Commands) -> BoxFuture<'a, ()> {
        self.end(commands);
        ready(()).boxed()
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory(process {})", self.number)
    }
}
