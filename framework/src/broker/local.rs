//! The broker that needs no server: it runs inside this process.
//!
//! The `writer` owns all state; every other call sends it a `Command`. The submodule `pipe` models
//! a pipe in memory, and batches of changes go to a `storage`. A [`Place`] says where all of this
//! is: in a folder (`embedded`), where the writer is a task and the storage a file, or in memory
//! (`memory`), where each caller does the work of the writer before it goes on.
//!
//! What must stay true:
//! - A message is confirmed and delivered only after the commit that contains it.
//! - No caller waits for an acknowledgement to be written. If the process dies first, the message
//!   is delivered again.
#![cfg_attr(
    not(feature = "embedded"),
    expect(dead_code, reason = "only a file can fail, be slow or be full")
)]

pub mod growth;
pub mod pipe;
mod space;
pub mod storage;
pub mod thread;
pub mod wall_clock;
pub mod work;
pub mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::{mpsc, oneshot};

use self::pipe::{ConsumerKey, Id, Message, UnconsumedPipe, rows_of};
use self::work::{Looked, Page};
use super::local_fanout::LocalFanout;
use super::queries::LocalQueries;
use super::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Confirmer, Consumer, Outgoing,
    Peeked, PipeState, PublishError, Queries, Settlement, Settler, Unanswered,
};
use crate::health::Health;
use crate::meters::set_broker_state;

/// A [`Broker`] inside this process.
#[derive(Clone)]
pub struct Local<P> {
    pub(super) place: P,
    commands: Arc<dyn Commands>,
    announcements: LocalFanout,
    signs: LocalFanout,
    queries: LocalQueries,
}

/// Where a local broker is.
pub trait Place: fmt::Debug + Send + Sync + 'static {
    /// See [`Broker::kind`].
    const KIND: &'static str;

    /// Returns the process whose consumers are consumed with, if there are several.
    fn process(&self) -> u32 {
        0
    }

    /// Returns a message to publish it, or the confirm of one that is refused or held back.
    fn admit(&self, message: Outgoing) -> Result<Outgoing, Confirm> {
        Ok(message)
    }

    /// See [`Broker::state`].
    fn state(&self) -> BrokerState;

    /// Sets the gauges of the place, besides that of the state.
    fn measure(&self, _: Size) {}

    /// See [`Broker::close`].
    fn close<'a>(&'a self, commands: &'a dyn Commands) -> BoxFuture<'a, ()>;
}

impl<P> Local<P> {
    pub(super) fn at(place: P, commands: Arc<dyn Commands>, health: Health) -> Self {
        Self {
            place,
            commands,
            announcements: LocalFanout::new(health.clone()),
            signs: LocalFanout::new(health),
            queries: LocalQueries::default(),
        }
    }

    pub(super) fn commands(&self) -> &dyn Commands {
        &*self.commands
    }
}

impl<P: Place> Local<P> {
    /// Sends the writer a command and waits for its reply.
    pub(super) async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, BrokerError> {
        if self.place.state() == BrokerState::Closed {
            return Err(BrokerError::Closed);
        }
        let (reply, received) = oneshot::channel();
        self.commands.send(command(reply));
        received.await.map_err(|_| BrokerError::Closed)
    }

    async fn look_at(&self, pipe: &str) -> Result<Option<Looked>, BrokerError> {
        let all = self.request(|reply| Command::Look { reply }).await?;
        Ok(all.into_iter().find(|looked| *looked.name == *pipe))
    }
}

impl<P: Place> Broker for Local<P> {
    fn publish(&self, message: Outgoing) -> Confirm {
        let message = match self.place.admit(message) {
            Ok(message) => message,
            Err(confirm) => return confirm,
        };
        if let Some(error) = PublishError::of_name(&message.pipe) {
            return Confirm::ready(Err(error));
        }
        let (confirmer, confirm) = Confirm::pair();
        // If the writer has ended, the confirmer is dropped here, which resolves the confirm to
        // `Closed`.
        self.commands.send(Command::Publish(message, confirmer));
        confirm
    }

    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        let prefetch = usize::try_from(prefetch).unwrap_or(usize::MAX).max(1);
        self.request(move |reply| Command::Consume {
            pipe: pipe.into(),
            prefetch,
            process: self.place.process(),
            reply,
        })
        .boxed()
    }

    fn largest_prefetch(&self) -> u32 {
        writer::RESIZABLE_TO
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.announcements.announce(body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.announcements.subscribe())).boxed()
    }

    fn carries_signs(&self) -> bool {
        true
    }

    fn tell(&self, sign: Bytes) -> Confirm {
        self.signs.announce(sign)
    }

    fn signs(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        ready(Ok(self.signs.subscribe())).boxed()
    }

    fn ask<'a>(
        &'a self,
        pipe: &'a str,
        question: Bytes,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Bytes, Unanswered>> {
        self.queries.ask(pipe, question, limit).boxed()
    }

    fn carries_queries(&self) -> bool {
        true
    }

    fn queries<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Queries, BrokerError>> {
        ready(Ok(self.queries.listen(pipe))).boxed()
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.request(|reply| Command::Depth {
            pipe: pipe.into(),
            reply,
        })
        .boxed()
    }

    fn exists<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<bool, BrokerError>> {
        async move { Ok(self.look_at(pipe).await?.is_some()) }.boxed()
    }

    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        async move { Ok(self.look_at(pipe).await?.map(|looked| looked.state)) }.boxed()
    }

    fn look_at_all(
        &self,
    ) -> BoxFuture<'_, Result<Option<BTreeMap<String, PipeState>>, BrokerError>> {
        async move {
            let all = self.request(|reply| Command::Look { reply }).await?;
            let all = all.into_iter();
            Ok(Some(
                all.map(|looked| (looked.name.to_string(), looked.state))
                    .collect(),
            ))
        }
        .boxed()
    }

    fn peek<'a>(
        &'a self,
        pipe: &'a str,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<Peeked>>, BrokerError>> {
        async move {
            let Some(looked) = self.look_at(pipe).await? else {
                return Ok(Some(Vec::new()));
            };
            let page = Page {
                number: looked.number,
                after: rows_of(looked.number).0,
                bytes,
            };
            let messages = self.request(|reply| Command::Peek { page, reply }).await?;
            let messages = messages.into_iter().take(limit);
            let peeked = messages.map(|Message { headers, body, .. }| Peeked { headers, body });
            Ok(Some(peeked.collect()))
        }
        .boxed()
    }

    fn state(&self) -> BrokerState {
        self.place.state()
    }

    fn measure(&self) -> BoxFuture<'_, ()> {
        async {
            set_broker_state(self.state().name());
            if let Ok(size) = self.request(|reply| Command::Measure { reply }).await {
                self.place.measure(size);
            }
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.place.close(self.commands())
    }

    fn kind(&self) -> &'static str {
        P::KIND
    }
}

impl<P: Place> fmt::Debug for Local<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.place)
    }
}

/// What the broker holds.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The messages that wait in all pipes.
    pub messages: u64,
    /// The bytes of the messages in memory.
    pub memory: u64,
}

/// The way to the writer. Drops what it gets once the writer has ended.
pub trait Commands: Send + Sync {
    /// Never blocks.
    fn send(&self, command: Command);
}

impl Commands for mpsc::UnboundedSender<Command> {
    fn send(&self, command: Command) {
        drop(Self::send(self, command));
    }
}

/// A request to the writer. Requests are processed in order.
#[derive(Debug)]
pub enum Command {
    Publish(Outgoing, Confirmer),
    Settle(ConsumerKey, Id, Settlement),
    Consume {
        pipe: Arc<str>,
        prefetch: usize,
        process: u32,
        reply: oneshot::Sender<Consumer>,
    },
    /// Changes the prefetch of a consumer.
    Resize {
        pipe: Arc<str>,
        consumer: ConsumerKey,
        prefetch: usize,
    },
    /// Ends the consumers of a process. What it has not settled returns.
    Leave(u32),
    /// Does what is due now.
    Wake,
    Depth {
        pipe: Arc<str>,
        reply: oneshot::Sender<u64>,
    },
    Measure {
        reply: oneshot::Sender<Size>,
    },
    /// Returns the pipes that contain messages and have no consumer.
    Unconsumed {
        reply: oneshot::Sender<Vec<UnconsumedPipe>>,
    },
    /// Returns what is known about all pipes.
    Look {
        reply: oneshot::Sender<Vec<Looked>>,
    },
    Peek {
        page: Page,
        reply: oneshot::Sender<Vec<Message>>,
    },
    /// Deletes messages of a pipe unless more than `joined` consumers have joined it.
    Discard {
        ids: Vec<Id>,
        joined: u64,
        reply: oneshot::Sender<u64>,
    },
    Close,
}

/// Sends the settlements of a consumer to the writer. The tag of a delivery is the id of its
/// message.
struct WriterSettler {
    commands: Weak<dyn Commands>,
    consumer: ConsumerKey,
}

impl Settler for WriterSettler {
    fn settle(&self, tag: u64, settlement: Settlement) {
        // If the writer has ended, the next process delivers the message again.
        if let Some(commands) = self.commands.upgrade() {
            commands.send(Command::Settle(
                self.consumer,
                tag.cast_signed(),
                settlement,
            ));
        }
    }
}
