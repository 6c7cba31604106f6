use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::broker::HeaderValue;

fn content(text: &str) -> Content {
    Content {
        body: Bytes::copy_from_slice(text.as_bytes()),
        headers: Headers::default(),
    }
}

/// One consumer of one pipe, whose present channel has this number.
struct Fixture {
    lost: LostDeliveries,
    pipe: Arc<str>,
    now: Instant,
    sender: Settlements,
    settlements: mpsc::UnboundedReceiver<(u64, Settlement)>,
}

impl Fixture {
    fn new() -> Self {
        let (sender, settlements) = mpsc::unbounded_channel();
        Self {
            lost: LostDeliveries::default(),
            pipe: "pipe".into(),
            now: Instant::now(),
            sender,
            settlements,
        }
    }

    fn leave(&self, channel: u64, left: &[(u64, &str, bool)]) {
        self.lost.channel_lost(channel, &self.pipe, self.now, || {
            let left = left.iter().map(|(tag, text, is_acked)| Left {
                tag: *tag,
                content: content(text),
                is_acked: *is_acked,
            });
            left.collect()
        });
    }

    fn join(&self, channel: u64, tag: u64, content: &Content) -> Joined {
        self.lost
            .join((channel, tag), &self.pipe, content, &self.sender, self.now)
    }

    fn told(&mut self) -> Vec<(u64, Settlement)> {
        std::iter::from_fn(|| self.settlements.try_recv().ok()).collect()
    }
}

#[test]
fn redelivery_is_settled_like_the_delivery_that_it_has_joined() {
    for settlement in [Settlement::Ack, Settlement::Requeue, Settlement::Reject] {
        let mut fixture = Fixture::new();
        fixture.leave(1, &[(7, "a", false), (8, "b", false)]);
        assert_eq!(fixture.join(2, 1, &content("a")), Joined::Open);
        fixture.lost.settle((1, 8), settlement, fixture.now);
        assert_eq!(fixture.told(), []);
        fixture.lost.settle((1, 7), settlement, fixture.now);
        assert_eq!(fixture.told(), [(1, settlement)]);
        assert_eq!(fixture.join(2, 2, &content("a")), Joined::No);
    }
}

#[test]
fn only_an_equal_message_of_the_same_pipe_joins() {
    let mut fixture = Fixture::new();
    fixture.leave(1, &[(7, "a", false)]);
    let mut attempt = content("a");
    attempt.headers.set("attempt", HeaderValue::Integer(2));
    assert_eq!(fixture.join(2, 1, &attempt), Joined::No);
    assert_eq!(fixture.join(2, 2, &content("b")), Joined::No);
    fixture.pipe = "other".into();
    assert_eq!(fixture.join(2, 3, &content("a")), Joined::No);
}

#[test]
fn one_redelivery_joins_each_delivery() {
    let fixture = Fixture::new();
    fixture.leave(1, &[(7, "a", false), (8, "a", true)]);
    let mut joined = [1, 2, 3].map(|tag| fixture.join(2, tag, &content("a")));
    joined.sort_by_key(|joined| *joined as u8);
    assert_eq!(joined, [Joined::No, Joined::Open, Joined::Acked]);
}

#[test]
fn redelivery_whose_channel_is_lost_gives_way_to_the_next() {
    let mut fixture = Fixture::new();
    fixture.leave(1, &[(7, "a", false)]);
    assert_eq!(fixture.join(2, 1, &content("a")), Joined::Open);
    assert_eq!(fixture.lost.awaited("pipe"), 0);
    fixture.leave(2, &[]);
    assert_eq!(fixture.lost.awaited("pipe"), 1);
    assert_eq!(fixture.join(3, 5, &content("a")), Joined::Open);
    fixture.lost.settle((1, 7), Settlement::Ack, fixture.now);
    assert_eq!(fixture.told(), [(5, Settlement::Ack)]);
}

#[test]
fn acknowledged_delivery_is_remembered_for_a_limited_time_and_number() {
    let mut fixture = Fixture::new();
    fixture.leave(1, &[(7, "a", true), (8, "b", false)]);
    fixture.lost.settle((1, 8), Settlement::Ack, fixture.now);
    fixture.now += ACKED_FOR;
    assert_eq!(fixture.join(2, 1, &content("b")), Joined::Acked);
    fixture.now += Duration::from_millis(1);
    assert_eq!(fixture.join(2, 2, &content("a")), Joined::No);

    let texts: Vec<String> = (0..=ACKED).map(|n| n.to_string()).collect();
    let many: Vec<_> = texts
        .iter()
        .zip(0..)
        .map(|(text, tag)| (tag, text.as_str(), true))
        .collect();
    fixture.leave(3, &many);
    let state = fixture.lost.lock();
    assert_eq!((state.messages.len(), state.acked.len()), (ACKED, ACKED));
    drop(state);
    assert_eq!(fixture.join(4, 1, &content("0")), Joined::No);
    assert_eq!(fixture.join(4, 1, &content("1")), Joined::Acked);

    let large = "x".repeat(ACKED_BYTES / 2);
    fixture.leave(5, &[(1, &large, true), (2, &large, true)]);
    assert!(fixture.lost.lock().acked_bytes <= ACKED_BYTES);
}

#[derive(Debug, Clone)]
enum Step {
    /// Publishes a message with one of a few bodies.
    Publish(u8),
    /// Delivers the oldest message to the consumer.
    Deliver,
    /// Delivers the oldest message to another process, which acknowledges it.
    DeliverElsewhere,
    /// The consumer settles one of the deliveries that it has. The acknowledgement may not be sent
    /// yet.
    Settle(prop::sample::Index, Settlement, bool),
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    let settlement = prop_oneof![4 => Just(Settlement::Ack), 1 => Just(Settlement::Requeue)];
    prop_oneof![
        3 => (0..3_u8).prop_map(Step::Publish),
        6 => Just(Step::Deliver),
        1 => Just(Step::DeliverElsewhere),
        4 => (any::<prop::sample::Index>(), settlement, any::<bool>()).prop_map(|(index, settlement, is_sent)| Step::Settle(index, settlement, is_sent)),
        2 => Just(Step::Lose),
    ]
}

/// A broker with one queue, and a consumer. A message is its body.
struct Model {
    fixture: Fixture,
    channel: u64,
    last_tag: u64,
    /// The messages that wait, each with whether it was delivered before.
    queue: VecDeque<(u8, bool)>,
    unacknowledged: BTreeMap<u64, u8>,
    /// Tags of redeliveries that have joined.
    joined: BTreeSet<u64>,
    /// Tags that are acknowledged, although the broker does not know.
    unsent: BTreeSet<u64>,
    /// What the consumer has.
    held: Vec<(DeliveryId, u8)>,
    published: BTreeMap<u8, usize>,
    handled: BTreeMap<u8, usize>,
    forgotten: BTreeMap<u8, usize>,
}

impl Model {
    fn new() -> Self {
        Self {
            fixture: Fixture::new(),
            channel: 1,
            last_tag: 0,
            queue: VecDeque::new(),
            unacknowledged: BTreeMap::new(),
            joined: BTreeSet::new(),
            unsent: BTreeSet::new(),
            held: Vec::new(),
            published: BTreeMap::new(),
            handled: BTreeMap::new(),
            forgotten: BTreeMap::new(),
        }
    }

    fn text(body: u8) -> Content {
        content(&body.to_string())
    }

    fn forget(&mut self, tag: u64) {
        let body = self.unacknowledged.remove(&tag).unwrap();
        *self.forgotten.entry(body).or_default() += 1;
    }

    fn deliver(&mut self) {
        let Some((body, is_redelivered)) = self.queue.pop_front() else {
            return;
        };
        self.last_tag += 1;
        let tag = self.last_tag;
        self.unacknowledged.insert(tag, body);
        let joined = if is_redelivered {
            self.fixture.join(self.channel, tag, &Self::text(body))
        } else {
            Joined::No
        };
        match joined {
            Joined::No => self.held.push(((self.channel, tag), body)),
            Joined::Open => drop(self.joined.insert(tag)),
            Joined::Acked => self.forget(tag),
        }
    }

    fn settle(&mut self, index: usize, settlement: Settlement, is_sent: bool) {
        let (id, body) = self.held.remove(index);
        if settlement == Settlement::Ack {
            *self.handled.entry(body).or_default() += 1;
        }
        if id.0 != self.channel {
            let now = self.fixture.now;
            self.fixture.lost.settle(id, settlement, now);
            for (tag, settlement) in self.fixture.told() {
                assert!(self.joined.remove(&tag), "{tag} has not joined");
                match settlement {
                    Settlement::Ack => self.forget(tag),
                    _ => self
                        .held
                        .push(((self.channel, tag), self.unacknowledged[&tag])),
                }
            }
        } else if settlement == Settlement::Requeue {
            self.unacknowledged.remove(&id.1);
            self.queue.push_front((body, true));
        } else if is_sent {
            self.forget(id.1);
        } else {
            self.unsent.insert(id.1);
        }
    }

    fn lose(&mut self) {
        let (channel, unsent) = (self.channel, std::mem::take(&mut self.unsent));
        let joined = std::mem::take(&mut self.joined);
        let unacknowledged = std::mem::take(&mut self.unacknowledged);
        let texts: Vec<_> = unacknowledged
            .iter()
            .filter(|(tag, _)| !joined.contains(tag))
            .map(|(tag, body)| (*tag, body.to_string(), unsent.contains(tag)))
            .collect();
        let left: Vec<_> = texts
            .iter()
            .map(|(tag, text, is_acked)| (*tag, text.as_str(), *is_acked))
            .collect();
        self.fixture.leave(channel, &left);
        for body in unacknowledged.into_values().rev() {
            self.queue.push_front((body, true));
        }
        self.channel += 1;
    }
}

proptest! {
    #[test]
    fn every_message_that_the_broker_forgets_was_handled_and_none_beside_itself(steps in prop::collection::vec(step(), 0..120)) {
        let mut model = Model::new();
        let mut is_alone = true;
        for step in steps {
            match step {
                Step::Publish(body) => {
                    *model.published.entry(body).or_default() += 1;
                    model.queue.push_back((body, false));
                }
                Step::Deliver => model.deliver(),
                Step::DeliverElsewhere => {
                    if let Some((body, _)) = model.queue.pop_front() {
                        is_alone = false;
                        *model.handled.entry(body).or_default() += 1;
                        *model.forgotten.entry(body).or_default() += 1;
                    }
                }
                Step::Settle(index, settlement, is_sent) if !model.held.is_empty() => {
                    model.settle(index.index(model.held.len()), settlement, is_sent);
                }
                Step::Settle(..) => {}
                Step::Lose => model.lose(),
            }
            for (body, published) in &model.published {
                let of = |counts: &BTreeMap<u8, usize>| counts.get(body).copied().unwrap_or_default();
                let (handled, forgotten) = (of(&model.handled), of(&model.forgotten));
                prop_assert!(forgotten <= handled, "{forgotten} forgotten, {handled} handled");
                let held = model.held.iter().filter(|(_, other)| other == body).count();
                prop_assert!(!is_alone || handled + held <= *published, "{body} runs again");
            }
        }
        // Whatever happened, everything is handled and forgotten in the end.
        while !model.held.is_empty() || !model.queue.is_empty() {
            model.deliver();
            if !model.held.is_empty() {
                model.settle(0, Settlement::Ack, true);
            }
        }
        let left: Vec<u64> = model.unacknowledged.keys().copied().collect();
        prop_assert!(left.iter().all(|tag| model.unsent.contains(tag)), "{left:?} are stuck");
    }
}
