//! The chain over RabbitMQ.

use anyhow::{Context as _, bail, ensure};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all, try_join, try_join_all};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};
use tokio_util::task::TaskTracker;

use super::super::ending::unless_stopped;
use super::super::usage::CpuPerItem;
use super::{Chain, GROUP, measured};

/// The maximum number of unconfirmed messages of a stage.
const WINDOW: u64 = 4096;

/// Declares the queues, lets all messages pass, and deletes the queues.
pub async fn run(options: &Chain, url: &str) -> anyhow::Result<(f64, CpuPerItem)> {
    ensure!(
        !url.starts_with("amqps:"),
        "the limit is measured without encryption; pass --broker amqp://…"
    );
    let (link, channel) = open(url).await?;
    let queues: Vec<String> = (1..=options.hops)
        .map(|hop| format!("{}-limit-{hop}", options.name))
        .collect();
    for queue in &queues {
        declare(&channel, queue).await?;
    }
    let passed = Box::pin(unless_stopped(pass(options, url, &queues))).await;
    for queue in &queues {
        let delete = channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default());
        delete.await?;
    }
    link.close(200, "done".into()).await?;
    passed
}

async fn pass(options: &Chain, url: &str, queues: &[String]) -> anyhow::Result<(f64, CpuPerItem)> {
    let source = Publishing::open(url, &queues[0], options.body(1)).await?;
    let taken = queues.iter().zip(1..=options.taken());
    let stages = taken.map(|(queue, hop)| {
        let next = usize::try_from(hop).ok().and_then(|hop| queues.get(hop));
        let next = next.map(|next| (&**next, options.body(hop + 1)));
        Stage::open(url, queue, next, options.prefetch)
    });
    let stages = try_join_all(stages).await?;
    let messages = options.messages();
    measured(options, async {
        let tasks = TaskTracker::new();
        let stages = stages
            .into_iter()
            .map(|stage| tasks.spawn(stage.run(messages)));
        let stages = try_join_all(stages).map(|ended| {
            let ended = ended.context("a stage has panicked")?;
            ended.into_iter().collect::<anyhow::Result<()>>()
        });
        try_join(stages, source.fill(messages)).await?;
        Ok(())
    })
    .await
}

async fn open(url: &str) -> anyhow::Result<(Connection, Channel)> {
    let connecting = Connection::connect(url, ConnectionProperties::default());
    let link = connecting.await.context("cannot connect to the broker")?;
    let channel = link.create_channel().await?;
    Ok((link, channel))
}

async fn declare(channel: &Channel, queue: &str) -> anyhow::Result<()> {
    let mut arguments = FieldTable::default();
    let quorum = AMQPValue::LongString("quorum".into());
    arguments.insert("x-queue-type".into(), quorum);
    let declare = channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments);
    declare.await?;
    // A measurement that was interrupted leaves messages.
    let purge = channel.queue_purge(queue.into(), QueuePurgeOptions::default());
    purge.await?;
    Ok(())
}

/// Publishes into one queue.
struct Publishing {
    _link: Connection,
    channel: Channel,
    queue: ShortString,
    body: Vec<u8>,
}

/// The confirms of a group of messages.
type Confirms = BoxFuture<'static, anyhow::Result<u64>>;

impl Publishing {
    async fn open(url: &str, queue: &str, body: Vec<u8>) -> anyhow::Result<Self> {
        let (link, channel) = open(url).await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(Self {
            _link: link,
            channel,
            queue: queue.into(),
            body,
        })
    }

    /// Publishes all messages, and waits for the confirms.
    async fn fill(self, mut messages: u64) -> anyhow::Result<()> {
        let (mut groups, mut unconfirmed) = (FuturesOrdered::new(), 0);
        while messages > 0 || unconfirmed > 0 {
            if messages > 0 && unconfirmed < WINDOW {
                let group = messages.min(GROUP);
                groups.push_back(self.write(group).await?);
                messages -= group;
                unconfirmed += group;
            } else if let Some(confirmed) = groups.next().await {
                unconfirmed -= confirmed?;
            }
        }
        Ok(())
    }

    /// Writes a group of messages. Returns what waits for its confirms.
    async fn write(&self, messages: u64) -> anyhow::Result<Confirms> {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let sent = u64::try_from(framework::clock::Clock::system().now_millis() / 1000);
        let properties = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_delivery_mode(2)
            .with_timestamp(sent.unwrap_or(0))
            .with_headers(FieldTable::default());
        let publish = |_| {
            let (queue, properties) = (self.queue.clone(), properties.clone());
            self.channel
                .basic_publish("".into(), queue, options, &self.body, properties)
        };
        let written = join_all((0..messages).map(publish)).await;
        let confirms = join_all(written.into_iter().map(async |written| written?.await));
        let confirms = confirms.map(move |confirms| {
            for confirm in confirms {
                match confirm? {
                    Confirmation::Ack(None) => {}
                    refused => bail!("the broker refuses a message of the chain: {refused:?}"),
                }
            }
            Ok(messages)
        });
        Ok(confirms.boxed())
    }
}

/// Takes messages from one queue, and publishes each into the next one before it is acknowledged.
struct Stage {
    _link: Connection,
    channel: Channel,
    consumer: Consumer,
    next: Option<Publishing>,
}

impl Stage {
    async fn open(
        url: &str,
        queue: &str,
        next: Option<(&str, Vec<u8>)>,
        prefetch: u16,
    ) -> anyhow::Result<Self> {
        let (link, channel) = open(url).await?;
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        let consume = channel.basic_consume(
            queue.into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let next = match next {
            Some((next, body)) => Some(Publishing::open(url, next, body).await?),
            None => None,
        };
        Ok(Self {
            _link: link,
            consumer: consume.await?,
            channel,
            next,
        })
    }

    async fn run(mut self, messages: u64) -> anyhow::Result<()> {
        // The groups that are published and not confirmed yet, in order: each with its last tag.
        let mut open = FuturesOrdered::new();
        let (mut received, mut settled) = (0, 0);
        while settled < messages {
            tokio::select! {
                biased;
                Some(confirmed) = open.next() => {
                    let (group, last): (anyhow::Result<u64>, u64) = confirmed;
                    self.acknowledge(last).await?;
                    settled += group?;
                }
                first = self.consumer.next(), if received - settled < WINDOW => {
                    let (group, last) = self.take(first)?;
                    received += group;
                    if let Some(next) = &self.next {
                        let confirms = next.write(group).await?;
                        open.push_back(confirms.map(move |confirmed| (confirmed, last)));
                    } else {
                        self.acknowledge(last).await?;
                        settled += group;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the deliveries that are there, after this first one. Returns how many there are, and
    /// the tag of the last.
    fn take(
        &mut self,
        first: Option<lapin::Result<lapin::message::Delivery>>,
    ) -> anyhow::Result<(u64, u64)> {
        let mut last = first.context("the broker has cancelled a consumer of the chain")??;
        let mut group = 1;
        while group < GROUP
            && let Some(Some(next)) = self.consumer.next().now_or_never()
        {
            last = next?;
            group += 1;
        }
        Ok((group, last.delivery_tag))
    }

    /// Acknowledges all deliveries up to this tag.
    async fn acknowledge(&self, last: u64) -> anyhow::Result<()> {
        let multiple = BasicAckOptions { multiple: true };
        self.channel.basic_ack(last, multiple).await?;
        Ok(())
    }
}
