//! Follows a job until it finishes, and shows its progress: in a line that is rewritten on a
//! terminal, as a line in ten seconds elsewhere.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use batchwright::client::{Client, ClientError};
use contract::JobStatus;
use contract::rest::Job;
use tokio::time::Instant;

use crate::job_text;
use crate::print::{self, remark};

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
    /// In one line on a terminal; otherwise as a new line, at most every ten seconds.
    Progress,
    Nothing,
}

/// Follows a job until it finishes and returns its final state. Calls `seen` with each state on the
/// way.
///
/// Reconnects while the job service restarts, for ten minutes at the most. Ends at once if it says
/// that there is no such job.
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
                loop {
                    let state = tokio::select! {
                        state = watch.next() => state,
                        () = display.due() => {
                            display.show();
                            continue;
                        }
                    };
                    let Some(state) = state else { break };
                    pause = reconnecting.first_pause;
                    seen(&state);
                    display.update(&state);
                    if state.status.is_finished() {
                        return Ok(state);
                    }
                }
                // The service stopped or the job was deleted; the next request returns the matching
                // error.
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

/// Returns the exit code for a job: 10 if it is Failed, 11 if it is Cancelled, 12 if it is
/// Completed although items have failed, otherwise 0.
pub const fn exit_code(job: &Job) -> u8 {
    match job.status {
        JobStatus::Failed => 10,
        JobStatus::Cancelled => 11,
        JobStatus::Completed if job.failed_tasks > 0 => 12,
        _ => 0,
    }
}

/// Shows the progress of a job in one line: on a terminal it is rewritten in place.
#[derive(Debug)]
struct Display {
    on: Shown,
    /// The line that was written last.
    line: Option<String>,
    /// What has changed since, and is not shown yet.
    waiting: Option<Job>,
    /// When the next line may be shown.
    next: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    OnTerminal,
    AsLines,
    Nowhere,
}

impl Display {
    fn new(show: Show) -> Self {
        let on = match show {
            Show::Nothing => Shown::Nowhere,
            Show::Progress if io::stderr().is_terminal() => Shown::OnTerminal,
            Show::Progress => Shown::AsLines,
        };
        Self {
            on,
            line: None,
            waiting: None,
            next: Instant::now(),
        }
    }

    /// Shows a state of the job, now or as soon as a line may be shown. The last one is always
    /// shown, at once.
    fn update(&mut self, job: &Job) {
        if self.on == Shown::Nowhere {
            return;
        }
        self.waiting = Some(job.clone());
        if job.status.is_finished() || Instant::now() >= self.next {
            self.show();
        }
    }

    /// Waits until a line may be shown; for ever if there is none.
    async fn due(&self) {
        if self.waiting.is_none() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(self.next).await;
    }

    /// Shows the state that waits to be shown.
    fn show(&mut self) {
        let Some(job) = self.waiting.take() else {
            return;
        };
        let line = job_text::progress(&job, self.width());
        if self.line.as_ref() == Some(&line) {
            return;
        }
        match self.on {
            Shown::Nowhere => {}
            Shown::AsLines => remark!("{line}"),
            Shown::OnTerminal => print::rewrite_line(&line),
        }
        self.next = Instant::now() + self.on.pause();
        self.line = Some(line);
    }

    fn width(&self) -> Option<usize> {
        // A line that fills the last column would wrap on some terminals.
        (self.on == Shown::OnTerminal).then(|| print::width(&io::stderr()).saturating_sub(1))
    }

    /// Shows a line about the connection.
    fn say(&self, line: &str) {
        match (self.on, &self.line) {
            (Shown::Nowhere, _) => {}
            (Shown::OnTerminal, Some(progress)) => {
                print::rewrite_line("");
                remark!("{line}");
                print::rewrite_line(progress);
            }
            _ => remark!("{line}"),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if self.on == Shown::OnTerminal && self.line.is_some() {
            remark!("");
        }
    }
}

impl Shown {
    /// Returns the least time between two lines.
    const fn pause(self) -> Duration {
        match self {
            Self::OnTerminal => Duration::from_millis(100),
            Self::AsLines | Self::Nowhere => Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use harness::{PATIENCE, block_on_in_time, in_time};
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

    /// Follows a job at a server that sends these responses, one per connection, and closes each
    /// connection after it.
    async fn follow_at(
        responses: &[String],
        reconnecting: Reconnecting,
    ) -> Result<Job, ClientError> {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let client = Client::new(&url, "p");
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
        let display = Display::new(Show::Nothing);
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

    #[test]
    fn states_are_shown_at_most_every_ten_seconds_and_the_last_one_always() {
        block_on_in_time("the display", PATIENCE, || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let began = Instant::now();
                let mut display = Display::new(Show::Nothing);
                display.on = Shown::AsLines;
                let state = |items: i64, status: &str| -> Job {
                    serde_json::from_value(serde_json::json!({
                        "id": "j", "status": status, "createTime": 0, "lastUpdateTime": 0, "percentageComplete": 0, "failures": [],
                        "labels": {}, "completedItems": items,
                    }))
                    .unwrap()
                };
                display.update(&state(1, "Active"));
                display.update(&state(2, "Active"));
                display.update(&state(3, "Active"));
                let shown = |display: &Display| display.line.clone().unwrap_or_default();
                assert!(shown(&display).ends_with(" 1 items"), "{display:?}");
                display.due().await;
                display.show();
                assert_eq!(began.elapsed().as_secs(), 10);
                assert!(shown(&display).ends_with(" 3 items"), "{display:?}");
                display.update(&state(4, "Completed"));
                assert!(shown(&display).ends_with(" 4 items"), "{display:?}");
            });
        });
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
