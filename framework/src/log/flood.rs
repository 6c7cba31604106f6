//! Counts equal failures instead of writing them all.
//!
//! The first line of a failure is written at once. Equal ones that follow within [`PERIOD`] are
//! held: at the end of the period, one of them is written, with the number of all that were held.
//! So nothing waits longer than a period, and a single repetition keeps its ids.
//!
//! Two failures are equal if they come from the same place in the code and have the same texts,
//! apart from numbers and from the ids of the task: `part 17 is empty` and `part 18 is empty` are
//! equal.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// How long equal failures are held.
const PERIOD: Duration = Duration::from_secs(10);
/// How often the counts that are due are looked for, while there are any.
const LOOK: Duration = Duration::from_millis(500);
/// The largest number of different failures that are counted. Further ones are written as they
/// come.
const CAPACITY: usize = 1000;
/// The fields that differ between equal failures.
const IDS: [&str; 6] = ["job", "task", "attempt", "correlation_id", "delay", "count"];

/// The failures of the last period.
#[derive(Debug)]
pub(super) struct Floods {
    failures: Mutex<Failures>,
    /// Writes a line.
    write: fn(&str),
}

#[derive(Debug, Default)]
struct Failures {
    by_key: HashMap<u64, Failure>,
    /// A thread waits for the end of the periods.
    is_watched: bool,
}

#[derive(Debug)]
struct Failure {
    began: Instant,
    /// How many were held since then.
    held: u64,
    /// The first of these.
    line: Option<HeldLine>,
}

/// A line that is written later. It becomes complete with the number of lines that it stands for.
#[derive(Debug)]
pub(super) struct HeldLine {
    pub before: String,
    pub after: &'static str,
}

impl HeldLine {
    fn with_count(self, held: u64) -> String {
        let Self { mut before, after } = self;
        let _ = write!(before, "{held}{after}");
        before
    }
}

/// What to do with a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Write it.
    Write,
    /// Give it to [`Floods::hold`]: it is the first that is held.
    Hold,
    /// Nothing: it is counted.
    Counted,
}

impl Floods {
    pub fn new(write: fn(&str)) -> Self {
        Self {
            failures: Mutex::default(),
            write,
        }
    }

    /// Returns the key of an event that is a failure; equal failures have the same.
    pub fn key(event: &Event<'_>) -> Option<u64> {
        if *event.metadata().level() > Level::WARN {
            return None;
        }
        let mut key = Key(DefaultHasher::new());
        event.metadata().callsite().hash(&mut key.0);
        event.record(&mut key);
        Some(key.0.finish())
    }

    /// Counts a failure and returns what to do with it.
    pub fn judge(&self, key: u64, now: Instant) -> Verdict {
        let mut failures = self.lock();
        let is_full = failures.by_key.len() >= CAPACITY;
        let Some(failure) = failures.by_key.get_mut(&key) else {
            if is_full {
                failures
                    .by_key
                    .retain(|_, failure| failure.held > 0 || !failure.is_over(now));
            }
            if failures.by_key.len() < CAPACITY {
                let failure = Failure {
                    began: now,
                    held: 0,
                    line: None,
                };
                failures.by_key.insert(key, failure);
            }
            return Verdict::Write;
        };
        if failure.held == 0 && failure.is_over(now) {
            failure.began = now;
            return Verdict::Write;
        }
        failure.held += 1;
        if failure.held == 1 {
            Verdict::Hold
        } else {
            Verdict::Counted
        }
    }

    /// Keeps the line that stands for all that are held.
    pub fn hold(self: &Arc<Self>, key: u64, line: HeldLine) {
        let mut failures = self.lock();
        if let Some(failure) = failures.by_key.get_mut(&key) {
            failure.line = Some(line);
        }
        if failures.is_watched {
            return;
        }
        let floods = Arc::clone(self);
        // A thread, not a task: the log works without a runtime. Without the thread, the counts are
        // written at the end.
        let watch = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                while floods.write_due() {
                    std::thread::park_timeout(LOOK);
                }
            });
        failures.is_watched = watch.is_ok();
    }

    /// Writes the counts that are due. Returns whether there will be others.
    fn write_due(&self) -> bool {
        let lines = self.take(Instant::now(), PERIOD);
        for line in &lines {
            (self.write)(line);
        }
        let mut failures = self.lock();
        failures.is_watched = failures.by_key.values().any(|failure| failure.held > 0);
        failures.is_watched
    }

    /// Writes all counts.
    pub fn flush(&self) {
        for line in self.take(Instant::now(), Duration::ZERO) {
            (self.write)(&line);
        }
    }

    /// Takes the lines of the failures whose period of this length is over; a new one begins.
    fn take(&self, now: Instant, period: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        for failure in self.lock().by_key.values_mut() {
            if now.saturating_duration_since(failure.began) >= period
                && let Some(line) = failure.line.take()
            {
                lines.push(line.with_count(std::mem::take(&mut failure.held)));
                failure.began = now;
            }
        }
        lines
    }

    fn lock(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock()
    }
}

impl Failure {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= PERIOD
    }
}

/// Hashes the texts of an event without numbers and ids.
struct Key(DefaultHasher);

impl Visit for Key {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !IDS.contains(&field.name()) {
            field.name().hash(&mut self.0);
            let _ = write!(self, "{value:?}");
        }
    }
}

impl fmt::Write for Key {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes().filter(|byte| !byte.is_ascii_digit()) {
            self.0.write_u8(byte);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floods() -> Arc<Floods> {
        Arc::new(Floods::new(|_| {}))
    }

    fn line(text: &str) -> HeldLine {
        HeldLine {
            before: format!("{text} repeated="),
            after: "\n",
        }
    }

    #[test]
    fn first_failure_is_written_and_the_others_become_one_line_a_period() {
        let (floods, began) = (floods(), Instant::now());
        assert_eq!(floods.judge(1, began), Verdict::Write);
        assert_eq!(floods.judge(1, began), Verdict::Hold);
        floods.hold(1, line("the second"));
        for _ in 0..9_999 {
            assert_eq!(floods.judge(1, began), Verdict::Counted);
        }
        assert_eq!(floods.judge(2, began), Verdict::Write);
        assert_eq!(floods.take(began, PERIOD), [""; 0]);
        let later = began + PERIOD;
        assert_eq!(floods.take(later, PERIOD), ["the second repeated=10000\n"]);
        // It goes on: the next ones are held, too.
        assert_eq!(floods.judge(1, later), Verdict::Hold);
        floods.hold(1, line("another"));
        assert_eq!(floods.take(later, Duration::ZERO), ["another repeated=1\n"]);
    }

    #[test]
    fn failure_that_comes_again_after_a_quiet_period_is_written() {
        let (floods, began) = (floods(), Instant::now());
        assert_eq!(floods.judge(1, began), Verdict::Write);
        assert_eq!(floods.judge(1, began + PERIOD), Verdict::Write);
        assert_eq!(floods.judge(1, began + PERIOD), Verdict::Hold);
    }

    #[test]
    fn memory_is_bounded_and_no_failure_is_lost_for_it() {
        let (floods, began) = (floods(), Instant::now());
        for key in 0..10 * CAPACITY as u64 {
            assert_eq!(floods.judge(key, began), Verdict::Write);
        }
        assert_eq!(floods.lock().by_key.len(), CAPACITY);
        assert_eq!(floods.judge(u64::MAX, began + PERIOD), Verdict::Write);
        assert_eq!(floods.lock().by_key.len(), 1);
    }
}
