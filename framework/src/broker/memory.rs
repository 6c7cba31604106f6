//! The broker inside this process: nothing survives it, everything else holds.
//!
//! It serves `testing::run` and the simulation, under a paused clock as well: delays are tokio's, and nothing else takes
//! time. Hidden here: how messages lie in memory, and one lock.
//!
//! What must stay true:
//! - A returned message goes back to the place it had, so a pipe keeps its order.
//! - No delivery and no sender is dropped while the lock is held: dropping one settles it, which takes the lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::local_fanout::LocalFanout;
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Delivery, Headers,
    Outgoing, PublishError, Settlement, Settler,
};

/// One process's hold on the messages. Clones are the same process; [`Memory::process`] is another one.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
    process: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    pub fn new() -> Self {
        let end = CancellationToken::new();
        let shared = Shared {
            state: Mutex::default(),
            announcements: LocalFanout::default(),
            timers: TaskTracker::new(),
            end: end.clone(),
            _guard: end.drop_guard(),
        };
        Self {
            shared: Arc::new(shared),
            process: 0,
        }
    }

    /// Another process at the same pipes: it dies and closes by itself.
    #[must_use]
    pub fn process(&self) -> Self {
        let process = self.shared.with(|state| {
            state.processes += 1;
            state.processes
        });
        Self {
            shared: Arc::clone(&self.shared),
            process,
        }
    }

    /// The death of this process, as the pipes see it: its consumers end, what they had comes again with a higher count,
    /// and whatever it settles or publishes from now on is nothing.
    pub fn crash(&self) {
        self.shared.with(|state| state.end(self.process));
    }
}

impl Broker for Memory {
    fn publish(&self, message: Outgoing) -> Confirm {
        let delay = message.delay;
        let taken = self.shared.with(|state| {
            if state.has_ended(self.process) {
                return false;
            }
            state.publish(message, Instant::now());
            true
        });
        if let Some(delay) = delay.filter(|_| taken) {
            Shared::release_later(&self.shared, delay);
        }
        Confirm::ready(if taken {
            Ok(())
        } else {
            Err(PublishError::Closed)
        })
    }

    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        let prefetch = usize::try_from(prefetch).unwrap_or(usize::MAX).max(1);
        let consumer = self.shared.with(|state| {
            if state.has_ended(self.process) {
                return Err(BrokerError::Closed);
            }
            let (sender, receiver) = mpsc::channel(prefetch);
            let settler = Arc::new(Settles {
                shared: Arc::downgrade(&self.shared),
            });
            state.pipe(pipe).consumers.push_back(Slot {
                process: self.process,
                sender,
                settler,
                prefetch,
                unsettled: 0,
            });
            Ok(Consumer::new(receiver))
        });
        ready(consumer).boxed()
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.shared.announcements.announce(body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.shared.announcements.subscribe())).boxed()
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        let depth = self.shared.with(|state| {
            state
                .pipes
                .get(pipe)
                .map_or(0, |pipe| pipe.ready.len() as u64)
        });
        ready(Ok(depth)).boxed()
    }

    fn state(&self) -> BrokerState {
        let ended = self.shared.with(|state| state.has_ended(self.process));
        if ended {
            BrokerState::Closed
        } else {
            BrokerState::Connected
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.crash();
        ready(()).boxed()
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory(process {})", self.process)
    }
}

struct Shared {
    state: Mutex<State>,
    announcements: LocalFanout,
    timers: TaskTracker,
    end: CancellationToken,
    _guard: DropGuard,
}

impl Shared {
    /// Changes the state, hands out what can be handed out, and lets go of ended consumers after the lock.
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (answer, ended) = {
            let mut state = self.lock();
            let answer = change(&mut state);
            state.hand_out();
            (answer, std::mem::take(&mut state.ended))
        };
        drop(ended);
        answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_later(shared: &Arc<Self>, delay: Duration) {
        let end = shared.end.clone();
        let weak = Arc::downgrade(shared);
        shared.timers.spawn(async move {
            if end
                .run_until_cancelled(tokio::time::sleep(delay))
                .await
                .is_some()
                && let Some(shared) = weak.upgrade()
            {
                shared.with(|state| state.release(Instant::now()));
            }
        });
    }
}

#[derive(Default)]
struct State {
    /// In a fixed order, so that a simulation repeats itself.
    pipes: BTreeMap<Arc<str>, Pipe>,
    /// Delayed messages by due time, then in publish order.
    delayed: BTreeMap<(Instant, u64), (Arc<str>, Message)>,
    unsettled: HashMap<u64, Unsettled>,
    /// The senders of ended consumers, to be dropped when the lock is free.
    ended: VecDeque<Slot>,
    ended_processes: Vec<u64>,
    processes: u64,
    /// The number of the latest message, and of the latest delivery.
    places: u64,
    tags: u64,
}

#[derive(Default)]
struct Pipe {
    /// By place.
    ready: VecDeque<Message>,
    consumers: VecDeque<Slot>,
}

#[derive(Clone)]
struct Message {
    /// Where it stands in its pipe.
    place: u64,
    body: Bytes,
    headers: Headers,
    delivery_count: u32,
}

struct Slot {
    process: u64,
    sender: mpsc::Sender<Delivery>,
    /// Names the consumer as well.
    settler: Arc<Settles>,
    prefetch: usize,
    unsettled: usize,
}

struct Unsettled {
    pipe: Arc<str>,
    message: Message,
    process: u64,
    consumer: Arc<Settles>,
}

impl State {
    fn pipe(&mut self, name: &str) -> &mut Pipe {
        if !self.pipes.contains_key(name) {
            self.pipes.insert(name.into(), Pipe::default());
        }
        self.pipes.entry(name.into()).or_default()
    }

    fn publish(&mut self, message: Outgoing, now: Instant) {
        let Outgoing {
            pipe,
            body,
            headers,
            delay,
        } = message;
        self.places += 1;
        let message = Message {
            place: self.places,
            body,
            headers,
            delivery_count: 0,
        };
        match delay {
            Some(delay) => drop(
                self.delayed
                    .insert((now + delay, self.places), (pipe, message)),
            ),
            None => self.pipe(&pipe).ready.push_back(message),
        }
    }

    /// Moves what is due to the tail of its pipe.
    fn release(&mut self, now: Instant) {
        while let Some(entry) = self
            .delayed
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
        {
            let (pipe, mut message) = entry.remove();
            self.places += 1;
            message.place = self.places;
            self.pipe(&pipe).ready.push_back(message);
        }
    }

    fn hand_out(&mut self) {
        let Self {
            pipes,
            unsettled,
            ended,
            tags,
            ..
        } = self;
        for (name, pipe) in pipes {
            while !pipe.ready.is_empty()
                && let Some(mut slot) = pipe.next_with_credit(ended)
            {
                // There is room, because the channel is as wide as the prefetch; but the consumer may go in this moment.
                let Ok(permit) = slot.sender.try_reserve() else {
                    ended.push_back(slot);
                    continue;
                };
                let Some(message) = pipe.ready.pop_front() else {
                    return;
                };
                *tags += 1;
                let Message {
                    body,
                    headers,
                    delivery_count,
                    ..
                } = message.clone();
                let settler = Arc::clone(&slot.settler) as Arc<dyn Settler>;
                permit.send(Delivery::new(
                    Arc::clone(name),
                    body,
                    headers,
                    delivery_count,
                    *tags,
                    settler,
                ));
                let consumer = Arc::clone(&slot.settler);
                unsettled.insert(
                    *tags,
                    Unsettled {
                        pipe: Arc::clone(name),
                        message,
                        process: slot.process,
                        consumer,
                    },
                );
                slot.unsettled += 1;
                pipe.consumers.push_back(slot);
            }
        }
    }

    fn settle(&mut self, tag: u64, settlement: Settlement) {
        let Some(Unsettled {
            pipe,
            mut message,
            consumer,
            ..
        }) = self.unsettled.remove(&tag)
        else {
            return;
        };
        let pipe = self.pipe(&pipe);
        if let Some(slot) = pipe
            .consumers
            .iter_mut()
            .find(|slot| Arc::ptr_eq(&slot.settler, &consumer))
        {
            slot.unsettled -= 1;
        }
        if settlement == Settlement::Requeue {
            message.delivery_count += 1;
            pipe.give_back(message);
        }
    }

    fn end(&mut self, process: u64) {
        self.ended_processes.push(process);
        for pipe in self.pipes.values_mut() {
            let (ended, others) = pipe
                .consumers
                .drain(..)
                .partition(|slot| slot.process == process);
            pipe.consumers = others;
            self.ended.extend::<VecDeque<_>>(ended);
        }
        let mut tags: Vec<u64> = self
            .unsettled
            .iter()
            .filter(|(_, unsettled)| unsettled.process == process)
            .map(|(tag, _)| *tag)
            .collect();
        tags.sort_unstable();
        for tag in tags {
            self.settle(tag, Settlement::Requeue);
        }
    }

    fn has_ended(&self, process: u64) -> bool {
        self.ended_processes.contains(&process)
    }
}

impl Pipe {
    /// Takes out the consumer whose turn it is; it goes to the end of the line.
    fn next_with_credit(&mut self, ended: &mut VecDeque<Slot>) -> Option<Slot> {
        let (gone, alive): (VecDeque<_>, _) = self
            .consumers
            .drain(..)
            .partition(|slot| slot.sender.is_closed());
        ended.extend(gone);
        self.consumers = alive;
        let index = self
            .consumers
            .iter()
            .position(|slot| slot.unsettled < slot.prefetch)?;
        self.consumers.remove(index)
    }

    fn give_back(&mut self, message: Message) {
        let index = self
            .ready
            .iter()
            .position(|other| other.place > message.place)
            .unwrap_or(self.ready.len());
        self.ready.insert(index, message);
    }
}

struct Settles {
    shared: Weak<Shared>,
}

impl Settler for Settles {
    fn settle(&self, tag: u64, settlement: Settlement) {
        if let Some(shared) = self.shared.upgrade() {
            shared.with(|state| state.settle(tag, settlement));
        }
    }
}
