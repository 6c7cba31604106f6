//! The dead letters: the list, one in full, and what a viewer does with them.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{OriginalUri, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use contract::PipeHeader;
use contract::rest::{DeadLetter, DeadLetters, ErrorCode, LetterCause, RefusedReplay};
use store::LetterQuery;

use crate::html::message::Message;
use crate::html::{Layout, Place, filters, html, text, url};
use crate::http::form::Fields;
use crate::http::{ApiError, ApiResult, RequestBody};
use crate::letters::routes::{LetterSelector, PageParams, letter_number, named_pipe};
use crate::state::AppState;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/dead-letters", get(list).post(act))
        .route("/dead-letters/confirm", get(confirm))
        .route("/dead-letters/{id}", get(letter))
        .route("/dead-letters/{id}/confirm", get(confirm_one))
        .route("/dead-letters/{id}/{action}", post(act_on_one))
}

/// The number of letters on a page.
const ROWS: u32 = 100;
/// The most letters that one request acts on.
const MOST: u32 = 1000;
/// The path of the list.
const PATH: &str = "/dead-letters";

/// What a viewer does with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LetterAction {
    /// Send them again.
    Replay,
    /// Delete them.
    Delete,
}

impl LetterAction {
    /// Returns the action with this name in URLs.
    fn from_name(name: &str) -> Option<Self> {
        [Self::Replay, Self::Delete]
            .into_iter()
            .find(|action| action.name() == name)
    }

    /// Returns the name in URLs.
    const fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Delete => "delete",
        }
    }

    /// Returns the name on a button.
    const fn title(self) -> &'static str {
        match self {
            Self::Replay => "Replay",
            Self::Delete => "Delete",
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Replay => {
                "Each message is sent again, to the pipe from which it came. Jobs that have ended begin a round in which only these tasks \
                 are done again."
            }
            Self::Delete => "The messages are gone for good.",
        }
    }

    /// Returns what has been done to so many letters.
    fn done(self, count: u64) -> String {
        let were = if count == 1 { "was" } else { "were" };
        let done = match self {
            Self::Replay => "replayed",
            Self::Delete => "deleted",
        };
        format!("{} {were} {done}.", text::counted(count, "dead letter"))
    }
}

/// What a viewer has asked for, by the names of the fields.
#[derive(Debug, Clone, Copy)]
struct Asked<'a>([(&'static str, &'a str); 5]);

impl<'a> Asked<'a> {
    fn of(fields: &'a Fields) -> Self {
        let names = ["partition", "job", "pipe", "cause", "reason"];
        Self(names.map(|name| (name, fields.get(name))))
    }

    fn get(&self, name: &str) -> &'a str {
        let found = self.0.iter().find(|(field, _)| *field == name);
        found.map_or("", |(_, value)| value)
    }

    fn is_narrowed(&self) -> bool {
        self.0.iter().any(|(_, value)| !value.is_empty())
    }
}

/// The list of dead letters.
#[derive(Debug, Template)]
#[template(path = "letters.html")]
struct LettersPage<'a> {
    layout: Layout,
    asked: Asked<'a>,
    found: &'a DeadLetters,
}

/// One dead letter.
#[derive(Debug, Template)]
#[template(path = "letter.html")]
struct LetterPage<'a> {
    layout: Layout,
    letter: &'a DeadLetter,
    message: Message<'a>,
}

/// Asks whether to do something with letters, or says what was refused.
#[derive(Debug, Template)]
#[template(path = "letters-confirm.html")]
struct LettersConfirmation<'a> {
    layout: Layout,
    action: LetterAction,
    title: String,
    post: String,
    hidden: Vec<(&'static str, &'a str)>,
    back: String,
    is_question: bool,
    refusals: &'a [RefusedReplay],
    more: u64,
}

/// `GET /dead-letters`: the letters that match.
pub async fn list(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let query = query(&fields, ROWS)?;
    let found = state.dead_letters(query).await?;
    let page = LettersPage {
        layout: Layout {
            done: done(&fields),
            ..Layout::new("Dead letters".to_owned(), Place::Letters)
        },
        asked: Asked::of(&fields),
        found: &found,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET /dead-letters/{id}`: one letter with its message.
pub async fn letter(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    let letter = state.dead_letter(letter_number(&id)?).await?;
    let message = letter.message.clone().unwrap_or_default();
    let page = LetterPage {
        layout: Layout::new(format!("Dead letter {}", letter.id), Place::Letters),
        letter: &letter,
        message: Message::of(&message),
    };
    Ok(html(StatusCode::OK, &page))
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
    let asked = Asked::of(&fields);
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
            state.delete_letter(id).await?;
        }
    }
    Ok(Redirect::to(&told(action, 1, [])).into_response())
}

/// `POST /dead-letters`: does it with all that match, and shows the list, or what was refused.
pub async fn act(State(state): State<Arc<AppState>>, body: RequestBody) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let (action, asked) = (action(fields.get("action"))?, Asked::of(&fields));
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
    Ok(Redirect::to(&told(action, count, asked.0)).into_response())
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
fn told<const N: usize>(
    action: LetterAction,
    count: u64,
    asked: [(&'static str, &str); N],
) -> String {
    let count = count.to_string();
    let done = [("done", action.name()), ("n", count.as_str())];
    format!("{PATH}{}", url::query(asked.into_iter().chain(done)))
}

/// Returns what was just done. It comes from the URL, so only our own sentences can be made of it.
fn done(fields: &Fields) -> Option<String> {
    let action = LetterAction::from_name(fields.get("done"))?;
    Some(action.done(fields.get("n").parse().ok()?))
}

impl LettersPage<'_> {
    /// Returns the URL of the page that begins after a letter.
    fn older(&self, after: &str) -> String {
        let fields = self.asked.0.into_iter();
        format!("{PATH}{}", url::query(fields.chain([("after", after)])))
    }
}

impl<'a> LettersConfirmation<'a> {
    /// Asks about one letter.
    fn of_one(id: i64, action: LetterAction) -> Self {
        Self {
            post: format!("{PATH}/{id}/{}", action.name()),
            back: format!("{PATH}/{id}"),
            ..Self::question(format!("{} the dead letter {id}?", action.title()), action)
        }
    }

    /// Asks about all letters that match.
    fn of_all(asked: &Asked<'a>, action: LetterAction) -> Self {
        let which = if asked.is_narrowed() {
            "all dead letters that match"
        } else {
            "all dead letters"
        };
        Self {
            post: PATH.to_owned(),
            back: format!("{PATH}{}", url::query(asked.0)),
            hidden: asked.0.into(),
            ..Self::question(format!("{} {which}?", action.title()), action)
        }
    }

    /// Says what was refused after so many were replayed.
    fn refused(asked: &Asked<'a>, done: u64, refused: u64, refusals: &'a [RefusedReplay]) -> Self {
        Self {
            is_question: false,
            back: format!("{PATH}{}", url::query(asked.0)),
            refusals,
            more: refused - refusals.len() as u64,
            ..Self::question(LetterAction::Replay.done(done), LetterAction::Replay)
        }
    }

    fn question(title: String, action: LetterAction) -> Self {
        Self {
            layout: Layout::new(format!("{} dead letters", action.title()), Place::Letters),
            action,
            title,
            post: String::new(),
            hidden: Vec::new(),
            back: String::new(),
            is_question: true,
            refusals: &[],
            more: 0,
        }
    }
}

/// Returns the partition, the job and the task of a letter; `None` if it belongs to no job.
fn task_of(letter: &DeadLetter) -> Option<(&str, &str, &str)> {
    let (partition, job) = (letter.partition_id.as_deref()?, letter.job_id.as_deref()?);
    Some((
        partition,
        job,
        letter.task_id.as_deref().unwrap_or_default(),
    ))
}

const fn words(cause: LetterCause) -> &'static str {
    match cause {
        LetterCause::GivenUp => "given up",
        LetterCause::Poison => "poison",
        LetterCause::NotUnderstood => "not understood",
        LetterCause::Unroutable => "not deliverable",
    }
}
