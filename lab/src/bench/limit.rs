//! What the broker alone can do: messages that pass from queue to queue, without anything of the
//! product around them.
//!
//! The chain has the settings of our own client: the type of the queues, durable messages,
//! mandatory ones on RabbitMQ, confirms that are awaited in groups, and acknowledgements of many at
//! a time. Each of its stages has connections of its own. The last queue of a chain of several hops
//! keeps what it gets, as the output pipe of a measured system does.

mod amqp;
mod sqlite;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use contract::{
    BundleWriter, RangeItem, SourceInfo, TaskData, TaskMessage, Tracking, bundle_message,
};
use serde::Serialize;

use super::system::{ItemOutput, Place, WORKER, item_params, peak_memory_bytes};
use super::usage::{CpuPerItem, Meter, Share};

/// How many messages are written together.
const GROUP: u64 = 64;
/// How many bytes of task data a bundle has at the most. A member with more than
/// [`MAX_MEMBER_BYTES`] goes by itself.
const MAX_BUNDLE_BYTES: usize = 128 * 1024;
const MAX_MEMBER_BYTES: usize = 16 * 1024;

/// How many deliveries a stage of the chain holds; more was measured to be no faster.
pub const PREFETCH: u16 = 1000;

/// The settings of chains.
#[derive(Debug, Args)]
pub struct LimitOptions {
    /// Number of items.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    items: u64,
    /// Prefix of the names of the queues, which are deleted at the end.
    #[arg(long, default_value = "bench")]
    name: String,
    /// How often each message is published on its way; several numbers are measured one after the
    /// other.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=16))]
    hops: Vec<u32>,
    /// Number of items in a message, as far as a bundle of the system has room for so many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), value_name = "ITEMS")]
    items_per_message: u64,
    /// Bytes of each item in a message; by default a message has as many as one of `bench run`.
    #[arg(long, value_name = "BYTES")]
    body_bytes: Option<usize>,
    /// Maximum number of unacknowledged deliveries of each stage of the chain.
    #[arg(long, default_value_t = PREFETCH, value_parser = clap::value_parser!(u16).range(1..), value_name = "DELIVERIES")]
    prefetch: u16,
    #[command(flatten)]
    place: Place,
}

/// A chain.
#[derive(Debug)]
pub struct Chain {
    /// The prefix of the names of the queues.
    pub name: String,
    pub items: u64,
    /// How often a message is published on its way.
    pub hops: u32,
    pub bodies: Bodies,
    pub prefetch: u16,
    /// RabbitMQ; SQLite alone if `None`.
    pub broker: Option<String>,
    /// The folder of SQLite's file; a temporary one if `None`.
    pub data: Option<PathBuf>,
}

/// What the messages of a chain have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bodies {
    pub items_per_message: u64,
    pub bytes: Bytes,
}

/// The bytes of a message. In a chain of several hops, the second half of them are of results,
/// which are tracked until the last.
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
    #[serde(flatten)]
    pub bodies: Bodies,
    pub seconds: f64,
    pub items_per_second: f64,
    pub cpu_us_per_item: CpuPerItem,
    pub peak_memory_bytes: u64,
    pub broker: &'static str,
}

impl LimitOptions {
    /// Returns the chains.
    pub fn chains(self) -> impl Iterator<Item = Chain> {
        self.hops.into_iter().map(move |hops| Chain {
            name: self.name.clone(),
            items: self.items,
            hops,
            bodies: match self.body_bytes {
                Some(bytes) => Bodies::of_bytes(bytes, self.items_per_message),
                None => Bodies::of_system(0, hops > 1, self.items_per_message),
            },
            prefetch: self.prefetch,
            broker: self.place.servers.broker.clone(),
            data: self.place.data.clone(),
        })
    }
}

impl Chain {
    /// Returns how many messages pass.
    const fn messages(&self) -> u64 {
        self.items.div_ceil(self.bodies.items_per_message)
    }

    /// Returns from how many queues messages are taken: not from the last of several.
    const fn taken(&self) -> u32 {
        if self.hops > 1 { self.hops - 1 } else { 1 }
    }

    /// Returns the body of a message in this queue, from 1.
    fn body(&self, queue: u32) -> Vec<u8> {
        let of = self.bodies.bytes;
        let bytes = if self.hops == 1 || queue <= self.hops / 2 {
            of.item
        } else if queue < self.hops {
            of.tracked_result
        } else {
            of.result
        };
        vec![b'x'; bytes]
    }
}

/// Runs a chain.
pub async fn run(options: &Chain) -> anyhow::Result<LimitResult> {
    let (seconds, cpu_us_per_item) = match &options.broker {
        Some(broker) => amqp::run(options, broker).await?,
        None => sqlite::run(options).await?,
    };
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let items_per_second = options.items as f64 / seconds;
    Ok(LimitResult {
        hops: options.hops,
        items: options.items,
        bodies: options.bodies,
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
    options: &Chain,
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

impl Bodies {
    /// Returns what the messages of a measured system have, whose items carry so many bytes, which
    /// sends outputs or not, and whose bundles have so many members at the most.
    pub fn of_system(payload: usize, with_output: bool, most: u64) -> Self {
        let job = "0123456789abcdef0123456789abcdef";
        let params = item_params(with_output.then_some(job), payload);
        let number = 100_000;
        let item = RangeItem {
            number,
            params: params.clone(),
        };
        let result = ItemOutput { number, params };
        // An item and its result have the same fields.
        let data = serde_json::to_vec(&item).unwrap_or_default();
        let items = members(data.len(), most);
        let url = "http://127.0.0.1:45678/job-service/v1/partitions/bench/jobs";
        let tracking = Tracking {
            job_task_id: Some(format!("bench:{job}.100")),
            last_status_check_time: Some(1_700_000_000_000),
            status_check_interval_millis: 5000,
            status_check_url: Some(format!("{url}/{job}/status?n=1").into()),
            tracking_pipe: Some("bench-jobtracking-in".into()),
            track_to: Some("bench-worker-out".into()),
        };
        let worker = (WORKER, "UNKNOWN");
        let batch = ("worker-batch", "0.1.0");
        Self {
            items_per_message: items.into(),
            bytes: Bytes {
                item: encoded(&item, items, batch, Some(tracking.clone())),
                tracked_result: encoded(&result, items, worker, Some(tracking)),
                result: encoded(&result, items, worker, None),
            },
        }
    }

    /// Returns bodies of so many items, each of so many bytes.
    pub fn of_bytes(bytes: usize, items: u64) -> Self {
        let all = bytes.saturating_mul(usize::try_from(items).unwrap_or(usize::MAX));
        Self {
            items_per_message: items,
            bytes: Bytes {
                item: all,
                tracked_result: all,
                result: all,
            },
        }
    }
}

/// Returns how many members with so many bytes of task data a bundle has that may have `most`: as
/// many as a split gathers.
fn members(bytes: usize, most: u64) -> u32 {
    if bytes > MAX_MEMBER_BYTES {
        return 1;
    }
    let full = (MAX_BUNDLE_BYTES - MAX_MEMBER_BYTES) / bytes.max(1) + 1;
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    u32::try_from(full)
        .map_or(most, |full| full.min(most))
        .max(1)
}

/// Returns how many bytes a message of a measured system has: a bundle, unless it has one item.
fn encoded<T: TaskData>(
    data: &T,
    items: u32,
    (name, version): (&str, &str),
    tracking: Option<Tracking>,
) -> usize {
    let id = uuid::Uuid::nil();
    let message = TaskMessage::new(format!("{id}.100"), "bench-worker-in", data);
    let shared = message.map(|message| TaskMessage {
        tracking,
        correlation_id: Some(id.to_string().into()),
        source_info: Some(SourceInfo {
            name: Some(name.into()),
            version: Some(version.into()),
        }),
        ..message
    });
    let Ok(shared) = shared else { return 0 };
    let data = shared.task_data.clone().unwrap_or_default();
    if items == 1 {
        return bundle_message(&shared, 1000, data).encode().len();
    }
    let mut bundle = BundleWriter::default();
    for number in 1..=items {
        bundle.add(number, &data, None);
    }
    bundle.encode(shared).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_bytes_of_bundles_and_as_many_items_as_fit() {
        let alone = Bodies::of_system(0, true, 1);
        let bundle = Bodies::of_system(0, true, 100);
        assert_eq!(
            (alone.items_per_message, bundle.items_per_message),
            (1, 100)
        );
        // The item, its number and its length.
        let data = serde_json::json!({"number": 100_000, "params": {"run": "x".repeat(32)}});
        let shared = alone.bytes.item - data.to_string().len().div_ceil(3) * 4;
        let expected = shared + 100 * (data.to_string().len() + "[100,63],".len());
        assert!(
            bundle.bytes.item.abs_diff(expected) < 200,
            "{bundle:?} {expected}"
        );
        let large = Bodies::of_system(2000, true, 100);
        assert_eq!(large.items_per_message, 56);
        assert!(
            (112 << 10..MAX_BUNDLE_BYTES).contains(&large.bytes.item),
            "{large:?}"
        );
        let own = Bodies::of_system(MAX_MEMBER_BYTES, true, 100);
        assert_eq!(own, Bodies::of_system(MAX_MEMBER_BYTES, true, 1));
    }
}
