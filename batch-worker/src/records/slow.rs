//! Tests of sources that come slowly, with breaks, or never, and of packed files without content.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contract::{BatchTask, PAUSED_PIPE, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Outgoing};
use framework::{Runtime, Settings, announcement};
use harness::{RawServer, Sent, in_time, wait_for};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::elsewhere::{gzip, ids, plugin, table, zstd};
use super::tests::items_of;
use super::*;
use crate::{BatchWorker, Range, SourceLimits};

/// Splits the file of a server once, within these limits.
async fn split_within(limits: SourceLimits, server: &RawServer) -> Result<Vec<Part>, SplitError> {
    let plugin = plugin(Path::new("."), &[server.url()], &[]);
    let definition = json!({"files": [format!("{}/a.csv?key=secret", server.url())]});
    let (definition, reading) = (definition.to_string(), Reading::with(limits));
    let batch = Batch {
        reading: Some(&reading),
        ..Batch::of(&definition, 10)
    };
    in_time("the split", plugin.split(batch)).await
}

#[tokio::test]
async fn server_that_breaks_off_again_and_again_fails_the_split_by_the_name_of_the_source() {
    let file = table(20);
    let server = RawServer::start(file, Sent::ByteAndBreak);
    let server = server.await.unwrap();
    let limits = SourceLimits {
        most_breaks: 2,
        ..SourceLimits::default()
    };
    let error = split_within(limits, &server).await.unwrap_err();
    let SplitError::Definition(text) = &error else {
        panic!("{error:?}")
    };
    let expected = format!(
        "\"{}/a.csv?…\" broke off 3 times; at most 2 are possible (--source-breaks)",
        server.url()
    );
    assert!(text.starts_with(&expected), "{text}");
}

#[tokio::test]
async fn server_that_is_too_slow_fails_the_split_by_the_name_of_the_source() {
    let file = table(20);
    let server = RawServer::start(file, Sent::ByteAndHold);
    let server = server.await.unwrap();
    let limits = SourceLimits {
        least_speed: 1 << 20,
        window: Duration::from_millis(200),
        ..SourceLimits::default()
    };
    let error = split_within(limits, &server).await.unwrap_err();
    let SplitError::Definition(text) = &error else {
        panic!("{error:?}")
    };
    let expected = format!("\"{}/a.csv?…\" is sent too slowly: ", server.url());
    assert!(text.starts_with(&expected), "{text}");
    assert!(
        text.contains("the least is 1048576 bytes a second (--source-least-speed)"),
        "{text}"
    );
}

#[tokio::test]
async fn what_a_server_sends_behind_the_range_that_it_is_asked_for_is_not_read() {
    let (file, folder) = (table(20), tempfile::tempdir().unwrap());
    let server = RawServer::start(gzip(file.as_bytes()), Sent::More(b"no gzip"));
    let server = server.await.unwrap();
    let plugin = plugin(folder.path(), &[server.url()], &[]);
    let definition = json!({"files": [format!("{}/a.csv.gz", server.url())]});
    let items = items_of(&plugin, &definition, 10).await.unwrap();
    assert_eq!(ids(&items).len(), 20);
}

/// Returns a member of gzip with so many blocks that are empty, and no end.
fn empty_blocks(count: usize) -> Vec<u8> {
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let block = [0, 0, 0, 0xff, 0xff];
    [&header[..], &block.repeat(count)].concat()
}

#[tokio::test]
async fn packed_file_with_too_much_in_a_row_that_has_no_content_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = RecordFiles::new(folder.path());
    let line = |n: usize| gzip(format!("{n}\n").as_bytes());
    let padded = (0..40).map(|n| [line(n), gzip(b"").repeat(500)].concat());
    for (name, content, problem) in [
        ("members.txt.gz", gzip(b"").repeat(20_000), true),
        ("blocks.txt.gz", empty_blocks(100_000), true),
        ("frames.txt.zst", zstd(b"").repeat(40_000), true),
        ("padded.txt.gz", padded.collect::<Vec<_>>().concat(), false),
    ] {
        std::fs::write(folder.path().join(name), &content).unwrap();
        assert!(content.len() > 300_000, "{name}: {}", content.len());
        let found = items_of(&plugin, &json!({"files": [name]}), 10).await;
        match found {
            Ok(items) if !problem => assert_eq!(items.len(), 40),
            Err(error) if problem => {
                let is_named = error.starts_with(&format!("{name:?} has "));
                assert!(
                    is_named && error.contains("in a row without content"),
                    "{error}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// A batch worker with two readers, the sources that it reads, and the job service that it asks.
struct Fixture {
    sources: RawServer,
    jobs: MockServer,
    pipes: Memory,
    stop: CancellationToken,
    running: TaskTracker,
}

impl Fixture {
    async fn start() -> Self {
        let sources = RawServer::start(table(20), Sent::ByteAndHold);
        let (sources, pipes) = (sources.await.unwrap(), Memory::new());
        let worker = BatchWorker::new(10)
            .readers(2, SourceLimits::default())
            .with(Range)
            .with(plugin(Path::new("."), &[sources.url()], &[]));
        let settings = Settings {
            concurrency: 4,
            drain: Duration::from_millis(1),
            ..Settings::new("w")
        };
        let service = Runtime::new(settings, Arc::new(pipes.clone())).worker(worker);
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        let until = stop.clone();
        running.spawn(async move { service.run_until(until).await.unwrap() });
        Self {
            sources,
            jobs: MockServer::start().await,
            pipes,
            stop,
            running,
        }
    }

    /// Sends the batch of a job, which is Active.
    async fn send(&self, job: &str, batch_type: &str, definition: &str) {
        self.set_status(job, "Active").await;
        let status = format!("{}{}", self.jobs.uri(), status_path(job));
        let task = BatchTask {
            batch_type: Some(batch_type.to_owned()),
            batch_definition: Some(definition.to_owned()),
            target_pipe: Some("items".to_owned()),
            ..BatchTask::default()
        };
        let message = TaskMessage {
            tracking: Some(Tracking {
                job_task_id: Some(format!("p:{job}")),
                status_check_url: Some(status.into()),
                tracking_pipe: Some("tracking".into()),
                ..Tracking::default()
            }),
            ..TaskMessage::new(job, "w-in", &task).unwrap()
        };
        let message = Outgoing::new("w-in", message.encode());
        self.pipes.publish(message).await.unwrap();
    }

    /// Sends a batch whose source never ends.
    async fn send_hanging(&self, job: &str) {
        let definition = json!({"files": [format!("{}/{job}.csv", self.sources.url())]});
        self.send(job, "records", &definition.to_string()).await;
    }

    async fn set_status(&self, job: &str, status: &str) {
        let response = ResponseTemplate::new(200)
            .set_body_json(status)
            .insert_header("cache-control", "max-age=3600");
        Mock::given(path(status_path(job)))
            .respond_with(response)
            // What is mounted later comes first.
            .with_priority(if status == "Active" { 5 } else { 1 })
            .mount(&self.jobs)
            .await;
    }

    async fn change(&self, job: &str, status: &str) {
        self.set_status(job, status).await;
        announcement::announce(&self.pipes, vec![format!("p:{job}")])
            .await
            .unwrap();
    }

    /// Waits until the sources of these jobs are read, and no others.
    async fn reads(&self, jobs: &[&str]) {
        let paths: Vec<String> = jobs.iter().map(|job| format!("/{job}.csv")).collect();
        wait_for("the sources that are read", async || {
            let held = self.sources.held();
            if held == paths {
                Ok(())
            } else {
                Err(format!("{held:?}"))
            }
        })
        .await;
    }

    /// Takes messages out of a pipe.
    async fn take(&self, pipe: &str, messages: usize) {
        let mut consumer = self.pipes.consume(pipe, 10).await.unwrap();
        for _ in 0..messages {
            in_time("a message", consumer.next()).await.unwrap().ack();
        }
    }
}

fn status_path(job: &str) -> String {
    format!("/job-service/v1/partitions/p/jobs/{job}/status")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn splits_that_hang_hold_up_no_others_and_end_with_their_job_its_pause_and_the_process() {
    let fixture = Fixture::start().await;
    fixture.send_hanging("a").await;
    fixture.reads(&["a"]).await;
    fixture.send_hanging("b").await;
    fixture.reads(&["a", "b"]).await;
    for job in ["c", "d", "e", "f"] {
        fixture.send_hanging(job).await;
    }
    // Those that find no slot are put off, and wait neither in a slot nor in the input.
    fixture.send("range", "range", "1-3").await;
    fixture.take("items", 3).await;
    fixture.reads(&["a", "b"]).await;
    for job in ["c", "d", "e"] {
        fixture.change(job, "Cancelled").await;
    }
    fixture.change("a", "Cancelled").await;
    fixture.reads(&["b", "f"]).await;
    fixture.change("b", "Paused").await;
    fixture.take(PAUSED_PIPE, 1).await;
    fixture.reads(&["f"]).await;
    fixture.stop.cancel();
    fixture.running.close();
    in_time("the worker to stop", fixture.running.wait()).await;
    fixture.reads(&[]).await;
}
