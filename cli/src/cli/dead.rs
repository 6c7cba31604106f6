//! `batchwright dead`: lists, shows, replays and deletes dead letters.

use std::process::ExitCode;

use anyhow::ensure;
use batchwright::client::Client;
use clap::{ArgGroup, Args, Subcommand};
use contract::rest::{DeadLetter, LetterCause};

use super::connect::{Output, ServiceArgs};
use super::jobs::exit_code_of;
use super::paged::{Listed, each, page_query, print_one, print_pages};
use crate::columns;
use crate::print::{self, remark, say};
use crate::text::{Field, age, date, escaped, numbered, or_empty};

const LETTER: &str = "dead letter";
/// The number of letters that one request replays or deletes.
const SOME: u32 = 1000;

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
    let mut is_full = false;
    print_pages(output, args.limit, async |after, limit| {
        let query = page_query(&parameters, after, limit);
        let page = client.dead_letters(&query).await?;
        is_full = page.numbers.full;
        Ok((page.dead_letters, page.next))
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
    let output = args.service.output;
    let label = letter.label.as_ref();
    let label = label.map(|label| ("ITEM", escaped(label).into_owned()));
    let cut = ("BODY", "only its beginning is kept".to_owned());
    let further: Vec<_> = label.into_iter().chain(letter.cut.then_some(cut)).collect();
    print_one(output, &letter, &further)?;
    if let (Output::Table | Output::Wide, Some(message)) = (output, &letter.message) {
        say!("{}", serde_json::to_string(message)?);
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
    let replayed = each(&id, output, async |id| {
        let replayed = client.replay_letter(*id, args.to.as_deref()).await?;
        if output.is_json() {
            say!("{}", serde_json::to_string(&replayed)?);
        } else {
            let round = replayed.round.filter(|round| *round > 1);
            let round = or_empty(round.map(|round| format!(", in round {round} of its job")));
            say!("{id} replayed to {}{round}", escaped(&replayed.pipe));
        }
        Ok(())
    });
    Ok(exit_code_of(replayed.await? == id.len()))
}

async fn replay_all(
    client: &Client,
    parameters: &[(&'static str, String)],
    output: Output,
) -> anyhow::Result<ExitCode> {
    let (mut replayed, mut refused, mut after) = (0, 0, None);
    loop {
        let query = page_query(parameters, after, SOME);
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
        say!("{} replayed", numbered(replayed, LETTER));
        if refused > 0 {
            remark!(
                "batchwright: {} cannot be replayed, and stay",
                numbered(refused, LETTER)
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
        number => format!(
            "Delete {} for good? [y/N] ",
            numbered(number as u64, LETTER)
        ),
    };
    ensure!(
        args.yes || print::is_confirmed(&question),
        "not confirmed; nothing is deleted"
    );
    let mut deleted = 0;
    let done = each(&id, output, async |id| {
        deleted += client.delete_letter(*id).await?.deleted;
        Ok(())
    });
    let is_all = done.await? == id.len();
    if id.is_empty() {
        let query = page_query(&conditions.parameters(&service.partition), None, SOME);
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
        say!("{} deleted", numbered(deleted, LETTER));
    }
    Ok(exit_code_of(is_all))
}

impl Listed for DeadLetter {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        number("ID") => it.id.to_string();
        number("AGE").narrow() => age(now - it.time);
        text("TIME").wide() => date(it.time);
        text("CAUSE").cut_to(7) => it.cause.name().to_owned();
        text("JOB").cut_to(10).narrow() => or_empty(it.job_id.as_deref());
        text("JOB").wide() => {
            let job = it.partition_id.as_deref().zip(it.job_id.as_deref());
            or_empty(job.map(|(partition, job)| format!("{partition}:{job}")))
        };
        text("TASK").cut_to(6) => or_empty(it.task_id.as_deref());
        text("CAME FROM").cut_to(10) => or_empty(it.origin.as_deref());
        text("FOUND IN").wide() => it.pipe.clone();
        text("WORKER").wide() => or_empty(it.worker.as_deref());
        number("ATTEMPTS").wide() => or_empty(it.attempts);
        number("BYTES").wide() => it.bytes.to_string();
        text("REASON").cut_to(16) => it.reason.clone();
    });

    fn name(&self) -> String {
        self.id.to_string()
    }
}

fn cause(text: &str) -> Result<LetterCause, String> {
    LetterCause::from_name(text).ok_or_else(|| {
        let names = LetterCause::ALL.map(LetterCause::name).join(", ");
        format!("{text:?} is none of {names}")
    })
}
