//! Consumes the blocked pipe and keeps the tasks that wait for conditions in the store.
//!
//! Workers send a task that waits for a condition to the blocked pipe, with the condition and the
//! number of the block in headers. The store decides about each task, under the lock of its job: it
//! waits, or is dropped, because it is a copy or has nothing to wait for.
//!
//! What must stay true: a task leaves the blocked pipe only after it is in the store, or known to
//! it.

use std::sync::Arc;
use std::time::Duration;

use contract::headers::{BLOCKS_HEADER, CONDITION_HEADER};
use contract::{Condition, JobTaskId, TaskMessage};
use framework::Settings;
use framework::broker::{Broker, HeaderValue, Headers};
use framework::handler::{BatchHandler, Disposition, Outputs, Publisher, Received};
use sha2::{Digest as _, Sha256};
use store::{Blocking, NewBlock, Store};
use tokio_util::sync::CancellationToken;

use crate::conditions::full_conditions::FullConditions;
use crate::options::ServiceOptions;
use crate::pipes::own_pipe::{consume, is_pipe, store_when_possible};
use crate::pipes::stored_message::to_stored;

/// The maximum number of tasks that one transaction takes, and of the bytes of their messages.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Runs until `shutdown` is cancelled.
pub async fn run(
    store: &Store,
    broker: &Arc<dyn Broker>,
    options: &ServiceOptions,
    full: &Arc<FullConditions>,
    shutdown: &CancellationToken,
) {
    let pipe = options.blocked_pipe();
    if pipe.is_empty() {
        // Then no worker learns of it.
        return shutdown.cancelled().await;
    }
    let settings = settings(options);
    let handler = BlockedIn {
        store: store.clone(),
        pipe: pipe.clone(),
        full: Arc::clone(full),
    };
    let part = "job-service: blocked tasks";
    tokio::select! {
        () = consume(&handler, &settings, part, broker, shutdown) => {}
        () = full.unstored.measure(broker.as_ref(), &pipe) => {}
    }
}

fn settings(options: &ServiceOptions) -> Settings {
    Settings {
        input: options.blocked_pipe(),
        invalid: options.paused_invalid_pipe(),
        reserved_pipes: options.all_reserved_pipes(),
        // One batch at a time; a batch takes every waiting task.
        concurrency: 1,
        prefetch: Some(1000),
        drain: Duration::from_secs(5),
        // Pausing and cancelling a job does with its tasks that wait what it has to.
        paused: None,
        own_service: Some(options.webservice_url.clone()),
        status_origins: options.status_origins.clone(),
        tls: options.tls.clone(),
        health: options.health.clone(),
        ..Settings::new("job-service-blocked")
    }
}

/// The handler of the blocked pipe.
#[derive(Clone)]
struct BlockedIn {
    store: Store,
    pipe: String,
    full: Arc<FullConditions>,
}

impl BatchHandler for BlockedIn {
    fn max_batch(&self) -> usize {
        BATCH
    }

    fn max_bytes(&self) -> Option<usize> {
        Some(BATCH_BYTES)
    }

    async fn handle(&self, deliveries: &[Received], _: &Publisher) -> Vec<Disposition> {
        let _storing = self.full.unstored.storing();
        let mut dispositions = Vec::with_capacity(deliveries.len());
        let (mut places, mut blocks) = (Vec::new(), Vec::new());
        for (index, delivery) in deliveries.iter().enumerate() {
            match read(delivery) {
                Ok(block) => {
                    dispositions.push(Disposition::Discard);
                    places.push(index);
                    blocks.push(block);
                }
                Err(reason) => dispositions.push(Disposition::Fail(reason)),
            }
        }
        let store = || self.store.block_tasks(&blocks);
        let stored = store_when_possible(&self.pipe, store).await;
        match stored {
            Ok(outcomes) => {
                for (place, outcome) in places.into_iter().zip(outcomes) {
                    dispositions[place] = match outcome {
                        Blocking::Waits | Blocking::Known => Disposition::Done(Outputs::default()),
                        Blocking::Over => Disposition::Discard,
                        Blocking::Locked(delay) => Disposition::Snooze(delay),
                    };
                }
            }
            Err(reason) => {
                for place in places {
                    dispositions[place] = Disposition::Redeliver(reason.clone());
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

/// Returns the task that a delivery brings, or why it is none that waits.
fn read(delivery: &Received) -> Result<NewBlock, String> {
    let mut back = delivery
        .unchanged()
        .filter(|back| delivery.is_diverted() && is_pipe(&back.pipe))
        .ok_or("the message has no valid `to`, the pipe to send it back to")?;
    let message = delivery.message();
    let task = message
        .job_task_id()
        .and_then(|id| JobTaskId::parse(id).ok());
    let task = task.ok_or("the message belongs to no job, so it cannot wait for a condition")?;
    let condition = match back.headers.get(CONDITION_HEADER) {
        Some(HeaderValue::Text(text)) => {
            Condition::from_json(text).map_err(|error| error.to_string())?
        }
        _ => return Err(format!("the header {CONDITION_HEADER} is missing")),
    };
    let number = number(&back.headers);
    // Its row has it.
    back.headers.remove(CONDITION_HEADER);
    Ok(NewBlock {
        task,
        identity: identity(&back.pipe, message),
        number,
        condition,
        message: to_stored(&back),
    })
}

/// Returns how often the task was blocked, this time included.
fn number(headers: &Headers) -> u32 {
    let number = match headers.get(BLOCKS_HEADER) {
        Some(HeaderValue::Integer(number)) => u32::try_from(*number).ok(),
        Some(HeaderValue::Text(text)) => text.parse().ok(),
        None => None,
    };
    number.unwrap_or(1).max(1)
}

/// Returns by what copies of a message are known: its pipe and its content, but not its tracking,
/// which status checks change.
fn identity(pipe: &str, message: &TaskMessage) -> Vec<u8> {
    let mut digest = Sha256::new();
    let classifier = message.task_classifier.as_deref().unwrap_or_default();
    for part in [pipe, classifier] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(message.task_data.as_deref().unwrap_or_default());
    digest.finalize()[..16].to_vec()
}
