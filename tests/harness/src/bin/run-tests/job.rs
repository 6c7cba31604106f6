//! One job: a test binary or a command, with a time limit and a file for what it prints.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::outcome::Outcome;

/// Runs a command and writes its processor time, user and system, to the file that is the first
/// argument. A shell does that because the system reports the time of an ended child only to its
/// parent, and the standard library does not pass it on.
const MEASURED: &str = r#"TIMEFORMAT='%U %S'; exec 3>&2; { time "${@:2}" 2>&3 3>&-; } 2>"$1""#;

/// What to run.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: String,
    pub layer: &'static str,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// The working directory; for a test binary the folder of its package, as with `cargo test`.
    pub folder: PathBuf,
    /// Whether the program takes the options of Rust's test binaries.
    pub is_test_binary: bool,
    pub limit: Duration,
}

/// The result of a job.
#[derive(Debug)]
pub struct Finished {
    pub name: String,
    pub layer: &'static str,
    pub outcome: Outcome,
    pub wall: Duration,
    /// Processor time, user and system. Zero if the job was killed.
    pub cpu: Duration,
}

impl Job {
    /// Runs the job to its end or to its time limit. A job that cannot be started counts as failed.
    pub async fn run(self, output: &Path, variables: &[(&'static str, String)]) -> Finished {
        let began = Instant::now();
        let result = self.run_measured(output, variables).await;
        let (outcome, cpu) =
            result.unwrap_or_else(|error| (Outcome::failure(format!("{error:#}")), Duration::ZERO));
        Finished {
            name: self.name,
            layer: self.layer,
            outcome,
            wall: began.elapsed(),
            cpu,
        }
    }

    async fn run_measured(
        &self,
        output: &Path,
        variables: &[(&'static str, String)],
    ) -> anyhow::Result<(Outcome, Duration)> {
        let file_name = self.name.replace(|c: char| !c.is_alphanumeric(), "-");
        let (log_path, times) = (
            output.join(format!("{file_name}.log")),
            output.join(format!("{file_name}.times")),
        );
        let log = File::create(&log_path)?;
        let child = self
            .command("bash")
            .args(["-c", MEASURED, "run-tests"])
            .arg(&times)
            .arg(&self.program)
            .args(&self.arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        let mut group = ProcessGroup::of(child);
        let ended = timeout(self.limit, group.child.wait()).await;
        drop(group);

        let text = String::from_utf8_lossy(&std::fs::read(&log_path)?).into_owned();
        let outcome = match ended {
            Ok(status) => Outcome::of(&text, status?, self.is_test_binary),
            Err(_) => Outcome::timed_out(&text, self.limit, &self.all_tests().await),
        };
        Ok((outcome, read_cpu(&times).unwrap_or_default()))
    }

    /// Returns the names of all tests of a test binary; none if it cannot list them.
    async fn all_tests(&self) -> Vec<String> {
        if !self.is_test_binary {
            return Vec::new();
        }
        let mut list = self.command(&self.program);
        list.args(["--list", "--format", "terse"])
            .args(&self.arguments)
            .stderr(Stdio::null());
        let Ok(Ok(listed)) = timeout(Duration::from_secs(20), list.output()).await else {
            return Vec::new();
        };
        String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter_map(|line| Some(line.strip_suffix(": test")?.to_owned()))
            .collect()
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if self.is_test_binary {
            // As cargo sets it; snapshot tests read it. A cargo that is run as a job would compile
            // again what depends on it.
            command.env("CARGO_MANIFEST_DIR", &self.folder);
        }
        command
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            outcome,
            wall,
            cpu,
            ..
        } = self;
        let word = if outcome.failed == 0 { "ok" } else { "FAILED" };
        write!(
            f,
            "{word:<6} {:>6.1} s {:>6.1} cpu-s  {name}: {} passed",
            wall.as_secs_f64(),
            cpu.as_secs_f64(),
            outcome.passed
        )?;
        if outcome.failed > 0 {
            write!(f, ", {} failed", outcome.failed)?;
        }
        Ok(())
    }
}

/// A job with all processes that it has started. They are killed when this is dropped.
struct ProcessGroup {
    child: Child,
    id: Option<u32>,
}

impl ProcessGroup {
    fn of(child: Child) -> Self {
        Self {
            id: child.id(),
            child,
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Usually no process of the group is left.
            let _ = std::process::Command::new("kill")
                .args(["-KILL", "--", &format!("-{id}")])
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn read_cpu(times: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(times).ok()?;
    let seconds = text
        .lines()
        .last()?
        .split(' ')
        .map(|part| part.parse::<f64>().ok())
        .sum::<Option<f64>>()?;
    Some(Duration::from_secs_f64(seconds))
}

/// How the job ended, for the message about one without a result.
pub fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) if code > 128 => format!("it was ended by signal {}", code - 128),
        Some(code) => format!("it ended with code {code}"),
        None => "it was ended by a signal".to_owned(),
    }
}
