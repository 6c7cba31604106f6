//! Follows a job to its end: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use contract::JobStatus;
use contract::rest::Job;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::client::{Client, ClientError};

/// Before a stream that broke off is asked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// How a job is shown while it is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// A bar on a terminal, a line for every change elsewhere; on standard error.
    Progress,
    Nothing,
}

/// Follows a job until it has ended; `seen` is called with every state that is read.
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
        // The service has stopped, or the job is gone: the next request tells which.
        tokio::time::sleep(PAUSE).await;
    }
}

/// The exit code that tells how a job ended: 0 Completed, 10 Failed, 11 Cancelled.
pub const fn exit_code(status: JobStatus) -> u8 {
    match status {
        JobStatus::Failed => 10,
        JobStatus::Cancelled => 11,
        _ => 0,
    }
}

/// One line that tells how far a job is.
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
        reason = "for the eye"
    )]
    fn update(&mut self, job: &Job) {
        match self {
            Self::Nothing => {}
            Self::Lines { last } => {
                let now = line(job);
                if *last != now {
                    eprintln!("{now}");
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
