//! One server process in its own folder, which ends with this process.
//!
//! A small shell (`supervisor.sh`) supervises the server and takes orders from its standard input.
//! The system closes that pipe when this process ends, also by a panic in `main`, `exit` or `kill
//! -9`; the shell then kills the server and removes the folder. (`PR_SET_PDEATHSIG` would need
//! `unsafe`, and notifies only the first child.) The shell leads a process group of its own, so
//! Ctrl-C reaches the owner and not the servers.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::wait::poll;

const BOOT: Duration = Duration::from_mins(2);

/// A supervised server. Dropping it kills the server and removes its folder.
#[derive(Debug)]
pub struct Supervisor {
    pub folder: PathBuf,
    name: &'static str,
    shell: Arc<Mutex<Shell>>,
}

/// A temporary folder and the user a server runs as in it.
#[derive(Debug)]
pub struct Home {
    folder: tempfile::TempDir,
    user: Option<(u32, u32)>,
}

/// An order for the supervising shell. The signals depend on the server: see `supervisor.sh`.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    Start,
    Stop,
    Kill,
    Alive,
    /// The folder stays when the server ends.
    Keep,
}

#[derive(Debug)]
struct Shell {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Home {
    /// Servers refuse to run as root, so for root the folder belongs to the first of `users` that
    /// exists.
    pub fn new(users: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("batchwright-")
            .tempdir()
            .context("cannot create a temporary folder")?;
        let root = std::fs::metadata(&folder)?.uid() == 0;
        let user = if root { Some(first_user(users)?) } else { None };
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid))?;
        }
        Ok(Self { folder, user })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A command that runs as the server's user, in its folder.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Hands the folder to a shell that will start `server` on [`Order::Start`], and stop it by the
    /// signal `stop`.
    pub fn supervise(
        self,
        name: &'static str,
        stop: &str,
        server: &Command,
    ) -> anyhow::Result<Supervisor> {
        let mut shell = self.command("sh");
        shell
            .arg("-c")
            .arg(include_str!("supervisor.sh"))
            .arg(format!("batchwright-{name}"))
            .arg(self.path())
            .arg(stop);
        shell.arg(server.get_program()).args(server.get_args());
        for (variable, value) in server.get_envs() {
            if let Some(value) = value {
                shell.env(variable, value);
            }
        }
        let mut process = shell
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The standard error of this process may be a pipe whose reader waits for its end.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start the shell that looks after {name}"))?;
        let orders = process.stdin.take();
        let answers = BufReader::new(
            process
                .stdout
                .take()
                .context("the shell's output is a pipe")?,
        );
        let folder = self.folder.keep();
        Ok(Supervisor {
            name,
            folder,
            shell: Arc::new(Mutex::new(Shell {
                process,
                orders,
                answers,
            })),
        })
    }
}

impl Supervisor {
    /// Starts the server and waits until `ready` succeeds. An error contains the end of the
    /// server's log.
    pub async fn start(
        &self,
        mut ready: impl AsyncFnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.tell(Order::Start).await?;
        let booted = poll(BOOT, async || {
            let Err(error) = ready().await else {
                return Ok(Ok(()));
            };
            match self.tell(Order::Alive).await {
                Ok(answer) if answer == "yes" => Err(format!("{error:#}")),
                Ok(_) => Ok(Err("it has ended".to_owned())),
                Err(lost) => Ok(Err(format!("{lost:#}"))),
            }
        });
        match booted.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(seen)) | Err(seen) => bail!(
                "{} did not start: {seen}. The end of its log:\n{}",
                self.name,
                self.log_tail()
            ),
        }
    }

    /// Gives an order and waits until the shell has executed it.
    pub async fn tell(&self, order: Order) -> anyhow::Result<String> {
        let shell = Arc::clone(&self.shell);
        let name = self.name;
        tokio::task::spawn_blocking(move || {
            let mut shell = shell
                .lock()
                .map_err(|_| anyhow::anyhow!("an earlier order to {name} panicked"))?;
            shell
                .tell(order)
                .with_context(|| format!("the shell that looks after {name} does not answer"))
        })
        .await?
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Shell {
    fn tell(&mut self, order: Order) -> anyhow::Result<String> {
        let word = match order {
            Order::Start => "start",
            Order::Stop => "stop",
            Order::Kill => "kill",
            Order::Alive => "alive",
            Order::Keep => "keep",
        };
        let orders = self.orders.as_mut().context("its input is closed")?;
        writeln!(orders, "{word}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(answer.ends_with('\n'), "it has ended");
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.orders.take());
        // A shell that has ended already has nothing to stop.
        let _ = self.process.wait();
    }
}

/// Returns the full path of a program, from the first of `folders` that has it, else from the
/// search path.
pub fn program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let in_folders = folders.iter().map(|folder| folder.join(name));
    in_folders
        .into_iter()
        .find(|file| file.is_file())
        .or_else(|| {
            // The shell knows the search path; the environment is not read here.
            let found = Command::new("sh")
                .args(["-c", "command -v \"$1\"", "sh", name])
                .output()
                .ok()?;
            let path = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim_end());
            path.is_file().then_some(path)
        })
}

/// Runs a command to its end and returns what it printed. An error contains its standard error.
pub async fn run(mut command: Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = tokio::task::spawn_blocking(move || command.output())
        .await?
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn first_user(names: &[&str]) -> anyhow::Result<(u32, u32)> {
    let number = |flag: &str, name: &str| -> Option<u32> {
        let output = Command::new("id").arg(flag).arg(name).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    names
        .iter()
        .find_map(|name| Some((number("-u", name)?, number("-g", name)?)))
        .with_context(|| {
            format!(
                "servers do not run as root, and there is none of the users {}",
                names.join(", ")
            )
        })
}
