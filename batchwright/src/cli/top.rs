//! `batchwright top`: a page of jobs that is drawn anew every few seconds, as `top` does with processes.
//!
//! Without a terminal it prints one page. With the same flags, every page comes from the same requests, whose number does not depend
//! on how many jobs there are.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use batchwright::client::{Client, ClientError};
use clap::Args;
use contract::rest::Job;

use super::connect::{Output, ServiceArgs};
use super::jobs::{jobs, now};
use crate::job_text;
use crate::print::{self, say};
use crate::text::{cut, date, escaped, table};

/// The type of the statuses of jobs that have not ended.
const UNFINISHED: &str = "NotFinished";
/// The jobs on a page that has no height.
const JOBS: usize = 50;
/// The lines of a page above its jobs: two lines, an empty one, and the titles.
const HEAD: usize = 4;

/// Shows the other page of the terminal without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two updates.
    #[arg(long, short = 'n', default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "SECONDS")]
    interval: u32,
    /// Only jobs that match this RSQL filter, e.g. `labels.team==search`.
    #[arg(long)]
    filter: Option<String>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// What a page shows.
#[derive(Debug)]
struct Page {
    /// Those that have not ended, newest first, then those that ended last.
    jobs: Vec<Job>,
    unfinished: u64,
    all: u64,
    time: i64,
}

pub async fn top(args: TopArgs) -> anyhow::Result<ExitCode> {
    let client = args.service.client()?;
    let stdout = io::stdout();
    if !stdout.is_terminal() || !matches!(args.service.output, Output::Table | Output::Wide) {
        let page = Page::read(&client, args.filter.as_deref(), JOBS).await?;
        page.print(&args)?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is wrong from the beginning is an error, and not a picture.
    Page::read(&client, args.filter.as_deref(), 1).await?;
    let screen = Screen::enter();
    let ended = tokio::select! {
        error = draw_for_ever(&client, &args) => Err(error),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    };
    drop(screen);
    Ok(ended?)
}

/// Draws a page after the other, until the job service refuses to give one.
async fn draw_for_ever(client: &Client, args: &TopArgs) -> ClientError {
    let mut lines = Vec::new();
    loop {
        let (width, height) = print::size(&io::stdout());
        let rows = height.saturating_sub(HEAD).max(1);
        match Page::read(client, args.filter.as_deref(), rows).await {
            Ok(page) => lines = page.lines(&args.service, width),
            Err(error) if error.is_transient() => {
                lines.truncate(height);
                let away = format!("{} {error}; trying again", date(now()));
                let away = cut(&escaped(&away), width);
                match lines.first_mut() {
                    Some(first) => *first = away,
                    None => lines.push(away),
                }
            }
            Err(error) => return error,
        }
        lines.truncate(height);
        draw(&lines);
        tokio::time::sleep(Duration::from_secs(args.interval.into())).await;
    }
}

/// Draws lines from the top left corner. After the last one there is no line break, which would scroll.
fn draw(lines: &[String]) {
    let lines: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
    let mut stdout = io::stdout();
    // Nowhere is left to say that it failed.
    let _ = write!(stdout, "\x1b[H{}\x1b[J", lines.join("\r\n")).and_then(|()| stdout.flush());
}

/// The other page of the terminal, while it is shown.
struct Screen;

impl Screen {
    fn enter() -> Self {
        let _ = write!(io::stdout(), "{ENTER}");
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut stdout = io::stdout();
        let _ = write!(stdout, "{LEAVE}").and_then(|()| stdout.flush());
    }
}

impl Page {
    /// Reads what a page with this many jobs shows.
    async fn read(client: &Client, filter: Option<&str>, jobs: usize) -> Result<Self, ClientError> {
        let conditions = |status: Option<&str>| {
            let filter = filter.map(|filter| ("filter", filter.to_owned()));
            let status = status.map(|status| ("statusType", status.to_owned()));
            filter.into_iter().chain(status).collect::<Vec<_>>()
        };
        let list = async |status: &str, limit: usize, sort: &str| {
            let mut query = conditions(Some(status));
            query.extend([("limit", limit.to_string()), ("sort", sort.to_owned())]);
            client.list(&query).await
        };
        let mut page = Self {
            jobs: list(UNFINISHED, jobs, "createTime:desc").await?,
            unfinished: client.count(&conditions(Some(UNFINISHED))).await?,
            all: client.count(&conditions(None)).await?,
            time: now(),
        };
        let room = jobs.saturating_sub(page.jobs.len());
        if room > 0 {
            let ended = list("Inactive", room, "lastUpdateTime:desc").await?;
            page.jobs.extend(ended);
        }
        Ok(page)
    }

    fn lines(&self, service: &ServiceArgs, width: usize) -> Vec<String> {
        let first = format!(
            "{}  {} unfinished, {} in all",
            date(self.time),
            jobs(self.unfinished),
            self.all
        );
        let second = format!(
            "partition {} at {}; Ctrl-C ends",
            service.partition, service.url
        );
        let rows: Vec<_> = self
            .jobs
            .iter()
            .map(|job| job_text::top_row(job, self.time))
            .collect();
        let head = [first, second, String::new()].map(|line| cut(&escaped(&line), width));
        let table = table(&job_text::TOP_COLUMNS, &rows, Some(width));
        head.into_iter().chain(table).collect()
    }

    fn print(&self, args: &TopArgs) -> anyhow::Result<()> {
        match args.service.output {
            Output::Json => say!("{}", serde_json::to_string(&self.jobs)?),
            Output::Ndjson => {
                for job in &self.jobs {
                    say!("{}", serde_json::to_string(job)?);
                }
            }
            Output::Name => {
                for job in &self.jobs {
                    say!("{}", escaped(&job.id));
                }
            }
            Output::Table | Output::Wide => {
                for line in self.lines(&args.service, usize::MAX) {
                    say!("{line}");
                }
            }
        }
        Ok(())
    }
}
