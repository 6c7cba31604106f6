//! Publishes messages and waits for their confirms, again and again while the broker refuses them.
//!
//! A broker that refuses a message (its pipe is full) usually accepts it later. The pipe is to
//! blame, not the task that made the message. So the message is published again, and the task does
//! not run again.

use std::sync::Arc;
use std::time::Duration;

use contract::{Bundle, input_of_bundles};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::RetryPolicy;
use crate::broker::{Broker, Confirm, Outgoing, PublishError};
use crate::steps::bundles::headers_of_member;
use crate::steps::full_pipe::FullPipe;

/// The shortest pause before a refused message is published again, even if the retry policy has
/// shorter delays.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// A published message whose confirm has not been awaited yet. It can be published again.
#[derive(Debug)]
#[must_use = "a message is safe only when its confirm has been awaited"]
pub(crate) struct PendingPublish {
    message: Outgoing,
    state: State,
    refusals: Refusals,
    /// Set while the last response is a refusal.
    full_pipe: Option<FullPipe>,
}

#[derive(Debug)]
enum State {
    Published(Confirm),
    /// The broker has responded.
    Resolved(Result<(), PublishError>),
}

/// How often the broker has refused one message, and when the message is published again.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    first: Option<Instant>,
    retry_at: Option<Instant>,
}

impl PendingPublish {
    /// Publishes a message.
    pub fn new(broker: &dyn Broker, message: Outgoing) -> Self {
        Self {
            state: State::Published(broker.publish(message.clone())),
            message,
            refusals: Refusals::default(),
            full_pipe: None,
        }
    }

    /// Waits for the confirm of this message. Publishes it again while the broker refuses it, as
    /// often as `policy` allows. Returns [`PublishError::Closed`] if `until` is cancelled
    /// meanwhile.
    ///
    /// Cancel safe: if the future is dropped, the next call continues where this one stopped.
    pub async fn confirmed(
        &mut self,
        broker: &dyn Broker,
        policy: &RetryPolicy,
        until: &CancellationToken,
    ) -> Result<(), PublishError> {
        loop {
            let refusal = match self.response().await {
                Err(refusal @ PublishError::Refused { .. }) => refusal,
                result => return result,
            };
            let Some(retry_at) = self.refusals.retry_at(&refusal, policy) else {
                return Err(refusal);
            };
            if until
                .run_until_cancelled(sleep_until(retry_at))
                .await
                .is_none()
            {
                return Err(PublishError::Closed);
            }
            self.publish_again(broker);
        }
    }

    /// Returns the pipe that the message is for.
    pub fn pipe(&self) -> &str {
        &self.message.pipe
    }

    /// Returns the size of the message's body.
    pub const fn bytes(&self) -> usize {
        self.message.body.len()
    }

    /// Publishes the members of a bundle that the broker never takes as messages of their own: it
    /// may be too large, or its pipe may not be declared, which says nothing about those. Returns
    /// them; `None` if this is no bundle, or the reason another one.
    pub fn apart(&self, broker: &dyn Broker, reason: &PublishError) -> Option<Vec<Self>> {
        let Outgoing {
            pipe,
            body,
            headers,
            ..
        } = &self.message;
        let never = reason.is_permanent() || matches!(reason, PublishError::Unroutable { .. });
        let input: Arc<str> = input_of_bundles(pipe).filter(|_| never)?.into();
        let bundle = Bundle::decode(body).ok()?;
        let members = bundle.members.iter().enumerate();
        let members = members.filter_map(|(index, member)| {
            let message = bundle.message(index, body)?;
            let label = member.label.as_deref();
            let message = Outgoing {
                headers: headers_of_member(headers, member.number, label),
                ..Outgoing::new(Arc::clone(&input), message.encode())
            };
            Some(Self::new(broker, message))
        });
        Some(members.collect())
    }

    /// Publishes the message once more, as if it never had been, if the broker has responded that
    /// it does not take it.
    pub fn anew_if_not_taken(&mut self, broker: &dyn Broker) {
        if matches!(self.state, State::Resolved(Err(_))) {
            *self = Self::new(broker, self.message.clone());
        }
    }

    /// Waits for the response to a delayed message, and publishes it without the delay if the
    /// broker does not take it: the queue of the delay may be what refuses it. Returns at once if
    /// the message is not delayed.
    pub async fn at_once_if_refused(&mut self, broker: &dyn Broker) {
        if self.message.delay.is_some() && self.response().await.is_err() {
            self.message.delay = None;
            self.publish_again(broker);
        }
    }

    /// Waits for the broker's response and remembers it. Cancel safe.
    pub async fn response(&mut self) -> Result<(), PublishError> {
        let response = match &mut self.state {
            State::Published(confirm) => confirm.await,
            State::Resolved(response) => return response.clone(),
        };
        self.state = State::Resolved(response.clone());
        let is_refused = matches!(response, Err(PublishError::Refused { .. }));
        self.full_pipe = is_refused.then(|| FullPipe::named(&self.message.pipe));
        response
    }

    fn publish_again(&mut self, broker: &dyn Broker) {
        self.refusals.retry_at = None;
        self.state = State::Published(broker.publish(self.message.clone()));
    }
}

impl Refusals {
    /// Counts a refusal and returns when the message is published again; `None` if the policy
    /// allows no more. A refusal whose pause has begun is counted already.
    fn retry_at(&mut self, refusal: &PublishError, policy: &RetryPolicy) -> Option<Instant> {
        if self.retry_at.is_none() {
            let now = Instant::now();
            self.count += 1;
            let first = *self.first.get_or_insert(now);
            let delay = delay_after(policy, self.count, now - first)?;
            warn!(reason = %refusal, ?delay, "the broker refuses an output; it is published again");
            self.retry_at = Some(now + delay);
        }
        self.retry_at
    }
}

/// Waits until every message is confirmed, and removes them. Publishes the refused ones again,
/// together, as often as `policy` allows.
///
/// Returns the last refusal when the policy allows no more, the error of a message that can never
/// be published at once, and [`PublishError::Closed`] if `until` is cancelled meanwhile. Then those
/// that are not confirmed are left.
pub(crate) async fn await_confirms(
    pending: &mut Vec<PendingPublish>,
    broker: &dyn Broker,
    policy: &RetryPolicy,
    until: &CancellationToken,
) -> Result<(), PublishError> {
    let (mut rounds, began) = (0, Instant::now());
    loop {
        let (mut refusal, mut at) = (None, 0);
        while let Some(publish) = pending.get_mut(at) {
            match publish.response().await {
                Ok(()) => drop(pending.swap_remove(at)),
                Err(refused @ PublishError::Refused { .. }) => {
                    refusal = Some(refused);
                    at += 1;
                }
                Err(error) => {
                    let mut members = publish.apart(broker, &error).ok_or(error)?;
                    drop(pending.swap_remove(at));
                    pending.append(&mut members);
                }
            }
        }
        let Some(refusal) = refusal else {
            return Ok(());
        };
        rounds += 1;
        let Some(delay) = delay_after(policy, rounds, began.elapsed()) else {
            return Err(refusal);
        };
        warn!(messages = pending.len(), reason = %refusal, ?delay, "the broker refuses outputs; they are published again");
        if until.run_until_cancelled(sleep(delay)).await.is_none() {
            return Err(PublishError::Closed);
        }
        for publish in &mut *pending {
            publish.publish_again(broker);
        }
    }
}

fn delay_after(policy: &RetryPolicy, refusals: u32, elapsed: Duration) -> Option<Duration> {
    policy
        .delay_after(refusals, elapsed)
        .map(|delay| delay.max(SHORTEST_PAUSE))
}
