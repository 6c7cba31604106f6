//! Writes the results of commands to standard output, and remarks about them to standard error.
//!
//! What must stay true:
//! - Nothing here panics, even if an output is closed or the disk behind it is full. The macros of
//!   the standard library would.
//! - No character of a text or of JSON hides what is written or turns its direction.

use std::fmt::Arguments;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;

use batchwright::client::ClientError;
use chrono::Utc;
use contract::rest::ErrorBody;
use framework::log::printable;
use terminal_size::{Height, Width, terminal_size_of};

use crate::text::{self, Field};

/// The exit code of a program that the signal SIGINT ends.
pub const INTERRUPTED: u8 = 128 + 2;
/// The exit code of a command whose reader has gone: the one of a program that the signal SIGPIPE
/// ends.
const READER_GONE: u8 = 128 + 13;

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct Unwritten(#[from] io::Error);

/// Writes one line to standard output, and ends the function with an error if that fails.
#[macro_export]
#[doc(hidden)]
macro_rules! say {
    ($($text:tt)*) => { $crate::line(format_args!($($text)*))? };
}

/// Writes bytes to standard output.
pub fn bytes(bytes: &[u8]) -> Result<(), Unwritten> {
    let mut stdout = io::stdout();
    Ok(stdout.write_all(bytes).and_then(|()| stdout.flush())?)
}

/// Writes one line to standard error if that is possible.
#[macro_export]
#[doc(hidden)]
macro_rules! remark {
    ($($text:tt)*) => { $crate::remark_line(format_args!($($text)*)) };
}

pub(crate) use {remark, say};

/// Writes one line to standard output.
pub fn line(text: Arguments<'_>) -> Result<(), Unwritten> {
    Ok(writeln!(io::stdout(), "{}", printable(&text.to_string()))?)
}

/// Writes a table: a wide one, of which nothing is cut, or one that fits the terminal.
pub fn table<T>(columns: &[Field<T>], rows: &[T], is_wide: bool) -> Result<(), Unwritten> {
    let width = match width_of_output() {
        _ if is_wide => None,
        Some(width) => Some(width),
        None => Some(usize::MAX),
    };
    lines(&text::table(columns, rows, width, now()))
}

/// Writes lines.
pub fn lines(lines: &[String]) -> Result<(), Unwritten> {
    lines
        .iter()
        .try_for_each(|text| line(format_args!("{text}")))
}

/// Returns the time to which ages are printed, in milliseconds since 1970.
pub fn now() -> i64 {
    Utc::now().timestamp_millis()
}

/// Writes one line to standard error if that is possible.
pub fn remark_line(text: Arguments<'_>) {
    // Nowhere is left to say that it failed.
    let _ = writeln!(io::stderr(), "{}", printable(&text.to_string()));
}

/// Replaces the line on the terminal behind standard error, on which the cursor is.
pub fn rewrite_line(text: &str) {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
}

/// Returns the number of columns of a terminal; 80 if it does not tell.
pub fn width(terminal: &impl AsFd) -> usize {
    terminal_size_of(terminal).map_or(80, |(Width(columns), _)| usize::from(columns))
}

/// Returns the number of columns and of rows of a terminal; 80 and 24 if it does not tell.
pub fn size(terminal: &impl AsFd) -> (usize, usize) {
    let told = terminal_size_of(terminal);
    told.map_or((80, 24), |(Width(columns), Height(rows))| {
        (usize::from(columns), usize::from(rows))
    })
}

/// Returns the width that a line of standard output may have; `None` if it is not a terminal.
pub fn width_of_output() -> Option<usize> {
    let stdout = io::stdout();
    stdout.is_terminal().then(|| width(&stdout))
}

/// Returns whether a person is there who can answer a question: standard input and standard error
/// are terminals.
pub fn asks() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question on standard error. Returns whether the answer is yes.
pub fn is_confirmed(question: &str) -> bool {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{question}").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let is_read = io::stdin().read_line(&mut answer).is_ok();
    is_read && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// Returns the exit code of a command, and says why it failed, as text or as the JSON of an error
/// response. A command whose reader has gone says nothing.
pub fn exit_code(outcome: anyhow::Result<ExitCode>, as_json: bool) -> ExitCode {
    outcome.unwrap_or_else(|error| match error.downcast_ref::<Unwritten>() {
        Some(Unwritten(reason)) if reason.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(READER_GONE)
        }
        _ => {
            failure(&error, as_json);
            ExitCode::FAILURE
        }
    })
}

/// Says why something failed, as text or as the JSON of an error response.
pub fn failure(error: &anyhow::Error, as_json: bool) {
    if as_json {
        remark!("{}", json(error));
    } else {
        remark!("batchwright: {error:#}");
    }
}

/// Returns an error as one line of JSON. One that has no code of its own is a `COMMAND_FAILED`.
fn json(error: &anyhow::Error) -> String {
    let body = match error.downcast_ref::<ClientError>() {
        Some(error) => error.body(),
        None => ErrorBody {
            code: Some("COMMAND_FAILED".to_owned()),
            ..ErrorBody::of_message(format!("{error:#}"))
        },
    };
    serde_json::to_string(&body).unwrap_or(body.message)
}
