//! The flags of `up` and `run` that say which commands the command worker runs.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use batchwright::advanced::CommandOptions;
use clap::Args;
use command_worker::{Commands, Keeper};
use framework::config::env::Variables;

use super::script;

#[derive(Debug, Args)]
#[command(next_help_heading = "Command worker")]
pub struct CommandArgs {
    /// File that defines the commands of the command worker, in YAML or JSON, e.g. `fetch: ["curl",
    /// "-sf", "--", "{item}"]`.
    #[arg(long, value_name = "FILE")]
    pub commands: Option<PathBuf>,
}

impl CommandArgs {
    /// Returns the options of the command worker.
    pub fn options(&self, variables: &Variables) -> anyhow::Result<CommandOptions> {
        let variable = |name: &str| variables.get(name).map(str::to_owned);
        let commands = self
            .commands
            .as_deref()
            .map(|file| Commands::read(file, variable))
            .transpose()?
            .unwrap_or_default();
        Ok(CommandOptions {
            commands,
            keeper: Keeper::new(script::program()),
        })
    }
}

/// Lets jobs bring commands of their own, if nobody but people on this machine can create jobs.
pub fn allow_any(
    options: CommandOptions,
    listen: SocketAddr,
    broker: Option<&str>,
    variables: &Variables,
) -> anyhow::Result<CommandOptions> {
    if !listen.ip().to_canonical().is_loopback() {
        bail!(
            "--allow-any-command lets everyone who reaches the REST API run any program as you, so it needs a loopback address; {listen} is none. \
             Leave --listen out, or define commands in the file of --commands"
        );
    }
    if broker.is_some() {
        bail!(
            "--allow-any-command lets everyone who reaches the broker run any program as you, so it needs the embedded broker; leave --broker \
             out, or define commands in the file of --commands"
        );
    }
    tracing::warn!(
        "jobs may run any command as this user (--allow-any-command); every program on this machine can create one"
    );
    let path = variables.get("PATH").map(str::to_owned);
    Ok(CommandOptions {
        commands: options.commands.allow_any(path),
        ..options
    })
}
