//! Processes of the binary under test: in the background with a log, or run to their end.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::wait::{in_time, wait_for};

/// How to start a process. It inherits nothing: only these variables are set.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub variables: Vec<(String, String)>,
    /// Standard output and standard error are appended to this file.
    pub log: PathBuf,
}

impl ProcessOptions {
    /// Options for a program without variables.
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        log: impl Into<PathBuf>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            variables: Vec::new(),
            log: log.into(),
        }
    }
}

/// A process in the background that can be stopped, killed and started again. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    options: ProcessOptions,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Starts a process.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(options: ProcessOptions) -> Self {
        let process = Self::stopped(options);
        process.start_again();
        process
    }

    /// A process that is started later, with [`start_again`](Self::start_again).
    pub const fn stopped(options: ProcessOptions) -> Self {
        Self {
            options,
            child: Mutex::new(None),
        }
    }

    /// Starts the process, which must not be running, with the same options.
    ///
    /// # Panics
    /// If it is running or cannot be started.
    #[expect(clippy::expect_used, reason = "this is how a test fails")]
    pub fn start_again(&self) {
        let mut child = self.lock();
        assert!(child.is_none(), "{} is running", self.name());
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.options.log)
            .expect("the log of a process");
        let started = Command::new(&self.options.program)
            .args(&self.options.arguments)
            .env_clear()
            .envs(self.options.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log of a process"))
            .stderr(log)
            .spawn();
        *child = Some(started.expect("the program"));
    }

    /// Kills the process as `kill -9` does.
    ///
    /// # Panics
    /// If the process is not running; the message shows its log.
    #[expect(clippy::expect_used, reason = "this is how a test fails")]
    pub fn kill(&self) {
        let mut child = self.take_running();
        child.kill().expect("the process to be killed");
        child.wait().expect("the process to end");
    }

    /// Asks the process to stop, as a supervisor does (`SIGTERM`), and returns its exit code; `None` if a signal ended it.
    ///
    /// # Panics
    /// If the process is not running, or does not end in time; the message shows its log.
    #[expect(clippy::expect_used, reason = "this is how a test fails")]
    pub async fn terminate(&self) -> Option<i32> {
        let mut child = self.take_running();
        Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .expect("the command kill");
        let stopped = wait_for("a process to stop", async || match child.try_wait() {
            Ok(Some(status)) => Ok(status.code()),
            Ok(None) => Err(format!("{} is running:\n{}", self.name(), self.log_tail())),
            Err(error) => Err(error.to_string()),
        });
        stopped.await
    }

    /// Returns the id of the running process.
    pub fn id(&self) -> Option<u32> {
        self.lock().as_ref().map(Child::id)
    }

    /// Returns whether the process is running.
    pub fn is_running(&self) -> bool {
        self.lock()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Returns everything that the process has written so far, also before it was started again.
    pub fn log(&self) -> String {
        let log = std::fs::read(&self.options.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns the last lines of the log, for the message of a failing test.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Returns the variables of the process.
    pub fn variables(&self) -> &[(String, String)] {
        &self.options.variables
    }

    fn take_running(&self) -> Child {
        let mut child = self.lock().take();
        let is_running = child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        #[expect(clippy::panic, reason = "this is how a test fails")]
        match child {
            Some(child) if is_running => child,
            _ => panic!("{} is not running:\n{}", self.name(), self.log_tail()),
        }
    }

    fn name(&self) -> String {
        let program = self.options.program.file_name().unwrap_or_default();
        let arguments = self.options.arguments.iter().take(2);
        std::iter::once(program)
            .chain(arguments.map(OsString::as_os_str))
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.lock().take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a command printed, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// Checks the exit code and returns the output.
    ///
    /// # Panics
    /// If the code is another one; the message shows what was printed.
    #[track_caller]
    #[must_use]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Returns standard output, which must be one line, as JSON.
    ///
    /// # Panics
    /// If it is anything else.
    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command to its end. `input` is its standard input. The command should come with `env_clear`.
///
/// # Panics
/// If it cannot be started or does not end in time; then it is killed.
#[expect(clippy::expect_used, reason = "this is how a test fails")]
pub async fn run_command(mut command: Command, input: &str) -> CommandOutput {
    let name = command.get_program().to_owned();
    let name = Path::new(&name).display().to_string();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let (mut stdin, id) = (child.stdin.take(), child.id());
    let input = input.to_owned();
    let mut killer = KillOnDrop(Some(id));
    let output = tokio::task::spawn_blocking(move || {
        if let Some(stdin) = &mut stdin {
            // A command that does not read its input may have ended already.
            let _ = stdin.write_all(input.as_bytes());
        }
        drop(stdin);
        child.wait_with_output()
    });
    let output = in_time(&format!("{name} to end"), output)
        .await
        .expect("the thread that waits for the command")
        .expect("the output of the command");
    killer.0 = None;
    CommandOutput {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Kills the command when its test gives up; otherwise the runtime would wait for the thread that waits for the command.
struct KillOnDrop(Option<u32>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            let _ = Command::new("kill")
                .args(["-KILL", &id.to_string()])
                .status();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeping(folder: &tempfile::TempDir) -> ProcessOptions {
        let mut options = ProcessOptions::new(
            "/bin/sh",
            ["-c", "echo \"hello $NAME\"; exec /bin/sleep 100"],
            folder.path().join("log"),
        );
        options
            .variables
            .push(("NAME".to_owned(), "Ada".to_owned()));
        options
    }

    #[tokio::test]
    async fn a_process_can_be_killed_started_again_and_terminated() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = Process::start(sleeping(&folder));
        let greeted = async |times: usize| {
            wait_for("the greeting", async || {
                let log = process.log();
                if log == "hello Ada\n".repeat(times) {
                    Ok(())
                } else {
                    Err(log)
                }
            })
            .await;
        };
        greeted(1).await;
        assert!(process.is_running());
        process.kill();
        assert!(!process.is_running() && process.id().is_none());
        process.start_again();
        greeted(2).await;
        assert_eq!(process.terminate().await, None, "ended by a signal");
    }

    #[tokio::test]
    #[should_panic(expected = "sh -c exit 3 is not running:\n")]
    async fn killing_a_process_that_has_ended_fails_and_shows_its_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = ProcessOptions::new("/bin/sh", ["-c", "exit 3"], folder.path().join("log"));
        let process = Process::start(options);
        wait_for("the end of the process", async || {
            if process.is_running() {
                Err("it is running".to_owned())
            } else {
                Ok(())
            }
        })
        .await;
        process.kill();
    }

    #[tokio::test]
    async fn a_command_gets_its_input_and_returns_its_output_and_code() {
        let mut command = Command::new("/bin/sh");
        command.env_clear().args([
            "-c",
            "read word; echo \"{\\\"word\\\": \\\"$word\\\"}\"; echo oops >&2; exit 7",
        ]);
        let output = run_command(command, "hello\n").await.expect_code(7);
        assert_eq!(output.json()["word"], "hello");
        assert_eq!(output.stderr, "oops\n");
    }
}
