//! Wake-ups: background tasks learn that a transaction has given them work.

use tokio::sync::watch;

/// Something that background tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Jobs have changed.
    Jobs,
    /// The outbox has messages that can be claimed.
    Outbox,
    /// The sweeper has work.
    Sweep,
    /// Parked tasks can leave.
    Unpark,
}

impl Signal {
    pub const ALL: [Self; 4] = [Self::Jobs, Self::Outbox, Self::Sweep, Self::Unpark];

    /// Returns the name in notifications between processes, which may be of different versions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Outbox => "outbox",
            Self::Sweep => "sweep",
            Self::Unpark => "unstow",
        }
    }
}

/// The receivers in this process.
#[derive(Debug)]
pub struct Signals {
    jobs: watch::Sender<u64>,
    outbox: watch::Sender<u64>,
    sweep: watch::Sender<u64>,
    unpark: watch::Sender<u64>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            jobs: watch::Sender::new(0),
            outbox: watch::Sender::new(0),
            sweep: watch::Sender::new(0),
            unpark: watch::Sender::new(0),
        }
    }
}

impl Signals {
    fn sender(&self, signal: Signal) -> &watch::Sender<u64> {
        match signal {
            Signal::Jobs => &self.jobs,
            Signal::Outbox => &self.outbox,
            Signal::Sweep => &self.sweep,
            Signal::Unpark => &self.unpark,
        }
    }

    pub fn wake(&self, signal: Signal) {
        self.sender(signal).send_modify(|count| *count += 1);
    }

    /// Returns a receiver that counts as woken.
    pub fn receiver(&self, signal: Signal) -> watch::Receiver<u64> {
        let mut receiver = self.sender(signal).subscribe();
        receiver.mark_changed();
        receiver
    }
}
