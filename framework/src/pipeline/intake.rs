//! What a worker takes: the deliveries of its input pipe, and the members of bundles.
//!
//! What must stay true: while no slot becomes free, the worker takes bundles ever more
//! rarely. Otherwise an outage would turn all waiting bundles into single messages.

use std::future::pending;
use std::time::Duration;

use contract::bundle_pipe;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::Settings;
use crate::broker::{Broker, BrokerError, Consumer, Delivery};
use crate::config::DEFAULT_BUNDLE;
use crate::pipeline::unpacked::{OnTheirOwn, Unpacked};

/// How many bundles are held in addition to those that the window has room for: while one is
/// settled, the next one is there.
const SPARE: u32 = 2;
/// The shortest and the longest time for which no bundle is taken, if the members of the one before
/// have gone on because nothing can begin.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Takes deliveries from the input pipe, and from its pipe of bundles if the worker reads that.
pub(crate) struct Intake {
    single: Consumer,
    bundles: Option<Bundles>,
}

/// The consumer of bundles.
///
/// While nothing can begin, the members of each bundle go on as messages of their own, which other
/// processes may have slots for. But if nothing can begin anywhere, such as in an outage, all that
/// waits would become single messages. So a bundle is then taken ever more rarely.
pub(crate) struct Bundles {
    consumer: Consumer,
    on_their_own: OnTheirOwn,
    /// How many deliveries the window has room for.
    window: u32,
    /// About how many members the latest bundles had.
    members: u32,
    /// How many bundles are held.
    held: u32,
    /// For how long no bundle is taken, and until when; `None` if something has begun since members
    /// have gone on.
    rest: Option<(Duration, Instant)>,
}

impl Bundles {
    /// Returns the consumer of [`consume_bundles`] for the same window.
    pub const fn new(consumer: Consumer, on_their_own: OnTheirOwn, window: u32) -> Self {
        Self {
            consumer,
            on_their_own,
            window,
            members: DEFAULT_BUNDLE,
            held: bundles_for(window, DEFAULT_BUNDLE),
            rest: None,
        }
    }

    /// Changes for how many deliveries the window has room.
    fn resize(&mut self, window: u32) {
        self.window = window;
        self.hold(bundles_for(window, self.members));
    }

    /// Notes how many members a bundle had. If bundles are smaller than it was thought, more of
    /// them are held: otherwise slots would stay free while bundles wait. A change costs the broker
    /// something, so fewer are held only if they are fewer than half.
    fn had(&mut self, members: usize) {
        let members = u32::try_from(members).unwrap_or(u32::MAX).max(1);
        self.members = self.members.midpoint(members);
        let wanted = bundles_for(self.window, self.members);
        if wanted > self.held || wanted < self.held / 2 {
            self.hold(wanted);
        }
    }

    fn hold(&mut self, bundles: u32) {
        self.held = bundles;
        self.consumer.resize(bundles);
    }

    /// Waits for the next bundle; `None` once the broker is closed. Cancel safe.
    async fn next(&mut self) -> Option<Delivery> {
        if let Some((_, until)) = self.rest {
            sleep_until(until).await;
        }
        self.consumer.next().await
    }

    /// Removes the messages from `into`, from this index on, whose task this process runs already
    /// as the member of a bundle, or has run.
    fn join_members(&self, into: &mut Vec<Delivery>, from: usize) {
        self.on_their_own.known.join(into, from);
    }

    /// Appends the members of a bundle to `into`. Returns how many; 0 if it has none, or all go on
    /// as messages of their own.
    fn take_apart(&mut self, bundle: Delivery, into: &mut Vec<Delivery>) -> usize {
        match Unpacked::take_apart(bundle, &self.on_their_own) {
            Ok(mut members) => {
                let count = members.len();
                if count > 0 {
                    self.had(count);
                }
                into.append(&mut members);
                count
            }
            Err(none) => {
                let (delivery, reason) = *none;
                warn!(pipe = %delivery.pipe, %reason, "a message in a pipe of bundles is none");
                // It is handled as any message that cannot be understood.
                into.push(delivery);
                1
            }
        }
    }
}

/// Consumes the pipe of bundles of an input, for a window with room for this many deliveries;
/// `None` if bundles are turned off, or the input has no such pipe.
pub(crate) async fn consume_bundles(
    broker: &dyn Broker,
    settings: &Settings,
    window: u32,
) -> Result<Option<Consumer>, BrokerError> {
    let are_on = settings.bundle > 1;
    match bundle_pipe(&settings.input).filter(|_| are_on) {
        Some(pipe) => broker
            .consume(&pipe, bundles_for(window, DEFAULT_BUNDLE))
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// Returns how many bundles with so many members a worker holds whose window has room for this many
/// deliveries.
const fn bundles_for(window: u32, members: u32) -> u32 {
    window / members + SPARE
}

impl Intake {
    pub const fn of(single: Consumer, bundles: Option<Bundles>) -> Self {
        Self { single, bundles }
    }

    /// Changes how many deliveries are held.
    pub fn resize(&mut self, window: u32) {
        self.single.resize(window);
        if let Some(bundles) = &mut self.bundles {
            bundles.resize(window);
        }
    }

    /// Waits for deliveries and appends them to `into`: those of a bundle, or at most `limit`
    /// single ones. Returns how many; 0 once the broker is closed.
    pub async fn next_many(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        let Some(bundles) = &mut self.bundles else {
            return self.single.next_many(into, limit).await;
        };
        let before = into.len();
        loop {
            // Not biased: neither of the pipes waits for the other one to be empty.
            let bundle = tokio::select! {
                count = self.single.next_many(into, limit) => {
                    bundles.join_members(into, before);
                    if count == 0 || into.len() > before {
                        return into.len() - before;
                    }
                    continue;
                }
                bundle = bundles.next() => bundle,
            };
            let Some(bundle) = bundle else {
                return 0;
            };
            let count = bundles.take_apart(bundle, into);
            if count > 0 {
                return count;
            }
        }
    }

    /// Waits for a bundle and appends its members to `into`. Returns how many. Never ends if the
    /// worker reads no bundles, or the broker is closed.
    pub async fn next_bundle(&mut self, into: &mut Vec<Delivery>) -> usize {
        let Some(bundles) = &mut self.bundles else {
            return pending().await;
        };
        match bundles.next().await {
            Some(bundle) => bundles.take_apart(bundle, into),
            None => pending().await,
        }
    }

    /// Takes the next bundle later: the members of one have gone on, because nothing could begin.
    /// Each time it is twice as long, until something [can](Self::take_bundles_again).
    pub fn rest_from_bundles(&mut self) {
        if let Some(bundles) = &mut self.bundles {
            let (shortest, longest) = REST;
            let pause = match bundles.rest {
                Some((last, _)) => (last * 2).min(longest),
                None => shortest,
            };
            bundles.rest = Some((pause, Instant::now() + pause));
        }
    }

    /// Returns whether bundles are taken later.
    pub fn rests_from_bundles(&self) -> bool {
        self.bundles
            .as_ref()
            .is_some_and(|bundles| bundles.rest.is_some())
    }

    /// Takes bundles at once again, because something can begin.
    pub fn take_bundles_again(&mut self) {
        if let Some(bundles) = &mut self.bundles {
            bundles.rest = None;
        }
    }

    /// Appends the single deliveries that are ready now, until `into` holds `limit` of them.
    /// Returns how many were appended.
    pub fn take_waiting(&mut self, into: &mut Vec<Delivery>, limit: usize) -> usize {
        let before = into.len();
        self.single.take_waiting(into, limit);
        if let Some(bundles) = &self.bundles {
            bundles.join_members(into, before);
        }
        into.len() - before
    }
}
