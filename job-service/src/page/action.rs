//! What a viewer does with one job.

use std::sync::Arc;

use axum::extract::{OriginalUri, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::ErrorCode;
use contract::{JobId, PartitionId};
use page::{Action, ActionConfirmation, url};

use super::form::{Fields, done};
use crate::error::{ApiError, ApiResult};
use crate::extract::{JobPath, QueryParams, TaskPath};
use crate::html::html;
use crate::routes::cancel_job::cancel_job;
use crate::routes::delete_job::delete_job;
use crate::routes::get_job::get_job;
use crate::routes::pause_job::pause_job;
use crate::routes::resume_job::resume_job;
use crate::routes::retry_job::retry_job;
use crate::state::AppState;

/// `GET …/confirm?action=…`: asks whether to do it.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    JobPath(partition, job): JobPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let action = Fields::of_url(&uri)?.action()?;
    let found = get_job(State(state), JobPath(partition.clone(), job)).await?;
    let page = ActionConfirmation::of_job(partition.as_str(), &found.0.id, action);
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/{action}`: does it, and shows the job.
pub async fn act(
    State(state): State<Arc<AppState>>,
    TaskPath(partition, job, action): TaskPath,
) -> ApiResult<Response> {
    let Some(action) = Action::from_name(&action) else {
        let message = format!("There is no action '{action}'.");
        return Err(ApiError::NotFound(ErrorCode::UrlNotFound, message));
    };
    perform(&state, &partition, &job, action).await?;
    let next = if action == Action::Delete {
        let list = url::jobs(partition.as_str());
        format!("{list}{}", done(action, Some(1)))
    } else {
        let job = url::job(partition.as_str(), job.as_str());
        format!("{job}{}", done(action, None))
    };
    Ok(Redirect::to(&next).into_response())
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
        Action::Retry => {
            let uri = Uri::from_static("/");
            let Query(params) =
                Query::try_from_uri(&uri).map_err(|error| ApiError::Bug(error.body_text()))?;
            retry_job(state, path, OriginalUri(uri), QueryParams(params))
                .await
                .map(drop)
        }
    }
}
