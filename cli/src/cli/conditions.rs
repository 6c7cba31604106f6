//! `batchwright conditions`: lists and shows the conditions that tasks wait for, and tests,
//! releases or fails their tasks.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, Subcommand};
use contract::rest::WaitedCondition;

use super::connect::ServiceArgs;
use super::jobs::exit_code_of;
use super::paged::{Listed, each, page_query, print_one, print_pages};
use crate::columns;
use crate::print::{self, say};
use crate::task_text::due;
use crate::text::{Field, age, date, escaped, numbered, or_empty};

#[derive(Debug, Args)]
pub struct ConditionsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the conditions.
    List(ListArgs),
    /// Show a condition, and the jobs that wait for it.
    Show(KeyArgs),
    /// Test conditions now and not at their next times.
    Test(KeysArgs),
    /// Send the tasks of conditions again without a test, a few more each second.
    Release(KeysArgs),
    /// Fail the tasks of conditions; asks for a confirmation on a terminal.
    Fail(FailArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Conditions with this code, e.g. `DATABASE_NOT_AVAILABLE`.
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
    /// Conditions for which tasks of this job of the partition wait.
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Conditions for which tasks of the partition wait.
    #[arg(long)]
    of_partition: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// Key of the condition.
    key: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct KeysArgs {
    /// Keys of the conditions.
    #[arg(required = true)]
    key: Vec<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct FailArgs {
    #[command(flatten)]
    keys: KeysArgs,
    /// Do not ask for a confirmation, as the command does on a terminal.
    #[arg(long, short)]
    yes: bool,
}

pub async fn conditions(args: ConditionsArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::List(args) => list(args).await,
        Action::Show(args) => show(args).await,
        Action::Test(args) => steer(args, "test", "is being tested").await,
        Action::Release(args) => steer(args, "release", "is being released").await,
        Action::Fail(FailArgs { keys, yes }) => {
            let question = "Fail all tasks that wait for these conditions? [y/N] ";
            ensure!(
                yes || print::is_confirmed(question),
                "not confirmed; no task fails"
            );
            steer(keys, "fail", "is given up, and its tasks fail").await
        }
    }
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let partition = (args.job.is_some() || args.of_partition).then_some(args.service.partition);
    let given = [
        ("code", args.code),
        ("job", args.job),
        ("partition", partition),
    ];
    let given: Vec<_> = given
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    print_pages(output, None, async |after, limit| {
        let page = client.conditions(&page_query(&given, after, limit)).await?;
        Ok((page.conditions, page.next))
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn show(args: KeyArgs) -> anyhow::Result<ExitCode> {
    let condition = args.service.client()?.condition(&args.key).await?;
    let mut further = vec![("POLICY", escaped(&condition.policy).into_owned())];
    let parameters = condition.parameters.iter();
    further.extend(parameters.map(|(name, value)| {
        let parameter = format!("{}={}", escaped(name), escaped(value));
        ("PARAMETER", parameter)
    }));
    let jobs = condition.jobs.iter().flatten();
    further.extend(jobs.map(|(job, tasks)| ("JOB", format!("{} ({tasks})", escaped(job)))));
    print_one(args.service.output, &condition, &further)?;
    Ok(ExitCode::SUCCESS)
}

/// Does something with conditions. `done` says what happens to each.
async fn steer(args: KeysArgs, operation: &str, done: &str) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let steered = each(&args.key, output, async |key| {
        let condition = client.steer_condition(key, operation).await?;
        if output.is_json() {
            say!("{}", serde_json::to_string(&condition)?);
        } else {
            let code = escaped(&condition.code);
            let tasks = numbered(condition.tasks, "task");
            say!("{} ({code}, {tasks}) {done}", condition.key);
        }
        Ok(())
    });
    Ok(exit_code_of(steered.await? == args.key.len()))
}

impl Listed for WaitedCondition {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("KEY").cut_to(8) => it.key.clone();
        text("CODE").cut_to(12) => it.code.clone();
        number("TASKS") => it.tasks.to_string();
        number("AGE").narrow() => age(now - it.since);
        text("SINCE").wide() => date(it.since);
        text("STATE") => it.state.name().to_owned();
        number("TESTS") => it.tests.to_string();
        text("NEXT TEST").wide() => or_empty(it.next_test.map(|time| due(time, now)));
        text("EXPIRES").wide() => or_empty(it.expires.map(|time| due(time, now)));
        text("TESTER").wide() => it.tester.to_string();
        text("LAST RESULT").wide() => or_empty(it.last_result.as_deref());
        text("REASON").cut_to(12) => it.reason.clone();
    });

    fn name(&self) -> String {
        self.key.clone()
    }
}
