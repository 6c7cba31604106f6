//! Runs one command by its keeper, within its limits.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use framework::{Context, TaskError};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio_util::sync::CancellationToken;

use crate::definition::Command;
use crate::keeper::{Keeper, LONGEST_REPORT, Report};

/// How long a keeper may take to kill everything. It has a shorter limit itself.
const GRACE: Duration = Duration::from_secs(15);

/// What is to run.
pub struct Order<'a> {
    pub command: &'a Command,
    pub arguments: Vec<String>,
    pub stdin: Vec<u8>,
    pub keeper: &'a Keeper,
    /// Where the folder of the command is made.
    pub scratch: &'a Path,
}

/// What a command has done, and what it wrote.
#[derive(Debug)]
pub struct Outcome {
    pub ended: Ended,
    pub output: Vec<u8>,
    /// The end of its error text.
    pub error_text: Vec<u8>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Killed(i32),
    TimeLimit,
    TooMuchOutput,
    NotStarted { reason: String, again: bool },
}

/// What the streams of a keeper say.
struct Streams {
    output: Vec<u8>,
    error_text: Vec<u8>,
}

/// Runs a command. If the future is dropped, its keeper kills the command.
pub async fn run(order: Order<'_>, ctx: &Context) -> Result<Outcome, TaskError> {
    let command = order.command;
    let folder = folder(order.scratch).await?;
    let mut child = spawn(&order, &folder)?;
    let (stop, is_full) = (CancellationToken::new(), CancellationToken::new());
    let (Some(to), Some(out), Some(err)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(TaskError::retry("the keeper of the command has no pipes"));
    };
    let all = async {
        let ((), output, error_text, status) = tokio::join!(
            feed(to, &order.stdin, &stop),
            head(out, command.max_output, &is_full),
            tail(err, command.max_error_text + LONGEST_REPORT),
            child_end(&mut child, &stop),
        );
        status?;
        Ok::<_, TaskError>(Streams {
            output: output?,
            error_text: error_text?,
        })
    };
    tokio::pin!(all);
    let stopped = tokio::select! {
        streams = &mut all => return Ok(outcome(streams?, command, None)),
        () = tokio::time::sleep(command.time_limit) => Ok(Ended::TimeLimit),
        () = is_full.cancelled() => Ok(Ended::TooMuchOutput),
        error = ctx.cancelled() => Err(error),
    };
    stop.cancel();
    let streams = tokio::time::timeout(GRACE, all).await;
    let ended = stopped?;
    let streams = streams.map_err(|_| TaskError::retry("the command cannot be killed"))??;
    Ok(outcome(streams, command, Some(ended)))
}

/// Makes the folder of a command.
async fn folder(scratch: &Path) -> Result<TempDir, TaskError> {
    let scratch = scratch.to_owned();
    let made = tokio::task::spawn_blocking(move || {
        tempfile::Builder::new()
            .prefix("batchwright-command-")
            .tempdir_in(scratch)
    });
    Ok(made.await??)
}

fn spawn(order: &Order<'_>, folder: &TempDir) -> Result<Child, TaskError> {
    let Order {
        command, keeper, ..
    } = order;
    let path = folder.path();
    let mut process = tokio::process::Command::new(keeper.program());
    process
        .args(Keeper::arguments(path, command.memory, order.stdin.len()))
        .arg(&command.program)
        .args(&order.arguments)
        .env_clear()
        .env("HOME", path)
        .env("TMPDIR", path)
        .envs(&command.environment)
        .current_dir(path)
        // What a terminal sends to the worker is not for its commands.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    process.spawn().map_err(|error| {
        TaskError::retry(format!(
            "the keeper of the command cannot be started: {error}"
        ))
    })
}

/// Writes standard input of the command to its keeper, which then waits: it kills the command when
/// this ends.
async fn feed(mut to: ChildStdin, input: &[u8], stop: &CancellationToken) {
    let write = async {
        // A keeper that has ended says why.
        let _ = to.write_all(input).await;
        std::future::pending::<()>().await;
    };
    let _ = stop.run_until_cancelled(write).await;
}

/// Waits for the end of the keeper, and lets `feed` end.
async fn child_end(child: &mut Child, stop: &CancellationToken) -> std::io::Result<()> {
    let ended = child.wait().await;
    stop.cancel();
    ended.map(|_| ())
}

/// Reads a stream to its end, and returns its beginning. Says so when it is longer.
async fn head(
    mut from: impl AsyncRead + Unpin,
    most: usize,
    is_full: &CancellationToken,
) -> std::io::Result<Vec<u8>> {
    let mut read = Vec::new();
    (&mut from).take(most as u64).read_to_end(&mut read).await?;
    let mut buffer = vec![0; 8192];
    while from.read(&mut buffer).await? > 0 {
        is_full.cancel();
    }
    Ok(read)
}

/// Reads a stream to its end, and returns its last bytes.
async fn tail(mut from: impl AsyncRead + Unpin, most: usize) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut buffer = vec![0; 8192];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            kept.drain(..kept.len().saturating_sub(most));
            return Ok(kept);
        }
        kept.extend_from_slice(&buffer[..read]);
        // Now and then, so that each byte is moved a few times at the most.
        if kept.len() > 2 * most {
            kept.drain(..kept.len() - most);
        }
    }
}

fn outcome(streams: Streams, command: &Command, stopped: Option<Ended>) -> Outcome {
    let Streams {
        output,
        mut error_text,
    } = streams;
    let report = Report::take_from(&mut error_text);
    error_text.drain(..error_text.len().saturating_sub(command.max_error_text));
    let ended = stopped.unwrap_or(match report {
        Some(Report {
            exit: Some(code), ..
        }) => Ended::Exited(code),
        Some(Report {
            signal: Some(signal),
            ..
        }) => Ended::Killed(signal),
        Some(Report {
            problem: Some(reason),
            again,
            ..
        }) => Ended::NotStarted { reason, again },
        _ => Ended::NotStarted {
            reason: "its keeper was killed".to_owned(),
            again: true,
        },
    });
    Outcome {
        ended,
        output,
        error_text,
    }
}
