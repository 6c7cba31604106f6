//! A process's subscription to announcements.

use bytes::Bytes;
use tokio::sync::mpsc;

/// A subscription to the announcements of all processes; see
/// [`Broker::announcements`](super::Broker::announcements).
#[derive(Debug)]
pub struct Announcements(mpsc::Receiver<Event>);

/// What a subscription receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The body of an announcement.
    Message(Bytes),
    /// The subscription was interrupted or has just begun: any number of announcements may have
    /// been missed.
    Missed,
}

impl Announcements {
    /// Wraps the receiving end of a channel. Dropping the subscription closes the channel,
    /// whereupon the implementation ends it.
    pub(crate) fn new(events: mpsc::Receiver<Event>) -> Self {
        Self(events)
    }

    /// Returns the next event, or `None` once the broker is closed.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}
