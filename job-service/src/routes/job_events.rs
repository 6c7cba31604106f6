//! `GET …/jobs/{jobId}/events`: the job as it changes, as server-sent events.
//!
//! What must stay true: a watcher is sent states, not a backlog. One that reads slowly skips states and is never behind;
//! nothing is kept for it. Nothing is read while nothing changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use contract::rest::{ErrorBody, Job};
use contract::{JobId, PartitionId};
use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::StoreTrouble;
use crate::Parts;
use crate::error::{ApiError, ApiResult};
use crate::extract::OfJob;

/// The least time between two states of a job that are sent.
const PACE: Duration = Duration::from_millis(100);

/// Watch a job
///
/// An event `job` with the whole job, now and whenever it has changed, at most ten a second; the stream ends after the
/// state in which the job has ended. An event `deleted` ends it when the job is gone.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/events",
    operation_id = "watchJob",
    tag = "jobs",
    params(OfJob),
    responses(
        (status = 200, description = "Events `job`, each with a job as JSON", body = String, content_type = "text/event-stream",
            example = json!("event: job\ndata: {\"id\":\"reindex-7\",\"status\":\"Active\"}\n\n")),
        (status = 400, description = "An id is not well-formed", body = ErrorBody,
            example = json!({"message": "The job identifier contains one or more invalid characters."})),
        (status = 404, description = "There is no such job", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreTrouble
    )
)]
pub async fn events(
    State(parts): State<Arc<Parts>>,
    OfJob(partition, job): OfJob,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    // The signal before the look: a change in between is seen.
    let changes = parts.store.job_signal();
    let first = parts
        .store
        .job(&partition, &job)
        .await?
        .ok_or_else(|| ApiError::job_not_found(&job))?;
    let watcher = Watcher {
        parts,
        partition,
        job,
        changes,
        next: Next::Send(Box::new(first)),
    };
    let events = stream::unfold(watcher, |watcher| async { watcher.step().await });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Somebody who watches a job.
struct Watcher {
    parts: Arc<Parts>,
    partition: PartitionId,
    job: JobId,
    changes: watch::Receiver<u64>,
    next: Next,
}

enum Next {
    Send(Box<Job>),
    /// This was sent, then.
    Wait(Box<Job>, Instant),
    End,
}

impl Watcher {
    /// The next event, and who waits for the one after it; `None` at the end.
    async fn step(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        let job = match std::mem::replace(&mut self.next, Next::End) {
            Next::Send(job) => job,
            Next::Wait(last, sent) => match self.change(&last, sent).await? {
                Some(job) => job,
                None => return Some((Ok(Event::default().event("deleted").data("{}")), self)),
            },
            Next::End => return None,
        };
        let event = Event::default().event("job").json_data(&*job).ok()?;
        if !job.status.is_finished() {
            self.next = Next::Wait(job, Instant::now());
        }
        Some((Ok(event), self))
    }

    /// The job when it no longer is as it was; an inner `None` when it is gone, an outer one when the watching has to end.
    async fn change(&mut self, last: &Job, sent: Instant) -> Option<Option<Box<Job>>> {
        loop {
            let changed = async {
                let changed = self.changes.changed().await;
                tokio::time::sleep_until(sent + PACE).await;
                changed
            };
            self.parts.ending.run_until_cancelled(changed).await?.ok()?;
            self.changes.mark_unchanged();
            // The watcher comes again, and is answered 503 if it must be.
            let now = self
                .parts
                .store
                .job(&self.partition, &self.job)
                .await
                .ok()?;
            match now {
                Some(now) if now == *last => {}
                now => return Some(now.map(Box::new)),
            }
        }
    }
}
