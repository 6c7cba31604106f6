//! `batchwright dead`: lists, shows, replays and deletes dead letters.

use std::process::ExitCode;

use anyhow::ensure;
use batchwright::client::Client;
use clap::{ArgGroup, Args, Subcommand};
use contract::rest::{DeadLetter, LetterCause};

use super::connect::{Output, ServiceArgs};
use super::jobs::exit_code_of;
use super::paged::{Listed, print_pages};
use crate::print::{self, remark, say};
use crate::text::{Column, MISSING, age, date, escaped};

/// The number of letters that one request asks for.
const PAGE: u32 = 1000;

const COLUMNS: [Column; 7] = [
    Column::number("ID"),
    Column::number("AGE"),
    Column::cut_to("CAUSE", 7),
    Column::cut_to("JOB", 10),
    Column::cut_to("TASK", 6),
    Column::cut_to("CAME FROM", 10),
    Column::cut_to("REASON", 16),
];
const WIDE_COLUMNS: [Column; 11] = [
    Column::number("ID"),
    Column::text("TIME"),
    Column::text("CAUSE"),
    Column::text("JOB"),
    Column::text("TASK"),
    Column::text("CAME FROM"),
    Column::text("FOUND IN"),
    Column::text("WORKER"),
    Column::number("ATTEMPTS"),
    Column::number("BYTES"),
    Column::text("REASON"),
];

#[derive(Debug, Args)]
pub struct DeadArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List dead letters, the latest first.
    List(ListArgs),
    /// Show a dead letter in full: the message and why it is dead.
    Show(ShowArgs),
    /// Send dead letters again, to the pipes from which they came; those of jobs that have ended
    /// begin a round of these jobs.
    Replay(ReplayArgs),
    /// Delete dead letters; asks for a confirmation on a terminal.
    Delete(DeleteArgs),
}

/// The conditions that select letters.
#[derive(Debug, Args)]
struct Conditions {
    /// Letters of this job of the partition.
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Letters of the jobs of the partition.
    #[arg(long)]
    of_partition: bool,
    /// Letters that were found in this pipe or came from it.
    #[arg(long, value_name = "PIPE")]
    pipe: Option<String>,
    /// Letters that are dead for this cause: `givenUp`, `poison`, `notUnderstood` or `unroutable`.
    #[arg(long, value_parser = cause, value_name = "CAUSE")]
    cause: Option<LetterCause>,
    /// Letters whose reason contains this text.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Letters that were kept within this time, e.g. `PT1H` or `P1D`.
    #[arg(long, value_parser = store::span, value_name = "DURATION")]
    within: Option<std::time::Duration>,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    conditions: Conditions,
    /// Maximum number of letters to list; without it, all.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Number of the letter.
    id: i64,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Names letters, or selects them by conditions.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").args(["id", "all", "job", "of_partition", "pipe", "cause", "reason", "within"]).required(true).multiple(true))]
struct TargetArgs {
    /// Numbers of the letters. Without them, the command concerns the letters that match the
    /// conditions.
    #[arg(conflicts_with_all = ["all", "job", "of_partition", "pipe", "cause", "reason", "within"])]
    id: Vec<i64>,
    /// Every letter that matches the conditions; required if there is neither a number nor a
    /// condition.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Pipe to which the messages go, if they do not say from which they came; only with numbers.
    #[arg(long, requires = "id", value_name = "PIPE")]
    to: Option<String>,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Do not ask for a confirmation, as the command does on a terminal.
    #[arg(long, short)]
    yes: bool,
}

impl DeadArgs {
    /// Returns which job service the command calls, and how it prints.
    pub const fn service(&self) -> &ServiceArgs {
        match &self.action {
            Action::List(args) => &args.service,
            Action::Show(args) => &args.service,
            Action::Replay(args) => &args.target.service,
            Action::Delete(args) => &args.target.service,
        }
    }
}

pub async fn dead(args: DeadArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::List(args) => list(args).await,
        Action::Show(args) => show(args).await,
        Action::Replay(args) => replay(args).await,
        Action::Delete(args) => delete(args).await,
    }
}

impl Conditions {
    /// Returns the parameters of a request for these letters.
    fn parameters(&self, partition: &str) -> Vec<(&'static str, String)> {
        let partition = (self.job.is_some() || self.of_partition).then(|| partition.to_owned());
        let since = self.within.map(|within| {
            let millis = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
            print::now().saturating_sub(millis).to_string()
        });
        let parameters = [
            ("partition", partition),
            ("job", self.job.clone()),
            ("pipe", self.pipe.clone()),
            ("cause", self.cause.map(|cause| cause.name().to_owned())),
            ("reason", self.reason.clone()),
            ("since", since),
        ];
        let given = parameters.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let parameters = args.conditions.parameters(&args.service.partition);
    let (mut listed, mut is_full) = (0, false);
    print_pages(output, async |after| {
        let limit = args.limit.map_or(PAGE, |limit| PAGE.min(limit - listed));
        let mut query = parameters.clone();
        query.push(("limit", limit.to_string()));
        query.extend(after.map(|after| ("after", after)));
        let page = client.dead_letters(&query).await?;
        listed += u32::try_from(page.dead_letters.len()).unwrap_or(u32::MAX);
        is_full = page.numbers.full;
        let is_enough = args.limit.is_some_and(|limit| listed >= limit);
        Ok((page.dead_letters, page.next.filter(|_| !is_enough)))
    })
    .await?;
    if is_full && !output.is_json() {
        remark!(
            "batchwright: no further letter is kept until some are replayed or deleted; they wait in their pipes"
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let letter = args.service.client()?.dead_letter(args.id).await?;
    match args.service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&letter)?),
        Output::Name => say!("{}", letter.id),
        Output::Table | Output::Wide => {
            for (column, cell) in WIDE_COLUMNS.iter().zip(letter.row(true)) {
                say!("{:9}  {cell}", column.title());
            }
            if let Some(label) = &letter.label {
                say!("{:9}  {}", "ITEM", escaped(label));
            }
            if letter.cut {
                say!("{:9}  only its beginning is kept", "BODY");
            }
            if let Some(message) = &letter.message {
                say!("{}", serde_json::to_string(message)?);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn replay(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let TargetArgs {
        id,
        conditions,
        service,
        ..
    } = args.target;
    let (client, output) = (service.client()?, service.output);
    if id.is_empty() {
        return replay_all(&client, &conditions.parameters(&service.partition), output).await;
    }
    let mut is_all = true;
    for id in id {
        match client.replay_letter(id, args.to.as_deref()).await {
            Ok(replayed) if output.is_json() => say!("{}", serde_json::to_string(&replayed)?),
            Ok(replayed) => {
                let round = replayed.round.filter(|round| *round > 1);
                let round = round.map(|round| format!(", in round {round} of its job"));
                let (pipe, round) = (escaped(&replayed.pipe), round.unwrap_or_default());
                say!("{id} replayed to {pipe}{round}");
            }
            Err(error) => {
                is_all = false;
                print::failure(&error.into(), output.is_json());
            }
        }
    }
    Ok(exit_code_of(is_all))
}

async fn replay_all(
    client: &Client,
    parameters: &[(&'static str, String)],
    output: Output,
) -> anyhow::Result<ExitCode> {
    let (mut replayed, mut refused, mut after) = (0, 0, None);
    loop {
        let mut query = parameters.to_vec();
        query.push(("limit", PAGE.to_string()));
        query.extend(after.map(|after| ("after", after)));
        let some = client.replay_letters(&query).await?;
        replayed += some.replayed;
        refused += some.refused;
        if output.is_json() {
            say!("{}", serde_json::to_string(&some)?);
        } else {
            for refusal in &some.refusals {
                remark!("batchwright: {}", escaped(&refusal.message));
            }
        }
        after = some.next;
        if after.is_none() {
            break;
        }
    }
    if !output.is_json() {
        say!("{} replayed", letters(replayed));
        if refused > 0 {
            remark!(
                "batchwright: {} cannot be replayed, and stay",
                letters(refused)
            );
        }
    }
    Ok(exit_code_of(refused == 0))
}

async fn delete(args: DeleteArgs) -> anyhow::Result<ExitCode> {
    let TargetArgs {
        id,
        conditions,
        service,
        ..
    } = args.target;
    let (client, output) = (service.client()?, service.output);
    let question = match id.len() {
        0 => "Delete all dead letters that match, for good? [y/N] ".to_owned(),
        number => format!("Delete {} for good? [y/N] ", letters(number as u64)),
    };
    ensure!(
        args.yes || print::is_confirmed(&question),
        "not confirmed; nothing is deleted"
    );
    let (mut deleted, mut is_all) = (0, true);
    for id in &id {
        match client.delete_letter(*id).await {
            Ok(some) => deleted += some.deleted,
            Err(error) => {
                is_all = false;
                print::failure(&error.into(), output.is_json());
            }
        }
    }
    if id.is_empty() {
        let mut query = conditions.parameters(&service.partition);
        query.push(("limit", PAGE.to_string()));
        loop {
            let some = client.delete_letters(&query).await?;
            deleted += some.deleted;
            if !some.more || some.deleted == 0 {
                break;
            }
        }
    }
    if output.is_json() {
        say!("{}", serde_json::json!({ "deleted": deleted }));
    } else {
        say!("{} deleted", letters(deleted));
    }
    Ok(exit_code_of(is_all))
}

impl Listed for DeadLetter {
    const COLUMNS: &[Column] = &COLUMNS;
    const WIDE_COLUMNS: &[Column] = &WIDE_COLUMNS;

    fn name(&self) -> String {
        self.id.to_string()
    }

    fn row(&self, is_wide: bool) -> Vec<String> {
        let text = |text: Option<&str>| {
            text.map_or_else(|| MISSING.to_owned(), |it| escaped(it).into_owned())
        };
        let number =
            |number: Option<u32>| number.map_or_else(|| MISSING.to_owned(), |it| it.to_string());
        let job = self.partition_id.as_deref().zip(self.job_id.as_deref());
        let job = job.map(|(partition, job)| format!("{partition}:{job}"));
        let task = text(self.task_id.as_deref());
        let origin = text(self.origin.as_deref());
        let reason = text(
            Some(&self.reason)
                .filter(|it| !it.is_empty())
                .map(String::as_str),
        );
        let cause = self.cause.name().to_owned();
        if !is_wide {
            return vec![
                self.id.to_string(),
                age(print::now() - self.time),
                cause,
                text(self.job_id.as_deref()),
                task,
                origin,
                reason,
            ];
        }
        vec![
            self.id.to_string(),
            date(self.time),
            cause,
            text(job.as_deref()),
            task,
            origin,
            text(Some(&self.pipe)),
            text(self.worker.as_deref()),
            number(self.attempts),
            self.bytes.to_string(),
            reason,
        ]
    }
}

fn letters(number: u64) -> String {
    let letters = if number == 1 {
        "dead letter"
    } else {
        "dead letters"
    };
    format!("{number} {letters}")
}

fn cause(text: &str) -> Result<LetterCause, String> {
    LetterCause::from_name(text).ok_or_else(|| {
        let names = LetterCause::ALL.map(LetterCause::name).join(", ");
        format!("{text:?} is none of {names}")
    })
}
