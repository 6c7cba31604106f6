//! Bounded waits.
//!
//! Tests never sleep for a fixed time: that is too long on one machine and too short on another.
//! They look until they see what they wait for, or fail with what they saw last.

use std::sync::mpsc;
use std::time::Duration;

use faults::poll;
use tokio::time::timeout;

/// The time after which [`wait_for`] and [`in_time`] give up. It is long because only a failing
/// test waits that long.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Polls `condition` until it returns a value: once immediately, then with short, growing pauses.
///
/// # Panics
/// After [`PATIENCE`]. The message names `what` and the last `Err` of the condition.
pub async fn wait_for<T, F>(what: &str, condition: F) -> T
where
    F: AsyncFnMut() -> Result<T, String>,
{
    match poll(PATIENCE, condition).await {
        Ok(value) => value,
        #[expect(clippy::panic, reason = "this is how a test fails")]
        Err(last) => panic!("waited {PATIENCE:?} for {what}; last seen: {last}"),
    }
}

/// Returns the output of `future`.
///
/// # Panics
/// After [`PATIENCE`]. The message names `what`.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = timeout(PATIENCE, future).await;
    #[expect(clippy::panic, reason = "this is how a test fails")]
    waited.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// Runs `work` on a thread of its own and returns its result, within `limit` of real time.
///
/// A test under a paused clock needs this: its timeouts elapse in simulated time, so a loop that
/// never yields, or never lets the clock advance, would hang it.
///
/// # Panics
/// After `limit`, naming `what`; the thread is left behind. Also if `work` panics.
pub fn block_on_in_time<T: Send + 'static>(
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // The receiver is dropped only after the limit; the result is not needed then.
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        #[expect(clippy::panic, reason = "this is how a test fails")]
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("waited {limit:?} for {what}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread sends its result before it ends"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 120s for the job to end; last seen: 3 of 4 done")]
    async fn wait_for_names_the_goal_and_what_it_saw_last() {
        wait_for("the job to end", async || {
            Err::<(), _>("3 of 4 done".to_owned())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 120s for a message")]
    async fn in_time_names_the_goal() {
        in_time("a message", std::future::pending::<()>()).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "last seen: nothing, the first look has not returned")]
    async fn a_condition_that_hangs_does_not_hang_the_test() {
        wait_for("a word", async || {
            std::future::pending::<Result<(), String>>().await
        })
        .await;
    }

    #[test]
    #[should_panic(expected = "waited 10ms for a busy loop")]
    fn a_thread_that_hangs_does_not_hang_the_test() {
        block_on_in_time("a busy loop", Duration::from_millis(10), || {
            std::thread::park_timeout(Duration::from_secs(5));
        });
    }

    #[test]
    #[should_panic(expected = "its own reason")]
    fn the_panic_of_a_thread_is_passed_on() {
        block_on_in_time("a panic", PATIENCE, || panic!("its own reason"));
    }

    #[tokio::test]
    async fn wait_for_returns_the_value_of_the_condition() {
        let mut looks = 0;
        let seen = wait_for("the third look", async || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err(format!("look {looks}"))
            }
        });
        assert_eq!(seen.await, 3);
    }
}
