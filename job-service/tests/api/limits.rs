//! What no client can do to the others: hold connections, memory or places, and ask for more than a
//! bound.

use std::cell::Cell;
use std::time::Duration;

use blobs::Blobs;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::service::{Service, new_job};
use crate::{outputs, sources};

/// Opens a connection and sends a part of a request.
async fn send_part(service: &Service, part: &str) -> TcpStream {
    let address = service.root.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(part.as_bytes()).await.unwrap();
    socket
}

/// Reads until the server closes the connection.
async fn read_to_end(mut socket: TcpStream) -> String {
    let mut received = Vec::new();
    // A closed connection may also be reported as an error.
    let _ = harness::in_time("the end of a connection", socket.read_to_end(&mut received)).await;
    String::from_utf8(received).unwrap()
}

fn half_put(service: &Service, job: &str, length: usize, body: &str) -> String {
    let path = service.path(&format!("/jobs/{job}"));
    format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[tokio::test]
async fn connections_that_wait_for_their_clients_give_way_to_new_ones() {
    let service = Service::start_configured(|options| options.limits.connections = 6).await;
    let mut half_sent = Vec::new();
    for n in 0..20 {
        let part = match n % 3 {
            0 => String::new(),
            1 => "GET /job-service/v1/ping HTTP/1.1\r\nHost: local".to_owned(),
            _ => half_put(&service, "half", 100, "{"),
        };
        half_sent.push(send_part(&service, &part).await);
    }
    service.put("j", &new_job()).await.is(201);
    service.get("/jobs/j").await.is(200);
    service
        .call(Method::GET, "/health-check", None)
        .await
        .is(200);
    for socket in half_sent.drain(..14) {
        assert_eq!(read_to_end(socket).await, "");
    }
}

#[tokio::test]
async fn connection_at_work_does_not_give_way_and_health_and_metrics_are_answered() {
    let service = Service::start_configured(|options| options.limits.connections = 1).await;
    service.put("j", &new_job()).await.is(201);
    let mut watched = service
        .request(Method::GET, &service.path("/jobs/j/events"))
        .send()
        .await
        .unwrap();
    assert!(watched.chunk().await.unwrap().is_some());
    for _ in 0..2 {
        let busy = service.get("/jobs/j").await;
        busy.refuses(
            503,
            "The service has as many connections as it may have. Try again later.",
        );
        assert_eq!(busy.header("retry-after"), "1");
        for path in ["/health-check", "/metrics"] {
            service.call(Method::GET, path, None).await.is(200);
        }
    }
    service.report("j", "", store::EventKind::Complete).await;
    while watched.chunk().await.unwrap().is_some() {}
    harness::wait_for("a free connection", async || {
        match service.get("/jobs/j").await.status.as_u16() {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
}

#[tokio::test]
async fn event_streams_leave_half_of_the_connections_to_others() {
    let service = Service::start_configured(|options| options.limits.connections = 4).await;
    service.put("j", &new_job()).await.is(201);
    let watch = async || {
        let events = service.request(Method::GET, &service.path("/jobs/j/events"));
        events.send().await.unwrap()
    };
    let watchers = [watch().await, watch().await];
    let refused = service.get("/jobs/j/events").await;
    refused.refuses(
        503,
        "The service has as many event streams as it may have. Try again later.",
    );
    service.get("/jobs/j").await.is(200);
    drop(watchers);
}

/// Serves one request of each kind that takes long, whose clients give way after a moment.
async fn start_with_one_place(blobs: &Blobs) -> Service {
    let blobs = blobs.clone();
    Service::start_configured(|options| {
        options.outputs.blobs = Some(blobs);
        options.limits.connections = 4;
        options.limits.patience = Duration::from_millis(20);
    })
    .await
}

#[tokio::test]
async fn slow_upload_gives_way_to_another_one() {
    let service = start_with_one_place(&Blobs::memory()).await;
    let source = sources::create(&service).await;
    let path = service.path(&format!("/sources/{source}"));
    let head = "HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\nContent-Length: 100";
    let slow = send_part(&service, &format!("PATCH {path} {head}\r\n\r\nx")).await;
    let other = sources::create(&service).await;
    let mut offset = 0;
    let mut send = async || {
        let answer = sources::append(&service, &other, &offset.to_string(), b"x").await;
        if answer.status == 200 {
            offset += 1;
            return Ok(());
        }
        let message = "The service has as many uploads as it may take at once. Try again later.";
        answer.refuses(503, message);
        Err(message.to_owned())
    };
    let is_closed = Cell::new(false);
    let closed = async {
        assert_eq!(read_to_end(slow).await, "");
        is_closed.set(true);
    };
    let others = async {
        while !is_closed.get() {
            drop(send().await);
        }
    };
    tokio::join!(closed, others);
    harness::wait_for("the place of the slow one", send).await;
}

#[tokio::test]
async fn reader_of_outputs_that_stops_reading_gives_way_to_another_one() {
    let blobs = Blobs::memory();
    let service = start_with_one_place(&blobs).await;
    // More than the system holds for a client that does not read.
    outputs::keep_long(&service, &blobs, 32, 1 << 20).await;
    let path = service.path("/jobs/j/outputs");
    let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut stopped = send_part(&service, &get).await;
    let mut begin = [0; 12];
    stopped.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    harness::wait_for("the place of the one that has stopped", async || {
        let answer = service.get("/jobs/j/outputs?limit=1").await;
        match answer.status.as_u16() {
            200 => Ok(()),
            _ => Err(answer.error()),
        }
    })
    .await;
    let received = read_to_end(stopped).await;
    assert!(
        !received.ends_with("\r\n0\r\n\r\n"),
        "it has got everything"
    );
}

#[tokio::test]
async fn watcher_that_stops_reading_gives_way_to_another_one() {
    let service = start_with_one_place(&Blobs::memory()).await;
    let mut job = new_job();
    job["externalData"] = "x".repeat(1 << 20).into();
    job["description"] = "x".repeat(1 << 20).into();
    service.put("j", &job).await.is(201);
    let path = service.path("/jobs/j/events");
    let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut stopped = [
        send_part(&service, &get).await,
        send_part(&service, &get).await,
    ];
    for socket in &mut stopped {
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).await.unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    }
    harness::wait_for("the place of one that has stopped", async || {
        // Each change sends them the job once more, until that is more than the system holds for
        // them.
        service.pause("j").await.is(204);
        service.resume("j").await.is(204);
        let events = service.request(Method::GET, &path);
        match events.send().await.unwrap().status().as_u16() {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
}

#[tokio::test]
async fn half_sent_request_is_given_up_after_a_time() {
    let service = Service::start_configured(|options| {
        options.limits.head_time = Duration::from_millis(50);
        options.limits.body_time = Duration::from_millis(50);
    })
    .await;
    let head = send_part(&service, "GET /job-service/v1/ping HTTP/1.1\r\nHost: local").await;
    read_to_end(head).await;
    let body = send_part(&service, &half_put(&service, "j", 100, "{")).await;
    let answer = read_to_end(body).await;
    assert!(
        answer.starts_with("HTTP/1.1 408")
            && answer.contains("The body did not arrive within 50ms."),
        "{answer}"
    );
}

#[tokio::test]
async fn head_of_a_request_is_bounded() {
    let service = Service::start().await;
    for (bytes, is_read) in [(60_000, true), (200_000, false)] {
        let long = "x".repeat(bytes);
        let request = format!(
            "GET /job-service/v1/ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: {long}\r\n\r\n"
        );
        let mut socket = send_part(&service, "").await;
        // The connection may be closed before the client has sent everything, or has read the 431.
        let _ = socket.write_all(request.as_bytes()).await;
        let answer = read_to_end(socket).await;
        assert_eq!(
            answer.starts_with("HTTP/1.1 200"),
            is_read,
            "{bytes}: {answer}"
        );
    }
}

#[tokio::test]
async fn bodies_in_flight_are_bounded_in_sum() {
    let body = new_job().to_string();
    let service =
        Service::start_configured(|options| options.limits.body_bytes = body.len() + 100).await;
    let mut other = send_part(
        &service,
        &half_put(&service, "other", 200, &" ".repeat(150)),
    )
    .await;
    let message =
        "The service has as many bytes of request bodies as it may hold. Try again later.";
    harness::wait_for("the other body to be in flight", async || {
        let answer = service.put("j", &new_job()).await;
        if answer.status == 503 {
            return Ok(answer);
        }
        service.delete("j").await;
        Err(format!("{answer:?}"))
    })
    .await
    .refuses(503, message);
    other.write_all(" ".repeat(50).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    other.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
    drop(other);
    service.put("j", &new_job()).await.is(201);
}

#[tokio::test]
async fn more_labels_than_the_limit_are_refused() {
    let service = Service::start().await;
    let with_labels = |number: usize| {
        let labels: serde_json::Map<String, Value> = (0..number)
            .map(|n| (format!("label-{n}"), json!("x")))
            .collect();
        let mut job = new_job();
        job["labels"] = labels.into();
        job
    };
    service.put("j", &with_labels(100)).await.is(201);
    for number in [101, 10_000] {
        service.put("k", &with_labels(number)).await.refuses(
            400,
            &format!(
                "The job has {number} labels; at most 100 are allowed. The setting is --max-labels (BATCHWRIGHT_MAX_LABELS)."
            ),
        );
    }
}

#[tokio::test]
async fn longer_texts_than_the_limit_are_refused() {
    let service = Service::start_configured(|options| options.limits.text = 100).await;
    for field in ["description", "externalData"] {
        let mut job = new_job();
        job[field] = json!("x".repeat(101));
        service.put("j", &job).await.refuses(
            400,
            &format!(
                "The field '{field}' has 101 bytes; at most 100 are allowed. The setting is --max-text (BATCHWRIGHT_MAX_TEXT)."
            ),
        );
        job[field] = json!("x".repeat(100));
        service.put(field, &job).await.is(201);
    }
}

#[tokio::test]
async fn page_of_more_jobs_than_the_limit_is_refused_instead_of_cut() {
    let service = Service::start_configured(|options| {
        options.page_size = 2;
        options.limits.page = 3;
    })
    .await;
    for job in ["a", "b", "c"] {
        service.put(job, &new_job()).await.is(201);
    }
    for limit in ["3", "4", "2147483647", "9223372036854775807"] {
        let page = service.get(&format!("/jobs?limit={limit}")).await.is(200);
        assert_eq!(page.job_ids(), ["c", "b", "a"]);
    }
    service.put("d", &new_job()).await.is(201);
    let page = service.get("/jobs?limit=3").await.is(200);
    assert_eq!(page.job_ids(), ["d", "c", "b"]);
    service.get("/jobs?limit=4").await.refuses(
        400,
        "The page has more than 3 jobs. Ask for a smaller 'limit', and for the next page with 'offset'. The setting is --max-page-size \
         (BATCHWRIGHT_MAX_PAGE_SIZE).",
    );
    service.get("/jobs?limit=4&offset=1").await.is(200);
}

#[tokio::test]
async fn connection_of_a_refused_request_serves_the_next_one_or_says_that_it_closes() {
    let service = Service::start().await;
    let job = "x".repeat(100);
    let close = "Connection: close\r\n";
    let next = format!("GET /job-service/v1/ping HTTP/1.1\r\nHost: localhost\r\n{close}\r\n");
    // Clients send the body behind the head, and not with it.
    let mut socket = send_part(&service, &half_put(&service, &job, 2, "")).await;
    socket.write_all(b"{}").await.unwrap();
    socket.write_all(next.as_bytes()).await.unwrap();
    let received = read_to_end(socket).await;
    let (refusal, _) = received.split_once("HTTP/1.1 200").unwrap();
    assert!(refusal.starts_with("HTTP/1.1 400"), "{received}");
    assert!(!refusal.contains("connection: close"), "{received}");
    // So much is not read only to be dropped.
    let socket = send_part(&service, &half_put(&service, &job, 1 << 30, "{")).await;
    let received = read_to_end(socket).await;
    assert!(received.starts_with("HTTP/1.1 400"), "{received}");
    assert!(received.contains("connection: close"), "{received}");
}
