//! The hidden command that runs the script of a job type in a process of its own.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use job_service::{ScriptProcess, limit_script, run_script};

/// The name of the command.
const NAME: &str = "run-script";
/// The flag of a process whose resources are limited.
const LIMITED: &str = "--limited";

#[derive(Debug, Args)]
pub struct RunScriptArgs {
    #[arg(long)]
    limited: bool,
}

/// Returns the command that runs a script.
pub fn process() -> ScriptProcess {
    ScriptProcess::new(program(), [NAME.into()])
}

/// Limits the resources of this process and starts it again; then runs the script in standard
/// input.
pub fn run(args: &RunScriptArgs) -> anyhow::Result<ExitCode> {
    if !args.limited {
        limit_script()?;
        return Err(Command::new(program()).args([NAME, LIMITED]).exec().into());
    }
    run_script()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of this program. On Linux, it is valid even after another build has replaced
/// the file.
pub fn program() -> PathBuf {
    let current = PathBuf::from("/proc/self/exe");
    if current.exists() {
        return current;
    }
    std::env::current_exe().unwrap_or(current)
}
