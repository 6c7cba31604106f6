//! The pipes, and the workers that take messages from them.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use contract::{MAX_PIPE_MESSAGES, Pipe, PipeHeader, PipeMessage, Pipes, Worker};

use crate::html::message::Message;
use crate::html::{Layout, Live, Place, filters, html, url};
use crate::http::form::Fields;
use crate::http::{ApiError, ApiResult, PipePath, whole_number};
use crate::state::AppState;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/pipes", get(pipes))
        .route("/pipes/{pipe}", get(pipe))
        .route("/workers", get(workers))
}

/// The number of messages that a pipe shows unasked.
const MESSAGES: usize = 10;

/// How often these pages are read again, in seconds.
const EVERY: u32 = 3;

/// The list of pipes.
#[derive(Debug, Template)]
#[template(path = "pipes.html")]
struct PipesPage<'a> {
    layout: Layout,
    found: &'a Pipes,
    api: &'a str,
}

/// One pipe, with the workers that take messages from it and its first messages.
#[derive(Debug, Template)]
#[template(path = "pipe.html")]
struct PipePage<'a> {
    layout: Layout,
    pipe: &'a Pipe,
    workers: Vec<&'a Worker>,
    /// Why the first messages are not shown.
    problem: Option<String>,
    /// The number of messages to ask for instead.
    more: Option<usize>,
}

/// The list of workers.
#[derive(Debug, Template)]
#[template(path = "workers.html")]
struct WorkersPage<'a> {
    layout: Layout,
    workers: Vec<&'a Worker>,
    more: u64,
}

/// `GET /pipes`: what waits where.
pub async fn pipes(State(state): State<Arc<AppState>>) -> ApiResult<Response> {
    let page = PipesPage {
        layout: layout("Pipes".to_owned(), Place::Pipes),
        found: &state.pipes().await?,
        api: &state.options.webservice_url,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET /pipes/{pipe}?peek=…`: one pipe. Its first messages are shown where the operator and the
/// broker allow it.
pub async fn pipe(
    State(state): State<Arc<AppState>>,
    PipePath(name): PipePath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let asked: Option<usize> = whole_number("peek", Some(fields.get("peek")))?;
    let number = asked.unwrap_or(MESSAGES).clamp(1, MAX_PIPE_MESSAGES);
    let (pipe, problem) = match state.pipe(&name, Some(number)).await {
        Ok(pipe) => (pipe, None),
        Err(error @ (ApiError::PipesNotServed | ApiError::Conflict(..))) => {
            (state.pipe(&name, None).await?, Some(error.message()))
        }
        Err(error) => return Err(error),
    };
    let workers = state.pipes.workers.list().workers;
    let its = workers
        .iter()
        .filter(|worker| worker.input.as_ref() == Some(&name));
    let shown = pipe.peeked.as_ref().map_or(0, Vec::len);
    let is_cut = shown == number && number < MAX_PIPE_MESSAGES && pipe.messages > shown as u64;
    let page = PipePage {
        layout: layout(pipe.name.clone(), Place::Pipes),
        pipe: &pipe,
        workers: its.collect(),
        problem,
        more: is_cut.then_some(MAX_PIPE_MESSAGES),
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET /workers`: the workers of all processes.
pub async fn workers(State(state): State<Arc<AppState>>) -> Response {
    let found = state.pipes.workers.list();
    let page = WorkersPage {
        layout: layout("Workers".to_owned(), Place::Workers),
        workers: found.workers.iter().collect(),
        more: found.more,
    };
    html(StatusCode::OK, &page)
}

fn layout(title: String, place: Place) -> Layout {
    Layout {
        live: Live::Every(EVERY),
        ..Layout::new(title, place)
    }
}

impl PipePage<'_> {
    fn peeked(&self) -> &[PipeMessage] {
        self.pipe.peeked.as_deref().unwrap_or_default()
    }
}

impl WorkersPage<'_> {
    /// Returns whether there are workers beside those of job services for their own work.
    fn has_others(&self) -> bool {
        let is_other =
            |it: &&Worker| it.name != "job-service" && !it.name.starts_with("job-service-");
        self.workers.iter().any(is_other)
    }
}

/// Returns how many slots are in use, and which part of them that is, in percent.
fn slots(worker: &Worker) -> Option<(String, String)> {
    let (all, used) = (worker.slots?, worker.slots_in_use?);
    let share = 100.0 * f64::from(used) / f64::from(all.max(1));
    Some((
        format!("{used} of {all}"),
        format!("{:.1}", share.min(100.0)),
    ))
}

/// Returns what a person should know of a pipe beside its numbers.
fn remark(pipe: &Pipe) -> Option<&'static str> {
    if !pipe.exists {
        return Some("It comes into being when it is used first.");
    }
    let nobody = pipe.consumers == Some(0);
    (nobody && pipe.items > 0).then_some("Nobody takes messages from it.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_with_items_that_nobody_takes_is_remarked() {
        let pipe = |exists, items, consumers| Pipe {
            exists,
            items,
            consumers,
            ..Pipe::default()
        };
        let nobody = "Nobody takes messages from it.";
        for (pipe, expected) in [
            (pipe(true, 3, Some(0)), Some(nobody)),
            (pipe(true, 0, Some(0)), None),
            (pipe(true, 3, Some(1)), None),
            (pipe(true, 3, None), None),
            (
                pipe(false, 0, None),
                Some("It comes into being when it is used first."),
            ),
        ] {
            assert_eq!(remark(&pipe), expected, "{pipe:?}");
        }
    }
}
