//! `POST /pipes/{pipe}/put`: puts task messages into a pipe.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use contract::rest::{ErrorBody, ErrorCode};
use contract::{JobId, MAX_PIPE_MESSAGES, PartitionId, PipeMessage, PutMessages, PutRequest};
use framework::pipe_message::{self, PutError};
use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::http::{ApiError, ApiResult, BadBody, PipePath, RequestBody, StoreErrors};
use crate::state::AppState;

/// How long the broker may take to confirm the messages of a request.
const BROKER_LIMIT: Duration = Duration::from_secs(30);

/// Put messages into a pipe
///
/// Each must be a task message; one without `to` is addressed to the pipe. All are checked before
/// the first is sent, and the response comes when the broker has stored all of them. If the request
/// fails after that, some may have been stored.
///
/// The status URL of a message that was taken or looked at does not show the key of its job
/// (`k=***`); the service restores it.
///
/// Only where the operator allows it, as for taking. No message may be put into, or addressed to, a
/// pipe of the system itself.
#[utoipa::path(
    post,
    path = "/pipes/{pipe}/put",
    operation_id = "putMessages",
    tag = "pipes",
    params(PipePath),
    request_body(content = PutRequest, example = json!({"messages": [{
        "envelope": {"taskId": "my-test-1", "taskClassifier": "Greet", "taskApiVersion": 1, "taskStatus": "NEW_TASK"},
        "taskData": {"card": "ann.json"}}]})),
    responses(
        (status = 200, description = "All messages are stored", body = PutMessages, example = json!({"confirmed": 1})),
        (status = 400, description = "A message is invalid, or the pipe is one of the system itself", body = ErrorBody,
            example = json!({"message": "Message 1 of 1: the envelope is not that of a task message: the field taskId is missing."})),
        (status = 403, description = "The service gives no access to pipes", body = ErrorBody,
            example = json!({"message": "This service gives no access to pipes over HTTP."})),
        BadBody, StoreErrors
    )
)]
pub async fn put_messages(
    State(state): State<Arc<AppState>>,
    PipePath(pipe): PipePath,
    body: RequestBody,
) -> ApiResult<Json<PutMessages>> {
    state.check_pipe_access()?;
    let request: PutRequest = body.parsed()?;
    let number = request.messages.len();
    if number > MAX_PIPE_MESSAGES {
        let message =
            format!("The request has {number} messages; the limit is {MAX_PIPE_MESSAGES}.");
        return Err(ApiError::bad_request(ErrorCode::InvalidRequest, message));
    }
    if let Some(reason) = state.no_space_for_jobs() {
        return Err(ApiError::NoSpace(reason));
    }
    let mut outgoing = Vec::with_capacity(number);
    for (index, mut message) in request.messages.into_iter().enumerate() {
        restore_key(&state, &mut message).await?;
        let sent = pipe_message::outgoing(&pipe, message, &state.pipes.reserved);
        outgoing.push(sent.map_err(|error| refused(&error, index + 1, number))?);
    }
    let confirms = outgoing
        .into_iter()
        .map(|message| state.broker.publish(message));
    timeout(BROKER_LIMIT, try_join_all(confirms))
        .await
        .map_err(|_| ApiError::broker_unavailable("it does not confirm the messages"))?
        .map_err(ApiError::broker_unavailable)?;
    Ok(Json(PutMessages { confirmed: number }))
}

/// Restores the key of the job of a message that was taken, because clients do not see it. A
/// message could name another service; that one does not get the key.
async fn restore_key(state: &AppState, message: &mut PipeMessage) -> ApiResult<()> {
    let Some((task, url)) = message.hidden_key() else {
        return Ok(());
    };
    let job = PartitionId::parse(&task.partition)
        .ok()
        .zip(JobId::parse(&task.job).ok());
    let own = format!(
        "{}/partitions/",
        state.options.webservice_url.trim_end_matches('/')
    );
    if let (Some((partition, job)), Some(incarnation)) = (job, url.incarnation())
        && url.starts_with(&own)
    {
        let key = state.store.life_key(&partition, &job, incarnation).await?;
        message.restore_key(key.as_ref());
    }
    Ok(())
}

fn refused(error: &PutError, place: usize, number: usize) -> ApiError {
    let code = match error {
        PutError::Invalid(_) => ErrorCode::InvalidMessage,
        PutError::Reserved(_) => ErrorCode::ReservedPipe,
    };
    ApiError::bad_request(code, format!("Message {place} of {number}: {error}."))
}
