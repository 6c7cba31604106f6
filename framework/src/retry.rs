//! Decides when a failed attempt is repeated. Pure: a policy knows neither clock nor broker.

use std::time::Duration;

/// How often, and after which delays, a failed task runs again.
///
/// Unless changed, a policy allows ten attempts within 24 hours of the first one.
///
/// ```
/// # use batchwright_framework as batchwright;
/// use std::time::Duration;
/// use batchwright::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(1)).attempts(6);
/// let delays: Vec<u128> = policy.delays().map(|delay| delay.as_millis()).collect();
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
    /// No delay; the task runs again in its slot.
    Immediate,
    Constant(Duration),
    Exponential {
        first: Duration,
        factor: f64,
        longest: Duration,
    },
    /// One delay after another. The last one repeats.
    Stepwise(Vec<Duration>),
}

impl RetryPolicy {
    /// Returns a policy without delays: the task runs again at once and keeps its slot. For failures that pass in a
    /// moment.
    pub const fn immediate() -> Self {
        Self::with(Delays::Immediate)
    }

    /// Returns a policy with the same delay after each attempt.
    pub const fn constant(delay: Duration) -> Self {
        Self::with(Delays::Constant(delay))
    }

    /// Returns a policy whose delay starts at `first` and grows by `factor` (at least 1) up to `longest`.
    pub const fn exponential(first: Duration, factor: f64, longest: Duration) -> Self {
        Self::with(Delays::Exponential {
            first,
            factor,
            longest,
        })
    }

    /// Returns a policy with these delays, one after another. The last one repeats.
    pub fn stepwise(delays: impl Into<Vec<Duration>>) -> Self {
        Self::with(Delays::Stepwise(delays.into()))
    }

    /// Returns whether tasks run again in their slots.
    pub(crate) const fn is_immediate(&self) -> bool {
        matches!(self.delays, Delays::Immediate)
    }

    /// Limits the number of attempts, the first included. At least one is always made.
    #[must_use]
    pub const fn attempts(mut self, max: u32) -> Self {
        self.max_attempts = max;
        self
    }

    /// Limits the time: no attempt begins later than this after the first one.
    #[must_use]
    pub const fn within(mut self, total: Duration) -> Self {
        self.max_total = total;
        self
    }

    /// Removes all limits.
    #[must_use]
    pub(crate) const fn forever(self) -> Self {
        self.attempts(u32::MAX).within(Duration::MAX)
    }

    /// Returns the delay before the next attempt, after `attempt` failed attempts of which the first began `elapsed`
    /// ago. Returns `None` if the policy allows no further attempt.
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

    /// Returns the delays between attempts that take no time.
    pub fn delays(&self) -> impl Iterator<Item = Duration> {
        (1..).map_while(|attempt| self.delay_after(attempt, Duration::ZERO))
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
    /// Returns the default policy: delays from one second, doubled up to five minutes; ten attempts within 24 hours.
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
    fn last_step_repeats() {
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
    fn policy_with_zero_attempts_allows_no_retry() {
        assert_eq!(
            RetryPolicy::immediate()
                .attempts(0)
                .delay_after(1, Duration::ZERO),
            None
        );
    }

    proptest! {
        #[test]
        fn exponential_delays_never_decrease_and_never_exceed_the_longest(first in 0u64..10_000, factor in 0.0f64..100.0, longest in 0u64..100_000) {
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
