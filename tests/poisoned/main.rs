//! A worker process that one item kills, for the stories about suspects.
//!
//! `poisoned BROKER PREFIX POISON PREFETCH RUNS` serves the pipe `PREFIX-items` on `RabbitMQ`, answers each item with itself, and ends
//! at once, without any order, on the item with the number POISON. It notes each item that it begins in the file RUNS.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "part of a test")]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;

use contract::RangeItem;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};

struct Poisoned {
    poison: u64,
    runs: File,
}

impl Worker for Poisoned {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        // One write, so that lines of tasks beside each other do not mix.
        (&self.runs)
            .write_all(format!("{}\n", item.number).as_bytes())
            .unwrap();
        if item.number == self.poison {
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
            .expect("BROKER PREFIX POISON PREFETCH RUNS")
    };
    let (broker, prefix, poison, prefetch, runs) = (next(), next(), next(), next(), next());
    let pipe = |name: &str| format!("{prefix}-{name}");
    let settings = Settings {
        input: pipe("items"),
        output: Some(pipe("output")),
        invalid: pipe("items-invalid"),
        reject: pipe("items-reject"),
        prefetch: prefetch.parse().unwrap(),
        ..Settings::new("items")
    };
    let worker = Poisoned {
        poison: poison.parse().unwrap(),
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
