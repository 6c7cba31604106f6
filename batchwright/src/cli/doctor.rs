//! `batchwright doctor`: looks at what a system needs and says what is wrong with it, and why jobs do not go on.
//!
//! What must stay true: it changes nothing. It declares no queue, takes no message and applies no migration.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use batchwright::client::Client;
use clap::Args;
use contract::JobStatus;
use contract::rest::{Job, NewJob};
use framework::broker::amqp::{Amqp, AmqpOptions, QueueType};
use framework::broker::{Broker as _, BrokerError};
use serde::Serialize;

use super::connect::{Output, ServiceArgs};
use super::jobs::{now, print_table};
use crate::print::say;
use crate::task_text::due;
use crate::text::{Column, escaped};

/// How long RabbitMQ may take to accept a connection.
const BROKER_LIMIT: Duration = Duration::from_secs(10);

const COLUMNS: [Column; 3] = [
    Column::text("STATE"),
    Column::cut_to("OF", 16),
    Column::text("WHAT"),
];

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Ids of jobs; for each, the command says why it does not go on.
    job: Vec<String>,
    /// URL of RabbitMQ, to look at the queues themselves.
    #[arg(
        long,
        env = "BATCHWRIGHT_BROKER",
        hide_env_values = true,
        value_name = "URL"
    )]
    broker: Option<String>,
    /// Type that the RabbitMQ queues should have: `quorum` or `classic`.
    #[arg(
        long,
        env = "BATCHWRIGHT_QUEUE_TYPE",
        default_value = "quorum",
        value_name = "TYPE"
    )]
    queue_type: QueueType,
    /// `x-max-priority` that classic queues should have; 0 for none.
    #[arg(
        long,
        env = "BATCHWRIGHT_MAX_PRIORITY",
        default_value_t = 0,
        value_name = "PRIORITY"
    )]
    max_priority: u8,
    /// Name of a pipe to look at; may be repeated. The first pipes of the jobs are looked at in any case.
    #[arg(long, value_name = "PIPE")]
    pipe: Vec<String>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    state: State,
    /// What it is about: a part of the system, a pipe or a job.
    of: String,
    what: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// It works, and somebody should look at it; or it waits for something.
    Note,
    Broken,
}

impl Finding {
    fn new(state: State, of: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            state,
            of: of.into(),
            what: what.into(),
            remedy: None,
        }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// Exits with 1 if anything is broken.
pub async fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let client = args.service.client()?;
    let mut found = service(&client, &args.service).await;
    let mut pipes = args.pipe.clone();
    if found
        .iter()
        .all(|it| it.of != SERVICE || it.state != State::Broken)
    {
        for job in &args.job {
            let (findings, pipe) = examine(&client, job, &args.service).await;
            found.extend(findings);
            pipes.extend(pipe);
        }
    }
    pipes.sort();
    pipes.dedup();
    found.extend(broker(&args, &pipes).await?);
    print(&found, args.service.output)?;
    let is_broken = found.iter().any(|it| it.state == State::Broken);
    Ok(if is_broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The name of the job service in findings.
const SERVICE: &str = "job service";

/// Looks whether the job service can be reached, and at its own checks of its health.
async fn service(client: &Client, args: &ServiceArgs) -> Vec<Finding> {
    let reached = Finding::new(
        State::Ok,
        SERVICE,
        format!("{}, partition {}", args.url, args.partition),
    );
    match client.health().await {
        Ok(checks) => {
            let checks = checks.into_iter().filter_map(|check| {
                let state = match (check.healthy, check.degraded) {
                    (false, _) => State::Broken,
                    (true, true) => State::Note,
                    // What is always well says nothing.
                    (true, false) => match check.name.as_str() {
                        "database" | "queue" => State::Ok,
                        _ => return None,
                    },
                };
                let what = check
                    .message
                    .unwrap_or_else(|| "reached by the job service".to_owned());
                Some(Finding::new(state, check.name, what))
            });
            std::iter::once(reached).chain(checks).collect()
        }
        Err(error) => {
            let broken = Finding::new(State::Broken, SERVICE, error.to_string());
            let remedy = if error.is_transient() {
                "start it (batchwright up, batchwright run job-service), or name another one with --url or --context"
            } else {
                "the URL ends in /job-service/v1; name it with --url or --context"
            };
            vec![broken.remedy(remedy)]
        }
    }
}

/// Says why a job does not go on. Returns also the pipe of its first task, if nothing better explains that it waits.
async fn examine(client: &Client, id: &str, args: &ServiceArgs) -> (Vec<Finding>, Option<String>) {
    let job = match client.get(id).await {
        Ok(job) => job,
        Err(error) => {
            let broken = Finding::new(State::Broken, id, error.to_string());
            return (vec![broken], None);
        }
    };
    let found = reasons(&job, now(), |command| args.command(command, id));
    if !found.is_empty() {
        return (found, None);
    }
    // The pipe tells the rest: what waits there, and whether anybody takes it.
    let pipe = match client.definition(id).await {
        Ok(definition) => pipe_of(definition),
        Err(_) => None,
    };
    let what = match &pipe {
        Some(pipe) => format!("{}; its first task goes to the pipe {pipe}", job.status),
        None => format!("{}; nothing says why it would wait", job.status),
    };
    (vec![Finding::new(State::Ok, id, what)], pipe)
}

fn pipe_of(definition: NewJob) -> Option<String> {
    definition.task?.task_pipe
}

/// Returns what keeps a job from going on, as far as the job itself says it. `command` makes the command line of a command about it.
fn reasons(job: &Job, now: i64, command: impl Fn(&str) -> String) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut note = |what: String, remedy: Option<String>| {
        let finding = Finding::new(State::Note, &job.id, what);
        found.push(Finding { remedy, ..finding });
    };
    match job.status {
        JobStatus::Completed if job.failed_tasks == 0 => {
            note("Completed: there is nothing left to do".to_owned(), None);
        }
        JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled => note(
            format!("{}; failed tasks: {}", job.status, job.failed_tasks),
            Some(format!("{}; {}", command("failures"), command("retry"))),
        ),
        JobStatus::Paused => note(
            "Paused: running tasks finish, and no further task starts".to_owned(),
            Some(command("resume")),
        ),
        JobStatus::Active | JobStatus::Blocked | JobStatus::Waiting => {}
    }
    for awaited in &job.waiting_for {
        let status = awaited.status.map_or("does not exist yet", |it| it.name());
        note(
            format!("waits for the job {}: {status}", awaited.job_id),
            None,
        );
    }
    if let Some(time) = job.due_time {
        note(format!("is delayed until {}", due(time, now)), None);
    }
    if job.suspended {
        let remedy = "POST …/partitions/{id}/dispatch";
        note(
            "waits until its partition is dispatched".to_owned(),
            Some(remedy.to_owned()),
        );
    }
    if let Some(retrying) = job.items.retrying.filter(|number| *number > 0)
        && !job.status.is_finished()
    {
        let next = job
            .next_attempt_time
            .map(|time| format!("; the next is due {}", due(time, now)));
        note(
            format!(
                "{retrying} tasks wait for another attempt{}",
                next.unwrap_or_default()
            ),
            Some(format!("{} --state retrying", command("tasks"))),
        );
    }
    for text in &job.notes {
        note(text.clone(), None);
    }
    found
}

/// Looks at RabbitMQ itself, if its URL is known.
async fn broker(args: &DoctorArgs, pipes: &[String]) -> anyhow::Result<Vec<Finding>> {
    let Some(url) = &args.broker else {
        return Ok(Vec::new());
    };
    let amqp = Amqp::connect(AmqpOptions {
        queue_type: args.queue_type,
        max_priority: args.max_priority,
        tls: args.service.tls()?,
        name: "batchwright doctor".to_owned(),
        declare: false,
        ..AmqpOptions::new(url.as_str())
    })
    .context("the URL of RabbitMQ (--broker) is invalid")?;
    let mut found = Vec::new();
    if let Err(error) = amqp.connected(BROKER_LIMIT).await {
        let broken = Finding::new(State::Broken, "rabbitmq", error.to_string());
        found.push(broken.remedy("start it, or correct --broker"));
    } else {
        found.push(Finding::new(State::Ok, "rabbitmq", "accepts connections"));
        for pipe in pipes {
            found.extend(queue(&amqp, pipe).await);
        }
    }
    amqp.close().await;
    Ok(found)
}

/// Looks at the queue of a pipe: whether it exists, what waits, and whether its arguments are those expected.
async fn queue(amqp: &Amqp, pipe: &str) -> Vec<Finding> {
    let broken = |error: BrokerError| vec![Finding::new(State::Broken, pipe, error.to_string())];
    match amqp.exists(pipe).await {
        Err(error) => return broken(error),
        Ok(false) => {
            let missing = "the queue does not exist: no worker has declared it";
            let missing = Finding::new(State::Note, pipe, missing);
            return vec![missing.remedy("start the worker of this pipe")];
        }
        Ok(true) => {}
    }
    let mut found = match amqp.depth(pipe).await {
        Err(error) => return broken(error),
        Ok(depth) => vec![Finding::new(
            State::Ok,
            pipe,
            format!("{depth} messages wait"),
        )],
    };
    match amqp.other_arguments(pipe).await {
        Err(error) => found.extend(broken(error)),
        Ok(None) => {}
        Ok(Some(difference)) => found.push(
            Finding::new(
                State::Note,
                pipe,
                format!("the queue has other arguments than expected: {difference}"),
            )
            .remedy(
                "it is used as it is; to change it, stop its workers, empty it, delete it and let them declare it again, or set --queue-type",
            ),
        ),
    }
    found
}

fn print(found: &[Finding], output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json => say!("{}", serde_json::to_string(found)?),
        Output::Ndjson => {
            for finding in found {
                say!("{}", serde_json::to_string(finding)?);
            }
        }
        Output::Name => {
            for finding in found.iter().filter(|it| it.state != State::Ok) {
                say!("{}", escaped(&finding.of));
            }
        }
        Output::Table | Output::Wide => {
            // Nothing is cut: what is wrong must be read.
            let rows: Vec<_> = found.iter().flat_map(rows).collect();
            print_table(&COLUMNS, &rows, None)?;
        }
    }
    Ok(())
}

/// Returns the rows of a finding: what was found, and what to do.
fn rows(finding: &Finding) -> Vec<Vec<String>> {
    let Finding {
        state,
        of,
        what,
        remedy,
    } = finding;
    let state = match state {
        State::Ok => "ok",
        State::Note => "note",
        State::Broken => "BROKEN",
    };
    let mut rows = vec![vec![
        state.to_owned(),
        escaped(of).into_owned(),
        escaped(what).into_owned(),
    ]];
    let remedy = remedy.as_ref();
    rows.extend(remedy.map(|it| vec![String::new(), String::new(), format!("→ {}", escaped(it))]));
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::text::table;

    const NOW: i64 = 1_795_368_003_000;

    fn found(fields: &Value) -> Vec<String> {
        let mut job = json!({
            "id": "words", "status": "Active", "createTime": NOW, "lastUpdateTime": NOW, "percentageComplete": 0, "failures": [],
            "labels": {},
        });
        job.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let job: Job = serde_json::from_value(job).unwrap();
        let found = reasons(&job, NOW, |command| format!("batchwright {command} words"));
        let rows: Vec<_> = found.iter().flat_map(rows).collect();
        table(&COLUMNS, &rows, None).split_off(1)
    }

    #[test]
    fn job_that_waits_says_for_what_and_what_to_do() {
        assert_eq!(found(&json!({})), [""; 0]);
        assert_eq!(
            found(&json!({
                "status": "Waiting", "waitingFor": [{"jobId": "a", "status": "Active"}, {"jobId": "b", "status": null}],
                "dueTime": NOW + 90_000, "suspended": true,
            })),
            [
                "note   words  waits for the job a: Active",
                "note   words  waits for the job b: does not exist yet",
                "note   words  is delayed until 2026-11-22 17:21:33 UTC (in 1m30s)",
                "note   words  waits until its partition is dispatched",
                "              → POST …/partitions/{id}/dispatch",
            ]
        );
        assert_eq!(
            found(
                &json!({"status": "Paused", "items": {"done": 0, "failed": 0, "retrying": 3}, "nextAttemptTime": NOW + 5000})
            )[..4],
            [
                "note   words  Paused: running tasks finish, and no further task starts",
                "              → batchwright resume words",
                "note   words  3 tasks wait for another attempt; the next is due 2026-11-22 17:20:08 UTC (in 5s)",
                "              → batchwright tasks words --state retrying",
            ]
        );
        assert_eq!(
            found(&json!({"status": "Failed", "failedTasks": 2})),
            [
                "note   words  Failed; failed tasks: 2",
                "              → batchwright failures words; batchwright retry words",
            ]
        );
        assert_eq!(
            found(&json!({"status": "Completed", "failedTasks": 2})),
            [
                "note   words  Completed; failed tasks: 2",
                "              → batchwright failures words; batchwright retry words",
            ]
        );
    }
}
