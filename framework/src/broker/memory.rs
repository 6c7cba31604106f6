//! A broker that keeps its messages in memory. They do not survive the process; all other rules of
//! [`Broker`] hold.
//!
//! It serves tests and the simulation. It works under a paused tokio clock, because delays are
//! tokio's and nothing else takes time. All state is behind one lock.
//!
//! What must stay true:
//! - A requeued message returns to its former position, so a pipe keeps its order.
//! - No delivery and no sender is dropped while the lock is held, because dropping a delivery
//!   settles it, which takes the lock.

mod intercepting;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use self::intercepting::Intercepting;
use super::local_fanout::LocalFanout;
use super::queries::LocalQueries;
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Delivery, Headers,
    Outgoing, Peeked, PipeState, PublishError, Queries, RESIZABLE_TO, Settlement, Settler,
    Unanswered,
};
use crate::clock::Clock;
use crate::health::Health;

/// A [`Broker`] in memory, as one process sees it.
///
/// Clones belong to the same simulated process. [`Memory::process`] returns the view of another
/// process with the same pipes.
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
    /// Returns a broker without pipes.
    pub fn new() -> Self {
        let end = CancellationToken::new();
        let shared = Shared {
            state: Mutex::default(),
            announcements: LocalFanout::new(Health::default()),
            signs: LocalFanout::new(Health::default()),
            queries: LocalQueries::default(),
            timers: TaskTracker::new(),
            end: end.clone(),
            _guard: end.drop_guard(),
        };
        Self {
            shared: Arc::new(shared),
            process: 0,
        }
    }

    /// Returns the view of another process with the same pipes. It crashes and closes independently
    /// of this one.
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

    /// Simulates the death of this process: its consumers end, its unsettled messages are delivered
    /// again with a higher count, and from now on everything that it settles or publishes is
    /// ignored.
    pub fn crash(&self) {
        self.shared.with(|state| state.end(self.process));
    }
}

impl Broker for Memory {
    fn publish(&self, message: Outgoing) -> Confirm {
        if let Some(error) = PublishError::of_name(&message.pipe) {
            return Confirm::ready(Err(error));
        }
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
            let (sender, receiver) = mpsc::channel(prefetch.max(RESIZABLE_TO as usize));
            let settler = Arc::new(MemorySettler {
                shared: Arc::downgrade(&self.shared),
            });
            let resized = Arc::clone(&settler);
            let resize = move |prefetch: u32| resized.resize(prefetch);
            state.pipe(pipe).consumers.push_back(Registration {
                process: self.process,
                sender,
                settler,
                prefetch,
                unsettled: 0,
            });
            Ok(Consumer::resizable(receiver, resize))
        });
        ready(consumer).boxed()
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.shared.announcements.announce(body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.shared.announcements.subscribe())).boxed()
    }

    fn carries_signs(&self) -> bool {
        true
    }

    fn tell(&self, sign: Bytes) -> Confirm {
        self.shared.signs.announce(sign)
    }

    fn signs(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.shared.signs.subscribe())).boxed()
    }

    fn ask<'a>(
        &'a self,
        pipe: &'a str,
        question: Bytes,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Bytes, Unanswered>> {
        self.shared.queries.ask(pipe, question, limit).boxed()
    }

    fn carries_queries(&self) -> bool {
        true
    }

    fn queries<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Queries, BrokerError>> {
        ready(Ok(self.shared.queries.listen(pipe))).boxed()
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

    fn exists<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<bool, BrokerError>> {
        let exists = self.shared.with(|state| state.pipes.contains_key(pipe));
        ready(Ok(exists)).boxed()
    }

    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        let state = self.shared.with(|state| state.look(pipe));
        ready(Ok(state)).boxed()
    }

    fn look_at_all(
        &self,
    ) -> BoxFuture<'_, Result<Option<BTreeMap<String, PipeState>>, BrokerError>> {
        let all = self.shared.with(|state| {
            let names = state.pipes.keys();
            let look = |name: &Arc<str>| Some((name.to_string(), state.look(name)?));
            names.filter_map(look).collect()
        });
        ready(Ok(Some(all))).boxed()
    }

    fn peek<'a>(
        &'a self,
        pipe: &'a str,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<Peeked>>, BrokerError>> {
        let messages = self.shared.with(|state| {
            let ready = state.pipes.get(pipe).into_iter().flat_map(|it| &it.ready);
            let mut read = 0;
            ready
                .take_while(|message| {
                    let fits = read < bytes;
                    read += message.body.len();
                    fits
                })
                .take(limit)
                .map(|message| Peeked {
                    headers: message.headers.clone(),
                    body: message.body.clone(),
                })
                .collect()
        });
        ready(Ok(Some(messages))).boxed()
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
    signs: LocalFanout,
    queries: LocalQueries,
    timers: TaskTracker,
    end: CancellationToken,
    _guard: DropGuard,
}

impl Shared {
    /// Changes the state under the lock and delivers what can be delivered. Drops ended consumers
    /// after the lock is released.
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, ended) = {
            let mut state = self.lock();
            let result = change(&mut state);
            state.hand_out();
            (result, std::mem::take(&mut state.ended))
        };
        drop(ended);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Moves delayed messages to their pipes after `delay`.
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
    /// In a fixed order, so that a simulation can be repeated.
    pipes: BTreeMap<Arc<str>, Pipe>,
    /// Delayed messages by the time at which they are due, then in publish order.
    delayed: BTreeMap<(Instant, u64), (Arc<str>, Message)>,
    unsettled: HashMap<u64, Unsettled>,
    /// Ended consumers, to be dropped after the lock is released.
    ended: VecDeque<Registration>,
    ended_processes: Vec<u64>,
    processes: u64,
    /// The position of the latest message.
    last_position: u64,
    /// The tag of the latest delivery.
    last_tag: u64,
}

#[derive(Default)]
struct Pipe {
    /// Ordered by position.
    ready: VecDeque<Message>,
    consumers: VecDeque<Registration>,
}

#[derive(Clone)]
struct Message {
    /// Orders the messages of a pipe.
    position: u64,
    body: Bytes,
    headers: Headers,
    delivery_count: u32,
    sent: i64,
}

struct Registration {
    process: u64,
    sender: mpsc::Sender<Delivery>,
    /// Also identifies the consumer.
    settler: Arc<MemorySettler>,
    prefetch: usize,
    unsettled: usize,
}

struct Unsettled {
    pipe: Arc<str>,
    message: Message,
    process: u64,
    consumer: Arc<MemorySettler>,
}

impl State {
    fn look(&self, pipe: &str) -> Option<PipeState> {
        let delayed = self.delayed.values().filter(|(name, _)| **name == *pipe);
        let delayed = delayed.count() as u64;
        self.pipes.get(pipe).map(|it| PipeState {
            messages: it.ready.len() as u64,
            consumers: Some(it.living_consumers()),
            delayed: Some(delayed),
            flow: None,
        })
    }

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
        self.last_position += 1;
        let message = Message {
            position: self.last_position,
            body,
            headers,
            delivery_count: 0,
            sent: Clock::system().now_seconds()
                + delay.map_or(0, |delay| delay.as_secs().cast_signed()),
        };
        match delay {
            Some(delay) => drop(
                self.delayed
                    .insert((now + delay, self.last_position), (pipe, message)),
            ),
            None => self.pipe(&pipe).ready.push_back(message),
        }
    }

    /// Appends the delayed messages whose delay is over to their pipes.
    fn release(&mut self, now: Instant) {
        while let Some(entry) = self
            .delayed
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
        {
            let (pipe, mut message) = entry.remove();
            self.last_position += 1;
            message.position = self.last_position;
            self.pipe(&pipe).ready.push_back(message);
        }
    }

    fn hand_out(&mut self) {
        let Self {
            pipes,
            unsettled,
            ended,
            last_tag,
            ..
        } = self;
        for (name, pipe) in pipes {
            while !pipe.ready.is_empty()
                && let Some(mut registration) = pipe.take_next_consumer(ended)
            {
                // The channel has room, because its capacity is the prefetch; but the consumer may
                // be dropped right now.
                let Ok(permit) = registration.sender.try_reserve() else {
                    ended.push_back(registration);
                    continue;
                };
                let Some(message) = pipe.ready.pop_front() else {
                    return;
                };
                *last_tag += 1;
                let Message {
                    body,
                    headers,
                    delivery_count,
                    sent,
                    ..
                } = message.clone();
                let settler = Arc::clone(&registration.settler) as Arc<dyn Settler>;
                let (from, tag) = (Arc::clone(name), *last_tag);
                let delivery = Delivery::new(from, body, headers, delivery_count, tag, settler);
                permit.send(delivery.sent_at(Some(sent)));
                let consumer = Arc::clone(&registration.settler);
                unsettled.insert(
                    *last_tag,
                    Unsettled {
                        pipe: Arc::clone(name),
                        message,
                        process: registration.process,
                        consumer,
                    },
                );
                registration.unsettled += 1;
                pipe.consumers.push_back(registration);
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
        if let Some(registration) = pipe
            .consumers
            .iter_mut()
            .find(|registration| Arc::ptr_eq(&registration.settler, &consumer))
        {
            registration.unsettled -= 1;
        }
        if settlement == Settlement::Requeue {
            message.delivery_count += 1;
            pipe.requeue(message);
        }
    }

    fn end(&mut self, process: u64) {
        self.ended_processes.push(process);
        for pipe in self.pipes.values_mut() {
            let (ended, others) = pipe
                .consumers
                .drain(..)
                .partition(|registration| registration.process == process);
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
    /// Returns the number of consumers that were not dropped.
    fn living_consumers(&self) -> u64 {
        let living = self.consumers.iter().filter(|it| !it.sender.is_closed());
        living.count() as u64
    }

    /// Removes and returns the next consumer with free prefetch. The caller appends it again, so
    /// that consumers take turns. Consumers that were dropped are moved to `ended`.
    fn take_next_consumer(&mut self, ended: &mut VecDeque<Registration>) -> Option<Registration> {
        let (gone, alive): (VecDeque<_>, _) = self
            .consumers
            .drain(..)
            .partition(|registration| registration.sender.is_closed());
        ended.extend(gone);
        self.consumers = alive;
        let index = self
            .consumers
            .iter()
            .position(|registration| registration.unsettled < registration.prefetch)?;
        self.consumers.remove(index)
    }

    fn requeue(&mut self, message: Message) {
        let index = self
            .ready
            .iter()
            .position(|other| other.position > message.position)
            .unwrap_or(self.ready.len());
        self.ready.insert(index, message);
    }
}

struct MemorySettler {
    shared: Weak<Shared>,
}

impl MemorySettler {
    /// Changes the prefetch of the consumer that has this settler.
    fn resize(self: &Arc<Self>, prefetch: u32) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        shared.with(|state| {
            let registrations = state
                .pipes
                .values_mut()
                .flat_map(|pipe| &mut pipe.consumers);
            for registration in registrations.filter(|one| Arc::ptr_eq(&one.settler, self)) {
                let prefetch = usize::try_from(prefetch).unwrap_or(usize::MAX);
                registration.prefetch = prefetch.min(registration.sender.max_capacity());
            }
        });
    }
}

impl Settler for MemorySettler {
    fn settle(&self, tag: u64, settlement: Settlement) {
        if let Some(shared) = self.shared.upgrade() {
            shared.with(|state| state.settle(tag, settlement));
        }
    }
}
