//! Runs the script of a job type in a process of its own.
//!
//! What must stay true: whatever a script does, the service goes on. The library that runs scripts
//! can limit neither their time nor their memory, so the operating system does: the process gets a
//! limited amount of memory, and is killed once its request no longer waits. If the service itself
//! is killed, the limit of processor time ends a script that never does.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::jobs::job_types::script::{Script, ScriptError};

/// The memory that a script may use, in MiB.
const MEMORY_MIB: u64 = 256;
/// The processor time that a script may use, in seconds.
const CPU_SECONDS: u64 = 60;
/// The largest output of a script, in bytes: that of a task in a request.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;

/// The command that runs one script: it calls [`limit_script`], starts itself again, and calls
/// [`run_script`].
#[derive(Debug, Clone)]
pub struct ScriptProcess {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// What the process reads.
#[derive(Serialize, Deserialize)]
struct Run<'a> {
    script: String,
    #[serde(borrow)]
    input: &'a RawValue,
}

impl ScriptProcess {
    /// Returns the command with this program and these arguments.
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().collect(),
        }
    }

    /// Runs a script on a JSON text and returns its value as JSON. If the returned future is
    /// dropped, the process is killed.
    pub(super) async fn run(&self, script: &str, input: &[u8]) -> Result<String, ScriptError> {
        let failed = |error: io::Error| ScriptError::Failed(format!("its process failed: {error}"));
        let run = Run {
            script: script.to_owned(),
            input: serde_json::from_slice(input).map_err(|error| failed(error.into()))?,
        };
        let request = serde_json::to_vec(&run).map_err(|error| failed(error.into()))?;
        let mut process = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(mut to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(ScriptError::Failed("its process has no pipes".to_owned()));
        };
        let write = async move {
            // If the process ends early, its exit status says more.
            let _ = to.write_all(&request).await;
        };
        let mut output = Vec::new();
        let mut from = from.take(MAX_OUTPUT as u64 + 1);
        let ((), read) = tokio::join!(write, from.read_to_end(&mut output));
        read.map_err(failed)?;
        if output.len() > MAX_OUTPUT {
            let reason = format!("its output is larger than {MAX_OUTPUT} bytes");
            return Err(ScriptError::Failed(reason));
        }
        let status = process.wait().await.map_err(failed)?;
        if !status.success() {
            return Err(ScriptError::Failed(format!(
                "its process ended with {status}; a script may use {MEMORY_MIB} MiB of memory"
            )));
        }
        serde_json::from_slice(&output).unwrap_or_else(|error| Err(failed(error.into())))
    }
}

/// Limits the memory and the processor time of this process. What is allocated before may escape
/// the limit, so the process must start its program again.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn limit_script() -> io::Result<()> {
    limit(Resource::Data, MEMORY_MIB * 1024 * 1024)?;
    limit(Resource::Cpu, CPU_SECONDS)
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

/// Runs the script in standard input and writes its result to standard output.
///
/// # Errors
///
/// Returns an error if standard input does not have a script, or if a stream breaks.
pub fn run_script() -> io::Result<()> {
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let run: Run<'_> = serde_json::from_slice(&request)?;
    let result = Script::compile(&run.script)
        .map_err(ScriptError::Failed)
        .and_then(|script| script.run(run.input.get().as_bytes()));
    Ok(serde_json::to_writer(io::stdout().lock(), &result)?)
}
