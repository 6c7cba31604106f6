//! The rules of a pipe, and a property over all that consumers can do.

use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds {
    messages: 4,
    bytes: 1 << 20,
};

fn pipe() -> Pipe {
    Pipe::new("p", 3, BOUNDS, &Arc::default())
}

fn message(id: Id) -> Message {
    Message {
        id,
        delivery_count: 0,
        sent: 0,
        headers: Headers::default(),
        body: Bytes::from_static(b"body"),
    }
}

fn consumer(number: u32) -> ConsumerKey {
    let process = number % 2;
    ConsumerKey { process, number }
}

fn position(id: Id) -> i64 {
    id - rows_of(3).0
}

/// Assigns and stores messages in one commit.
fn store(pipe: &mut Pipe, count: u64) {
    let ids: Vec<Id> = (0..count).map(|_| pipe.assign()).collect();
    pipe.raise_watermark();
    commit(pipe);
    for id in ids {
        pipe.stored(message(id));
    }
}

fn commit(pipe: &mut Pipe) {
    if let Some(mark) = pipe.unwritten_mark() {
        pipe.marked(mark);
    }
}

/// Reads the messages at these positions from disk.
fn load(pipe: &mut Pipe, positions: std::ops::RangeInclusive<i64>) {
    let after = pipe.wants_page().unwrap();
    assert_eq!(position(after) + 1, *positions.start());
    let page = positions.map(|position| message(rows_of(3).0 + position));
    pipe.loaded(after, page.collect());
}

fn handed_out(pipe: &mut Pipe) -> Vec<i64> {
    std::iter::from_fn(|| pipe.hand_out())
        .map(|(_, message)| position(message.id))
        .collect()
}

#[test]
fn message_for_a_waiting_consumer_needs_one_commit() {
    let mut pipe = pipe();
    pipe.join(consumer(1), 2);
    store(&mut pipe, 3);
    assert_eq!(handed_out(&mut pipe), [1, 2]);
    assert_eq!((pipe.depth(), pipe.raise_watermark()), (1, false));
}

#[test]
fn no_message_is_delivered_beyond_the_committed_watermark() {
    let mut pipe = pipe();
    store(&mut pipe, 3);
    pipe.join(consumer(1), 2);
    load(&mut pipe, 1..=3);
    assert_eq!(handed_out(&mut pipe), [0_i64; 0]);
    assert!(pipe.raise_watermark());
    assert_eq!(handed_out(&mut pipe), [0_i64; 0]);
    commit(&mut pipe);
    assert_eq!(handed_out(&mut pipe), [1, 2]);
}

#[test]
fn watermark_moves_as_in_the_example_of_the_module_documentation() {
    let bounds = Bounds {
        messages: 10,
        ..BOUNDS
    };
    let mut pipe = Pipe::new("p", 3, bounds, &Arc::default());
    let watermarks = |pipe: &Pipe| {
        (
            position(pipe.mark.handed_out),
            position(pipe.written.handed_out),
        )
    };
    store(&mut pipe, 6);
    pipe.join(consumer(1), 3);
    load(&mut pipe, 1..=6);
    assert!(pipe.raise_watermark());
    assert_eq!(watermarks(&pipe), (3, 0));
    commit(&mut pipe);
    assert_eq!(watermarks(&pipe), (3, 3));
    assert_eq!(handed_out(&mut pipe), [1, 2, 3]);
    for position in [1, 2] {
        pipe.settle(consumer(1), rows_of(3).0 + position, Settlement::Ack);
    }
    assert!(pipe.raise_watermark());
    assert_eq!(watermarks(&pipe), (5, 3));
    commit(&mut pipe);
    assert_eq!(watermarks(&pipe), (5, 5));
    assert_eq!(handed_out(&mut pipe), [4, 5]);
}

#[test]
fn messages_that_exceed_the_bounds_are_read_from_disk_in_order() {
    let mut pipe = pipe();
    pipe.join(consumer(1), 10);
    let ids: Vec<Id> = (0..6).map(|_| pipe.assign()).collect();
    for id in ids {
        pipe.stored(message(id));
    }
    assert_eq!(
        (pipe.ready.len(), pipe.only_on_disk, pipe.wants_page()),
        (4, 2, None)
    );
    assert!(pipe.raise_watermark());
    commit(&mut pipe);
    assert_eq!(handed_out(&mut pipe), [1, 2, 3, 4]);
    store(&mut pipe, 1);
    assert_eq!(handed_out(&mut pipe), [0_i64; 0]);
    load(&mut pipe, 5..=7);
    assert!(pipe.raise_watermark());
    commit(&mut pipe);
    assert_eq!(handed_out(&mut pipe), [5, 6, 7]);
    assert_eq!(pipe.depth(), 0);
}

#[test]
fn requeued_messages_return_to_their_former_positions() {
    let mut pipe = pipe();
    pipe.join(consumer(1), 3);
    store(&mut pipe, 4);
    assert_eq!(handed_out(&mut pipe), [1, 2, 3]);
    for position in [3, 1] {
        let Settled::Requeued(message) =
            pipe.settle(consumer(1), rows_of(3).0 + position, Settlement::Requeue)
        else {
            panic!("{position}")
        };
        assert_eq!(message.delivery_count, 1);
        pipe.requeue(message);
    }
    assert_eq!(handed_out(&mut pipe), [1, 3]);
}

#[test]
fn consumers_take_turns() {
    let mut pipe = pipe();
    pipe.join(consumer(1), 2);
    pipe.join(consumer(2), 1);
    store(&mut pipe, 4);
    let keys: Vec<ConsumerKey> = std::iter::from_fn(|| pipe.hand_out())
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, [1, 2, 1].map(consumer));
}

#[test]
fn pipe_without_consumers_keeps_no_message_in_memory() {
    let memory = Arc::default();
    let mut pipe = Pipe::new("p", 3, BOUNDS, &memory);
    let used = || memory.used.load(Ordering::Relaxed);
    store(&mut pipe, 3);
    assert_eq!((used(), pipe.depth()), (0, 3));
    pipe.join(consumer(1), 2);
    load(&mut pipe, 1..=3);
    pipe.raise_watermark();
    commit(&mut pipe);
    assert_eq!(handed_out(&mut pipe), [1, 2]);
    pipe.settle(consumer(1), rows_of(3).0 + 1, Settlement::Ack);
    pipe.retain_consumers(|_| false);
    let Settled::Requeued(second) = pipe.settle(consumer(1), rows_of(3).0 + 2, Settlement::Requeue)
    else {
        panic!("it was unsettled")
    };
    assert!(used() > 0);
    pipe.requeue(second);
    assert_eq!((used(), pipe.depth()), (0, 2));
    pipe.join(consumer(2), 2);
    load(&mut pipe, 2..=3);
}

#[test]
fn pipes_share_one_bound_of_memory_and_none_stands_still() {
    let memory = Arc::new(Memory::new(1000, 100));
    let bounds = Bounds {
        messages: 1000,
        ..BOUNDS
    };
    let mut pipes = [1, 2].map(|number| Pipe::new("p", number, bounds, &memory));
    for (key, pipe) in (1..).zip(&mut pipes) {
        pipe.join(consumer(key), 1000);
        for id in (0..100).map(|_| pipe.assign()).collect::<Vec<_>>() {
            pipe.stored(message(id));
        }
    }
    assert_eq!(pipes.each_ref().map(|pipe| pipe.ready.len()), [5, 1]);
    assert!(memory.used.load(Ordering::Relaxed) < 1300);
    for pipe in &mut pipes {
        pipe.raise_watermark();
        commit(pipe);
        while pipe.hand_out().is_some() {}
        // What is delivered is in memory, too.
        assert!(pipe.wants_page().is_none() && pipe.waits_for_memory());
    }
    let first = pipes[1].unsettled.keys().next().copied().unwrap();
    pipes[1].settle(consumer(2), first, Settlement::Ack);
    assert!(pipes[1].wants_page().is_some());
}

#[test]
fn only_messages_that_no_consumer_may_have_received_are_discarded() {
    let mut pipe = pipe();
    store(&mut pipe, 2);
    let [first, second] = [1, 2].map(|position| rows_of(3).0 + position);
    assert!(pipe.discard(first, pipe.joined()));
    assert_eq!((pipe.depth(), pipe.mark.stored), (1, 1));
    let read_before = pipe.joined();
    pipe.join(consumer(1), 1);
    assert!(!pipe.discard(second, pipe.joined()));
    pipe.retain_consumers(|_| false);
    assert!(!pipe.discard(second, read_before));
    assert_eq!(pipe.depth(), 1);
}

/// What happens to a pipe.
#[derive(Debug, Clone)]
enum Event {
    Publish(u8),
    Join(u8),
    Leave,
    /// A process ends.
    End(u32),
    /// Settles one of the unsettled messages.
    Settle(usize, bool),
    Work,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..6_u8).prop_map(Event::Publish),
        (1..5_u8).prop_map(Event::Join),
        Just(Event::Leave),
        (0..2_u32).prop_map(Event::End),
        (any::<usize>(), any::<bool>()).prop_map(|(of, ack)| Event::Settle(of, ack)),
        Just(Event::Work),
        Just(Event::Work),
    ]
}

/// A pipe and its rows, as the writer keeps them.
struct Run {
    pipe: Pipe,
    rows: BTreeMap<Id, Message>,
    published: Vec<Message>,
    settled: Vec<Id>,
    returned: Vec<Message>,
    /// What consumers hold.
    held: Vec<(ConsumerKey, Id)>,
    /// What was with processes that have ended.
    lost: Vec<(ConsumerKey, Id)>,
    consumers: u32,
}

impl Run {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Publish(count) => {
                for _ in 0..*count {
                    let message = message(self.pipe.assign());
                    self.published.push(message);
                }
            }
            Event::Join(prefetch) => {
                self.consumers += 1;
                let key = consumer(self.consumers);
                self.pipe.join(key, (*prefetch).into());
            }
            Event::Leave => self.pipe.retain_consumers(|_| false),
            Event::End(process) => {
                let ends = |key: ConsumerKey| key.process == *process;
                self.returned.extend(self.pipe.leave(ends));
                self.lost
                    .extend(self.held.extract_if(.., |(key, _)| ends(*key)));
            }
            Event::Settle(of, ack) if !self.held.is_empty() => {
                let (key, id) = self.held.swap_remove(of % self.held.len());
                let settlement = if *ack {
                    Settlement::Ack
                } else {
                    Settlement::Requeue
                };
                match self.pipe.settle(key, id, settlement) {
                    Settled::Done => self.settled.push(id),
                    Settled::Requeued(message) => self.returned.push(message),
                    Settled::Unknown => panic!("{id} was held"),
                }
            }
            Event::Settle(..) => {}
            Event::Work => self.work(),
        }
    }

    fn work(&mut self) {
        self.pipe.raise_watermark();
        let page = self.pipe.wants_page();
        commit(&mut self.pipe);
        let published = std::mem::take(&mut self.published);
        self.rows.extend(
            published
                .iter()
                .map(|message| (message.id, message.clone())),
        );
        for id in self.settled.drain(..) {
            assert!(self.rows.remove(&id).is_some(), "{id} was deleted twice");
        }
        for message in published {
            self.pipe.stored(message);
        }
        for message in std::mem::take(&mut self.returned) {
            self.rows.insert(message.id, message.clone());
            self.pipe.requeue(message);
        }
        if let Some(after) = page {
            let page = self.rows.range(after + 1..).take(3);
            self.pipe
                .loaded(after, page.map(|(_, message)| message.clone()).collect());
        }
        let wanted = self.wanted();
        let mut last = None;
        while let Some((key, message)) = self.pipe.hand_out() {
            assert!(Some(message.id) > last, "out of order");
            let is_held = self.held.iter().any(|(_, id)| *id == message.id);
            assert!(!is_held, "delivered twice");
            assert!(
                self.rows.contains_key(&message.id),
                "delivered although deleted"
            );
            last = Some(message.id);
            self.held.push((key, message.id));
        }
        for (key, id) in self.lost.drain(..) {
            let settled = self.pipe.settle(key, id, Settlement::Ack);
            assert!(matches!(settled, Settled::Unknown), "{settled:?}");
        }
        // So the disk may work while messages are delivered.
        assert_eq!(self.wanted(), wanted);
    }

    /// Returns what the disk must do now.
    fn wanted(&mut self) -> (Option<Id>, Mark) {
        self.pipe.raise_watermark();
        (self.pipe.wants_page(), self.pipe.mark)
    }
}

proptest! {
    #[test]
    fn every_message_is_delivered_whatever_consumers_do(events in prop::collection::vec(event(), 0..60)) {
        let memory = Arc::new(Memory::new(1000, 300));
        let bounds = Bounds { messages: 4, bytes: 14 };
        let mut run = Run {
            pipe: Pipe::new("p", 3, bounds, &memory),
            rows: BTreeMap::new(),
            published: Vec::new(),
            settled: Vec::new(),
            returned: Vec::new(),
            held: Vec::new(),
            lost: Vec::new(),
            consumers: 0,
        };
        for event in &events {
            run.apply(event);
            let waiting = run.rows.len() + run.published.len() - run.settled.len();
            prop_assert_eq!(run.pipe.mark.stored, waiting as u64);
            if !run.pipe.is_consumed() && run.held.is_empty() && run.returned.is_empty() {
                prop_assert_eq!(memory.used.load(Ordering::Relaxed), 0);
            }
        }
        run.apply(&Event::Join(5));
        for _ in 0..400 {
            run.work();
            while !run.held.is_empty() {
                run.apply(&Event::Settle(0, true));
            }
        }
        prop_assert!(run.rows.is_empty(), "{:?}", run.rows.keys());
        prop_assert_eq!(run.pipe.depth(), 0);
        prop_assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}
