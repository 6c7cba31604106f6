//! The progress of a job over its items, from the row of the job alone. Pure.

use contract::rest::{Above, Items};
use contract::{JobStatus, OnFailure};

use crate::job_row::JobRow;
use crate::ledger::Counts;

/// The progress of a job, as the API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub items: Items,
    pub percent: Option<f64>,
    pub items_per_second: Option<f64>,
    pub estimated_end_time: Option<i64>,
}

impl Progress {
    /// Returns the progress of a job at this time.
    pub fn of(row: &JobRow, now: i64) -> Self {
        let items = items(row);
        let ended = row.totals.ended_items();
        let total = items.total.filter(|_| items.total_is_final);
        let (rate, until) = match (row.status, row.finish_time) {
            (_, Some(end)) => (row.pace.mean_rate(end, ended), None),
            (JobStatus::Active, None) => row.pace.rate(now).unzip(),
            _ => (None, None),
        };
        let estimated_end_time = match (total, rate, until) {
            (Some(total), Some(rate), Some(until)) => end(until, total - ended, rate),
            _ => None,
        };
        Self {
            percent: total.map(|total| percent(row.status, ended, total)),
            items,
            items_per_second: rate.map(|rate| (rate * 100.0).round() / 100.0),
            estimated_end_time,
        }
    }
}

fn items(row: &JobRow) -> Items {
    let totals = &row.totals;
    let (done, failed) = (totals.completed_items, totals.failed_tasks);
    if row.status == JobStatus::Completed {
        return Items {
            // Of a job whose every task is done, failures that it still counts are not of items.
            total: Some(if totals.on_failure.tolerance().is_some() {
                totals.ended_items()
            } else {
                done
            }),
            total_is_final: true,
            done,
            failed,
            retrying: Some(0),
            running: Some(0),
            waiting: Some(0),
        };
    }
    let Some(counts) = totals.counts else {
        let own = totals.own_task.as_ref();
        return Items {
            done,
            failed,
            retrying: own.map(|task| i64::from(task.retrying)),
            ..Items::default()
        };
    };
    // What a splitter has stated may be too little.
    let total = counts.total.max(done);
    // A job that ended early has tasks under way that nobody waits for.
    let is_over = row.status.is_finished();
    let Counts {
        retrying, running, ..
    } = if is_over { Counts::default() } else { counts };
    // Such a job fails only when every task is done or has failed; whatever was not stated is seen
    // then.
    let goes_on = match totals.on_failure {
        OnFailure::Stop => false,
        OnFailure::Continue => true,
        OnFailure::Tolerate(tolerance) => tolerance.above == Above::Continue,
    };
    let is_seen = row.status == JobStatus::Failed && goes_on;
    Items {
        total: Some(total),
        total_is_final: counts.unsettled == 0 || (is_seen && total == totals.ended_items()),
        done,
        failed,
        retrying: Some(retrying.max(0)),
        running: Some(running.max(0)),
        waiting: Some((total - done - failed - retrying - running).max(0)),
    }
}

/// Returns the part of the items that has ended, in percent with two decimals; 100 only for a job
/// of which all have.
fn percent(status: JobStatus, ended: i64, total: i64) -> f64 {
    if status == JobStatus::Completed || (ended >= total && total > 0) {
        return 100.0;
    }
    let hundredths = i128::from(ended) * 10_000 / i128::from(total.max(1));
    f64::from(i32::try_from(hundredths).unwrap_or(0)) / 100.0
}

/// Returns when the remaining items end at this rate; `None` if nothing ends.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "an estimate needs no precision"
)]
fn end(until: i64, remaining: i64, rate: f64) -> Option<i64> {
    let millis = remaining.max(0) as f64 / rate * 1000.0;
    // Longer than this is no estimate any more.
    let longest = 1e12;
    (rate > 0.0 && millis < longest).then(|| until + millis as i64)
}
