//! Writes the results of commands to standard output, and remarks about them to standard error.
//!
//! What must stay true: nothing here panics, even if an output is closed or the disk behind it is full. The macros
//! of the standard library would.

use std::fmt::Arguments;
use std::io::{self, Write as _};
use std::process::ExitCode;

use batchwright::client::ClientError;
use contract::rest::ErrorBody;

/// The exit code of a command whose reader has gone: the one of a program that the signal SIGPIPE ends.
const READER_GONE: u8 = 128 + 13;

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct Unwritten(#[from] io::Error);

/// Writes one line to standard output, and ends the function with an error if that fails.
macro_rules! say {
    ($($text:tt)*) => { $crate::print::line(format_args!($($text)*))? };
}

/// Writes one line to standard error if that is possible.
macro_rules! remark {
    ($($text:tt)*) => { $crate::print::remark_line(format_args!($($text)*)) };
}

pub(crate) use {remark, say};

/// Writes one line to standard output.
pub fn line(text: Arguments<'_>) -> Result<(), Unwritten> {
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// Writes one line to standard error if that is possible.
pub fn remark_line(text: Arguments<'_>) {
    // Nowhere is left to say that it failed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Returns the exit code of a command, and says why it failed, as text or as the JSON of an error response. A command whose
/// reader has gone says nothing.
pub fn exit_code(outcome: anyhow::Result<ExitCode>, as_json: bool) -> ExitCode {
    outcome.unwrap_or_else(|error| match error.downcast_ref::<Unwritten>() {
        Some(Unwritten(reason)) if reason.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(READER_GONE)
        }
        _ => {
            if as_json {
                remark!("{}", json(&error));
            } else {
                remark!("batchwright: {error:#}");
            }
            ExitCode::FAILURE
        }
    })
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
