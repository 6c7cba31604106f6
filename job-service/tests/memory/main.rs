//! What large start messages cost in memory, from the request to a pipe that nobody consumes.
//!
//! The allocator of this binary aborts the process beyond a limit. `SQLite` allocates beside it.

extern crate batchwright_job_service as job_service;

use std::alloc::System;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use cap::Cap;
use framework::broker::Broker as _;
use framework::broker::embedded::Embedded;
use harness::wait_for;
use job_service::{BASE_PATH, JobService, ServiceOptions};
use serde_json::json;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The size of the task data, in bytes.
const DATA: usize = 4 << 20;
/// How often the data may be in memory at the same time, on its way from a request to the broker.
const COPIES: usize = 10;

/// Returns a request with data that pack to a half.
fn request() -> Bytes {
    let (mut state, mut data) = (1_u64, String::with_capacity(DATA));
    while data.len() < DATA {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Writing to a string does not fail.
        _ = write!(data, "{state:016x}");
    }
    let task =
        json!({"taskClassifier": "T", "taskApiVersion": 1, "taskData": data, "taskPipe": "nobody"});
    json!({ "task": task }).to_string().into()
}

/// The relay sends the message of one job while the next one is created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_start_messages_reach_a_pipe_that_nobody_consumes_in_bounded_memory() {
    const JOBS: u64 = 4;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let store = Store::open(&url).await.unwrap();
    let broker = Embedded::open(&folder.path().join("broker")).await.unwrap();
    let broker = Arc::new(broker);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let root = format!("http://{}{BASE_PATH}", listener.local_addr().unwrap());
    let options = ServiceOptions {
        webservice_url: root.clone(),
        ..ServiceOptions::default()
    };
    let service = JobService::new(store.clone(), Arc::clone(&broker) as _, options);
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let token = stop.clone();
    tasks.spawn(async move { service.serve(listener, token).await.unwrap() });
    tasks.close();
    let body = request();
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = reqwest::Client::new();
    let own = ALLOCATOR.allocated();
    ALLOCATOR.set_limit(own + COPIES * DATA).unwrap();
    for job in 0..JOBS {
        let request = client.put(format!("{root}/partitions/p/jobs/j{job}"));
        let request = request.header("Content-Type", "application/json");
        let answer = request.body(body.clone()).send().await.unwrap();
        assert_eq!(answer.status(), 201);
    }
    wait_for("all messages in the pipe", async || {
        match broker.depth("nobody").await.unwrap() {
            JOBS => Ok(()),
            depth => Err(format!("{depth} messages")),
        }
    })
    .await;
    eprintln!(
        "{} MB more at most",
        (ALLOCATOR.max_allocated() - own) >> 20
    );
    stop.cancel();
    tasks.wait().await;
    broker.close().await;
}
