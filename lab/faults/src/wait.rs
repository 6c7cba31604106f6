//! Waiting for a condition, within a time limit.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Polls `condition` until it returns a value: once immediately, then with short, growing pauses.
///
/// # Errors
/// After `patience`, what the condition saw last.
pub async fn poll<T, E: Display>(
    patience: Duration,
    mut condition: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, String> {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_millis(2);
    let mut last = "nothing, the first look has not returned".to_owned();
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match timeout(left, condition()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = seen.to_string(),
            Err(_) => break,
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(250));
    }
    Err(last)
}
