//! Runs one job of a running stack to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::rest::{Job, JobTask, NewJob};
use contract::{BatchTask, TaskData};

use framework::outputs::{Failure, Output, Outputs};
use tokio::time::timeout;

use super::{BATCH_PIPE, Running, Stack, StackError};
use crate::client::{Client, ClientError};

/// Returns a job of one batch.
///
/// The batch has this type, e.g. `list`, and this definition, which the plugin of that type
/// understands. Its items go to `item_pipe`, the input of a worker, and their outputs to
/// `output_pipe`, if their worker has no other.
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
    /// Creates a job in the partition `default`, waits until it has finished, and returns it: for
    /// the tests of a worker and of a plugin, and for programs that do one job. If there is a job
    /// with this id and definition, returns that one.
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
        let client = Client::new(&self.api_url(), "default");
        client.put(job, new_job).await?;
        finished(&client, job).await
    }

    async fn drain<T: TaskData>(&self, new_job: &NewJob) -> Result<Drained<T>, StackError> {
        let client = Client::new(&self.api_url(), "default");
        let (submitted, _) = client.post_job(new_job, None).await?;
        let job = finished(&client, &submitted.job_id).await?;
        let pipe = new_job.task.as_ref();
        let outputs = match pipe.and_then(|task| task.target_pipe.as_deref()) {
            Some(pipe) => self.waiting_outputs(pipe).await?,
            None => Vec::new(),
        };
        Ok(Drained { job, outputs })
    }

    /// Takes what waits in a pipe, in the order of the tasks and each once.
    async fn waiting_outputs<T: TaskData>(
        &self,
        pipe: &str,
    ) -> Result<Vec<DrainedOutput<T>>, StackError> {
        // Whatever a job has sent is in its pipe before the job ends.
        let waiting = self.broker.depth(pipe).await?;
        let mut reader = Outputs::<T>::of(&self.broker, pipe).await?;
        let mut outputs = BTreeMap::new();
        for taken in 0..waiting {
            let Ok(Some(output)) = timeout(NEXT_OUTPUT, reader.next())
                .await
                .unwrap_or(Ok(None))
            else {
                return Err(StackError::Outputs {
                    pipe: pipe.to_owned(),
                    problem: format!(
                        "only {taken} of its {waiting} messages are outputs of the type {}; the others are in {pipe}-invalid",
                        T::CLASSIFIER
                    ),
                });
            };
            let task = output.task.clone().unwrap_or_default();
            let steps = task.split('.').map(|step| step.parse::<u64>().unwrap_or(0));
            // A repeated output has the same id.
            let place = (steps.collect::<Vec<_>>(), output.task_id.clone());
            outputs.insert(place, DrainedOutput::settle(output));
        }
        Ok(outputs.into_values().collect())
    }
}

/// How long taking the next output of those that are there may take.
const NEXT_OUTPUT: Duration = Duration::from_secs(10);

/// Waits until a job has finished.
async fn finished(client: &Client, job: &str) -> Result<Job, ClientError> {
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

/// A job that has finished, and what it has sent; see [`Stack::drain`].
#[derive(Debug)]
pub struct Drained<T> {
    /// The job, with its status, its counts and its failures.
    pub job: Job,
    /// What waits in the target pipe of the job, in the order of its tasks.
    pub outputs: Vec<DrainedOutput<T>>,
}

/// An output of a job that has finished.
#[derive(Debug)]
pub struct DrainedOutput<T> {
    /// The result of the task, or why it has failed.
    pub result: Result<T, Failure>,
    /// The worker says that the result is a negative one
    /// ([`Reply::failure`](framework::Reply::failure)).
    pub is_negative: bool,
    /// The path from the job to the task, e.g. `3.17`.
    pub task: Option<String>,
    /// The label of the item, if it has one.
    pub label: Option<String>,
}

impl<T> DrainedOutput<T> {
    fn settle(output: Output<T>) -> Self {
        let (task, label, is_negative) = (
            output.task.clone(),
            output.label.clone(),
            output.is_negative,
        );
        Self {
            result: output.take(),
            is_negative,
            task,
            label,
        }
    }
}

impl Stack {
    /// Starts the system, does one job to its end, takes what has been sent to its target pipe, and
    /// stops: a whole batch in the process of a test.
    ///
    /// ```no_run
    /// use batchwright::contract::{JobStatus, RangeItem};
    /// use batchwright::{Context, Reply, Settings, Stack, StackOptions, TaskError, Worker, batch_job};
    ///
    /// /// Sends each item on as it is.
    /// struct Echo;
    ///
    /// impl Worker for Echo {
    ///     type Input = RangeItem;
    ///     type Output = RangeItem;
    ///     async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
    ///         Ok(Reply::send(item))
    ///     }
    /// }
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let folder = tempfile::tempdir()?;
    /// let stack = Stack::new(StackOptions::embedded(folder.path())).worker(Settings::new("echo"), Echo);
    /// let batch = batch_job("range", "1-3", "echo-in", Some("echoed"));
    /// let drained = stack.drain::<RangeItem>(&batch).await?;
    /// assert_eq!(drained.job.status, JobStatus::Completed);
    /// let numbers: Vec<_> = drained.outputs.iter().map(|output| output.result.as_ref().unwrap().number).collect();
    /// assert_eq!(numbers, [1, 2, 3]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the system does not start, if the job service refuses the job, or if
    /// something else than outputs of this type is in the pipe. A job that has failed is no error:
    /// [`Drained::job`] says it.
    pub async fn drain<T: TaskData>(self, new_job: &NewJob) -> Result<Drained<T>, StackError> {
        let running = self.start().await?;
        let drained = running.drain(new_job).await;
        running.stop().await;
        drained
    }
}
