//! The disk of the embedded system. What its processes publish and settle reaches the pipes in
//! groups; what is not written yet, a kill takes away.
//!
//! The embedded system is one process, so a kill ends all roles at once. Unlike a crash of one
//! role, it also takes back several acknowledgements of several roles, whose messages are then
//! delivered again.

use std::fmt;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use framework::broker::memory::Memory;
use framework::broker::{Broker as _, Confirm, Confirmer, Delivery, Outgoing, Settlement};
use store::FaultPoint;
use tokio::time::sleep;

use crate::faults::FaultyBroker;

/// Where the system is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// Before a group is written.
    BeforeWrite,
    /// After a group was written, before anybody knows of it.
    AfterWrite,
    /// When the store passes this point.
    Store(FaultPoint),
}

impl Kill {
    pub const ALL: [Self; 5] = [
        Self::BeforeWrite,
        Self::AfterWrite,
        Self::Store(FaultPoint::Begin),
        Self::Store(FaultPoint::Commit),
        Self::Store(FaultPoint::Committed),
    ];
}

/// What is told to the disk.
enum Change {
    /// A process publishes this message.
    Publish(Memory, Outgoing, Confirmer),
    Settle(Delivery, Settlement),
}

/// See [the module](self).
pub struct Disk {
    /// How long a group is gathered.
    pace: Duration,
    unwritten: Mutex<Vec<Change>>,
}

impl Disk {
    pub fn new(pace: Duration) -> Self {
        Self {
            pace,
            unwritten: Mutex::default(),
        }
    }

    /// Appends a change. Returns whether it is the first of its group.
    fn add(&self, change: Change) -> bool {
        let mut unwritten = self.lock();
        unwritten.push(change);
        unwritten.len() == 1
    }

    /// Forgets what is not written. To be called after the processes have crashed, so that dropped
    /// deliveries are not settled.
    pub fn lose(&self) {
        let lost = take(&mut *self.lock());
        drop(lost);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Change>> {
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({} unwritten)", self.lock().len())
    }
}

impl FaultyBroker {
    /// Publishes a message, through the disk if there is one.
    pub fn send(&self, message: Outgoing) -> Confirm {
        if self.faults.disk.is_none() {
            return self.inner.publish(message);
        }
        let (confirmer, confirm) = Confirm::pair();
        self.write_soon(Change::Publish(self.inner.clone(), message, confirmer));
        confirm
    }

    /// Settles a delivery of the broker, through the disk if there is one. What is requeued was
    /// never off the disk.
    pub fn settle(&self, delivery: Delivery, settlement: Settlement) {
        if self.faults.disk.is_none() || settlement == Settlement::Requeue {
            settle(delivery, settlement);
        } else {
            self.write_soon(Change::Settle(delivery, settlement));
        }
    }

    fn write_soon(&self, change: Change) {
        let Some(disk) = &self.faults.disk else {
            return;
        };
        if disk.add(change) {
            let (faults, pace) = (Arc::clone(&self.faults), disk.pace);
            self.tasks.spawn(async move {
                sleep(pace).await;
                let nth = faults.next_group();
                if faults.kills(Kill::BeforeWrite, nth) {
                    return;
                }
                let group = faults.disk.as_ref().map(|disk| take(&mut *disk.lock()));
                let mut confirms = Vec::new();
                for change in group.into_iter().flatten() {
                    match change {
                        Change::Settle(delivery, settlement) => settle(delivery, settlement),
                        Change::Publish(process, message, confirmer) => {
                            confirms.push((confirmer, process.publish(message)));
                        }
                    }
                }
                if faults.kills(Kill::AfterWrite, nth) {
                    return;
                }
                for (confirmer, confirm) in confirms {
                    confirmer.resolve(confirm.await);
                }
            });
        }
    }
}

fn settle(delivery: Delivery, settlement: Settlement) {
    match settlement {
        Settlement::Ack => delivery.ack(),
        Settlement::Requeue => delivery.requeue(),
        Settlement::Reject => delivery.reject(),
    }
}
