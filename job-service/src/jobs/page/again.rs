//! Runs a job again: a new job from the same request.

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::{ErrorCode, Resubmit};

use crate::html::{Layout, html, url};
use crate::http::correlation::CorrelationId;
use crate::http::form::{Fields, form_key, new_key, taken_key};
use crate::http::{ApiError, ApiResult, JobPath, RequestBody};
use crate::jobs::routes::get_job::find_job;
use crate::jobs::routes::resubmit_job::{asks_for, resubmit};
use crate::state::AppState;

/// Asks for the id of the new job.
#[derive(Debug, Template)]
#[template(path = "again.html")]
struct AgainPage<'a> {
    layout: Layout,
    job: &'a str,
    back: String,
    id: &'a str,
    key: String,
    problem: Option<String>,
}

impl<'a> AgainPage<'a> {
    fn of(partition: &str, job: &'a str) -> Self {
        Self {
            layout: Layout::of_jobs(format!("Run {job} again"), partition),
            job,
            back: url::job(partition, job),
            id: "",
            key: String::new(),
            problem: None,
        }
    }
}

/// `GET …/resubmit`: asks for the id of the new job.
pub async fn form(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
) -> ApiResult<Response> {
    let found = find_job(&state, &partition, &job).await?.job;
    let page = AgainPage {
        key: new_key(),
        ..AgainPage::of(partition.as_str(), &found.id)
    };
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/resubmit`: creates the job and shows it. What is wrong stands above the form, which
/// keeps what was entered.
pub async fn act(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    body: RequestBody,
) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let id = fields.get("id").to_owned();
    let request = Resubmit {
        job_id: Some(id.clone()).filter(|id| !id.is_empty()),
        same_id: false,
    };
    let key = form_key(&fields, asks_for(&job, &request))?;
    let origin = (correlation_id, None);
    let created = if id == job.as_str() {
        let message = "This is the id of the job itself. Enter another one, or none.";
        Err(ApiError::bad_request(ErrorCode::InvalidRequest, message))
    } else {
        resubmit(&state, &partition, &job, &request, key, origin).await
    };
    match created {
        Ok((_, new_job)) => {
            let new_job = url::job(partition.as_str(), new_job.as_str());
            Ok(Redirect::to(&new_job).into_response())
        }
        Err(error)
            if error.status().is_server_error() || error.status() == StatusCode::NOT_FOUND =>
        {
            Err(error)
        }
        Err(error) => {
            let (key, problem) = taken_key(&fields, &error);
            let page = AgainPage {
                id: &id,
                key,
                problem: Some(problem),
                ..AgainPage::of(partition.as_str(), job.as_str())
            };
            Ok(html(error.status(), &page))
        }
    }
}
