//! Announcements within one process, for the brokers that have no server.

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc};
use tokio_util::task::TaskTracker;

use super::announcements::{Announcements, Event};
use super::message::Confirm;

/// The maximum number of announcements that a subscriber may lag behind. A slower subscriber misses some.
const BACKLOG: usize = 1024;

/// Delivers each announcement to every subscriber in this process. Clones share their subscribers.
#[derive(Debug, Clone)]
pub(super) struct LocalFanout {
    messages: broadcast::Sender<Bytes>,
    tasks: TaskTracker,
}

impl Default for LocalFanout {
    fn default() -> Self {
        Self {
            messages: broadcast::Sender::new(BACKLOG),
            tasks: TaskTracker::new(),
        }
    }
}

impl LocalFanout {
    pub fn announce(&self, body: Bytes) -> Confirm {
        // An error means that there are no subscribers.
        let _ = self.messages.send(body);
        Confirm::ready(Ok(()))
    }

    pub fn subscribe(&self) -> Announcements {
        use broadcast::error::RecvError;

        let mut messages = self.messages.subscribe();
        let (events, subscription) = mpsc::channel(64);
        self.tasks.spawn(async move {
            let mut event = Event::Missed;
            while events.send(event).await.is_ok() {
                let received = tokio::select! {
                    received = messages.recv() => received,
                    () = events.closed() => return,
                };
                event = match received {
                    Ok(body) => Event::Message(body),
                    Err(RecvError::Lagged(_)) => Event::Missed,
                    Err(RecvError::Closed) => return,
                };
            }
        });
        Announcements::new(subscription)
    }
}
