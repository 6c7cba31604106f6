//! `GET …/live`: tells an open page of a job, of the jobs of a partition, or of conditions when to
//! read itself again.
//!
//! Unlike the event streams of the API these carry no job; the one of a job does not end with it,
//! because a job can be taken up again.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use axum::routing::get;
use futures_util::stream::{self, Stream};

use crate::events::feed::Start;
use crate::events::watched_jobs::State as Seen;
use crate::http::{ApiError, ApiResult, Client, JobPath, PartitionPath};
use crate::state::AppState;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/partitions/{partition}/live", get(live_jobs))
        .route("/partitions/{partition}/jobs/{job}/live", get(live))
        .route("/conditions/live", get(live_conditions))
}

pub async fn live(
    State(state): State<Arc<AppState>>,
    client: Client,
    JobPath(partition, job): JobPath,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let place = state.http.event_stream(&client)?;
    let mut follower = state.events.watched_jobs.follow(partition, job.clone());
    if follower.first().await? == Seen::Gone {
        return Err(ApiError::job_not_found(&job));
    }
    let stop = state.http.shutting_down.clone();
    let follow = (follower, stop, place, false);
    let events = stream::unfold(follow, |(mut follower, stop, place, ended)| async move {
        if ended {
            return None;
        }
        // A browser ignores an event without data. The page reads itself again when the stream has
        // begun, so that the state of that moment is no event.
        let seen = stop.run_until_cancelled(follower.next()).await??;
        let event = Event::default().event("changed").data("read again");
        Some((Ok(event), (follower, stop, place, seen == Seen::Gone)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// `GET /partitions/{partition}/live`: says when something has happened to jobs of the partition.
pub async fn live_jobs(
    State(state): State<Arc<AppState>>,
    client: Client,
    PartitionPath(partition): PartitionPath,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let place = state.http.event_stream(&client)?;
    let follower = state
        .events
        .feed
        .follow(Some(partition), Start::Now)
        .await?;
    let follow = (follower, state.http.shutting_down.clone(), place);
    let events = stream::unfold(follow, |(mut follower, stop, place)| async move {
        stop.run_until_cancelled(follower.next()).await??;
        let event = Event::default().event("changed").data("read again");
        Some((Ok(event), (follower, stop, place)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// `GET /conditions/live`: says when something has happened to the conditions that tasks wait for.
pub async fn live_conditions(
    State(state): State<Arc<AppState>>,
    client: Client,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let place = state.http.event_stream(&client)?;
    let mut signal = state.store.condition_signal();
    signal.mark_unchanged();
    let follow = (signal, state.http.shutting_down.clone(), place);
    let events = stream::unfold(follow, |(mut signal, stop, place)| async move {
        stop.run_until_cancelled(signal.changed()).await?.ok()?;
        let event = Event::default().event("changed").data("read again");
        Some((Ok(event), (signal, stop, place)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}
