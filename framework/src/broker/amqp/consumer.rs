//! A consumer that survives the loss of its channel.
//!
//! What must stay true:
//! - A delivery is settled on the channel that brought it, or not at all: each channel has its own
//!   settlement queue, which ends with it, so a tag never reaches another channel.
//! - A message that the consumer still has is not given to it a second time: when a channel is
//!   lost, the redeliveries of its open deliveries join these
//!   ([`lost_deliveries`](super::lost_deliveries)). A redelivery that joins none waits until no
//!   other channel of the queue can be lost unnoticed
//!   ([`consuming_channels`](super::consuming_channels)).
//! - Whatever ends a channel (a lost connection, an error, a deleted queue), the next one goes on.
//! - A queue that does not respond does not stop the consumers of other queues.
//! - The broker limits the deliveries of a consumer, and never changes the limit. A consumer that
//!   is resized continues on a new channel. The earlier one receives nothing more, and ends when
//!   its deliveries are settled. It does not become a second consumer of the same channel: a
//!   delivery that the client library drops because its consumer is cancelled would be acknowledged
//!   together with a later one.
//! - A channel is left when nothing is on the way between it and the queue. A delivery that a
//!   quorum queue has sent to a consumer that is cancelled meanwhile would come again, later; and
//!   `RabbitMQ` keeps back settlements while the queue has not applied 32 earlier ones, and forgets
//!   them when the channel is closed. So the channel first sends no settlements, until it has as
//!   many deliveries as its prefetch allows: then the queue has applied all of them, and sends
//!   nothing more.
//! - After the consumer is dropped, deliveries that it has handed out can still be settled.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::Channel;
use lapin::message::Delivery as Received;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    BasicRejectOptions,
};
use lapin::types::{FieldTable, ShortString};
use tokio::sync::{mpsc, watch};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::RESPONSE_LIMIT;
use super::ack_batcher::{AckBatcher, AckCommand, PATIENCE};
use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use super::consuming_channels::{ConsumingChannels, Incoming, Undecided};
use super::in_order::in_order;
use super::lost_deliveries::{Content, Joined, LostDeliveries, Settlements};
use super::queues::{QueueError, Queues, headers, sent};
use crate::broker::{Delivery, Settlement, Settler};
use crate::health::Health;
use crate::supervision::run_or_tell;

/// How many settlements are processed together.
const SETTLEMENTS: usize = 4096;
/// How long a channel may receive nothing before it is replaced. If a quorum queue is deleted and
/// declared again at once, `RabbitMQ` neither cancels its consumers nor sends them anything from
/// the new queue, although it lists them there. Without a new channel they would wait forever.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
/// How often a dropped consumer looks whether its channel is lost or anything is still open.
const DRAIN_CHECK: Duration = Duration::from_millis(100);
/// How long a quorum queue may need to apply settlements. `RabbitMQ` does not tell when it has.
const APPLIED: Duration = Duration::from_millis(300);
/// A channel may be closed at once if it has sent fewer settlements than this within [`APPLIED`]:
/// `RabbitMQ` keeps none of them back.
const FEW: usize = 16;
/// How many commands with settlements a channel that was left sends at a time, and how much later
/// the next ones: few enough that it can always be closed.
const LEFT_COMMANDS: usize = 8;
const LEFT_PAUSE: Duration = Duration::from_millis(200);
/// How long closing a channel that is no longer needed may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// After a channel that was open for this long, the delays start with the shortest one again.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The delays before the next channel after a failure, before jitter.
const SHORTEST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// What a consumer asks for.
pub struct Subscription {
    pub pipe: Arc<str>,
    pub prefetch: watch::Receiver<u16>,
    pub supervisor: ConnectionSupervisor,
    pub queues: Arc<Queues>,
    /// Shared by all consumers.
    pub lost: Arc<LostDeliveries>,
    pub channels: Arc<ConsumingChannels>,
    pub deliveries: mpsc::Sender<Delivery>,
    pub health: Health,
    /// Where the channels run that the consumer has left.
    pub tasks: TaskTracker,
    /// Cancelled when the broker is being closed.
    pub closing: CancellationToken,
}

/// How a channel ended in order, or was left.
enum End {
    /// The consumer was dropped, or the broker is being closed.
    Done,
    /// Nothing was received for [`IDLE`], and nothing is unsettled.
    Idle,
    /// The consumer was resized. Deliveries of this channel are still unsettled.
    Resized,
}

/// A consuming channel.
struct Session {
    connection: Connection,
    channel: Channel,
    stream: lapin::Consumer,
    /// Whether the consumer no longer wants more from this channel.
    is_cancelled: bool,
    /// When settlements were sent last, and how many in quick succession.
    sent: Option<(Instant, usize)>,
    /// Until when the channel is left at the latest, because the consumer is resized.
    leaving: Option<Instant>,
    acks: AckBatcher,
    settler: Arc<SessionSettler>,
    settlements: mpsc::UnboundedReceiver<(u64, Settlement)>,
    /// Deliveries that wait for room: the consumer still holds those of an earlier channel.
    waiting: VecDeque<Delivery>,
    /// Redeliveries that have joined deliveries of lost channels, by their tags.
    joined: HashMap<u64, Content>,
    /// Redeliveries of which it is not known yet whether the consumer has them.
    undecided: Undecided,
    /// Whether the consumer was dropped before: then the channel waits for redeliveries that join.
    only_joins: bool,
    /// Whether this channel has received a message that the consumer does not have.
    has_received_new: bool,
    /// The pipe, until the channel has ended in order: if it does not, redeliveries may join.
    unended: Option<Arc<str>>,
}

/// Also a session that panics must not let its deliveries run beside their redeliveries.
impl Drop for Session {
    fn drop(&mut self) {
        if let Some(pipe) = self.unended.take() {
            self.lose(&pipe);
        }
    }
}

struct SessionSettler {
    channel: u64,
    settlements: Settlements,
    lost: Arc<LostDeliveries>,
}

impl Settler for SessionSettler {
    fn settle(&self, tag: u64, settlement: Settlement) {
        // Fails if the channel is closed. The broker has requeued the delivery then.
        if self.settlements.send((tag, settlement)).is_err() {
            self.lost
                .settle((self.channel, tag), settlement, Instant::now());
        }
    }

    fn is_gone(&self, tag: u64) -> bool {
        self.settlements.is_closed() && !self.lost.is_joined((self.channel, tag))
    }
}

/// Returns what prevents the loss of a channel for this reason; `None` if that is not known.
fn remedy_of(reason: &str) -> Option<&'static str> {
    reason.contains("delivery acknowledgement").then_some(
        "a task and its wait took longer than the broker's consumer_timeout: raise it above the longest task, in rabbitmq.conf (consumer_timeout = MILLISECONDS) or by a policy (consumer-timeout); docs/deploy.md has both",
    )
}

impl Subscription {
    /// Consumes until the consumer is dropped and all its deliveries are settled, even if their
    /// channel is lost; until `closing` is cancelled and all settlements are sent, or until `end`
    /// is cancelled.
    pub async fn run(self: Arc<Self>, end: CancellationToken) {
        end.run_until_cancelled(self.supervise(&end)).await;
    }

    async fn supervise(self: Arc<Self>, end: &CancellationToken) {
        let delays = ExponentialBuilder::new()
            .with_min_delay(SHORTEST_DELAY)
            .with_max_delay(LONGEST_DELAY)
            .with_jitter()
            .without_max_times();
        let mut delay = delays.build();
        loop {
            let connection = tokio::select! {
                connection = self.supervisor.connected() => connection,
                () = self.ended() => return,
            };
            let started = Instant::now();
            match self.session(connection).await {
                Ok((End::Done, _)) => return,
                Ok((End::Resized, Some(session))) => {
                    let (left, end) = (Arc::clone(&self).leave(session), end.clone());
                    let (health, pipe) = (self.health.clone(), Arc::clone(&self.pipe));
                    self.tasks.spawn(async move {
                        let name = format!("rabbitmq: resized consumer of {pipe}");
                        let left = end.run_until_cancelled(left);
                        // If it panics, its channel closes, and redeliveries join.
                        run_or_tell(&health, &name, left).await
                    });
                    continue;
                }
                Ok((End::Idle | End::Resized, _)) => continue,
                Err(reason) => self.warn(&reason),
            }
            if started.elapsed() > STABLE_AFTER {
                delay = delays.build();
            }
            tokio::select! {
                () = sleep(delay.next().unwrap_or_default()) => {}
                () = self.ended() => return,
            }
        }
    }

    /// Waits until the broker is being closed, or until the consumer is dropped and no redeliveries
    /// of what it still has are awaited.
    async fn ended(&self) {
        let settled = async {
            self.deliveries.closed().await;
            while self.lost.awaited(&self.pipe) > 0 {
                sleep(DRAIN_CHECK).await;
            }
        };
        tokio::select! {
            () = settled => {}
            () = self.closing.cancelled() => {}
        }
    }

    fn warn(&self, reason: &dyn std::fmt::Display) {
        let reason = reason.to_string();
        let remedy = remedy_of(&reason);
        tracing::warn!(pipe = %self.pipe, reason, remedy, "consuming was interrupted; continuing on a new channel");
    }

    /// Settles the deliveries of a channel that the consumer has left.
    async fn leave(self: Arc<Self>, mut session: Session) {
        if let Err(reason) = session.drain(&self).await {
            self.warn(&reason);
        }
    }

    /// Consumes on one channel until it ends or the consumer is resized.
    async fn session(&self, connection: Connection) -> Result<(End, Option<Session>), QueueError> {
        self.queues.declare(&connection, &self.pipe, None).await?;
        let queue =
            ShortString::try_new(&*self.pipe).map_err(|error| QueueError::Refused(error.into()))?;
        let channel = connection.open_channel().await?;
        let only_joins = self.deliveries.is_closed();
        let mut resized = self.prefetch.clone();
        let prefetch = if only_joins {
            u16::try_from(self.lost.awaited(&self.pipe)).unwrap_or(u16::MAX)
        } else {
            *resized.borrow_and_update()
        };
        let prefetch = prefetch.max(1);
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        connection.request("the prefetch", qos).await?;
        let consume = channel.basic_consume(
            queue,
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let stream = tokio::select! {
            stream = self.wait_for_queue(&connection, consume) => stream?.map_err(ConnectionLost::from)?,
            () = self.ended() => {
                // Closing the channel requeues what the queue may still deliver.
                drop(timeout(CLOSE_LIMIT, channel.close(200, "done".into())).await);
                return Ok((End::Done, None));
            }
        };
        let (sender, settlements) = mpsc::unbounded_channel();
        let opened = (&connection, &channel);
        let undecided = Undecided::of(&self.channels, &self.pipe, opened, prefetch);
        let settler = SessionSettler {
            channel: undecided.channel,
            settlements: sender,
            lost: Arc::clone(&self.lost),
        };
        let mut session = Session {
            connection,
            channel,
            stream,
            is_cancelled: false,
            sent: None,
            leaving: None,
            acks: AckBatcher::new(prefetch.into()),
            settler: Arc::new(settler),
            settlements,
            waiting: VecDeque::new(),
            joined: HashMap::new(),
            undecided,
            only_joins,
            has_received_new: false,
            unended: Some(Arc::clone(&self.pipe)),
        };
        let end = session.consume(self, Some(resized)).await?;
        Ok((end, Some(session)))
    }

    /// Waits for the response of one queue. A queue may be stuck although the broker is not, e.g. a
    /// quorum queue without a leader. The consumers of other queues share the connection, so it is
    /// kept as long as the broker responds to another request: opening a channel.
    async fn wait_for_queue<T>(
        &self,
        connection: &Connection,
        response: impl Future<Output = T>,
    ) -> Result<T, ConnectionLost> {
        let mut response = pin!(response);
        loop {
            tokio::select! {
                response = timeout(RESPONSE_LIMIT, &mut response) => if let Ok(response) = response { return Ok(response) },
                () = connection.lost.cancelled() => return Err(ConnectionLost::Closed),
            }
            let other = connection.open_channel().await?;
            drop(timeout(CLOSE_LIMIT, other.close(200, "the broker responds".into())).await);
            tracing::warn!(pipe = %self.pipe, "the queue does not respond, although the broker does; waiting for it");
        }
    }
}

impl Session {
    /// Takes no more from the channel, and settles the deliveries that are left.
    async fn drain(&mut self, subscription: &Subscription) -> Result<(), ConnectionLost> {
        self.cancel().await?;
        self.consume(subscription, None).await.map(drop)
    }

    async fn cancel(&mut self) -> Result<(), ConnectionLost> {
        self.is_cancelled = true;
        self.leaving = None;
        let cancel = self
            .channel
            .basic_cancel(self.stream.tag(), BasicCancelOptions::default());
        self.connection.request("a cancellation", cancel).await
    }

    /// Passes deliveries to the consumer and settlements to the broker, until the broker is being
    /// closed, the prefetch changes, or the consumer is dropped and everything is settled. Returns
    /// an error when the channel is lost.
    async fn consume(
        &mut self,
        subscription: &Subscription,
        mut prefetch: Option<watch::Receiver<u16>>,
    ) -> Result<End, ConnectionLost> {
        let mut settled = Vec::new();
        let (mut is_dropped, mut ended) = (false, false);
        let mut renewal = Instant::now() + IDLE;
        // What was sent before the consumer was cancelled comes before the end of the stream.
        while !(self.is_cancelled && ended) || self.acks.open() > 0 || self.acks.due().is_some() {
            if let Some(latest) = self.leaving
                && (self.acks.is_full() || latest <= Instant::now())
            {
                return Ok(End::Resized);
            }
            let due = self.due();
            let waits_for_joins = self.only_joins
                && !self.has_received_new
                && subscription.lost.awaited(&subscription.pipe) > 0;
            tokio::select! {
                biased;
                () = self.connection.lost.cancelled() => return Err(ConnectionLost::Closed),
                // Later settlements would make the broker send more to a dropped consumer.
                () = subscription.deliveries.closed(), if !is_dropped && !waits_for_joins => {
                    is_dropped = true;
                    self.waiting.clear();
                    if !self.is_cancelled {
                        self.cancel().await?;
                    }
                }
                () = changed(prefetch.as_mut()), if !self.is_cancelled && !self.only_joins && self.leaving.is_none() => {
                    // The queue may have too few messages to fill the channel.
                    self.leaving = Some(Instant::now() + APPLIED);
                }
                _ = self.settlements.recv_many(&mut settled, SETTLEMENTS) => {
                    let now = Instant::now();
                    self.settle(&mut settled, now, Some(subscription));
                    self.send_acks(now).await?;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.send_acks(Instant::now()).await?,
                () = subscription.closing.cancelled() => break,
                Ok(permit) = subscription.deliveries.reserve(), if !self.waiting.is_empty() => {
                    if let Some(delivery) = self.waiting.pop_front() {
                        permit.send(delivery);
                    }
                }
                decided = self.undecided.decided(), if !self.undecided.is_empty() => {
                    for redelivery in decided {
                        if !self.join(subscription, &redelivery) {
                            self.give_new(subscription, redelivery);
                        }
                    }
                }
                received = self.stream.next(), if !ended => {
                    renewal = Instant::now() + IDLE;
                    ended = self.receive_all(subscription, received)?;
                    if ended && !self.is_cancelled {
                        return Err(ConnectionLost::ConsumerCancelled);
                    }
                }
                // A channel without a consumer has no other way to tell that it is lost.
                () = sleep(DRAIN_CHECK), if self.is_cancelled || self.only_joins => {
                    if !self.channel.status().connected() {
                        return Err(ConnectionLost::ChannelEnded);
                    }
                }
                () = sleep_until(renewal), if !self.is_cancelled => {
                    if self.acks.open() == 0 && self.acks.due().is_none() {
                        self.finish(&mut settled).await?;
                        return Ok(End::Idle);
                    }
                    renewal = Instant::now() + IDLE;
                }
            }
        }
        self.finish(&mut settled).await?;
        Ok(End::Done)
    }

    /// Sends all settlements, and closes the channel when they are applied, which requeues the
    /// unsettled deliveries.
    async fn finish(&mut self, settled: &mut Vec<(u64, Settlement)>) -> Result<(), ConnectionLost> {
        if !self.is_cancelled {
            // The settlements would make room for deliveries that nobody takes.
            self.cancel().await?;
        }
        let now = Instant::now();
        while let Ok(settlement) = self.settlements.try_recv() {
            settled.push(settlement);
        }
        self.settle(settled, now, None);
        let commands = self.acks.take(now + PATIENCE);
        self.send(commands).await?;
        if let Some((at, FEW..)) = self.sent {
            sleep_until(at + APPLIED).await;
        }
        let close = self.channel.close(200, "done".into());
        self.connection.request("closing a channel", close).await?;
        self.unended = None;
        Ok(())
    }

    /// Records settlements. A redelivery that has joined a delivery which was returned is given to
    /// the consumer, if there is one.
    fn settle(
        &mut self,
        settled: &mut Vec<(u64, Settlement)>,
        now: Instant,
        subscription: Option<&Subscription>,
    ) {
        for (tag, settlement) in settled.drain(..) {
            // Nearly always, nothing has joined.
            let joined = if self.joined.is_empty() {
                None
            } else {
                self.joined.remove(&tag)
            };
            match (joined, subscription) {
                (Some(content), Some(subscription)) if settlement == Settlement::Requeue => {
                    let redelivery = Incoming {
                        tag,
                        content,
                        // This process lives, however often the channel was lost.
                        delivery_count: 1,
                        sent: None,
                    };
                    self.give(subscription, redelivery);
                }
                _ => self.acks.settled(tag, settlement, now),
            }
        }
    }

    /// Leaves the deliveries that the broker still has to their redeliveries, because the channel
    /// is lost.
    fn lose(&mut self, pipe: &Arc<str>) {
        // The consumer has not seen these.
        self.waiting.clear();
        let (settler, now) = (Arc::clone(&self.settler), Instant::now());
        settler.lost.channel_lost(settler.channel, pipe, now, || {
            let mut settled = last_settlements(&mut self.settlements);
            // Nor these.
            let undecided = self.undecided.take().into_iter();
            settled.extend(undecided.map(|it| (it.tag, Settlement::Requeue)));
            self.settle(&mut settled, now, None);
            let acks = std::mem::replace(&mut self.acks, AckBatcher::new(1));
            acks.into_left()
                .filter(|left| !self.joined.contains_key(&left.tag))
                .collect()
        });
    }

    /// Processes `first` and all further deliveries that are ready. Returns whether the stream has
    /// ended.
    fn receive_all(
        &mut self,
        subscription: &Subscription,
        first: Option<lapin::Result<Received>>,
    ) -> Result<bool, ConnectionLost> {
        let mut next = Some(first);
        while let Some(received) = next {
            match received {
                Some(Ok(received)) => self.receive(subscription, received),
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(true),
            }
            next = self.stream.next().now_or_never();
        }
        Ok(false)
    }

    fn receive(&mut self, subscription: &Subscription, received: Received) {
        let Received {
            delivery_tag,
            redelivered,
            properties,
            data,
            ..
        } = received;
        let (headers, delivery_count) = headers(&properties, redelivered);
        let sent = sent(&properties);
        let content = Content {
            body: Bytes::from(data),
            headers,
        };
        self.acks.delivered(delivery_tag, content.clone());
        let incoming = Incoming {
            tag: delivery_tag,
            content,
            delivery_count,
            sent,
        };
        if !redelivered && delivery_count == 0 {
            self.give_new(subscription, incoming);
        } else if !self.join(subscription, &incoming)
            && let Some(incoming) = self.undecided.wait(incoming)
        {
            self.give_new(subscription, incoming);
        }
    }

    /// Lets a redelivery join the delivery of a lost channel that the consumer has of this message.
    /// Returns whether it has one.
    fn join(&mut self, subscription: &Subscription, redelivery: &Incoming) -> bool {
        let (tag, content, now) = (redelivery.tag, &redelivery.content, Instant::now());
        let (settler, pipe) = (&self.settler, &subscription.pipe);
        let id = (settler.channel, tag);
        match settler
            .lost
            .join(id, pipe, content, &settler.settlements, now)
        {
            Joined::No => return false,
            Joined::Open => drop(self.joined.insert(tag, content.clone())),
            Joined::Acked => self.acks.settled(tag, Settlement::Ack, now),
        }
        true
    }

    /// Gives a message to the consumer that it does not have.
    fn give_new(&mut self, subscription: &Subscription, incoming: Incoming) {
        self.has_received_new = true;
        self.give(subscription, incoming);
    }

    /// Gives a delivery to the consumer. If the consumer is gone, this drops the delivery, which
    /// requeues it.
    fn give(&mut self, subscription: &Subscription, incoming: Incoming) {
        let (tag, Content { body, headers }) = (incoming.tag, incoming.content);
        let (delivery_count, sent) = (incoming.delivery_count, incoming.sent);
        let settler = Arc::clone(&self.settler) as Arc<dyn Settler>;
        let pipe = Arc::clone(&subscription.pipe);
        let delivery =
            Delivery::new(pipe, body, headers, delivery_count, tag, settler).sent_at(sent);
        if !self.waiting.is_empty() {
            self.waiting.push_back(delivery);
        } else if let Err(mpsc::error::TrySendError::Full(delivery)) =
            subscription.deliveries.try_send(delivery)
        {
            self.waiting.push_back(delivery);
        }
    }

    /// Returns when settlements are to be sent, or the channel is to be left, even if nothing
    /// arrives until then.
    fn due(&self) -> Option<Instant> {
        self.leaving.or_else(|| {
            let due = self.acks.due()?;
            Some(self.left_pause().map_or(due, |end| due.max(end)))
        })
    }

    /// Returns until when a channel that was left sends no settlements.
    fn left_pause(&self) -> Option<Instant> {
        let (at, _) = self.sent.filter(|_| self.is_cancelled)?;
        Some(at + LEFT_PAUSE)
    }

    /// Sends the commands that are due, unless they have to wait.
    async fn send_acks(&mut self, now: Instant) -> Result<(), ConnectionLost> {
        if self.leaving.is_some() || self.left_pause().is_some_and(|end| now < end) {
            return Ok(());
        }
        let commands = if self.is_cancelled {
            self.acks.take_few(now, LEFT_COMMANDS)
        } else {
            self.acks.take(now)
        };
        self.send(commands).await
    }

    async fn send(&mut self, commands: Vec<AckCommand>) -> Result<(), ConnectionLost> {
        let channel = &self.channel;
        if !commands.is_empty() {
            let now = Instant::now();
            let before = self.sent.filter(|(at, _)| now < *at + APPLIED);
            let before = before.map_or(0, |(_, settlements)| settlements);
            self.sent = Some((now, before + commands.len()));
        }
        let sending = in_order(commands.into_iter().map(async |command| {
            match command {
                AckCommand::AckUpTo(tag) => {
                    channel
                        .basic_ack(tag, BasicAckOptions { multiple: true })
                        .await
                }
                AckCommand::Ack(tag) => channel.basic_ack(tag, BasicAckOptions::default()).await,
                AckCommand::Requeue(tag) => {
                    channel
                        .basic_nack(
                            tag,
                            BasicNackOptions {
                                requeue: true,
                                ..BasicNackOptions::default()
                            },
                        )
                        .await
                }
                AckCommand::Reject(tag) => {
                    channel
                        .basic_reject(tag, BasicRejectOptions { requeue: false })
                        .await
                }
            }
        }));
        let sent = self
            .connection
            .within_limit("an acknowledgement", sending)
            .await?;
        sent.into_iter().collect::<lapin::Result<()>>()?;
        Ok(())
    }
}

/// Waits until the consumer is resized.
async fn changed(prefetch: Option<&mut watch::Receiver<u16>>) {
    if let Some(prefetch) = prefetch
        && prefetch.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Closes the queue and returns the settlements in it, without one that comes too late.
fn last_settlements(
    settlements: &mut mpsc::UnboundedReceiver<(u64, Settlement)>,
) -> Vec<(u64, Settlement)> {
    settlements.close();
    let mut last = Vec::new();
    loop {
        match unconstrained(settlements.recv()).now_or_never() {
            Some(Some(settlement)) => last.push(settlement),
            Some(None) => return last,
            // Another thread is in the middle of sending.
            None => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumer_timeout_is_told_with_its_remedy() {
        let timed_out = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms.";
        assert!(remedy_of(timed_out).is_some_and(|remedy| remedy.contains("consumer_timeout")));
        assert_eq!(
            remedy_of("CONNECTION_FORCED - broker forced connection closure"),
            None
        );
    }
}
