//! Runs the binary: a single command, or `batchwright up` in a folder that outlives the process.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use batchwright::client::Client;
use harness::{free_port, wait_for};
use serde_json::Value;
use tempfile::TempDir;

/// Returns a command that runs the binary with these arguments and no variables.
pub fn batchwright(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchwright"));
    for variable in [
        "DATABASE",
        "BROKER",
        "LISTEN",
        "PUBLIC_URL",
        "ROOT",
        "ROUTE",
        "DATA",
        "URL",
        "PARTITION",
        "CONTEXT",
        "LOG",
    ] {
        command.env_remove(format!("BATCHWRIGHT_{variable}"));
    }
    // Those of the person who runs the tests.
    command.env("BATCHWRIGHT_CONTEXTS", "/nonexistent/contexts.yaml");
    command.args(arguments);
    command
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Checks the exit code.
    #[track_caller]
    pub fn with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Returns standard output, which must be one JSON object.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}

pub async fn run(arguments: &[&str]) -> Ended {
    run_with_input(arguments, "").await
}

/// Runs commands of a shell that call the binary by its name, against the system of this home.
pub async fn run_script(commands: &str, home: &Home) -> Ended {
    let binary = Path::new(env!("CARGO_BIN_EXE_batchwright"));
    let folders = [binary.parent().unwrap().to_owned()].into_iter();
    let found = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&found))).unwrap();
    let mut command = Command::new("sh");
    command.args(["-ec", commands]);
    command.env("PATH", path).env("BATCHWRIGHT_URL", home.url());
    ended(command, "").await
}

pub async fn run_with_input(arguments: &[&str], input: &str) -> Ended {
    ended(batchwright(arguments), input).await
}

pub async fn ended(mut command: Command, input: &str) -> Ended {
    let input = input.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not read its input may have ended already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    });
    let Output {
        status,
        stdout,
        stderr,
    } = harness::in_time("the command to end", ended).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended {
        code: status.code().unwrap(),
        out: text(stdout),
        err: text(stderr),
    }
}

/// A folder and a port in which `batchwright up` can be started repeatedly.
pub struct Home {
    pub folder: TempDir,
    pub listen: String,
}

impl Home {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            listen: format!("127.0.0.1:{}", free_port()),
        }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Writes a file that batches of `lines` can name.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.folder.path().join("root")).unwrap();
        std::fs::write(self.folder.path().join("root").join(name), text).unwrap();
    }

    pub fn url(&self) -> String {
        format!("http://{}/job-service/v1", self.listen)
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url(), "default")
    }

    pub async fn up(&self) -> Up {
        self.up_with(&[]).await
    }

    /// Starts `batchwright up` with further arguments.
    pub async fn up_with(&self, further: &[&str]) -> Up {
        let folder = self.folder.path();
        std::fs::create_dir_all(folder.join("root")).unwrap();
        let (data, root) = (self.data(), folder.join("root"));
        let [data, root] = [&data, &root].map(|path| path.to_str().unwrap());
        let mut command = batchwright(&[
            "up",
            "--data",
            data,
            "--listen",
            &self.listen,
            "--root",
            root,
        ]);
        // Small batches have several levels, too.
        if !further.contains(&"--max-parts") {
            command.args(["--max-parts", "50"]);
        }
        command.args(further);
        let said = [folder.join("out"), folder.join("err")];
        let [out, err] = [&said[0], &said[1]].map(|file| File::create(file).unwrap());
        let mut up = Up(command.stdout(out).stderr(err).spawn().unwrap());
        wait_for("the system to be up", async || {
            let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
            if let Some(status) = up.0.try_wait().unwrap() {
                panic!("the process ended with {status}: {}", read(&said[1]));
            }
            let out = read(&said[0]);
            // What matters to a person comes first.
            let told: Vec<&str> = out.lines().filter_map(|line| line.get(..12)).collect();
            let expected = ["API         ", "web page    ", "data        "];
            let is_told = told.starts_with(&expected)
                && ["Swagger UI  ", "health      "]
                    .iter()
                    .all(|what| told.contains(what))
                && out.contains(&self.url());
            is_told.then_some(()).ok_or(out)
        })
        .await;
        up
    }
}

/// A running `batchwright up`. It is killed when this is dropped.
pub struct Up(pub Child);

impl Up {
    /// Kills the process, as `kill -9` does.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Asks the process to stop, as a supervisor does, and returns its exit code.
    pub async fn stop(mut self) -> Option<i32> {
        Command::new("kill")
            .args(["-TERM", &self.0.id().to_string()])
            .status()
            .unwrap();
        wait_for("the process to end", async || {
            match self.0.try_wait().unwrap() {
                Some(status) => Ok(status.code()),
                None => Err("it runs".to_owned()),
            }
        })
        .await
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Most processes have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
