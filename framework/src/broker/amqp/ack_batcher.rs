//! Combines the settlements of one channel into few commands: one "acknowledge everything up to
//! this tag" costs the broker far less than a thousand single acknowledgements.
//!
//! Pure: the caller reports what was delivered, what was settled and what time it is, and sends the
//! commands that [`take`](AckBatcher::take) returns.
//!
//! What must stay true:
//! - [`AckCommand::AckUpTo`] never covers an open delivery, and never names a tag that the broker
//!   has forgotten.
//! - Every settled tag is sent to the broker exactly once.
//! - An acknowledged tag behind an open one waits at most [`PATIENCE`], so that one long task does
//!   not stall its neighbours. If the open one has blocked others for that long already, later tags
//!   do not wait at all: in a small window, each waiting tag takes up room for another delivery.
//! - The cost per tag is constant, whatever the size of the window.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::lost_deliveries::{Content, Left};
use crate::broker::Settlement;

/// How long an acknowledged tag behind an open one waits before it is sent alone.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// A command for the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckCommand {
    /// Acknowledge this tag and all older ones.
    AckUpTo(u64),
    /// Acknowledge this tag alone.
    Ack(u64),
    /// Requeue this tag.
    Requeue(u64),
    /// Reject this tag without requeueing it.
    Reject(u64),
}

/// The unsettled deliveries of one channel, and the settlements that are not sent yet.
#[derive(Debug, Clone)]
pub struct AckBatcher {
    /// The tag of the first slot. Older tags are settled and sent.
    oldest: u64,
    /// One slot for each tag from `oldest` on.
    slots: VecDeque<Slot>,
    /// Acknowledged tags in the order of their settlement, with its time. Some may have been sent
    /// since.
    waiting: VecDeque<(u64, Instant)>,
    /// The open tag behind which acknowledged tags wait, and since when.
    blocking_tag: Option<(u64, Instant)>,
    /// The number of slots that are [`Slot::Open`].
    open: usize,
    /// The number of slots that are [`Slot::Acked`].
    acked: usize,
    /// Commands for requeued and rejected tags, and since when the first of them waits.
    returned: Vec<AckCommand>,
    returned_since: Option<Instant>,
    window: usize,
}

#[derive(Debug, Clone)]
enum Slot {
    Open(Content),
    /// Acknowledged, but not sent to the broker yet.
    Acked(Content),
    /// Settled, and sent to the broker.
    Sent,
}

impl AckBatcher {
    /// Returns a batcher for a channel with at most `window` unsettled deliveries.
    pub fn new(window: u32) -> Self {
        Self {
            oldest: 1,
            slots: VecDeque::new(),
            waiting: VecDeque::new(),
            blocking_tag: None,
            open: 0,
            acked: 0,
            returned: Vec::new(),
            returned_since: None,
            window: usize::try_from(window).unwrap_or(usize::MAX).max(1),
        }
    }

    /// Records a delivery. Tags arrive in ascending order; a skipped tag counts as settled.
    pub fn delivered(&mut self, tag: u64, content: Content) {
        if self.slots.is_empty() {
            self.oldest = tag;
        }
        while self.oldest + (self.slots.len() as u64) < tag {
            self.slots.push_back(Slot::Sent);
        }
        self.slots.push_back(Slot::Open(content));
        self.open += 1;
    }

    /// Records a settlement. Unknown and repeated tags are ignored.
    pub fn settled(&mut self, tag: u64, settlement: Settlement, now: Instant) {
        let Some(slot) = self.slot(tag) else {
            return;
        };
        let Slot::Open(content) = slot else {
            return;
        };
        match settlement {
            Settlement::Ack => {
                *slot = Slot::Acked(std::mem::take(content));
                self.acked += 1;
                self.waiting.push_back((tag, now));
            }
            Settlement::Requeue => {
                *slot = Slot::Sent;
                self.return_tag(AckCommand::Requeue(tag), now);
            }
            Settlement::Reject => {
                *slot = Slot::Sent;
                self.return_tag(AckCommand::Reject(tag), now);
            }
        }
        self.open -= 1;
    }

    /// Returns the commands to send now, in this order.
    pub fn take(&mut self, now: Instant) -> Vec<AckCommand> {
        self.take_few(now, usize::MAX)
    }

    /// As [`Self::take`], but leaves the acknowledgements of single tags to the next call that
    /// would be beyond `limit` commands.
    pub fn take_few(&mut self, now: Instant, limit: usize) -> Vec<AckCommand> {
        // All of them: the next command may acknowledge up to a later tag.
        let mut commands = std::mem::take(&mut self.returned);
        self.returned_since = None;
        commands.extend(self.take_settled_prefix());
        let flush = self.acked * 2 >= self.window || self.is_stalled(now);
        while commands.len() < limit
            && let Some(&(tag, since)) = self.waiting.front()
        {
            let sent = self.slot(tag).is_none_or(|slot| !slot.is_acked());
            if !sent && !flush && now.duration_since(since) < PATIENCE {
                break;
            }
            self.waiting.pop_front();
            if !sent {
                self.mark_sent(tag);
                commands.push(AckCommand::Ack(tag));
            }
        }
        commands
    }

    /// Returns when [`take`](Self::take) must be called again even if nothing is settled until
    /// then.
    pub fn due(&self) -> Option<Instant> {
        let acked = self.waiting.front().map(|(_, since)| *since + PATIENCE);
        acked.into_iter().chain(self.returned_since).min()
    }

    /// Returns whether the broker knows of as many unsettled deliveries as it may send. Then it has
    /// taken note of every settlement that was sent, and sends nothing more before the next one.
    pub fn is_full(&self) -> bool {
        self.unsent() >= self.window
    }

    /// Returns the number of unsettled deliveries.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Returns the deliveries that the broker still has, when the channel is lost.
    pub fn into_left(self) -> impl Iterator<Item = Left> {
        let left = (self.oldest..).zip(self.slots);
        left.filter_map(|(tag, slot)| {
            let is_acked = slot.is_acked();
            let (Slot::Open(content) | Slot::Acked(content)) = slot else {
                return None;
            };
            Some(Left {
                tag,
                content,
                is_acked,
            })
        })
    }

    /// Returns the number of deliveries of which the broker was not sent the settlement.
    fn unsent(&self) -> usize {
        self.open + self.acked + self.returned.len()
    }

    /// Returns whether the oldest open tag has blocked others for [`PATIENCE`] or longer.
    fn is_stalled(&mut self, now: Instant) -> bool {
        match self.blocking_tag {
            Some((tag, since)) if tag == self.oldest => now.duration_since(since) >= PATIENCE,
            _ => {
                self.blocking_tag = (!self.waiting.is_empty()).then_some((self.oldest, now));
                false
            }
        }
    }

    /// Removes the settled slots at the front. The command names the last of them that the broker
    /// still waits for.
    fn take_settled_prefix(&mut self) -> Option<AckCommand> {
        let mut last = None;
        while let Some(slot) = self.slots.front().filter(|slot| !slot.is_open()) {
            if slot.is_acked() {
                last = Some(self.oldest);
                self.acked -= 1;
            }
            self.slots.pop_front();
            self.oldest += 1;
        }
        while self
            .waiting
            .front()
            .is_some_and(|(tag, _)| *tag < self.oldest)
        {
            self.waiting.pop_front();
        }
        last.map(AckCommand::AckUpTo)
    }

    fn return_tag(&mut self, command: AckCommand, now: Instant) {
        self.returned.push(command);
        self.returned_since.get_or_insert(now);
    }

    fn slot(&mut self, tag: u64) -> Option<&mut Slot> {
        let index = tag.checked_sub(self.oldest)?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    fn mark_sent(&mut self, tag: u64) {
        if let Some(slot) = self.slot(tag) {
            *slot = Slot::Sent;
            self.acked -= 1;
        }
    }
}

impl Slot {
    const fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    const fn is_acked(&self) -> bool {
        matches!(self, Self::Acked(_))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn delivered(window: u32, tags: std::ops::RangeInclusive<u64>) -> AckBatcher {
        let mut acks = AckBatcher::new(window);
        tags.for_each(|tag| acks.delivered(tag, Content::default()));
        acks
    }

    fn ack(acks: &mut AckBatcher, tags: &[u64], now: Instant) {
        for tag in tags {
            acks.settled(*tag, Settlement::Ack, now);
        }
    }

    #[test]
    fn consecutive_acks_from_the_oldest_are_one_command() {
        let now = Instant::now();
        let mut acks = delivered(100, 1..=5);
        ack(&mut acks, &[2, 1, 3], now);
        assert_eq!(acks.take(now), [AckCommand::AckUpTo(3)]);
        assert_eq!((acks.take(now), acks.due(), acks.open()), (vec![], None, 2));
    }

    #[test]
    fn ack_behind_an_open_delivery_waits_and_is_then_sent_alone() {
        let now = Instant::now();
        let mut acks = delivered(100, 1..=3);
        ack(&mut acks, &[2, 3], now);
        assert_eq!(acks.take(now), []);
        assert_eq!(acks.due(), Some(now + PATIENCE));
        assert_eq!(
            acks.take(now + PATIENCE),
            [AckCommand::Ack(2), AckCommand::Ack(3)]
        );
        ack(&mut acks, &[1], now + PATIENCE);
        assert_eq!(acks.take(now + PATIENCE), [AckCommand::AckUpTo(1)]);
    }

    #[test]
    fn acks_do_not_wait_behind_a_delivery_that_has_blocked_for_long() {
        let now = Instant::now();
        let mut acks = delivered(100, 1..=5);
        ack(&mut acks, &[2], now);
        assert_eq!(acks.take(now), []);
        assert_eq!(acks.take(now + PATIENCE), [AckCommand::Ack(2)]);
        ack(&mut acks, &[3], now + PATIENCE);
        assert_eq!(acks.take(now + PATIENCE), [AckCommand::Ack(3)]);
        // The patience starts again with the next delivery that blocks others.
        ack(&mut acks, &[1, 5], now + PATIENCE);
        assert_eq!(acks.take(now + PATIENCE), [AckCommand::AckUpTo(1)]);
    }

    #[test]
    fn acks_of_half_the_window_are_sent_at_once() {
        let now = Instant::now();
        let mut acks = delivered(6, 1..=6);
        ack(&mut acks, &[2, 3], now);
        assert_eq!(acks.take(now), []);
        ack(&mut acks, &[5], now);
        assert_eq!(
            acks.take(now),
            [AckCommand::Ack(2), AckCommand::Ack(3), AckCommand::Ack(5)]
        );
    }

    #[test]
    fn ack_up_to_names_a_tag_that_the_broker_still_knows() {
        let now = Instant::now();
        let mut acks = delivered(100, 1..=3);
        acks.settled(3, Settlement::Requeue, now);
        assert_eq!(acks.take(now), [AckCommand::Requeue(3)]);
        ack(&mut acks, &[1, 2], now);
        assert_eq!(acks.take(now), [AckCommand::AckUpTo(2)]);
        assert_eq!(acks.open(), 0);
    }

    #[test]
    fn requeues_and_rejects_are_sent_at_once() {
        let now = Instant::now();
        let mut acks = delivered(100, 7..=9);
        acks.settled(8, Settlement::Reject, now);
        acks.settled(7, Settlement::Requeue, now);
        assert_eq!(
            acks.take(now),
            [AckCommand::Reject(8), AckCommand::Requeue(7)]
        );
    }

    #[test]
    fn unknown_and_repeated_tags_are_ignored() {
        let now = Instant::now();
        let mut acks = delivered(100, 1..=1);
        ack(&mut acks, &[1, 1, 9, 0], now);
        assert_eq!(acks.take(now), [AckCommand::AckUpTo(1)]);
        ack(&mut acks, &[1], now);
        assert_eq!(acks.take(now + PATIENCE), []);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Deliver,
        /// Settle the open delivery at this position.
        Settle(prop::sample::Index, Settlement),
        Pass(u64),
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let settlement = prop_oneof![8 => Just(Settlement::Ack), 1 => Just(Settlement::Requeue), 1 => Just(Settlement::Reject)];
        prop_oneof![
            4 => Just(Step::Deliver),
            4 => (any::<prop::sample::Index>(), settlement).prop_map(|(index, settlement)| Step::Settle(index, settlement)),
            1 => (0..150_u64).prop_map(Step::Pass),
            2 => prop_oneof![0..20_usize, Just(usize::MAX)].prop_map(Step::Take),
        ]
    }

    /// A model of the broker: it knows the unsettled tags and panics at any other.
    #[derive(Default)]
    struct BrokerModel {
        unsettled: BTreeSet<u64>,
        open: BTreeSet<u64>,
    }

    impl BrokerModel {
        fn receive(&mut self, commands: Vec<AckCommand>) {
            for command in commands {
                let (AckCommand::AckUpTo(tag)
                | AckCommand::Ack(tag)
                | AckCommand::Requeue(tag)
                | AckCommand::Reject(tag)) = command;
                assert!(self.unsettled.remove(&tag), "unknown delivery tag {tag}");
                if matches!(command, AckCommand::AckUpTo(_)) {
                    self.unsettled.retain(|other| *other > tag);
                }
            }
            assert!(
                self.open.is_subset(&self.unsettled),
                "an open delivery was settled: {:?} {:?}",
                self.open,
                self.unsettled
            );
        }
    }

    proptest! {
        #[test]
        fn every_settled_tag_is_sent_once_and_no_open_one(window in 1..40_u32, steps in prop::collection::vec(step(), 0..400)) {
            let mut now = Instant::now();
            let mut acks = AckBatcher::new(window);
            let mut broker = BrokerModel::default();
            let mut next = 1;
            for step in steps {
                match step {
                    Step::Deliver => {
                        acks.delivered(next, Content::default());
                        broker.unsettled.insert(next);
                        broker.open.insert(next);
                        next += 1;
                    }
                    Step::Settle(index, settlement) if !broker.open.is_empty() => {
                        let tag = *broker.open.iter().nth(index.index(broker.open.len())).unwrap();
                        broker.open.remove(&tag);
                        acks.settled(tag, settlement, now);
                    }
                    Step::Settle(..) => {}
                    Step::Pass(millis) => now += Duration::from_millis(millis),
                    Step::Take(limit) => broker.receive(acks.take_few(now, limit)),
                }
                prop_assert_eq!(acks.open(), broker.open.len());
            }
            prop_assert_eq!(acks.unsent(), broker.unsettled.len());
            broker.receive(acks.take(now));
            let left: BTreeSet<u64> = acks.clone().into_left().map(|left| left.tag).collect();
            prop_assert_eq!(&broker.unsettled, &left);
            broker.receive(acks.take(now + PATIENCE));
            prop_assert_eq!(&broker.unsettled, &broker.open);
            prop_assert_eq!(acks.due(), None);
        }
    }
}
