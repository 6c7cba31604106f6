//! The command line. Each file contains one command or a group of commands: the flags and the
//! implementation.

mod api;
mod calls;
mod commands;
mod condition_args;
mod conditions;
mod connect;
mod dead;
mod doctor;
mod events;
mod explain;
mod failures;
mod history;
mod jobs;
mod laboratory;
mod letter_args;
mod manual;
mod outputs;
mod paged;
mod pipe_list;
mod pipes;
mod planned_panics;
mod queue_args;
mod resubmit;
mod retry;
pub mod script;
mod serve;
mod source_args;
mod sources;
mod submit;
mod task;
mod tokens;
mod top;
mod tree;
mod upload_args;
mod worker_args;
mod workers;

use std::process::ExitCode;

use clap::{Arg, Parser, Subcommand};
use framework::config::PREFIX;
use framework::config::env::Variables;

use self::conditions::ConditionsArgs;
pub use self::connect::{Output, ServerArgs};
use self::dead::DeadArgs;
use self::doctor::DoctorArgs;
use self::events::EventsArgs;
use self::failures::FailuresArgs;
use self::jobs::{
    AdjustArgs, CountArgs, DeleteArgs, GetArgs, JobArgs, ListArgs, TargetArgs, WatchArgs,
};
use self::laboratory::LaboratoryArgs;
pub use self::laboratory::run as run_laboratory;
use self::manual::{CompletionsArgs, ManArgs};
use self::outputs::OutputsArgs;
use self::pipe_list::PipesArgs;
use self::pipes::{PutArgs, TakeArgs};
use self::resubmit::ResubmitArgs;
use self::retry::RetryArgs;
use self::script::RunScriptArgs;
use self::serve::{RunArgs, UpArgs};
use self::sources::SourcesArgs;
use self::submit::SubmitArgs;
use self::tokens::TokensArgs;
use self::top::TopArgs;
use self::tree::{TasksArgs, TreeArgs};
use self::workers::WorkersArgs;
use crate::config::Configuration;
use crate::demo::{self, DemoArgs};
use crate::program::LogArgs;

/// Splits large batches into items, distributes them to workers, and counts the progress of each
/// job exactly.
#[derive(Debug, Parser)]
#[command(name = "batchwright", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub program: Program,
    #[command(flatten)]
    pub log: LogArgs,
}

// A doc comment here would replace the one of `Cli` in the help.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "the program has one value of it")]
pub enum Program {
    #[command(flatten)]
    Command(Command),
    /// Measure the throughput of jobs that do nothing, or the speed of reads; the laboratory does
    /// it.
    Bench(LaboratoryArgs),
    /// Kill processes, restart servers and cut connections in the middle of a job, and show that no
    /// item is lost; the laboratory does it.
    Chaos(LaboratoryArgs),
    // Runs without threads, because little memory is left for them.
    #[command(hide = true)]
    RunScript(RunScriptArgs),
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Count the words in files with a complete system in this process; needs no servers.
    Demo(DemoArgs),
    /// Run the job service and all workers in one process until it is stopped.
    #[command(mut_args(with_variable))]
    Up(UpArgs),
    /// Run one role against a shared broker and database until it is stopped.
    #[command(mut_args(with_variable))]
    Run(RunArgs),
    /// Create a job from a JSON file or from flags.
    Submit(SubmitArgs),
    /// Say what the batch of a job would be split into: how many items, splits and messages; takes
    /// what `submit` takes, and creates nothing.
    Explain(SubmitArgs),
    /// Show a job, or one task of it; for a job, exits with the code of `watch`, or with 0 while it
    /// is unfinished.
    Get(GetArgs),
    /// List the failures of a job, each with the item that has failed.
    Failures(FailuresArgs),
    /// List tasks of a job, or count them by state; tasks of which only the state is known share a
    /// line.
    Tasks(TasksArgs),
    /// Show the tree of a job's tasks; those that need attention come first.
    Tree(TreeArgs),
    /// List the changes of a job's status: when, who made it and why.
    History(JobArgs),
    /// Print the kept outputs of a job, one line of JSON each; goes on by itself after the
    /// connection broke.
    Outputs(OutputsArgs),
    /// List the jobs of a partition, newest first by default.
    List(ListArgs),
    /// Count the jobs of a partition.
    Count(CountArgs),
    /// Follow jobs until they finish; exits with 0 (Completed), 10 (one has failed), 11 (one is
    /// cancelled) or 12 (one has tolerated failures).
    Watch(WatchArgs),
    /// Print what happens to the jobs of a partition, or of all, while it happens; goes on where it
    /// was after the connection broke.
    Events(EventsArgs),
    /// Show the jobs of a partition and update them every few seconds; without a terminal, print
    /// them once.
    Top(TopArgs),
    /// Say what is wrong with a system, and why jobs do not go on; exits with 1 if anything is
    /// broken. Changes nothing.
    Doctor(DoctorArgs),
    /// Cancel jobs, or the unfinished jobs that match conditions.
    Cancel(TargetArgs),
    /// Delete jobs, or the jobs that match conditions, whatever their status; asks for a
    /// confirmation on a terminal.
    Delete(DeleteArgs),
    /// Pause a job: running tasks finish, and no further task starts.
    Pause(JobArgs),
    /// Resume a paused job.
    Resume(JobArgs),
    /// Change how much of its pipes a job gets that shares them with other jobs.
    Adjust(AdjustArgs),
    /// Go on with a job that has failed, was cancelled or has tolerated failures, or with those
    /// that match conditions: only what is not done runs again.
    Retry(RetryArgs),
    /// Run a job again as a new one with the same definition, under another id or in the place of
    /// the one that has ended.
    Resubmit(ResubmitArgs),
    /// List the pipes with what waits in them, or show one of them.
    Pipes(PipesArgs),
    /// List, show, replay or delete dead letters: messages that were given up, rejected, not
    /// understood or not deliverable.
    Dead(DeadArgs),
    /// List or show the conditions that tasks wait for, test them now, or send or fail their tasks.
    Conditions(ConditionsArgs),
    /// List, show or delete sources: what was uploaded for batches.
    Sources(SourcesArgs),
    /// List the workers of all processes, with their slots, their pipes and the task that each has
    /// run longest.
    Workers(WorkersArgs),
    /// Create, list or revoke tokens, which say who may do what.
    Tokens(TokensArgs),
    /// Take messages from a pipe: one line of JSON each, acknowledged when the line is written.
    Take(TakeArgs),
    /// Put messages into a pipe, as `take` prints them; they are stored when the command ends
    /// with 0.
    Put(PutArgs),
    /// Print what completes this command line in a shell, e.g. `batchwright completions bash`.
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands to a folder.
    Man(ManArgs),
}

/// Gives a setting of `up` and `run` its variable: `--max-parts` is also `BATCHWRIGHT_MAX_PARTS`.
fn with_variable(arg: Arg) -> Arg {
    match arg.get_long() {
        Some(flag) if arg.get_env().is_none() && arg.get_action().takes_values() => {
            let name = flag.replace('-', "_").to_uppercase();
            arg.env(format!("{PREFIX}{name}"))
        }
        _ => arg,
    }
}

impl Command {
    /// Runs the command and returns the exit code of the program.
    pub async fn execute(
        self,
        variables: &Variables,
        configuration: &Configuration,
    ) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(args) => demo::run(args).await,
            Self::Up(args) => Box::pin(serve::up(args, variables, configuration)).await,
            Self::Run(args) => Box::pin(serve::run(args, variables, configuration)).await,
            Self::Submit(args) => submit::submit(args).await,
            Self::Explain(args) => explain::explain(args).await,
            Self::Get(args) => jobs::get(args).await,
            Self::Failures(args) => failures::failures(args).await,
            Self::Tasks(args) => tree::tasks(args).await,
            Self::Tree(args) => tree::tree(args).await,
            Self::History(args) => history::history(args).await,
            Self::Outputs(args) => outputs::outputs(args).await,
            Self::List(args) => jobs::list(args).await,
            Self::Count(args) => jobs::count(args).await,
            Self::Watch(args) => jobs::watch(args).await,
            Self::Events(args) => events::events(args).await,
            Self::Top(args) => top::top(args).await,
            Self::Doctor(args) => doctor::doctor(args).await,
            Self::Cancel(args) => jobs::cancel(args).await,
            Self::Delete(args) => jobs::delete(args).await,
            Self::Pause(args) => {
                jobs::change(&args, async |client| client.pause(&args.job).await).await
            }
            Self::Resume(args) => {
                jobs::change(&args, async |client| client.resume(&args.job).await).await
            }
            Self::Adjust(AdjustArgs { job, share }) => {
                jobs::change(&job, async |client| client.adjust(&job.job, share).await).await
            }
            Self::Retry(args) => retry::retry(args).await,
            Self::Resubmit(args) => resubmit::resubmit(args).await,
            Self::Pipes(args) => pipe_list::pipes(args).await,
            Self::Dead(args) => dead::dead(args).await,
            Self::Conditions(args) => conditions::conditions(args).await,
            Self::Sources(args) => sources::sources(args).await,
            Self::Workers(args) => workers::workers(args).await,
            Self::Tokens(args) => tokens::tokens(args).await,
            Self::Take(args) => pipes::take(args).await,
            Self::Put(args) => pipes::put(args).await,
            Self::Completions(args) => manual::completions(&args),
            Self::Man(args) => manual::man(&args),
        }
    }
}

impl Program {
    /// Returns whether the program serves until it is stopped.
    pub const fn serves(&self) -> bool {
        matches!(self, Self::Command(Command::Up(_) | Command::Run(_)))
    }
}
