//! A worker process that one item crashes, for the stories about such items.
//!
//! `crashing-worker BROKER PREFIX CRASHING PREFETCH RUNS [EFFECTS]` consumes the pipe
//! `PREFIX-items` on `RabbitMQ` and sends each item on unchanged. The item with the number CRASHING
//! aborts the process. The worker appends the number of each item that it begins to the file RUNS.
//!
//! With EFFECTS, each item does a part of itself once, which appends its number to this file. The
//! process kills itself twice then: after the effect of the item CRASHING, before the job service
//! has its result, and in the next run after that.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "part of a test")]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use contract::RangeItem;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};

struct CrashingWorker {
    crashing: u64,
    runs: File,
    /// The paths of both files.
    once: Option<(String, String)>,
}

impl CrashingWorker {
    /// Does the part of an item that is done once, and dies before or after its result is kept.
    async fn do_once(&self, item: u64, ctx: &Context) -> Result<(), TaskError> {
        let Some((runs, effects)) = &self.once else {
            return Ok(());
        };
        let line = format!("{item}\n");
        let runs = std::fs::read_to_string(runs)?;
        let run = runs.lines().filter(|run| *run == line.trim_end()).count();
        let dies_in = |nth| item == self.crashing && run == nth;
        ctx.once("effect", async {
            appending(effects).write_all(line.as_bytes())?;
            if dies_in(1) {
                kill_myself();
            }
            Ok(())
        })
        .await?;
        if dies_in(2) {
            kill_myself();
        }
        Ok(())
    }
}

/// Ends the process as `kill -9` does: nothing of it is told, and nothing flushed.
fn kill_myself() -> ! {
    let id = std::process::id().to_string();
    let status = Command::new("kill").args(["-KILL", &id]).status();
    unreachable!("the process has survived kill -9, which has ended with {status:?}");
}

fn appending(path: &str) -> File {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.unwrap()
}

impl Worker for CrashingWorker {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        // A single write, so that the lines of concurrent tasks do not mix.
        (&self.runs)
            .write_all(format!("{}\n", item.number).as_bytes())
            .unwrap();
        self.do_once(item.number, &ctx).await?;
        if item.number == self.crashing && self.once.is_none() {
            std::process::abort();
        }
        Ok(Reply::send(item))
    }
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "BROKER PREFIX CRASHING PREFETCH RUNS [EFFECTS]";
    let mut next = || arguments.next().expect(usage);
    let (broker, prefix, crashing, prefetch, runs) = (next(), next(), next(), next(), next());
    let once = arguments.next().map(|effects| (runs.clone(), effects));
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
        runs: appending(&runs),
        once,
    };
    let amqp = Amqp::connect(AmqpOptions::new(broker)).unwrap();
    Runtime::new(settings, Arc::new(amqp))
        .worker(worker)
        .run()
        .await
        .unwrap();
}
