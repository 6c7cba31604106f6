//! What a viewer does with several jobs: those that are selected, or all that match.
//!
//! What must stay true: a request acts on no more jobs than a person waits for.

use std::sync::Arc;

use askama::Template;
use axum::extract::{OriginalUri, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::ErrorCode;
use contract::{JobId, JobStatus, PartitionId};
use store::{JobPlace, JobQuery, Sort, SortBy};

use crate::html::job_action::Action;
use crate::html::{Layout, filters, html, url};
use crate::http::form::{Fields, done};
use crate::http::{ApiError, ApiResult, PartitionPath, RequestBody, whole_number};
use crate::jobs::job_list::JobSelector;
use crate::jobs::page::action::perform;
use crate::jobs::page::confirm::ActionConfirmation;
use crate::jobs::page::list::of_tab;
use crate::jobs::routes::cancel_and_delete_jobs::{cancel_all, delete_all};
use crate::jobs::routes::retry_jobs::retry_all;
use crate::state::AppState;

/// The fields that select jobs, beside the tab.
const SELECTION: [&str; 4] = ["status", "filter", "jobIdStartsWith", "labelExist"];
/// The number of refusals that are shown.
const REFUSALS: usize = 100;
/// The most selected jobs that one request acts on.
const SELECTED: usize = 1000;
/// The most batches of jobs that one request acts on: a thousand jobs by default, which take a few
/// seconds.
const BATCHES: usize = 10;

/// Says what has become of an action on several jobs of which some were refused.
#[derive(Debug, Template)]
#[template(path = "outcome.html")]
struct BulkOutcome<'a> {
    layout: Layout,
    sentence: String,
    refused: Vec<(String, String)>,
    more: usize,
    action: Action,
    partition: &'a str,
    /// How many jobs are left that match, and the fields of the form that goes on with them.
    again: Option<(u64, Vec<(&'static str, String)>)>,
}

/// `GET …/bulk`: asks whether to do it, with the number of jobs.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let action = fields.action()?;
    let back = SELECTION.map(|name| (name, fields.get(name)));
    let back = format!("{}{}", url::jobs(partition.as_str()), url::query(back));
    let page = if concerns_all(&fields)? {
        let matching = matching(&fields)?;
        let store = &state.store;
        let possible = match allowing(matching.clone(), action) {
            Some(possible) => store.count_jobs(&partition, &possible).await?,
            None => 0,
        };
        let counts = (store.count_jobs(&partition, &matching).await?, possible);
        let query = SELECTION.map(|name| (name, fields.get(name).to_owned()));
        ActionConfirmation::of_all(partition.as_str(), action, counts, query.into(), back)
    } else {
        let jobs = fields.all("job").map(str::to_owned).collect();
        ActionConfirmation::of_selection(partition.as_str(), action, jobs, back)
    };
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/bulk`: does it, and shows the list, or what was refused.
pub async fn act(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    body: RequestBody,
) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let action = fields.action()?;
    let (outcome, left) = if concerns_all(&fields)? {
        all(&state, &partition, &fields, action).await?
    } else {
        let selected = fields.all("job").count();
        if selected > SELECTED {
            let message = format!(
                "{selected} jobs are selected, and one request acts on at most {SELECTED}. Select fewer, or choose all that match."
            );
            return Err(ApiError::bad_request(ErrorCode::InvalidParameter, message));
        }
        let mut outcome = Outcome::default();
        for job in fields.all("job") {
            outcome.act(&state, &partition, job, action).await?;
        }
        (outcome, 0)
    };
    let before: u64 = whole_number("before", Some(fields.get("before")))?.unwrap_or_default();
    let count = before.saturating_add(outcome.done);
    if outcome.refused.is_empty() && left == 0 {
        let list = url::jobs(partition.as_str());
        let next = format!("{list}{}", done(action, Some(count)));
        return Ok(Redirect::to(&next).into_response());
    }
    let after = outcome.after;
    let again = (left > 0).then(|| {
        let mut again = vec![
            ("action", action.name().to_owned()),
            ("of", "all".to_owned()),
            ("before", count.to_string()),
            ("after", after.map_or_else(String::new, |it| it.to_string())),
        ];
        again.extend(SELECTION.map(|name| (name, fields.get(name).to_owned())));
        (left, again)
    });
    let partition = partition.as_str();
    let page = BulkOutcome {
        layout: Layout::of_jobs(action.title().to_owned(), partition),
        sentence: action.done_to(count),
        refused: outcome.refused,
        more: outcome.more,
        action,
        partition,
        again,
    };
    Ok(html(StatusCode::OK, &page))
}

/// What has become of the jobs.
#[derive(Debug, Default)]
struct Outcome {
    done: u64,
    /// The jobs that were refused, with the reasons.
    refused: Vec<(String, String)>,
    /// How many further ones were refused.
    more: usize,
    /// The last job that was looked at, if those that were refused still match.
    after: Option<JobPlace>,
}

impl Outcome {
    /// Acts on one job. An error that the others would have, too, ends it all.
    async fn act(
        &mut self,
        state: &Arc<AppState>,
        partition: &PartitionId,
        job: &str,
        action: Action,
    ) -> ApiResult<()> {
        let performed = match JobId::parse(job) {
            Ok(id) => perform(state, partition, &id, action).await,
            Err(error) => Err(error.into()),
        };
        match performed {
            Ok(()) => self.done += 1,
            Err(error) if error.status().is_server_error() => return Err(error),
            Err(error) => self.refuse(job.to_owned(), error.message()),
        }
        Ok(())
    }

    fn refuse(&mut self, job: String, reason: String) {
        if self.refused.len() < REFUSALS {
            self.refused.push((job, reason));
        } else {
            self.more += 1;
        }
    }
}

/// Acts on the jobs that match and are in a status that allows the action, at most on so many as a
/// person waits for. Returns how many are left, too.
async fn all(
    state: &Arc<AppState>,
    partition: &PartitionId,
    fields: &Fields,
    action: Action,
) -> ApiResult<(Outcome, u64)> {
    let Some(query) = allowing(matching(fields)?, action) else {
        return Ok((Outcome::default(), 0));
    };
    let after = place(fields)?;
    let count = |count: usize| Outcome {
        done: count as u64,
        ..Outcome::default()
    };
    let outcome = match action {
        Action::Cancel => count(cancel_all(state, partition, &query, BATCHES).await?),
        Action::Delete => count(delete_all(state, partition, &query, BATCHES).await?),
        Action::Retry => {
            let mut cursor = after;
            let bounds = (&mut cursor, BATCHES);
            let retried = retry_all(state, partition, &query, false, bounds).await?;
            let shown = retried.refusals.len() as u64;
            let refused = retried.refusals.into_iter();
            Outcome {
                done: retried.jobs_retried,
                refused: refused.map(|job| (job.job_id, job.message)).collect(),
                more: usize::try_from(retried.jobs_refused - shown).unwrap_or(usize::MAX),
                after: cursor,
            }
        }
        Action::Pause | Action::Resume => {
            one_by_one(state, partition, &query, (after, action)).await?
        }
    };
    let behind = JobQuery {
        after: outcome.after,
        ..query
    };
    let left = state.store.count_jobs(partition, &behind).await?;
    Ok((outcome, left))
}

/// Returns the job behind which the action goes on.
fn place(fields: &Fields) -> ApiResult<Option<JobPlace>> {
    match fields.get("after") {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|problem| {
            let message = format!("The field 'after': {problem}.");
            ApiError::bad_request(ErrorCode::InvalidParameter, message)
        }),
    }
}

/// Returns the query for those of the jobs that allow the action; `None` if no job can.
fn allowing(matching: JobQuery, action: Action) -> Option<JobQuery> {
    let possible =
        |status: &JobStatus| matching.statuses.is_empty() || matching.statuses.contains(status);
    let statuses = action.possible_statuses().iter().copied().filter(possible);
    let statuses: Vec<JobStatus> = statuses.collect();
    if statuses.is_empty() {
        // Without a status the query would select jobs of every status.
        return None;
    }
    let query = JobQuery {
        statuses,
        ..matching
    };
    Some(match action {
        Action::Retry => query.that_can_go_on(),
        _ => query,
    })
}

/// Acts on the jobs one by one, oldest first, each once.
async fn one_by_one(
    state: &Arc<AppState>,
    partition: &PartitionId,
    query: &JobQuery,
    (after, action): (Option<JobPlace>, Action),
) -> ApiResult<Outcome> {
    let mut outcome = Outcome {
        after,
        ..Outcome::default()
    };
    for _ in 0..BATCHES {
        let query = JobQuery {
            limit: state.options.cancel_batch,
            after: outcome.after,
            sort: Sort {
                by: SortBy::CreateTime,
                ascending: true,
            },
            ..query.clone()
        };
        let jobs = state.store.jobs(partition, &query).await?;
        if jobs.is_empty() {
            break;
        }
        for job in jobs {
            outcome.after = Some(JobPlace::of(&job));
            outcome.act(state, partition, &job.id, action).await?;
        }
    }
    Ok(outcome)
}

/// Returns whether the form is about all jobs that match, and not about those that are selected.
fn concerns_all(fields: &Fields) -> ApiResult<bool> {
    match fields.get("of") {
        "all" => Ok(true),
        "selected" => Ok(false),
        other => Err(ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!("The field 'of' must be all or selected, but is '{other}'."),
        )),
    }
}

/// Returns the query that selects the jobs of a list.
fn matching(fields: &Fields) -> ApiResult<JobQuery> {
    let query = SELECTION.map(|name| (name, fields.get(name)));
    let uri: Uri = format!("/{}", url::query(query)).parse().map_err(|_| {
        ApiError::bad_request(ErrorCode::InvalidParameter, "The filter is too long.")
    })?;
    let Query(selector) = Query::<JobSelector>::try_from_uri(&uri)
        .map_err(|error| ApiError::bad_request(ErrorCode::InvalidParameter, error.body_text()))?;
    of_tab(selector.strict_query()?, fields.get("status"))
}
