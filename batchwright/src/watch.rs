//! Follows a job until it finishes, and shows its progress: as a bar on a terminal, as lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::print::remark;
use batchwright::client::{Client, ClientError};
use contract::JobStatus;
use contract::rest::Job;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The pause before the client reconnects to an event stream that broke off.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// How the progress of a job is shown on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// As a bar on a terminal; otherwise as one line for each change.
    Progress,
    Nothing,
}

/// Follows a job until it finishes and returns its final state. Calls `seen` with each state on the way.
pub async fn follow(
    client: &Client,
    job: &str,
    show: Show,
    mut seen: impl FnMut(&Job),
) -> Result<Job, ClientError> {
    let mut display = Display::new(show);
    loop {
        let mut watch = client.watch(job).await?;
        while let Some(state) = watch.next().await {
            seen(&state);
            display.update(&state);
            if state.status.is_finished() {
                display.end();
                return Ok(state);
            }
        }
        // The service stopped or the job was deleted; the next request returns the matching error.
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Returns the exit code for the status of a job: 10 for Failed, 11 for Cancelled, otherwise 0.
pub const fn exit_code(status: JobStatus) -> u8 {
    match status {
        JobStatus::Failed => 10,
        JobStatus::Cancelled => 11,
        _ => 0,
    }
}

/// Returns one line with the status and progress of a job.
pub fn line(job: &Job) -> String {
    let Job {
        id,
        status,
        percentage_complete,
        completed_items,
        failed_tasks,
        ..
    } = job;
    let failed = if *failed_tasks > 0 {
        format!(", {failed_tasks} failed")
    } else {
        String::new()
    };
    format!("{id}: {status}, {percentage_complete:.2} %, {completed_items} items{failed}")
}

enum Display {
    Bar { bar: ProgressBar, began: Instant },
    Lines { last: String },
    Nothing,
}

impl Display {
    fn new(show: Show) -> Self {
        if show == Show::Nothing {
            return Self::Nothing;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines {
                last: String::new(),
            };
        }
        let bar = ProgressBar::with_draw_target(Some(10_000), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self::Bar {
            bar,
            began: Instant::now(),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the display needs no precision"
    )]
    fn update(&mut self, job: &Job) {
        match self {
            Self::Nothing => {}
            Self::Lines { last } => {
                let now = line(job);
                if *last != now {
                    remark!("{now}");
                    *last = now;
                }
            }
            Self::Bar { bar, began } => {
                let seconds = began.elapsed().as_secs_f64();
                let rate = job.completed_items as f64 / seconds.max(0.001);
                let left = if job.percentage_complete > 0.0 {
                    seconds * (100.0 / job.percentage_complete - 1.0)
                } else {
                    0.0
                };
                bar.set_position((job.percentage_complete * 100.0) as u64);
                bar.set_message(format!(
                    "{} ({rate:.0} items/s, {left:.0} s left)",
                    line(job)
                ));
            }
        }
    }

    fn end(&self) {
        if let Self::Bar { bar, .. } = self {
            bar.finish();
        }
    }
}
