//! Announcements within one process, for the brokers that have no server.

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::announcements::{Announcements, Event};
use super::message::Confirm;
use crate::health::Health;
use crate::supervision::supervise;

/// The maximum number of announcements that a subscriber may lag behind. A slower subscriber misses
/// some.
const BACKLOG: usize = 1024;

/// Delivers each announcement to every subscriber in this process. Clones share their subscribers.
#[derive(Debug, Clone)]
pub(super) struct LocalFanout {
    messages: broadcast::Sender<Bytes>,
    tasks: TaskTracker,
    health: Health,
}

impl LocalFanout {
    pub fn new(health: Health) -> Self {
        Self {
            messages: broadcast::Sender::new(BACKLOG),
            tasks: TaskTracker::new(),
            health,
        }
    }

    pub fn announce(&self, body: Bytes) -> Confirm {
        // An error means that there are no subscribers.
        let _ = self.messages.send(body);
        Confirm::ready(Ok(()))
    }

    pub fn subscribe(&self) -> Announcements {
        let messages = Mutex::new(self.messages.subscribe());
        let (events, subscription) = mpsc::channel(64);
        let health = self.health.clone();
        self.tasks.spawn(async move {
            let never = CancellationToken::new();
            let pass_on = || async { pass_on(&mut *messages.lock().await, &events).await };
            supervise(&health, "announcements", &never, pass_on).await
        });
        Announcements::new(subscription)
    }
}

async fn pass_on(messages: &mut broadcast::Receiver<Bytes>, events: &mpsc::Sender<Event>) {
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
}
