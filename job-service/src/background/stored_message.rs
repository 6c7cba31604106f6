//! Converts messages between the broker's form and the store's form. Headers keep their names, values and types.

use framework::broker::{HeaderValue, Outgoing};
use store::{Header, Headers, ParkedTask};

/// Returns a stored message in the broker's form.
pub fn to_outgoing(pipe: String, body: Vec<u8>, headers: Headers) -> Outgoing {
    let mut message = Outgoing::new(pipe, body);
    for (name, value) in headers {
        let value = match value {
            Header::Text(text) => HeaderValue::Text(text),
            Header::Integer(number) => HeaderValue::Integer(number),
        };
        message.headers.set(name, value);
    }
    message
}

/// Returns a message in the form in which the store parks it.
pub fn to_stored(message: &Outgoing) -> ParkedTask {
    let headers = message.headers.iter().map(|(name, value)| {
        let value = match value {
            HeaderValue::Text(text) => Header::Text(text.clone()),
            HeaderValue::Integer(number) => Header::Integer(*number),
        };
        (name.to_owned(), value)
    });
    ParkedTask {
        pipe: message.pipe.to_string(),
        body: message.body.to_vec(),
        headers: headers.collect(),
    }
}
