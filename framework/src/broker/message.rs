//! A message on its way to the broker: body, headers, and the confirm that says it is safe.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use smol_str::SmolStr;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::PublishError;
use crate::meters::{Outcome, Publishing};

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The name of the pipe that receives the message.
    pub pipe: Arc<str>,
    /// The payload; for the framework's own messages, a task message as UTF-8 JSON.
    pub body: Bytes,
    /// Headers, sent as they are.
    pub headers: Headers,
    /// The message becomes visible in the pipe only after this time. Delays are cut to whole
    /// milliseconds.
    pub delay: Option<Duration>,
}

impl Outgoing {
    /// Returns a message without headers and without a delay.
    pub fn new(pipe: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        Self {
            pipe: pipe.into(),
            body: body.into(),
            headers: Headers::default(),
            delay: None,
        }
    }
}

/// Resolves to `Ok` once the broker has stored a published message for good, or to the reason why
/// it has not.
///
/// Dropping a `Confirm` does not withdraw the message.
#[derive(Debug)]
#[must_use = "a message is safe only when its confirm has been awaited"]
pub struct Confirm(oneshot::Receiver<Result<(), PublishError>>);

/// Resolves the [`Confirm`] that was made with it. If it is dropped, the confirm resolves to
/// [`PublishError::Closed`].
#[derive(Debug)]
pub struct Confirmer {
    sender: oneshot::Sender<Result<(), PublishError>>,
    /// When the message was published, if it counts as one.
    published: Option<Instant>,
}

impl Confirm {
    /// Returns an unresolved confirm and the means to resolve it, and counts a published message.
    /// For implementations of [`Broker`](super::Broker).
    pub fn pair() -> (Confirmer, Self) {
        Self::new_pair(Some(Publishing::meters().published()))
    }

    /// Returns a pair like [`pair`](Self::pair) for an announcement, which is not counted.
    pub(super) fn announcement() -> (Confirmer, Self) {
        Self::new_pair(None)
    }

    fn new_pair(published: Option<Instant>) -> (Confirmer, Self) {
        let (sender, receiver) = oneshot::channel();
        (Confirmer { sender, published }, Self(receiver))
    }

    /// Returns a confirm that is already resolved, of a message that no broker was asked to take.
    /// For implementations of [`Broker`](super::Broker).
    pub fn ready(result: Result<(), PublishError>) -> Self {
        let (confirmer, confirm) = Self::announcement();
        confirmer.resolve(result);
        confirm
    }
}

impl Confirmer {
    /// Resolves the confirm. Does nothing if the publisher has dropped it.
    pub fn resolve(self, result: Result<(), PublishError>) {
        if let Some(published) = self.published {
            Publishing::meters().responded(published, outcome(&result));
        }
        drop(self.sender.send(result));
    }
}

const fn outcome(result: &Result<(), PublishError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Confirmed,
        Err(PublishError::Refused { .. }) => Outcome::Refused,
        Err(PublishError::Unroutable { .. }) => Outcome::Unroutable,
        Err(PublishError::Impossible { .. }) => Outcome::Impossible,
        Err(PublishError::Unacceptable { .. }) => Outcome::Unacceptable,
        Err(PublishError::Closed) => Outcome::Closed,
    }
}

impl Future for Confirm {
    type Output = Result<(), PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|result| result.unwrap_or(Err(PublishError::Closed)))
    }
}

/// The headers of a message, in the order in which they were set. Names are case-sensitive and
/// unique.
///
/// Stored as a list, because a message has only a few. Clones share it until one of them changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Option<Arc<Vec<Header>>>);

/// The name of a header, and its value.
type Header = (SmolStr, HeaderValue);

/// The value of a header. A broker drops received headers that have any other type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    /// Text in UTF-8.
    Text(SmolStr),
    /// A signed integer.
    Integer(i64),
}

impl Headers {
    fn list(&self) -> &[Header] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Returns the value of a header.
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.list()
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }

    /// Sets a header. Replaces an earlier value.
    pub fn set(&mut self, name: impl Into<SmolStr>, value: HeaderValue) {
        let name = name.into();
        self.remove(&name);
        Arc::make_mut(self.0.get_or_insert_default()).push((name, value));
    }

    /// Removes a header, if it is set.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_none() {
            return;
        }
        if let Some(list) = &mut self.0 {
            Arc::make_mut(list).retain(|(n, _)| n != name);
        }
        if self.list().is_empty() {
            self.0 = None;
        }
    }

    /// Returns all headers with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HeaderValue)> {
        self.list()
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// Returns whether no header is set.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }
}
