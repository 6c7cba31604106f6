//! Names and ports: what keeps systems apart that run side by side.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Returns a name that no other test uses, in this run or any other: `prefix`, a random part per
/// process, a number.
///
/// The name consists of `[a-z0-9-]` and has at most 40 characters, so it is valid for a queue, a
/// partition, a job and a database.
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

/// Returns a TCP port of 127.0.0.1 on which nothing listens. Each call returns another port.
///
/// The port lies below the range that systems use for outgoing connections, so a server that was
/// stopped still finds its port free when it starts again.
///
/// # Panics
/// If none of the ports from 20000 to 32000 is free.
pub fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits will do")]
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(random() as u16));

    let mut candidates = (0..COUNT).map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT);
    #[expect(
        clippy::expect_used,
        reason = "a test machine without a free port cannot run the tests"
    )]
    candidates
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port between 20000 and 32000")
}

/// The standard library seeds the keys of its hash maps from the system; that is random enough for
/// names.
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
    fn free_port_returns_each_port_once() {
        let ports: HashSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
    }
}
