//! `GET …/jobs/{jobId}/events`: streams the changes of a job as server-sent events.
//!
//! What must stay true: the stream sends the current state and buffers nothing. A slow client skips intermediate states
//! instead of falling behind. The store is read only after it signals a change.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use contract::rest::{ErrorBody, Job};
use contract::{JobId, PartitionId};
use futures_util::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::StoreErrors;
use crate::error::{ApiError, ApiResult};
use crate::extract::JobPath;
use crate::state::AppState;

/// The minimum time between two events of a stream.
const PACE: Duration = Duration::from_millis(100);

/// Watch a job
///
/// Streams server-sent events. An event `job` contains the whole job; it is sent at once and after every change, at most ten times
/// a second. The stream ends after the event in which the job has finished, or with an event `deleted` if the job is deleted.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/events",
    operation_id = "watchJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 200, description = "A stream of `job` events, each with the job as JSON", body = String, content_type = "text/event-stream",
            example = json!("event: job\ndata: {\"id\":\"reindex-7\",\"status\":\"Active\"}\n\n")),
        (status = 400, description = "Invalid partition id or job id", body = ErrorBody,
            example = json!({"message": "The job identifier contains one or more invalid characters."})),
        (status = 404, description = "The job does not exist", body = ErrorBody,
            example = json!({"message": "ERROR: job_id {reindex-7} not found"})),
        StoreErrors
    )
)]
pub async fn watch_job(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let place = Arc::clone(&state.event_streams).try_acquire_owned();
    let place = place.map_err(|_| ApiError::Busy("as many event streams as it may have"))?;
    // Subscribe before reading, so that no change in between is missed.
    let changes = state.store.job_signal();
    let first = state
        .store
        .job(&partition, &job)
        .await?
        .ok_or_else(|| ApiError::job_not_found(&job))?;
    let watcher = Watcher {
        state,
        partition,
        job,
        changes,
        next: Next::Send(Box::new(first)),
        _place: place,
    };
    let events = stream::unfold(watcher, |watcher| async { watcher.step().await });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// One event stream.
struct Watcher {
    state: Arc<AppState>,
    partition: PartitionId,
    job: JobId,
    changes: watch::Receiver<u64>,
    next: Next,
    _place: OwnedSemaphorePermit,
}

/// What the stream does next.
enum Next {
    Send(Box<Job>),
    /// Wait until the job differs from the state that was sent at this time.
    Wait(Box<Job>, Instant),
    End,
}

impl Watcher {
    /// Returns the next event and the watcher for the one after it. `None` ends the stream.
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

    /// Waits until the job differs from `last` and returns it. An inner `None` means that the job was deleted, an outer `None`
    /// that the stream must end.
    async fn change(&mut self, last: &Job, sent: Instant) -> Option<Option<Box<Job>>> {
        loop {
            let changed = async {
                let changed = self.changes.changed().await;
                tokio::time::sleep_until(sent + PACE).await;
                changed
            };
            self.state
                .shutting_down
                .run_until_cancelled(changed)
                .await?
                .ok()?;
            self.changes.mark_unchanged();
            // On an error the stream ends. The client reconnects and gets 503 if the store is still unavailable.
            let now = self
                .state
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
