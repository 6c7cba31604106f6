//! The dead letters: the list, one in full, and what a viewer does with them.

use std::sync::Arc;

use axum::extract::{OriginalUri, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::ErrorCode;
use page::{AskedLetters, LetterAction, LetterPage, LettersConfirmation, LettersPage, url};
use store::LetterQuery;

use super::form::Fields;
use crate::error::{ApiError, ApiResult};
use crate::html::html;
use crate::request_body::RequestBody;
use crate::routes::dead_letters::{LetterSelector, PageParams, letter_number, named_pipe};
use crate::state::AppState;

/// The number of letters on a page.
const ROWS: u32 = 100;
/// The most letters that one request acts on.
const MOST: u32 = 1000;
/// The path of the list.
const PATH: &str = "/dead-letters";

/// `GET /dead-letters`: the letters that match.
pub async fn list(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let query = query(&fields, ROWS)?;
    let letters = state.dead_letters(query).await?;
    let asked = asked(&fields);
    let page = LettersPage::new(&asked, &letters, done(&fields));
    Ok(html(StatusCode::OK, &page))
}

/// `GET /dead-letters/{id}`: one letter with its message.
pub async fn letter(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    let letter = state.dead_letter(letter_number(&id)?).await?;
    let message = letter.message.clone().unwrap_or_default();
    Ok(html(StatusCode::OK, &LetterPage::new(&letter, &message)))
}

/// `GET /dead-letters/{id}/confirm?action=…`: asks whether to do it with one letter.
pub async fn confirm_one(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let letter = state.dead_letter(letter_number(&id)?).await?;
    let page = LettersConfirmation::of_one(letter.id, action(Fields::of_url(&uri)?.get("action"))?);
    Ok(html(StatusCode::OK, &page))
}

/// `GET /dead-letters/confirm?action=…`: asks whether to do it with all that match.
pub async fn confirm(OriginalUri(uri): OriginalUri) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    query(&fields, MOST)?;
    let asked = asked(&fields);
    let page = LettersConfirmation::of_all(&asked, action(fields.get("action"))?);
    Ok(html(StatusCode::OK, &page))
}

/// `POST /dead-letters/{id}/{action}`: does it, and shows the list.
pub async fn act_on_one(
    State(state): State<Arc<AppState>>,
    Path((id, name)): Path<(String, String)>,
    body: RequestBody,
) -> ApiResult<Response> {
    let (id, fields) = (letter_number(&id)?, Fields::of_body(body).await?);
    let action = action(&name)?;
    match action {
        LetterAction::Replay => {
            let pipe = named_pipe(Some(fields.get("pipe").to_owned()))?;
            state.replay_letter(id, pipe.as_deref()).await?;
        }
        LetterAction::Delete => {
            state.store_of_request().delete_letters(&[id]).await?;
        }
    }
    Ok(Redirect::to(&told(action, 1, &AskedLetters::default())).into_response())
}

/// `POST /dead-letters`: does it with all that match, and shows the list, or what was refused.
pub async fn act(State(state): State<Arc<AppState>>, body: RequestBody) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let (action, asked) = (action(fields.get("action"))?, asked(&fields));
    let query = query(&fields, MOST)?;
    let count = match action {
        LetterAction::Replay => {
            let replayed = state.replay_matching_letters(&query).await?;
            if replayed.refused > 0 {
                let page = LettersConfirmation::refused(
                    &asked,
                    replayed.replayed,
                    replayed.refused,
                    &replayed.refusals,
                );
                return Ok(html(StatusCode::OK, &page));
            }
            replayed.replayed
        }
        LetterAction::Delete => state.delete_matching_letters(&query).await?.deleted,
    };
    Ok(Redirect::to(&told(action, count, &asked)).into_response())
}

fn asked(fields: &Fields) -> AskedLetters {
    let field = |name| fields.get(name).to_owned();
    AskedLetters {
        partition: field("partition"),
        job: field("job"),
        pipe: field("pipe"),
        cause: field("cause"),
        reason: field("reason"),
    }
}

fn query(fields: &Fields, limit: u32) -> ApiResult<LetterQuery> {
    let field = |name| Some(fields.get(name).to_owned());
    let selector = LetterSelector {
        partition: field("partition"),
        job: field("job"),
        pipe: field("pipe"),
        cause: field("cause"),
        reason: field("reason"),
        ..LetterSelector::default()
    };
    selector.query(&PageParams::of(limit, field("after")), limit)
}

fn action(name: &str) -> ApiResult<LetterAction> {
    LetterAction::from_name(name).ok_or_else(|| {
        let message = format!("There is no action '{name}' of a dead letter.");
        ApiError::NotFound(ErrorCode::UrlNotFound, message)
    })
}

/// Returns the URL of the list that says what was done.
fn told(action: LetterAction, count: u64, asked: &AskedLetters) -> String {
    let count = count.to_string();
    let done = [("done", action.name()), ("n", count.as_str())];
    format!(
        "{PATH}{}",
        url::query(asked.fields().into_iter().chain(done))
    )
}

/// Returns what was just done. It comes from the URL, so only our own sentences can be made of it.
fn done(fields: &Fields) -> Option<String> {
    let action = LetterAction::from_name(fields.get("done"))?;
    Some(action.done(fields.get("n").parse().ok()?))
}
