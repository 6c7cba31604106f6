//! Commands of the binary under test, run to their end.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::wait::in_time;

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

/// Runs a command to its end. `input` is its standard input. The command should come with
/// `env_clear`.
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

/// Kills the command when its test gives up; otherwise the runtime would wait for the thread that
/// waits for the command.
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
