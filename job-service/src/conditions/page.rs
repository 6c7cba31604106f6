//! The conditions that tasks wait for: the list, one in full, and what a viewer does with it.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{OriginalUri, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use contract::rest::{ConditionState, ErrorCode, WaitedCondition, WaitedConditions};
use store::ConditionPhase;

use crate::conditions::routes::ConditionSelector;
use crate::html::{Layout, Live, Place, filters, html, url};
use crate::http::form::Fields;
use crate::http::{ApiError, ApiResult, ConditionPath, condition_key};
use crate::state::AppState;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/conditions", get(list))
        .route("/conditions/{key}", get(condition))
        .route("/conditions/{key}/confirm", get(confirm))
        .route("/conditions/{key}/{action}", post(act))
}

/// The event stream of the pages.
const LIVE: &str = "/conditions/live";

/// The list of conditions.
#[derive(Debug, Template)]
#[template(path = "conditions.html")]
struct ConditionsPage<'a> {
    layout: Layout,
    found: &'a WaitedConditions,
}

/// One condition.
#[derive(Debug, Template)]
#[template(path = "condition.html")]
struct ConditionPage<'a> {
    layout: Layout,
    condition: &'a WaitedCondition,
}

/// Asks whether to fail the tasks of a condition.
#[derive(Debug, Template)]
#[template(path = "condition-confirm.html")]
struct FailConfirmation<'a> {
    layout: Layout,
    condition: &'a WaitedCondition,
}

/// What a viewer does with a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConditionAction {
    /// Test it now.
    Test,
    /// Send its tasks without a test.
    Release,
    /// Fail its tasks.
    Fail,
}

impl ConditionAction {
    /// Returns the action with this name in URLs.
    fn from_name(name: &str) -> Option<Self> {
        [Self::Test, Self::Release, Self::Fail]
            .into_iter()
            .find(|action| action.name() == name)
    }

    /// Returns the name in URLs.
    const fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Release => "release",
            Self::Fail => "fail",
        }
    }

    /// Returns what was just done.
    const fn done(self) -> &'static str {
        match self {
            Self::Test => "The condition is being tested.",
            Self::Release => "The tasks are being sent again.",
            Self::Fail => "The tasks are failing.",
        }
    }
}

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
    let found = state.conditions(&selector).await?;
    let done = ConditionAction::from_name(fields.get("done"));
    let page = ConditionsPage {
        layout: layout("Conditions".to_owned(), done),
        found: &found,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET /conditions/{key}`: one condition.
pub async fn condition(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let done = ConditionAction::from_name(Fields::of_url(&uri)?.get("done"));
    let condition = state.condition(&key).await?;
    let page = ConditionPage {
        layout: layout(format!("Condition {}", condition.code), done),
        condition: &condition,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET /conditions/{key}/confirm`: asks whether to fail its tasks.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    ConditionPath(key): ConditionPath,
) -> ApiResult<Response> {
    let condition = state.condition(&key).await?;
    let page = FailConfirmation {
        layout: Layout::new("Fail tasks".to_owned(), Place::Conditions),
        condition: &condition,
    };
    Ok(html(StatusCode::OK, &page))
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

/// Returns the URL of a job that is named as `partition:job`.
fn job_url(name: &str) -> String {
    let (partition, job) = name.split_once(':').unwrap_or(("", name));
    url::job(partition, job)
}

const fn words(state: ConditionState) -> &'static str {
    match state {
        ConditionState::Waiting => "waits for its next test",
        ConditionState::Canary => "a task tests it",
        ConditionState::Releasing => "has passed; its tasks are sent again",
        ConditionState::Failing => "was given up; its tasks fail",
    }
}

fn layout(title: String, done: Option<ConditionAction>) -> Layout {
    Layout {
        live: Live::Events(LIVE.to_owned()),
        done: done.map(|done| done.done().to_owned()),
        ..Layout::new(title, Place::Conditions)
    }
}
