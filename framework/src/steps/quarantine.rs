//! The policy of the quarantine: which deliveries must run alone, and which are poison. Pure.
//!
//! The broker's delivery count is about processes, not about messages: when a process crashes, it
//! rises for every delivery that the process had. So a message with a high count moves to the
//! quarantine pipe, `<input>.suspects`, where it is handled alone
//! ([`quarantine_loop`](crate::pipeline::quarantine_loop)).
//!
//! - **A handler that gives up** runs the code of an author. A process takes a message out of that
//!   pipe only while nothing else runs, and starts nothing else until the message is settled. There
//!   the count is proof: if the process crashes, the message that runs alone is the cause. A
//!   message that crashes three processes in this way is *poison* and never runs again.
//! - **A handler that never gives up** runs no such code, so its messages are not the cause. Each
//!   is handled as a batch of one, beside the others, until it is done. After each crash it waits
//!   for longer, up to half a minute.
//!
//! What must stay true: a message that is not given up is published anew before the broker gives up
//! on it. `RabbitMQ` 4 drops a message that came back twenty times.

use std::time::Duration;

use tokio::sync::Notify;

use crate::RetryPolicy;
use crate::broker::{Delivery, HeaderValue, Headers};

/// A delivery that crashed this many processes while it ran alone is poison.
pub(crate) const POISON_AT: u32 = 3;
/// The header with the number of processes that a message had crashed before it was published to
/// the quarantine pipe again, which resets the broker's count.
const CRASHES_HEADER: &str = "x-batchwright-deaths";
/// How long a message that is never given up waits after each crash.
static BACK_OFF: RetryPolicy =
    RetryPolicy::exponential(Duration::from_secs(1), 2.0, LONGEST_BACK_OFF).forever();
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);

/// The quarantine of one input pipe.
#[derive(Debug)]
pub(crate) struct Quarantine {
    /// The quarantine pipe.
    pub pipe: String,
    /// Whether crashes condemn a message.
    gives_up: bool,
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
    /// Comes from the quarantine pipe, and processes have crashed since it was published there. It
    /// must be published there anew, and wait.
    MustWait { crash_count: u32 },
    /// Comes from the quarantine pipe, and must not run again.
    Poison { crash_count: u32 },
}

impl Quarantine {
    /// Returns the quarantine of the input pipe `input`, whose handler gives messages up or never
    /// does.
    pub fn of(input: &str, gives_up: bool) -> Self {
        Self {
            pipe: contract::quarantine_pipe(input),
            gives_up,
            added: Notify::new(),
        }
    }

    /// Judges a delivery.
    pub fn judge(&self, delivery: &Delivery) -> Standing {
        if *delivery.pipe == *self.pipe {
            let crash_count = crash_count(delivery);
            if self.gives_up && crash_count >= POISON_AT {
                Standing::Poison { crash_count }
            } else if !self.gives_up && delivery.delivery_count > 0 {
                Standing::MustWait { crash_count }
            } else {
                Standing::Isolated { crash_count }
            }
        } else if delivery.came_back_often() {
            Standing::MustQuarantine
        } else {
            Standing::Ordinary
        }
    }
}

impl Standing {
    /// Returns whether the delivery is handled alone.
    pub const fn is_isolated(self) -> bool {
        matches!(self, Self::Isolated { .. } | Self::Poison { .. })
    }

    /// Returns the headers for publishing the delivery to its own pipe again. They keep the crash
    /// count.
    pub fn redelivery_headers(self, delivery: &Delivery) -> Headers {
        let mut headers = delivery.headers.clone();
        if let Self::Isolated { crash_count }
        | Self::MustWait { crash_count }
        | Self::Poison { crash_count } = self
            && crash_count > 0
        {
            headers.set(CRASHES_HEADER, HeaderValue::Integer(crash_count.into()));
        }
        headers
    }
}

/// Returns how long a message that is never given up waits when it has crashed this many processes.
pub(crate) fn back_off(crash_count: u32) -> Duration {
    let delay = BACK_OFF.delay_after(crash_count, Duration::ZERO);
    delay.unwrap_or(LONGEST_BACK_OFF)
}

/// Returns how many processes crashed while this delivery, from the quarantine pipe, ran alone.
pub(crate) fn crash_count(delivery: &Delivery) -> u32 {
    let before = match delivery.headers.get(CRASHES_HEADER) {
        Some(HeaderValue::Integer(count)) => u32::try_from(*count).unwrap_or(0),
        _ => 0,
    };
    delivery.delivery_count.saturating_add(before)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Standing::{Isolated, MustQuarantine, MustWait, Ordinary, Poison};
    use super::*;
    use crate::broker::{Settlement, Settler};

    struct Nowhere;

    impl Settler for Nowhere {
        fn settle(&self, _: u64, _: Settlement) {}
    }

    #[test]
    fn crashes_condemn_only_what_runs_alone_and_only_if_the_handler_gives_up() {
        // The deliveries that came back, and the crashes before the message was published anew.
        for (gives_up, pipe, came_back, before, expected) in [
            (true, "in", 4, 0, Ordinary),
            (true, "in", 5, 0, MustQuarantine),
            (true, "in.suspects", 0, 0, Isolated { crash_count: 0 }),
            (true, "in.suspects", 1, 1, Isolated { crash_count: 2 }),
            (true, "in.suspects", 0, 3, Poison { crash_count: 3 }),
            (true, "in.suspects", 2, 1, Poison { crash_count: 3 }),
            (false, "in", 4, 0, Ordinary),
            (false, "in", 5, 0, MustQuarantine),
            (false, "in.suspects", 0, 0, Isolated { crash_count: 0 }),
            (false, "in.suspects", 0, 99, Isolated { crash_count: 99 }),
            (false, "in.suspects", 1, 99, MustWait { crash_count: 100 }),
        ] {
            let mut headers = Headers::default();
            headers.set(CRASHES_HEADER, HeaderValue::Integer(before));
            let settler = Arc::new(Nowhere);
            let delivery = Delivery::new(pipe.into(), "".into(), headers, came_back, 1, settler);
            let standing = Quarantine::of("in", gives_up).judge(&delivery);
            assert_eq!(standing, expected, "{gives_up} {delivery:?}");
        }
    }

    #[test]
    fn message_waits_longer_after_each_crash_up_to_half_a_minute() {
        let delays = [1, 2, 3, 4, 5, 6, 1000, u32::MAX].map(|crashes| back_off(crashes).as_secs());
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
