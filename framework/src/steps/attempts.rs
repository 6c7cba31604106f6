//! Counts the attempts of a task in the headers of its message.
//!
//! The count is our own. The broker's delivery count cannot serve: it is about crashed processes,
//! not about attempts.

use std::time::Duration;

use crate::RetryPolicy;
use crate::broker::{HeaderValue, Headers};

/// The header with the number of failed attempts.
const ATTEMPTS_HEADER: &str = "x-batchwright-attempts";
/// The header with the time when the first attempt began, in milliseconds since 1970.
const FIRST_ATTEMPT_HEADER: &str = "x-batchwright-first-attempt";

/// The attempts of a task so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempts {
    pub failed: u32,
    /// Milliseconds since 1970.
    pub first_began: i64,
}

impl Attempts {
    /// Reads the attempts from the headers of a message. Without headers, the first attempt begins
    /// `now`.
    pub fn of(headers: &Headers, now: i64) -> Self {
        let number = |name| match headers.get(name)? {
            HeaderValue::Integer(n) => Some(*n),
            HeaderValue::Text(text) => text.parse().ok(),
        };
        let failed = number(ATTEMPTS_HEADER)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0);
        Self {
            failed,
            // A time to come is from a clock that was set back since. The time limit then counts
            // from now.
            first_began: number(FIRST_ATTEMPT_HEADER).map_or(now, |began| began.min(now)),
        }
    }

    /// Counts one more failed attempt. Returns the delay before the next attempt and the new count;
    /// `None` if the policy allows no other attempt. `chance` decides about jitter.
    pub fn next(self, policy: &RetryPolicy, now: i64, chance: u64) -> Option<(Duration, Self)> {
        let failed = self.failed.saturating_add(1);
        let elapsed = u64::try_from(now.saturating_sub(self.first_began)).unwrap_or(0);
        let elapsed = Duration::from_millis(elapsed);
        let delay = policy.delay_by_chance(failed, elapsed, chance)?;
        Some((delay, Self { failed, ..self }))
    }

    /// Returns the headers of a message with this count.
    pub fn with_headers(self, headers: &Headers) -> Headers {
        let mut headers = headers.clone();
        headers.set(
            ATTEMPTS_HEADER,
            HeaderValue::Integer(i64::from(self.failed)),
        );
        headers.set(FIRST_ATTEMPT_HEADER, HeaderValue::Integer(self.first_began));
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_survive_the_headers_and_stop_at_the_limits_of_the_policy() {
        let policy = RetryPolicy::constant(Duration::from_secs(1))
            .attempts(3)
            .within(Duration::from_secs(10));
        let first = Attempts::of(&Headers::default(), 1_000);
        let (delay, second) = first.next(&policy, 1_500, 0).unwrap();
        assert_eq!((delay, second.failed), (Duration::from_secs(1), 1));
        let second = Attempts::of(&second.with_headers(&Headers::default()), 9_999);
        assert_eq!((second.failed, second.first_began), (1, 1_000));
        assert_eq!(second.next(&policy, 10_001, 0), None, "the time is up");
        let (_, third) = second.next(&policy, 2_000, 0).unwrap();
        assert_eq!(
            third.next(&policy, 2_000, 0),
            None,
            "three attempts are made"
        );
    }

    #[test]
    fn time_is_up_as_well_when_the_clock_was_set_back_since_the_first_attempt() {
        const DAY: i64 = 86_400_000;
        let policy = RetryPolicy::constant(Duration::from_secs(1))
            .attempts(100)
            .within(Duration::from_secs(10));
        let (_, before) = Attempts::of(&Headers::default(), DAY)
            .next(&policy, DAY, 0)
            .unwrap();
        let carried = before.with_headers(&Headers::default());
        let (_, after) = Attempts::of(&carried, 1_000)
            .next(&policy, 1_000, 0)
            .unwrap();
        let carried = after.with_headers(&Headers::default());
        assert_eq!(
            Attempts::of(&carried, 11_001).next(&policy, 11_001, 0),
            None
        );
    }

    #[test]
    fn whatever_the_headers_say_the_attempts_are_counted() {
        let most = Attempts {
            failed: u32::MAX,
            first_began: i64::MIN,
        };
        let read = Attempts::of(&most.with_headers(&Headers::default()), 0);
        assert_eq!(read, most);
        assert_eq!(read.next(&RetryPolicy::default(), i64::MAX, 0), None);
    }
}
