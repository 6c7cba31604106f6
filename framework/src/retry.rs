//! When a failed attempt is made again. Pure: policies know neither clocks nor brokers.

use std::time::Duration;

/// How often, and after which delays, a task that failed is tried again.
///
/// ```
/// use std::time::Duration;
/// use framework::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(1)).attempts(6);
/// let delays: Vec<u64> = (1..6).map_while(|attempt| policy.delay_after(attempt, Duration::ZERO)).map(|d| d.as_millis() as u64).collect();
/// assert_eq!(delays, [100, 200, 400, 800, 1000]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    delays: Delays,
    max_attempts: u32,
    max_total: Duration,
}

#[derive(Debug, Clone, PartialEq)]
enum Delays {
    /// Again at once, in place.
    Immediate,
    Constant(Duration),
    Exponential {
        first: Duration,
        factor: f64,
        longest: Duration,
    },
    /// One delay after another; the last one repeats.
    Stepwise(Vec<Duration>),
}

impl RetryPolicy {
    /// Again at once, without the broker. For work that fails for reasons of the moment.
    pub const fn immediate() -> Self {
        Self::with(Delays::Immediate)
    }

    /// The same delay after each attempt.
    pub const fn constant(delay: Duration) -> Self {
        Self::with(Delays::Constant(delay))
    }

    /// A delay that grows by `factor` up to `longest`.
    pub const fn exponential(first: Duration, factor: f64, longest: Duration) -> Self {
        Self::with(Delays::Exponential {
            first,
            factor,
            longest,
        })
    }

    /// These delays, one after another; the last one repeats.
    pub fn stepwise(delays: impl Into<Vec<Duration>>) -> Self {
        Self::with(Delays::Stepwise(delays.into()))
    }

    /// Whether tasks run again in place.
    pub(crate) const fn is_immediate(&self) -> bool {
        matches!(self.delays, Delays::Immediate)
    }

    /// At most this many attempts, the first included; at least one is made.
    #[must_use]
    pub const fn attempts(mut self, max: u32) -> Self {
        self.max_attempts = max;
        self
    }

    /// No attempt later than this after the first one.
    #[must_use]
    pub const fn within(mut self, total: Duration) -> Self {
        self.max_total = total;
        self
    }

    /// The delay before the next attempt, when `attempt` attempts have failed and the first began `elapsed` ago;
    /// `None` when there is to be no other.
    pub fn delay_after(&self, attempt: u32, elapsed: Duration) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        let delay = match &self.delays {
            Delays::Immediate => Duration::ZERO,
            Delays::Constant(delay) => *delay,
            Delays::Exponential {
                first,
                factor,
                longest,
            } => {
                let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
                let seconds = first.as_secs_f64() * factor.max(1.0).powi(exponent);
                Duration::try_from_secs_f64(seconds)
                    .unwrap_or(*longest)
                    .min(*longest)
            }
            Delays::Stepwise(delays) => {
                let step = usize::try_from(attempt.saturating_sub(1))
                    .unwrap_or(usize::MAX)
                    .min(delays.len().saturating_sub(1));
                delays.get(step).copied().unwrap_or(Duration::ZERO)
            }
        };
        (elapsed.saturating_add(delay) <= self.max_total).then_some(delay)
    }

    const fn with(delays: Delays) -> Self {
        Self {
            delays,
            max_attempts: 10,
            max_total: Duration::from_hours(24),
        }
    }
}

impl Default for RetryPolicy {
    /// From one second, doubling up to five minutes, ten attempts in a day at most.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), 2.0, Duration::from_mins(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_last_step_repeats() {
        let policy = RetryPolicy::stepwise([SECOND, SECOND * 10]).attempts(5);
        let delays: Vec<_> = (1..=5)
            .map(|attempt| policy.delay_after(attempt, Duration::ZERO))
            .collect();
        assert_eq!(
            delays,
            [
                Some(SECOND),
                Some(SECOND * 10),
                Some(SECOND * 10),
                Some(SECOND * 10),
                None
            ]
        );
    }

    #[test]
    fn no_attempt_begins_after_the_total_time() {
        let policy = RetryPolicy::constant(SECOND * 5).within(SECOND * 12);
        assert_eq!(policy.delay_after(1, SECOND * 7), Some(SECOND * 5));
        assert_eq!(policy.delay_after(2, SECOND * 8), None);
    }

    #[test]
    fn at_least_one_attempt_is_made_and_no_more_when_none_are_allowed() {
        assert_eq!(
            RetryPolicy::immediate()
                .attempts(0)
                .delay_after(1, Duration::ZERO),
            None
        );
    }

    proptest! {
        #[test]
        fn exponential_delays_never_fall_and_never_exceed_the_longest(first in 0u64..10_000, factor in 0.0f64..100.0, longest in 0u64..100_000) {
            let longest = Duration::from_millis(longest);
            let policy = RetryPolicy::exponential(Duration::from_millis(first), factor, longest).attempts(u32::MAX);
            let mut before = Duration::ZERO;
            for attempt in 1..200 {
                let delay = policy.delay_after(attempt, Duration::ZERO).unwrap();
                prop_assert!(delay >= before && delay <= longest);
                before = delay;
            }
        }
    }
}
