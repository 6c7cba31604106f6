//! Messages of pipes between the form that people read and write and the form that brokers carry.

use std::collections::BTreeMap;

use contract::{PipeHeader, PipeMessage, PipeMessageError, ReservedPipe, ReservedPipes};

use crate::broker::{Delivery, HeaderValue, Headers, Outgoing};

/// Why a message is not put into a pipe.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// It is not a task message.
    #[error(transparent)]
    Invalid(#[from] PipeMessageError),
    /// It would go to a pipe of the system itself, now or when a worker diverts it.
    #[error(transparent)]
    Reserved(#[from] ReservedPipe),
}

/// Returns a delivery in the form that people read.
pub fn of_delivery(delivery: &Delivery) -> PipeMessage {
    of_parts(&delivery.headers, &delivery.body())
}

/// Returns a message with these headers and this body in the form that people read.
pub fn of_parts(headers: &Headers, body: &[u8]) -> PipeMessage {
    let header = |(name, value): (&str, &HeaderValue)| {
        let value = match value {
            HeaderValue::Text(text) => PipeHeader::Text(text.to_string()),
            HeaderValue::Integer(number) => PipeHeader::Integer(*number),
        };
        (name.to_owned(), value)
    };
    let headers: BTreeMap<_, _> = headers.iter().map(header).collect();
    PipeMessage::of_body(headers, body)
}

/// Returns a message as it is published to a pipe. A key of its job that is hidden still is left
/// out: only the job service knows it.
///
/// # Errors
/// Returns an error if the message is not a task message, or if the pipe or its address is
/// reserved.
pub fn outgoing(
    pipe: &str,
    mut message: PipeMessage,
    reserved: &ReservedPipes,
) -> Result<Outgoing, PutError> {
    let mut headers = Headers::default();
    for (name, value) in std::mem::take(&mut message.headers) {
        let value = match value {
            PipeHeader::Text(text) => HeaderValue::Text(text.into()),
            PipeHeader::Integer(number) => HeaderValue::Integer(number),
        };
        headers.set(name, value);
    }
    message.restore_key(None);
    let (task, body) = message.into_task_message(pipe)?;
    let tracking = task.tracking.as_ref();
    let tracking = tracking.and_then(|tracking| tracking.tracking_pipe.as_deref());
    for pipe in [Some(pipe), task.to.as_deref()].into_iter().flatten() {
        reserved.check(pipe, tracking)?;
    }
    Ok(Outgoing {
        headers,
        ..Outgoing::new(pipe, body)
    })
}
