//! Pipes in which tasks of a job wait and that nobody consumes, and those with what was put aside
//! from its pipes: the job's notes name them.
//!
//! They are looked for when somebody asks for a job of which nothing has been heard for a minute,
//! so that a job that goes on costs nothing. A pipe is known if the start message goes there, if
//! its batch sends its items there, or if the job is tracked there.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::rest::Job;
use contract::{
    BatchTask, BesideKind, JobId, JobStatus, PartitionId, PipeBeside, TaskMessage, bundle_pipe,
    is_bundle_pipe, is_tracking_pipe, reports_pipe, rounds_pipe,
};
use framework::clock::Clock;
use store::Definition;
use tokio::time::timeout;

use crate::pipes::pipe_states::pipes_beside;
use crate::state::AppState;

/// How long nothing was heard of the job.
const SILENT: Duration = Duration::from_mins(1);
/// How long the broker may take. The job is shown without the notes then.
const LIMIT: Duration = Duration::from_secs(2);

impl AppState {
    /// Adds a note for each pipe that nobody consumes and in which tasks of the job may wait, and
    /// for each with messages that were put aside from such a pipe.
    pub async fn note_silent_pipes(&self, partition: &PartitionId, id: &JobId, job: &mut Job) {
        if !waits(job, Clock::system().now_millis()) {
            return;
        }
        // Whatever cannot be read now is not worth an error.
        let Ok(Some(definition)) = self.store.definition(partition, id).await else {
            return;
        };
        let pipes = self.pipes_of(&definition, job);
        let inputs = pipes.iter().map(String::as_str);
        let inputs = inputs.filter(|pipe| !is_bundle_pipe(pipe)).collect();
        let beside = pipes_beside(&inputs, &self.pipes.workers.pipes());
        let names_beside = beside.iter().map(|beside| &beside.name);
        let asked: Vec<String> = pipes.iter().chain(names_beside).cloned().collect();
        let Ok(Ok(states)) = timeout(LIMIT, self.look_at_each(&asked)).await else {
            return;
        };
        for pipe in &pipes {
            if let Some(state) = states.get(pipe)
                && state.messages > 0
                && state.consumers == Some(0)
            {
                job.notes.push(self.unread(pipe, state.messages));
            }
        }
        for PipeBeside { name, kind, .. } in &beside {
            let messages = states.get(name).map_or(0, |state| state.messages);
            if messages > 0 {
                job.notes.push(put_aside(name, *kind, messages));
            }
        }
    }

    /// Says that messages wait in a pipe that nobody consumes.
    fn unread(&self, pipe: &str, messages: u64) -> String {
        let (what, worker) = if is_bundle_pipe(pipe) {
            ("bundle", "a worker of this input that reads bundles")
        } else if is_tracking_pipe(&self.options.tracking_pipe, pipe) {
            ("message", "a tracking worker that reads it (`--shard`)")
        } else {
            ("message", "the worker whose input it is")
        };
        let wait = wait(what, messages);
        format!("{wait} in the pipe '{pipe}', and nobody consumes it. Start {worker}.")
    }

    /// Returns the pipes to which the messages of a job go first, that of the bundles of its items,
    /// and those where it may be tracked, in either form.
    fn pipes_of(&self, definition: &Definition, job: &Job) -> BTreeSet<String> {
        let start = TaskMessage::decode(&definition.start).ok();
        let (data, tracking) = start
            .map(|start| (start.task_data, start.tracking))
            .unwrap_or_default();
        let batch = data.and_then(|data| serde_json::from_slice::<BatchTask>(&data).ok());
        let items = batch.and_then(|batch| batch.target_pipe);
        let bundles = items.as_deref().and_then(bundle_pipe);
        let first = tracking.and_then(|tracking| tracking.tracking_pipe);
        let round = job.round.unwrap_or(1);
        let tracked = first.map(|first| {
            let again = self
                .options
                .tracking_pipe_again(&first, job.incarnation, round);
            // The round may have begun while other shards were used.
            let kept = if round > 1 {
                rounds_pipe(&first)
            } else {
                first.to_string()
            };
            let gathered = reports_pipe(&first).into_iter().chain(reports_pipe(&again));
            gathered.chain([again.clone(), kept]).collect::<Vec<_>>()
        });
        [Some(definition.pipe.clone()), items, bundles]
            .into_iter()
            .flatten()
            .chain(tracked.into_iter().flatten())
            .filter(|pipe| !pipe.is_empty())
            .collect()
    }
}

/// Says that messages wait in a pipe with what was put aside.
fn put_aside(pipe: &str, kind: BesideKind, messages: u64) -> String {
    let wait = wait("message", messages);
    let (of, why) = match kind {
        BesideKind::Quarantine => (
            "quarantine",
            "each runs alone, because a process died with it",
        ),
        BesideKind::Invalid => ("invalid pipe", "a worker did not understand them"),
        BesideKind::Reject => ("reject pipe", "a worker gave them up"),
    };
    format!("{wait} in the {of} '{pipe}', of this or of other jobs: {why}.")
}

fn wait(what: &str, count: u64) -> String {
    let wait = if count == 1 { " waits" } else { "s wait" };
    format!("{count} {what}{wait}")
}

/// Returns whether nothing was heard of a job that should go on.
fn waits(job: &Job, now: i64) -> bool {
    let is_open = match job.status {
        JobStatus::Active => true,
        // One that waits for its start has no message in a pipe.
        JobStatus::Waiting => {
            job.waiting_for.is_empty() && job.due_time.is_none() && !job.suspended
        }
        _ => false,
    };
    let silent = now.saturating_sub(job.last_update_time);
    is_open && silent >= i64::try_from(SILENT.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::Tracking;
    use framework::broker::memory::Memory;
    use framework::broker::{Broker as _, Outgoing};
    use harness::{PATIENCE, block_on_in_time};
    use serde_json::json;
    use store::{JobRequest, Store, StoreOptions};
    use tokio::time::advance;

    use super::*;
    use crate::ServiceOptions;

    async fn notes(
        state: &AppState,
        partition: &PartitionId,
        id: &JobId,
        silent: i64,
    ) -> Vec<String> {
        let mut job = state.store.job(partition, id).await.unwrap().unwrap();
        job.notes.clear();
        job.last_update_time = Clock::system().now_millis() - silent;
        state.note_silent_pipes(partition, id, &mut job).await;
        job.notes
    }

    #[test]
    fn pipe_that_nobody_consumes_is_told_after_a_minute_and_not_when_somebody_does() {
        block_on_in_time("the notes", PATIENCE, || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let (broker, store) = (Memory::new(), Store::temporary(StoreOptions::default()));
                let served = Arc::new(broker.clone());
                let state = AppState::new(store.clone(), served, ServiceOptions::default());
                let (partition, id) =
                    (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
                let batch = json!({"batchType": "range", "batchDefinition": "1-9", "targetPipe": "items-in"});
                let start = TaskMessage {
                    task_data: Some(batch.to_string().into_bytes()),
                    tracking: Some(Tracking {
                        tracking_pipe: Some("worker-jobtracking-in-2".into()),
                        ..Tracking::default()
                    }),
                    ..TaskMessage::decode(br#"{"taskId": "t"}"#).unwrap()
                };
                let request = JobRequest::new(partition.clone(), id.clone());
                let make = move |_: &_| ("batch-in".to_owned(), start.encode());
                store.create_job(&request, make).await.unwrap();
                let pipes = [
                    "items-in",
                    "items-in",
                    "items-in.bundles",
                    "worker-jobtracking-in-2",
                    "worker-jobtracking-in-2.reports",
                    "items-in.suspects",
                ];
                for pipe in pipes {
                    broker.publish(Outgoing::new(pipe, "{}")).await.unwrap();
                }
                // The start message has no due time once it is sent.
                let sent = store.claim_outbox(10, 1000, Duration::from_secs(1)).await.unwrap();
                store.outbox_sent(&[sent.messages[0].id]).await.unwrap();
                assert_eq!(notes(&state, &partition, &id, 59_000).await, [""; 0]);
                let told = "2 messages wait in the pipe 'items-in', and nobody consumes it. Start the worker whose input it is.";
                let of_bundles =
                    "1 bundle waits in the pipe 'items-in.bundles', and nobody consumes it. Start a worker of this input that reads bundles.";
                let of_reports = ["worker-jobtracking-in-2", "worker-jobtracking-in-2.reports"].map(|pipe| {
                    format!(
                        "1 message waits in the pipe '{pipe}', and nobody consumes it. Start a tracking worker that reads it (`--shard`)."
                    )
                });
                let aside = "1 message waits in the quarantine 'items-in.suspects', of this or of other jobs: each runs alone, because a process \
                             died with it.";
                assert_eq!(
                    notes(&state, &partition, &id, 60_000).await,
                    [told, of_bundles, &of_reports[0], &of_reports[1], aside]
                );
                let consumer = broker.consume("items-in", 1).await.unwrap();
                let reports = broker.consume("worker-jobtracking-in-2", 1).await.unwrap();
                let bundles = broker.consume("items-in.bundles", 1).await.unwrap();
                let gathered = broker.consume("worker-jobtracking-in-2.reports", 1).await.unwrap();
                // Whether a consumer has the quarantine does not matter.
                assert_eq!(notes(&state, &partition, &id, 60_000).await, [aside]);
                drop((consumer, bundles, reports, gathered));
                advance(Duration::from_secs(1)).await;
            });
        });
    }
}
