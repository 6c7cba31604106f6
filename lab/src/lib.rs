//! The laboratory of Batchwright, a program of its own: `bench` measures systems, and `chaos` makes
//! them fail. `batchwright bench` and `batchwright chaos` run it if it lies beside `batchwright`.
//!
//! The library is what the program and its tests share. Nothing here is an interface.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod bench;
pub mod chaos;
mod cli;
#[cfg(test)]
mod documented;

use std::process::ExitCode;

use framework::config::env::Variables;

use self::cli::Cli;

/// Runs the program with its command line and these variables.
pub fn main(variables: &Variables) -> ExitCode {
    let cli: Cli = match batchwright_cli::read(std::env::args_os(), variables) {
        Ok(cli) => cli,
        Err(refusal) => return refusal.print(),
    };
    cli.log.set_up(cli.command.log_filter());
    let as_json = cli.command.prints_json();
    batchwright_cli::run(cli.command.execute(), as_json)
}
