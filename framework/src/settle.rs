//! Turns single acknowledgements into runs, because a broker takes one "everything up to here" far more cheaply than a
//! thousand single ones.
//!
//! Pure: it is told what was delivered, what was settled and what time it is, and answers with what to send.
//!
//! What must stay true:
//! - No [`Send::UpTo`] ever covers a delivery that is still open, nor names a tag the broker has forgotten.
//! - Every acknowledged tag is told to the broker exactly once.
//! - A tag behind an open one waits at most [`PATIENCE`]: one long task must not stall its neighbours. Behind one that has been in
//!   the way for so long already nobody waits: in a small window that would be room that is missed.
//! - Constant time per tag, whatever the window.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::broker::Settlement;

/// How long an acknowledged tag behind an open one waits for the run to close.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// What to tell the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Send {
    /// Acknowledge this tag and all older ones.
    UpTo(u64),
    /// Acknowledge this tag alone.
    One(u64),
    /// Take this tag back.
    Requeue(u64),
    /// Drop this tag.
    Reject(u64),
}

/// The deliveries of one channel, from the oldest that is not settled on.
#[derive(Debug)]
pub struct AckRuns {
    /// The tag of the first slot.
    oldest: u64,
    slots: VecDeque<Slot>,
    /// Acknowledged tags in the order of their settling; some may have been sent meanwhile.
    waiting: VecDeque<(u64, Instant)>,
    /// The open tag that others wait behind, and since when.
    in_the_way: Option<(u64, Instant)>,
    /// How many slots are [`Slot::Open`], and how many [`Slot::Acked`].
    open: usize,
    acked: usize,
    /// Requeued and rejected tags, to be sent as they are.
    returned: Vec<Send>,
    window: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Open,
    /// Settled here; the broker does not know it yet.
    Acked,
    /// The broker knows.
    Told,
}

impl AckRuns {
    /// For a channel with at most `window` unsettled deliveries.
    pub fn new(window: u32) -> Self {
        Self {
            oldest: 1,
            slots: VecDeque::new(),
            waiting: VecDeque::new(),
            in_the_way: None,
            open: 0,
            acked: 0,
            returned: Vec::new(),
            window: usize::try_from(window).unwrap_or(usize::MAX).max(1),
        }
    }

    /// A delivery has arrived. Tags arrive in ascending order; one that was left out counts as settled.
    pub fn delivered(&mut self, tag: u64) {
        if self.slots.is_empty() {
            self.oldest = tag;
        }
        while self.oldest + (self.slots.len() as u64) < tag {
            self.slots.push_back(Slot::Told);
        }
        self.slots.push_back(Slot::Open);
        self.open += 1;
    }

    /// A delivery was settled. Unknown and repeated tags are ignored.
    pub fn settled(&mut self, tag: u64, settlement: Settlement, now: Instant) {
        let Some(slot) = self.slot(tag).filter(|slot| **slot == Slot::Open) else {
            return;
        };
        match settlement {
            Settlement::Ack => {
                *slot = Slot::Acked;
                self.acked += 1;
                self.waiting.push_back((tag, now));
            }
            Settlement::Requeue => {
                *slot = Slot::Told;
                self.returned.push(Send::Requeue(tag));
            }
            Settlement::Reject => {
                *slot = Slot::Told;
                self.returned.push(Send::Reject(tag));
            }
        }
        self.open -= 1;
    }

    /// What to send now, in this order.
    pub fn take(&mut self, now: Instant) -> Vec<Send> {
        let mut sends = std::mem::take(&mut self.returned);
        sends.extend(self.take_run());
        let at_once = self.acked * 2 >= self.window || self.is_stalled(now);
        while let Some(&(tag, since)) = self.waiting.front() {
            let sent = self.slot(tag).is_none_or(|slot| *slot != Slot::Acked);
            if !sent && !at_once && now.duration_since(since) < PATIENCE {
                break;
            }
            self.waiting.pop_front();
            if !sent {
                self.tell(tag);
                sends.push(Send::One(tag));
            }
        }
        sends
    }

    /// When [`take`](Self::take) should be called again though nothing has been settled since.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|(_, since)| *since + PATIENCE)
    }

    /// How many deliveries are neither settled nor on their way to be.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Whether the oldest open tag has held up others for long.
    fn is_stalled(&mut self, now: Instant) -> bool {
        match self.in_the_way {
            Some((tag, since)) if tag == self.oldest => now.duration_since(since) >= PATIENCE,
            _ => {
                self.in_the_way = (!self.waiting.is_empty()).then_some((self.oldest, now));
                false
            }
        }
    }

    /// The settled run at the front. It is named by its last tag that the broker still waits for.
    fn take_run(&mut self) -> Option<Send> {
        let mut last = None;
        while let Some(slot) = self.slots.front().filter(|slot| **slot != Slot::Open) {
            if *slot == Slot::Acked {
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
        last.map(Send::UpTo)
    }

    fn slot(&mut self, tag: u64) -> Option<&mut Slot> {
        let index = tag.checked_sub(self.oldest)?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    fn tell(&mut self, tag: u64) {
        if let Some(slot) = self.slot(tag) {
            *slot = Slot::Told;
            self.acked -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn delivered(window: u32, tags: std::ops::RangeInclusive<u64>) -> AckRuns {
        let mut runs = AckRuns::new(window);
        tags.for_each(|tag| runs.delivered(tag));
        runs
    }

    fn ack(runs: &mut AckRuns, tags: &[u64], now: Instant) {
        for tag in tags {
            runs.settled(*tag, Settlement::Ack, now);
        }
    }

    #[test]
    fn a_run_from_the_oldest_on_is_one_acknowledgement() {
        let now = Instant::now();
        let mut runs = delivered(100, 1..=5);
        ack(&mut runs, &[2, 1, 3], now);
        assert_eq!(runs.take(now), [Send::UpTo(3)]);
        assert_eq!((runs.take(now), runs.due(), runs.open()), (vec![], None, 2));
    }

    #[test]
    fn a_tag_behind_an_open_one_waits_for_company_and_then_goes_alone() {
        let now = Instant::now();
        let mut runs = delivered(100, 1..=3);
        ack(&mut runs, &[2, 3], now);
        assert_eq!(runs.take(now), []);
        assert_eq!(runs.due(), Some(now + PATIENCE));
        assert_eq!(runs.take(now + PATIENCE), [Send::One(2), Send::One(3)]);
        ack(&mut runs, &[1], now + PATIENCE);
        assert_eq!(runs.take(now + PATIENCE), [Send::UpTo(1)]);
    }

    #[test]
    fn nobody_waits_behind_one_that_has_been_in_the_way_for_long() {
        let now = Instant::now();
        let mut runs = delivered(100, 1..=5);
        ack(&mut runs, &[2], now);
        assert_eq!(runs.take(now), []);
        assert_eq!(runs.take(now + PATIENCE), [Send::One(2)]);
        ack(&mut runs, &[3], now + PATIENCE);
        assert_eq!(runs.take(now + PATIENCE), [Send::One(3)]);
        // The next that is in the way has its own time.
        ack(&mut runs, &[1, 5], now + PATIENCE);
        assert_eq!(runs.take(now + PATIENCE), [Send::UpTo(1)]);
    }

    #[test]
    fn half_a_settled_window_does_not_wait() {
        let now = Instant::now();
        let mut runs = delivered(6, 1..=6);
        ack(&mut runs, &[2, 3], now);
        assert_eq!(runs.take(now), []);
        ack(&mut runs, &[5], now);
        assert_eq!(runs.take(now), [Send::One(2), Send::One(3), Send::One(5)]);
    }

    #[test]
    fn a_run_is_never_named_by_a_tag_that_the_broker_has_forgotten() {
        let now = Instant::now();
        let mut runs = delivered(100, 1..=3);
        runs.settled(3, Settlement::Requeue, now);
        assert_eq!(runs.take(now), [Send::Requeue(3)]);
        ack(&mut runs, &[1, 2], now);
        assert_eq!(runs.take(now), [Send::UpTo(2)]);
        assert_eq!(runs.open(), 0);
    }

    #[test]
    fn what_is_returned_goes_alone_and_at_once() {
        let now = Instant::now();
        let mut runs = delivered(100, 7..=9);
        runs.settled(8, Settlement::Reject, now);
        runs.settled(7, Settlement::Requeue, now);
        assert_eq!(runs.take(now), [Send::Reject(8), Send::Requeue(7)]);
    }

    #[test]
    fn unknown_and_repeated_tags_are_ignored() {
        let now = Instant::now();
        let mut runs = delivered(100, 1..=1);
        ack(&mut runs, &[1, 1, 9, 0], now);
        assert_eq!(runs.take(now), [Send::UpTo(1)]);
        ack(&mut runs, &[1], now);
        assert_eq!(runs.take(now + PATIENCE), []);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Deliver,
        /// Settle the open delivery at this position.
        Settle(prop::sample::Index, Settlement),
        Pass(u64),
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        let settlement = prop_oneof![8 => Just(Settlement::Ack), 1 => Just(Settlement::Requeue), 1 => Just(Settlement::Reject)];
        prop_oneof![
            4 => Just(Step::Deliver),
            4 => (any::<prop::sample::Index>(), settlement).prop_map(|(index, settlement)| Step::Settle(index, settlement)),
            1 => (0..150_u64).prop_map(Step::Pass),
            2 => Just(Step::Take),
        ]
    }

    /// What a broker makes of what it is sent: it knows the unsettled tags and refuses all others.
    #[derive(Default)]
    struct Peer {
        unsettled: BTreeSet<u64>,
        open: BTreeSet<u64>,
    }

    impl Peer {
        fn receive(&mut self, sends: Vec<Send>) {
            for send in sends {
                let (Send::UpTo(tag) | Send::One(tag) | Send::Requeue(tag) | Send::Reject(tag)) =
                    send;
                assert!(self.unsettled.remove(&tag), "unknown delivery tag {tag}");
                if matches!(send, Send::UpTo(_)) {
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
        fn every_settled_tag_is_told_once_and_no_open_one(window in 1..40_u32, steps in prop::collection::vec(step(), 0..400)) {
            let mut now = Instant::now();
            let mut runs = AckRuns::new(window);
            let mut peer = Peer::default();
            let mut next = 1;
            for step in steps {
                match step {
                    Step::Deliver => {
                        runs.delivered(next);
                        peer.unsettled.insert(next);
                        peer.open.insert(next);
                        next += 1;
                    }
                    Step::Settle(index, settlement) if !peer.open.is_empty() => {
                        let tag = *peer.open.iter().nth(index.index(peer.open.len())).unwrap();
                        peer.open.remove(&tag);
                        runs.settled(tag, settlement, now);
                    }
                    Step::Settle(..) => {}
                    Step::Pass(millis) => now += Duration::from_millis(millis),
                    Step::Take => peer.receive(runs.take(now)),
                }
                prop_assert_eq!(runs.open(), peer.open.len());
            }
            peer.receive(runs.take(now));
            peer.receive(runs.take(now + PATIENCE));
            prop_assert_eq!(&peer.unsettled, &peer.open);
            prop_assert_eq!(runs.due(), None);
        }
    }
}
