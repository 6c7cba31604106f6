//! The program `batchwright`: reads the command line and the environment, sets up the log and runs
//! one command.
//!
//! What is public here is for the laboratory, a program of its own that prints, connects and ends
//! as this one does. It is no interface for others.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod board;
mod cli;
mod config;
mod contexts;
mod demo;
#[cfg(test)]
mod documented;
mod job_text;
mod print;
mod program;
#[cfg(any(test, feature = "internals"))]
#[doc(hidden)]
pub mod reference;
mod role_help;
mod showcase;
mod task_text;
mod text;
mod tls_args;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use command_worker::keeper;
use framework::config::env::Variables;

#[doc(hidden)]
pub use self::cli::ServerArgs;
use self::cli::{Cli, Output, Program};
#[doc(hidden)]
pub use self::config::Refusal;
#[doc(hidden)]
pub use self::print::{INTERRUPTED, line, remark_line, table};
#[doc(hidden)]
pub use self::program::{LogArgs, run};
#[doc(hidden)]
pub use self::text::{Column, Field};
#[doc(hidden)]
pub use self::tls_args::TlsArgs;
#[doc(hidden)]
pub use self::watch::{Show, follow};

/// Each message causes many small allocations, which often are freed on another thread. Both
/// allocators are fast at this.
#[cfg(not(feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs the program with its command line and these variables.
pub fn main(variables: &Variables) -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    // It runs beside every command of the command worker, and needs nothing else.
    if arguments.next_if(|it| it == keeper::NAME).is_some() {
        return keeper::keep(arguments);
    }
    let (cli, configuration) = match config::read::<Cli>(std::env::args_os(), variables) {
        Ok(read) => read,
        Err(refusal) => return refusal.print(),
    };
    let serves = cli.program.serves();
    cli.log.set_up(if serves { "info" } else { "error" });
    let command = match cli.program {
        Program::Command(command) => command,
        Program::Bench(_) | Program::Chaos(_) => return cli::run_laboratory(),
        Program::RunScript(args) => return print::exit_code(cli::script::run(&args), false),
    };
    let output = configuration.output.as_deref();
    let as_json = output.is_some_and(Output::is_json_named);
    program::run(command.execute(variables, &configuration), as_json)
}

/// Parses the command line of the laboratory. The variables of the program are no mistake there.
#[doc(hidden)]
pub fn read<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    variables: &Variables,
) -> Result<P, Refusal> {
    let read = config::read_beside(arguments, variables, &Cli::command());
    read.map(|(parsed, _)| parsed)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    /// The disk of the embedded broker reads large messages on a thread that allocates little else.
    #[test]
    fn memory_that_other_threads_free_goes_back_to_the_system() {
        const MESSAGE: usize = 16 << 20;
        let anonymous = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let mut lines = status.lines();
            let size = lines.find_map(|line| line.strip_prefix("RssAnon:"));
            let kilobytes = size.unwrap().trim().trim_end_matches(" kB");
            kilobytes.parse::<u64>().unwrap() * 1024
        };
        let (send, receive) = mpsc::sync_channel::<Vec<u8>>(0);
        let freeing = thread::spawn(move || receive.into_iter().for_each(drop));
        let before = anonymous();
        for _ in 0..20 {
            send.send(vec![1; MESSAGE]).unwrap();
        }
        drop(send);
        freeing.join().unwrap();
        let more = anonymous().saturating_sub(before);
        assert!(more < 8 * MESSAGE as u64, "{more}");
    }
}
