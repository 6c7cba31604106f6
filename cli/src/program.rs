//! What a program does around its command: the log, the threads and the exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use framework::log::{self, LogFilter, LogFormat};

use crate::print;

/// The flags of the log.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Log filter for standard error, e.g. `info` or `batchwright=debug`.
    #[arg(long, global = true, env = "BATCHWRIGHT_LOG", value_name = "FILTER")]
    log: Option<LogFilter>,
    /// Form of the lines of the log: `text`, or `json` with one object in a line.
    #[arg(
        long,
        global = true,
        env = "BATCHWRIGHT_LOG_FORMAT",
        default_value_t,
        value_name = "FORMAT"
    )]
    log_format: LogFormat,
}

impl LogArgs {
    /// Sets up the log; `filter` is its default.
    pub fn set_up(&self, filter: &str) {
        log::set_up(
            self.log.as_ref().map_or(filter, LogFilter::as_str),
            self.log_format,
        );
    }
}

/// Runs a command on threads of its own. Returns the exit code of the program.
pub fn run(command: impl Future<Output = anyhow::Result<ExitCode>>, as_json: bool) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            return print::exit_code(Err(anyhow!("cannot start threads: {error}")), as_json);
        }
    };
    let outcome = runtime.block_on(command);
    // The script of a job type may run forever on a blocking thread.
    runtime.shutdown_timeout(Duration::from_secs(1));
    log::flush();
    print::exit_code(outcome, as_json)
}
