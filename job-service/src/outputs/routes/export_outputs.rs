//! `POST …/jobs/{jobId}/outputs:export`: writes the kept outputs of a job to a place that the
//! operator has named.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use blobs::ExportPath;
use contract::rest::{ErrorBody, ErrorCode, ExportLine, ExportManifest};
use futures_util::stream;
use serde::Deserialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::http::{
    ApiError, ApiResult, Client, JobPath, NoJob, Place, QueryParams, StoreErrors, Unknown,
    whole_number,
};
use crate::outputs::export::{Destination, Export, ExportError, Step, part_bytes};
use crate::outputs::kept_outputs::{Lines, Selection};
use crate::outputs::routes::get_outputs::readable;
use crate::state::AppState;

/// The names of the parameters.
const PARAMETERS: [&str; 3] = ["store", "path", "partBytes"];
/// The size of a part where the request names none, the smallest and the largest one, in bytes.
const PART_BYTES: u64 = 128 << 20;
const SMALLEST_PART: u64 = 64 << 10;
const LARGEST_PART: u64 = 4 << 30;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub struct ExportParams {
    /// The name of the place, as the operator has set it with `--export-store`.
    #[param(value_type = String, example = "archive")]
    store: Option<String>,
    /// The folder in that place: parts of letters, digits and `-_.=+@` that do not begin with a
    /// dot, joined by `/`.
    #[param(value_type = String, example = "2026/words")]
    path: Option<String>,
    /// The bytes from which on a part ends, from 65536 to 4294967296. By default 134217728. A job
    /// with much more than a thousand times as many bytes has larger parts. An export that has
    /// begun keeps the size of its parts.
    #[param(value_type = Option<u64>, example = 134_217_728)]
    part_bytes: Option<String>,
}

/// Export the outputs of a job
///
/// Writes the kept outputs of a job that has ended to a place that the operator has named: files
/// `part-00001.ndjson`, … with the lines that `GET …/outputs` returns, and then `manifest.json`,
/// which names the parts with their numbers of lines and bytes and their SHA-256.
///
/// The response has lines about the progress, one for each part that is safe, and at the end one
/// with the manifest, or with an error. If it breaks off, send the same request again: it continues
/// after the last part. A repeated request for a complete export writes nothing, and returns the
/// same lines.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/jobs/{jobId}/outputs:export",
    operation_id = "exportOutputs",
    tag = "jobs",
    params(JobPath, ExportParams),
    responses(
        (status = 200, description = "What the export has written, one JSON object a line", body = ExportLine, content_type = "application/x-ndjson",
            example = json!("{\"part\":{\"name\":\"part-00001.ndjson\",\"lines\":12,\"bytes\":3456,\"sha256\":\"…\"}}\n")),
        (status = 400, description = "Invalid partition id, job id or parameter, or no such place", body = ErrorBody,
            example = json!({"message": "There is no place 'archiv' for exports. There are: archive."})),
        (status = 409, description = "The job has not ended, does not keep its outputs, or the path is in use, or an output is not as it was written", body = ErrorBody,
            example = json!({"message": "The export of the job 'reindex-6' is at '2026/words' already. Choose another path, or delete it."})),
        (status = 410, description = "The outputs were removed because their time was over", body = ErrorBody,
            example = json!({"message": "The outputs of the job 'reindex-7' were removed, because their time was over."})),
        NoJob, StoreErrors
    )
)]
pub async fn export_outputs(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
    client: Client,
    QueryParams(params): QueryParams<ExportParams>,
) -> ApiResult<Response> {
    Unknown::of_query(&uri, &PARAMETERS)?.into_notes()?;
    let asked = params.part_bytes()?;
    let to = params.destination(&state)?;
    let (found, blobs) = readable(&state, &partition, &job).await?;
    if !found.status.is_finished() {
        let message = format!(
            "The job '{job}' has a status of {}. Its outputs can be exported when it has ended.",
            found.status
        );
        return Err(ApiError::Conflict(ErrorCode::WrongJobStatus, message));
    }
    let place = state.outputs.streams.take(&client);
    let place = place.ok_or(ApiError::Busy("as many streams of outputs as it may have"))?;
    let used = state.outputs.exports.take(&to);
    let used = used.ok_or(ApiError::Busy("another export to this path"))?;
    let is_all_done = found.is_all_done();
    let (kept, lines) = state.store.kept_with_lines(found.incarnation).await?;
    if kept.removed_time.is_some() {
        return Err(ApiError::OutputsRemoved(job.to_string()));
    }
    let bytes = u64::try_from(kept.bytes).unwrap_or_default();
    let size = part_bytes(asked.unwrap_or(PART_BYTES), bytes);
    let wanted = ExportManifest {
        partition: partition.to_string(),
        job: job.to_string(),
        incarnation: found.incarnation,
        kept: lines,
        superseded: lines - kept.done - kept.failed,
        part_bytes: size,
        ..ExportManifest::default()
    };
    let limit = state.options.limits.export_step;
    let manifest = in_time(limit, to.manifest(wanted, asked.map(|_| size))).await;
    let manifest = manifest.map_err(|error| refused(&to, error))?;
    let owner = state.store.blob_owner().await?;
    let selection = Selection {
        offset: manifest.next_offset,
        is_all_done,
        ..Selection::default()
    };
    let store = state.store.clone();
    let lines = Lines::new(store, blobs, owner.into(), found.incarnation, selection)
        .damaged(kept.damaged)
        .verified();
    let mut export = Export::new(used, to.clone(), lines, manifest);
    // What is wrong from the beginning on is an error of the request.
    let first = in_time(limit, export.step()).await;
    let first = first.map_err(|error| refused(&to, error))?;
    let exported = Exported {
        export,
        first: Some(first),
        stop: state.http.shutting_down.clone(),
        limit,
        _place: place,
    };
    let pieces = stream::unfold(Some(exported), next_line);
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

impl ExportParams {
    /// Returns the size of a part, if the request names one.
    fn part_bytes(&self) -> ApiResult<Option<u64>> {
        let Some(bytes) = whole_number("partBytes", self.part_bytes.as_deref())? else {
            return Ok(None);
        };
        if (SMALLEST_PART..=LARGEST_PART).contains(&bytes) {
            return Ok(Some(bytes));
        }
        let message = format!(
            "The parameter 'partBytes' must be from {SMALLEST_PART} to {LARGEST_PART}, but is {bytes}."
        );
        Err(ApiError::bad_request(ErrorCode::InvalidParameter, message))
    }

    fn destination(self, state: &AppState) -> ApiResult<Destination> {
        let invalid = |message| ApiError::bad_request(ErrorCode::InvalidParameter, message);
        let missing = |name| invalid(format!("The parameter '{name}' is missing."));
        let name = self.store.ok_or_else(|| missing("store"))?;
        let path = self.path.ok_or_else(|| missing("path"))?;
        let stores = &state.options.outputs.export_stores;
        let Some(store) = stores.get(&name) else {
            let names: Vec<&str> = stores.keys().map(String::as_str).collect();
            let there = match &names[..] {
                [] => "The operator has set none (--export-store NAME=PLACE).".to_owned(),
                names => format!("There are: {}.", names.join(", ")),
            };
            return Err(invalid(format!(
                "There is no place '{name}' for exports. {there}"
            )));
        };
        let folder = path.parse::<ExportPath>().map_err(|reason| {
            invalid(format!("The parameter 'path' is '{path}', but {reason}."))
        })?;
        let store = store.clone();
        Ok(Destination {
            name,
            store,
            folder,
        })
    }
}

/// Takes a step of an export. A place that hangs keeps no stream from others.
async fn in_time<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, ExportError>>,
) -> Result<T, ExportError> {
    let step = timeout(limit, step).await;
    step.unwrap_or(Err(ExportError::Slow(limit)))
}

fn refused(to: &Destination, error: ExportError) -> ApiError {
    match error {
        ExportError::Read(error) => error.into(),
        ExportError::Taken(message) => ApiError::Conflict(ErrorCode::ExportExists, message),
        ExportError::Path(message) => {
            let message = format!("The parameter 'path' cannot be that of an export: {message}.");
            ApiError::bad_request(ErrorCode::InvalidParameter, message)
        }
        error @ (ExportError::Place(_) | ExportError::Slow(_)) => {
            ApiError::OutputsNotExported(to.error_text(&error))
        }
    }
}

/// The body of a response.
struct Exported {
    export: Export,
    /// The step that is taken already.
    first: Option<Step>,
    stop: CancellationToken,
    _place: Place,
    /// How long a step may take.
    limit: Duration,
}

/// Returns the next line; `None` after the last one.
async fn next_line(
    exported: Option<Exported>,
) -> Option<(Result<Bytes, Infallible>, Option<Exported>)> {
    let mut exported = exported?;
    let step = match exported.first.take() {
        Some(first) => Ok(first),
        None => match exported
            .stop
            .run_until_cancelled(in_time(exported.limit, exported.export.step()))
            .await
        {
            Some(step) => step.map_err(|error| {
                tracing::warn!(%error, "an export of outputs stops");
                exported.export.error_text(&error)
            }),
            None => Err("the service is shutting down".to_owned()),
        },
    };
    let (line, rest) = match step {
        Ok(Step::Progress(progress)) => (ExportLine::Progress(progress), Some(exported)),
        Ok(Step::Part(part)) => (ExportLine::Part(part), Some(exported)),
        Ok(Step::Complete(manifest)) => (ExportLine::Manifest(*manifest), None),
        Err(error) => (ExportLine::Error(error), None),
    };
    let mut line = serde_json::to_vec(&line).unwrap_or_default();
    line.push(b'\n');
    Some((Ok(line.into()), rest))
}
