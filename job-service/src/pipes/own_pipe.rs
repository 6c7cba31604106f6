//! Consumes a pipe of the service itself, and stores what comes from it.

use std::sync::Arc;
use std::time::Duration;

use framework::broker::Broker;
use framework::handler::BatchHandler;
use framework::{Runtime, Settings};
use store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::wakeup::backoff;

/// The first and the longest delay between attempts to reach the store.
const DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Consumes the input of these settings until `shutdown` is cancelled. If the pipe cannot be
/// consumed, begins again later, and the service is not ready meanwhile: `part` says what does not
/// work then.
pub async fn consume<H: BatchHandler + Clone>(
    handler: &H,
    settings: &Settings,
    part: &'static str,
    broker: &Arc<dyn Broker>,
    shutdown: &CancellationToken,
) {
    let (pipe, health) = (&settings.input, &settings.health);
    let mut failures = 0;
    loop {
        let runtime = Runtime::new(settings.clone(), Arc::clone(broker)).handler(handler.clone());
        let ended = runtime.run_until(shutdown.clone()).await;
        if shutdown.is_cancelled() || health.given_up_now().is_some() {
            return;
        }
        let reason = ended.map_or_else(
            |error| error.to_string(),
            |()| "the broker is closed".to_owned(),
        );
        if failures == 0 {
            tracing::error!(
                reason,
                pipe,
                "the consumer of a pipe of the service has stopped; trying again"
            );
        }
        let _outage = health.outage(part, reason);
        let pause = tokio::time::sleep(backoff(failures));
        shutdown.run_until_cancelled(pause).await;
        failures += 1;
    }
}

/// Stores what has come from a pipe. Retries without limit while the store is unavailable; returns
/// every other error.
pub async fn store_when_possible<T, F: Future<Output = Result<T, StoreError>>>(
    pipe: &str,
    store: impl Fn() -> F,
) -> Result<T, String> {
    let mut delay = DELAYS.0;
    loop {
        match store().await {
            Ok(outcome) => return Ok(outcome),
            Err(error @ StoreError::Unavailable(_)) => {
                tracing::warn!(
                    %error,
                    code = error.code().as_str(),
                    ?delay,
                    pipe,
                    "cannot store the tasks that come from a pipe of the service; trying again"
                );
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(DELAYS.1);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Returns whether a message can be sent to a pipe of this name.
pub fn is_pipe(name: &str) -> bool {
    !name.is_empty() && name.len() <= contract::MAX_PIPE_BYTES && !name.contains('\0')
}
