//! Questions over `RabbitMQ`: for each pipe about which somebody answers questions, a queue beside
//! it, and for each process that asks, a queue for its answers. A question for which somebody in
//! the same process has room does not travel.
//!
//! What must stay true:
//! - A queue of questions exists only while somebody consumes it. A question that no queue takes
//!   comes back at once.
//! - A question is asked once: one that comes back because who was asked has died is answered with
//!   nothing. So no question can end one worker after another.
//! - Answers are published on the connection for publishing, which the server may block, and never
//!   hold up the one that settles.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use contract::{MAX_PIPE_BYTES, queries_pipe};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Consumer};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use super::control::Refusals;
use super::queues::end;
use crate::broker::queries::{AT_ONCE, LocalQueries, Query, Unanswered};
use crate::health::Health;
use crate::supervision::run_or_tell;

/// How many questions wait in a queue. Further ones are refused at once.
const WAITING: i64 = 1000;
/// How many bytes they may have.
const WAITING_BYTES: i64 = 64 * 1024 * 1024;
/// After how many milliseconds without consumers the server deletes a queue, should the one who
/// declared it never have consumed it.
const UNUSED_MILLIS: i64 = 60_000;
/// How long an answer may take to be written. Nobody waits for one that takes longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long somebody who asks waits at the most, if the question does not say it.
const LONGEST: Duration = Duration::from_mins(1);

/// Sends the questions about a pipe to `queries` until the receiver is dropped, and their answers
/// back.
pub async fn serve(
    consuming: &ConnectionSupervisor,
    publishing: &ConnectionSupervisor,
    pipe: &str,
    queries: &mpsc::Sender<Query>,
) {
    let queue = queries_pipe(pipe);
    if queue.len() > MAX_PIPE_BYTES {
        queries.closed().await;
        return;
    }
    let mut refusals = Refusals::default();
    loop {
        let connection = tokio::select! {
            connection = consuming.connected() => connection,
            () = queries.closed() => return,
        };
        let served = serve_on(&connection, publishing, &queue, queries, &mut refusals).await;
        let Err(reason) = served else {
            return;
        };
        let (delay, is_new) = refusals.add(reason.to_string());
        if is_new {
            tracing::warn!(
                %reason,
                queue,
                "no questions are answered; trying again, less and less often if the reason stays. Jobs are created without being checked \
                 meanwhile. If access is refused, grant the user of this process the rights to configure and read the queue"
            );
        }
        tokio::select! {
            () = sleep(delay) => {}
            () = queries.closed() => return,
        }
    }
}

/// That somebody answers questions about a pipe, until this is dropped.
#[derive(Debug)]
pub struct Listed {
    queries: LocalQueries,
    pipe: String,
    answerer: mpsc::Sender<Query>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(answerers) = self.queries.lock().get_mut(&self.pipe) {
            answerers.retain(|answerer| !answerer.same_channel(&self.answerer));
        }
    }
}

impl LocalQueries {
    /// Asks somebody in this process who has room for a question. Returns nothing if nobody has.
    async fn ask_idle(
        &self,
        pipe: &str,
        question: &Bytes,
        limit: Duration,
    ) -> Option<Result<Bytes, Unanswered>> {
        let (query, answer) = Query::new(question.clone(), limit);
        let until = query.until();
        self.turn(pipe).ok()?.try_send(query).ok()?;
        Some(match timeout_at(until, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) if Instant::now() < until => Err(Unanswered::NoAnswer(pipe.to_owned())),
            _ => Err(Unanswered::InTime(pipe.to_owned(), limit)),
        })
    }

    /// Lists somebody who answers questions about a pipe.
    pub fn list(&self, pipe: &str, answerer: mpsc::Sender<Query>) -> Listed {
        self.add(pipe, answerer.clone());
        Listed {
            queries: self.clone(),
            pipe: pipe.to_owned(),
            answerer,
        }
    }
}

/// Where the answer to a question goes, and which delivery it settles.
struct Open {
    tag: u64,
    to: Option<ShortString>,
    id: ShortString,
    answer: Bytes,
}

async fn serve_on(
    connection: &Connection,
    publishing: &ConnectionSupervisor,
    queue: &str,
    queries: &mpsc::Sender<Query>,
    refusals: &mut Refusals,
) -> Result<(), ConnectionLost> {
    let channel = connection.open_channel().await?;
    let mut messages = connection
        .request("questions", consume(&channel, queue))
        .await?;
    refusals.end();
    let mut answers = FuturesUnordered::new();
    let mut replies = None;
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(delivery) => answers.push(open(delivery?, queries)),
                None => return Err(ConnectionLost::ChannelEnded),
            },
            Some(open) = answers.next(), if !answers.is_empty() => {
                let tag = open.tag;
                let answered = timeout(ANSWER_LIMIT, reply(publishing, &mut replies, open)).await;
                if !matches!(answered, Ok(Ok(()))) {
                    replies = None;
                }
                let acknowledged = channel.basic_ack(tag, BasicAckOptions::default());
                connection.request("the acknowledgement of a question", acknowledged).await?;
            }
            () = connection.lost.cancelled() => return Err(ConnectionLost::Closed),
            () = queries.closed() => {
                return end(connection, &channel).await;
            }
        }
    }
}

async fn consume(channel: &Channel, queue: &str) -> lapin::Result<Consumer> {
    channel
        .basic_qos(AT_ONCE, BasicQosOptions::default())
        .await?;
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", AMQPValue::LongString("classic".into())),
        ("x-max-length", AMQPValue::LongLongInt(WAITING)),
        ("x-max-length-bytes", AMQPValue::LongLongInt(WAITING_BYTES)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
        ("x-expires", AMQPValue::LongLongInt(UNUSED_MILLIS)),
    ] {
        arguments.insert(name.into(), value);
    }
    let options = QueueDeclareOptions {
        durable: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(queue.into(), options, arguments)
        .await?;
    let options = BasicConsumeOptions::default();
    channel
        .basic_consume(queue.into(), "".into(), options, FieldTable::default())
        .await
}

/// Passes a question on, and waits for the answer; an empty one says that there is none.
fn open(delivery: Delivery, queries: &mpsc::Sender<Query>) -> impl Future<Output = Open> + use<> {
    let properties = &delivery.properties;
    let to = properties.reply_to().clone();
    let id = properties.correlation_id().clone().unwrap_or_default();
    let limit = properties.expiration().as_ref();
    let limit = limit.and_then(|millis| millis.as_str().parse().ok());
    let limit = limit.map_or(LONGEST, |millis| Duration::from_millis(millis).min(LONGEST));
    let (query, answer) = Query::new(delivery.data.into(), limit);
    let until = query.until();
    let (tag, queries) = (delivery.delivery_tag, queries.clone());
    // Otherwise who was asked first has died of it, or without an answer.
    let is_new = !delivery.redelivered && to.is_some();
    async move {
        let answered = async {
            // Waits while questions from this process take all the room.
            if is_new && queries.send(query).await.is_ok() {
                return answer.await.ok();
            }
            None
        };
        let answer = timeout_at(until, answered).await;
        let answer = answer.ok().flatten().unwrap_or_default();
        Open {
            tag,
            to,
            id,
            answer,
        }
    }
}

async fn reply(
    publishing: &ConnectionSupervisor,
    replies: &mut Option<Channel>,
    open: Open,
) -> Result<(), ConnectionLost> {
    let Some(to) = open.to else {
        return Ok(());
    };
    let current = replies.take();
    let current = current.filter(|channel| channel.status().connected());
    let channel = if let Some(channel) = current {
        channel
    } else {
        let connection = publishing.current().ok_or(ConnectionLost::NotConnected)?;
        connection.open_channel().await?
    };
    let properties = BasicProperties::default().with_correlation_id(open.id);
    let options = BasicPublishOptions::default();
    channel
        .basic_publish("".into(), to, options, &open.answer, properties)
        .await?;
    *replies = Some(channel);
    Ok(())
}

/// Asks questions for a process.
pub struct Asker {
    local: LocalQueries,
    publishing: ConnectionSupervisor,
    tasks: TaskTracker,
    health: Health,
    end: CancellationToken,
    link: tokio::sync::Mutex<Option<Link>>,
    last: AtomicU64,
}

/// A channel for questions, with the queue of their answers.
#[derive(Clone)]
struct Link {
    channel: Channel,
    queue: ShortString,
    pending: Pending,
    gone: CancellationToken,
}

/// Who waits for an answer, by the ids of their questions.
#[derive(Clone, Default)]
struct Pending(Arc<Mutex<BTreeMap<String, oneshot::Sender<Bytes>>>>);

impl Asker {
    pub fn new(
        local: LocalQueries,
        publishing: ConnectionSupervisor,
        tasks: TaskTracker,
        health: Health,
        end: CancellationToken,
    ) -> Self {
        Self {
            local,
            publishing,
            tasks,
            health,
            end,
            link: tokio::sync::Mutex::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Asks one of those who answer questions about a pipe.
    pub async fn ask(
        &self,
        pipe: &str,
        question: Bytes,
        limit: Duration,
    ) -> Result<Bytes, Unanswered> {
        if let Some(answered) = self.local.ask_idle(pipe, &question, limit).await {
            return answered;
        }
        match timeout(limit, self.ask_now(pipe, &question, limit)).await {
            // Perhaps somebody in this process answers, who is busy and whom the server does not
            // know yet.
            Ok(Err(Unanswered::Nobody(_))) => self.local.ask(pipe, question, limit).await,
            Ok(answered) => answered,
            Err(_) => Err(Unanswered::InTime(pipe.to_owned(), limit)),
        }
    }

    async fn ask_now(
        &self,
        pipe: &str,
        question: &[u8],
        limit: Duration,
    ) -> Result<Bytes, Unanswered> {
        let queue = queries_pipe(pipe);
        if queue.len() > MAX_PIPE_BYTES {
            return Err(Unanswered::Nobody(pipe.to_owned()));
        }
        let broker = |reason: &dyn ToString| Unanswered::Broker(reason.to_string());
        let link = self.link().await.map_err(|reason| broker(&reason))?;
        let id = self.last.fetch_add(1, Ordering::Relaxed).to_string();
        let mut answer = link.pending.expect(&id);
        if link.gone.is_cancelled() {
            return Err(broker(&ConnectionLost::ChannelEnded));
        }
        let properties = BasicProperties::default()
            .with_reply_to(link.queue.clone())
            .with_correlation_id(id.as_str().into())
            .with_expiration(limit.as_millis().to_string().into());
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let published =
            link.channel
                .basic_publish("".into(), queue.into(), options, question, properties);
        let confirm = published.await.map_err(|reason| broker(&reason))?;
        let no_answer = || Unanswered::NoAnswer(pipe.to_owned());
        let answered = tokio::select! {
            answered = &mut answer.receiver => answered,
            confirmed = confirm => match confirmed.map_err(|reason| broker(&reason))? {
                Confirmation::Ack(None) | Confirmation::NotRequested => (&mut answer.receiver).await,
                Confirmation::Ack(Some(_)) => return Err(Unanswered::Nobody(pipe.to_owned())),
                Confirmation::Nack(_) => return Err(no_answer()),
            },
        };
        answered
            .ok()
            .filter(|answer| !answer.is_empty())
            .ok_or_else(no_answer)
    }

    /// Returns the channel for questions, and opens it if there is none.
    async fn link(&self) -> Result<Link, ConnectionLost> {
        let mut current = self.link.lock().await;
        if let Some(link) = &*current
            && link.channel.status().connected()
            && !link.gone.is_cancelled()
        {
            return Ok(link.clone());
        }
        *current = None;
        let connection = self
            .publishing
            .current()
            .ok_or(ConnectionLost::NotConnected)?;
        let channel = connection.open_channel().await?;
        let answers = connection.request("answers", expect_answers(&channel));
        let (queue, messages) = answers.await?;
        let link = Link {
            channel,
            queue,
            pending: Pending::default(),
            gone: CancellationToken::new(),
        };
        let (pending, gone) = (link.pending.clone(), link.gone.clone());
        let (health, end) = (self.health.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let passing = pass_on(messages, connection, pending, gone);
            // The next question opens another channel.
            let told = run_or_tell(&health, "rabbitmq: answers", passing);
            end.run_until_cancelled(told).await
        });
        Ok(current.insert(link).clone())
    }
}

async fn expect_answers(channel: &Channel) -> lapin::Result<(ShortString, Consumer)> {
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let options = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare("".into(), options, FieldTable::default());
    let queue = declared.await?.name().clone();
    let options = BasicConsumeOptions {
        no_ack: true,
        ..BasicConsumeOptions::default()
    };
    let consumer = channel
        .basic_consume(queue.clone(), "".into(), options, FieldTable::default())
        .await?;
    Ok((queue, consumer))
}

/// Passes answers on to those who wait for them until the connection is lost. Then nobody waits any
/// more.
async fn pass_on(
    messages: Consumer,
    connection: Connection,
    pending: Pending,
    gone: CancellationToken,
) {
    let _no_more = NoMore(&pending, &gone);
    let mut messages = messages;
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = connection.lost.cancelled() => return,
        };
        let Some(Ok(delivery)) = message else {
            return;
        };
        if let Some(id) = delivery.properties.correlation_id() {
            pending.answer(id.as_str(), delivery.data.into());
        }
    }
}

/// Ends the wait of everybody who has asked: no answer comes any more.
struct NoMore<'a>(&'a Pending, &'a CancellationToken);

impl Drop for NoMore<'_> {
    fn drop(&mut self) {
        // In this order: one that begins to wait now sees that no answer will come.
        self.1.cancel();
        self.0.lock().clear();
    }
}

/// Somebody who waits for an answer.
struct Expected<'a> {
    pending: &'a Pending,
    id: String,
    receiver: oneshot::Receiver<Bytes>,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.id);
    }
}

impl Pending {
    fn expect(&self, id: &str) -> Expected<'_> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(id.to_owned(), sender);
        Expected {
            pending: self,
            id: id.to_owned(),
            receiver,
        }
    }

    fn answer(&self, id: &str, answer: Bytes) {
        if let Some(waiting) = self.lock().remove(id) {
            // The one who asked may have gone.
            let _ = waiting.send(answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, oneshot::Sender<Bytes>>> {
        self.0.lock()
    }
}
