//! Messages that clients have taken from pipes and have not acknowledged yet.
//!
//! What must stay true:
//! - A message is acknowledged only when its client says that it has it. Otherwise it goes back to
//!   its pipe, soon after the client has gone.
//! - The number of messages that are held is bounded, whatever clients ask for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use framework::broker::{Consumer, Delivery};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The number of clients that may take messages at the same time.
const MOST_READERS: usize = 16;
/// How long messages are held for their client.
const HELD: Duration = Duration::from_secs(30);

/// What all clients have taken.
#[derive(Debug)]
pub struct TakenMessages {
    held: Mutex<HashMap<Uuid, Held>>,
    /// Told when there is more to hold.
    changed: Notify,
    readers: Arc<Semaphore>,
}

/// A client that reads a pipe.
#[derive(Debug)]
pub struct Reader {
    pub pipe: String,
    pub consumer: Consumer,
    /// What was received from the broker and did not fit into the response.
    pub waiting: Vec<Delivery>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Held {
    reader: Reader,
    deliveries: Vec<Delivery>,
    until: Instant,
}

impl TakenMessages {
    pub fn new() -> Self {
        Self {
            held: Mutex::default(),
            changed: Notify::new(),
            readers: Arc::new(Semaphore::new(MOST_READERS)),
        }
    }

    /// Returns the permission to read a pipe; `None` if too many clients do.
    pub fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readers).try_acquire_owned().ok()
    }

    /// Holds what a client takes. Returns the receipt by which it acknowledges it.
    pub fn hold(&self, reader: Reader, deliveries: Vec<Delivery>) -> Uuid {
        let receipt = Uuid::new_v4();
        let held = Held {
            reader,
            deliveries,
            until: Instant::now() + HELD,
        };
        self.all(|all| all.insert(receipt, held));
        self.changed.notify_one();
        receipt
    }

    /// Acknowledges what was taken from a pipe. Returns its reader; `None` if the messages have
    /// gone back.
    pub fn acknowledge(&self, pipe: &str, receipt: &str) -> Option<Reader> {
        let held = self.remove(pipe, receipt)?;
        // The broker took back what its lost connection had delivered.
        if held.deliveries.iter().any(Delivery::is_gone) {
            return None;
        }
        for delivery in held.deliveries {
            delivery.ack();
        }
        Some(held.reader)
    }

    /// Returns to its pipe what was taken. Returns false if it has gone back before, or was
    /// acknowledged.
    pub fn give_back(&self, pipe: &str, receipt: &str) -> bool {
        self.remove(pipe, receipt).is_some()
    }

    /// Returns to their pipes what is not acknowledged in time, until `shutdown` is cancelled; then
    /// everything.
    pub async fn run(&self, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            let next = self.all(|all| all.values().map(|held| held.until).min());
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.changed.notified() => {}
                () = due => self.return_late(Instant::now()),
            }
        }
        self.all(HashMap::clear);
    }

    fn remove(&self, pipe: &str, receipt: &str) -> Option<Held> {
        let receipt = receipt.parse().ok()?;
        self.all(|all| {
            let is_of_pipe = all.get(&receipt)?.reader.pipe == pipe;
            is_of_pipe.then(|| all.remove(&receipt)).flatten()
        })
    }

    fn return_late(&self, now: Instant) {
        let late: Vec<Held> = self.all(|all| {
            all.extract_if(|_, held| held.until <= now)
                .map(|(_, held)| held)
                .collect()
        });
        for held in late {
            tracing::info!(
                pipe = held.reader.pipe,
                messages = held.deliveries.len(),
                "taken messages were not acknowledged and go back to their pipe"
            );
        }
    }

    fn all<T>(&self, change: impl FnOnce(&mut HashMap<Uuid, Held>) -> T) -> T {
        change(&mut self.held.lock())
    }
}

impl Reader {
    pub fn new(pipe: String, consumer: Consumer, permit: OwnedSemaphorePermit) -> Self {
        Self {
            pipe,
            consumer,
            waiting: Vec::new(),
            _permit: permit,
        }
    }
}

#[cfg(test)]
mod tests {
    use framework::broker::memory::Memory;
    use framework::broker::{Broker as _, Outgoing};
    use harness::{PATIENCE, block_on_in_time};

    use super::*;

    #[test]
    fn what_is_not_acknowledged_goes_back_after_its_time_and_not_before() {
        block_on_in_time("the messages to go back", PATIENCE, || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let (broker, taken, stop) = (
                    Memory::new(),
                    TakenMessages::new(),
                    CancellationToken::new(),
                );
                broker.publish(Outgoing::new("out", "body")).await.unwrap();
                let mut consumer = broker.consume("out", 1).await.unwrap();
                let delivery = consumer.next().await.unwrap();
                let reader = Reader::new("out".to_owned(), consumer, taken.permit().unwrap());
                let receipt = taken.hold(reader, vec![delivery]).to_string();
                let (began, mut next) = (Instant::now(), broker.consume("out", 1).await.unwrap());
                tokio::select! {
                    () = taken.run(&stop) => unreachable!("nobody stops it"),
                    again = next.next() => assert_eq!(&again.unwrap().body()[..], b"body"),
                }
                assert_eq!(began.elapsed().as_secs(), 30);
                assert!(taken.acknowledge("out", &receipt).is_none());
            });
        });
    }
}
