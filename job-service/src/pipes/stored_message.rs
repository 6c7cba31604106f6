//! Converts messages between the broker's form and the store's form. Headers keep their names,
//! values and types.

use framework::broker::{HeaderValue, Outgoing};
use store::{Header, Headers, ParkedTask};

/// Returns a stored message in the broker's form.
pub fn to_outgoing(pipe: String, body: Vec<u8>, headers: Headers) -> Outgoing {
    let mut message = Outgoing::new(pipe, body);
    for (name, value) in headers {
        let value = match value {
            Header::Text(text) => HeaderValue::Text(text.into()),
            Header::Integer(number) => HeaderValue::Integer(number),
        };
        message.headers.set(name, value);
    }
    message
}

/// Returns a message in the form in which the store parks it.
pub fn to_stored(message: &Outgoing) -> ParkedTask {
    ParkedTask {
        pipe: message.pipe.to_string(),
        body: message.body.to_vec(),
        headers: to_headers(&message.headers),
    }
}

/// Returns headers in the form of the store.
pub fn to_headers(headers: &framework::broker::Headers) -> Headers {
    let header = |(name, value): (&str, &HeaderValue)| {
        let value = match value {
            HeaderValue::Text(text) => Header::Text(text.to_string()),
            HeaderValue::Integer(number) => Header::Integer(*number),
        };
        (name.to_owned(), value)
    };
    headers.iter().map(header).collect()
}
