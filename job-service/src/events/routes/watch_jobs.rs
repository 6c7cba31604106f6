//! `GET …/events` and `GET …/partitions/{partitionId}/events`: streams what happens to all jobs as
//! server-sent events.
//!
//! The events come from the reader of this process, which all streams share: see
//! [`event_feed`](crate::events::feed).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use contract::PartitionId;
use contract::rest::{ErrorBody, ErrorCode, JobEvent};
use futures_util::stream;
use serde::Deserialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::events::feed::{EventFollower, Start};
use crate::http::{
    ApiError, ApiResult, Client, PartitionPath, Place, QueryParams, StoreErrors, Unknown,
};
use crate::state::AppState;

/// The header by which a client says which event it has seen last.
const LAST_EVENT: &str = "last-event-id";
/// The longest silence. Then the stream says where it is, so that a client that comes back does not
/// begin too far in the past.
const SILENCE: Duration = Duration::from_secs(15);

/// Where a stream of events begins.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Where the stream begins: behind the event with this id, at the oldest event that is kept
    /// (`0`), or with the last span of time, as in `PT10M`. Absent for what happens from now on.
    /// The header `Last-Event-ID` comes before it.
    #[param(example = "PT10M")]
    since: Option<String>,
}

/// The header of a client that comes back.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header")]
pub struct LastEvent {
    /// The id of the last event that the client has seen; browsers send it by themselves. The
    /// stream goes on behind it.
    #[param(rename = "Last-Event-ID", example = 812)]
    last_event_id: Option<i64>,
}

/// Watch all jobs
///
/// Streams server-sent events of all partitions: what happens to jobs. See *Watch the jobs of a
/// partition*.
#[utoipa::path(
    get,
    path = "/events",
    operation_id = "watchAllJobs",
    tag = "jobs",
    params(EventsQuery, LastEvent),
    responses(
        (status = 200, description = "A stream of events, each with a change of a job as JSON", body = JobEvent, content_type = "text/event-stream",
            example = json!("id: 812\nevent: created\ndata: {\"id\":812,\"event\":\"created\",\"partitionId\":\"acme\",\"jobId\":\"reindex-7\"}\n\n")),
        (status = 400, description = "Invalid Last-Event-ID or parameter", body = ErrorBody,
            example = json!({"message": "The header 'Last-Event-ID': 'x' is no id of an event; send the id of the last event that you have seen, or no such header."})),
        StoreErrors
    )
)]
pub async fn watch_all_jobs(
    State(state): State<Arc<AppState>>,
    client: Client,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventsQuery>,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &["since"])?.into_notes()?;
    watch(&state, &client, None, start(&headers, query)?).await
}

/// Watch the jobs of a partition
///
/// Streams server-sent events: `created`, `status` for each change of a job's status, as in its
/// history, and `deleted`. Each has an id, and a client that comes back with the header
/// `Last-Event-ID` gets everything that has happened in between: each event once, those of one job
/// in the order in which they happened. The stream begins with what happens from now on, unless
/// `since` or the header says something else, and does not end by itself.
///
/// Events are kept for a day, and at most 200,000 of them (`--keep-events`, `--max-events`). An
/// event `reset` says that some are missing before the next one, because they are kept no longer:
/// then read the list of the jobs again.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/events",
    operation_id = "watchJobs",
    tag = "jobs",
    params(PartitionPath, EventsQuery, LastEvent),
    responses(
        (status = 200, description = "A stream of events, each with a change of a job as JSON", body = JobEvent, content_type = "text/event-stream",
            example = json!("id: 813\nevent: status\ndata: {\"id\":813,\"event\":\"status\",\"partitionId\":\"acme\",\"jobId\":\"reindex-7\",\"from\":\"Waiting\",\"to\":\"Active\"}\n\n")),
        (status = 400, description = "Invalid partition id, Last-Event-ID or parameter", body = ErrorBody,
            example = json!({"message": "The parameter 'since': 'x' is neither the id of an event nor a span of time such as PT10M."})),
        StoreErrors
    )
)]
pub async fn watch_jobs(
    State(state): State<Arc<AppState>>,
    client: Client,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventsQuery>,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &["since"])?.into_notes()?;
    watch(&state, &client, Some(partition), start(&headers, query)?).await
}

/// Parses where a stream begins.
fn start(headers: &HeaderMap, query: EventsQuery) -> ApiResult<Start> {
    let invalid = |message| ApiError::bad_request(ErrorCode::InvalidParameter, message);
    let id = |text: &str| text.parse().ok().filter(|id: &i64| *id >= 0);
    if let Some(header) = headers.get(LAST_EVENT) {
        let text = String::from_utf8_lossy(header.as_bytes());
        return id(text.trim()).map(Start::After).ok_or_else(|| {
            let shown: String = text.chars().take(100).collect();
            invalid(format!(
                "The header 'Last-Event-ID': '{shown}' is no id of an event; send the id of the last event that you have seen, or no such \
                 header."
            ))
        });
    }
    let Some(since) = query.since.filter(|since| !since.is_empty()) else {
        return Ok(Start::Now);
    };
    match (id(&since), store::span(&since)) {
        (Some(0), _) => Ok(Start::Oldest),
        (Some(id), _) => Ok(Start::After(id)),
        (None, Ok(span)) => Ok(Start::Within(span)),
        (None, Err(_)) => {
            let shown: String = since.chars().take(100).collect();
            Err(invalid(format!(
                "The parameter 'since': '{shown}' is neither the id of an event nor a span of time such as PT10M."
            )))
        }
    }
}

async fn watch(
    state: &AppState,
    client: &Client,
    partition: Option<PartitionId>,
    start: Start,
) -> ApiResult<Response> {
    let place = state.http.event_stream(client)?;
    let follower = state.events.feed.follow(partition, start).await?;
    let watcher = Watcher {
        stop: state.http.shutting_down.clone(),
        follower,
        begun: false,
        _place: place,
    };
    let events = stream::unfold(watcher, |watcher| async { watcher.step().await });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// One event stream.
struct Watcher {
    stop: CancellationToken,
    follower: EventFollower,
    begun: bool,
    _place: Place,
}

impl Watcher {
    /// Returns the next events and the watcher for those after them. `None` ends the stream.
    async fn step(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if !std::mem::replace(&mut self.begun, true) {
            let first = format!("retry: 1000\nid: {}\n\n", self.follower.after());
            return Some((Ok(first.into()), self));
        }
        let next = timeout(SILENCE, self.follower.next());
        let bytes = match self.stop.run_until_cancelled(next).await? {
            Ok(events) => events?,
            // A client keeps the id of an event without data and ignores the rest.
            Err(_) => format!("id: {}\n\n", self.follower.after()).into(),
        };
        Some((Ok(bytes), self))
    }
}
