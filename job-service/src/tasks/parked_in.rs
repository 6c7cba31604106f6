//! Consumes the paused pipe and parks the tasks of paused jobs in the store.
//!
//! Workers send a task of a paused job to the paused pipe; CAF's workers can use the same pipe
//! (`CAF_WORKER_PAUSED_QUEUE`). The worker's status may be out of date when the task arrives here.
//! Therefore the store decides about each task again, under the lock of its job:
//!
//! - The job is paused: park the task.
//! - The job is no longer paused: send the task back to its own pipe.
//! - The job has finished, or this incarnation of it no longer exists: discard the task.
//!
//! What must stay true: a task leaves the paused pipe only after it is in the store, or confirmed
//! in its own pipe.

use std::sync::Arc;
use std::time::Duration;

use contract::JobTaskId;
use framework::Settings;
use framework::broker::{Broker, Outgoing};
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use store::{ParkOutcome, Store};
use tokio_util::sync::CancellationToken;

use crate::options::ServiceOptions;
use crate::pipes::own_pipe::{consume, is_pipe, store_when_possible};
use crate::pipes::stored_message::to_stored;

/// The maximum number of tasks that one transaction parks.
const BATCH: usize = 500;

/// Runs until `shutdown` is cancelled.
pub async fn run(
    store: &Store,
    broker: &Arc<dyn Broker>,
    options: &ServiceOptions,
    shutdown: &CancellationToken,
) {
    let settings = settings(options);
    let handler = ParkedIn {
        store: store.clone(),
        pipe: settings.input.clone(),
    };
    let part = "job-service: parked tasks";
    consume(&handler, &settings, part, broker, shutdown).await;
}

fn settings(options: &ServiceOptions) -> Settings {
    Settings {
        input: options.paused_pipe.clone(),
        invalid: options.paused_invalid_pipe(),
        reserved_pipes: options.all_reserved_pipes(),
        // One batch at a time; a batch takes every waiting task.
        concurrency: 1,
        prefetch: Some(1000),
        drain: Duration::from_secs(5),
        // The tasks here are already paused.
        paused: None,
        own_service: Some(options.webservice_url.clone()),
        status_origins: options.status_origins.clone(),
        tls: options.tls.clone(),
        health: options.health.clone(),
        ..Settings::new("job-service-stower")
    }
}

/// The handler of the paused pipe.
#[derive(Clone)]
struct ParkedIn {
    store: Store,
    pipe: String,
}

/// A task that may be parked: its index among the deliveries, and the message that sends it back to
/// its pipe.
struct Candidate {
    index: usize,
    back: Outgoing,
}

impl BatchHandler for ParkedIn {
    fn max_batch(&self) -> usize {
        BATCH
    }

    async fn handle(&self, deliveries: &[Received], _: &Publisher) -> Vec<Disposition> {
        let mut dispositions = Vec::with_capacity(deliveries.len());
        let (mut candidates, mut tasks) = (Vec::new(), Vec::new());
        for (index, delivery) in deliveries.iter().enumerate() {
            let Some(back) = delivery
                .unchanged()
                .filter(|back| delivery.is_diverted() && is_pipe(&back.pipe))
            else {
                dispositions.push(Disposition::Fail(
                    "the message has no valid `to`, the pipe to send it back to".to_owned(),
                ));
                continue;
            };
            // Only a task of a job can be parked.
            match delivery
                .message()
                .job_task_id()
                .and_then(|id| JobTaskId::parse(id).ok())
            {
                None => dispositions.push(send_back(back)),
                Some(id) => {
                    dispositions.push(Disposition::Discard);
                    tasks.push((id, to_stored(&back)));
                    candidates.push(Candidate { index, back });
                }
            }
        }
        let store = || self.store.park_tasks(&tasks);
        let stored = store_when_possible(&self.pipe, store).await;
        match stored {
            Ok(outcomes) => {
                for (Candidate { index, back }, outcome) in candidates.into_iter().zip(outcomes) {
                    dispositions[index] = match outcome {
                        ParkOutcome::Parked => Disposition::Done(Outputs::default()),
                        ParkOutcome::SendBack => send_back(back),
                        ParkOutcome::Discard => Disposition::Discard,
                        ParkOutcome::Locked(delay) => Disposition::Snooze(delay),
                    };
                }
            }
            Err(reason) => {
                for Candidate { index, .. } in candidates {
                    dispositions[index] = Disposition::Redeliver(reason.clone());
                }
            }
        }
        dispositions
    }

    /// The task itself does not run here.
    fn gives_up(&self) -> bool {
        false
    }
}

/// Sends a task back to its own pipe.
fn send_back(back: Outgoing) -> Disposition {
    Disposition::Done(Outputs::default().with_message(back))
}
