//! Decides when a failed attempt is repeated. Pure: a policy knows neither clock nor broker, and
//! chance is a parameter.
//!
//! A worker has a policy of its own, and a job may bring another one ([`RETRY_HEADER`]).
//!
//! What must stay true: a policy keeps its delays and its limits, whatever its text says. A
//! policy that is written as text and read again is the same policy.

mod presets;
mod text;

use std::time::Duration;

pub use self::presets::{PRESETS, Preset};
pub use self::text::InvalidPolicy;

/// On the answer to a status check: the retry policy of the job, as text. Absent if the worker's
/// own applies.
pub const RETRY_HEADER: &str = "x-batchwright-retry";

/// The longest delay. RabbitMQ keeps no message back for longer than 49 days.
const LONGEST: Duration = Duration::from_hours(30 * 24);
/// The number of parts that jitter divides its span into. On RabbitMQ each delay has a queue of its
/// own, so there may be few.
const JITTER_STEPS: u64 = 8;
/// How many growing delays are summed up one by one. After so many, the last one counts for all
/// others.
const SUMMED: u32 = 1000;

/// How often, and after which delays, a failed task runs again.
///
/// Unless changed, a policy allows ten attempts within 24 hours of the beginning of the first one.
/// Delays are whole milliseconds, at most 30 days.
///
/// ```
/// use std::time::Duration;
/// use batchwright_contract::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(1)).attempts(6);
/// let delays: Vec<u128> = policy.delays().map(|delay| delay.as_millis()).collect();
/// assert_eq!(delays, [100, 200, 400, 800, 1000]);
///
/// let as_text = "exponential,first=100ms,factor=2,longest=1s,attempts=6,within=1d";
/// assert_eq!(policy.to_string(), as_text);
/// assert_eq!(as_text.parse(), Ok(policy));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    delays: Delays,
    /// How much shorter than stated a delay may be, in percent.
    jitter: u8,
    anchor: Anchor,
    /// `u32::MAX` if the number of attempts has no limit.
    max_attempts: u32,
    /// [`Duration::MAX`] if the time has no limit.
    max_total: Duration,
    /// Whether all delays have at most two significant digits.
    is_coarse: bool,
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
    /// One step after another; never empty.
    Stepwise(Vec<Step>),
}

/// A delay that repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    /// `u32::MAX` if it repeats for ever.
    times: u32,
    delay: Duration,
}

/// Since when a delay is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anchor {
    /// Since the attempt before has failed.
    #[default]
    Failure,
    /// Since the first attempt began: each attempt has its time, however long those before it took.
    /// One whose time has passed runs at once.
    Start,
}

impl RetryPolicy {
    /// Returns a policy that allows one attempt.
    pub const fn none() -> Self {
        Self::with(Delays::Immediate).attempts(1)
    }

    /// Returns a policy without delays: the task runs again at once and keeps its slot. For
    /// failures that pass in a moment.
    pub const fn immediate() -> Self {
        Self::with(Delays::Immediate)
    }

    /// Returns a policy with the same delay after each attempt.
    pub const fn constant(delay: Duration) -> Self {
        Self::with(Delays::Constant(possible(delay)))
    }

    /// Returns a policy whose delay starts at `first` and grows by `factor` (1 to 1000) up to
    /// `longest`.
    pub const fn exponential(first: Duration, factor: f64, longest: Duration) -> Self {
        let factor = if factor > 1000.0 {
            1000.0
        } else if factor >= 1.0 {
            factor
        } else {
            1.0
        };
        Self::with(Delays::Exponential {
            first: possible(first),
            factor,
            longest: possible(longest),
        })
    }

    /// Returns a policy with these delays, one after another. The last one repeats.
    pub fn stepwise(delays: impl Into<Vec<Duration>>) -> Self {
        let mut steps: Vec<Step> = delays
            .into()
            .into_iter()
            .map(|delay| Step {
                times: 1,
                delay: possible(delay),
            })
            .collect();
        match steps.last_mut() {
            Some(last) => last.times = u32::MAX,
            None => steps.push(Step {
                times: u32::MAX,
                delay: Duration::ZERO,
            }),
        }
        Self::with(Delays::Stepwise(steps))
    }

    /// Limits the number of attempts, the first included. At least one is always made. `u32::MAX`
    /// is no limit.
    #[must_use]
    pub const fn attempts(mut self, max: u32) -> Self {
        self.max_attempts = if max == 0 { 1 } else { max };
        self
    }

    /// Limits the time: no attempt begins later than this after the first one began.
    /// `Duration::MAX` is no limit.
    #[must_use]
    pub const fn within(mut self, total: Duration) -> Self {
        self.max_total = if total.as_secs() == Duration::MAX.as_secs() {
            Duration::MAX
        } else {
            whole(total)
        };
        self
    }

    /// Removes all limits.
    #[must_use]
    pub const fn forever(self) -> Self {
        self.attempts(u32::MAX).within(Duration::MAX)
    }

    /// Makes each delay up to this many percent shorter, by chance, so that tasks that failed
    /// together do not come back together.
    #[must_use]
    pub const fn jitter(mut self, percent: u8) -> Self {
        self.jitter = if percent > 100 { 100 } else { percent };
        self
    }

    /// Says since when delays are counted.
    #[must_use]
    pub const fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }

    /// Cuts each delay to two significant digits. Policies that come from clients do so, because on
    /// RabbitMQ each delay has a queue of its own.
    #[must_use]
    pub const fn coarse(mut self) -> Self {
        self.is_coarse = true;
        self
    }

    /// Returns whether tasks run again in their slots.
    pub const fn is_immediate(&self) -> bool {
        matches!(self.delays, Delays::Immediate)
    }

    /// Returns how long after the first attempt the last one begins at the latest; `None` if the
    /// time has no limit.
    pub const fn time_limit(&self) -> Option<Duration> {
        if self.max_total.as_secs() == Duration::MAX.as_secs() {
            None
        } else {
            Some(self.max_total)
        }
    }

    /// Returns the delay before the next attempt, after `attempt` failed attempts of which the
    /// first began `elapsed` ago. Returns `None` if the policy allows no further attempt. Without
    /// jitter.
    pub fn delay_after(&self, attempt: u32, elapsed: Duration) -> Option<Duration> {
        self.delay_by_chance(attempt, elapsed, 0)
    }

    /// Returns the delay as [`Self::delay_after`] does, with jitter. The same `chance` always gives
    /// the same delay.
    pub fn delay_by_chance(
        &self,
        attempt: u32,
        elapsed: Duration,
        chance: u64,
    ) -> Option<Duration> {
        let mut delay = self.shortened(self.exact(attempt, elapsed)?, chance);
        // The time that is left until then has any number of digits.
        if self.anchor == Anchor::Start {
            delay = two_digits(delay, true);
        }
        if self.is_coarse {
            delay = two_digits(delay, false);
        }
        (elapsed.saturating_add(delay) <= self.max_total).then_some(delay)
    }

    /// Returns the delays between attempts that take no time.
    pub fn delays(&self) -> impl Iterator<Item = Duration> {
        let mut elapsed = Duration::ZERO;
        (1..).map_while(move |attempt| {
            let delay = self.exact(attempt, elapsed)?;
            elapsed = elapsed.saturating_add(delay);
            (elapsed <= self.max_total).then_some(delay)
        })
    }

    /// Returns the delay without jitter and unrounded, whatever the limit of time.
    fn exact(&self, attempt: u32, elapsed: Duration) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        let attempt = attempt.max(1);
        let stated = self.delays.after(attempt)?;
        let delay = match self.anchor {
            Anchor::Failure => stated,
            Anchor::Start => self.delays.sum(attempt).saturating_sub(elapsed),
        };
        Some(delay.min(LONGEST))
    }

    fn shortened(&self, delay: Duration, chance: u64) -> Duration {
        if self.jitter == 0 {
            return delay;
        }
        let part = millis(delay) * u64::from(self.jitter) * (chance % JITTER_STEPS);
        delay.saturating_sub(Duration::from_millis(part / (100 * JITTER_STEPS)))
    }

    const fn with(delays: Delays) -> Self {
        Self {
            delays,
            jitter: 0,
            anchor: Anchor::Failure,
            max_attempts: 10,
            max_total: Duration::from_hours(24),
            is_coarse: false,
        }
    }
}

impl Delays {
    /// Returns the delay after this many failed attempts; `None` if the steps are at their end.
    fn after(&self, attempt: u32) -> Option<Duration> {
        match self {
            Self::Immediate => Some(Duration::ZERO),
            Self::Constant(delay) => Some(*delay),
            Self::Exponential {
                first,
                factor,
                longest,
            } => {
                let exponent = i32::try_from(attempt - 1).unwrap_or(i32::MAX);
                let seconds = first.as_secs_f64() * factor.powi(exponent);
                let delay = Duration::try_from_secs_f64(seconds).unwrap_or(*longest);
                Some(whole(delay.min(*longest)))
            }
            Self::Stepwise(steps) => {
                let mut before = 0u32;
                let step = steps.iter().find(|step| {
                    before = before.saturating_add(step.times);
                    attempt <= before
                });
                step.map(|step| step.delay)
            }
        }
    }

    /// Returns the sum of the delays after the first `attempts` failed attempts.
    fn sum(&self, attempts: u32) -> Duration {
        match self {
            Self::Immediate => Duration::ZERO,
            Self::Constant(delay) => delay.saturating_mul(attempts),
            Self::Exponential { .. } => {
                let one_by_one = attempts.min(SUMMED);
                let sum = (1..=one_by_one)
                    .filter_map(|attempt| self.after(attempt))
                    .fold(Duration::ZERO, Duration::saturating_add);
                let last = self.after(attempts).unwrap_or_default();
                sum.saturating_add(last.saturating_mul(attempts - one_by_one))
            }
            Self::Stepwise(steps) => {
                let mut left = attempts;
                let sum = steps.iter().map(|step| {
                    let times = step.times.min(left);
                    left -= times;
                    step.delay.saturating_mul(times)
                });
                sum.fold(Duration::ZERO, Duration::saturating_add)
            }
        }
    }
}

impl Default for RetryPolicy {
    /// Returns the default policy: delays from one second, doubled up to five minutes; ten attempts
    /// within 24 hours.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), 2.0, Duration::from_mins(5))
    }
}

/// Returns the delay in whole milliseconds, at most [`LONGEST`].
const fn possible(delay: Duration) -> Duration {
    if delay.as_secs() >= LONGEST.as_secs() {
        LONGEST
    } else {
        whole(delay)
    }
}

/// Cuts a duration to whole milliseconds.
const fn whole(duration: Duration) -> Duration {
    Duration::new(duration.as_secs(), duration.subsec_millis() * 1_000_000)
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

/// Rounds a delay up or down to two significant digits of its milliseconds.
fn two_digits(delay: Duration, up: bool) -> Duration {
    let millis = millis(delay.min(LONGEST));
    let mut unit = 1;
    while millis / unit >= 100 {
        unit *= 10;
    }
    let units = if up {
        millis.div_ceil(unit)
    } else {
        millis / unit
    };
    Duration::from_millis(units * unit)
}

#[cfg(test)]
mod tests;
