//! The stower: takes what workers have handed over because its job is paused, and keeps it in the store.
//!
//! A [`Collector`] of the paused pipe, which workers of the CAF may share (`CAF_WORKER_PAUSED_QUEUE`). What a worker knew of the job
//! may be past by now, so each task is decided about again, under the lock of its job: it is stowed, goes straight back to its
//! pipe, or is dropped because nobody wants it.
//!
//! What must stay true: a task leaves the paused pipe only when it is in the store, or confirmed in its own pipe.

use std::sync::Arc;
use std::time::Duration;

use contract::JobTaskId;
use framework::broker::{Broker, Outgoing};
use framework::{Arrival, Collector, Courier, Effects, Runtime, Settings, Verdict};
use store::{ParkOutcome, ParkedTask, Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::stored_message::to_stored;

/// Tasks at a time: one transaction.
const LIMIT: usize = 500;
/// Between attempts to reach the store.
const DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The longest name of a pipe that every broker takes, in bytes.
const MAX_PIPE: usize = 255;

/// Runs until `shutdown`.
pub async fn run(
    store: &Store,
    broker: &Arc<dyn Broker>,
    paused_pipe: &str,
    shutdown: &CancellationToken,
) {
    let settings = Settings {
        input: paused_pipe.to_owned(),
        invalid: format!("{paused_pipe}.invalid"),
        // One at a time: each takes everything that waits.
        concurrency: 1,
        prefetch: 1000,
        drain: Duration::from_secs(5),
        // It is the end of the way there.
        paused: None,
        ..Settings::new("job-service-stower")
    };
    let runtime = Runtime::new(settings, Arc::clone(broker)).collector(ParkedIn {
        store: store.clone(),
    });
    if let Err(error) = runtime.run_until(shutdown.clone()).await {
        tracing::error!(%error, pipe = paused_pipe, "tasks of paused jobs are not taken");
    }
}

struct ParkedIn {
    store: Store,
}

/// A task that may be stowed: its place among the arrivals, and where it goes back to.
struct Candidate {
    place: usize,
    back: Outgoing,
}

impl Collector for ParkedIn {
    fn limit(&self) -> usize {
        LIMIT
    }

    async fn collect(&self, arrivals: &[Arrival], _: &Courier) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(arrivals.len());
        let (mut candidates, mut tasks) = (Vec::new(), Vec::new());
        for (place, arrival) in arrivals.iter().enumerate() {
            let Some(back) = arrival
                .back()
                .filter(|back| arrival.is_diverted() && is_pipe(&back.pipe))
            else {
                verdicts.push(Verdict::Invalid(
                    "the message names no pipe (`to`) to which it could go back".to_owned(),
                ));
                continue;
            };
            // What is of no job is not paused either.
            match arrival
                .message()
                .job_task_id()
                .and_then(|id| JobTaskId::parse(id).ok())
            {
                None => verdicts.push(goes_back(back)),
                Some(id) => {
                    verdicts.push(Verdict::Discard);
                    tasks.push((id, to_stored(&back)));
                    candidates.push(Candidate { place, back });
                }
            }
        }
        match self.stow_when_possible(&tasks).await {
            Ok(stowings) => {
                for (Candidate { place, back }, stowing) in candidates.into_iter().zip(stowings) {
                    verdicts[place] = match stowing {
                        ParkOutcome::Parked => Verdict::Done(Effects::default()),
                        ParkOutcome::SendBack => goes_back(back),
                        ParkOutcome::Discard => Verdict::Discard,
                    };
                }
            }
            Err(reason) => {
                for Candidate { place, .. } in candidates {
                    verdicts[place] = Verdict::Again(reason.clone());
                }
            }
        }
        verdicts
    }

    /// A task is never given up here, whatever died while it was there.
    fn condemn(&self, arrival: &Arrival) -> Verdict {
        Verdict::Again(format!(
            "processes have died while they had {}",
            arrival.message().task_id
        ))
    }
}

impl ParkedIn {
    /// Waits for the store as long as it takes. An error is the store's own.
    async fn stow_when_possible(
        &self,
        tasks: &[(JobTaskId, ParkedTask)],
    ) -> Result<Vec<ParkOutcome>, String> {
        let mut delay = DELAYS.0;
        loop {
            match self.store.park_tasks(tasks).await {
                Ok(stowings) => return Ok(stowings),
                Err(StoreError::Unavailable(reason)) => {
                    tracing::warn!(
                        reason,
                        ?delay,
                        "tasks of paused jobs cannot be stowed; they are kept and tried again"
                    );
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(DELAYS.1);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn is_pipe(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_PIPE && !name.contains('\0')
}

fn goes_back(back: Outgoing) -> Verdict {
    Verdict::Done(Effects {
        messages: vec![back],
        ..Effects::default()
    })
}
