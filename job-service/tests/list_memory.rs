//! How much memory lists take whose clients do not read them. The allocator counts all of the
//! process, so this is a binary of its own.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

extern crate batchwright_job_service as job_service;

#[path = "api/service.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod service;

use std::alloc::System;

use cap::Cap;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use service::{Backend, Service, new_job};

/// The most that all lists together may have, with what a test needs itself.
const MEMORY: usize = 32 * 1024 * 1024;
/// The clients that do not read.
const CLIENTS: usize = 24;
const JOBS: usize = 8;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Returns a text of a mebibyte, with characters of every length and some that JSON escapes.
fn long_text(number: usize) -> String {
    let line = format!("{number}: \"quoted\" and \\ and ä, €, 𝄞\n");
    line.repeat((1024 * 1024) / line.len())
}

fn large_job(number: usize) -> Value {
    let mut job = new_job();
    job["description"] = json!(long_text(number));
    job["externalData"] = json!(long_text(number + 100));
    job
}

#[tokio::test]
async fn list_that_no_client_reads_takes_little_memory_and_is_whole_for_one_that_does() {
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let service = Service::start_on(backend).await;
        for number in 0..JOBS {
            let put = service.put(&format!("j{number}"), &large_job(number)).await;
            put.is(201);
        }
        let before = ALLOCATOR.allocated();
        let mut slow = Vec::new();
        let mut most = 0;
        for _ in 0..CLIENTS {
            slow.push(begin_to_read(&service).await);
            most = most.max(ALLOCATOR.allocated());
        }
        let taken = most.saturating_sub(before);
        assert!(taken < MEMORY, "{CLIENTS} lists take {taken} bytes");
        drop(slow);

        let whole = service.get("/jobs").await.is(200).json();
        let whole = whole.as_array().unwrap();
        assert_eq!(whole.len(), JOBS);
        for (job, number) in whole.iter().zip((0..JOBS).rev()) {
            let expected = large_job(number);
            assert!(job["description"] == expected["description"], "{number}");
            assert!(job["externalData"] == expected["externalData"], "{number}");
            let id = job["id"].as_str().unwrap();
            let alone = service.get(&format!("/jobs/{id}")).await.is(200).json();
            assert!(alone == *job, "{number}");
        }
        service.stop().await;
    }
}

/// Asks for a list and reads its beginning.
async fn begin_to_read(service: &Service) -> TcpStream {
    let address = service.root.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address).await.unwrap();
    let path = service.path("/jobs");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut beginning = [0; 4096];
    let read = socket.read_exact(&mut beginning);
    harness::in_time("the beginning of a list", read)
        .await
        .unwrap();
    assert!(beginning.starts_with(b"HTTP/1.1 200"));
    socket
}
