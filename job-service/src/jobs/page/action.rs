//! What a viewer does with one job.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::ErrorCode;
use contract::{InvalidJobShare, JobId, PartitionId};

use crate::html::job_action::Action;
use crate::html::{html, url};
use crate::http::form::{Fields, done, wrong};
use crate::http::{ApiError, ApiResult, JobPath, RequestBody, TaskPath, truth};
use crate::jobs::page::confirm::ActionConfirmation;
use crate::jobs::routes::adjust_job::set_share;
use crate::jobs::routes::cancel_job::cancel_job;
use crate::jobs::routes::delete_job::delete_job;
use crate::jobs::routes::get_job::find_job;
use crate::jobs::routes::pause_job::pause_job;
use crate::jobs::routes::resume_job::resume_job;
use crate::jobs::routes::retry_job::retry_one;
use crate::state::AppState;

/// `GET …/confirm?action=…`: asks whether to do it.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let action = Fields::of_url(&uri)?.action()?;
    let found = find_job(&state, &partition, &job).await?;
    let page = ActionConfirmation::of_job(partition.as_str(), &found.job.id, action);
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/{action}`: does it, and shows the job.
pub async fn act(
    State(state): State<Arc<AppState>>,
    TaskPath(partition, job, action): TaskPath,
    body: RequestBody,
) -> ApiResult<Response> {
    if action == "share" {
        return adjust(&state, &partition, &job, body).await;
    }
    let Some(action) = Action::from_name(&action) else {
        let message = format!("There is no action '{action}'.");
        return Err(ApiError::NotFound(ErrorCode::UrlNotFound, message));
    };
    let fields = Fields::of_body(body).await?;
    let path = url::job(partition.as_str(), job.as_str());
    let with_dependents = truth("dependents", Some(fields.get("dependents")))?;
    let next = if action == Action::Retry && with_dependents {
        let begun = retry_one(&state, &partition, &job, true).await?;
        let with = begun.revived.len();
        format!("{path}{}&with={with}", done(action, None))
    } else {
        perform(&state, &partition, &job, action).await?;
        if action == Action::Delete {
            let list = url::jobs(partition.as_str());
            format!("{list}{}", done(action, Some(1)))
        } else {
            format!("{path}{}", done(action, None))
        }
    };
    Ok(Redirect::to(&next).into_response())
}

/// `POST …/share`: gives the job another share, and shows it.
async fn adjust(
    state: &AppState,
    partition: &PartitionId,
    job: &JobId,
    body: RequestBody,
) -> ApiResult<Response> {
    let share = Fields::of_body(body).await?.get("share").trim().parse();
    let share = share.map_err(|error: InvalidJobShare| wrong(error.to_string()))?;
    set_share(state, partition, job, share).await?;
    Ok(Redirect::to(&url::job(partition.as_str(), job.as_str())).into_response())
}

/// `GET …/{action}`: there is no such page. The forms send `POST`.
pub async fn no_page(TaskPath(_, _, name): TaskPath) -> Response {
    if Action::from_name(&name).is_none() {
        let message = format!("There is no page '{name}' of a job.");
        return ApiError::NotFound(ErrorCode::UrlNotFound, message).into_response();
    }
    let refused = ApiError::MethodNotAllowed(format!(
        "The address of the action '{name}' does not support GET. Use the button on the page of the job."
    ));
    ([(header::ALLOW, "POST")], refused).into_response()
}

/// Does it as the API does it.
pub async fn perform(
    state: &Arc<AppState>,
    partition: &PartitionId,
    job: &JobId,
    action: Action,
) -> ApiResult<()> {
    let (state, path) = (
        State(Arc::clone(state)),
        JobPath(partition.clone(), job.clone()),
    );
    match action {
        Action::Pause => pause_job(state, path).await.map(drop),
        Action::Resume => resume_job(state, path).await.map(drop),
        Action::Cancel => cancel_job(state, path).await.map(drop),
        Action::Delete => delete_job(state, path).await.map(drop),
        Action::Retry => retry_one(&state, partition, job, false).await.map(drop),
    }
}
