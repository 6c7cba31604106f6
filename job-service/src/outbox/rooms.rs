//! How many messages the relay may send to a pipe now. The others are held in the outbox.
//!
//! A pipe that holds hours of work makes every later job wait, so a pipe gets what its workers take
//! in about a second ([`Gauges`]). Those who dispatch much to a pipe know best how fast it is, and
//! tell that ([`SeenWorkers::speed_of`]). What is held goes in turn between partitions, then
//! between jobs, then by age.
//!
//! What must stay true:
//! - A few messages now and then go at once, and nobody asks the broker for them.
//! - A pipe that others keep full still gets a few messages every second.
//! - What is remembered is bounded.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use framework::Room;
use framework::broker::{Broker, Gauges};
use store::{HeldMessage, OutboxMessage};
use tokio::time::{Instant, timeout};

use crate::pipes::seen_workers::SeenWorkers;

/// How often a pipe is looked at for which messages are held.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// The same while its room may grow fast.
const LEARNS_EVERY: Duration = Duration::from_millis(2);
/// How many messages a pipe gets in a second before anybody asks whether they fit, and how many it
/// gets although it is full. Both less than any room.
const FEW: u64 = 10;
const SECOND: Duration = Duration::from_secs(1);
/// How long the broker may take. Without an answer, messages go as if they fitted.
const LIMIT: Duration = Duration::from_secs(1);
/// How long it is not asked again then.
const SILENCE: Duration = Duration::from_secs(5);
/// How many pipes are looked at together.
const AT_A_TIME: usize = 8;
/// The most pipes that are remembered, and for each the most jobs and partitions. Their turns begin
/// anew if there are more.
const MOST: usize = 10_000;

/// The pipes of the outbox.
pub struct Rooms<'a> {
    broker: &'a dyn Broker,
    workers: &'a SeenWorkers,
    gauges: &'a Gauges,
    /// What pipes got within a second.
    bursts: HashMap<String, Burst>,
    /// The pipes for which messages are held.
    held: BTreeMap<String, HeldPipe>,
    /// The pipe that was looked at last.
    looked_at: String,
    next_look: Instant,
    /// How long to wait between two looks.
    pause: Duration,
    /// Until when the broker is not asked, because it did not answer.
    silent_until: Option<Instant>,
}

/// How many messages a pipe got, and since when.
#[derive(Debug, Clone, Copy)]
struct Burst {
    count: u64,
    since: Instant,
}

/// A pipe for which messages are held.
#[derive(Debug)]
struct HeldPipe {
    /// The partition that was served last.
    served: String,
    /// When the last message was let go.
    at: Instant,
    /// The turn of the message of each partition that was let go last.
    clocks: HashMap<String, i64>,
    /// The last turn of each job.
    turns: HashMap<Option<i64>, i64>,
}

impl HeldPipe {
    fn new() -> Self {
        Self {
            served: String::new(),
            at: Instant::now(),
            clocks: HashMap::new(),
            turns: HashMap::new(),
        }
    }

    /// Returns the turn of a message of this job: the next one after its last, and after those of
    /// the partition that were let go. So the messages of two jobs alternate.
    fn turn_of(&mut self, message: &OutboxMessage) -> i64 {
        if self.turns.len() >= MOST || self.clocks.len() >= MOST {
            (self.turns, self.clocks) = (HashMap::new(), HashMap::new());
        }
        let clock = self.clocks.get(&message.partition).copied();
        let last = self.turns.entry(message.incarnation).or_default();
        *last = clock.unwrap_or_default().max(*last) + 1;
        *last
    }
}

/// How many messages may be let go for a pipe.
#[derive(Debug)]
pub struct Free {
    pub pipe: String,
    /// The partition that was served last.
    pub after: String,
    pub messages: u64,
}

impl<'a> Rooms<'a> {
    pub fn new(broker: &'a dyn Broker, workers: &'a SeenWorkers, gauges: &'a Gauges) -> Self {
        Self {
            broker,
            workers,
            gauges,
            bursts: HashMap::new(),
            held: BTreeMap::new(),
            looked_at: String::new(),
            next_look: Instant::now(),
            pause: LOOKS_EVERY,
            silent_until: None,
        }
    }

    /// Returns whether a message may go to this pipe now, and counts it. `free` is how many fit
    /// into the pipes that were asked about for those before it.
    pub async fn admits(&mut self, pipe: &str, free: &mut HashMap<String, u64>) -> bool {
        if self.held.contains_key(pipe) {
            return false;
        }
        if self.got(pipe) >= FEW {
            if !free.contains_key(pipe) {
                let room = self.room(pipe).await;
                free.insert(pipe.to_owned(), room.map_or(u64::MAX, Room::free));
            }
            match free.get_mut(pipe) {
                Some(0) => return false,
                Some(free) => *free -= 1,
                None => {}
            }
        }
        self.count(pipe);
        true
    }

    /// Returns the turn of a message that is held.
    pub fn hold(&mut self, message: &OutboxMessage) -> i64 {
        self.add(&message.pipe);
        self.gauges.want(&message.pipe);
        let held = self.held.get_mut(&message.pipe);
        held.map_or(1, |held| held.turn_of(message))
    }

    /// Notes that messages are held for these pipes.
    pub fn know(&mut self, pipes: Vec<String>) {
        for pipe in pipes {
            self.add(&pipe);
        }
    }

    /// Returns when to look at the pipes for which messages are held.
    pub fn next_look(&self) -> Option<Instant> {
        (!self.held.is_empty()).then_some(self.next_look)
    }

    /// Looks at some of the pipes for which messages are held, and returns those that take some.
    pub async fn look(&mut self) -> Vec<Free> {
        let after = self.held.keys().filter(|pipe| **pipe > self.looked_at);
        let before = self.held.keys().filter(|pipe| **pipe <= self.looked_at);
        let pipes: Vec<String> = after.chain(before).take(AT_A_TIME).cloned().collect();
        let (mut free, mut pause) = (Vec::new(), LOOKS_EVERY);
        for pipe in pipes {
            self.gauges.want(&pipe);
            let room = self.room(&pipe).await;
            if room.is_some_and(Room::is_learning) {
                pause = LEARNS_EVERY;
            }
            let messages = room.map_or(u64::MAX, Room::free);
            let Some(held) = self.held.get(&pipe) else {
                continue;
            };
            let is_due = held.at.elapsed() >= SECOND;
            let messages = if is_due { messages.max(FEW) } else { messages };
            if messages > 0 {
                let after = held.served.clone();
                free.push(Free {
                    pipe: pipe.clone(),
                    after,
                    messages,
                });
            }
            self.looked_at = pipe;
        }
        self.pause = pause;
        self.pause();
        free
    }

    /// Waits a moment before the next look, from now on.
    pub fn pause(&mut self) {
        self.next_look = Instant::now() + self.pause;
    }

    /// Does not look before this time.
    pub fn not_before(&mut self, time: Instant) {
        self.next_look = time;
    }

    /// Counts messages that are let go for a pipe; none if no more are held for it.
    pub fn let_go(&mut self, pipe: &str, messages: &[HeldMessage]) {
        let Some(last) = messages.last() else {
            self.held.remove(pipe);
            return;
        };
        if let Some(held) = self.held.get_mut(pipe) {
            held.at = Instant::now();
            held.served.clone_from(&last.message.partition);
            for HeldMessage { turn, message } in messages {
                let clock = held.clocks.entry(message.partition.clone()).or_default();
                *clock = (*clock).max(*turn);
            }
        }
        for _ in messages {
            self.count(pipe);
        }
    }

    /// Adds a pipe for which messages are held. If there are too many, those of others go first.
    fn add(&mut self, pipe: &str) {
        if !self.held.contains_key(pipe) && self.held.len() < MOST {
            self.held.insert(pipe.to_owned(), HeldPipe::new());
        }
    }

    /// Returns how many messages the pipe got within a second.
    fn got(&self, pipe: &str) -> u64 {
        let burst = self.bursts.get(pipe);
        let burst = burst.filter(|burst| burst.since.elapsed() < SECOND);
        burst.map_or(0, |burst| burst.count)
    }

    fn count(&mut self, pipe: &str) {
        self.gauges.add(pipe);
        let count = self.got(pipe);
        if let Some(burst) = self.bursts.get_mut(pipe)
            && count > 0
        {
            burst.count += 1;
            return;
        }
        if self.bursts.len() >= MOST {
            self.bursts
                .retain(|_, burst| burst.since.elapsed() < SECOND);
        }
        if self.bursts.len() < MOST {
            let since = Instant::now();
            self.bursts
                .insert(pipe.to_owned(), Burst { count: 1, since });
        }
    }

    /// Returns the room of a pipe, `None` if the broker does not tell.
    async fn room(&mut self, pipe: &str) -> Option<Room> {
        if self
            .silent_until
            .is_some_and(|until| Instant::now() < until)
        {
            return None;
        }
        // A message waits behind no bundle: they have a pipe of their own.
        let room = self.gauges.room(pipe, self.broker, async || (0, 1));
        let Ok(room) = timeout(LIMIT, room).await else {
            self.silent_until = Some(Instant::now() + SILENCE);
            return None;
        };
        let told = self.workers.speed_of(pipe).unwrap_or_default();
        room.ok().map(|room| room.at_least(told))
    }
}
