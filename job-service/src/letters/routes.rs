//! `/deadLetters`: lists, shows, replays and deletes dead letters.
//!
//! What must stay true: a parameter that is misspelt is an error, because ignoring it would select
//! every letter.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use contract::MAX_PIPE_BYTES;
use contract::rest::{
    AccessRole, DeadLetter, DeadLetters, DeletedLetters, ErrorBody, ErrorCode, LetterCause,
    LetterNumbers, RefusedReplay, ReplayedLetter, ReplayedLetters,
};
use framework::clock::Clock;
use metrics::counter;
use serde::Deserialize;
use store::{LetterCounts, LetterQuery, NotReplayed, Replay};
use utoipa::IntoParams;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::{
    ApiError, ApiResult, InvalidParameter, NoLetter, QueryParams, StoreErrors, Unknown, only_known,
    page_limit, reject_nul, whole_number,
};
use crate::letters::{message_again, shown};
use crate::rights::Subject;
use crate::state::AppState;

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(list_dead_letters, delete_dead_letters))
        .routes(routes!(get_dead_letter, delete_dead_letter))
        .routes(routes!(replay_dead_letter))
        .routes(routes!(replay_dead_letters))
}

/// The number of letters on a page if the request sets no limit.
const PAGE: u32 = 100;
/// The most letters that one request replays or deletes.
const MOST: u32 = 1000;
/// The number of refusals that a response names.
const REFUSALS: usize = 100;
/// The names of the parameters that select letters.
const SELECTION: [&str; 7] = [
    "partition",
    "job",
    "pipe",
    "cause",
    "reason",
    "since",
    "until",
];

/// The parameters that select dead letters. Each that is absent or empty selects all.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LetterSelector {
    /// The partition of their jobs.
    #[param(example = "acme")]
    pub partition: Option<String>,
    /// The id of their job.
    #[param(example = "reindex-7")]
    pub job: Option<String>,
    /// The pipe in which they were found, or from which they came.
    #[param(example = "words-in")]
    pub pipe: Option<String>,
    /// Why they are dead: `givenUp`, `poison`, `notUnderstood` or `unroutable`.
    #[param(value_type = Option<LetterCause>)]
    pub cause: Option<String>,
    /// A text that their reason contains, with the same case.
    #[param(example = "no such file")]
    pub reason: Option<String>,
    /// The time from which on they were kept, in milliseconds since 1970.
    #[param(value_type = Option<i64>, example = 1_767_225_605_123_i64)]
    pub since: Option<String>,
    /// The time before which they were kept, in milliseconds since 1970.
    #[param(value_type = Option<i64>)]
    pub until: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageParams {
    /// The maximum number of letters: absent, 0 or negative means 100; a list has as many as the
    /// service allows (10000 by default), and one request replays or deletes at most 1000.
    #[param(value_type = Option<i64>, example = 100)]
    limit: Option<String>,
    /// The `next` of the page, or of the response, before this one.
    #[param(value_type = Option<String>, example = "4711")]
    after: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ReplayParams {
    /// The pipe to which the message goes, instead of the one from which it came.
    #[param(example = "words-in")]
    pipe: Option<String>,
}

impl PageParams {
    /// Returns the parameters of a page of so many letters.
    pub fn of(limit: u32, after: Option<String>) -> Self {
        Self {
            limit: Some(limit.to_string()),
            after,
        }
    }
}

impl LetterSelector {
    /// Returns the query for these letters.
    ///
    /// # Errors
    /// Returns 400 if a parameter has an impossible value.
    pub fn query(&self, page: &PageParams, most: u32) -> ApiResult<LetterQuery> {
        let text = |name: &str, value: &Option<String>| {
            reject_nul(name, value.as_deref())?;
            Ok::<_, ApiError>(value.clone().filter(|value| !value.is_empty()))
        };
        let cause = text("cause", &self.cause)?;
        let cause = cause
            .map(|name| {
                LetterCause::from_name(&name).ok_or_else(|| {
                    let names = LetterCause::ALL.map(LetterCause::name).join(", ");
                    invalid(format!(
                        "The parameter 'cause' must be one of {names}, but is '{name}'."
                    ))
                })
            })
            .transpose()?;
        Ok(LetterQuery {
            partition: text("partition", &self.partition)?,
            job: text("job", &self.job)?,
            pipe: text("pipe", &self.pipe)?,
            cause,
            reason: text("reason", &self.reason)?,
            since: whole_number("since", self.since.as_deref())?,
            until: whole_number("until", self.until.as_deref())?,
            before: whole_number("after", page.after.as_deref())?,
            limit: page_limit(page.limit.as_deref(), PAGE, most)?,
        })
    }
}

/// List dead letters
///
/// Returns a page of the messages that were given up, rejected as poison, not understood or not
/// deliverable, the latest first, without their content. The service keeps those of the reject and
/// invalid pipes that the operator names, within bounds: those above the bound of their job are in
/// overflow pipes, and while there are as many as there may be, further ones wait in their pipes.
#[utoipa::path(
    get,
    path = "/deadLetters",
    operation_id = "listDeadLetters",
    tag = "dead letters",
    params(LetterSelector, PageParams),
    responses(
        (status = 200, description = "The letters", body = DeadLetters, example = json!({
            "deadLetters": [{
                "id": 4711, "time": 1_767_225_605_123_i64, "cause": "poison", "reason": "word-count could not process the item.",
                "pipe": "word-count-reject", "origin": "words-in", "worker": "word-count", "attempts": 3, "partitionId": "acme",
                "jobId": "reindex-7", "taskId": "3.17", "label": "scans/2016/17.tif", "bytes": 612
            }],
            "next": "4711", "numbers": {"kept": 12, "bytes": 9000, "overflowed": 0, "expired": 0, "full": false}
        })),
        InvalidParameter, StoreErrors
    )
)]
pub async fn list_dead_letters(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<LetterSelector>,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<Json<DeadLetters>> {
    only_known(&uri, &[&SELECTION[..], &["limit", "after"]].concat())?;
    let query = selector.query(&page, state.options.limits.page)?;
    Ok(Json(state.dead_letters(query).await?))
}

/// Get a dead letter
///
/// Returns the letter with its message: headers, envelope and task data, or the body in base64 if
/// it is no task message.
#[utoipa::path(
    get,
    path = "/deadLetters/{id}",
    operation_id = "getDeadLetter",
    tag = "dead letters",
    params(("id" = i64, Path, description = "The number of the letter", example = 4711)),
    responses(
        (status = 200, description = "The letter", body = DeadLetter, example = json!({
            "id": 4711, "time": 1_767_225_605_123_i64, "cause": "givenUp", "reason": "no such file (given up after 10 attempts)",
            "pipe": "word-count-reject", "origin": "words-in", "worker": "word-count", "attempts": 10, "partitionId": "acme",
            "jobId": "reindex-7", "taskId": "3.17", "bytes": 612, "message": {
                "headers": {"x-batchwright-cause": "givenUp"},
                "envelope": {"taskId": "c2b7f8b5", "taskClassifier": "CountWords", "taskStatus": "RESULT_EXCEPTION"},
                "taskData": {"path": "scans/2016/17.tif"}
            }
        })),
        NoLetter, StoreErrors
    )
)]
pub async fn get_dead_letter(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<DeadLetter>> {
    Unknown::of_query(&uri, &[])?.into_notes()?;
    Ok(Json(state.dead_letter(letter_number(&id)?).await?))
}

/// Replay a dead letter
///
/// Sends the message again, to the pipe from which it came; the letter is gone then. A task of a
/// job that runs counts as usual, and the job waits for it. A task of a job that has ended begins a
/// round of it, in which only this task is done again. The message is sent even if the service or
/// the broker fails now, and more than once only if the service is killed meanwhile.
///
/// `/deadLetters/{id}:replay` is the same operation.
#[utoipa::path(
    post,
    path = "/deadLetters/{id}/replay",
    operation_id = "replayDeadLetter",
    tag = "dead letters",
    params(("id" = i64, Path, description = "The number of the letter", example = 4711), ReplayParams),
    responses(
        (status = 200, description = "The message is sent", body = ReplayedLetter,
            example = json!({"id": 4711, "pipe": "words-in", "round": 2})),
        (status = 409, description = "The letter cannot be replayed: its job was deleted, other tasks of the job have not ended, what was known of the tasks is deleted, or the message is not whole", body = ErrorBody,
            example = json!({"message": "The dead letter 4711 cannot be replayed: its job was deleted and created again. Delete the letter."})),
        NoLetter, StoreErrors
    )
)]
pub async fn replay_dead_letter(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
    QueryParams(ReplayParams { pipe }): QueryParams<ReplayParams>,
) -> ApiResult<Json<ReplayedLetter>> {
    Unknown::of_query(&uri, &["pipe"])?.into_notes()?;
    let (id, pipe) = (letter_number(&id)?, named_pipe(pipe)?);
    Ok(Json(state.replay_letter(id, pipe.as_deref()).await?))
}

/// Replay dead letters
///
/// Sends the messages of all letters that match again, the latest first, up to the limit. What that
/// means for a letter is described at the replay of one. Those of one job begin at most one round
/// together. Letters that cannot be replayed stay, and the response says why. If `more` is true,
/// send the request again with `after` set to `next`.
#[utoipa::path(
    post,
    path = "/deadLetters:replay",
    operation_id = "replayDeadLetters",
    tag = "dead letters",
    params(LetterSelector, PageParams),
    responses(
        (status = 200, description = "The numbers of letters that were replayed and refused", body = ReplayedLetters,
            example = json!({"replayed": 99, "refused": 1, "more": true, "next": "4612", "refusals": [{
                "id": 4711, "code": "RETRY_INSTEAD", "message": "The dead letter 4711 cannot be replayed: …"}]})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn replay_dead_letters(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<LetterSelector>,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<Json<ReplayedLetters>> {
    only_known(&uri, &[&SELECTION[..], &["limit", "after"]].concat())?;
    let query = selector.query(&page, MOST)?;
    Ok(Json(state.replay_matching_letters(&query).await?))
}

/// Delete a dead letter
///
/// Deletes the letter and its message for good.
#[utoipa::path(
    delete,
    path = "/deadLetters/{id}",
    operation_id = "deleteDeadLetter",
    tag = "dead letters",
    params(("id" = i64, Path, description = "The number of the letter", example = 4711)),
    responses(
        (status = 200, description = "The letter is deleted", body = DeletedLetters, example = json!({"deleted": 1, "more": false})),
        NoLetter, StoreErrors
    )
)]
pub async fn delete_dead_letter(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Json<DeletedLetters>> {
    Unknown::of_query(&uri, &[])?.into_notes()?;
    state.delete_letter(letter_number(&id)?).await?;
    Ok(Json(DeletedLetters {
        deleted: 1,
        more: false,
    }))
}

/// Delete dead letters
///
/// Deletes all letters that match, the latest first, up to the limit; without a filter, all. If
/// `more` is true, send the request again.
#[utoipa::path(
    delete,
    path = "/deadLetters",
    operation_id = "deleteDeadLetters",
    tag = "dead letters",
    params(LetterSelector, PageParams),
    responses(
        (status = 200, description = "The number of deleted letters", body = DeletedLetters,
            example = json!({"deleted": 100, "more": true})),
        InvalidParameter, StoreErrors
    )
)]
pub async fn delete_dead_letters(
    State(state): State<Arc<AppState>>,
    OriginalUri(uri): OriginalUri,
    QueryParams(selector): QueryParams<LetterSelector>,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<Json<DeletedLetters>> {
    only_known(&uri, &[&SELECTION[..], &["limit", "after"]].concat())?;
    let query = selector.query(&page, MOST)?;
    Ok(Json(state.delete_matching_letters(&query).await?))
}

impl AppState {
    /// Returns a page of dead letters.
    pub async fn dead_letters(&self, query: LetterQuery) -> ApiResult<DeadLetters> {
        Subject::current().needs_in_named(AccessRole::View, query.partition.as_deref())?;
        let (letters, has_more) = self.store.page_of_letters(&query).await?;
        let next = letters.last().filter(|_| has_more);
        Ok(DeadLetters {
            next: next.map(|letter| letter.id.to_string()),
            dead_letters: letters
                .into_iter()
                .map(|letter| shown(letter, false))
                .collect(),
            // They are those of all partitions.
            numbers: if Subject::current().has_everywhere(AccessRole::View) {
                numbers(self.store.count_letters().await?)
            } else {
                LetterNumbers::default()
            },
        })
    }

    /// Returns a dead letter with its message.
    pub async fn dead_letter(&self, id: i64) -> ApiResult<DeadLetter> {
        self.check_letter(AccessRole::View, id).await?;
        let letter = self.store.letter(id).await?;
        letter
            .map(|letter| shown(letter, true))
            .ok_or_else(|| not_found(id))
    }

    /// Deletes a dead letter.
    pub async fn delete_letter(&self, id: i64) -> ApiResult<()> {
        self.check_letter(AccessRole::Operate, id).await?;
        if self.store_of_request().delete_letters(&[id]).await? == 0 {
            return Err(not_found(id));
        }
        tracing::info!(id, "deleted a dead letter");
        Ok(())
    }

    /// Requires a role for a dead letter: in the partition of its job or, if it is of none, in all.
    async fn check_letter(&self, role: AccessRole, id: i64) -> ApiResult<()> {
        let subject = Subject::current();
        if subject.has_everywhere(role) {
            return Ok(());
        }
        let letter = self.store.letter(id).await?.ok_or_else(|| not_found(id))?;
        let partition = letter
            .content
            .task
            .as_ref()
            .map(|task| task.partition.as_str());
        // What somebody may not see is not there.
        subject
            .needs_in_named(AccessRole::View, partition)
            .map_err(|_| not_found(id))?;
        subject.needs_in_named(role, partition)
    }

    /// Replays a dead letter, to the pipe from which it came or to this one.
    pub async fn replay_letter(&self, id: i64, pipe: Option<&str>) -> ApiResult<ReplayedLetter> {
        self.check_letter(AccessRole::Operate, id).await?;
        let replayed = self.replay(&[id], pipe).await?;
        match replayed.into_iter().next() {
            Some((id, Replay::Sent { pipe, job, .. })) => Ok(ReplayedLetter {
                id,
                pipe,
                round: job.map(|job| job.round),
            }),
            Some((id, Replay::Not(reason))) => Err(refusal(id, reason)),
            None => Err(not_found(id)),
        }
    }

    /// Replays the dead letters that match, up to the limit of the query.
    pub async fn replay_matching_letters(&self, query: &LetterQuery) -> ApiResult<ReplayedLetters> {
        Subject::current().needs_in_named(AccessRole::Operate, query.partition.as_deref())?;
        let page = self.dead_letters(query.clone()).await?;
        let mut jobs: BTreeMap<Option<(String, String)>, Vec<i64>> = BTreeMap::new();
        for letter in &page.dead_letters {
            let job = letter.partition_id.clone().zip(letter.job_id.clone());
            jobs.entry(job).or_default().push(letter.id);
        }
        let mut result = ReplayedLetters {
            more: page.next.is_some(),
            next: page.next,
            ..ReplayedLetters::default()
        };
        for mut ids in jobs.into_values() {
            ids.sort_unstable();
            // At once, because fast tasks end the round before the next ones are sent.
            for (id, replay) in self.replay(&ids, None).await? {
                match replay {
                    Replay::Sent { .. } => result.replayed += 1,
                    // Somebody else was faster.
                    Replay::Not(NotReplayed::NotFound) => {}
                    Replay::Not(reason) => {
                        result.refused += 1;
                        if result.refusals.len() < REFUSALS {
                            let error = refusal(id, reason);
                            result.refusals.push(RefusedReplay {
                                id,
                                code: error.code(),
                                message: error.message(),
                            });
                        }
                    }
                }
            }
        }
        tracing::info!(
            replayed = result.replayed,
            refused = result.refused,
            "replayed dead letters"
        );
        Ok(result)
    }

    /// Deletes the dead letters that match, up to the limit of the query.
    pub async fn delete_matching_letters(&self, query: &LetterQuery) -> ApiResult<DeletedLetters> {
        Subject::current().needs_in_named(AccessRole::Operate, query.partition.as_deref())?;
        let store = self.store_of_request();
        let mut deleted = 0;
        while deleted < u64::from(query.limit) {
            let left = u64::from(query.limit) - deleted;
            let query = LetterQuery {
                limit: u32::try_from(left).unwrap_or(u32::MAX),
                ..query.clone()
            };
            match store.delete_matching_letters(&query).await? {
                0 => break,
                some => deleted += some,
            }
        }
        let rest = LetterQuery {
            limit: 1,
            ..query.clone()
        };
        let more = !self.store.letters(&rest).await?.is_empty();
        tracing::info!(deleted, "deleted dead letters");
        Ok(DeletedLetters { deleted, more })
    }

    /// Replays letters of one job, or of none.
    async fn replay(&self, ids: &[i64], pipe: Option<&str>) -> ApiResult<Vec<(i64, Replay)>> {
        if let Some(reason) = self.no_space_for_jobs() {
            return Err(ApiError::NoSpace(reason));
        }
        self.note_tracking_shards().await?;
        let now = Clock::system().now_millis();
        let with = (&*self.options, &self.pipes.reserved);
        let make = |letter: &_, job: Option<&_>| message_again(letter, job, (pipe, now), with);
        let replayed = self.store_of_request().replay_letters(ids, make).await?;
        for (id, replay) in &replayed {
            if let Replay::Sent { pipe, job } = replay {
                counter!(contract::metrics::LETTERS_REPLAYED).increment(1);
                let round = job.as_ref().map(|job| job.round);
                tracing::info!(id, pipe, round, "replayed a dead letter");
            }
        }
        Ok(replayed)
    }
}

fn numbers(counts: LetterCounts) -> LetterNumbers {
    LetterNumbers {
        kept: counts.letters,
        bytes: counts.bytes,
        overflowed: counts.overflowed,
        expired: counts.expired,
        full: counts.full,
    }
}

/// Returns the error of a letter that is not replayed.
fn refusal(id: i64, reason: NotReplayed) -> ApiError {
    let cannot = |code, reason: &str| {
        let message = format!("The dead letter {id} cannot be replayed: {reason}.");
        ApiError::Conflict(code, message)
    };
    match reason {
        NotReplayed::NotFound => not_found(id),
        NotReplayed::Cut => cannot(
            ErrorCode::DeadLetterNotReplayable,
            "only the beginning of its body is kept, because it is too large (--max-dead-letter-bytes). Retry its job, or delete the \
             letter",
        ),
        NotReplayed::Impossible(reason) => cannot(ErrorCode::DeadLetterNotReplayable, &reason),
        NotReplayed::JobGone => cannot(
            ErrorCode::PastIncarnation,
            "its job was deleted. Delete the letter",
        ),
        NotReplayed::PastIncarnation => cannot(
            ErrorCode::PastIncarnation,
            "its job was deleted and created again. Delete the letter",
        ),
        NotReplayed::Done => cannot(
            ErrorCode::WrongJobStatus,
            "its task is done. Delete the letter",
        ),
        NotReplayed::WrongStatus(status) => cannot(
            ErrorCode::WrongJobStatus,
            &format!("its job has a status of {status}"),
        ),
        NotReplayed::Forgotten => cannot(
            ErrorCode::TasksNotKept,
            "its job ended long ago, and what was known about the tasks is deleted (--keep-failed-tasks, --max-failed-tables). Resubmit \
             the job, which does all of it again",
        ),
        NotReplayed::RetryInstead(reason) => cannot(
            ErrorCode::RetryInstead,
            &format!(
                "its job has ended, and {reason}. Retry the job, which does all of it that is not done"
            ),
        ),
    }
}

fn not_found(id: i64) -> ApiError {
    let message = format!("There is no dead letter {id}.");
    ApiError::NotFound(ErrorCode::DeadLetterNotFound, message)
}

/// Parses the number of a letter.
pub fn letter_number(text: &str) -> ApiResult<i64> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(50).collect();
        let message = format!("'{shown}' is not the number of a dead letter.");
        ApiError::bad_request(ErrorCode::InvalidId, message)
    })
}

/// Returns the pipe that a request names, if it names one.
pub fn named_pipe(pipe: Option<String>) -> ApiResult<Option<String>> {
    let Some(pipe) = pipe.filter(|pipe| !pipe.is_empty()) else {
        return Ok(None);
    };
    if pipe.len() > MAX_PIPE_BYTES || pipe.contains(char::is_control) {
        return Err(invalid(format!(
            "The parameter 'pipe' is no name of a pipe: it has control characters, or more than {MAX_PIPE_BYTES} bytes."
        )));
    }
    Ok(Some(pipe))
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidParameter, message)
}
