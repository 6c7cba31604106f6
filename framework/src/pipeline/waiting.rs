//! The deliveries that a worker has received and that wait for a slot.
//!
//! What must stay true: what the broker has taken back does not begin. It comes again, and would
//! run beside its redelivery.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::broker::Delivery;
use crate::pipeline::byte_window::batch_size;
use crate::steps::open_deliveries::OpenDeliveries;

/// Deliveries that wait, in the order in which they came. All turns of the worker take from it.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<VecDeque<Delivery>>);

impl Waiting {
    /// Adds deliveries behind the others.
    pub fn add(&self, deliveries: &mut Vec<Delivery>) {
        self.all().extend(deliveries.drain(..));
    }

    /// Returns how many wait.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Takes the next one. Those that the broker has taken back are dropped, and are open no more.
    pub fn next(&self, open: &OpenDeliveries) -> Option<Delivery> {
        let mut all = self.all();
        loop {
            let delivery = all.pop_front()?;
            if !delivery.is_gone() {
                return Some(delivery);
            }
            open.remove(1);
        }
    }

    /// Takes a batch within these limits. Those that the broker has taken back are dropped, and are
    /// open no more.
    pub fn batch(
        &self,
        max_batch: usize,
        max_bytes: usize,
        open: &OpenDeliveries,
    ) -> Vec<Delivery> {
        let mut all = self.all();
        let sizes = all.iter().map(Delivery::bytes);
        let count = batch_size(sizes, max_batch, max_bytes).min(all.len());
        let batch = all.drain(..count);
        let batch: Vec<_> = batch.filter(|delivery| !delivery.is_gone()).collect();
        if batch.len() < count {
            open.remove(count - batch.len());
        }
        batch
    }

    /// Returns until when the member of a bundle that has waited longest for a slot waits; `None`
    /// if there is none.
    pub fn waits_until(&self) -> Option<Instant> {
        self.all().iter().find_map(Delivery::waits_until)
    }

    /// Publishes the members of bundles that have waited for too long as messages of their own.
    /// Returns how many.
    pub fn send_on(&self) -> usize {
        let (now, mut all) = (Instant::now(), self.all());
        let before = all.len();
        // A member that is dropped goes on as a message of its own.
        all.retain(|delivery| delivery.waits_until().is_none_or(|until| until > now));
        before - all.len()
    }

    /// Drops all that wait: they come again, here or elsewhere.
    pub fn clear(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Delivery>> {
        self.0.lock()
    }
}
