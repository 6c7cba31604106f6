//! Runs one job of a running stack to its end.

use contract::rest::{Job, JobTask, NewJob};
use contract::{BatchTask, TaskData};

use super::{BATCH_PIPE, Running};
use crate::client::{Client, ClientError};

/// Returns a job of one batch.
///
/// The batch has this type, e.g. `list`, and this definition, which the plugin of that type understands. Its items go to
/// `item_pipe`, the input of a worker, and their outputs to `output_pipe`, if their worker has no other.
#[must_use]
pub fn batch_job(
    batch_type: &str,
    definition: impl Into<String>,
    item_pipe: &str,
    output_pipe: Option<&str>,
) -> NewJob {
    let batch = BatchTask {
        batch_definition: Some(definition.into()),
        batch_type: Some(batch_type.to_owned()),
        target_pipe: Some(item_pipe.to_owned()),
        ..BatchTask::default()
    };
    NewJob {
        task: Some(JobTask {
            task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
            task_api_version: Some(BatchTask::API_VERSION),
            task_data: serde_json::to_value(batch).ok(),
            task_pipe: Some(BATCH_PIPE.to_owned()),
            target_pipe: output_pipe.map(str::to_owned),
            ..JobTask::default()
        }),
        ..NewJob::default()
    }
}

impl Running {
    /// Creates a job in the partition `default`, waits until it has finished, and returns it: for the tests of a worker and of a
    /// plugin, and for programs that do one job. If there is a job with this id and definition, returns that one.
    ///
    /// ```
    /// use batchwright::{Stack, StackOptions, batch_job};
    /// use batchwright::contract::rest::OnFailure;
    /// use batchwright::contract::{JobStatus, RangeItem};
    /// use batchwright::{Context, NoOutput, OrFail, Reply, Settings, TaskError, Worker};
    ///
    /// /// Fails on every multiple of three.
    /// struct Picky;
    ///
    /// impl Worker for Picky {
    ///     type Input = RangeItem;
    ///     type Output = NoOutput;
    ///     async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         if item.number % 3 == 0 { Err("a multiple of three").or_fail()? }
    ///         Ok(Reply::none())
    ///     }
    /// }
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let folder = tempfile::tempdir()?;
    /// let stack = Stack::new(StackOptions::embedded(folder.path()));
    /// let running = stack.worker(Settings::new("picky"), Picky).start().await?;
    /// let mut batch = batch_job("range", "1-2000", "picky-in", None);
    /// batch.on_failure = OnFailure::Continue;
    /// let job = running.run_job("numbers", &batch).await?;
    /// running.stop().await;
    /// assert_eq!(job.status, JobStatus::Failed);
    /// assert_eq!((job.items.done, job.items.failed), (1334, 666));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the job service refuses the job, or ends before the job does.
    pub async fn run_job(&self, job: &str, new_job: &NewJob) -> Result<Job, ClientError> {
        let client = Client::new(&self.api_url(), "default")?;
        client.put(job, new_job).await?;
        loop {
            let mut watch = client.watch(job).await?;
            // The stream may end before the job does; then it is opened again.
            while let Some(job) = watch.next().await {
                if job.status.is_finished() {
                    return Ok(job);
                }
            }
        }
    }
}
