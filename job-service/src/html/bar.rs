//! How far a job is, as a bar.

use contract::rest::Job;

/// How far a job is, as a bar.
#[derive(Debug)]
pub struct Bar {
    done: f64,
    failed: f64,
    /// The percentage beside it.
    pub percentage: f64,
}

impl Bar {
    /// Returns the bar of a job: by its items if their number is known, by its percentage
    /// otherwise.
    pub fn of(job: &Job) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a bar has a few hundred pixels")]
        let share = |part: i64, total: i64| 100.0 * part as f64 / total as f64;
        let (done, failed) = match job.items.total {
            Some(total) if job.items.total_is_final && total > 0 => (
                share(job.items.done, total).clamp(0.0, 100.0),
                share(job.items.failed, total),
            ),
            _ => (job.percentage_complete, 0.0),
        };
        Self {
            done,
            failed: failed.clamp(0.0, 100.0 - done),
            percentage: job.progress.unwrap_or(job.percentage_complete),
        }
    }

    /// Returns the part that is done, in percent.
    pub fn done(&self) -> String {
        format!("{:.2}", self.done)
    }

    /// Returns the part that has failed, in percent.
    pub fn failed(&self) -> String {
        format!("{:.2}", self.failed)
    }

    pub fn label(&self) -> String {
        if self.failed > 0.0 {
            format!("{:.1} % done, {:.1} % failed", self.done, self.failed)
        } else {
            format!("{:.1} % done", self.done)
        }
    }
}
