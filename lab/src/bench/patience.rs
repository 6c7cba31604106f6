//! How long a measurement waits for a system that makes no progress, and what it says then.

use std::time::Duration;

use framework::broker::Broker;
use tokio::time::{Instant, timeout};

use super::pipes;

/// How long a system may make no progress, beside the time that one item takes.
const LIMIT: Duration = Duration::from_mins(2);
/// How long the broker may take to tell what waits in the pipes.
const LOOK_LIMIT: Duration = Duration::from_secs(20);

/// Watches how far a measurement is.
#[derive(Debug)]
pub struct Patience<T> {
    limit: Duration,
    seen: Option<T>,
    since: Instant,
}

impl<T: PartialEq> Patience<T> {
    /// Begins to watch a system whose items take this time at the most.
    pub fn new(item: Duration) -> Self {
        Self {
            limit: LIMIT + item,
            seen: None,
            since: Instant::now(),
        }
    }

    /// Notes how far the measurement is. Returns whether that has been the same for too long.
    pub fn ends(&mut self, seen: T) -> bool {
        if self.seen.as_ref() != Some(&seen) {
            (self.seen, self.since) = (Some(seen), Instant::now());
        }
        self.since.elapsed() > self.limit
    }

    /// Returns the error for `what` makes no progress, with what waits in the pipes.
    pub async fn error(&self, what: &str, broker: &dyn Broker, all: &[String]) -> anyhow::Error {
        let waiting = match timeout(LOOK_LIMIT, pipes::waiting(broker, all)).await {
            Ok(Ok(waiting)) if waiting.is_empty() => "no messages wait in its pipes".to_owned(),
            Ok(Ok(waiting)) => format!("messages wait: {}", pipes::text(&waiting)),
            Ok(Err(error)) => format!("what waits in its pipes is not known: {error}"),
            Err(_) => "what waits in its pipes is not known: the broker does not answer".to_owned(),
        };
        anyhow::anyhow!("{what} made no progress for {:.0?}; {waiting}", self.limit)
    }
}

#[cfg(test)]
mod tests {
    use framework::broker::Outgoing;
    use framework::broker::memory::Memory;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ends_when_nothing_has_changed_for_the_limit_and_the_time_of_an_item() {
        let mut patience = Patience::new(Duration::from_secs(5));
        assert!(!patience.ends(1));
        advance(LIMIT).await;
        assert!(!patience.ends(2), "an item has ended");
        advance(LIMIT + Duration::from_secs(4)).await;
        assert!(!patience.ends(2));
        advance(Duration::from_secs(2)).await;
        assert!(patience.ends(2));
        assert!(!patience.ends(3));
    }

    #[tokio::test]
    async fn error_names_the_pipes_in_which_messages_wait() {
        let broker = Memory::new();
        let patience = Patience::<u64>::new(Duration::ZERO);
        let pipes = ["a".to_owned(), "b".to_owned()];
        let error = async || patience.error("the job", &broker, &pipes).await.to_string();
        let text = "the job made no progress for 120s; ";
        assert_eq!(
            error().await,
            format!("{text}no messages wait in its pipes")
        );
        broker.publish(Outgoing::new("b", "x")).await.unwrap();
        assert_eq!(error().await, format!("{text}messages wait: 1 in 'b'"));
    }
}
