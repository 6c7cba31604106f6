//! `servers COMMAND [ARGUMENT…]`: runs a command with `DATABASE_URL` and `AMQP_URL` set, and exits
//! with its code.
//!
//! Servers that these variables do not name already are started for the command and stopped after
//! it. So a developer, or many test processes, share a RabbitMQ node that takes ten seconds to
//! boot.

use std::process::{Command, ExitCode};

use anyhow::Context;
use harness::Servers;

#[tokio::main]
async fn main() -> ExitCode {
    run().await.unwrap_or_else(|error| {
        eprintln!("servers: {error:#}");
        ExitCode::FAILURE
    })
}

async fn run() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments
        .next()
        .context("usage: servers COMMAND [ARGUMENT…]")?;
    let servers = Servers::start().await?;
    let mut command = Command::new(&program);
    command.args(arguments).envs(servers.variables());
    let status = tokio::task::spawn_blocking(move || command.status()).await?;
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    drop(servers);
    // A command that was ended by a signal has no code.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}
