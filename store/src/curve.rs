//! The curve of a job: how many of its items had ended, at no more than 240 moments. Pure.
//!
//! The row of the job keeps when the next point is due, so that a flush between two points costs a
//! comparison. A due point is appended to a text in a table of its own. Once the text is full,
//! every other point goes and points are due half as often. The last point is never stored: the row
//! of the job has it.

use contract::rest::CurvePoint;
use serde::{Deserialize, Serialize};

/// The largest number of points of a curve.
pub const POINTS: usize = 240;
/// The shortest time between two points, in milliseconds.
const SHORTEST: i64 = 1000;

/// What the row of a job keeps of its curve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CurveState {
    /// The first point, as long as it is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Moment>,
    /// The time of the latest point, in milliseconds since 1970; 0 if there is none.
    latest: i64,
    /// The time between two points, in milliseconds.
    interval: i64,
    /// The number of points that are stored.
    stored: usize,
}

/// A point as it is stored: a time in milliseconds since 1970, and the items that were done and
/// that had failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment(pub i64, pub i64, pub i64);

impl CurveState {
    /// Takes a moment. Returns the points that are to be stored: most often none.
    pub fn take(&mut self, moment: Moment) -> Vec<Moment> {
        if self.latest == 0 {
            (self.first, self.latest, self.interval) = (Some(moment), moment.0, SHORTEST);
            return Vec::new();
        }
        if moment.0 - self.latest < self.interval {
            return Vec::new();
        }
        self.latest = moment.0;
        let points: Vec<Moment> = self.first.take().into_iter().chain([moment]).collect();
        self.stored += points.len();
        points
    }

    /// Returns whether no further point has room, beside the last one, which is not stored.
    pub const fn is_full(&self) -> bool {
        self.stored >= POINTS
    }

    /// Keeps every other point, and from now on half as many.
    pub fn thin(&mut self, points: &[Moment]) -> Vec<Moment> {
        let kept: Vec<Moment> = points.iter().step_by(2).copied().collect();
        self.stored = kept.len();
        self.interval *= 2;
        kept
    }
}

/// Returns the points of a curve: those that are stored, and the `present`, unless nothing has been
/// reported.
pub fn shown(state: CurveState, stored: Option<&str>, present: Option<Moment>) -> Vec<CurvePoint> {
    let mut moments = points_of(stored.unwrap_or_default());
    moments.extend(state.first);
    match (moments.last_mut(), present) {
        // The job has not changed since, or the clock was set back.
        (Some(latest), Some(present)) if latest.0 >= present.0 => {
            *latest = Moment(latest.0, present.1, present.2);
        }
        (_, present) => moments.extend(present),
    }
    let point = |Moment(time, done, failed): Moment| CurvePoint { time, done, failed };
    moments.into_iter().map(point).collect()
}

/// Returns points as they are stored.
pub fn text_of(points: &[Moment]) -> String {
    let text = |Moment(time, done, failed): &Moment| format!("{time},{done},{failed};");
    points.iter().map(text).collect()
}

/// Reads points that are stored. What is no point is passed over.
pub fn points_of(text: &str) -> Vec<Moment> {
    let point = |text: &str| {
        let mut numbers = text.split(',').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Moment(next()?, next()?, next()?))
    };
    text.split(';').filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes moments as a series of flushes does.
    fn stored(moments: &[Moment]) -> (CurveState, Vec<Moment>, usize) {
        let (mut state, mut text, mut writes) = (CurveState::default(), String::new(), 0);
        for moment in moments {
            let points = state.take(*moment);
            writes += usize::from(!points.is_empty());
            if state.is_full() && !points.is_empty() {
                let mut all = points_of(&text);
                all.extend(points);
                text = text_of(&state.thin(&all));
            } else {
                text.push_str(&text_of(&points));
            }
        }
        let mut points = points_of(&text);
        points.extend(state.first);
        (state, points, writes)
    }

    proptest! {
        #[test]
        fn curve_is_bounded_ordered_and_made_of_moments_that_were(
            steps in prop::collection::vec((0i64..5000, 0i64..100, 0i64..3), 1..3000),
        ) {
            let mut moment = Moment(1_767_225_600_000, 0, 0);
            let mut moments = Vec::new();
            for (time, done, failed) in steps {
                moment = Moment(moment.0 + time, moment.1 + done, moment.2 + failed);
                moments.push(moment);
            }
            let (state, points, writes) = stored(&moments);
            prop_assert!(points.len() < POINTS);
            prop_assert!(points.iter().all(|point| moments.contains(point)));
            prop_assert_eq!(points[0], moments[0]);
            prop_assert!(points.windows(2).all(|pair| pair[1].0 - pair[0].0 >= SHORTEST));
            // No more than once a second is written.
            let seconds = (moment.0 - moments[0].0) / SHORTEST;
            prop_assert!(i64::try_from(writes).unwrap() <= seconds);
            // A gap is the interval and a pause of the flushes, of five seconds here. Whenever
            // every other point goes, two gaps become one, and the interval doubles as well.
            let gap = |pair: &[Moment]| pair[1].0 - pair[0].0;
            let longest = points.windows(2).map(gap).max().unwrap_or(0);
            prop_assert!(longest <= 7 * state.interval.max(SHORTEST), "{longest}");
            let last = moment.0 - points[points.len() - 1].0;
            prop_assert!(last <= 7 * state.interval.max(SHORTEST), "{last}");
        }
    }

    #[test]
    fn long_job_keeps_at_least_a_hundred_points() {
        let moments: Vec<Moment> = (0..100_000).map(|at| Moment(1 + at * 250, at, 0)).collect();
        let (state, points, writes) = stored(&moments);
        assert!((100..POINTS).contains(&points.len()), "{}", points.len());
        assert_eq!(state.interval, 128_000);
        assert!(writes < 1200, "{writes}");
    }

    #[test]
    fn clock_that_is_set_back_adds_no_point_before_another() {
        let moments = [
            Moment(10_000, 1, 0),
            Moment(12_000, 2, 0),
            Moment(3000, 3, 0),
        ];
        let (_, points, _) = stored(&moments);
        assert_eq!(points, moments[..2]);
    }

    #[test]
    fn text_that_is_damaged_loses_only_what_is_damaged() {
        assert_eq!(
            points_of("1,2,3;x;4,5;6,7,8;"),
            [Moment(1, 2, 3), Moment(6, 7, 8)]
        );
    }
}
