//! The upgrade test: this build continues the data that an earlier build left behind in the middle of its jobs.
//!
//! `fixtures/` holds the data folders of `batchwright up`, killed with SIGKILL while ten jobs were in different states,
//! and the dump of a PostgreSQL database beside the embedded broker's file. `make_fixtures.py` wrote them with the
//! build of commit 1609d4b, and those of jobs in their second round ([`rounds`]) with that of commit 2c117fe. The test starts this build on a copy, lets every job end, and compares the counts, the
//! outcomes and the outputs with what the batch files specify. The test fails if this build cannot read a stored form
//! of the earlier build.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod rounds;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use batchwright::EXAMPLE_OUT_PIPE;
use batchwright::client::Client;
use contract::rest::Job;
use contract::{JobStatus, TaskMessage};
use framework::broker::Broker;
use framework::broker::embedded::Embedded;
use harness::{free_port, in_time, wait_for};
use serde_json::Value;
use tempfile::TempDir;

/// When the files of the batches were last changed, in seconds since 1970. The stored definitions pin it.
const MODIFIED: u64 = 1_767_225_600;

/// Where the earlier build served.
const EARLIER: &[u8] = b"127.0.0.1:28080";

/// The files of the batches: name, first letter of each line, number of lines.
const FILES: [(&str, &str, u32); 5] = [
    ("running.txt", "a", 2400),
    ("again.txt", "b", 1200),
    ("paused.txt", "c", 500),
    ("retried.txt", "d", 30),
    ("waits.txt", "e", 100),
];

/// The final status and completed items of each job. `None` where the earlier build has already fixed the count.
const OUTCOMES: [(&str, JobStatus, Option<i64>); 9] = [
    ("done", JobStatus::Completed, Some(100)),
    ("failed", JobStatus::Failed, None),
    ("continued", JobStatus::Failed, Some(39)),
    ("running", JobStatus::Completed, Some(2400)),
    // This is the second incarnation of its id.
    ("again", JobStatus::Completed, Some(1200)),
    // It waits for `running`.
    ("waits", JobStatus::Completed, Some(100)),
    ("delayed", JobStatus::Completed, Some(100)),
    ("cancelled", JobStatus::Cancelled, None),
    // Its tasks failed in the earlier build because their file was missing.
    ("retried", JobStatus::Completed, Some(30)),
];

/// The copy of a fixture, and where this build serves it.
struct Installation {
    folder: TempDir,
    listen: String,
    database: Option<harness::Postgres>,
    /// The number of its jobs.
    jobs: usize,
}

impl Installation {
    async fn of(fixture: &str, jobs: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/upgrade/fixtures")
            .join(fixture);
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        for file in ["jobs.db", "broker.db"] {
            let packed = fixture.join(file).with_extension("db.gz");
            if packed.exists() {
                unpack(&packed, &folder.path().join("data").join(file));
            }
        }
        let mut database = None;
        let dump = fixture.join("database.sql.gz");
        if dump.exists() {
            let made = harness::postgres().await.unwrap();
            let script = folder.path().join("database.sql");
            unpack(&dump, &script);
            let include = format!("\\i {}", script.display());
            harness::psql(&made.url, &[&include]).await.unwrap();
            database = Some(made);
        }
        Self {
            folder,
            listen: format!("127.0.0.1:{}", free_port()),
            database,
            jobs,
        }
    }

    /// Makes the messages name this build where they name the earlier one, whose port may be taken. A batch asks there what an
    /// earlier round has done.
    fn take_the_place_of_the_earlier_build(&self) {
        let file = self.data().join("broker.db");
        let mut bytes = fs::read(&file).unwrap();
        assert_eq!(self.listen.len(), EARLIER.len(), "{}", self.listen);
        let at = |bytes: &[u8]| bytes.windows(EARLIER.len()).position(|it| it == EARLIER);
        let mut from = 0;
        while let Some(found) = at(&bytes[from..]) {
            from += found;
            bytes[from..from + EARLIER.len()].copy_from_slice(self.listen.as_bytes());
        }
        fs::write(&file, bytes).unwrap();
    }

    /// Writes a file of the batches. The lines that are `bad` are not UTF-8.
    fn write(&self, name: &str, letter: &str, lines: u32, bad: impl Fn(u32) -> bool) {
        let line = |n| {
            if bad(n) {
                b"\xff\xfe\n".to_vec()
            } else {
                format!("{letter}{n}\n").into_bytes()
            }
        };
        let text: Vec<u8> = (1..=lines).flat_map(line).collect();
        write(&self.folder.path().join("root").join(name), &text);
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts this build on the data and waits until it responds.
    async fn start(&self) -> Up {
        let folder = self.folder.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_batchwright"));
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("BATCHWRIGHT_") {
                command.env_remove(variable);
            }
        }
        command
            .arg("up")
            .args(["--listen", &self.listen, "--max-parts", "50"])
            .arg("--data")
            .arg(self.data())
            .arg("--root")
            .arg(folder.join("root"));
        if let Some(database) = &self.database {
            command.args(["--database", &database.url]);
        }
        let log = folder.join("log");
        let mut up = Up(command
            .stdout(File::create(folder.join("out")).unwrap())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap());
        wait_for("the new build to serve the old data", async || {
            if let Some(status) = up.0.try_wait().unwrap() {
                panic!(
                    "it ended with {status}: {}",
                    fs::read_to_string(&log).unwrap()
                );
            }
            match self.client().list(&[]).await {
                Ok(jobs) if jobs.len() == self.jobs => Ok(()),
                state => Err(format!("{state:?}")),
            }
        })
        .await;
        up
    }

    fn client(&self) -> Client {
        Client::new(&format!("http://{}/job-service/v1", self.listen), "default")
    }

    async fn ended(&self, job: &str) -> Job {
        wait_for(&format!("{job} to end"), async || {
            match self.client().get(job).await {
                Ok(job) if job.status.is_finished() => Ok(job),
                state => Err(format!("{state:?}")),
            }
        })
        .await
    }

    /// Returns the distinct words of all outputs, read from the embedded broker's file.
    async fn words(&self) -> BTreeSet<String> {
        let broker = Embedded::open(&self.data()).await.unwrap();
        let depth = broker.depth(EXAMPLE_OUT_PIPE).await.unwrap();
        let mut consumer = broker.consume(EXAMPLE_OUT_PIPE, 1000).await.unwrap();
        let mut words = BTreeSet::new();
        for _ in 0..depth {
            let delivery = in_time("an output", consumer.next()).await.unwrap();
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            if let Ok(output) =
                serde_json::from_slice::<Value>(&message.task_data.unwrap_or_default())
            {
                let counts = output["words"].as_object().into_iter().flatten();
                words.extend(counts.map(|(word, _)| word.clone()));
            }
            delivery.ack();
        }
        broker.close().await;
        words
    }
}

fn unpack(from: &Path, to: &Path) {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(File::open(from).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    fs::write(to, bytes).unwrap();
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
}

/// A running process, killed when it is dropped.
struct Up(Child);

impl Up {
    async fn stop(mut self) {
        Command::new("kill")
            .args(["-TERM", &self.0.id().to_string()])
            .status()
            .unwrap();
        wait_for("the process to end", async || {
            match self.0.try_wait().unwrap() {
                Some(_) => Ok(()),
                None => Err("it still runs".to_owned()),
            }
        })
        .await;
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn takes_over(fixture: &str) {
    let installation = Installation::of(fixture, 10).await;
    for (name, letter, lines) in FILES {
        installation.write(name, letter, lines, |_| false);
    }
    installation.write("bad.txt", "f", 40, |n| n == 7);
    let up = installation.start().await;
    let client = installation.client();

    let paused = client.get("paused").await.unwrap();
    assert_eq!(paused.status, JobStatus::Paused);
    assert!((1..500).contains(&paused.completed_items), "{paused:?}");
    assert_eq!(
        paused.labels.get("made:by"),
        Some(&Some("the build before".to_owned()))
    );
    client.resume("paused").await.unwrap();

    for (name, status, items) in OUTCOMES {
        let job = installation.ended(name).await;
        assert_eq!(job.status, status, "{name}: {job:?}");
        if let Some(items) = items {
            assert_eq!(job.completed_items, items, "{name}: {job:?}");
        }
    }
    let resumed = installation.ended("paused").await;
    assert_eq!(
        (resumed.status, resumed.completed_items),
        (JobStatus::Completed, 500)
    );
    let failed = client.get("failed").await.unwrap();
    assert_eq!(
        (failed.failed_tasks, failed.failures.len()),
        (1, 1),
        "{failed:?}"
    );

    up.stop().await;
    let words = installation.words().await;
    for (_, letter, lines) in FILES {
        let missing: Vec<u32> = (1..=lines)
            .filter(|n| !words.contains(&format!("{letter}{n}")))
            .collect();
        assert!(
            missing.is_empty(),
            "outputs of {letter}{missing:?} are missing"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_an_embedded_system_in_the_middle_of_its_jobs() {
    takes_over("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_a_postgres_database_in_the_middle_of_its_jobs() {
    takes_over("postgres").await;
}
