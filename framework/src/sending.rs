//! Publishing that outlasts a refusal.
//!
//! A broker that refuses a message (its pipe is full) most often takes it later. What refused it was the pipe, not the task that
//! made it: so the message is published again, and the task is not run again.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::RetryPolicy;
use crate::broker::{Broker, Confirm, Outgoing, PublishError};

/// The shortest pause before a message that was refused is published again, whatever the policy says of tasks.
const PAUSE: Duration = Duration::from_millis(100);

/// A message that is published and not yet confirmed. It can be published again.
#[derive(Debug)]
#[must_use = "a message is safe only when its confirm has been awaited"]
pub struct Sent {
    message: Outgoing,
    confirm: Confirm,
}

impl Sent {
    pub(crate) fn new(broker: &dyn Broker, message: Outgoing) -> Self {
        Self {
            confirm: broker.publish(message.clone()),
            message,
        }
    }
}

/// Waits until all of these are confirmed. What is refused is published again, after the delays and as often as the policy says;
/// what is refused then, or cannot be taken at all, is the answer. Gives up when `until` trips.
pub(crate) async fn all_confirmed(
    sent: Vec<Sent>,
    broker: &dyn Broker,
    policy: &RetryPolicy,
    until: &CancellationToken,
) -> Result<(), PublishError> {
    let (mut waiting, mut times, began) = (sent, 0, Instant::now());
    loop {
        let (mut refused, mut refusal) = (Vec::new(), None);
        for Sent { message, confirm } in waiting {
            match confirm.await {
                Ok(()) => {}
                Err(error @ PublishError::Refused { .. }) => {
                    refused.push(message);
                    refusal = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(refusal) = refusal else {
            return Ok(());
        };
        times += 1;
        let Some(delay) = policy
            .delay_after(times, began.elapsed())
            .map(|delay| delay.max(PAUSE))
        else {
            return Err(refusal);
        };
        warn!(messages = refused.len(), reason = %refusal, ?delay, "outputs are refused; they are published again");
        if until.run_until_cancelled(sleep(delay)).await.is_none() {
            return Err(PublishError::Closed);
        }
        waiting = refused
            .into_iter()
            .map(|message| Sent::new(broker, message))
            .collect();
    }
}
