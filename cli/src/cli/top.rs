//! `batchwright top`: a page of jobs, pipes or workers that is drawn anew every few seconds, as
//! `top` does with processes.
//!
//! Without a terminal it prints one page. With the same flags, every page comes from the same
//! requests, whose number does not depend on how many jobs there are.

mod keys;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use batchwright::client::{Client, ClientError};
use clap::{Args, ValueEnum};
use contract::rest::Job;
use contract::{Pipe, Worker};
use framework::runtime::stop_signal;

use super::connect::{Output, ServiceArgs};
use super::jobs::jobs;
use super::paged::{Listed as _, print_all};
use crate::job_text;
use crate::print;
use crate::text::{cut, date, escaped, table};
use keys::{Key, Keys};

/// The type of the statuses of jobs that have not ended.
const UNFINISHED: &str = "NotFinished";
/// The jobs on a page that has no height.
const JOBS: usize = 50;
/// The lines of a page above its rows: two lines, an empty one, and the titles.
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
    /// What is shown first, or printed without a terminal: `jobs`, `pipes` or `workers`. On a
    /// terminal, the keys 1, 2 and 3 choose.
    #[arg(
        long,
        value_enum,
        default_value_t = View::Jobs,
        hide_possible_values = true
    )]
    view: View,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// What a page is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum View {
    Jobs,
    Pipes,
    Workers,
}

impl View {
    const ALL: [Self; 3] = [Self::Jobs, Self::Pipes, Self::Workers];

    const fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Pipes => "pipes",
            Self::Workers => "workers",
        }
    }

    /// Returns the view that follows.
    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Returns the line with all views, this one in brackets.
    fn tabs(self) -> String {
        let tab = |(number, view): (usize, Self)| {
            let name = format!("{number} {}", view.name());
            if view == self {
                format!("[{name}]")
            } else {
                format!(" {name} ")
            }
        };
        let tabs: Vec<String> = (1..).zip(Self::ALL).map(tab).collect();
        format!("{}   tab next   q quit", tabs.join(" "))
    }
}

/// What a page shows.
#[derive(Debug)]
struct Page {
    rows: Rows,
    unfinished: u64,
    all: u64,
    time: i64,
}

#[derive(Debug)]
enum Rows {
    /// Those that have not ended, newest first, then those that ended last.
    Jobs(Vec<Job>),
    /// Those that exist, the fullest first.
    Pipes(Vec<Pipe>),
    /// Those with the longest running tasks first.
    Workers(Vec<Worker>),
}

pub async fn top(args: TopArgs) -> anyhow::Result<ExitCode> {
    let client = args.service.client()?;
    let stdout = io::stdout();
    let filter = args.filter.as_deref();
    if !stdout.is_terminal() || !matches!(args.service.output, Output::Table | Output::Wide) {
        let page = Page::read(&client, filter, args.view, JOBS).await?;
        page.print(&args)?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is wrong from the beginning is an error, and not a picture.
    Page::read(&client, filter, args.view, 1).await?;
    let screen = Screen::enter();
    let mut keys = Keys::read();
    let ended = tokio::select! {
        ended = draw_until_told(&client, &args, keys.as_mut()) => ended,
        () = stop_signal() => Ok(()),
    };
    drop(keys);
    drop(screen);
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Draws a page after the other, until a key ends it, or until the job service refuses to give one.
async fn draw_until_told(
    client: &Client,
    args: &TopArgs,
    mut keys: Option<&mut Keys>,
) -> Result<(), ClientError> {
    let mut lines = Vec::new();
    let mut view = args.view;
    loop {
        let (width, height) = print::size(&io::stdout());
        let rows = height.saturating_sub(HEAD).max(1);
        match Page::read(client, args.filter.as_deref(), view, rows).await {
            Ok(page) => lines = page.lines(&args.service, width, keys.is_some()),
            Err(error) if error.is_transient() => {
                lines.truncate(height);
                let away = format!("{} {error}; trying again", date(print::now()));
                let away = cut(&escaped(&away), width);
                match lines.first_mut() {
                    Some(first) => *first = away,
                    None => lines.push(away),
                }
            }
            Err(error) => return Err(error),
        }
        lines.truncate(height);
        draw(&lines);
        let pressed = async {
            match &mut keys {
                Some(keys) => keys.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(args.interval.into())) => {}
            key = pressed => match key {
                Key::View(number) => view = View::ALL[number],
                Key::Next => view = view.next(),
                Key::Quit => return Ok(()),
            },
        }
    }
}

fn draw(lines: &[String]) {
    let mut stdout = io::stdout();
    // Nowhere is left to say that it failed.
    let _ = write!(stdout, "{}", frame(lines)).and_then(|()| stdout.flush());
}

/// Returns what draws lines from the top left corner. After the last one there is no line break,
/// which would scroll.
///
/// Each line is erased before it is written: behind a line as wide as the terminal, the cursor
/// stands on its last character, which would be erased with the rest.
fn frame(lines: &[String]) -> String {
    let Some((last, above)) = lines.split_last() else {
        return "\x1b[H\x1b[J".to_owned();
    };
    let above: Vec<String> = above
        .iter()
        .map(|line| format!("\x1b[K{line}\r\n"))
        .collect();
    format!("\x1b[H{}\x1b[J{last}", above.concat())
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
    /// Reads what a page with this many rows shows.
    async fn read(
        client: &Client,
        filter: Option<&str>,
        view: View,
        rows: usize,
    ) -> Result<Self, ClientError> {
        let conditions = |status: Option<&str>| {
            let filter = filter.map(|filter| ("filter", filter.to_owned()));
            let status = status.map(|status| ("statusType", status.to_owned()));
            filter.into_iter().chain(status).collect::<Vec<_>>()
        };
        let list = async |status: &str, limit: usize, sort: &str| {
            let mut query = conditions(Some(status));
            query.extend([
                ("limit", limit.to_string()),
                ("sort", sort.to_owned()),
                ("brief", true.to_string()),
            ]);
            client.list(&query).await
        };
        let rows = match view {
            View::Jobs => {
                let mut jobs = list(UNFINISHED, rows, "createTime:desc").await?;
                let room = rows.saturating_sub(jobs.len());
                if room > 0 {
                    jobs.extend(list("Inactive", room, "lastUpdateTime:desc").await?);
                }
                Rows::Jobs(jobs)
            }
            View::Pipes => {
                let mut pipes = client.pipes().await?.pipes;
                pipes.retain(|pipe| pipe.exists || pipe.items > 0);
                pipes.sort_by_key(|pipe| std::cmp::Reverse(pipe.items));
                pipes.truncate(rows);
                Rows::Pipes(pipes)
            }
            View::Workers => {
                let mut workers = client.workers().await?.workers;
                workers.sort_by_key(|worker| {
                    let longest = worker.longest.as_ref();
                    longest.map_or(i64::MAX, |longest| longest.since)
                });
                workers.truncate(rows);
                Rows::Workers(workers)
            }
        };
        Ok(Self {
            rows,
            unfinished: client.count(&conditions(Some(UNFINISHED))).await?,
            all: client.count(&conditions(None)).await?,
            time: print::now(),
        })
    }

    /// Returns the lines. With `keys`, a person can choose another view.
    fn lines(&self, service: &ServiceArgs, width: usize, keys: bool) -> Vec<String> {
        let first = format!(
            "{}  {} unfinished, {} in all; partition {} at {}",
            date(self.time),
            jobs(self.unfinished),
            self.all,
            service.partition,
            service.url
        );
        let second = if keys {
            self.view().tabs()
        } else {
            format!("{}; Ctrl-C ends", self.view().name())
        };
        let (width_of_table, now) = (Some(width), self.time);
        let table = match &self.rows {
            Rows::Jobs(jobs) => table(job_text::TOP_COLUMNS, jobs, width_of_table, now),
            Rows::Pipes(pipes) => table(Pipe::COLUMNS, pipes, width_of_table, now),
            Rows::Workers(workers) => table(Worker::COLUMNS, workers, width_of_table, now),
        };
        let head = [first, second, String::new()].map(|line| cut(&escaped(&line), width));
        head.into_iter().chain(table).collect()
    }

    const fn view(&self) -> View {
        match self.rows {
            Rows::Jobs(_) => View::Jobs,
            Rows::Pipes(_) => View::Pipes,
            Rows::Workers(_) => View::Workers,
        }
    }

    fn print(&self, args: &TopArgs) -> anyhow::Result<()> {
        let (service, output) = (&args.service, args.service.output);
        if matches!(output, Output::Table | Output::Wide) {
            print::lines(&self.lines(service, usize::MAX, false))?;
            return Ok(());
        }
        match &self.rows {
            Rows::Jobs(jobs) => print_all(output, jobs),
            Rows::Pipes(pipes) => print_all(output, pipes),
            Rows::Workers(workers) => print_all(output, workers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_erased_behind_a_line_that_may_be_as_wide_as_the_terminal() {
        let lines = ["first", "second"].map(str::to_owned);
        assert_eq!(frame(&lines), "\x1b[H\x1b[Kfirst\r\n\x1b[Jsecond");
        assert_eq!(frame(&[]), "\x1b[H\x1b[J");
    }

    #[test]
    fn line_of_tabs_shows_the_view_and_the_keys_within_eighty_columns() {
        assert_eq!(
            View::Pipes.tabs(),
            " 1 jobs  [2 pipes]  3 workers    tab next   q quit"
        );
        assert_eq!(View::Workers.next(), View::Jobs);
        assert!(View::ALL.iter().all(|view| view.tabs().len() < 80));
    }
}
