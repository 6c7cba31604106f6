//! Follows several jobs at once until each has finished. On a terminal their lines of progress
//! stand below each other and are rewritten in place; elsewhere each job has lines of its own, as
//! if it were followed alone.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use batchwright::client::{Client, ClientError};
use contract::rest::Job;
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::job_text;
use crate::print;
use crate::watch::{Show, follow};

/// The least time between two pictures.
const PAUSE: Duration = Duration::from_millis(200);

/// Follows jobs and returns the final state of each, in their order.
pub async fn follow_all(client: &Client, jobs: &[String]) -> Vec<Result<Job, ClientError>> {
    let on_terminal = io::stderr().is_terminal();
    let show = if on_terminal {
        Show::Nothing
    } else {
        Show::Progress
    };
    let board = Mutex::new(Board::new(jobs));
    let lock = || board.lock();
    let following = jobs
        .iter()
        .enumerate()
        .map(|(at, job)| follow(client, job, show, move |state| lock().update(at, state)));
    let mut following = std::pin::pin!(join_all(following));
    loop {
        tokio::select! {
            ended = &mut following => {
                if on_terminal {
                    lock().draw();
                }
                return ended;
            }
            () = tokio::time::sleep(PAUSE), if on_terminal => lock().draw(),
        }
    }
}

/// The lines of the jobs on a terminal.
#[derive(Debug)]
struct Board {
    /// What is known of each job; at first its id.
    jobs: Vec<Result<Job, String>>,
    has_changed: bool,
    /// The number of lines on the terminal.
    drawn: usize,
}

impl Board {
    fn new(jobs: &[String]) -> Self {
        Self {
            jobs: jobs.iter().cloned().map(Err).collect(),
            has_changed: true,
            drawn: 0,
        }
    }

    fn update(&mut self, at: usize, job: &Job) {
        self.jobs[at] = Ok(job.clone());
        self.has_changed = true;
    }

    fn draw(&mut self) {
        if !std::mem::take(&mut self.has_changed) {
            return;
        }
        let (width, height) = print::size(&io::stderr());
        // A line that fills the last column would wrap on some terminals, and one in the last row
        // would scroll.
        let lines = self.lines(width.saturating_sub(1), height.saturating_sub(1));
        let up = if self.drawn == 0 {
            String::new()
        } else {
            format!("\x1b[{}F", self.drawn)
        };
        let mut stderr = io::stderr();
        // Nowhere is left to say that it failed.
        let text = lines.join("\n");
        let _ = writeln!(stderr, "{up}\x1b[J{text}").and_then(|()| stderr.flush());
        self.drawn = lines.len();
    }

    /// Returns a line for each job. If there is no room for all, those that have ended give way
    /// first.
    fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let has_ended =
            |job: &&Result<Job, String>| job.as_ref().is_ok_and(|job| job.status.is_finished());
        let mut shown: Vec<&Result<Job, String>> = self.jobs.iter().collect();
        let room = height.max(2);
        let hidden = (shown.len() + 1).saturating_sub(room);
        if shown.len() > room {
            shown.sort_by_key(has_ended);
            shown.truncate(room - 1);
        }
        let line = |job: &&Result<Job, String>| match job {
            Ok(job) => job_text::progress(job, Some(width)),
            Err(id) => crate::text::cut(&format!("{}: …", crate::text::escaped(id)), width),
        };
        let mut lines: Vec<String> = shown.iter().map(line).collect();
        if self.jobs.len() > room {
            lines.push(format!("… and {hidden} more"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, status: &str) -> Job {
        serde_json::from_value(serde_json::json!({
            "id": id, "status": status, "createTime": 0, "lastUpdateTime": 0, "percentageComplete": 0, "failures": [], "labels": {},
            "completedItems": 7,
        }))
        .unwrap()
    }

    #[test]
    fn each_job_has_a_line_and_ended_ones_give_way_where_there_is_no_room() {
        let ids = ["a", "b", "c\n", "d"].map(str::to_owned);
        let mut board = Board::new(&ids);
        assert_eq!(board.lines(40, 24), ["a: …", "b: …", "c\\n: …", "d: …"]);
        board.update(0, &job("a", "Completed"));
        board.update(1, &job("b", "Active"));
        board.update(3, &job("d", "Failed"));
        assert_eq!(
            board.lines(40, 24),
            [
                "a: Completed, 0.00 %, 7 items",
                "b: Active, 0.00 %, 7 items",
                "c\\n: …",
                "d: Failed, 0.00 %, 7 items",
            ]
        );
        assert_eq!(
            board.lines(40, 3),
            ["b: Active, 0.00 %, 7 items", "c\\n: …", "… and 2 more"]
        );
        assert_eq!(board.lines(40, 4).len(), 4);
    }
}
