//! `batchwright tasks` and `batchwright tree`: the tasks of a job, one level of them as a list, or
//! the levels below each other.
//!
//! What must stay true: what is printed is bounded by what is asked for, and not by the size of the
//! job.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::process::ExitCode;

use batchwright::client::Client;
use clap::Args;
use contract::rest::{ListedTask, TaskEntry, TaskRange};

use super::connect::{Output, ServiceArgs};
use super::paged::{Listed, print_all, print_one};
use crate::columns;
use crate::job_text;
use crate::print::{self, remark, say};
use crate::text::{Field, MISSING, age, cut, escaped, numbered, or_empty};

/// The number of tasks that one request asks for.
const PAGE: usize = 500;

impl Listed for TaskEntry {
    const COLUMNS: &[Field<Self>] = columns!(|it, now| {
        text("TASK").cut_to(12) => it.name();
        text("STATE") => match it {
            Self::Task(task) => task.state.name().to_owned(),
            Self::Range(range) => range.state.name().to_owned(),
        };
        number("AGE") => or_empty(task(it).and_then(|it| Some(age(now - it.since?))));
        number("ATTEMPTS") => or_empty(task(it).and_then(|it| it.attempts));
        text("WHAT").cut_to(20) => match it {
            Self::Task(task) => what(task),
            Self::Range(range) => or_empty(tasks_of(range)),
        };
        text("FAILURE").cut_to(20) => {
            let failure = task(it).and_then(|it| it.failure.as_ref());
            or_empty(failure.and_then(|it| it.failure_message.as_deref()))
        };
    });

    /// Returns the path of a task, or those of a range: `3.17`, `3.17-4096`.
    fn name(&self) -> String {
        let TaskRange {
            under, first, last, ..
        } = match self {
            Self::Task(task) => return task.id.clone(),
            Self::Range(range) => range,
        };
        let under = match under.as_str() {
            "0" | "" => String::new(),
            under => format!("{under}."),
        };
        if first == last {
            format!("{under}{first}")
        } else {
            format!("{under}{first}-{last}")
        }
    }
}

/// Returns the task of an entry that is not a range.
const fn task(entry: &TaskEntry) -> Option<&ListedTask> {
    match entry {
        TaskEntry::Task(task) => Some(task),
        TaskEntry::Range(_) => None,
    }
}

#[derive(Debug, Args)]
pub struct TasksArgs {
    /// Id of the job.
    job: String,
    /// The task whose subtasks to list, e.g. `3.17`; without it, the job's first task.
    #[arg(long, value_name = "PATH")]
    under: Option<String>,
    /// Only tasks in these states, at any depth, separated by commas: `failed`, `retrying`,
    /// `running`, `waiting`, `blocked`, `done`.
    #[arg(long, value_name = "STATES")]
    state: Option<String>,
    /// Maximum number of lines; tasks of which only the state is known share one.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print the number of tasks in each state instead.
    #[arg(long, conflicts_with_all = ["state", "limit"])]
    count: bool,
    #[command(flatten)]
    pub service: ServiceArgs,
}

#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Id of the job.
    job: String,
    /// The task to begin with, e.g. `3.17`; without it, the job's first task.
    #[arg(long, value_name = "PATH")]
    under: Option<String>,
    /// Number of levels below it.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "LEVELS")]
    depth: u32,
    /// Maximum number of lines of each task's subtasks; those that need attention come first.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
    #[command(flatten)]
    pub service: ServiceArgs,
}

pub async fn tasks(args: TasksArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let under = args.under.as_deref();
    if args.count {
        let counts = client.task_counts(&args.job, under).await?;
        if output.is_json() {
            say!("{}", serde_json::to_string(&counts)?);
        } else {
            let number = |number: Option<i64>| number.unwrap_or_default();
            let counted = [
                ("failed", counts.failed),
                ("retrying", counts.retrying),
                ("running", counts.running),
                ("waiting", counts.waiting),
                ("blocked", counts.blocked),
                ("done", counts.done),
            ];
            let known = counted.iter().filter(|(_, count)| count.is_some());
            for (state, count) in known {
                say!("{:>12} {state}", number(*count));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut query = vec![];
    query.extend(under.map(|under| ("under", under.to_owned())));
    if let Some(state) = &args.state {
        query.extend([("state", state.clone()), ("deep", "true".to_owned())]);
    }
    let (found, is_all) = read(&client, &args.job, query, args.limit).await?;
    print_all(output, &found)?;
    if !is_all {
        remark!("batchwright: there are more; --limit lists them");
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn tree(args: TreeArgs) -> anyhow::Result<ExitCode> {
    let (client, output) = (args.service.client()?, args.service.output);
    let job = client.get(&args.job).await?;
    let width = print::width_of_output().filter(|_| output == Output::Table);
    let fit = |line: String| width.map_or_else(|| line.clone(), |width| cut(&line, width));
    if matches!(output, Output::Table | Output::Wide) {
        let first = match &args.under {
            Some(task) => format!("task {} of {}", escaped(task), escaped(&job.id)),
            None => job_text::line(&job),
        };
        say!("{}", fit(first));
    }
    let mut array = Vec::new();
    let root = Branch {
        task: args.under.clone(),
        indent: String::new(),
        levels: args.depth,
    };
    // The next line is the first of these.
    let mut lines = VecDeque::from(branch(&client, &args, root).await?);
    while let Some(line) = lines.pop_front() {
        match (&line.entry, output) {
            (Some(entry), Output::Json) => array.push(entry.clone()),
            (Some(entry), Output::Ndjson | Output::Name) => print_one(output, entry, &[])?,
            (_, Output::Table | Output::Wide) => say!("{}", fit(line.text)),
            (None, _) => {}
        }
        if let Some(below) = line.below {
            for line in branch(&client, &args, below).await?.into_iter().rev() {
                lines.push_front(line);
            }
        }
    }
    if output == Output::Json {
        say!("{}", serde_json::to_string(&array)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// A task whose subtasks are to be printed.
struct Branch {
    task: Option<String>,
    indent: String,
    /// The number of levels to print.
    levels: u32,
}

/// A line of a tree.
struct Line {
    text: String,
    entry: Option<TaskEntry>,
    below: Option<Branch>,
}

/// Returns the lines of the subtasks of a task, without what is below them.
async fn branch(client: &Client, args: &TreeArgs, branch: Branch) -> anyhow::Result<Vec<Line>> {
    let under = branch.task.as_deref();
    let mut query = vec![("failedFirst", "true".to_owned())];
    query.extend(under.map(|under| ("under", under.to_owned())));
    let (entries, is_all) = read(client, &args.job, query, args.limit).await?;
    let mut lines = Vec::with_capacity(entries.len());
    let last = entries.len().saturating_sub(1);
    for (at, entry) in entries.into_iter().enumerate() {
        let is_last = is_all && at == last;
        let (corner, indent) = if is_last {
            ("└─", "   ")
        } else {
            ("├─", "│  ")
        };
        let below = match &entry {
            TaskEntry::Task(task) if has_more(task) && branch.levels > 1 => Some(Branch {
                task: Some(task.id.clone()),
                indent: format!("{}{indent}", branch.indent),
                levels: branch.levels - 1,
            }),
            _ => None,
        };
        lines.push(Line {
            text: format!("{}{corner} {}", branch.indent, describe(&entry)),
            entry: Some(entry),
            below,
        });
    }
    if !is_all {
        let under = under.map(|under| format!(" --under {under}"));
        let text = format!(
            "{}└─ … more: {}{}",
            branch.indent,
            args.service.command("tasks", &args.job),
            under.unwrap_or_default()
        );
        lines.push(Line {
            text,
            entry: None,
            below: None,
        });
    }
    Ok(lines)
}

/// Returns up to `limit` entries, and whether these are all.
async fn read(
    client: &Client,
    job: &str,
    query: Vec<(&'static str, String)>,
    limit: u32,
) -> anyhow::Result<(Vec<TaskEntry>, bool)> {
    let (mut found, mut after) = (Vec::new(), None);
    let limit = limit as usize;
    loop {
        let mut query = query.clone();
        query.push(("limit", (limit - found.len()).min(PAGE).to_string()));
        query.extend(after.map(|after| ("after", after)));
        let page = client.tasks(job, &query).await?;
        if let Some(remark) = &page.remark {
            remark!("batchwright: {}", escaped(remark));
        }
        found.extend(page.tasks);
        after = page.next;
        if after.is_none() || found.len() >= limit {
            found.truncate(limit);
            return Ok((found, after.is_none()));
        }
    }
}

fn has_more(task: &ListedTask) -> bool {
    task.completed_subtasks.is_some() || task.subtasks.is_some() || task.failures_below > 0
}

/// Returns one line about a task or a range of tasks.
fn describe(entry: &TaskEntry) -> String {
    let task = match entry {
        TaskEntry::Range(range) => {
            let tasks = or_empty(tasks_of(range).map(|tasks| format!(", {tasks}")));
            return format!("{} {}{tasks}", escaped(&entry.name()), range.state.name());
        }
        TaskEntry::Task(task) => task,
    };
    let mut text = format!("{} {}", escaped(&task.id), task.state.name());
    if let Some(done) = task.completed_subtasks {
        let all = task
            .subtasks
            .map_or_else(|| "?".to_owned(), |all| all.to_string());
        push(&mut text, format_args!(", {done} of {all} done"));
    }
    if let Some(progress) = task.progress {
        push(&mut text, format_args!(", {progress:.1} %"));
    }
    if let Some(attempts) = task.attempts {
        let attempts = numbered(attempts.unsigned_abs().into(), "attempt");
        push(&mut text, format_args!(", {attempts} failed"));
    }
    if task.failures_below > 0 {
        push(
            &mut text,
            format_args!(", {} failed below", task.failures_below),
        );
    }
    if let Some(label) = &task.label {
        push(&mut text, format_args!(" ({})", escaped(label)));
    }
    if let Some(failure) = &task.failure {
        let kind = failure.failure_id.as_deref().unwrap_or(MISSING);
        let message = failure.failure_message.as_deref().unwrap_or(MISSING);
        push(
            &mut text,
            format_args!(": {}: {}", escaped(kind), escaped(message)),
        );
    }
    text
}

/// Appends to a text.
fn push(text: &mut String, more: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(more);
}

/// Returns how many tasks a range has, unless it is one.
fn tasks_of(range: &TaskRange) -> Option<String> {
    let count = i64::from(range.last) - i64::from(range.first) + 1;
    (count != 1).then(|| format!("{count} tasks"))
}

/// Returns what a task is: its label, or how much of it is done.
fn what(task: &ListedTask) -> String {
    let all = || {
        task.subtasks
            .map_or_else(|| "?".to_owned(), |all| all.to_string())
    };
    let split = task
        .completed_subtasks
        .map(|done| format!("{done} of {} done", all()));
    let progress = task.progress.map(|progress| format!("{progress:.1} %"));
    or_empty(task.label.clone().or(split).or(progress))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::table;

    fn entries() -> Vec<TaskEntry> {
        serde_json::from_value(json!([
            {"under": "3", "first": 1, "last": 16, "state": "done"},
            {"id": "3.17", "state": "failed", "label": "page 17", "since": 1_795_367_823_000_i64, "attempts": 3, "failure": {
                "failureId": "RESULT_EXCEPTION", "failureTime": null, "failureSource": null, "failureMessage": "the page\nis torn"}},
            {"id": "3.18", "state": "running", "subtasks": 100, "completedSubtasks": 40, "failuresBelow": 2},
            {"under": "0", "first": 19, "last": 19, "state": "waiting"},
        ]))
        .unwrap()
    }

    #[test]
    fn tasks_are_listed_within_eighty_columns() {
        assert_eq!(
            table(TaskEntry::COLUMNS, &entries(), Some(80), 1_795_368_003_000),
            [
                "TASK    STATE    AGE  ATTEMPTS  WHAT            FAILURE",
                "3.1-16  done       -         -  16 tasks        -",
                "3.17    failed    3m         3  page 17         the page\\nis torn",
                "3.18    running    -         -  40 of 100 done  -",
                "19      waiting    -         -  -               -",
            ]
        );
    }

    #[test]
    fn line_of_a_tree_says_what_needs_attention() {
        let lines: Vec<_> = entries().iter().map(describe).collect();
        assert_eq!(
            lines,
            [
                "3.1-16 done, 16 tasks",
                "3.17 failed, 3 attempts failed (page 17): RESULT_EXCEPTION: the page\\nis torn",
                "3.18 running, 40 of 100 done, 2 failed below",
                "19 waiting",
            ]
        );
    }
}
