//! The partitions, and the jobs of one.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::ErrorCode;
use contract::{JobStatus, PartitionId};
use page::{Asked, Found, ListPage, PartitionsPage, url};
use serde::Deserialize;
use store::{JobQuery, Sort, StoreError};

use super::form::Fields;
use crate::error::{ApiError, ApiResult};
use crate::extract::{PartitionPath, QueryParams, reject_nul};
use crate::html::html;
use crate::job_list::{JobSelector, Page};
use crate::state::AppState;

/// The number of partitions on a page.
const PARTITIONS: u32 = 200;
/// The number of other partitions that a list of jobs offers.
const OTHERS: u32 = 50;
/// The largest number of jobs on a page. The API allows more; a browser gets slow.
const MOST: u32 = 500;

/// The parameters of the URL that a list repeats in its links.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AskedParams {
    status: String,
    filter: String,
    job_id_starts_with: String,
    label_exist: String,
    sort: String,
    limit: String,
}

/// `GET /`: the partitions; if there is only one, its jobs.
pub async fn partitions(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let after = fields.get("after");
    reject_nul("after", Some(after))?;
    let mut names = state.store.partitions(after, PARTITIONS + 1).await?;
    if let ([only], "") = (&*names, after) {
        return Ok(Redirect::to(&url::jobs(only)).into_response());
    }
    let more = names.len() > PARTITIONS as usize;
    names.truncate(PARTITIONS as usize);
    let page = PartitionsPage::new(&names, more, &state.options.webservice_url);
    Ok(html(StatusCode::OK, &page))
}

/// `GET /partitions/{partition}/jobs`: the jobs of a partition. What is wrong with the filter
/// stands beside it.
pub async fn jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(asked): QueryParams<AskedParams>,
    QueryParams(selector): QueryParams<JobSelector>,
    QueryParams(page): QueryParams<Page>,
) -> ApiResult<Response> {
    let done = Fields::of_url(&uri)?.done();
    let (status, found) = match find(&state, &partition, &asked, &selector, &page).await {
        Ok(found) => (StatusCode::OK, found),
        Err(error @ ApiError::BadRequest(..)) => {
            let problem = Some(error.message());
            let found = Found {
                problem,
                ..Found::default()
            };
            (StatusCode::BAD_REQUEST, found)
        }
        Err(error) => return Err(error),
    };
    let others = state.store.partitions("", OTHERS).await?;
    let api = &state.options.webservice_url;
    let page = ListPage::new(
        partition.as_str(),
        asked.into_asked(),
        found,
        others,
        done,
        api,
    );
    Ok(html(status, &page))
}

async fn find(
    state: &AppState,
    partition: &PartitionId,
    asked: &AskedParams,
    selector: &JobSelector,
    page: &Page,
) -> ApiResult<Found> {
    let query = selector.lenient_query()?;
    let options = &state.options;
    let all = page.apply_to(query, options.page_size, MOST)?;
    let all = JobQuery {
        limit: all.limit.min(MOST),
        ..all
    };
    let of_tab = of_tab(all.clone(), &asked.status)?;
    let ((counts, may_be_old), mut jobs) = tokio::try_join!(
        counted(state, partition, &all),
        state.store.jobs(partition, &of_tab),
    )?;
    let running = state.workers.running();
    for job in &mut jobs {
        running.show(partition, job);
    }
    Ok(Found {
        jobs,
        counts,
        may_be_old,
        offset: all.offset,
        limit: all.limit.into(),
        problem: None,
    })
}

/// Returns the numbers of jobs by status, and whether they may be some seconds old.
async fn counted(
    state: &AppState,
    partition: &PartitionId,
    query: &JobQuery,
) -> Result<(Vec<(JobStatus, u64)>, bool), StoreError> {
    let selecting = JobQuery {
        sort: Sort::default(),
        limit: 0,
        offset: 0,
        ..query.clone()
    };
    let text = format!("{partition} {selecting:?}");
    if let Some(seen) = state.seen_counts.find(&text) {
        return Ok((seen, true));
    }
    let counts = state.store.count_jobs_by_status(partition, query).await?;
    state.seen_counts.keep(text, &counts);
    Ok((counts, false))
}

/// Returns the query for those of its jobs that are on a tab: all, or those that are shown with one
/// status.
pub fn of_tab(all: JobQuery, tab: &str) -> ApiResult<JobQuery> {
    if tab.is_empty() {
        let statuses = Vec::new();
        return Ok(JobQuery { statuses, ..all });
    }
    let status = JobStatus::from_name(tab).ok_or_else(|| {
        let names = JobStatus::ALL.map(JobStatus::name).join(", ");
        ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!("The parameter 'status' must be one of {names}, but is '{tab}'."),
        )
    })?;
    Ok(all.shown_as(status))
}

impl AskedParams {
    fn into_asked(self) -> Asked {
        let Self {
            status,
            filter,
            job_id_starts_with,
            label_exist,
            sort,
            limit,
        } = self;
        Asked {
            status,
            filter,
            job_id_starts_with,
            label_exist,
            sort,
            limit,
        }
    }
}
