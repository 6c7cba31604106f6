//! The request that the current task handles, as far as an error response names it.
//!
//! Errors arise far from the request, so it is kept beside the task that handles it.

use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use percent_encoding::percent_decode_str;

use crate::http::correlation::CorrelationId;

/// The media type of an error for clients that accept no other.
pub const PLAIN: &str = "application/json";
/// The media type of an error for clients that accept it.
pub const PROBLEM: &str = "application/problem+json";

/// The media type that a browser accepts when a person follows a link or sends a form.
const PAGE: &str = "text/html";

tokio::task_local! {
    static CURRENT: CurrentRequest;
}

/// The request that is being handled.
#[derive(Debug, Clone, Default)]
pub struct CurrentRequest {
    pub correlation_id: Option<String>,
    pub partition: Option<String>,
    pub job: Option<String>,
    /// Whether the client names [`PROBLEM`] among the media types that it accepts.
    pub accepts_problem: bool,
    /// Whether a person sees the response: a browser asks for it, outside of the API.
    pub wants_page: bool,
}

impl CurrentRequest {
    /// Returns the request that this task handles; an empty one outside of a request.
    pub fn get() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    fn of(request: &Request) -> Self {
        let id = request.extensions().get::<CorrelationId>();
        let accepts = |media_type: &str| {
            let mut accepted = request.headers().get_all(header::ACCEPT).iter();
            accepted.any(|accept| accept.to_str().is_ok_and(|text| text.contains(media_type)))
        };
        let path = request.uri().path();
        let (partition, job) = named_by(path);
        Self {
            correlation_id: id.map(|id| id.0.clone()),
            partition,
            job,
            accepts_problem: accepts(PROBLEM),
            wants_page: !path.starts_with("/job-service") && accepts(PAGE),
        }
    }
}

/// The layer that keeps the request beside the task that handles it. It runs inside the layer of
/// the correlation id.
pub async fn layer(request: Request, next: Next) -> Response {
    let current = CurrentRequest::of(&request);
    CURRENT.scope(current, next.run(request)).await
}

/// Returns the partition and the job in a path such as
/// `…/partitions/{partition}/jobs/{job}/cancel`.
fn named_by(path: &str) -> (Option<String>, Option<String>) {
    let decoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().ok()?;
        (!text.is_empty()).then(|| text.into_owned())
    };
    let mut segments = path.split('/').skip_while(|name| *name != "partitions");
    segments.next();
    let partition = segments.next().and_then(decoded);
    let job = match segments.next() {
        Some("jobs") => segments.next().and_then(decoded),
        _ => None,
    };
    (partition, job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_and_job_are_read_from_the_path() {
        for (path, partition, job) in [
            ("/job-service/v1/partitions/p/jobs/j", Some("p"), Some("j")),
            (
                "/job-service/v1/partitions/a%20b/jobs/%C3%A4/cancel",
                Some("a b"),
                Some("ä"),
            ),
            ("/job-service/v1/partitions/p/jobs", Some("p"), None),
            ("/job-service/v1/partitions/p/jobs:cancel", Some("p"), None),
            (
                "/job-service/v1/partitions/p/jobStats/count",
                Some("p"),
                None,
            ),
            ("/job-service/v1/partitions/%ff/jobs//x", None, None),
            ("/health-check", None, None),
            ("", None, None),
        ] {
            let expected = (partition.map(str::to_owned), job.map(str::to_owned));
            assert_eq!(named_by(path), expected, "{path}");
        }
    }
}
