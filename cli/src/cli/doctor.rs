//! `batchwright doctor`: looks at what a system needs and says what is wrong with it, and why jobs
//! do not go on.
//!
//! What must stay true: it changes nothing. It declares no queue, takes no message and applies no
//! migration.

mod finding;
mod jobs;
mod management;
mod servers;

use std::process::ExitCode;

use batchwright::client::{Client, ClientError};
use clap::Args;

use self::finding::{Finding, State, print};
use self::jobs::Uses;
use super::connect::ServiceArgs;
use super::queue_args::QueueArgs;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Ids of jobs; for each, the command says why it does not go on. Without them, it looks at the
    /// unfinished jobs of the partition.
    job: Vec<String>,
    /// URL of RabbitMQ, to look at the queues themselves.
    #[arg(
        long,
        env = "BATCHWRIGHT_BROKER",
        hide_env_values = true,
        value_name = "URL"
    )]
    broker: Option<String>,
    /// URL of the management API of RabbitMQ, to see what policies do with the queues:
    /// `http://user:password@host:15672`; needs `--broker`.
    #[arg(
        long,
        env = "BATCHWRIGHT_MANAGEMENT",
        hide_env_values = true,
        requires = "broker",
        value_name = "URL"
    )]
    management: Option<String>,
    #[command(flatten)]
    queues: QueueArgs,
    /// URL of the database, to look at it itself; needs the rights of a reader.
    #[arg(
        long,
        env = "BATCHWRIGHT_DATABASE",
        hide_env_values = true,
        value_name = "URL"
    )]
    database: Option<String>,
    /// Name of a pipe to look at, also if nothing waits in it; may be repeated. The pipes of the
    /// jobs and workers are looked at in any case.
    #[arg(long, value_name = "PIPE")]
    pipe: Vec<String>,
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// Exits with 1 if anything is broken.
pub async fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let client = args.service.client()?;
    let mut found = service(&client, &args.service).await;
    let mut uses = Uses::new();
    let mut pipes = args.pipe.clone();
    if found
        .iter()
        .all(|it| it.of != SERVICE || it.state != State::Broken)
    {
        let looked = look(&client, &args, &mut uses, &mut found).await;
        match looked {
            Ok(of_workers) => pipes.extend(of_workers),
            Err(error) => {
                // Who may not see pipes and workers sees no fault of theirs either.
                let state = match error {
                    ClientError::Refused { status: 403, .. } => State::Unseen,
                    _ => State::Broken,
                };
                found.push(Finding::new(state, SERVICE, error.to_string()));
            }
        }
    }
    pipes.extend(uses.into_keys());
    pipes.sort();
    pipes.dedup();
    found.extend(servers::broker(&args, &pipes, &found).await?);
    found.extend(servers::database(args.database.as_deref()).await);
    print(&found, args.service.output)?;
    let is_broken = found.iter().any(|it| it.state == State::Broken);
    Ok(if is_broken {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Looks at jobs, workers and pipes, as the job service shows them. Returns the pipes of the
/// workers.
async fn look(
    client: &Client,
    args: &DoctorArgs,
    uses: &mut Uses,
    found: &mut Vec<Finding>,
) -> Result<Vec<String>, ClientError> {
    if args.job.is_empty() && !jobs::unfinished(client, uses).await? {
        let what = "there are more unfinished jobs than the fifty newest, which were looked at";
        found.push(Finding::new(State::Unseen, "jobs", what));
    }
    for job in &args.job {
        found.extend(jobs::examine(client, job, &args.service, uses).await);
    }
    for pipe in &args.pipe {
        uses.entry(pipe.clone()).or_default();
    }
    found.extend(jobs::waiting(client, uses, &args.pipe).await?);
    let workers = client.workers().await?.workers;
    found.push(workers_seen(&workers));
    Ok(workers.into_iter().filter_map(|it| it.input).collect())
}

/// Says which workers there are.
fn workers_seen(workers: &[contract::Worker]) -> Finding {
    let mut inputs: Vec<&str> = workers
        .iter()
        .filter_map(|it| it.input.as_deref())
        .collect();
    inputs.sort_unstable();
    inputs.dedup();
    if inputs.is_empty() {
        return Finding::new(
            State::Note,
            "workers",
            "none has told of itself; each does every five seconds",
        )
        .remedy("start some (batchwright up, batchwright run ROLE); those of CAF never tell");
    }
    Finding::new(
        State::Ok,
        "workers",
        format!("they take from {}", inputs.join(", ")),
    )
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
