//! How fast the items of a job end: a few moments in the row of the job, which every flush of the
//! job writes anyway. Pure.
//!
//! A rate is what has been counted between two moments; nothing is measured from a moment at which
//! the number of items is not known. So a job whose first report says that a thousand items are
//! done has no rate yet.

use serde::{Deserialize, Serialize};

/// The shortest time over which a rate is measured, unless the job is younger; the longest is twice
/// that. In milliseconds.
const WINDOW: i64 = 10_000;
/// A rate is not told of a shorter time, in milliseconds.
const SHORTEST: i64 = 1000;

/// When the items of a job ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// When the first report of the job was counted, in milliseconds since 1970. `None` before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<i64>,
    /// The first moment that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<Moment>,
    /// The beginning of the window.
    older: Moment,
    /// The beginning of the next window.
    newer: Moment,
    latest: Moment,
}

/// How many items had ended at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Moment {
    time: i64,
    ended: i64,
}

impl Pace {
    /// Records how many items have ended now.
    pub fn record(&mut self, now: i64, ended: i64, is_first_report: bool) {
        let moment = Moment { time: now, ended };
        if is_first_report {
            self.start = Some(now);
        }
        if self.first.is_none() {
            self.first = Some(moment);
            self.restart(now, ended);
        }
        if now - self.newer.time >= WINDOW {
            self.older = self.newer;
            self.newer = moment;
        }
        self.latest = moment;
    }

    /// Begins to measure anew, because the job was paused.
    pub fn restart(&mut self, now: i64, ended: i64) {
        let moment = Moment { time: now, ended };
        (self.older, self.newer, self.latest) = (moment, moment, moment);
    }

    /// Returns how many items ended in a second lately, and the time up to which that was measured.
    pub fn rate(&self, now: i64) -> Option<(f64, i64)> {
        self.first?;
        // Without news for long, the time without news counts as well.
        let end = if now - self.latest.time > WINDOW {
            now
        } else {
            self.latest.time
        };
        let to = Moment {
            time: end,
            ..self.latest
        };
        Some((per_second(self.older, to)?, end))
    }

    /// Returns how many items ended in a second, from the beginning to the end of a job.
    pub fn mean_rate(&self, end: i64, ended: i64) -> Option<f64> {
        per_second(self.first?, Moment { time: end, ended })
    }
}

fn per_second(from: Moment, to: Moment) -> Option<f64> {
    let (time, ended) = (to.time - from.time, to.ended - from.ended);
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    (time >= SHORTEST).then(|| (ended.max(0) * 1000) as f64 / time as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_000_000;

    /// Records a job of which 10 items end in a second, up to this second.
    fn steady(seconds: i64) -> Pace {
        let mut pace = Pace::default();
        for second in 0..=seconds {
            pace.record(START + second * 1000, 500 + second * 10, second == 0);
        }
        pace
    }

    /// Returns the rate in whole items, and the time up to which it is measured.
    fn rate(pace: &Pace, second: i64) -> Option<(String, i64)> {
        let (rate, until) = pace.rate(START + second * 1000)?;
        Some((format!("{rate:.2}"), (until - START) / 1000))
    }

    #[test]
    fn rate_is_that_of_the_window_and_not_of_what_came_before() {
        assert_eq!(rate(&steady(0), 0), None);
        for seconds in [1, 5, 10, 15, 100] {
            let expected = Some(("10.00".to_owned(), seconds));
            assert_eq!(rate(&steady(seconds), seconds), expected);
        }
        let mut pace = steady(100);
        for second in 101..=130 {
            pace.record(START + second * 1000, 1500 + (second - 100) * 100, false);
        }
        assert_eq!(rate(&pace, 130), Some(("100.00".to_owned(), 130)));
    }

    #[test]
    fn rate_falls_while_nothing_ends() {
        let pace = steady(20);
        assert_eq!(rate(&pace, 25), Some(("10.00".to_owned(), 20)));
        assert_eq!(rate(&pace, 110), Some(("1.00".to_owned(), 110)));
    }

    #[test]
    fn finished_job_has_the_rate_of_its_whole_time() {
        let mean = steady(100).mean_rate(START + 100_000, 1500);
        assert_eq!(
            mean.map(|rate| format!("{rate:.2}")),
            Some("10.00".to_owned())
        );
        assert_eq!(steady(100).start, Some(START));
        assert_eq!(Pace::default().mean_rate(START, 7), None);
    }

    #[test]
    fn measuring_begins_anew_after_a_pause() {
        let mut pace = steady(20);
        pace.restart(START + 3_600_000, 700);
        assert_eq!(rate(&pace, 3600), None);
        pace.record(START + 3_602_000, 720, false);
        assert_eq!(rate(&pace, 3602), Some(("10.00".to_owned(), 3602)));
    }
}
