//! The help of one role: `run ROLE --help` shows the flags that the role reads, and no others.

use std::ffi::OsString;
use std::fmt::Write as _;

use batchwright::Role;
use clap::{Arg, Command};

/// Returns `command` with a list of the roles in the help of `run`. If the arguments ask for the
/// help of one role, it has only the flags of that role.
pub fn with_roles(command: Command, arguments: &[OsString]) -> Command {
    if command.find_subcommand("run").is_none() {
        return command;
    }
    let role = asked_for(arguments);
    command.mut_subcommand("run", |run| match role {
        None => run.after_help(roles()),
        Some(role) => run
            .about(format!("{}, until it is stopped.", what(role)))
            .override_usage(format!("batchwright run {} [OPTIONS]", role.name()))
            .mut_args(|arg| {
                let is_read = reads(role, &arg) || arg.get_long() == Some("help");
                if is_read { arg } else { arg.hide(true) }
            }),
    })
}

/// Returns the role whose help the arguments ask for.
fn asked_for(arguments: &[OsString]) -> Option<Role> {
    let mut texts = arguments.iter().skip(1).filter_map(|text| text.to_str());
    let is_run = texts.by_ref().find(|text| !text.starts_with('-')) == Some("run");
    let rest: Vec<&str> = texts.collect();
    let asks = rest.iter().any(|text| ["-h", "--help"].contains(text));
    let mut roles = rest.iter().filter_map(|text| text.parse().ok());
    roles.next().filter(|_| is_run && asks)
}

/// Returns the list of the roles.
fn roles() -> String {
    let mut text = "Roles:\n".to_owned();
    for role in Role::ALL {
        let _ = writeln!(text, "  {:<18} {}", role.name(), what(role));
    }
    text + "\n`batchwright run ROLE --help` shows the flags of one role."
}

/// Says what a role does.
const fn what(role: Role) -> &'static str {
    match role {
        Role::JobService => "Serve the REST API and the web page, and start jobs",
        Role::BatchWorker => "Split batches into items",
        Role::TrackingWorker => "Record the progress of jobs",
        Role::OutputWorker => "Keep the outputs of jobs",
        Role::ExampleWorker => "Count the words of lines of files",
        Role::SimulationWorker => "Pretend to work, to try a system out",
        Role::NoopWorker => "Do nothing with each item",
        Role::CommandWorker => "Run a command for each item",
    }
}

/// Returns whether a role reads a flag of `run`.
fn reads(role: Role, arg: &Arg) -> bool {
    use Role::{
        BatchWorker, CommandWorker, ExampleWorker, JobService, NoopWorker, OutputWorker,
        SimulationWorker, TrackingWorker,
    };
    let Some(flag) = arg.get_long() else {
        return false;
    };
    let is = |roles: &[Role]| roles.contains(&role);
    match flag {
        "input-pipe" | "route" | "old-delivery" => !is(&[JobService]),
        "database" => role.needs_store(),
        "concurrency" | "prefetch" | "time-limit" => {
            is(&[ExampleWorker, SimulationWorker, NoopWorker, CommandWorker])
        }
        "paused-pipe" => !is(&[TrackingWorker, OutputWorker]),
        "root" => is(&[BatchWorker, ExampleWorker, CommandWorker]),
        "max-items" => is(&[BatchWorker, TrackingWorker, JobService]),
        "tracking-pipe" | "keep-failed-tasks" | "max-failures" | "max-failed-tables" => {
            is(&[TrackingWorker, JobService])
        }
        "public-url" | "export-store" | "keep-outputs" => is(&[JobService]),
        "s3-endpoint" | "s3-region" | "gs-endpoint" | "az-endpoint" => {
            is(&[BatchWorker, OutputWorker, JobService])
        }
        "outputs-per-job" | "outputs-size-per-job" | "outputs-size" => is(&[OutputWorker]),
        _ => match arg.get_help_heading() {
            Some("Batch worker") => is(&[BatchWorker]),
            Some("Command worker") => is(&[CommandWorker]),
            Some("Simulation worker") => is(&[SimulationWorker]),
            Some("Job service" | "REST API") => is(&[JobService]),
            Some("Kept outputs") => is(&[OutputWorker, JobService]),
            _ => true,
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn help(arguments: &str) -> String {
        let arguments: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
        let command = with_roles(Cli::command(), &arguments);
        command
            .try_get_matches_from(&arguments)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn help_of_a_role_shows_its_flags_alone_and_that_of_run_lists_the_roles() {
        let batch = help("batchwright run --log warn batch-worker --help");
        for flag in ["--max-parts", "--root", "--broker", "--log", "--listen"] {
            assert!(batch.contains(&format!("  {flag} ")), "{flag}: {batch}");
        }
        for flag in [
            "--database",
            "--page-size",
            "--max-labels",
            "--concurrency",
            "--outputs-folder",
        ] {
            assert!(!batch.contains(&format!("  {flag} ")), "{flag}: {batch}");
        }
        assert!(batch.contains("Usage: batchwright run batch-worker [OPTIONS]"));
        assert!(help("batchwright run job-service -h").contains("  --page-size "));
        let all = help("batchwright run --help");
        for role in Role::ALL {
            assert!(all.contains(&format!("\n  {} ", role.name())), "{all}");
        }
        assert!(all.contains("  --database ") && all.contains("  --max-parts "));
    }

    #[test]
    fn each_flag_of_run_is_read_by_some_role() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for arg in run.get_arguments().filter(|arg| arg.get_long().is_some()) {
            let is_read = Role::ALL.into_iter().any(|role| reads(role, arg));
            assert!(is_read, "{arg}");
        }
    }
}
