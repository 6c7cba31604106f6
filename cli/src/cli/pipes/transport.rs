//! How messages travel between a command and a pipe: over AMQP, or through the job service.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use batchwright::StackOptions;
use batchwright::client::Client;
use clap::Args;
use contract::{MAX_PIPE_MESSAGES, PipeMessage, PipePurpose, ReservedPipes, TakeRequest};
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker, BrokerError, Consumer, Delivery, Outgoing};
use framework::pipe_message::{of_delivery, outgoing};
use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::cli::connect::DEFAULT_URL;
use crate::cli::queue_args::QueueArgs;
use crate::tls_args::TlsArgs;

/// How long the broker may take to do what it is asked.
const BROKER_LIMIT: Duration = Duration::from_secs(30);
/// How long a pipe over AMQP is silent before it counts as empty.
const SILENCE: Duration = Duration::from_secs(1);
/// The longest wait of one request to the job service, in seconds.
const WAIT: u32 = 20;

/// Where the pipe is.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct PipeServerArgs {
    /// URL of RabbitMQ, if the system has one; without it, the job service of an embedded system is
    /// asked.
    #[arg(
        long,
        env = "BATCHWRIGHT_BROKER",
        hide_env_values = true,
        value_name = "URL"
    )]
    broker: Option<String>,
    #[command(flatten)]
    queues: QueueArgs,
    /// URL of the job service's REST API.
    #[arg(long, env = "BATCHWRIGHT_URL", default_value = DEFAULT_URL)]
    url: String,
    #[command(flatten)]
    tls: TlsArgs,
}

/// A pipe from which messages are taken.
pub enum Taking {
    Amqp {
        amqp: Amqp,
        consumer: Consumer,
        deliveries: Vec<Delivery>,
    },
    Service {
        client: Client,
        pipe: String,
        force: bool,
        receipt: Option<String>,
    },
}

/// A pipe into which messages are put.
pub enum Putting {
    Amqp { amqp: Amqp, pipe: String },
    Service { client: Client, pipe: String },
}

impl PipeServerArgs {
    /// Begins to take messages from a pipe.
    pub async fn take(&self, pipe: &str, force: bool) -> anyhow::Result<Taking> {
        let Some(broker) = &self.broker else {
            let (client, receipt) = (self.client()?, None);
            let pipe = pipe.to_owned();
            return Ok(Taking::Service {
                client,
                pipe,
                force,
                receipt,
            });
        };
        if let Err(reserved) = reserved_pipes().check(pipe, None) {
            let is_for_people =
                matches!(reserved.purpose, PipePurpose::Invalid | PipePurpose::Reject);
            ensure!(
                force || is_for_people,
                "the system itself reads the pipe '{pipe}', {}; what is taken from it is lost to the system (--force takes it nevertheless)",
                reserved.purpose
            );
        }
        let amqp = self.amqp(broker, "batchwright take")?;
        let consumer = existing(&amqp, pipe, async || {
            let prefetch = u32::try_from(MAX_PIPE_MESSAGES).unwrap_or(u32::MAX);
            amqp.consume(pipe, prefetch).await
        });
        let consumer = consumer.await?;
        Ok(Taking::Amqp {
            amqp,
            consumer,
            deliveries: Vec::new(),
        })
    }

    /// Begins to put messages into a pipe.
    pub async fn put(&self, pipe: &str) -> anyhow::Result<Putting> {
        let pipe = pipe.to_owned();
        let Some(broker) = &self.broker else {
            let client = self.client()?;
            return Ok(Putting::Service { client, pipe });
        };
        reserved_pipes().check(&pipe, None)?;
        let amqp = self.amqp(broker, "batchwright put")?;
        existing(&amqp, &pipe, async || Ok(())).await?;
        Ok(Putting::Amqp { amqp, pipe })
    }

    fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::with_tls(&self.url, "default", &self.tls.load()?))
    }

    fn amqp(&self, url: &str, name: &str) -> anyhow::Result<Amqp> {
        let amqp = Amqp::connect(AmqpOptions {
            queue_type: self.queues.queue_type,
            max_priority: self.queues.max_priority,
            tls: self.tls.load()?,
            name: name.to_owned(),
            ..AmqpOptions::new(url)
        });
        amqp.context("cannot use the broker at the given URL")
    }
}

/// Uses a pipe if it exists: a mistyped name makes no pipe.
async fn existing<T>(
    amqp: &Amqp,
    pipe: &str,
    usage: impl AsyncFnOnce() -> Result<T, BrokerError>,
) -> anyhow::Result<T> {
    let used = timeout(BROKER_LIMIT, async {
        loop {
            match amqp.exists(pipe).await {
                Ok(true) => return Ok(Some(usage().await?)),
                Ok(false) => return Ok(None),
                // It is not connected yet.
                Err(BrokerError::Unusable { .. }) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error),
            }
        }
    });
    match used.await {
        Ok(used) => used?.ok_or_else(|| anyhow!("there is no pipe '{pipe}'")),
        Err(_) => Err(anyhow!(
            "cannot use the broker within {BROKER_LIMIT:?}: {:?}",
            amqp.state()
        )),
    }
}

/// Returns the pipes of a system with the default names.
fn reserved_pipes() -> ReservedPipes {
    StackOptions::embedded("").reserved_pipes()
}

impl Taking {
    /// Returns the next messages, at most `limit`; none if the pipe stays empty for this long.
    /// Those before must be acknowledged.
    pub async fn next(
        &mut self,
        limit: usize,
        wait: Duration,
        follow: bool,
    ) -> anyhow::Result<Vec<PipeMessage>> {
        match self {
            Self::Amqp {
                consumer,
                deliveries,
                ..
            } => {
                let wait = if follow {
                    Duration::MAX
                } else {
                    wait.max(SILENCE)
                };
                // Nothing came in time, which is no error.
                let _ = timeout(wait, consumer.next_many(deliveries, limit)).await;
                ensure!(
                    !deliveries.is_empty() || !follow,
                    "the connection to the broker is closed"
                );
                Ok(deliveries.iter().map(of_delivery).collect())
            }
            Self::Service {
                client,
                pipe,
                force,
                receipt,
            } => {
                let mut left = if follow {
                    WAIT
                } else {
                    u32::try_from(wait.as_secs()).unwrap_or(u32::MAX)
                };
                loop {
                    let request = TakeRequest {
                        limit: u32::try_from(limit)?,
                        wait: left.min(WAIT),
                        receipt: receipt.take(),
                        force: *force,
                        ..TakeRequest::default()
                    };
                    let taken = client.take(pipe, &request).await?;
                    left -= request.wait;
                    receipt.clone_from(&taken.receipt);
                    if left == 0 || !taken.messages.is_empty() {
                        return Ok(taken.messages);
                    }
                }
            }
        }
    }

    /// Acknowledges the messages that were returned last. The job service is told with the next
    /// request, or at the end.
    pub fn acknowledge(&mut self) {
        if let Self::Amqp { deliveries, .. } = self {
            deliveries.drain(..).for_each(Delivery::ack);
        }
    }

    /// Returns the messages that were returned last to the pipe. Without this, they go back when
    /// the connection to the broker ends, or when the job service has waited for long enough.
    pub async fn give_back(self) {
        if let Self::Service {
            client,
            pipe,
            force,
            receipt,
        } = self
        {
            let request = TakeRequest {
                receipt,
                give_back: true,
                force,
                ..TakeRequest::default()
            };
            // Nothing is lost without it.
            let _ = client.take(&pipe, &request).await;
        }
    }

    /// Makes sure that everything is acknowledged.
    pub async fn end(self) -> anyhow::Result<()> {
        match self {
            Self::Amqp { amqp, consumer, .. } => {
                drop(consumer);
                amqp.close().await;
            }
            Self::Service {
                client,
                pipe,
                force,
                receipt: Some(receipt),
            } => {
                let request = TakeRequest {
                    limit: 0,
                    wait: 0,
                    receipt: Some(receipt),
                    force,
                    ..TakeRequest::default()
                };
                client.take(&pipe, &request).await?;
            }
            Self::Service { .. } => {}
        }
        Ok(())
    }
}

impl Putting {
    /// Sends messages, and waits until the broker has stored them.
    pub async fn send(&mut self, messages: Vec<PipeMessage>) -> anyhow::Result<()> {
        match self {
            Self::Amqp { amqp, pipe } => {
                let reserved = reserved_pipes();
                let messages = messages.into_iter();
                let sent: Result<Vec<Outgoing>, _> = messages
                    .map(|message| outgoing(pipe, message, &reserved))
                    .collect();
                let confirms = sent?.into_iter().map(|message| amqp.publish(message));
                timeout(BROKER_LIMIT, try_join_all(confirms)).await.with_context(|| {
                    format!("the broker has not confirmed the messages within {BROKER_LIMIT:?}; it may have stored them")
                })??;
            }
            Self::Service { client, pipe } => client.put_messages(pipe, messages).await?,
        }
        Ok(())
    }
}
