//! The processes of a system: their names, their pipes and how they are started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use contract::TrackingShards;
use faults::{ProcessOptions, free_port};
use framework::Settings;

use super::servers::Addresses;

/// The roles of the product that run as processes.
pub const ROLES: [&str; 3] = ["job-service", "batch-worker", "tracking-worker"];
/// The role that runs if the service keeps the outputs.
const OUTPUT_ROLE: &str = "output-worker";
/// The name of the worker that runs the items, and of its process.
pub const CHAOS_WORKER: &str = "chaos-worker";
/// The only process of an embedded system.
pub const EMBEDDED: &str = "embedded";
/// The ends of the names of the pipes.
pub const BATCH_PIPE: &str = "batch-in";
/// See [`BATCH_PIPE`].
pub const TRACKING_PIPE: &str = "jobtracking-in";
/// See [`BATCH_PIPE`].
pub const PAUSED_PIPE: &str = "paused-in";
/// See [`BATCH_PIPE`].
pub const INPUT_PIPE: &str = "items-in";
/// See [`BATCH_PIPE`].
pub const OUTPUT_PIPE: &str = "items-out";
/// See [`BATCH_PIPE`].
pub const KEPT_PIPE: &str = "outputs-in";

/// What items do, and how a process runs them.
#[derive(Debug, Clone, Args)]
pub struct ItemOptions {
    /// Milliseconds that each item takes in addition.
    #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
    pub work: u64,
    /// Number of items that a process runs at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "ITEMS")]
    pub concurrency: u32,
    /// Number of its unsettled deliveries.
    #[arg(long, hide = true)]
    pub prefetch: Option<u32>,
    /// Percentage of the items that wait for a condition, which a canary tests, before they are
    /// done.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100), value_name = "PERCENT")]
    pub blocked: u32,
    /// Percentage of the items that are given up; their dead letters are replayed after half of the
    /// faults and at the end.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=50), value_name = "PERCENT")]
    pub given_up: u32,
    /// Number of shards of the tracking pipe, from 1 to 64; the job uses one of them.
    #[arg(long, default_value_t, value_name = "SHARDS")]
    pub tracking_shards: TrackingShards,
    /// Let the service keep the outputs of the items, and compare them too.
    #[arg(long)]
    pub keep_outputs: bool,
}

/// The size of a system and its job.
#[derive(Debug, Clone)]
pub struct SystemOptions {
    /// The program `batchwright`, which the roles of the product are.
    pub product: PathBuf,
    /// The program `batchwright-lab`, which runs the items.
    pub laboratory: PathBuf,
    /// The items of the job.
    pub items: u64,
    /// The number of processes that run items.
    pub workers: u32,
    /// What the items do.
    pub work: ItemOptions,
    /// The prefix of the names of the pipes.
    pub pipes: String,
    /// Seconds after which a silent connection to the broker is given up.
    pub heartbeat: u32,
    /// The longest time without progress.
    pub patience: Duration,
    /// The number of waiting items above which there are no splits. A small one makes the batch
    /// worker split throughout the job.
    pub max_depth: u64,
    /// Whether logs and data stay.
    pub keep: bool,
}

/// Returns the names of the processes, each with an address of its own.
pub fn listens(options: &SystemOptions, has_servers: bool) -> Vec<(String, String)> {
    let mut names: Vec<String> = Vec::new();
    if has_servers {
        names.extend(ROLES.map(str::to_owned));
        names.extend(options.work.keep_outputs.then(|| OUTPUT_ROLE.to_owned()));
        names.push(CHAOS_WORKER.to_owned());
        names.extend((2..=options.workers).map(|number| format!("{CHAOS_WORKER}-{number}")));
    } else {
        names.push(EMBEDDED.to_owned());
    }
    names
        .into_iter()
        .map(|name| (name, format!("127.0.0.1:{}", free_port())))
        .collect()
}

/// Returns how a role is started.
pub fn role_options(
    role: &str,
    listen: &str,
    addresses: &Addresses,
    options: &SystemOptions,
    folder: &Path,
) -> ProcessOptions {
    let pipe = |suffix: &str| format!("{}-{suffix}", options.pipes);
    let (batch, tracking, paused) = (pipe(BATCH_PIPE), pipe(TRACKING_PIPE), pipe(PAUSED_PIPE));
    let (kept, outputs) = (pipe(KEPT_PIPE), folder.join("outputs"));
    let outputs = outputs.display().to_string();
    let (max_parts, max_depth) = (
        options.max_parts().to_string(),
        options.max_depth.to_string(),
    );
    let shards = options.work.tracking_shards.to_string();
    let mut arguments: Vec<&str> = Vec::new();
    let (work, reject) = (item_arguments(options), letter_pipe());
    // Without such items, what is given up stays in its pipe, where it is counted.
    let letters = if options.work.given_up > 0 {
        &reject
    } else {
        "none"
    };
    let is_shipped = ROLES.contains(&role) || role == OUTPUT_ROLE;
    if is_shipped {
        arguments.extend(["run", role, "--listen", listen]);
        arguments.extend(["--tracking-pipe", &tracking, "--paused-pipe", &paused]);
        arguments.extend(["--tracking-shards", &shards]);
        if options.work.keep_outputs {
            arguments.extend(["--outputs-pipe", &kept, "--outputs-folder", &outputs]);
        }
        if role == ROLES[0] {
            arguments.extend(["--condition-interval", "1", "--canary-limit", "10"]);
            arguments.extend(["--dead-letter-pipes", letters]);
        }
        if role == "batch-worker" {
            arguments.extend([
                "--input-pipe",
                &batch,
                "--max-parts",
                &max_parts,
                "--max-depth",
                &max_depth,
            ]);
        }
    } else {
        arguments.extend([CHAOS_WORKER, "--listen", listen]);
        arguments.extend(work.iter().map(String::as_str));
    }
    let mut start = ProcessOptions::new(
        if is_shipped {
            &options.product
        } else {
            &options.laboratory
        },
        arguments,
        folder.join(format!("{role}.log")),
    );
    // Other users may read the arguments of a process, and the URLs may contain passwords.
    start.variables = vec![
        (
            "BATCHWRIGHT_DATABASE".to_owned(),
            addresses.to_database.url.clone(),
        ),
        (
            "BATCHWRIGHT_BROKER".to_owned(),
            addresses.to_broker.url.clone(),
        ),
    ];
    start
}

/// Returns how the process of an embedded system is started.
pub fn embedded_options(
    listen: &str,
    effects: &str,
    options: &SystemOptions,
    folder: &Path,
) -> ProcessOptions {
    let data = folder.join("data").display().to_string();
    let (max_parts, max_depth) = (
        options.max_parts().to_string(),
        options.max_depth.to_string(),
    );
    let work = item_arguments(options);
    let mut arguments = vec![
        CHAOS_WORKER,
        "--listen",
        listen,
        "--data",
        &data,
        "--database",
        effects,
    ];
    arguments.extend(["--max-parts", &max_parts, "--max-depth", &max_depth]);
    arguments.extend(work.iter().map(String::as_str));
    ProcessOptions::new(&options.laboratory, arguments, folder.join("embedded.log"))
}

/// Returns the pipe of the items that are given up.
pub fn letter_pipe() -> String {
    Settings::new(CHAOS_WORKER).reject
}

fn item_arguments(options: &SystemOptions) -> Vec<String> {
    let mut arguments = vec![
        format!("--pipes={}", options.pipes),
        format!("--concurrency={}", options.work.concurrency),
        format!("--work={}", options.work.work),
        format!("--blocked={}", options.work.blocked),
        format!("--given-up={}", options.work.given_up),
        format!("--tracking-shards={}", options.work.tracking_shards),
    ];
    arguments.extend(
        options
            .work
            .prefetch
            .map(|prefetch| format!("--prefetch={prefetch}")),
    );
    arguments.extend(
        options
            .work
            .keep_outputs
            .then(|| "--keep-outputs".to_owned()),
    );
    arguments
}

impl SystemOptions {
    fn max_parts(&self) -> u64 {
        (self.items / 100).clamp(10, 1000)
    }
}
