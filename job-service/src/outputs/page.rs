//! The outputs that are kept of a job.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use contract::rest::{KeptOutput, OutputStatus};
use contract::{JobId, PartitionId};
use futures_util::StreamExt as _;

use crate::html::job_action::Action;
use crate::html::{Layout, filters, html, url};
use crate::http::form::{Fields, parameters};
use crate::http::{ApiError, ApiResult, Client, JobPath, whole_number};
use crate::jobs::page::job_head::{JobHead, shown};
use crate::options::BASE_PATH;
use crate::outputs::routes::get_outputs::get_outputs;
use crate::state::AppState;

pub fn router() -> Router<Arc<AppState>> {
    Router::new().route("/partitions/{partition}/jobs/{job}/outputs", get(outputs))
}

/// The number of outputs on a page.
const OUTPUTS: usize = 50;
/// The most bytes of outputs that are read for a page.
const BYTES: usize = 4 * 1024 * 1024;
/// The longest output that a page shows, in characters.
const SHOWN: usize = 2000;

/// The outputs that were read for a page.
#[derive(Debug, Default)]
struct OutputLines {
    /// The outputs.
    lines: Vec<KeptOutput>,
    /// Whether others follow.
    more: bool,
    /// Whether there are fewer on the page than it could have, because they are large.
    are_large: bool,
}

/// The outputs that are kept of a job.
#[derive(Debug, Template)]
#[template(path = "outputs.html")]
struct OutputsPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    read: OutputLines,
    /// Why there are none.
    problem: Option<String>,
    /// The URL of all of them.
    download: String,
}

/// `GET …/outputs`: the outputs that are kept.
pub async fn outputs(
    State(state): State<Arc<AppState>>,
    JobPath(partition, id): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let offset: u64 = whole_number("offset", Some(fields.get("offset")))?.unwrap_or_default();
    let shown = shown(&state, &partition, &id).await?;
    let query = format!("/?offset={offset}&limit={}", OUTPUTS + 1);
    let (read, problem) = match read_outputs(&state, &partition, &id, &query).await {
        Ok(read) => (read, None),
        Err(error) if error.status().is_server_error() => return Err(error),
        Err(error) => (OutputLines::default(), Some(error.message())),
    };
    let head = JobHead::new(partition.as_str(), &shown, "outputs");
    let page = OutputsPage {
        layout: head.layout(None),
        head,
        read,
        problem,
        download: format!("{BASE_PATH}{}/outputs", head.url()),
    };
    Ok(html(StatusCode::OK, &page))
}

impl OutputsPage<'_> {
    /// Returns the number of the line with which the next page begins.
    fn next(&self) -> Option<u64> {
        let last = self.read.lines.last().filter(|_| self.read.more);
        last.map(|line| line.offset + 1)
    }
}

/// Reads the lines of a page: as many as it has, or as fit into it, and at least one.
async fn read_outputs(
    state: &Arc<AppState>,
    partition: &PartitionId,
    job: &JobId,
    query: &str,
) -> ApiResult<OutputLines> {
    let bug = |error: String| ApiError::Bug(error);
    let uri: Uri = query
        .parse()
        .map_err(|error| bug(format!("{query}: {error}")))?;
    let params = parameters(query)?;
    let path = JobPath(partition.clone(), job.clone());
    let state = State(Arc::clone(state));
    let client = Client::of_service();
    let response = get_outputs(state, path, OriginalUri(uri), client, params).await?;
    let mut pieces = response.into_body().into_data_stream();
    let (mut read, mut line, mut bytes) = (OutputLines::default(), Vec::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::OutputsUnreadable(error.to_string()))?;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                continue;
            }
            if read.lines.len() == OUTPUTS {
                read.more = true;
                return Ok(read);
            }
            if !read.lines.is_empty() && bytes + line.len() > BYTES {
                (read.more, read.are_large) = (true, true);
                return Ok(read);
            }
            bytes += line.len();
            let output = serde_json::from_slice(&line).map_err(|error| bug(error.to_string()))?;
            read.lines.push(output);
            line.clear();
        }
    }
    Ok(read)
}

/// Returns the beginning of an output, and whether there is more of it.
fn beginning(output: &KeptOutput) -> (String, bool) {
    let text = match (&output.failure, &output.output, &output.output_base64) {
        (Some(failure), ..) => failure.failure_message.clone().unwrap_or_default(),
        (None, Some(json), _) => json.to_string(),
        (None, None, base64) => base64.clone().unwrap_or_default(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => (text[..at].to_owned(), true),
        None => (text, false),
    }
}

fn status(output: &KeptOutput) -> &'static str {
    match (output.status, output.negative) {
        (OutputStatus::Failed, _) => "failed",
        (_, true) => "negative",
        (_, false) => "done",
    }
}
