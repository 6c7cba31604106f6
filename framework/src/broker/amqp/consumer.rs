//! A consumer that outlives its channels.
//!
//! What must stay true:
//! - A delivery is settled on the channel that brought it, or not at all: each channel has its own way back here, which
//!   ends with it, so a tag never reaches another channel.
//! - Whatever ends a channel (the connection, an error, a queue that was deleted), consuming goes on with the next.
//! - A queue that does not answer takes nothing from the consumers of others.
//! - When the consumer is dropped, deliveries that it has handed out can still be settled.

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

use super::ANSWER_LIMIT;
use super::connection::{Line, Live, Lost};
use super::queues::{Queues, Undeclared, headers};
use crate::broker::{Delivery, Settlement, Settler};
use crate::settle::{AckRuns, PATIENCE, Send};

/// How many settlements are looked at together.
const SETTLEMENTS: usize = 4096;

/// How long nothing comes before a channel is made anew. `RabbitMQ` neither cancels the consumers of a quorum queue that is
/// deleted and declared again at once, nor do they receive anything from the new one, though it counts them: they would wait
/// for ever.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
/// How long the end of a channel is waited for that nobody needs any more.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// A channel that lived so long was no failure.
const LONG: Duration = Duration::from_secs(10);

/// What a consumer wants.
pub struct Subscription {
    pub pipe: Arc<str>,
    pub prefetch: u16,
    pub line: Line,
    pub queues: Arc<Queues>,
    pub deliveries: mpsc::Sender<Delivery>,
    /// The broker is being closed.
    pub closing: CancellationToken,
}

/// How a channel ended in good order.
enum End {
    /// The consumer or the broker is done.
    Done,
    /// Nothing has come for long, and nothing is unsettled.
    Idle,
}

/// A consuming channel.
struct Session {
    live: Live,
    channel: Channel,
    runs: AckRuns,
    settler: Arc<TellsSession>,
    settlements: mpsc::UnboundedReceiver<(u64, Settlement)>,
    /// Deliveries for which the consumer had no room, because it has some of an earlier channel.
    waiting: VecDeque<Delivery>,
}

struct TellsSession(mpsc::UnboundedSender<(u64, Settlement)>);

impl Settler for TellsSession {
    fn settle(&self, tag: u64, settlement: Settlement) {
        // Without its channel the delivery has gone back already.
        self.0.send((tag, settlement)).unwrap_or_default();
    }
}

impl Subscription {
    /// Until the consumer is dropped and all it had is settled, until `closing` and all that is settled is told, or until
    /// `end`.
    pub async fn run(self, end: CancellationToken) {
        end.run_until_cancelled(self.supervise()).await;
    }

    async fn supervise(&self) {
        let delays = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(5));
        let mut delay = delays.with_jitter().without_max_times().build();
        loop {
            let live = tokio::select! {
                live = self.line.up() => live,
                () = self.closed() => return,
            };
            let started = Instant::now();
            match self.session(live).await {
                Ok(End::Done) => return,
                Ok(End::Idle) => continue,
                Err(reason) => {
                    tracing::warn!(pipe = %self.pipe, %reason, "consuming was interrupted; going on");
                }
            }
            if started.elapsed() > LONG {
                delay = delays.with_jitter().without_max_times().build();
            }
            tokio::select! {
                () = sleep(delay.next().unwrap_or_default()) => {}
                () = self.closed() => return,
            }
        }
    }

    async fn closed(&self) {
        tokio::select! {
            () = self.deliveries.closed() => {}
            () = self.closing.cancelled() => {}
        }
    }

    async fn session(&self, live: Live) -> Result<End, Undeclared> {
        self.queues.declare(&live, &self.pipe, None).await?;
        let queue = ShortString::try_new(&*self.pipe)
            .map_err(|error| Undeclared::Refused(error.to_string()))?;
        let channel = live.channel().await?;
        let qos = channel.basic_qos(self.prefetch, BasicQosOptions::default());
        live.within_limit("the prefetch", qos)
            .await?
            .map_err(|error| lost(&error))?;
        let consume = channel.basic_consume(
            queue,
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let stream = tokio::select! {
            stream = self.patiently(&live, consume) => stream?.map_err(|error| lost(&error))?,
            () = self.closed() => {
                // What an answer would bring yet goes back with the channel.
                drop(timeout(CLOSE_LIMIT, channel.close(200, "done".into())).await);
                return Ok(End::Done);
            }
        };
        let (sender, settlements) = mpsc::unbounded_channel();
        let mut session = Session {
            live,
            channel,
            runs: AckRuns::new(self.prefetch.into()),
            settler: Arc::new(TellsSession(sender)),
            settlements,
            waiting: VecDeque::new(),
        };
        Ok(session.consume(self, stream).await?)
    }

    /// Waits for what one queue answers. It may be stuck although the broker is not, e.g. a quorum queue without a leader; the connection,
    /// which serves the consumers of other queues, stays while the broker answers anything.
    async fn patiently<T>(&self, live: &Live, answer: impl Future<Output = T>) -> Result<T, Lost> {
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                answer = timeout(ANSWER_LIMIT, &mut answer) => if let Ok(answer) = answer { return Ok(answer) },
                () = live.lost.cancelled() => return Err(Lost("the connection is lost".into())),
            }
            let other = live.channel().await?;
            drop(timeout(CLOSE_LIMIT, other.close(200, "still there".into())).await);
            tracing::warn!(pipe = %self.pipe, "the queue does not answer, though its broker does; waiting for it");
        }
    }
}

impl Session {
    /// Until the channel is lost (an error), the broker is closed, or the consumer is gone and everything settled.
    async fn consume(
        &mut self,
        subscription: &Subscription,
        mut stream: lapin::Consumer,
    ) -> Result<End, Lost> {
        let mut settled = Vec::new();
        let (mut cancelled, mut ended) = (false, false);
        let mut renewal = Instant::now() + IDLE;
        while !cancelled || self.runs.open() > 0 || self.runs.due().is_some() {
            let due = self.runs.due();
            tokio::select! {
                biased;
                () = self.live.lost.cancelled() => return Err(Lost("the connection is lost".into())),
                // Before what is settled after it: the broker must not send more to a consumer that is gone.
                () = subscription.deliveries.closed(), if !cancelled => {
                    cancelled = true;
                    self.waiting.clear();
                    let cancel = self.channel.basic_cancel(stream.tag(), BasicCancelOptions::default());
                    self.live.within_limit("a cancellation", cancel).await?.map_err(|error| lost(&error))?;
                }
                _ = self.settlements.recv_many(&mut settled, SETTLEMENTS) => {
                    let now = Instant::now();
                    self.settle(&mut settled, now);
                    self.tell(now).await?;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.tell(Instant::now()).await?,
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
                        return Err(Lost("the broker has cancelled the consumer".into()));
                    }
                }
                () = sleep_until(renewal), if !cancelled => {
                    if self.runs.open() == 0 && self.runs.due().is_none() {
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

    /// Tells what has been settled; the rest goes back with the channel.
    async fn finish(&mut self, settled: &mut Vec<(u64, Settlement)>) -> Result<(), Lost> {
        let now = Instant::now();
        while let Ok(settlement) = self.settlements.try_recv() {
            settled.push(settlement);
        }
        self.settle(settled, now);
        self.tell(now + PATIENCE).await?;
        let close = self.channel.close(200, "done".into());
        self.live
            .within_limit("a channel's end", close)
            .await?
            .map_err(|error| lost(&error))
    }

    fn settle(&mut self, settled: &mut Vec<(u64, Settlement)>, now: Instant) {
        for (tag, settlement) in settled.drain(..) {
            self.runs.settled(tag, settlement, now);
        }
    }

    /// Takes what has come and what came with it. True when nothing more will come.
    fn receive_all(
        &mut self,
        subscription: &Subscription,
        first: Option<lapin::Result<Received>>,
        stream: &mut lapin::Consumer,
    ) -> Result<bool, Lost> {
        let mut next = Some(first);
        while let Some(received) = next {
            match received {
                Some(Ok(received)) => self.receive(subscription, received),
                Some(Err(error)) => return Err(lost(&error)),
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
        self.runs.delivered(delivery_tag);
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
        // A delivery that found the consumer gone was dropped just now, which sends it back.
    }

    /// Tells the broker what is to be told now.
    async fn tell(&mut self, now: Instant) -> Result<(), Lost> {
        let sends = self.runs.take(now);
        let channel = &self.channel;
        let telling = join_all(sends.into_iter().map(async |send| {
            match send {
                Send::UpTo(tag) => {
                    channel
                        .basic_ack(tag, BasicAckOptions { multiple: true })
                        .await
                }
                Send::One(tag) => channel.basic_ack(tag, BasicAckOptions::default()).await,
                Send::Requeue(tag) => {
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
                Send::Reject(tag) => {
                    channel
                        .basic_reject(tag, BasicRejectOptions { requeue: false })
                        .await
                }
            }
        }));
        let told = self
            .live
            .within_limit("an acknowledgement", telling)
            .await?;
        told.into_iter()
            .collect::<lapin::Result<Vec<()>>>()
            .map_err(|error| lost(&error))?;
        Ok(())
    }
}

fn lost(error: &lapin::Error) -> Lost {
    Lost(error.to_string())
}
