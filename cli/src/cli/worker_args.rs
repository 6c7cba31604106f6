//! The flags of `up` and `run` about all workers.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::Duration;

use batchwright::advanced::WorkerOptions;
use clap::Args;
use framework::RetryPolicy;
use framework::config::DEFAULT_BUNDLE;
use framework::config::{DEFAULT_OLD_DELIVERY, DEFAULT_STUCK_TASK, Route, StatusOrigins};

#[derive(Debug, Args)]
#[command(next_help_heading = "Workers")]
pub struct WorkerArgs {
    /// Exact name of a pipe that jobs and tasks may name although such names are reserved; repeat
    /// the flag, or separate names with commas.
    #[arg(long, value_delimiter = ',', value_parser = |pipe: &str| Ok::<_, Infallible>(pipe.trim().to_owned()), value_name = "PIPE")]
    allowed_pipe: Vec<String>,
    /// How tracked outputs travel: `direct` to their target, or `reroute` through the tracking
    /// worker.
    #[arg(long, default_value = "direct")]
    route: Route,
    /// Number of tasks that a worker runs at the same time; the batch and tracking workers ignore
    /// it, and the simulation worker runs at least 64.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), value_name = "TASKS")]
    concurrency: u32,
    /// Maximum number of unacknowledged deliveries of a worker; by default it follows the time that
    /// tasks take and their size. The batch and tracking workers ignore it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65535), value_name = "DELIVERIES")]
    prefetch: Option<u32>,
    /// Largest number of subtasks in one message to workers that read such bundles. With 1, the
    /// process neither sends nor reads bundles.
    #[arg(long, default_value_t = DEFAULT_BUNDLE, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "SUBTASKS")]
    bundle: u32,
    /// Origins that status checks may ask, separated by commas, e.g. `http://job-service:8080`;
    /// `none` allows every origin.
    #[arg(long, default_value = "none", value_name = "ORIGINS")]
    pub status_origins: StatusOrigins,
    /// Seconds after which a delivery that is still open makes the process degraded.
    #[arg(long, default_value_t = DEFAULT_OLD_DELIVERY.as_secs(), value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    old_delivery: u64,
    /// Seconds after which the log and the job name a task that still runs.
    #[arg(long, default_value_t = DEFAULT_STUCK_TASK.as_secs(), value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    stuck_task: u64,
    /// Seconds that one attempt of a task may take; one that takes longer is stopped and has
    /// failed. The batch worker has no limit.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "SECONDS")]
    time_limit: Option<u64>,
    /// Attempts in a row, of tasks of two jobs or more, that fail in the same way before a worker
    /// takes no more until one ends in another way.
    #[arg(long, value_name = "ATTEMPTS")]
    circuit_breaker: Option<NonZeroU32>,
    /// When failed tasks run again, unless their job says so: `none`, `immediate`, `constant`,
    /// `exponential`, `stepwise` or a preset, with limits, e.g. `jobweaver,attempts=5`. The batch
    /// worker keeps the default.
    #[arg(long, default_value = "exponential", value_name = "POLICY")]
    retry: RetryPolicy,
}

impl WorkerArgs {
    /// Returns how long a task runs before that is told.
    pub const fn stuck_task(&self) -> Duration {
        Duration::from_secs(self.stuck_task)
    }

    pub fn options(self) -> anyhow::Result<WorkerOptions> {
        let stuck_task = self.stuck_task();
        Ok(WorkerOptions {
            allowed_pipes: self.allowed_pipe,
            route: self.route,
            concurrency: usize::try_from(self.concurrency)?,
            prefetch: self.prefetch,
            bundle: self.bundle,
            status_origins: self.status_origins,
            old_delivery: Duration::from_secs(self.old_delivery),
            stuck_task,
            time_limit: self.time_limit.map(Duration::from_secs),
            retry: self.retry,
            circuit_breaker: self.circuit_breaker,
        })
    }
}
