//! The consuming channels of a process, and the redeliveries that wait for news of them.
//!
//! When the broker closes a channel, it delivers the unsettled messages of this channel again. They
//! may arrive on another channel of this process before the process learns that the first one is
//! closed: a consumer that was resized or dropped keeps its channel until all deliveries are
//! settled, and several consumers may share a pipe.
//!
//! What must stay true: a redelivery is given to a consumer only after each other channel of its
//! pipe has answered a request, which shows that the broker has not closed it, or has left its
//! deliveries to their redeliveries ([`lost_deliveries`](super::lost_deliveries)).

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use lapin::Channel;
use lapin::options::BasicQosOptions;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::lost_deliveries::Content;

/// The consuming channels of a process, by their numbers.
#[derive(Default)]
pub struct ConsumingChannels(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of the latest channel.
    last: u64,
    channels: BTreeMap<u64, Listed>,
}

#[derive(Clone)]
struct Listed {
    pipe: Arc<str>,
    connection: Connection,
    channel: Channel,
    prefetch: u16,
    /// Cancelled when the process has settled the deliveries of the channel, or has left them to
    /// their redeliveries.
    ended: CancellationToken,
}

impl ConsumingChannels {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Listed {
    /// Waits until the channel has answered, or has ended.
    async fn answer(self) {
        // It had this prefetch before. Any request would do.
        let request = self
            .channel
            .basic_qos(self.prefetch, BasicQosOptions::default());
        let answer = self.connection.request("a sign of a channel", request);
        if answer.await.is_err() {
            self.ended.cancelled().await;
        }
    }
}

/// A message that has arrived on a channel.
pub struct Incoming {
    pub tag: u64,
    pub content: Content,
    pub delivery_count: u32,
    pub sent: Option<i64>,
}

/// The redeliveries of a channel about which the other channels are asked. The channel is listed
/// until this is dropped.
pub struct Undecided {
    /// The number of the channel.
    pub channel: u64,
    all: Arc<ConsumingChannels>,
    redelivered: Vec<Incoming>,
    /// How many of them came before the other channels were asked, and their answers.
    asked: Option<(usize, BoxFuture<'static, ()>)>,
}

impl Undecided {
    /// Lists a channel.
    pub fn of(
        all: &Arc<ConsumingChannels>,
        pipe: &Arc<str>,
        (connection, channel): (&Connection, &Channel),
        prefetch: u16,
    ) -> Self {
        let mut state = all.lock();
        state.last += 1;
        let number = state.last;
        let listed = Listed {
            pipe: Arc::clone(pipe),
            connection: connection.clone(),
            channel: channel.clone(),
            prefetch,
            ended: CancellationToken::new(),
        };
        state.channels.insert(number, listed);
        Self {
            channel: number,
            all: Arc::clone(all),
            redelivered: Vec::new(),
            asked: None,
        }
    }

    /// Lets a redelivery wait until the other channels of its pipe have answered. Returns it if
    /// there are none.
    pub fn wait(&mut self, incoming: Incoming) -> Option<Incoming> {
        if self.others().is_empty() {
            return Some(incoming);
        }
        self.redelivered.push(incoming);
        None
    }

    pub const fn is_empty(&self) -> bool {
        self.redelivered.is_empty()
    }

    /// Returns the redeliveries for which the other channels have answered. Cancel safe.
    pub async fn decided(&mut self) -> Vec<Incoming> {
        if self.asked.is_none() {
            let answers = join_all(self.others().into_iter().map(Listed::answer));
            self.asked = Some((self.redelivered.len(), answers.map(drop).boxed()));
        }
        let mut count = 0;
        if let Some((asked, answers)) = &mut self.asked {
            answers.await;
            count = *asked;
        }
        self.asked = None;
        self.redelivered.drain(..count).collect()
    }

    /// Returns all redeliveries that still wait.
    pub fn take(&mut self) -> Vec<Incoming> {
        self.asked = None;
        std::mem::take(&mut self.redelivered)
    }

    /// Returns the other channels of the same pipe.
    fn others(&self) -> Vec<Listed> {
        let state = self.all.lock();
        let Some(own) = state.channels.get(&self.channel) else {
            return Vec::new();
        };
        let others = state
            .channels
            .iter()
            .filter(|(number, other)| **number != self.channel && other.pipe == own.pipe);
        others.map(|(_, other)| other.clone()).collect()
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        if let Some(own) = self.all.lock().channels.remove(&self.channel) {
            own.ended.cancel();
        }
    }
}
