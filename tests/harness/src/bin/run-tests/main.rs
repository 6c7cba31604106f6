//! `run-tests MESSAGES OUTPUT [NAME=COMMAND…]`: runs every test binary of the workspace, several at
//! a time.
//!
//! `MESSAGES` is what `cargo test --no-run --message-format=json` printed; it names the test
//! binaries. Each `NAME=COMMAND` is one more job, such as the doc tests. All jobs share one
//! `PostgreSQL` and one `RabbitMQ`. Each job writes to a file of its own in the folder `OUTPUT`, so
//! what one test prints stays together.
//!
//! At the end it prints what failed, and a table of counts, wall time and processor time by layer.
//! The file `OUTPUT/counts` has the two numbers that `test.sh` adds up: passed and failed.
//!
//! What must stay true:
//! - **Every job ends.** A job that exceeds its time limit is killed with all its processes and
//!   counts as failed; the tests that had not finished are named.
//! - **A job without a result counts as failed**, and so does a layer without a single test.

mod job;
mod outcome;
mod plan;
mod report;

use std::collections::VecDeque;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use harness::Servers;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::job::{Finished, Job};

#[tokio::main]
async fn main() -> ExitCode {
    let run = async {
        match run().await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("run-tests: {error:#}");
                ExitCode::FAILURE
            }
        }
    };
    tokio::select! {
        code = run => code,
        // Dropping the run kills all jobs and stops the servers.
        () = interrupted() => ExitCode::FAILURE,
    }
}

async fn interrupted() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => {
            eprintln!("run-tests: cannot listen to signals: {error}");
            std::future::pending::<()>().await;
        }
    }
}

/// Runs everything; returns whether all tests passed.
async fn run() -> anyhow::Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let (Some(messages), Some(output)) = (arguments.next(), arguments.next()) else {
        bail!("usage: run-tests MESSAGES OUTPUT [NAME=COMMAND…]")
    };
    let messages = std::fs::read_to_string(&messages)
        .with_context(|| format!("cannot read the messages of cargo in {messages}"))?;
    // Absolute, because each job has a working directory of its own.
    let output = std::path::absolute(output)?;
    std::fs::create_dir_all(&output)?;

    let began = Instant::now();
    let jobs = plan::jobs(&messages, arguments)?;
    let servers = Servers::start().await?;
    let finished = run_jobs(jobs, &output, &servers.variables()).await;
    drop(servers);

    let summary = report::print(&finished, began.elapsed());
    std::fs::write(
        output.join("counts"),
        format!("{} {}\n", summary.passed, summary.failed),
    )?;
    Ok(summary.failed == 0)
}

/// Runs the jobs in their order, as many at a time as there are slots.
async fn run_jobs(
    jobs: Vec<Job>,
    output: &Path,
    variables: &[(&'static str, String)],
) -> Vec<Finished> {
    let waiting = Arc::new(Mutex::new(VecDeque::from(jobs)));
    let mut slots = JoinSet::new();
    for _ in 0..slot_count() {
        let (waiting, output, variables) =
            (Arc::clone(&waiting), output.to_owned(), variables.to_vec());
        slots.spawn(async move {
            let mut finished = Vec::new();
            let next = || {
                let mut waiting = waiting.lock();
                waiting.pop_front()
            };
            while let Some(job) = next() {
                let result = job.run(&output, &variables).await;
                println!("{result}");
                finished.push(result);
            }
            finished
        });
    }
    slots.join_all().await.into_iter().flatten().collect()
}

/// One job more for every four processors: tests, and the servers that they use, wait for a part of
/// the time. On two processors, another job only makes each of them late: that was measured.
fn slot_count() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    processors + processors / 4
}
