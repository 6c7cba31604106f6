//! What the broker alone can do: messages that pass from queue to queue, without anything of the product around them.
//!
//! The chain has the settings of our own client: the type of the queues, durable messages, mandatory ones on RabbitMQ, confirms
//! that are awaited in groups, and acknowledgements of many at a time. Each of its stages has connections of its own. The last
//! queue of a chain of several hops keeps what it gets, as the output pipe of a measured system does.

mod amqp;
mod sqlite;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use contract::{RangeItem, SourceInfo, TaskData, TaskMessage, Tracking};
use serde::Serialize;

use super::system::{ItemOutput, WORKER, item_params, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter, Share};

/// How many messages are written together.
const GROUP: u64 = 64;

/// The settings of a chain.
#[derive(Debug, Clone)]
pub struct LimitOptions {
    /// The prefix of the names of the queues.
    pub name: String,
    pub items: u64,
    /// How often a message is published on its way.
    pub hops: u32,
    pub items_per_message: u64,
    pub bytes: Bytes,
    pub prefetch: u16,
    /// RabbitMQ; SQLite alone if `None`.
    pub broker: Option<String>,
    /// The folder of SQLite's file; a temporary one if `None`.
    pub data: Option<PathBuf>,
}

/// The bytes of a message of one item. In a chain of several hops, the second half of them are of results, which are tracked until the last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bytes {
    pub item: usize,
    pub tracked_result: usize,
    pub result: usize,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitResult {
    pub hops: u32,
    pub items: u64,
    pub items_per_message: u64,
    pub bytes: Bytes,
    pub seconds: f64,
    pub items_per_second: f64,
    pub cpu_us_per_item: CpuPerItem,
    pub peak_memory_bytes: u64,
    pub broker: &'static str,
}

impl LimitOptions {
    /// Returns how many messages pass.
    const fn messages(&self) -> u64 {
        self.items.div_ceil(self.items_per_message)
    }

    /// Returns from how many queues messages are taken: not from the last of several.
    const fn taken(&self) -> u32 {
        if self.hops > 1 { self.hops - 1 } else { 1 }
    }

    /// Returns the body of a message in this queue, from 1.
    fn body(&self, queue: u32) -> Vec<u8> {
        let items = usize::try_from(self.items_per_message).unwrap_or(1);
        let bytes = if self.hops == 1 || queue <= self.hops / 2 {
            self.bytes.item
        } else if queue < self.hops {
            self.bytes.tracked_result
        } else {
            self.bytes.result
        };
        vec![b'x'; bytes.saturating_mul(items)]
    }
}

/// Runs a chain.
pub async fn run(options: &LimitOptions) -> anyhow::Result<LimitResult> {
    ensure!(options.items > 0, "--items must be at least 1");
    let (seconds, cpu_us_per_item) = match &options.broker {
        Some(broker) => amqp::run(options, broker).await?,
        None => sqlite::run(options).await?,
    };
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let items_per_second = options.items as f64 / seconds;
    Ok(LimitResult {
        hops: options.hops,
        items: options.items,
        items_per_message: options.items_per_message,
        bytes: options.bytes,
        seconds,
        items_per_second,
        cpu_us_per_item,
        peak_memory_bytes: peak_memory_bytes(),
        broker: match options.broker {
            Some(_) => "rabbitmq",
            None => "sqlite",
        },
    })
}

/// Measures the time and the processor time of a chain that is ready to run.
async fn measured(
    options: &LimitOptions,
    chain: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<(f64, CpuPerItem)> {
    let meter = Meter::begin(options.broker.as_deref(), None);
    let began = Instant::now();
    chain.await?;
    let seconds = began.elapsed().as_secs_f64();
    let mut used = meter.per_item(options.items);
    if options.broker.is_some() {
        // A chain over RabbitMQ stores nothing elsewhere.
        used.database = Share::NONE;
    }
    Ok((seconds, used))
}

impl Bytes {
    /// Returns what the messages of a measured system have, whose items carry so many bytes and which sends outputs or not.
    pub fn of_system(payload: usize, with_output: bool) -> Self {
        let job = "0123456789abcdef0123456789abcdef";
        let params = item_params(with_output.then_some(job), payload);
        let number = 100_000;
        let item = RangeItem {
            number,
            params: params.clone(),
        };
        let result = ItemOutput { number, params };
        let url = "http://127.0.0.1:45678/job-service/v1/partitions/bench/jobs";
        let tracking = Tracking {
            job_task_id: Some(format!("bench:{job}.100.1000")),
            last_status_check_time: Some(1_700_000_000_000),
            status_check_interval_millis: 5000,
            status_check_url: Some(format!("{url}/{job}/status?n=1").into()),
            tracking_pipe: Some("bench-jobtracking-in".into()),
            track_to: Some("bench-worker-out".into()),
        };
        Self {
            item: encoded(&item, ("worker-batch", "0.1.0"), Some(tracking.clone())),
            tracked_result: encoded(&result, (WORKER, "UNKNOWN"), Some(tracking)),
            result: encoded(&result, (WORKER, "UNKNOWN"), None),
        }
    }

    /// Returns as many for each message.
    pub const fn all(bytes: usize) -> Self {
        Self {
            item: bytes,
            tracked_result: bytes,
            result: bytes,
        }
    }
}

/// Returns how many bytes a message of a measured system has.
fn encoded<T: TaskData>(
    data: &T,
    (name, version): (&str, &str),
    tracking: Option<Tracking>,
) -> usize {
    let id = uuid::Uuid::nil();
    let message = TaskMessage::new(format!("{id}.100.1000"), "bench-worker-in", data);
    let message = message.map(|message| TaskMessage {
        tracking,
        correlation_id: Some(id.to_string().into()),
        source_info: Some(SourceInfo {
            name: Some(name.into()),
            version: Some(version.into()),
        }),
        ..message
    });
    message.map_or(0, |message| message.encode().len())
}
