//! The keeper of a command: a process between the worker and the command, so that nothing of the
//! command stays behind.
//!
//! It runs the command in a process group of its own, and waits for its end, or for the end of its
//! own standard input, which says that the command must stop or that the worker is gone. Then it
//! kills what is left: the group, and on Linux every process that descends from the command,
//! whatever group or session it is in, because orphans come to the keeper. At last it removes the
//! command's folder, and writes how the command ended behind the error text.
//!
//! What must stay true: it sees at any time that the worker is gone, and it trusts nothing that the
//! command writes: its report is the last one.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, getrlimit,
    kill_process_group, setrlimit, wait, waitid,
};
use serde::{Deserialize, Serialize};

/// The first argument with which a program starts as a keeper: it calls [`keep`] with the others.
pub const NAME: &str = "keep-command";
/// The argument of a process that limits itself and becomes the command.
const LIMITED: &str = "limited";

/// The most bytes of a report.
pub(crate) const LONGEST_REPORT: usize = 4096;
/// What stands before the report.
const MARK: u8 = 0;
/// How long a keeper tries to kill everything.
const SWEEP: Duration = Duration::from_secs(10);

/// How a keeper is started.
#[derive(Debug, Clone)]
pub struct Keeper {
    program: PathBuf,
}

/// How a command ended, as its keeper says.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    /// It may start another time.
    #[serde(default)]
    pub(crate) again: bool,
    /// Why it did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

/// What a keeper does, as its arguments say.
struct Task {
    folder: PathBuf,
    memory: u64,
    /// The number of bytes of the command's standard input.
    input: u64,
    command: Vec<OsString>,
}

impl Keeper {
    /// Returns a keeper that is this program, which calls [`keep`] if its first argument is
    /// [`NAME`].
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
        }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the arguments of a keeper, without the command.
    pub(crate) fn arguments(folder: &Path, memory: Option<u64>, input: usize) -> [OsString; 4] {
        [
            NAME.into(),
            folder.into(),
            memory.unwrap_or(0).to_string().into(),
            input.to_string().into(),
        ]
    }
}

impl Report {
    /// Takes the last report out of an error text.
    pub(crate) fn take_from(error_text: &mut Vec<u8>) -> Option<Self> {
        let at = error_text.iter().rposition(|byte| *byte == MARK)?;
        let report = serde_json::from_slice(&error_text[at + 1..]).ok()?;
        error_text.truncate(at);
        Some(report)
    }

    fn problem(what: &str, error: &io::Error) -> Self {
        use io::ErrorKind::{ExecutableFileBusy, OutOfMemory, WouldBlock};
        Self {
            problem: Some(format!("{what}: {error}")),
            // There is no room for a process, or the program is just being replaced.
            again: matches!(error.kind(), ExecutableFileBusy | OutOfMemory | WouldBlock),
            ..Self::default()
        }
    }
}

/// Is the keeper of the command in these arguments, which are all behind [`NAME`].
pub fn keep(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == LIMITED).is_some() {
        return become_command(arguments);
    }
    let Some(task) = Task::parse(arguments) else {
        return refuse("this command is for the command worker only");
    };
    let report = task
        .run()
        .unwrap_or_else(|error| Report::problem("its keeper failed", &error));
    // A folder that cannot be removed is seen by the worker.
    let _ = fs::remove_dir_all(&task.folder);
    let mut text = vec![MARK];
    text.extend(serde_json::to_vec(&report).unwrap_or_default());
    match io::stderr().lock().write_all(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

impl Task {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let folder = PathBuf::from(arguments.next()?);
        let mut number = || arguments.next()?.to_str()?.parse().ok();
        let (memory, input) = (number()?, number()?);
        let command: Vec<OsString> = arguments.collect();
        (!command.is_empty()).then_some(Self {
            folder,
            memory,
            input,
            command,
        })
    }

    /// Runs the command, and kills what it leaves behind.
    fn run(&self) -> io::Result<Report> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let mut command = self.process()?;
        let input = if self.input > 0 {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let mut child = match command.process_group(0).stdin(input).spawn() {
            Ok(child) => child,
            Err(error) => {
                let program = self.command[0].to_string_lossy();
                return Ok(Report::problem(&program, &error));
            }
        };
        let group = Pid::from_child(&child);
        let is_over = Arc::new(Mutex::new(false));
        let (over, to, bytes) = (Arc::clone(&is_over), child.stdin.take(), self.input);
        thread::spawn(move || serve_worker(to, bytes, group, &over));
        // Until the command is waited for without this option, no other process gets its number.
        let ended = waitid(
            WaitId::Pid(group),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )?;
        *is_over.lock() = true;
        sweep(group);
        Ok(Report {
            exit: ended
                .as_ref()
                .and_then(rustix::process::WaitIdStatus::exit_status),
            signal: ended.and_then(|status| status.terminating_signal()),
            ..Report::default()
        })
    }

    /// Returns the process of the command. One with limited memory is this program first.
    fn process(&self) -> io::Result<Command> {
        if self.memory == 0 {
            let mut command = Command::new(&self.command[0]);
            command.args(&self.command[1..]);
            return Ok(command);
        }
        let mut command = Command::new(own_program()?);
        command
            .args([NAME, LIMITED])
            .arg(self.memory.to_string())
            .args(&self.command);
        Ok(command)
    }
}

/// Takes standard input of the command from the worker, and kills the command when the worker
/// closes it.
fn serve_worker(to: Option<ChildStdin>, bytes: u64, group: Pid, is_over: &Mutex<bool>) {
    let mut from = io::stdin().lock();
    let mut input = Vec::new();
    let is_whole = (&mut from).take(bytes).read_to_end(&mut input).is_ok();
    if let Some(to) = to.filter(|_| is_whole) {
        // On a thread of its own: a command need not read its input, and is killed nevertheless.
        thread::spawn(move || {
            let mut to = to;
            // What it does not read is dropped.
            let _ = to.write_all(&input);
        });
    }
    let _ = io::copy(&mut from, &mut io::sink());
    let is_over = is_over.lock();
    if !*is_over {
        kill_all(group);
    }
}

/// Kills what is left of a command that has ended, and waits for all of it.
#[expect(clippy::disallowed_methods, reason = "this process has no runtime")]
fn sweep(group: Pid) {
    let begin = Instant::now();
    while begin.elapsed() < SWEEP {
        kill_all(group);
        match wait(WaitOptions::NOHANG) {
            Err(Errno::CHILD) => return,
            // It takes a moment to die.
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

/// Kills the group and all children. Whose parent dies becomes a child.
fn kill_all(group: Pid) {
    // There may be none.
    let _ = kill_process_group(group, Signal::KILL);
    #[cfg(target_os = "linux")]
    for child in children() {
        let _ = rustix::process::kill_process(child, Signal::KILL);
    }
}

/// Returns the children of this process that have not been waited for.
#[cfg(target_os = "linux")]
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_pid();
    let Ok(all) = procfs::process::all_processes() else {
        return Vec::new();
    };
    all.filter_map(|process| process.ok()?.stat().ok())
        .filter(|stat| stat.ppid == own)
        .filter_map(|stat| Pid::from_raw(stat.pid))
        .collect()
}

/// Limits the memory of this process and starts the command in its place, so that the limit holds
/// from the beginning.
fn become_command(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let memory = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    let (Some(memory), Some(program)) = (memory, arguments.next()) else {
        return refuse("this command is for the command worker only");
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    let limited = limit(Resource::Data, memory).and_then(|()| limit(Resource::Core, 0));
    let error = limited.err().unwrap_or_else(|| command.exec());
    refuse(&format!(
        "{} cannot be started: {error}",
        program.to_string_lossy()
    ))
}

/// Says why there is no command, as a shell does.
fn refuse(why: &str) -> ExitCode {
    let _ = writeln!(io::stderr().lock(), "batchwright: {why}");
    ExitCode::from(127)
}

/// Limits a resource of this process, which may have a lower limit already.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let already = getrlimit(resource).maximum.unwrap_or(most);
    let bound = Some(most.min(already));
    let limit = Rlimit {
        current: bound,
        maximum: bound,
    };
    Ok(setrlimit(resource, limit)?)
}

/// Returns the path of this program. On Linux, it is valid even after another build has replaced
/// the file.
fn own_program() -> io::Result<PathBuf> {
    let current = PathBuf::from("/proc/self/exe");
    if current.exists() {
        return Ok(current);
    }
    std::env::current_exe()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_the_last_one_whatever_the_command_writes() {
        let mut text = b"oh\0{\"exit\":0}\n\0{\"exit\":3}".to_vec();
        let report = Report::take_from(&mut text).unwrap();
        assert_eq!((report.exit, report.signal), (Some(3), None));
        assert_eq!(text, b"oh\0{\"exit\":0}\n");
        assert!(Report::take_from(&mut b"no\0report".to_vec()).is_none());
    }
}
