//! A job service without workers, for measurements of requests and of the store.

use std::path::PathBuf;

use anyhow::Context as _;
use batchwright::client::Client;
use batchwright::{Role, Stack, StackOptions};
use clap::Args;
use contract::rest::{JobTask, NewJob};
use job_service::{Limits, ServiceOptions};
use store::Store;

use super::ending::unless_stopped;
use super::system::temporary_folder;

/// Where the store is of what needs no broker.
#[derive(Debug, Clone, Args)]
pub struct StorePlace {
    /// Folder of the embedded database; by default a temporary one.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// URL of the database: `postgres://user:password@host/database` or `sqlite:FILE`;
    /// `?sslmode=verify-full` encrypts.
    #[arg(
        long,
        env = "BATCHWRIGHT_DATABASE",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Servers"
    )]
    pub database: Option<String>,
}

/// A job service, its store, and a new partition, which keeps jobs of earlier runs out of the way.
pub struct ServiceAlone {
    pub client: Client,
    pub store: Store,
    pub partition: String,
}

impl StorePlace {
    /// Runs a measurement at a job service alone. Nothing else should use the store at the same
    /// time.
    pub async fn measure<T>(
        &self,
        limits: Limits,
        work: impl AsyncFnOnce(&ServiceAlone) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let temporary = temporary_folder()?;
        let data = self.data.clone();
        let embedded = StackOptions::embedded(data.unwrap_or_else(|| temporary.path().to_owned()));
        let stack = StackOptions {
            database: self.database.clone(),
            roles: vec![Role::JobService],
            service: ServiceOptions {
                limits,
                ..embedded.service
            },
            ..embedded
        };
        let running = Stack::new(stack).start().await?;
        let partition = uuid::Uuid::new_v4().simple().to_string();
        let service = ServiceAlone {
            client: Client::new(&running.api_url(), &partition),
            store: running.store().context("the system has no store")?.clone(),
            partition,
        };
        let measured = Box::pin(unless_stopped(work(&service))).await;
        running.stop().await;
        measured
    }
}

/// Returns a job whose first task waits in a pipe without a consumer.
pub fn job_that_nobody_runs() -> NewJob {
    NewJob {
        task: Some(JobTask {
            task_classifier: Some("Nothing".to_owned()),
            task_api_version: Some(1),
            task_data: Some(serde_json::json!({})),
            task_pipe: Some("bench-nothing-in".to_owned()),
            ..JobTask::default()
        }),
        ..NewJob::default()
    }
}
