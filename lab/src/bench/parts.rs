//! The parts of a measured system that run in processes of their own.
//!
//! Such a process is this program, with the same arguments and with `--only`. It ends when its
//! standard input is closed, also if the process that measures dies, and prints what it has
//! counted.

use std::process::Stdio;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, ensure};
use batchwright::Role;
use clap::ValueEnum as _;
use contract::TrackingShards;
use procfs::process::Process;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::system::{JobOptions, Part, Processes, peak_memory_bytes};
use batchwright_cli::say;

/// What the processes of one part have used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartResult {
    pub part: Part,
    pub processes: u32,
    /// The processor time for an item, in microseconds, of all of them together.
    pub cpu_us_per_item: f64,
    /// Of the process that needed most.
    pub peak_memory_bytes: u64,
}

/// What a process prints at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    pub executed: u64,
    pub reports: u64,
    pub splits: u64,
    peak_memory_bytes: u64,
}

/// A process of a part, which is killed when this is dropped.
pub struct PartProcess {
    part: Part,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    began: u64,
}

impl Part {
    /// Returns the role that the part is; `None` for the worker of the measurement.
    pub const fn role(self) -> Option<Role> {
        match self {
            Self::Worker => None,
            Self::BatchWorker => Some(Role::BatchWorker),
            Self::TrackingWorker => Some(Role::TrackingWorker),
        }
    }
}

/// Starts the processes that the options ask for, and waits until each has begun.
pub async fn start(options: &JobOptions) -> anyhow::Result<Vec<PartProcess>> {
    let mut all = Vec::new();
    for Processes { part, number } in &options.processes {
        for process in 0..*number {
            let shards = match part {
                Part::TrackingWorker => shards_of(process, *number, options.load.tracking_shards),
                Part::Worker | Part::BatchWorker => Vec::new(),
            };
            all.push(PartProcess::start(*part, &shards)?);
        }
    }
    for process in &mut all {
        process
            .lines
            .next_line()
            .await?
            .context("a process ended at its start")?;
        process.began = process.ticks();
    }
    Ok(all)
}

/// Returns the shards that one of so many tracking workers reads, so that each shard has one
/// reader. Of more processes than shards, several read the same.
fn shards_of(process: u32, processes: u32, shards: TrackingShards) -> Vec<u32> {
    let number = shards.number();
    if number == 1 {
        return Vec::new();
    }
    let own = (0..number).filter(|shard| shard % processes == process % number.min(processes));
    own.collect()
}

/// Ends the processes. Returns what they have used for each of so many items, and what they have
/// counted.
pub async fn stop(
    processes: Vec<PartProcess>,
    items: u64,
) -> anyhow::Result<(Vec<PartResult>, Counted)> {
    let (mut results, mut counted) = (Vec::<PartResult>::new(), Counted::default());
    // Before the first ends, which takes time.
    let used: Vec<u64> = processes.iter().map(PartProcess::ticks).collect();
    for (process, ticks) in processes.into_iter().zip(used) {
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
        let seconds = (ticks - process.began) as f64 / procfs::ticks_per_second() as f64;
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
        let cpu_us_per_item = seconds * 1e6 / items.max(1) as f64;
        let part = process.part;
        let own = process.stop().await?;
        counted.executed += own.executed;
        counted.reports += own.reports;
        counted.splits += own.splits;
        if let Some(result) = results.iter_mut().find(|result| result.part == part) {
            result.processes += 1;
            result.cpu_us_per_item += cpu_us_per_item;
            result.peak_memory_bytes = result.peak_memory_bytes.max(own.peak_memory_bytes);
        } else {
            results.push(PartResult {
                part,
                processes: 1,
                cpu_us_per_item,
                peak_memory_bytes: own.peak_memory_bytes,
            });
        }
    }
    Ok((results, counted))
}

impl PartProcess {
    fn start(part: Part, shards: &[u32]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let name = part.to_possible_value().context("a part has a name")?;
        let mut child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .args(["--only", name.get_name()])
            .args(shards.iter().map(|shard| format!("--shard={shard}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process")?;
        let output = child.stdout.take().context("a process has an output")?;
        Ok(Self {
            part,
            child,
            lines: BufReader::new(output).lines(),
            began: 0,
        })
    }

    /// Returns the processor time that it has used so far; 0 if it is gone.
    fn ticks(&self) -> u64 {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let stat = id.and_then(|id| Process::new(id).ok()?.stat().ok());
        stat.map_or(self.began, |stat| stat.utime + stat.stime)
    }

    async fn stop(mut self) -> anyhow::Result<Counted> {
        drop(self.child.stdin.take());
        let line = self.lines.next_line().await?;
        let line = line.context("a process ended without its counts")?;
        let status = self.child.wait().await?;
        ensure!(status.success(), "a process failed: {status}");
        Ok(serde_json::from_str(&line)?)
    }
}

/// Waits until the process that measures closes standard input, or dies. Ctrl-C goes to all
/// processes of a terminal; it is for that one.
pub async fn until_told_to_end() -> std::io::Result<()> {
    let interrupted = async {
        while tokio::signal::ctrl_c().await.is_ok() {}
        std::future::pending().await
    };
    let (mut input, mut nothing) = (tokio::io::stdin(), Vec::new());
    tokio::select! {
        ended = input.read_to_end(&mut nothing) => ended.map(drop),
        ended = interrupted => ended,
    }
}

/// Is a process of one part until its standard input is closed.
pub async fn run(options: &JobOptions) -> anyhow::Result<()> {
    let system = options.start().await?;
    say!("started");
    until_told_to_end().await?;
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let counted = Counted {
        executed: count(&system.executed),
        reports: count(system.running.reports()),
        splits: count(system.running.splits()),
        peak_memory_bytes: peak_memory_bytes(),
    };
    system.running.stop().await;
    say!("{}", serde_json::to_string(&counted)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_is_read_by_one_process_while_there_are_enough() {
        let all = |processes, shards| -> Vec<Vec<u32>> {
            let shards = TrackingShards::new(shards).unwrap();
            let each = 0..processes;
            each.map(|process| shards_of(process, processes, shards))
                .collect()
        };
        assert_eq!(all(2, 1), vec![Vec::<u32>::new(); 2]);
        assert_eq!(all(2, 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(all(3, 3), [[0], [1], [2]]);
        assert_eq!(all(5, 2), [[0], [1], [0], [1], [0]]);
    }

    #[test]
    fn processes_are_a_part_and_a_number() {
        let parse = |text: &str| text.parse::<Processes>();
        let (part, number) = (Part::TrackingWorker, 2);
        assert_eq!(parse("tracking-worker=2"), Ok(Processes { part, number }));
        for wrong in [
            "",
            "worker",
            "worker=",
            "worker=0",
            "worker=65",
            "job-service=1",
            "Worker=1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
