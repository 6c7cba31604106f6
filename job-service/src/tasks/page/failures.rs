//! The page of the failures of a job.

use std::sync::Arc;

use askama::Template;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::Response;
use contract::rest::Failures;
use store::FailureCursor;

use crate::html::job_action::Action;
use crate::html::{Layout, filters, html, url};
use crate::http::form::{Fields, wrong};
use crate::http::{ApiError, ApiResult, JobPath};
use crate::jobs::page::groups;
use crate::jobs::page::job_head::{JobHead, shown, task_name};
use crate::state::AppState;
use crate::tasks::routes::list_failures::GROUPS;

/// The number of failures on a page.
const FAILURES: usize = 50;

/// The failures of a job: in groups, and one by one.
#[derive(Debug, Template)]
#[template(path = "failures.html")]
struct FailuresPage<'a> {
    layout: Layout,
    head: JobHead<'a>,
    failures: Failures,
    page: Failures,
    /// Whether this is the first page of them.
    first: bool,
}

/// `GET …/failures`: the failures in groups, and one by one.
pub async fn failures(
    State(state): State<Arc<AppState>>,
    JobPath(partition, id): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let after = Some(fields.get("after")).filter(|after| !after.is_empty());
    let after: Option<FailureCursor> = after
        .map(str::parse)
        .transpose()
        .map_err(|problem| wrong(format!("The parameter 'after': {problem}.")))?;
    let shown = shown(&state, &partition, &id).await?;
    let store = &state.store;
    let (groups, page) = tokio::try_join!(
        groups(&state, &partition, &id, (&shown, GROUPS)),
        store.failures(&partition, &id, after.as_ref(), FAILURES),
    )?;
    let (Some(groups), Some(page)) = (groups, page) else {
        return Err(ApiError::job_not_found(&id));
    };
    let head = JobHead::new(partition.as_str(), &shown, "failures");
    let page = FailuresPage {
        layout: head.layout(None),
        head,
        failures: groups,
        page,
        first: after.is_none(),
    };
    Ok(html(StatusCode::OK, &page))
}

impl FailuresPage<'_> {
    /// Returns the URL of the page that begins after a failure.
    fn following(&self, after: &str) -> String {
        url::after(&format!("{}/failures", self.head.url()), after)
    }
}
