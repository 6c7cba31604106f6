//! The conditions that tasks wait for: the list, one in full, and what a viewer does with it.

use std::sync::Arc;

use axum::extract::{OriginalUri, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::ErrorCode;
use page::{ConditionAction, ConditionPage, ConditionsPage, FailConfirmation};
use store::ConditionPhase;

use super::form::Fields;
use crate::error::{ApiError, ApiResult};
use crate::extract::{ConditionPath, condition_key};
use crate::html::html;
use crate::routes::conditions::ConditionSelector;
use crate::state::AppState;

/// `GET /conditions`: the conditions.
pub async fn list(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let selector = ConditionSelector {
        after: Some(fields.get("after").to_owned()),
        ..ConditionSelector::default()
    };
    let conditions = state.conditions(&selector).await?;
    let done = ConditionAction::from_name(fields.get("done"));
    Ok(html(
        StatusCode::OK,
        &ConditionsPage::new(&conditions, done),
    ))
}

/// `GET /conditions/{key}`: one condition.
pub async fn condition(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let done = ConditionAction::from_name(Fields::of_url(&uri)?.get("done"));
    let condition = state.condition(&key).await?;
    Ok(html(StatusCode::OK, &ConditionPage::new(&condition, done)))
}

/// `GET /conditions/{key}/confirm`: asks whether to fail its tasks.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
) -> ApiResult<Response> {
    let condition = state.condition(&key).await?;
    Ok(html(StatusCode::OK, &FailConfirmation::new(&condition)))
}

/// `POST /conditions/{key}/{action}`: does it, and shows the condition.
pub async fn act(
    State(state): State<Arc<AppState>>,
    Path((key, name)): Path<(String, String)>,
) -> ApiResult<Response> {
    let key = condition_key(&key)?;
    let action = ConditionAction::from_name(&name).ok_or_else(|| {
        let message = format!("There is no action '{name}' of a condition.");
        ApiError::NotFound(ErrorCode::UrlNotFound, message)
    })?;
    let phase = match action {
        ConditionAction::Test => ConditionPhase::Testing,
        ConditionAction::Release => ConditionPhase::Releasing,
        ConditionAction::Fail => ConditionPhase::Failing,
    };
    state.command(&key, phase).await?;
    let shown = match action {
        // It is forgotten as soon as its tasks have failed.
        ConditionAction::Fail => format!("/conditions?done={}", action.name()),
        _ => format!("/conditions/{key}?done={}", action.name()),
    };
    Ok(Redirect::to(&shown).into_response())
}
