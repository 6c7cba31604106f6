//! The policy of the quarantine: which deliveries must run alone, and which are poison. Pure.
//!
//! The broker's delivery count is about processes, not about messages: when a process crashes, it rises for every
//! delivery that the process had. So a message with a high count moves to the quarantine pipe, `<input>.suspects`. A
//! process takes a message out of that pipe only while nothing else runs, and starts nothing else until the message is
//! settled ([`quarantine_loop`](crate::pipeline::quarantine_loop)). There the count is proof: if the process crashes, the message
//! that runs alone is the cause. A message that crashes three processes in this way is *poison* and never runs again.

use tokio::sync::Notify;

use crate::broker::{Delivery, HeaderValue, Headers};

/// A delivery that came back this often is quarantined.
pub(crate) const QUARANTINE_AT: u32 = 5;
/// A delivery that crashed this many processes while it ran alone is poison.
pub(crate) const POISON_AT: u32 = 3;
/// The header with the number of processes that a message had crashed before it was published to the quarantine pipe
/// again, which resets the broker's count.
const CRASHES_HEADER: &str = "x-batchwright-deaths";

/// The quarantine of one input pipe.
#[derive(Debug)]
pub(crate) struct Quarantine {
    /// The quarantine pipe.
    pub pipe: String,
    /// Notified when this runtime has moved a message to the quarantine pipe.
    pub added: Notify,
}

/// How the quarantine judges a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Runs at the same time as other deliveries.
    Ordinary,
    /// Came back too often to run at the same time as others. It must move to the quarantine pipe.
    MustQuarantine,
    /// Comes from the quarantine pipe and runs alone. It has crashed this many processes.
    Isolated { crash_count: u32 },
}

impl Quarantine {
    /// Returns the quarantine of the input pipe `input`.
    pub fn of(input: &str) -> Self {
        Self {
            pipe: contract::quarantine_pipe(input),
            added: Notify::new(),
        }
    }

    /// Judges a delivery.
    pub fn judge(&self, delivery: &Delivery) -> Standing {
        if *delivery.pipe == *self.pipe {
            Standing::Isolated {
                crash_count: crash_count(delivery),
            }
        } else if delivery.delivery_count >= QUARANTINE_AT {
            Standing::MustQuarantine
        } else {
            Standing::Ordinary
        }
    }
}

impl Standing {
    /// Returns whether the delivery runs alone.
    pub const fn is_isolated(self) -> bool {
        matches!(self, Self::Isolated { .. })
    }

    /// Returns whether the delivery must not run again.
    pub const fn is_poison(self) -> bool {
        matches!(self, Self::Isolated { crash_count } if crash_count >= POISON_AT)
    }

    /// Returns the headers for publishing the delivery to its own pipe again. They keep the crash count.
    pub fn redelivery_headers(self, delivery: &Delivery) -> Headers {
        let mut headers = delivery.headers.clone();
        if let Self::Isolated {
            crash_count: count @ 1..,
        } = self
        {
            headers.set(CRASHES_HEADER, HeaderValue::Integer(count.into()));
        }
        headers
    }
}

/// Returns how many processes crashed while this delivery, from the quarantine pipe, ran alone.
pub(crate) fn crash_count(delivery: &Delivery) -> u32 {
    let before = match delivery.headers.get(CRASHES_HEADER) {
        Some(HeaderValue::Integer(count)) => u32::try_from(*count).unwrap_or(0),
        _ => 0,
    };
    delivery.delivery_count.saturating_add(before)
}
