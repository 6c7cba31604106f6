//! A consumer that survives the loss of its channel.
//!
//! What must stay true:
//! - A delivery is settled on the channel that brought it, or not at all: each channel has its own settlement queue,
//!   which ends with it, so a tag never reaches another channel.
//! - Whatever ends a channel (a lost connection, an error, a deleted queue), consuming continues on the next one.
//! - A queue that does not respond does not stop the consumers of other queues.
//! - After the consumer is dropped, deliveries that it has handed out can still be settled.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::Channel;
use lapin::message::Delivery as Received;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    BasicRejectOptions,
};
use lapin::types::{FieldTable, ShortString};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::RESPONSE_LIMIT;
use super::ack_batcher::{AckBatcher, AckCommand, PATIENCE};
use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use super::queues::{QueueError, Queues, headers};
use crate::broker::{Delivery, Settlement, Settler};

/// How many settlements are processed together.
const SETTLEMENTS: usize = 4096;
/// How long a channel may receive nothing before it is replaced. If a quorum queue is deleted and declared again at once,
/// `RabbitMQ` neither cancels its consumers nor sends them anything from the new queue, although it lists them there.
/// Without a new channel they would wait forever.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
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
    pub prefetch: u16,
    pub supervisor: ConnectionSupervisor,
    pub queues: Arc<Queues>,
    pub deliveries: mpsc::Sender<Delivery>,
    /// Cancelled when the broker is being closed.
    pub closing: CancellationToken,
}

/// How a channel ended in order.
enum End {
    /// The consumer was dropped, or the broker is being closed.
    Done,
    /// Nothing was received for [`IDLE`], and nothing is unsettled.
    Idle,
}

/// A consuming channel.
struct Session {
    connection: Connection,
    channel: Channel,
    acks: AckBatcher,
    settler: Arc<SessionSettler>,
    settlements: mpsc::UnboundedReceiver<(u64, Settlement)>,
    /// Deliveries for which the consumer has no room yet, because it still holds deliveries of an earlier channel.
    waiting: VecDeque<Delivery>,
}

struct SessionSettler(mpsc::UnboundedSender<(u64, Settlement)>);

impl Settler for SessionSettler {
    fn settle(&self, tag: u64, settlement: Settlement) {
        // Fails if the channel is closed. The broker has requeued the delivery then.
        self.0.send((tag, settlement)).unwrap_or_default();
    }
}

impl Subscription {
    /// Consumes until the consumer is dropped and all its deliveries are settled, until `closing` is cancelled and all
    /// settlements are sent, or until `end` is cancelled.
    pub async fn run(self, end: CancellationToken) {
        end.run_until_cancelled(self.supervise()).await;
    }

    async fn supervise(&self) {
        let delays = ExponentialBuilder::new()
            .with_min_delay(SHORTEST_DELAY)
            .with_max_delay(LONGEST_DELAY)
            .with_jitter()
            .without_max_times();
        let mut delay = delays.build();
        loop {
            let connection = tokio::select! {
                connection = self.supervisor.connected() => connection,
                () = self.closed() => return,
            };
            let started = Instant::now();
            match self.session(connection).await {
                Ok(End::Done) => return,
                Ok(End::Idle) => continue,
                Err(reason) => {
                    tracing::warn!(pipe = %self.pipe, %reason, "consuming was interrupted; continuing on a new channel");
                }
            }
            if started.elapsed() > STABLE_AFTER {
                delay = delays.build();
            }
            tokio::select! {
                () = sleep(delay.next().unwrap_or_default()) => {}
                () = self.closed() => return,
            }
        }
    }

    /// Waits until the consumer is dropped or the broker is being closed.
    async fn closed(&self) {
        tokio::select! {
            () = self.deliveries.closed() => {}
            () = self.closing.cancelled() => {}
        }
    }

    /// Consumes on one channel until it ends.
    async fn session(&self, connection: Connection) -> Result<End, QueueError> {
        self.queues.declare(&connection, &self.pipe, None).await?;
        let queue =
            ShortString::try_new(&*self.pipe).map_err(|error| QueueError::Refused(error.into()))?;
        let channel = connection.open_channel().await?;
        let qos = channel.basic_qos(self.prefetch, BasicQosOptions::default());
        connection.request("the prefetch", qos).await?;
        let consume = channel.basic_consume(
            queue,
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let stream = tokio::select! {
            stream = self.wait_for_queue(&connection, consume) => stream?.map_err(ConnectionLost::from)?,
            () = self.closed() => {
                // The queue may still start to deliver. Closing the channel requeues these deliveries.
                drop(timeout(CLOSE_LIMIT, channel.close(200, "done".into())).await);
                return Ok(End::Done);
            }
        };
        let (sender, settlements) = mpsc::unbounded_channel();
        let mut session = Session {
            connection,
            channel,
            acks: AckBatcher::new(self.prefetch.into()),
            settler: Arc::new(SessionSettler(sender)),
            settlements,
            waiting: VecDeque::new(),
        };
        Ok(session.consume(self, stream).await?)
    }

    /// Waits for the response of one queue. A queue may be stuck although the broker is not, e.g. a quorum queue without a
    /// leader. The consumers of other queues share the connection, so it is kept as long as the broker responds to another
    /// request: opening a channel.
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
    /// Passes deliveries to the consumer and settlements to the broker, until the broker is being closed, or until the
    /// consumer is dropped and everything is settled. Returns an error when the channel is lost.
    async fn consume(
        &mut self,
        subscription: &Subscription,
        mut stream: lapin::Consumer,
    ) -> Result<End, ConnectionLost> {
        let mut settled = Vec::new();
        let (mut cancelled, mut ended) = (false, false);
        let mut renewal = Instant::now() + IDLE;
        while !cancelled || self.acks.open() > 0 || self.acks.due().is_some() {
            let due = self.acks.due();
            tokio::select! {
                biased;
                () = self.connection.lost.cancelled() => return Err(ConnectionLost::Closed),
                // Before later settlements: they would make the broker send more to a consumer that was dropped.
                () = subscription.deliveries.closed(), if !cancelled => {
                    cancelled = true;
                    self.waiting.clear();
                    let cancel = self.channel.basic_cancel(stream.tag(), BasicCancelOptions::default());
                    self.connection.request("a cancellation", cancel).await?;
                }
                _ = self.settlements.recv_many(&mut settled, SETTLEMENTS) => {
                    let now = Instant::now();
                    self.settle(&mut settled, now);
                    self.send_acks(now).await?;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.send_acks(Instant::now()).await?,
                () = subscription.closing.cancelled() => break,
                Ok(permit) = subscription.deliveries.reserve(), if !self.waiting.is_empty() => {
                    if let Some(delivery) = self.waiting.pop_front() {
                        permit.send(delivery);
                    }
                }
                received = stream.next(), if !ended => {
                    renewal = Instant::now() + IDLE;
                    ended = self.receive_all(subscription, received, &mut stream)?;
                    if ended && !cancelled {
                        return Err(ConnectionLost::ConsumerCancelled);
                    }
                }
                () = sleep_until(renewal), if !cancelled => {
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

    /// Sends all settlements and closes the channel, which requeues the unsettled deliveries.
    async fn finish(&mut self, settled: &mut Vec<(u64, Settlement)>) -> Result<(), ConnectionLost> {
        let now = Instant::now();
        while let Ok(settlement) = self.settlements.try_recv() {
            settled.push(settlement);
        }
        self.settle(settled, now);
        self.send_acks(now + PATIENCE).await?;
        let close = self.channel.close(200, "done".into());
        self.connection.request("closing a channel", close).await
    }

    fn settle(&mut self, settled: &mut Vec<(u64, Settlement)>, now: Instant) {
        for (tag, settlement) in settled.drain(..) {
            self.acks.settled(tag, settlement, now);
        }
    }

    /// Processes `first` and all further deliveries that are ready. Returns whether the stream has ended.
    fn receive_all(
        &mut self,
        subscription: &Subscription,
        first: Option<lapin::Result<Received>>,
        stream: &mut lapin::Consumer,
    ) -> Result<bool, ConnectionLost> {
        let mut next = Some(first);
        while let Some(received) = next {
            match received {
                Some(Ok(received)) => self.receive(subscription, received),
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(true),
            }
            next = stream.next().now_or_never();
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
        self.acks.delivered(delivery_tag);
        let (headers, delivery_count) = headers(&properties, redelivered);
        let settler = Arc::clone(&self.settler) as Arc<dyn Settler>;
        let pipe = Arc::clone(&subscription.pipe);
        let delivery = Delivery::new(
            pipe,
            Bytes::from(data),
            headers,
            delivery_count,
            delivery_tag,
            settler,
        );
        if !self.waiting.is_empty() {
            self.waiting.push_back(delivery);
        } else if let Err(mpsc::error::TrySendError::Full(delivery)) =
            subscription.deliveries.try_send(delivery)
        {
            self.waiting.push_back(delivery);
        }
        // If the consumer is gone, the delivery was dropped above, which requeues it.
    }

    /// Sends the commands that are due.
    async fn send_acks(&mut self, now: Instant) -> Result<(), ConnectionLost> {
        let channel = &self.channel;
        let sending = join_all(self.acks.take(now).into_iter().map(async |command| {
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
