//! Follows a job until it finishes, and shows its progress: as a bar on a terminal, as lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::print::remark;
use batchwright::client::{Client, ClientError};
use contract::JobStatus;
use contract::rest::Job;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often and how long the client tries to reconnect to an event stream that broke off.
#[derive(Debug, Clone, Copy)]
struct Reconnecting {
    /// The first pause; each further one is twice as long.
    first_pause: Duration,
    longest_pause: Duration,
    /// How long the job service may be away.
    patience: Duration,
}

impl Reconnecting {
    const DEFAULT: Self = Self {
        first_pause: Duration::from_millis(500),
        longest_pause: Duration::from_secs(5),
        patience: Duration::from_mins(10),
    };
}

/// How the progress of a job is shown on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// As a bar on a terminal; otherwise as one line for each change.
    Progress,
    Nothing,
}

/// Follows a job until it finishes and returns its final state. Calls `seen` with each state on the way.
///
/// Reconnects while the job service restarts, for ten minutes at the most. Ends at once if it says that there is no such job.
pub async fn follow(
    client: &Client,
    job: &str,
    show: Show,
    seen: impl FnMut(&Job),
) -> Result<Job, ClientError> {
    follow_with(client, job, Display::new(show), seen, Reconnecting::DEFAULT).await
}

async fn follow_with(
    client: &Client,
    job: &str,
    mut display: Display,
    mut seen: impl FnMut(&Job),
    reconnecting: Reconnecting,
) -> Result<Job, ClientError> {
    let (mut pause, mut away_since) = (reconnecting.first_pause, None);
    loop {
        let problem = match client.watch(job).await {
            Ok(mut watch) => {
                if away_since.take().is_some() {
                    display.say("connected to the job service again");
                }
                while let Some(state) = watch.next().await {
                    pause = reconnecting.first_pause;
                    seen(&state);
                    display.update(&state);
                    if state.status.is_finished() {
                        display.end();
                        return Ok(state);
                    }
                }
                // The service stopped or the job was deleted; the next request returns the matching error.
                "the job service ended the event stream".to_owned()
            }
            Err(error) => {
                let away = away_since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
                if !error.is_transient() || away >= reconnecting.patience {
                    return Err(error);
                }
                error.to_string()
            }
        };
        away_since.get_or_insert_with(Instant::now);
        display.say(&format!("{problem}; trying again in {pause:?}"));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(reconnecting.longest_pause);
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

    /// Shows a line about the connection.
    fn say(&self, line: &str) {
        match self {
            Self::Nothing => {}
            Self::Lines { .. } => remark!("{line}"),
            Self::Bar { bar, .. } => bar.suspend(|| remark!("{line}")),
        }
    }

    fn end(&self) {
        if let Self::Bar { bar, .. } = self {
            bar.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use harness::in_time;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const QUICK: Reconnecting = Reconnecting {
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(2),
        patience: Duration::from_mins(10),
    };

    fn events(status: &str) -> String {
        let job = serde_json::json!({
            "id": "j", "status": status, "createTime": 0, "lastUpdateTime": 0, "percentageComplete": 0, "failures": [], "labels": {},
        });
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: job\ndata: {job}\n\n"
        )
    }

    fn error(status: u16, message: &str) -> String {
        let body = serde_json::json!({ "message": message }).to_string();
        let length = body.len();
        format!(
            "HTTP/1.1 {status} No\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    /// Follows a job at a server that sends these responses, one per connection, and closes each connection after it.
    async fn follow_at(
        responses: &[String],
        reconnecting: Reconnecting,
    ) -> Result<Job, ClientError> {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let client = Client::new(&url, "p").unwrap();
        let serving = async {
            for response in responses {
                let (mut socket, _) = server.accept().await.unwrap();
                let mut request = vec![0; 4096];
                assert_ne!(socket.read(&mut request).await.unwrap(), 0);
                socket.write_all(response.as_bytes()).await.unwrap();
            }
            drop(server);
            std::future::pending::<()>().await;
        };
        let display = Display::Nothing;
        let following = Box::pin(follow_with(&client, "j", display, |_| {}, reconnecting));
        in_time("the job to end", async {
            tokio::select! {
                () = serving => panic!("the server never ends"),
                followed = following => followed,
            }
        })
        .await
    }

    #[tokio::test]
    async fn job_is_followed_across_a_restart_of_its_service() {
        let responses = [
            error(503, "The database is not available. Try again later."),
            events("Active"),
            error(404, "no Route matched with those values"),
            error(502, "Bad Gateway"),
            events("Active"),
            events("Completed"),
        ];
        let job = follow_at(&responses, QUICK).await.unwrap();
        assert_eq!(job.status, JobStatus::Completed);
    }

    #[tokio::test]
    async fn following_ends_when_the_service_says_that_there_is_no_such_job() {
        for (status, message) in [(404, "ERROR: job_id {j} not found"), (400, "invalid")] {
            let responses = [events("Active"), error(status, message)];
            let ended = follow_at(&responses, QUICK).await.unwrap_err().to_string();
            assert!(ended.contains(message), "{ended}");
        }
    }

    #[tokio::test]
    async fn following_ends_when_the_service_is_away_for_too_long() {
        let impatient = Reconnecting {
            patience: Duration::from_millis(20),
            ..QUICK
        };
        let ended = follow_at(&[events("Active")], impatient).await.unwrap_err();
        assert!(matches!(ended, ClientError::Unreachable { .. }), "{ended}");
    }
}
