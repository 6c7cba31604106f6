//! What a task can ask about itself.

use std::collections::BTreeMap;

use contract::headers::job_and_path;
use serde::Deserialize;

use super::Context;

impl Context {
    /// Returns the number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Returns how often the task has waited for a condition before
    /// ([`TaskError::blocked`](crate::TaskError::blocked)).
    pub fn blocks(&self) -> u32 {
        self.0.blocks
    }

    /// Returns the task id, for logs.
    pub fn task_id(&self) -> &str {
        &self.0.input.task_id
    }

    /// Returns the job task id (`partition:job.1.2*`), or `None` if the task is not tracked.
    pub fn job_task_id(&self) -> Option<&str> {
        self.0.input.job_task_id()
    }

    /// Returns the partition of the job, or `None` if the task is not tracked.
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// # use batchwright::contract::RangeItem;
    /// # use batchwright::{Context, NoOutput, Reply, TaskError, Worker, testing};
    /// struct Teller;
    /// impl Worker for Teller {
    ///     type Input = RangeItem;
    ///     type Output = NoOutput;
    ///     async fn run(&self, _: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         assert_eq!(ctx.partition().as_deref(), Some("acme"));
    ///         assert_eq!(ctx.job().as_deref(), Some("reindex"));
    ///         assert_eq!(ctx.task_path().as_deref(), Some("102.3"));
    ///         Ok(Reply::none())
    ///     }
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let item = serde_json::from_str(r#"{"number": 7}"#).unwrap();
    /// testing::task(item).of_job("acme:reindex.102.3").run(&Teller).await;
    /// # }
    /// ```
    pub fn partition(&self) -> Option<String> {
        let (job, _) = job_and_path(self.job_task_id()?)?;
        job.split_once(':')
            .map(|(partition, _)| partition.to_owned())
    }

    /// Returns the id of the job within its partition, or `None` if the task is not tracked.
    pub fn job(&self) -> Option<String> {
        let (job, _) = job_and_path(self.job_task_id()?)?;
        job.split_once(':').map(|(_, job)| job.to_owned())
    }

    /// Returns the path from the job to the task, e.g. `102.3`, as failures and outputs show it, or
    /// `None` if the task is not tracked.
    pub fn task_path(&self) -> Option<String> {
        let (_, path) = job_and_path(self.job_task_id()?)?;
        Some(path.into_owned())
    }

    /// Returns the parameters that the batch gives to each of its items (`taskMessageParams`), so
    /// that a task type of your own needs no field for them. Without any, there are none.
    pub fn params(&self) -> BTreeMap<String, String> {
        #[derive(Default, Deserialize)]
        struct Item {
            #[serde(default)]
            params: BTreeMap<String, String>,
        }
        let data = self.0.input.task_data.as_deref().unwrap_or_default();
        let item: Item = serde_json::from_slice(data).unwrap_or_default();
        item.params
    }

    /// Returns the pipe that the message is addressed to, which is this worker's input.
    pub fn input_pipe(&self) -> &str {
        self.0.input.to.as_deref().unwrap_or_default()
    }

    /// Returns the note that an earlier task of this service left in the message with
    /// [`crate::Reply::with_note`].
    pub fn note(&self) -> Option<&[u8]> {
        self.0
            .input
            .context
            .get(&self.0.shared.identity.service_path)
            .map(|note| note.0.as_slice())
    }

    /// Returns the correlation id of the message, which all its outputs and subtasks inherit.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.input.correlation_id.as_deref()
    }
}
