//! A worker process that one item crashes, for the story about such items.
//!
//! `crashing-worker BROKER PREFIX CRASHING PREFETCH RUNS` consumes the pipe `PREFIX-items` on `RabbitMQ` and sends each item on
//! unchanged. The item with the number CRASHING aborts the process. The worker appends the number of each item that it begins
//! to the file RUNS.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "part of a test")]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;

use contract::RangeItem;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};

struct CrashingWorker {
    crashing: u64,
    runs: File,
}

impl Worker for CrashingWorker {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        // A single write, so that the lines of concurrent tasks do not mix.
        (&self.runs)
            .write_all(format!("{}\n", item.number).as_bytes())
            .unwrap();
        if item.number == self.crashing {
            std::process::abort();
        }
        Ok(Reply::send(item))
    }
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .expect("BROKER PREFIX CRASHING PREFETCH RUNS")
    };
    let (broker, prefix, crashing, prefetch, runs) = (next(), next(), next(), next(), next());
    let pipe = |name: &str| format!("{prefix}-{name}");
    let settings = Settings {
        input: pipe("items"),
        output: Some(pipe("output")),
        invalid: pipe("items-invalid"),
        reject: pipe("items-reject"),
        prefetch: Some(prefetch.parse().unwrap()),
        ..Settings::new("items")
    };
    let worker = CrashingWorker {
        crashing: crashing.parse().unwrap(),
        runs: OpenOptions::new()
            .append(true)
            .create(true)
            .open(runs)
            .unwrap(),
    };
    let amqp = Amqp::connect(AmqpOptions::new(broker)).unwrap();
    Runtime::new(settings, Arc::new(amqp))
        .worker(worker)
        .run()
        .await
        .unwrap();
}
