//! `GET …/jobs/{jobId}/events`: streams the changes of a job as server-sent events.
//!
//! The states come from the reader of the job, which all streams of this job share: see
//! [`watched_jobs`](crate::events::watched_jobs).

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State as AxumState;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::stream::{self, Stream};
use tokio_util::sync::CancellationToken;

use crate::events::watched_jobs::{Follower, State};
use crate::http::{
    ApiError, ApiResult, Client, InvalidParameter, JobPath, NoJob, Place, StoreErrors,
};
use crate::state::AppState;

/// Watch a job
///
/// Streams server-sent events. An event `job` contains the whole job; it is sent at once and after
/// every change, at most ten times a second, and less often while thousands of streams follow the
/// job. The stream ends after the event in which the job has finished, or with an event `deleted`
/// if the job is deleted.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/events",
    operation_id = "watchJob",
    tag = "jobs",
    params(JobPath),
    responses(
        (status = 200, description = "A stream of `job` events, each with the job as JSON", body = String, content_type = "text/event-stream",
            example = json!("event: job\ndata: {\"id\":\"reindex-7\",\"status\":\"Active\"}\n\n")),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn watch_job(
    AxumState(state): AxumState<Arc<AppState>>,
    client: Client,
    JobPath(partition, job): JobPath,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let place = state.http.event_stream(&client)?;
    let mut follower = state.events.watched_jobs.follow(partition, job.clone());
    let first = follower.first().await?;
    if first == State::Gone {
        return Err(ApiError::job_not_found(&job));
    }
    let watcher = Watcher {
        stop: state.http.shutting_down.clone(),
        follower,
        next: Next::Send(first),
        _place: place,
    };
    let events = stream::unfold(watcher, |watcher| async { watcher.step().await });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// One event stream.
struct Watcher {
    stop: CancellationToken,
    follower: Follower,
    next: Next,
    _place: Place,
}

/// What the stream does next.
enum Next {
    Send(State),
    Wait,
    End,
}

impl Watcher {
    /// Returns the next event and the watcher for the one after it. `None` ends the stream.
    async fn step(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        let state = match std::mem::replace(&mut self.next, Next::End) {
            Next::Send(state) => state,
            Next::Wait => {
                self.stop
                    .run_until_cancelled(self.follower.next())
                    .await??
            }
            Next::End => return None,
        };
        let event = match state {
            State::Job { json, is_finished } => {
                if !is_finished {
                    self.next = Next::Wait;
                }
                Event::default().event("job").data(json)
            }
            State::Gone => Event::default().event("deleted").data("{}"),
        };
        Some((Ok(event), self))
    }
}
