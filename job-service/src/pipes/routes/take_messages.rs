//! `POST /pipes/{pipe}/take`: takes messages from a pipe, each until its client acknowledges it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use contract::rest::{ErrorBody, ErrorCode};
use contract::{MAX_PIPE_MESSAGES, PipePurpose, TakeRequest, TakenMessages};
use framework::broker::Delivery;
use framework::pipe_message::of_delivery;
use tokio::time::timeout;

use crate::http::{ApiError, ApiResult, BadBody, PipePath, RequestBody, StoreErrors};
use crate::pipes::taken_messages::Reader;
use crate::state::AppState;

/// The longest time for which a request waits for a message, in seconds.
const LONGEST_WAIT: u32 = 20;
/// The bytes of bodies after which a response takes no further message.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// How long the broker may take to give access to a pipe.
const BROKER_LIMIT: Duration = Duration::from_secs(10);

/// Take messages from a pipe
///
/// Returns messages and a receipt. The next request names the receipt to acknowledge them, and
/// takes further ones. Messages that are not acknowledged within 30 seconds go back to the pipe, so
/// nothing is lost with a client that dies. With `giveBack` they go back at once.
///
/// Only where the operator allows it (`--pipe-access`); by default where broker and service are in
/// one process and listen on a loopback address. A tracking, paused, delay or quarantine pipe needs
/// `force`.
#[utoipa::path(
    post,
    path = "/pipes/{pipe}/take",
    operation_id = "takeMessages",
    tag = "pipes",
    params(PipePath),
    request_body(content = TakeRequest, example = json!({"limit": 10, "wait": 5})),
    responses(
        (status = 200, description = "The messages that were taken, oldest first", body = TakenMessages, example = json!({
            "receipt": "7c0e0f0b-61f6-4f6b-8a39-2f5b6a2a4f0e", "messages": [{
                "envelope": {"taskId": "words.1", "taskClassifier": "WordCount", "taskApiVersion": 1, "to": "words-out"},
                "taskData": {"lines": 10, "words": {"the": 3}}}]})),
        (status = 400, description = "Invalid request, or a pipe of the system itself", body = ErrorBody,
            example = json!({"message": "The field 'limit' is 1000; the limit is 100."})),
        (status = 403, description = "The service gives no access to pipes", body = ErrorBody,
            example = json!({"message": "This service gives no access to pipes over HTTP."})),
        (status = 404, description = "The pipe does not exist, or what the receipt names has gone back to it", body = ErrorBody,
            example = json!({"message": "There is no pipe 'words-out'."})),
        BadBody, StoreErrors
    )
)]
pub async fn take_messages(
    State(state): State<Arc<AppState>>,
    PipePath(pipe): PipePath,
    body: RequestBody,
) -> ApiResult<Json<TakenMessages>> {
    state.check_pipe_access()?;
    let request: TakeRequest = body.parsed()?;
    drop(body);
    check(&state, &pipe, &request)?;
    let mut reader = match &request.receipt {
        Some(receipt) if request.give_back => {
            let is_given_back = state.pipes.taken.give_back(&pipe, receipt);
            return is_given_back
                .then(Json::default)
                .ok_or_else(unknown_receipt);
        }
        Some(receipt) => state
            .pipes
            .taken
            .acknowledge(&pipe, receipt)
            .ok_or_else(unknown_receipt)?,
        None => open(&state, &pipe, request.limit).await?,
    };
    let deliveries = take(&state, &mut reader, &request).await?;
    if deliveries.is_empty() {
        return Ok(Json(TakenMessages::default()));
    }
    let messages = deliveries.iter().map(of_delivery).collect();
    let receipt = state.pipes.taken.hold(reader, deliveries);
    Ok(Json(TakenMessages {
        receipt: Some(receipt.to_string()),
        messages,
    }))
}

fn check(state: &AppState, pipe: &str, request: &TakeRequest) -> ApiResult<()> {
    let most = u32::try_from(MAX_PIPE_MESSAGES).unwrap_or(u32::MAX);
    for (field, value, most) in [
        ("limit", request.limit, most),
        ("wait", request.wait, LONGEST_WAIT),
    ] {
        if value > most {
            let message = format!("The field '{field}' is {value}; the limit is {most}.");
            return Err(ApiError::bad_request(ErrorCode::InvalidRequest, message));
        }
    }
    // Invalid and reject pipes are made to be read by people.
    if let Err(reserved) = state.pipes.reserved.check(pipe, None)
        && !request.force
        && !matches!(reserved.purpose, PipePurpose::Invalid | PipePurpose::Reject)
    {
        let message = format!(
            "The system itself reads the pipe '{pipe}', {}. What is taken from it is lost to the system; 'force' takes it nevertheless.",
            reserved.purpose
        );
        return Err(ApiError::bad_request(ErrorCode::ReservedPipe, message));
    }
    Ok(())
}

fn unknown_receipt() -> ApiError {
    let message = "The receipt is unknown: what it names was acknowledged before, or was not acknowledged in time and has gone back to \
                   the pipe.";
    ApiError::NotFound(ErrorCode::ReceiptNotFound, message.to_owned())
}

/// Begins to read a pipe.
async fn open(state: &AppState, pipe: &str, limit: u32) -> ApiResult<Reader> {
    let permit = state
        .pipes
        .taken
        .permit()
        .ok_or(ApiError::Busy("as many readers of pipes as it may have"))?;
    let opened = timeout(BROKER_LIMIT, async {
        let exists = state.broker.exists(pipe).await?;
        let consumer = state.broker.consume(pipe, limit);
        Ok(if exists { Some(consumer.await?) } else { None })
    });
    let consumer = opened
        .await
        .map_err(|_| ApiError::broker_unavailable("it does not respond"))?
        .map_err(|error: framework::broker::BrokerError| ApiError::broker_unavailable(error))?
        .ok_or_else(|| {
            ApiError::NotFound(
                ErrorCode::PipeNotFound,
                format!("There is no pipe '{pipe}'."),
            )
        })?;
    Ok(Reader::new(pipe.to_owned(), consumer, permit))
}

/// Takes the messages that are there, or waits for the first.
async fn take(
    state: &AppState,
    reader: &mut Reader,
    request: &TakeRequest,
) -> ApiResult<Vec<Delivery>> {
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let mut deliveries = std::mem::take(&mut reader.waiting);
    if limit > deliveries.len() {
        reader.consumer.take_waiting(&mut deliveries, limit);
    }
    if limit > 0 && deliveries.is_empty() {
        // What is in the pipe needs a moment to arrive.
        let wait = Duration::from_secs(request.wait.into()).max(Duration::from_millis(200));
        let more = reader.consumer.next_many(&mut deliveries, limit);
        tokio::select! {
            _ = timeout(wait, more) => {}
            () = state.http.shutting_down.cancelled() => {}
        }
    }
    let mut bytes = 0;
    let fits = deliveries.iter().take(limit).take_while(|delivery| {
        let fits = bytes < MOST_BYTES;
        bytes += delivery.bytes();
        fits
    });
    let fits = fits.count();
    reader.waiting = deliveries.split_off(fits);
    Ok(deliveries)
}
