//! `batchwright conditions`: lists and shows the conditions that tasks wait for, and tests,
//! releases or fails their tasks.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, Subcommand};
use contract::rest::WaitedCondition;

use super::connect::{Output, ServiceArgs};
use super::jobs::exit_code_of;
use super::paged::{Listed, print_pages};
use crate::print::{self, say};
use crate::task_text::due;
use crate::text::{Column, MISSING, age, date, escaped, numbered};

/// The number of conditions that one request asks for.
const PAGE: u32 = 1000;

const COLUMNS: [Column; 7] = [
    Column::cut_to("KEY", 8),
    Column::cut_to("CODE", 12),
    Column::number("TASKS"),
    Column::number("AGE"),
    Column::text("STATE"),
    Column::number("TESTS"),
    Column::cut_to("REASON", 12),
];
const WIDE_COLUMNS: [Column; 11] = [
    Column::text("KEY"),
    Column::text("CODE"),
    Column::number("TASKS"),
    Column::text("SINCE"),
    Column::text("STATE"),
    Column::number("TESTS"),
    Column::text("NEXT TEST"),
    Column::text("EXPIRES"),
    Column::text("TESTER"),
    Column::text("LAST RESULT"),
    Column::text("REASON"),
];

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

impl ConditionsArgs {
    /// Returns which job service the command calls, and how it prints.
    pub const fn service(&self) -> &ServiceArgs {
        match &self.action {
            Action::List(args) => &args.service,
            Action::Show(args) => &args.service,
            Action::Test(args) | Action::Release(args) => &args.service,
            Action::Fail(args) => &args.keys.service,
        }
    }
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
    let given = given.into_iter();
    let given: Vec<_> = given
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    print_pages(output, async |after| {
        let mut query = given.clone();
        query.push(("limit", PAGE.to_string()));
        query.extend(after.map(|after| ("after", after)));
        let page = client.conditions(&query).await?;
        Ok((page.conditions, page.next))
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn show(args: KeyArgs) -> anyhow::Result<ExitCode> {
    let condition = args.service.client()?.condition(&args.key).await?;
    match args.service.output {
        Output::Json | Output::Ndjson => say!("{}", serde_json::to_string(&condition)?),
        Output::Name => say!("{}", condition.key),
        Output::Table | Output::Wide => {
            for (column, cell) in WIDE_COLUMNS.iter().zip(condition.row(true)) {
                say!("{:11}  {cell}", column.title());
            }
            say!("{:11}  {}", "POLICY", escaped(&condition.policy));
            for (name, value) in &condition.parameters {
                say!("{:11}  {}={}", "PARAMETER", escaped(name), escaped(value));
            }
            for (job, tasks) in condition.jobs.iter().flatten() {
                say!("{:11}  {} ({tasks})", "JOB", escaped(job));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Does something with conditions. `done` says what happens to each.
async fn steer(args: KeysArgs, operation: &str, done: &str) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let mut is_all = true;
    for key in args.key {
        match client.steer_condition(&key, operation).await {
            Ok(condition) if output.is_json() => {
                say!("{}", serde_json::to_string(&condition)?);
            }
            Ok(condition) => {
                let code = escaped(&condition.code);
                let tasks = numbered(condition.tasks, "task");
                say!("{} ({code}, {tasks}) {done}", condition.key);
            }
            Err(error) => {
                is_all = false;
                print::failure(&error.into(), output.is_json());
            }
        }
    }
    Ok(exit_code_of(is_all))
}

impl Listed for WaitedCondition {
    const COLUMNS: &[Column] = &COLUMNS;
    const WIDE_COLUMNS: &[Column] = &WIDE_COLUMNS;

    fn name(&self) -> String {
        self.key.clone()
    }

    fn row(&self, is_wide: bool) -> Vec<String> {
        let text = |text: &str| match text {
            "" => MISSING.to_owned(),
            text => escaped(text).into_owned(),
        };
        let (key, code, state) = (
            self.key.clone(),
            text(&self.code),
            self.state.name().to_owned(),
        );
        let (tasks, tests) = (self.tasks.to_string(), self.tests.to_string());
        let reason = text(&self.reason);
        if !is_wide {
            let age = age(print::now() - self.since);
            return vec![key, code, tasks, age, state, tests, reason];
        }
        let time = |time: Option<i64>| {
            time.map_or_else(|| MISSING.to_owned(), |time| due(time, print::now()))
        };
        vec![
            key,
            code,
            tasks,
            date(self.since),
            state,
            tests,
            time(self.next_test),
            time(self.expires),
            text(&self.tester.to_string()),
            text(self.last_result.as_deref().unwrap_or_default()),
            reason,
        ]
    }
}
