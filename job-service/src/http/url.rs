//! The paths and URLs of the API.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use contract::{JobId, PartitionId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

use crate::options::BASE_PATH;

/// Returns the path of an uploaded source, below that of the API.
pub fn source_path(partition: &PartitionId, id: &str) -> String {
    let partition = encoded(partition.as_str());
    format!("/partitions/{partition}/sources/{}", encoded(id))
}

/// Returns a text as a part of a path.
pub fn encoded(text: &str) -> PercentEncode<'_> {
    /// Every character except those that never need encoding in a URL.
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
    utf8_percent_encode(text, ENCODED)
}

/// Returns the path of a job.
pub fn job_path(partition: &PartitionId, job: &JobId) -> String {
    format!(
        "{BASE_PATH}/partitions/{}/jobs/{}",
        encoded(partition.as_str()),
        encoded(job.as_str())
    )
}

/// Returns the URL of a path as the client of this request sees it, also behind a proxy that sets
/// `X-Forwarded-Host` and `X-Forwarded-Proto`.
pub fn url(path: &str, uri: &Uri, headers: &HeaderMap) -> String {
    let header = |name: &str| {
        headers
            .get(name)?
            .to_str()
            .ok()?
            .split(',')
            .next()
            .map(str::trim)
    };
    let host = header("x-forwarded-host")
        .or_else(|| uri.authority().map(Authority::as_str))
        .or_else(|| header("host"));
    let scheme = header("x-forwarded-proto").unwrap_or("http");
    host.map_or_else(
        || path.to_owned(),
        |host| format!("{scheme}://{host}{path}"),
    )
}
