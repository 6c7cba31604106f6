//! `GET …/jobs/{jobId}/outputs`: streams the outputs that the service has kept of a job.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use blobs::Blobs;
use contract::rest::{ErrorBody, ErrorCode, Job, KeptOutput, OutputStatus};
use contract::{JobId, PartitionId};
use futures_util::stream;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::http::{
    ApiError, ApiResult, Client, InvalidParameter, JobPath, NoJob, Place, QueryParams, StoreErrors,
    Unknown, whole_number,
};
use crate::outputs::kept_outputs::{Lines, ReadError, Selection};
use crate::state::AppState;

/// The names of the parameters.
const PARAMETERS: [&str; 3] = ["offset", "limit", "status"];

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OutputParams {
    /// The number of the first line. To go on after an interruption, the `offset` of the last line
    /// and one more.
    #[param(value_type = Option<u64>, example = 0)]
    offset: Option<String>,
    /// The largest number of lines. By default, all.
    #[param(value_type = Option<u64>, example = 1000)]
    limit: Option<String>,
    /// Only results (`done`) or only failures (`failed`).
    #[param(value_type = Option<OutputStatus>)]
    status: Option<String>,
}

/// Get the outputs of a job
///
/// Streams what the service has kept of the outputs of a job that was created with `"outputs":
/// "keep"`: a line of JSON for each task that has sent a result or a failure, in the order in which
/// they were kept. Of a running job, these are the outputs that are there so far; of a Completed
/// job, all. A failure is left out if the task is done now. A task without an output has no line.
///
/// Every line has its number as `offset`. If the stream breaks, ask again with the next one.
///
/// The service keeps its outputs in blobs, and compares each blob that it reads to its end with
/// what was written. If one has changed on the disk, the stream breaks off before the last lines of
/// this blob, and the job names it in `notes`. What a `limit` ends before the end of a blob is not
/// compared.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/jobs/{jobId}/outputs",
    operation_id = "getOutputs",
    tag = "jobs",
    params(JobPath, OutputParams),
    responses(
        (status = 200, description = "The outputs, one JSON object a line", body = KeptOutput, content_type = "application/x-ndjson",
            example = json!("{\"offset\":0,\"task\":\"1\",\"status\":\"done\",\"output\":{\"lines\":12}}\n")),
        (status = 409, description = "The job does not keep its outputs, or the first ones are not as they were written", body = ErrorBody,
            example = json!({"message": "The job 'reindex-7' does not keep its outputs. Create it with \"outputs\": \"keep\"."})),
        (status = 410, description = "The outputs were removed because their time was over", body = ErrorBody,
            example = json!({"message": "The outputs of the job 'reindex-7' were removed, because their time was over."})),
        InvalidParameter, NoJob, StoreErrors
    )
)]
pub async fn get_outputs(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    client: Client,
    QueryParams(params): QueryParams<OutputParams>,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &PARAMETERS)?.into_notes()?;
    let selection = params.selection()?;
    let (found, blobs) = readable(&state, &partition, &job).await?;
    let selection = Selection {
        is_all_done: found.is_all_done(),
        ..selection
    };
    let place = state.outputs.streams.take(&client);
    let place = place.ok_or(ApiError::Busy("as many streams of outputs as it may have"))?;
    let owner = state.store.blob_owner().await?;
    let store = state.store.clone();
    let damaged = found.outputs.and_then(|kept| kept.damaged);
    let mut lines =
        Lines::new(store, blobs, owner.into(), found.incarnation, selection).damaged(damaged);
    // What is wrong from the beginning on is an error of the request.
    let first = lines.next_piece().await?;
    let streamed = Streamed {
        lines,
        first,
        stop: state.http.shutting_down.clone(),
        _place: place,
    };
    let pieces = stream::try_unfold(streamed, Streamed::next);
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Returns a job whose outputs can be read, and where they are.
pub async fn readable(
    state: &AppState,
    partition: &PartitionId,
    job: &JobId,
) -> ApiResult<(Job, Blobs)> {
    let found = state.store.listed_job(partition, job).await?;
    let found = found.ok_or_else(|| ApiError::job_not_found(job))?.job;
    let Some(kept) = &found.outputs else {
        return Err(ApiError::OutputsNotKept(job.to_string()));
    };
    if kept.removed_time.is_some() {
        return Err(ApiError::OutputsRemoved(job.to_string()));
    }
    let Some(blobs) = state.options.outputs.blobs.clone() else {
        let reason = "this process has no folder of outputs (--outputs-folder)";
        return Err(ApiError::OutputsUnreadable(reason.to_owned()));
    };
    Ok((found, blobs))
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        match (error.damage(), error) {
            (Some(damage), _) => Self::Conflict(ErrorCode::OutputsUnreadable, damage),
            (None, ReadError::Store(error)) => Self::Store(error),
            (None, error) => Self::OutputsUnreadable(error.to_string()),
        }
    }
}

impl OutputParams {
    fn selection(&self) -> ApiResult<Selection> {
        let status = match self.status.as_deref() {
            None | Some("") => None,
            Some("done") => Some(OutputStatus::Done),
            Some("failed") => Some(OutputStatus::Failed),
            Some(other) => {
                let message =
                    format!("The parameter 'status' must be done or failed, but is '{other}'.");
                return Err(ApiError::bad_request(ErrorCode::InvalidParameter, message));
            }
        };
        Ok(Selection {
            offset: whole_number("offset", self.offset.as_deref())?.unwrap_or(0),
            limit: whole_number("limit", self.limit.as_deref())?,
            status,
            is_all_done: false,
        })
    }
}

/// The body of a response.
struct Streamed {
    lines: Lines,
    /// The piece that is read already.
    first: Option<Bytes>,
    stop: CancellationToken,
    _place: Place,
}

impl Streamed {
    /// Returns the next piece. An error breaks the connection, so that the client knows that more
    /// lines follow.
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        if let Some(first) = self.first.take() {
            return Ok(Some((first, self)));
        }
        let next = self.lines.next_piece();
        let piece = match self.stop.run_until_cancelled(next).await {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => {
                tracing::warn!(%error, "a stream of outputs breaks off");
                return Err(io::Error::other(error));
            }
            None => return Err(io::Error::other("the service is shutting down")),
        };
        Ok(piece.map(|piece| (piece, self)))
    }
}
