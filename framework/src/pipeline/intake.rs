//! What a worker takes: the deliveries of its input pipe, and the members of bundles.

use contract::bundle_pipe;
use tokio::time::Instant;
use tracing::warn;

use crate::Settings;
use crate::broker::{Broker, BrokerError, Consumer, Delivery};
use crate::config::DEFAULT_BUNDLE;
use crate::pipeline::unpacked::{OnTheirOwn, Parts, Unpacked};

/// How many bundles are held in addition to those that the window has room for: while one is settled, the next one is there.
const SPARE: u32 = 2;

/// Takes deliveries from the input pipe, and from its pipe of bundles if the worker reads that.
pub(crate) struct Intake {
    single: Consumer,
    bundles: Option<Bundles>,
}

/// The consumer of bundles.
pub(crate) struct Bundles {
    pub consumer: Consumer,
    pub on_their_own: OnTheirOwn,
}

/// Consumes the pipe of bundles of an input, for a window with room for this many deliveries; `None` if bundles are turned off, or the input
/// has no such pipe.
pub(crate) async fn consume_bundles(
    broker: &dyn Broker,
    settings: &Settings,
    window: u32,
) -> Result<Option<Consumer>, BrokerError> {
    let are_on = settings.bundle > 1;
    match bundle_pipe(&settings.input).filter(|_| are_on) {
        Some(pipe) => broker.consume(&pipe, bundles_for(window)).await.map(Some),
        None => Ok(None),
    }
}

/// Returns how many bundles a worker holds whose window has room for this many deliveries.
const fn bundles_for(window: u32) -> u32 {
    window / DEFAULT_BUNDLE + SPARE
}

impl Intake {
    pub const fn of(single: Consumer, bundles: Option<Bundles>) -> Self {
        Self { single, bundles }
    }

    /// Changes how many deliveries are held.
    pub fn resize(&self, window: u32) {
        self.single.resize(window);
        if let Some(bundles) = &self.bundles {
            bundles.consumer.resize(bundles_for(window));
        }
    }

    /// Waits for deliveries and appends them to `into`: those of a bundle, or at most `limit` single ones. Returns how many; 0 once the
    /// broker is closed.
    pub async fn next_many(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        let Some(bundles) = &mut self.bundles else {
            return self.single.next_many(into, limit).await;
        };
        loop {
            // Not biased: neither of the pipes waits for the other one to be empty.
            let bundle = tokio::select! {
                count = self.single.next_many(into, limit) => return count,
                bundle = bundles.consumer.next() => bundle,
            };
            let Some(bundle) = bundle else {
                return 0;
            };
            match Unpacked::from(bundle, &bundles.on_their_own) {
                Parts::Members(members) if members.is_empty() => {}
                Parts::Members(members) => {
                    let count = members.len();
                    into.extend(members);
                    return count;
                }
                Parts::Messages => {}
                Parts::NoBundle(delivery, reason) => {
                    warn!(pipe = %delivery.pipe, %reason, "a message in a pipe of bundles is none");
                    // It is handled as any message that cannot be understood.
                    into.push(delivery);
                    return 1;
                }
            }
        }
    }

    /// Appends the single deliveries that are ready now, until `into` holds `limit` of them. Returns how many were appended.
    pub fn take_waiting(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        self.single.take_waiting(into, limit)
    }
}

/// Returns until when the member of a bundle that has waited longest for a slot waits; `None` if there is none.
pub(crate) fn waits_until<'a>(received: impl IntoIterator<Item = &'a Delivery>) -> Option<Instant> {
    received.into_iter().find_map(Delivery::waits_until)
}
