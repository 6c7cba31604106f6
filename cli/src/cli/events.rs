//! `batchwright events`: prints what happens to the jobs of a partition, or to all, line by line
//! while it happens.
//!
//! What must stay true: after the connection broke, or the job service was restarted, the command
//! goes on behind the last event that it has printed: each event is printed once. What the service
//! does not know any more is said on standard error.

use std::process::ExitCode;
use std::time::Duration;

use batchwright::client::{Client, Happened};
use clap::Args;
use contract::JobStatus;
use contract::rest::{ErrorCode, JobEvent, JobEventKind};
use tokio::time::Instant;

use super::connect::{Output, ServiceArgs};
use crate::print::{INTERRUPTED, remark, say};
use crate::text::{date, escaped};

/// How long the job service may be away.
const PATIENCE: Duration = Duration::from_mins(10);
/// The first pause before the command connects again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Begin behind the event with this id, with the last span of time, as in `PT10M`, or with `0`
    /// at the oldest event that is kept; without it, with what happens from now on.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Print the events of every partition.
    #[arg(long)]
    all_partitions: bool,
    /// End after so many events.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn events(args: EventsArgs) -> anyhow::Result<ExitCode> {
    let client = args.service.client()?;
    tokio::select! {
        printed = print_all(&client, &args) => printed.map(|()| ExitCode::SUCCESS),
        Ok(()) = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Prints events up to the limit; without one, for ever.
async fn print_all(client: &Client, args: &EventsArgs) -> anyhow::Result<()> {
    let (mut last, mut printed) = (None::<String>, 0);
    let (mut pause, mut away_since) = (FIRST_PAUSE, None::<Instant>);
    loop {
        let begun = client.events(args.all_partitions, args.since.as_deref(), last.as_deref());
        let problem = match begun.await {
            Ok(mut stream) => {
                if away_since.take().is_some() {
                    remark!("connected to the job service again");
                }
                while let Some(happened) = stream.next().await {
                    pause = FIRST_PAUSE;
                    match happened {
                        Happened::Reset(reset) => {
                            remark!("batchwright: {}", escaped(&reset.message));
                        }
                        Happened::Event(event) => {
                            print(&event, args)?;
                            printed += 1;
                        }
                    }
                    if args.limit.is_some_and(|limit| printed >= limit) {
                        return Ok(());
                    }
                }
                last = stream.last().map(str::to_owned);
                "the job service ended the event stream".to_owned()
            }
            Err(error) => {
                let away = away_since.map_or(Duration::ZERO, |since| since.elapsed());
                // A job service answers, but the URL is not that of its API.
                let is_elsewhere =
                    error.body().code.as_deref() == Some(ErrorCode::UrlNotFound.as_str());
                if !error.is_transient() || is_elsewhere || away >= PATIENCE {
                    return Err(error.into());
                }
                error.to_string()
            }
        };
        away_since.get_or_insert_with(Instant::now);
        remark!("{problem}; trying again in {pause:?}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn print(event: &JobEvent, args: &EventsArgs) -> anyhow::Result<()> {
    match args.service.output {
        // There is no end at which an array could be closed.
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(event)?),
        Output::Name => say!("{}", event.job_id),
        Output::Table => say!("{}", line(event, args.all_partitions)),
        Output::Wide => {
            let line = line(event, args.all_partitions);
            let request = event.correlation_id.as_deref().unwrap_or("-");
            say!("{}  {line}  {}", event.id, escaped(request));
        }
    }
    Ok(())
}

/// Returns an event as a person reads it.
fn line(event: &JobEvent, with_partition: bool) -> String {
    let name = |status: Option<JobStatus>| status.map_or("?", JobStatus::name);
    let what = match event.event {
        JobEventKind::Created => format!("created, {}", name(event.to)),
        JobEventKind::Status => format!("{} → {}", name(event.from), name(event.to)),
        JobEventKind::Deleted => format!("deleted, was {}", name(event.from)),
    };
    let job = if with_partition {
        format!(
            "{}/{}",
            escaped(&event.partition_id),
            escaped(&event.job_id)
        )
    } else {
        escaped(&event.job_id).into_owned()
    };
    let mut line = format!("{}  {job}  {what}", date(event.time));
    // That a client has created it says nothing new.
    if event.event != JobEventKind::Created
        && let (Some(actor), Some(reason)) = (&event.actor, &event.reason)
    {
        line.extend([" (", &escaped(actor), ": ", &escaped(reason), ")"]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_says_when_what_has_happened_to_which_job_and_why() {
        let event = |event: &str, from: &str, to: &str| -> JobEvent {
            let status = |name: &str| (!name.is_empty()).then(|| name.to_owned());
            serde_json::from_value(serde_json::json!({
                "id": 7, "event": event, "partitionId": "acme", "jobId": "j\n", "time": 0, "from": status(from), "to": status(to), "round": 1,
                "actor": "tracking", "reason": "the first report of a task",
            }))
            .unwrap()
        };
        let lines = [
            line(&event("created", "", "Waiting"), true),
            line(&event("status", "Waiting", "Active"), false),
            line(&event("deleted", "Active", ""), false),
        ];
        assert_eq!(
            lines,
            [
                "1970-01-01 00:00:00 UTC  acme/j\\n  created, Waiting",
                "1970-01-01 00:00:00 UTC  j\\n  Waiting → Active (tracking: the first report of a task)",
                "1970-01-01 00:00:00 UTC  j\\n  deleted, was Active (tracking: the first report of a task)",
            ]
        );
    }
}
