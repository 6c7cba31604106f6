//! `batchwright bench` and `batchwright chaos`: the laboratory is a program of its own, which lies
//! beside this one where somebody has built it.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::anyhow;
use clap::Args;

use super::jobs::USAGE;
use crate::print::{self, remark};

/// The name of the program.
const LABORATORY: &str = "batchwright-lab";

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct LaboratoryArgs {
    /// Arguments of the laboratory; `--help` says which.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Becomes the laboratory, with all arguments of this process.
pub fn run() -> ExitCode {
    let (program, error) = match beside() {
        Ok(program) => {
            let (mut command, mut words) = (Command::new(&program), std::env::args_os());
            // Its help then says what a person has typed.
            if let Some(own) = words.next() {
                command.arg0(own);
            }
            let error = command.args(words).exec();
            (program, error)
        }
        Err(error) => (LABORATORY.into(), error),
    };
    let program = program.display();
    if error.kind() == ErrorKind::NotFound {
        remark!(
            "batchwright: this command needs the laboratory, and there is no {program}. \
             To build it, run in a checkout: cargo build --release -p {LABORATORY}"
        );
        return ExitCode::from(USAGE);
    }
    print::exit_code(Err(anyhow!("cannot start {program}: {error}")), false)
}

/// Returns where the laboratory is, if it is there: in the folder of this program.
fn beside() -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(LABORATORY))
}
