//! The partitions, and the jobs of one.

use std::sync::Arc;

use askama::Template;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::{ErrorCode, Job};
use contract::{JobStatus, PartitionId};
use store::{JobQuery, Sort, StoreError};

use crate::html::bar::Bar;
use crate::html::{Layout, Live, Place, filters, html, text, url};
use crate::http::form::Fields;
use crate::http::{ApiError, ApiResult, PartitionPath, QueryParams, reject_nul};
use crate::jobs::job_list::{JobSelector, Page};
use crate::rights::Subject;
use crate::state::AppState;

/// The number of partitions on a page.
const PARTITIONS: u32 = 200;
/// The number of other partitions that a list of jobs offers.
const OTHERS: u32 = 50;
/// The largest number of jobs on a page. The API allows more; a browser gets slow.
const MOST: u32 = 500;

/// The number of labels that a row shows.
const LABELS: usize = 4;
/// How often a list is read again that shows jobs at work, in seconds: their progress is no event.
const EVERY: u32 = 3;

/// The orders that the page offers; others can be written into the URL.
const ORDERS: [(&str, &str); 8] = [
    ("", "newest first"),
    ("createTime:asc", "oldest first"),
    ("lastUpdateTime:desc", "changed last"),
    ("jobId:asc", "id"),
    ("name:asc", "name"),
    ("status:asc", "status"),
    ("percentageComplete:desc", "most complete"),
    ("percentageComplete:asc", "least complete"),
];

/// The tabs of the list, beside that of all jobs.
const TABS: [JobStatus; 7] = [
    JobStatus::Active,
    JobStatus::Waiting,
    JobStatus::Paused,
    JobStatus::Blocked,
    JobStatus::Completed,
    JobStatus::Failed,
    JobStatus::Cancelled,
];

/// The partitions.
#[derive(Debug, Template)]
#[template(path = "partitions.html")]
struct PartitionsPage<'a> {
    layout: Layout,
    names: &'a [String],
    more: bool,
    api: &'a str,
}

/// A list of jobs.
#[derive(Debug, Template)]
#[template(path = "list.html")]
struct ListPage<'a> {
    layout: Layout,
    partition: &'a str,
    asked: &'a Fields,
    found: Found,
    /// The number of jobs on the tab.
    total: u64,
    /// The first partitions, to go to another one.
    partitions: Vec<String>,
    api: &'a str,
}

/// What a list shows.
#[derive(Debug, Default)]
struct Found {
    /// The jobs of the page.
    jobs: Vec<Job>,
    /// The number of jobs by status, whatever the tab.
    counts: Vec<(JobStatus, u64)>,
    /// Whether these numbers may be some seconds old.
    may_be_old: bool,
    /// The number of jobs before the page.
    offset: u64,
    /// The largest number of jobs on the page.
    limit: u64,
    /// What is wrong with the filter or another parameter.
    problem: Option<String>,
}

/// `GET /`: the partitions; if there is only one, its jobs.
pub async fn partitions(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let after = fields.get("after");
    reject_nul("after", Some(after))?;
    let mut names = seen_partitions(&state, after, PARTITIONS + 1).await?;
    if let ([only], "") = (&*names, after) {
        return Ok(Redirect::to(&url::jobs(only)).into_response());
    }
    let more = names.len() > PARTITIONS as usize;
    names.truncate(PARTITIONS as usize);
    let page = PartitionsPage {
        layout: Layout {
            live: Live::Every(10),
            ..Layout::new("Partitions".to_owned(), Place::Jobs)
        },
        names: &names,
        more,
        api: &state.options.webservice_url,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET /partitions/{partition}/jobs`: the jobs of a partition. What is wrong with the filter
/// stands beside it.
pub async fn jobs(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<JobSelector>,
    QueryParams(page): QueryParams<Page>,
) -> ApiResult<Response> {
    let asked = Fields::of_url(&uri)?;
    let tab = asked.get("status");
    let (status, found) = match find(&state, &partition, tab, &selector, &page).await {
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
    let partition = partition.as_str();
    let page = ListPage {
        layout: Layout {
            live: Live::EventsAndEvery(url::live_jobs(partition), EVERY),
            done: asked.done(),
            ..Layout::of_jobs(format!("Jobs in {partition}"), partition)
        },
        total: found.count(JobStatus::from_name(tab)),
        partition,
        asked: &asked,
        found,
        partitions: seen_partitions(&state, "", OTHERS).await?,
        api: &state.options.webservice_url,
    };
    Ok(html(status, &page))
}

/// Returns the partitions behind this one whose jobs the subject may see. Looks at so many pages of
/// all of them at the most.
async fn seen_partitions(state: &AppState, after: &str, limit: u32) -> ApiResult<Vec<String>> {
    const MOST_PAGES: usize = 50;
    let subject = Subject::current();
    let (mut seen, mut after) = (Vec::new(), after.to_owned());
    for _ in 0..MOST_PAGES {
        let page = state.store.partitions(&after, PARTITIONS).await?;
        let is_last = page.len() < PARTITIONS as usize;
        after = page.last().cloned().unwrap_or_default();
        let is_seen = |name: &String| PartitionId::parse(name).is_ok_and(|it| subject.sees(&it));
        seen.extend(page.into_iter().filter(is_seen));
        if is_last || seen.len() >= limit as usize {
            break;
        }
    }
    seen.truncate(limit as usize);
    Ok(seen)
}

async fn find(
    state: &AppState,
    partition: &PartitionId,
    tab: &str,
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
    let of_tab = of_tab(all.clone(), tab)?;
    let ((counts, may_be_old), mut jobs) = tokio::try_join!(
        counted(state, partition, &all),
        state.store.jobs(partition, &of_tab),
    )?;
    let running = state.pipes.workers.running();
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
    if let Some(seen) = state.jobs.seen_counts.find(&text) {
        return Ok((seen, true));
    }
    let counts = state.store.count_jobs_by_status(partition, query).await?;
    state.jobs.seen_counts.keep(text, &counts);
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

impl ListPage<'_> {
    fn has_others(&self) -> bool {
        self.partitions.iter().any(|name| name != self.partition)
    }

    /// Returns whether something but the status narrows the list.
    fn is_narrowed(&self) -> bool {
        let names = ["filter", "jobIdStartsWith", "labelExist"];
        names.iter().any(|name| !self.asked.get(name).is_empty())
    }

    fn query(&self, status: &str, offset: &str) -> String {
        let names = ["filter", "jobIdStartsWith", "labelExist", "sort", "limit"];
        let asked = names.map(|name| (name, self.asked.get(name)));
        let query = [("status", status)].into_iter().chain(asked);
        url::query(query.chain([("offset", offset)]))
    }

    fn path(&self) -> String {
        url::jobs(self.partition)
    }

    /// Returns the names of the tabs with their numbers: the status, or nothing for all jobs.
    fn tabs(&self) -> Vec<(&'static str, u64)> {
        let all = ("", self.found.count(None));
        let counted = TABS.map(|status| (status.name(), self.found.count(Some(status))));
        // Jobs are rarely Blocked.
        let is_shown = |(name, count): &(&str, u64)| {
            *name != JobStatus::Blocked.name() || self.is_current(name) || *count > 0
        };
        let counted = counted.into_iter().filter(is_shown);
        std::iter::once(all).chain(counted).collect()
    }

    /// Returns whether a tab is the current one; that of all jobs is if there is no such status.
    fn is_current(&self, tab: &str) -> bool {
        JobStatus::from_name(self.asked.get("status")).map_or("", JobStatus::name) == tab
    }

    /// Returns the URL of the first page of a tab.
    fn tab(&self, status: &str) -> String {
        format!("{}{}", self.path(), self.query(status, ""))
    }

    /// Returns the URL of the page that begins after so many jobs.
    fn turn(&self, offset: u64) -> String {
        let offset = Some(offset.to_string()).filter(|_| offset > 0);
        let query = self.query(self.asked.get("status"), &offset.unwrap_or_default());
        format!("{}{query}", self.path())
    }

    fn last(&self) -> u64 {
        self.found.offset + self.found.jobs.len() as u64
    }

    /// Returns whether the numbers of a job on the page may change without an event.
    fn shows_work(&self) -> bool {
        let works = |job: &Job| {
            let status = job.shown_status();
            !status.is_finished() && status != JobStatus::Waiting
        };
        self.found.jobs.iter().any(works)
    }

    /// The orders to choose from, with the current one even if it is none of ours.
    fn orders(&self) -> Vec<(&str, &str)> {
        let sort = self.asked.get("sort");
        let known = ORDERS.iter().any(|(order, _)| *order == sort);
        let further = (!known).then_some((sort, sort));
        ORDERS.into_iter().chain(further).collect()
    }
}

impl Found {
    /// Returns the number of jobs that are shown with a status, or of all.
    fn count(&self, status: Option<JobStatus>) -> u64 {
        let counted = self.counts.iter();
        let counted = counted.filter(|(counted, _)| status.is_none_or(|it| it == *counted));
        counted.map(|(_, count)| count).sum()
    }
}

/// Returns the first labels of a job as a row shows them, and how many more there are.
fn labels(job: &Job) -> (Vec<String>, String) {
    let label = |(key, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    let more = match job.labels.len().saturating_sub(LABELS) {
        0 => String::new(),
        more if job.cut.iter().any(|field| field == "labels") => format!("at least {more}"),
        more => more.to_string(),
    };
    (job.labels.iter().map(label).take(LABELS).collect(), more)
}

/// Returns the number of items of a job, as a row shows them.
fn items(job: &Job) -> String {
    match job.items.total {
        Some(total) => {
            let plus = if job.items.total_is_final { "" } else { "+" };
            let (done, total) = (text::number(job.items.done), text::number(total));
            format!("{done} / {total}{plus}")
        }
        None if job.completed_items > 0 => text::number(job.completed_items),
        None => String::new(),
    }
}
