//! The flags that several commands share: which servers a system uses, and which job service a
//! client command calls.

use batchwright::client::Client;
use clap::{Args, ValueEnum};
use framework::tls::{Tls, TlsError};

use crate::text::quoted;
use crate::tls_args::TlsArgs;

/// The servers of a system that this process runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub struct ServerArgs {
    /// URL of the database: `postgres://user:password@host/database` or `sqlite:FILE`;
    /// `?sslmode=verify-full` encrypts.
    #[arg(
        long,
        env = "BATCHWRIGHT_DATABASE",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database: Option<String>,
    /// URL of RabbitMQ: `amqp://user:password@host:5672/%2f`; `amqps://` with port 5671 encrypts
    /// the connection.
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
    /// Name of the job service in the file of contexts, which says its URL, its partition and its
    /// certificates.
    #[arg(long, env = crate::contexts::NAME, value_name = "NAME")]
    context: Option<String>,
    /// URL of the job service's REST API.
    #[arg(long, env = "BATCHWRIGHT_URL", default_value = DEFAULT_URL)]
    pub url: String,
    /// Partition that contains the jobs.
    #[arg(long, short, env = "BATCHWRIGHT_PARTITION", default_value = DEFAULT_PARTITION)]
    pub partition: String,
    /// Form of standard output: `table` for a person, `wide` with more columns and nothing cut,
    /// `json` with one object or array, `ndjson` with one object on each line, or `name` with the
    /// ids alone. With `json` and `ndjson`, errors are JSON, too.
    #[arg(long, short, value_enum, default_value_t = Output::Table, hide_possible_values = true)]
    pub output: Output,
    /// Token that the job service knows. Others on this machine see arguments: better set the
    /// variable, or `BATCHWRIGHT_TOKEN_FILE` to the path of a file.
    #[arg(long, env = crate::contexts::TOKEN, hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// The default of `--url`.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8080/job-service/v1";
const DEFAULT_PARTITION: &str = "default";

impl ServiceArgs {
    /// Returns a client of the job service for the partition.
    pub fn client(&self) -> anyhow::Result<Client> {
        let tls = self.tls.load()?;
        let client = Client::with_tls(&self.url, &self.partition, &tls);
        Ok(match self.token.as_deref().map(str::trim) {
            Some(token) => client.with_token(token),
            None => client,
        })
    }

    /// Returns whom encrypted connections trust, and the client's certificate.
    pub fn tls(&self) -> Result<Tls, TlsError> {
        self.tls.load()
    }

    /// Returns the command line of another command about the same job, for a person to copy.
    pub fn command(&self, command: &str, job: &str) -> String {
        let mut line = format!("batchwright {command} {}", quoted(job));
        if let Some(context) = &self.context {
            line.extend([" --context ", &quoted(context)]);
        }
        let flags = [
            (" -p ", &self.partition, DEFAULT_PARTITION),
            (" --url ", &self.url, DEFAULT_URL),
        ];
        for (flag, value, default) in flags {
            if value != default {
                line.extend([flag, &quoted(value)]);
            }
        }
        line
    }
}

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[value(alias = "text")]
    Table,
    Wide,
    Json,
    Ndjson,
    Name,
}

impl Output {
    /// Returns whether programs read the form with this name.
    pub fn is_json_named(name: &str) -> bool {
        Self::from_str(name, false).is_ok_and(Self::is_json)
    }

    /// Returns whether programs read it.
    pub const fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Ndjson)
    }
}
