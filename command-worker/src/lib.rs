//! Makes any program a worker: a task runs a command that the operator of the worker has defined.
//!
//! A job names a command, and its items fill the places that the operator has left for them
//! ([`Commands`]). What a command writes to its standard output is the result of the task.
//!
//! What must stay true:
//! - A job never says what runs. There is no shell, an item is one argument or standard input, and
//!   it is never an option unless the operator has said so. Only [`Commands::allow_any`] lets jobs
//!   bring commands of their own.
//! - A command knows nothing of the process that started it: neither its environment nor the files
//!   that it opens.
//! - Nothing of a command outlives its task, also if the worker is killed: a [keeper] kills what it
//!   has started, and removes its folder.
//! - What a command costs is bounded: its time, the bytes that are kept of it, and the memory of
//!   its processes if the operator says so.
#![warn(missing_docs)]

mod answers;
mod definition;
mod item;
pub mod keeper;
mod run;
mod task;
mod text;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use framework::queries::Answerer;
use framework::{Context, OrFail, Reply, TaskError, Worker};

pub use definition::{Command, Commands, CommandsError, ItemPlace, Retry};
pub use item::Files;
pub use keeper::Keeper;
pub use task::{CommandResult, CommandTask};

use run::{Ended, Order, Outcome};

/// The parameter of a batch that names the command of its items.
pub const COMMAND_PARAM: &str = "command";
/// The parameter of a batch that is itself a command: a JSON array of the program and its
/// arguments.
pub const ARGV_PARAM: &str = "argv";

/// Runs commands.
#[derive(Debug, Clone)]
pub struct CommandWorker {
    commands: Arc<Commands>,
    keeper: Keeper,
    files: Files,
    scratch: PathBuf,
}

impl CommandWorker {
    /// Returns a worker that runs these commands. Tasks for files find them by `files`.
    pub fn new(commands: Commands, keeper: Keeper, files: Files) -> Self {
        Self {
            commands: Arc::new(commands),
            keeper,
            files,
            scratch: std::env::temp_dir(),
        }
    }

    /// Returns the command that a task asks for, with the name that people know it by.
    fn command_of(&self, task: &CommandTask) -> Result<(String, Command), TaskError> {
        if let Some(argv) = task.params.get(ARGV_PARAM) {
            return self.commands.of_job(argv).or_fail();
        }
        let name = task.command.as_ref();
        let name = name.or_else(|| task.params.get(COMMAND_PARAM));
        let command = self.commands.named(name.map(String::as_str)).or_fail()?;
        Ok((name.cloned().unwrap_or_default(), command.clone()))
    }
}

impl Worker for CommandWorker {
    type Input = CommandTask;
    type Output = CommandResult;

    async fn run(
        &self,
        task: CommandTask,
        ctx: Context,
    ) -> Result<Reply<CommandResult>, TaskError> {
        let (name, command) = self.command_of(&task)?;
        let item = match command.item {
            ItemPlace::None => String::new(),
            ItemPlace::Argument | ItemPlace::Stdin => self.files.item(&task).await?,
        };
        let order = Order {
            arguments: command.arguments(&item).map_err(|problem| {
                TaskError::failed(format!("the command '{name}' does not run: {problem}"))
            })?,
            stdin: match command.item {
                ItemPlace::Stdin => item.clone().into_bytes(),
                ItemPlace::None | ItemPlace::Argument => Vec::new(),
            },
            command: &command,
            keeper: &self.keeper,
            scratch: &self.scratch,
        };
        let begin = Instant::now();
        let outcome = run::run(order, &ctx).await?;
        let took = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        match &outcome.ended {
            Ended::Exited(code) if command.success.contains(code) => {
                Ok(Reply::send(CommandResult::new(name, &item, *code, outcome, took)).if_wanted())
            }
            _ => Err(failure(&name, &command, &outcome)),
        }
    }

    fn answerer(&self) -> Option<Arc<dyn Answerer>> {
        Some(Arc::new(self.clone()))
    }
}

/// Returns why a task has failed, and whether it runs again.
fn failure(name: &str, command: &Command, outcome: &Outcome) -> TaskError {
    let said = outcome.last_words();
    let said = if said.is_empty() {
        said
    } else {
        format!(": {said}")
    };
    let how = match &outcome.ended {
        Ended::Exited(code) => format!("ended with exit code {code}"),
        Ended::Killed(signal) => format!("was ended by {}", text::signal(*signal)),
        Ended::TimeLimit => {
            let limit = command.time_limit.as_secs();
            format!("was stopped: it took longer than its time limit of {limit} s")
        }
        Ended::TooMuchOutput => {
            let most = command.max_output;
            format!("was stopped: it wrote more than {most} bytes of output (maxOutput)")
        }
        Ended::NotStarted { reason, .. } => format!("cannot be started: {reason}"),
    };
    let reason = format!("the command '{name}' {how}{said}");
    let again = match &outcome.ended {
        Ended::Exited(code) => command.retry.contains(&Retry::Code(*code)),
        Ended::Killed(_) => command.retry.contains(&Retry::Signal),
        Ended::TimeLimit => command.retry.contains(&Retry::TimeLimit),
        Ended::TooMuchOutput => false,
        Ended::NotStarted { again, .. } => *again,
    };
    if again {
        TaskError::retry(reason)
    } else {
        TaskError::failed(reason)
    }
}
