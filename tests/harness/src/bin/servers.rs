//! `servers COMMAND [ARGUMENT…]`: runs a command with `DATABASE_URL` and `AMQP_URL` set, and ends with its exit code.
//!
//! What is not set already is started for the command and stopped after it, so that the test binaries of one run share a node
//! that takes ten seconds to boot.

use std::process::{Command, ExitCode};

use anyhow::Context;
use harness::{PostgresServer, RabbitServer};

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
    let mut command = Command::new(&program);
    command.args(arguments);

    let database = async {
        if is_set("DATABASE_URL") {
            Ok(None)
        } else {
            PostgresServer::start().await.map(Some)
        }
    };
    let broker = async {
        if is_set("AMQP_URL") {
            Ok(None)
        } else {
            RabbitServer::start().await.map(Some)
        }
    };
    let (database, broker) = tokio::try_join!(database, broker)?;
    if let Some(server) = &database {
        command.env("DATABASE_URL", server.url("postgres"));
    }
    if let Some(node) = &broker {
        command.env("AMQP_URL", node.url());
    }

    let status = tokio::task::spawn_blocking(move || command.status()).await?;
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    // A command that a signal has ended has no code.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}
