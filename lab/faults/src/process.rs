//! Programs in the background, which can be killed and started again.
//!
//! What must stay true: a process of a [`Keeper`] ends with this process, however this process
//! ends. A small shell leads the group of such processes and reads from a pipe; the system closes
//! that pipe when this process ends.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;

use crate::wait::poll;

/// How long a process may take to stop when it is asked to.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// Waits for the end of its input. `setsid` leaves the group, and then ends it.
const KEEP: &str = r#"
    trap : HUP INT TERM
    read -r _
    exec setsid sh -c 'kill -s KILL -- "-$1"; [ -z "$2" ] || rm -rf "$2"' sh $$ "$1"
"#;

/// Kills its processes when it is dropped, or when this process ends, and then removes a folder.
#[derive(Debug)]
pub struct Keeper {
    shell: Child,
}

/// How to start a process. It inherits nothing: only these variables are set.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub variables: Vec<(String, String)>,
    /// Standard output and standard error are appended to this file.
    pub log: PathBuf,
    /// The process group, of a [`Keeper`]; a signal from the terminal does not reach it. `None`:
    /// the group of this process.
    pub group: Option<i32>,
}

/// A process in the background that can be stopped, killed and started again. Dropping it kills the
/// process.
#[derive(Debug)]
pub struct Process {
    options: ProcessOptions,
    child: Mutex<Option<Child>>,
}

impl Keeper {
    /// Begins to keep processes. `folder` is removed after their end.
    pub fn new(folder: Option<&Path>) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", KEEP, "batchwright-keeper"]);
        shell.arg(folder.unwrap_or(Path::new("")));
        let shell = shell
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the shell that looks after processes")?;
        Ok(Self { shell })
    }

    /// Returns the process group to start processes in.
    pub fn group(&self) -> Option<i32> {
        i32::try_from(self.shell.id()).ok()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // A shell that has ended already has nothing to keep.
        let _ = self.shell.wait();
    }
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
            group: None,
        }
    }
}

impl Process {
    /// A process that is started later, with [`start`](Self::start).
    pub const fn new(options: ProcessOptions) -> Self {
        Self {
            options,
            child: Mutex::new(None),
        }
    }

    /// Starts the process, which must not be running, also after it has ended.
    pub fn start(&self) -> anyhow::Result<()> {
        let mut child = self.child.lock();
        if let Some(child) = &mut *child {
            ensure!(child.try_wait()?.is_some(), "{} is running", self.name());
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.options.log);
        let log = log.with_context(|| format!("cannot open {}", self.options.log.display()))?;
        let mut command = Command::new(&self.options.program);
        command
            .args(&self.options.arguments)
            .env_clear()
            .envs(self.options.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(group) = self.options.group {
            command.process_group(group);
        }
        let started = command.spawn();
        *child = Some(started.with_context(|| format!("cannot start {}", self.name()))?);
        Ok(())
    }

    /// Kills the process as `kill -9` does. A process that has ended by itself is an error, which
    /// shows its log.
    pub fn kill(&self) -> anyhow::Result<()> {
        let mut child = self.take_running()?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks the process to stop, as a supervisor does (`SIGTERM`), and returns its exit code;
    /// `None` if a signal ended it.
    pub async fn terminate(&self) -> anyhow::Result<Option<i32>> {
        let mut child = self.take_running()?;
        let id = child.id().to_string();
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .context("cannot run kill")?;
        let stopped = poll(STOP_LIMIT, async || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it is running".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        match stopped.await {
            Ok(status) => Ok(ExitStatus::code(&status)),
            Err(seen) => {
                child.kill()?;
                child.wait()?;
                bail!(
                    "{} did not stop within {STOP_LIMIT:?}: {seen}\n{}",
                    self.name(),
                    self.log_tail()
                )
            }
        }
    }

    /// Returns whether the process is running.
    pub fn is_running(&self) -> bool {
        self.child
            .lock()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Returns how the process has ended, if it has ended by itself.
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock();
        child.as_mut().and_then(|child| child.try_wait().ok()?)
    }

    /// Returns everything that the process has written so far, also before it was started again.
    pub fn log(&self) -> String {
        let log = std::fs::read(&self.options.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns the last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn take_running(&self) -> anyhow::Result<Child> {
        let mut child = self.child.lock().take();
        let is_running = child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        match child {
            Some(child) if is_running => Ok(child),
            _ => bail!("{} is not running:\n{}", self.name(), self.log_tail()),
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
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

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
        let folder = tempfile::tempdir().unwrap();
        let process = Process::new(sleeping(&folder));
        process.start().unwrap();
        let greeted = async |times: usize| {
            let log = async || match process.log() {
                log if log == "hello Ada\n".repeat(times) => Ok(()),
                log => Err(log),
            };
            poll(LIMIT, log).await.unwrap();
        };
        greeted(1).await;
        assert!(process.is_running());
        process.kill().unwrap();
        assert!(!process.is_running() && process.ended().is_none());
        process.start().unwrap();
        greeted(2).await;
        let ended = process.terminate().await.unwrap();
        assert_eq!(ended, None, "ended by a signal");
    }

    #[tokio::test]
    async fn killing_a_process_that_has_ended_fails_and_shows_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let options = ProcessOptions::new(
            "/bin/sh",
            ["-c", "echo gone; exit 3"],
            folder.path().join("log"),
        );
        let process = Process::new(options);
        process.start().unwrap();
        let ended = async || {
            if process.is_running() {
                Err("it is running")
            } else {
                Ok(())
            }
        };
        poll(LIMIT, ended).await.unwrap();
        assert!(process.ended().is_some());
        let error = process.kill().unwrap_err().to_string();
        assert_eq!(error, "sh -c echo gone; exit 3 is not running:\ngone");
    }

    #[tokio::test]
    async fn a_keeper_that_ends_kills_its_processes_and_removes_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let keeper = Keeper::new(Some(&inner)).unwrap();
        let options = ProcessOptions {
            group: keeper.group(),
            ..sleeping(&folder)
        };
        let process = Process::new(options);
        process.start().unwrap();
        drop(keeper);
        let ended = async || match (process.is_running(), inner.exists()) {
            (false, false) => Ok(()),
            seen => Err(format!("running and folder: {seen:?}")),
        };
        poll(LIMIT, ended).await.unwrap();
    }
}
