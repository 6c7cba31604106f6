//! Real servers for tests: `PostgreSQL` and `RabbitMQ`, private to whoever asks.
//!
//! [`postgres`] and [`rabbitmq`] use `DATABASE_URL` and `AMQP_URL` when they are set. Otherwise they start the servers of
//! Debian's packages once for the whole test process: as children, in a temporary folder, on free ports of 127.0.0.1, without
//! systemd and without root. [`PostgresServer`] and [`RabbitServer`] are servers of a test's own, to be stopped in the middle
//! of things; a [`Proxy`] is a network that fails. The binary `servers` starts both for a command, so that many test processes can share them.
//!
//! What must stay true:
//! - **No server outlives the process that asked for it**, however that process ends (see `supervisor.rs`).
//! - **A server that cannot be had is an error that says what to install.** A test that needs one never passes without it.
//! - **Nothing here is shared by name:** every database is fresh, and [`unique`] names everything else.
//! - The harness knows none of the project's crates, so every one of them may use it.

mod postgres;
mod proxy;
mod rabbitmq;
mod supervisor;

use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

pub use crate::postgres::{Postgres, PostgresServer, postgres, psql};
pub use crate::proxy::Proxy;
pub use crate::rabbitmq::{Amqp, RabbitServer, rabbitmq};

/// How long [`wait_for`] and [`in_time`] wait. It is long because a test that passes never waits so long, and one that fails says why.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Looks at `condition`, first at once and then with short, growing pauses, until it returns a value.
///
/// # Panics
/// After [`PATIENCE`], saying what was waited for and what was seen last (the condition's own `Err`).
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

/// What `future` comes to.
///
/// # Panics
/// After [`PATIENCE`], saying what was waited for.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = timeout(PATIENCE, future).await;
    #[expect(clippy::panic, reason = "this is how a test fails")]
    waited.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// A name nobody else uses, in this run or any other: `prefix`, a part drawn once per process, a number.
///
/// Only `[a-z0-9-]` and at most 40 characters, so it is good for a queue, a partition, a job and a database.
pub fn unique(prefix: &str) -> String {
    static PROCESS: LazyLock<String> = LazyLock::new(|| base36(random() % 36_u64.pow(8)));
    static NEXT: AtomicU64 = AtomicU64::new(0);

    let suffix = format!(
        "{}-{}",
        *PROCESS,
        base36(NEXT.fetch_add(1, Ordering::Relaxed))
    );
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let prefix: String = prefix
        .chars()
        .map(plain)
        .take(40 - 1 - suffix.len())
        .collect();
    format!("{prefix}-{suffix}")
}

/// How many of something a test makes: few by default, and as many as the experiment demands with `BATCHWRIGHT_FULL_SIZE=1`.
pub fn sized<T>(small: T, full: T) -> T {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no `main` that could pass it"
    )]
    let is_full = std::env::var("BATCHWRIGHT_FULL_SIZE").is_ok_and(|value| value == "1");
    if is_full { full } else { small }
}

/// A TCP port of 127.0.0.1 that nobody listens on.
///
/// It lies below the range from which systems give ports to outgoing connections, so a server that was stopped finds its port
/// still free when it starts again.
///
/// # Panics
/// When thousands of ports in a row are taken.
pub fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits will do")]
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(random() as u16));

    let mut candidates = (0..COUNT).map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT);
    #[expect(
        clippy::expect_used,
        reason = "a test machine without a free port cannot go on"
    )]
    candidates
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port between 20000 and 32000")
}

/// [`wait_for`], for those who have something better to do than to panic: `Err` is what was seen last.
async fn poll<T, E: Display>(
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

/// The standard library draws the keys of its hash maps from the system, which is all the randomness a name needs.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from(
            b"0123456789abcdefghijklmnopqrstuvwxyz"
                [usize::try_from(number % 36).unwrap_or_default()],
        ));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn unique_names_differ_and_are_plain_and_short() {
        let names: HashSet<String> = (0..1000)
            .map(|_| unique("Some_Very.Long/Name that goes on and on for ever"))
            .collect();
        assert_eq!(names.len(), 1000);
        for name in names {
            assert!(
                name.len() <= 40 && name.starts_with("some-very-long-name"),
                "{name}"
            );
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{name}"
            );
        }
    }

    #[test]
    fn a_free_port_can_be_listened_on_and_is_given_once() {
        let ports: HashSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 120s for the job to end; last seen: 3 of 4 done")]
    async fn waiting_in_vain_panics_with_what_was_wanted_and_what_was_seen_last() {
        wait_for("the job to end", async || {
            Err::<(), _>("3 of 4 done".to_owned())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 120s for a message")]
    async fn what_does_not_come_in_time_is_said() {
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

    #[tokio::test]
    async fn waiting_returns_the_value_of_the_condition() {
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
