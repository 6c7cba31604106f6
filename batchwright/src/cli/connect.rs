//! The flags that several commands share: which servers a system uses, and which job service a client command calls.

use batchwright::client::Client;
use clap::{Args, ValueEnum};

use crate::tls_args::TlsArgs;

/// The servers of a system that this process runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers")]
pub struct ServerArgs {
    /// URL of the database: `postgres://user:password@host/database` or `sqlite:FILE`; `?sslmode=verify-full` encrypts.
    #[arg(
        long,
        env = "BATCHWRIGHT_DATABASE",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database: Option<String>,
    /// URL of RabbitMQ: `amqp://user:password@host:5672/%2f`; `amqps://` with port 5671 encrypts the connection.
    #[arg(
        long,
        env = "BATCHWRIGHT_BROKER",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub broker: Option<String>,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// The job service that a command calls, and how the command prints the result.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct ServiceArgs {
    /// URL of the job service's REST API.
    #[arg(
        long,
        env = "BATCHWRIGHT_URL",
        default_value = "http://127.0.0.1:8080/job-service/v1"
    )]
    pub url: String,
    /// Partition that contains the jobs.
    #[arg(long, short, env = "BATCHWRIGHT_PARTITION", default_value = "default")]
    pub partition: String,
    /// Format of standard output; `json` prints one object or array on one line, and errors as JSON to standard error.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    #[command(flatten)]
    tls: TlsArgs,
}

impl ServiceArgs {
    /// Returns a client of the job service for the partition.
    pub fn client(&self) -> anyhow::Result<Client> {
        let tls = self.tls.load()?;
        Ok(Client::with_tls(&self.url, &self.partition, &tls)?)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}
