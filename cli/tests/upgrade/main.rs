//! The upgrade test: this build continues the data that the release before left behind in the
//! middle of its jobs.
//!
//! `fixtures/` has one archive for each kind of installation: the data folder of `batchwright up`,
//! killed with SIGKILL while its jobs were in different states, and the dump of a PostgreSQL
//! database beside the embedded broker's file. The release before wrote them by `make_fixtures.py`;
//! until there is one, they are of the first build with `0001_schema.sql`. The test starts this
//! build on a copy, lets every job end, and compares the counts, the outcomes and the outputs with
//! what the batch files specify. It fails if this build cannot read what is stored.
//!
//! Two jobs are in the middle of their second round: `mended`, and `rough`, of which each hundredth
//! item fails. Of both, items are done, some wait, and reports of the first round are on their way
//! about items that wait: two that they have failed, and one that it is done.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use batchwright::advanced::EXAMPLE_OUT_PIPE;
use batchwright::client::Client;
use contract::rest::Job;
use contract::{JobStatus, TaskMessage};
use framework::broker::Broker;
use framework::broker::embedded::Embedded;
use harness::{free_port, in_time, wait_for};
use serde_json::Value;
use tempfile::TempDir;

/// When the files of the batches were last changed, in seconds since 1970. The stored definitions
/// pin it.
const MODIFIED: u64 = 1_767_225_600;

/// Where the release before served.
const BEFORE: &[u8] = b"127.0.0.1:28080";

/// The number of jobs of a fixture.
const JOBS: usize = 14;

/// The files of the batches: name, first letter of each line, number of lines.
const FILES: [(&str, &str, u32); 5] = [
    ("running.txt", "a", 20_000),
    ("again.txt", "b", 4000),
    ("paused.txt", "c", 1000),
    ("waits.txt", "e", 100),
    ("mended.txt", "g", 4000),
];

/// The final status and completed items of each job. `None` where the release before has already
/// fixed the count.
const OUTCOMES: [(&str, JobStatus, Option<i64>); 11] = [
    ("done", JobStatus::Completed, Some(100)),
    ("failed", JobStatus::Failed, None),
    ("continued", JobStatus::Failed, Some(39)),
    ("running", JobStatus::Completed, Some(20_000)),
    // This is the second incarnation of its id.
    ("again", JobStatus::Completed, Some(4000)),
    // It waits for `running`.
    ("waits", JobStatus::Completed, Some(100)),
    ("delayed", JobStatus::Completed, Some(100)),
    ("cancelled", JobStatus::Cancelled, None),
    // The first attempt at its task failed before.
    ("retried", JobStatus::Completed, Some(1)),
    ("mended", JobStatus::Completed, Some(4000)),
    ("rough", JobStatus::Failed, Some(3960)),
];

/// The copy of a fixture, and where this build serves it.
struct Installation {
    folder: TempDir,
    listen: String,
    database: Option<harness::Postgres>,
}

impl Installation {
    async fn of(fixture: &str) -> Self {
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
        }
    }

    /// Makes the messages name this build where they name the release before, whose port may be
    /// taken. A batch asks there what an earlier round has done.
    fn take_the_place_of_the_release_before(&self) {
        let file = self.data().join("broker.db");
        let mut bytes = fs::read(&file).unwrap();
        assert_eq!(self.listen.len(), BEFORE.len(), "{}", self.listen);
        let at = |bytes: &[u8]| bytes.windows(BEFORE.len()).position(|it| it == BEFORE);
        let mut from = 0;
        while let Some(found) = at(&bytes[from..]) {
            from += found;
            bytes[from..from + BEFORE.len()].copy_from_slice(self.listen.as_bytes());
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
                Ok(jobs) if jobs.len() == JOBS => Ok(()),
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

/// Returns whether this item of `rough` fails in every round.
const fn is_rough(number: u32) -> bool {
    number.is_multiple_of(100)
}

async fn takes_over(fixture: &str) {
    let installation = Installation::of(fixture).await;
    installation.take_the_place_of_the_release_before();
    for (name, letter, lines) in FILES {
        installation.write(name, letter, lines, |_| false);
    }
    installation.write("bad.txt", "f", 40, |n| n == 7);
    installation.write("rough.txt", "h", 4000, is_rough);
    let up = installation.start().await;
    let client = installation.client();

    let paused = client.get("paused").await.unwrap();
    assert_eq!(paused.status, JobStatus::Paused);
    assert!((1..1000).contains(&paused.completed_items), "{paused:?}");
    assert_eq!(
        paused.labels.get("made:by"),
        Some(&Some("the release before".to_owned()))
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
        (JobStatus::Completed, 1000)
    );
    let failed = client.get("failed").await.unwrap();
    assert_eq!(
        (failed.failed_tasks, failed.failures.len()),
        (1, 1),
        "{failed:?}"
    );

    second_rounds_have_ended(&installation).await;
    blocked_task_and_dead_letter_go_on(&installation).await;

    up.stop().await;
    let words = installation.words().await;
    for (_, letter, lines) in FILES.into_iter().chain([("rough.txt", "h", 4000)]) {
        let missing: Vec<u32> = (1..=lines)
            .filter(|n| letter != "h" || !is_rough(*n))
            .filter(|n| !words.contains(&format!("{letter}{n}")))
            .collect();
        assert!(
            missing.is_empty(),
            "outputs of {letter}{missing:?} are missing"
        );
    }
}

async fn second_rounds_have_ended(installation: &Installation) {
    let mended = installation.ended("mended").await;
    assert_eq!(mended.round, Some(2), "{mended:?}");
    assert_eq!((mended.failed_tasks, &*mended.failures), (0, &[][..]));
    // A round that the release before has begun, and one that this build begins.
    for round in 2..=3 {
        let rough = installation.ended("rough").await;
        assert_eq!(
            (rough.status, rough.round, rough.completed_items),
            (JobStatus::Failed, Some(round), 3960),
            "{rough:?}"
        );
        assert_eq!((rough.failed_tasks, rough.failures.len()), (40, 40));
        if round == 2 {
            installation.client().retry("rough", false).await.unwrap();
        }
    }
}

async fn blocked_task_and_dead_letter_go_on(installation: &Installation) {
    let client = installation.client();
    let conditions = client.conditions(&[]).await.unwrap().conditions;
    let [condition] = &*conditions else {
        panic!("{conditions:?}")
    };
    client
        .steer_condition(&condition.key, "release")
        .await
        .unwrap();
    let blocked = installation.ended("blocked").await;
    assert_eq!(blocked.status, JobStatus::Completed, "{blocked:?}");

    let letters = client.dead_letters(&[]).await.unwrap().dead_letters;
    let [letter] = &*letters else {
        panic!("{letters:?}")
    };
    client.replay_letter(letter.id, None).await.unwrap();
    let given_up = wait_for("given-up to end again", async || {
        match client.get("given-up").await {
            Ok(job) if job.status == JobStatus::Completed => Ok(job),
            state => Err(format!("{state:?}")),
        }
    })
    .await;
    assert_eq!(given_up.round, Some(2), "{given_up:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_an_embedded_system_in_the_middle_of_its_jobs() {
    takes_over("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_a_postgres_database_in_the_middle_of_its_jobs() {
    takes_over("postgres").await;
}
