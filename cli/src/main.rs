//! The program `batchwright`: reads the command line and the environment, sets up the log and runs
//! one command.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod board;
mod cli;
mod config;
mod contexts;
mod demo;
#[cfg(test)]
mod documented;
mod job_text;
mod print;
mod role_help;
mod showcase;
mod task_text;
mod text;
mod tls_args;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use cli::{Cli, Command, Program};
use command_worker::keeper;
use framework::config::env::Variables;
use framework::log::{self, LogFilter};

/// Each message causes many small allocations, which often are freed on another thread. Both
/// allocators are fast at this.
#[cfg(not(feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    // It runs beside every command of the command worker, and needs nothing else.
    if arguments.next_if(|it| it == keeper::NAME).is_some() {
        return keeper::keep(arguments);
    }
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = Variables::new(environment);
    let (cli, configuration) = match config::read::<Cli>(std::env::args_os(), &variables) {
        Ok(read) => read,
        Err(refusal) => return refusal.print(),
    };
    set_up_log(&cli);
    let command = match cli.program {
        Program::Command(command) => command,
        Program::RunScript(args) => return print::exit_code(cli::script::run(&args), false),
    };
    let as_json = command.prints_json();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = anyhow::anyhow!("cannot start threads: {error}");
            return print::exit_code(Err(error), as_json);
        }
    };
    let outcome = runtime.block_on(command.execute(&variables, &configuration));
    // The script of a job type may run forever on a blocking thread.
    runtime.shutdown_timeout(Duration::from_secs(1));
    log::flush();
    print::exit_code(outcome, as_json)
}

fn set_up_log(cli: &Cli) {
    let level = match &cli.program {
        serving if serving.serves() => "info",
        // It waits as long as a system does for its servers.
        Program::Command(Command::Bench(_) | Command::BenchWorker(_)) => "warn,sqlx=error",
        Program::Command(_) | Program::RunScript(_) => "error",
    };
    log::set_up(
        cli.log.as_ref().map_or(level, LogFilter::as_str),
        cli.log_format,
    );
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::bench::memory_bytes;

    /// The disk of the embedded broker reads large messages on a thread that allocates little else.
    #[test]
    fn memory_that_other_threads_free_goes_back_to_the_system() {
        const MESSAGE: usize = 16 << 20;
        let anonymous = || memory_bytes("self", "RssAnon:");
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
