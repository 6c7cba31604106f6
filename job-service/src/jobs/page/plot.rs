//! The throughput of a job over time, as a drawing that the server makes.

use std::fmt::Write as _;

use contract::rest::{CurvePoint, ProgressCurve};

use crate::html::text;

/// The size of the drawing, in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 120.0;
/// The shortest time that says something about a rate, in milliseconds.
const SHORTEST: i64 = 1000;

/// Items per second over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    pub area: String,
    pub line: String,
    /// Where failures were counted, from left to right.
    pub failures: Vec<String>,
    pub highest: String,
    pub begins: i64,
    pub ends: i64,
    pub label: String,
}

impl Plot {
    /// Draws a curve; `None` if it has too few points.
    pub fn of(curve: &ProgressCurve) -> Option<Self> {
        let (first, last) = (curve.points.first()?, curve.points.last()?);
        let span = last.time - first.time;
        let steps: Vec<Step> = curve.points.windows(2).filter_map(Step::of).collect();
        if span < SHORTEST || steps.is_empty() {
            return None;
        }
        let highest = steps.iter().map(|step| step.rate).fold(0.0, f64::max);
        if highest <= 0.0 {
            return None;
        }
        let x = |time: i64| share(time - first.time, span) * WIDTH;
        let y = |rate: f64| HEIGHT - rate / highest * (HEIGHT - 2.0);
        let mut line = String::new();
        for step in &steps {
            let sign = if line.is_empty() { 'M' } else { 'L' };
            let (from, to, y) = (x(step.from), x(step.to), y(step.rate));
            let _ = write!(line, "{sign}{from:.1} {y:.1}H{to:.1}");
        }
        let failed = steps.iter().filter(|step| step.failed > 0);
        let failures = failed.map(|step| format!("{:.1}", x(step.to))).collect();
        let mean = share(last.done - first.done, span) * 1000.0;
        Some(Self {
            area: format!("{line}V{HEIGHT}H{:.1}Z", x(steps[0].from)),
            line,
            failures,
            highest: text::rate(highest),
            begins: first.time,
            ends: last.time,
            label: format!(
                "Throughput over {}: {} items/s at the most, {} on average",
                text::duration(span),
                text::rate(highest),
                text::rate(mean)
            ),
        })
    }
}

/// What happened between two points.
struct Step {
    from: i64,
    to: i64,
    /// Items per second.
    rate: f64,
    failed: i64,
}

impl Step {
    fn of(points: &[CurvePoint]) -> Option<Self> {
        let [from, to] = points else { return None };
        let time = to.time - from.time;
        // In another round the failures count anew; what is done stays.
        (time > 0).then(|| Self {
            from: from.time,
            to: to.time,
            rate: share((to.done - from.done).max(0), time) * 1000.0,
            failed: to.failed - from.failed,
        })
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "it becomes a few hundred pixels"
)]
fn share(part: i64, whole: i64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(i64, i64, i64)]) -> ProgressCurve {
        ProgressCurve {
            points: points
                .iter()
                .map(|(time, done, failed)| CurvePoint {
                    time: *time,
                    done: *done,
                    failed: *failed,
                })
                .collect(),
            total: None,
            total_is_final: false,
        }
    }

    #[test]
    fn plot_shows_the_rate_between_points_and_where_failures_were_counted() {
        let plot = Plot::of(&curve(&[(1000, 0, 0), (2000, 100, 0), (3000, 150, 2)])).unwrap();
        assert_eq!(plot.line, "M0.0 2.0H360.0L360.0 61.0H720.0");
        assert_eq!(plot.area, "M0.0 2.0H360.0L360.0 61.0H720.0V120H0.0Z");
        assert_eq!(plot.failures, ["720.0"]);
        assert_eq!(
            plot.label,
            "Throughput over 2 s: 100 items/s at the most, 75 on average"
        );
    }

    #[test]
    fn nothing_is_drawn_of_too_few_points_or_of_no_progress() {
        for points in [
            &[][..],
            &[(1000, 5, 0)],
            &[(1000, 5, 0), (1000, 7, 0)],
            &[(1000, 5, 0), (2000, 5, 1)],
            &[(2000, 5, 0), (1000, 7, 0)],
            &[(1000, 5, 0), (1002, 7, 0)],
        ] {
            assert_eq!(Plot::of(&curve(points)), None, "{points:?}");
        }
    }
}
