//! The worker processes of a cancelled job. Each runs items at a given rate and, when it stops,
//! prints when it started them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use contract::RangeItem;
use framework::broker::Broker;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::clock::Clock;
use framework::config::Route;
use framework::tls::{self, TlsFiles};
use framework::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::parts::until_told_to_end;
use super::system::{WORKER, peak_memory_bytes};
use batchwright_cli::TlsArgs;
use batchwright_cli::say;

/// The number of items that started in each millisecond since 1970.
pub type Starts = BTreeMap<i64, u64>;

/// The settings of a worker process, which [`WorkerProcess::start`] passes to it as flags.
#[derive(Debug, Clone, Args)]
pub struct PacedOptions {
    #[arg(long, env = "BATCHWRIGHT_BROKER", hide_env_values = true)]
    pub broker: String,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[arg(long)]
    pub input: String,
    #[arg(long)]
    pub route: Route,
    #[arg(long)]
    pub concurrency: u32,
    #[arg(long)]
    pub prefetch: Option<u32>,
    /// Items per second; unlimited if `None`.
    #[arg(long, value_parser = positive_number)]
    pub rate: Option<f64>,
}

/// What a worker process prints when it stops.
#[derive(Debug, Serialize, Deserialize)]
pub struct Summary {
    pub starts: Vec<(i64, u64)>,
    pub peak_memory_bytes: u64,
}

/// A worker process, which is killed when this is dropped.
pub struct WorkerProcess(Child);

impl WorkerProcess {
    /// Starts this program as a worker.
    pub fn start(options: &PacedOptions) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command.args(["bench-worker", "--input", &options.input]);
        command.args(["--route", options.route.name()]);
        command.args(["--concurrency", &options.concurrency.to_string()]);
        if let Some(prefetch) = options.prefetch {
            command.args(["--prefetch", &prefetch.to_string()]);
        }
        if let Some(rate) = options.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        let TlsFiles {
            ca,
            certificate,
            key,
        } = options.tls.files();
        let files = [
            (tls::CA, ca),
            (tls::CERTIFICATE, certificate),
            (tls::KEY, key),
        ];
        command.envs(
            files
                .into_iter()
                .filter_map(|(name, file)| Some((name, file?))),
        );
        // Arguments are visible to other users, and the URL may contain a password.
        command.env("BATCHWRIGHT_BROKER", &options.broker);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker process")?;
        Ok(Self(child))
    }

    /// Returns the id of the process, or `None` if it has exited.
    pub fn id(&self) -> Option<u32> {
        self.0.id()
    }

    /// Ends the process and returns what it prints.
    pub async fn stop(self) -> anyhow::Result<Summary> {
        // This closes its standard input.
        let output = self.0.wait_with_output().await?;
        ensure!(
            output.status.success(),
            "a worker process failed: {}",
            output.status
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Runs the worker until standard input is closed, then prints a [`Summary`] as one line of JSON.
pub async fn run(options: &PacedOptions) -> anyhow::Result<()> {
    let tls = options.tls.load()?;
    let broker: Arc<dyn Broker> = Arc::new(Amqp::connect(AmqpOptions {
        tls: tls.clone(),
        ..AmqpOptions::new(&options.broker)
    })?);
    let settings = Settings {
        tls,
        input: options.input.clone(),
        route: options.route,
        concurrency: usize::try_from(options.concurrency)?,
        prefetch: options.prefetch,
        ..Settings::new(WORKER)
    };
    let starts = Arc::<Mutex<Starts>>::default();
    let pace = options.rate.map(|rate| {
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::sync::Mutex::new(pace)
    });
    let worker = Paced {
        starts: Arc::clone(&starts),
        pace,
    };
    let stop = CancellationToken::new();
    let runtime = Runtime::new(settings, Arc::clone(&broker))
        .worker(worker)
        .run_until(stop.clone());
    let told_to_end = async {
        let ended = until_told_to_end().await;
        stop.cancel();
        ended
    };
    let (ended, told) = tokio::join!(runtime, told_to_end);
    ended?;
    told?;
    broker.close().await;
    let starts = std::mem::take(&mut *starts.lock());
    let summary = Summary {
        starts: starts.into_iter().collect(),
        peak_memory_bytes: peak_memory_bytes(),
    };
    say!("{}", serde_json::to_string(&summary)?);
    Ok(())
}

/// A worker that records when it starts an item, and waits for its turn if the rate is limited.
struct Paced {
    starts: Arc<Mutex<Starts>>,
    pace: Option<tokio::sync::Mutex<tokio::time::Interval>>,
}

impl Worker for Paced {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        *self.starts.lock().entry(now()).or_default() += 1;
        if let Some(pace) = &self.pace {
            pace.lock().await.tick().await;
        }
        Ok(Reply::none())
    }
}

/// Returns the time in milliseconds since 1970.
pub fn now() -> i64 {
    Clock::system().now_millis()
}

/// Parses a number greater than 0, such as a rate.
pub fn positive_number(text: &str) -> Result<f64, String> {
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is not a number greater than 0; expected e.g. 500"))
}
