//! Rules for all requests and responses: health, ids, bodies, parameters, errors.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use framework::broker::Broker;
use framework::broker::memory::Memory;
use framework::health::Health;
use job_service::{JobService, ServiceOptions};
use reqwest::{Method, StatusCode};
use serde_json::json;
use store::{Store, StoreOptions};
use tower::ServiceExt;

use crate::service::{Answer, Service, new_job};

#[tokio::test]
async fn ping_succeeds() {
    let service = Service::start().await;
    let pong = service.call(Method::GET, "/job-service/v1/ping", None);
    assert_eq!(pong.await.is(200).json(), json!({"success": true}));
}

#[tokio::test]
async fn health_check_reports_each_requested_check() {
    let service = Service::start().await;
    let check = |name: &str, kind: &str| json!({"name": name, "healthy": true, "type": kind, "critical": true});
    let alive = [check("deadlocks", "ALIVE"), check("ports-alive", "ALIVE")];
    let ready = ["ports-ready", "database", "ping", "queue"].map(|name| check(name, "READY"));
    for (query, expected) in [
        ("?name=all", json!([&alive[..], &ready[..]].concat())),
        ("?name=all&type=ALIVE", json!(alive)),
        ("", json!([])),
        ("?name=queue&name=deadlocks", json!([alive[0], ready[3]])),
    ] {
        let path = format!("/health-check{query}");
        let answer = service.call(Method::GET, &path, None).await.is(200);
        assert_eq!(answer.json(), expected, "{query}");
    }
}

#[tokio::test]
async fn service_without_broker_is_alive_but_not_ready() {
    let service = Service::start().await;
    service.broker.close().await;
    let ready = service
        .call(Method::GET, "/health-check?name=all&type=READY", None)
        .await
        .is(503)
        .json();
    assert_eq!(
        (
            &ready[3]["healthy"],
            &ready[5]["name"],
            &ready[5]["healthy"]
        ),
        (&json!(true), &json!("queue"), &json!(false))
    );
    service
        .call(Method::GET, "/health-check", None)
        .await
        .is(503);
    service
        .call(Method::GET, "/health-check?name=all&type=ALIVE", None)
        .await
        .is(200);
    service.put("j", &new_job()).await.is(201);
}

#[tokio::test]
async fn health_check_tells_outages_and_degradations_of_the_whole_process() {
    let health = Health::default();
    let of_process = health.clone();
    let service = Service::start_configured(|options| options.health = of_process).await;
    let ready = async |code| {
        let path = "/health-check?name=all&type=READY";
        let checks = service.call(Method::GET, path, None).await.is(code).json();
        checks.as_array().unwrap()[6..].to_vec()
    };
    assert_eq!(ready(200).await, [json!(null); 0]);
    health.degrade("outbox", "relay", "the broker refuses 3 messages");
    let degraded = json!({
        "name": "outbox", "healthy": true, "type": "READY", "critical": false, "degraded": true,
        "message": "the broker refuses 3 messages"
    });
    assert_eq!(ready(200).await, std::slice::from_ref(&degraded));
    let outage = health.outage("worker-x: deliveries", "begins again after a panic: oh");
    let away = json!({
        "name": "worker-x: deliveries", "healthy": false, "type": "READY", "critical": true,
        "message": "begins again after a panic: oh"
    });
    assert_eq!(ready(503).await, [away, degraded]);
    drop(outage);
    health.recover("outbox", "relay");
    assert_eq!(ready(200).await, [json!(null); 0]);
}

#[tokio::test]
async fn bad_ids_are_refused_and_the_partition_is_checked_first() {
    const PARTITION: &str = "The partition ID contains one or more invalid characters.";
    const JOB: &str = "The job identifier contains one or more invalid characters.";
    let service = Service::start().await;
    let partition = |p: &str| format!("/job-service/v1/partitions/{p}/jobs/a.b");
    for (path, message) in [
        (partition(""), "The partition ID has not been specified."),
        (partition("a%3Ab"), PARTITION),
        (partition("%00"), PARTITION),
        (service.path("/jobs/a!b"), JOB),
        (service.path("/jobs/a%0Ab"), JOB),
    ] {
        for (method, below) in [
            (Method::GET, ""),
            (Method::PUT, ""),
            (Method::GET, "/status"),
            (Method::GET, "/tasks/x"),
            (Method::POST, "/cancel"),
        ] {
            service
                .call(method, &format!("{path}{below}"), Some("no job".into()))
                .await
                .refuses(400, message);
        }
    }
    let long_job = "j".repeat(49);
    service
        .put(&long_job, &new_job())
        .await
        .refuses(400, "The job identifier is longer than 48 characters.");
    for below in ["", "/status", "/tasks/1", "/events"] {
        let text = format!("ERROR: job_id {{{long_job}}} not found");
        service
            .get(&format!("/jobs/{long_job}{below}"))
            .await
            .refuses(404, &text);
    }
    let no_text = service.get("/jobs/%FF").await.is(400);
    assert!(no_text.error().contains("UTF-8"), "{no_text:?}");
}

#[tokio::test]
async fn body_that_is_not_a_job_is_refused_with_line_and_column() {
    let service = Service::start().await;
    let path = service.path("/jobs/j");
    let missing = service.call(Method::PUT, &path, None).await;
    missing.refuses(
        400,
        "The body has not been specified. Send the job as a JSON object.",
    );
    let deep = format!(
        r#"{{"task": {{"taskData": {}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for (body, expected) in [
        (
            "{\n  \"name\": x\n}",
            "The body is not valid JSON: expected value at line 2 column 11",
        ),
        (
            "{\"name\": \"a\"",
            "The body is not valid JSON: EOF while parsing an object at line 1 column 12",
        ),
        (
            "null",
            "The body is not a job: invalid type: null, expected a map at line 1 column 4",
        ),
        (
            r#"{"delay": 1.5}"#,
            "The body is not a job: invalid type: floating point `1.5`, expected i32 at line 1 column 13",
        ),
        (
            deep.as_str(),
            "The body is not valid JSON: recursion limit exceeded at line 1 column",
        ),
        ("{}", "The task has not been specified."),
    ] {
        let refused = service
            .call(Method::PUT, &path, Some(body.into()))
            .await
            .is(400);
        assert!(refused.error().starts_with(expected), "{refused:?}");
    }
    let no_text = Answer::of(
        service
            .request(Method::PUT, &path)
            .body(&b"{\"name\": \"\xff\"}"[..]),
    )
    .await
    .is(400);
    assert!(
        no_text
            .error()
            .starts_with("The body is not valid JSON: invalid unicode code point at line 1 column"),
        "{no_text:?}"
    );
}

#[tokio::test]
async fn oversized_body_is_refused_with_or_without_content_length() {
    let store = Store::temporary(StoreOptions::default());
    let options = ServiceOptions {
        max_body_bytes: 1000,
        ..ServiceOptions::default()
    };
    let router = JobService::new(store, Arc::new(Memory::new()), options).router();
    let whole = Body::from(" ".repeat(1001));
    let in_parts = Body::from_stream(futures_util::stream::iter(
        (0..11).map(|_| Ok::<_, std::io::Error>(" ".repeat(100))),
    ));
    for body in [whole, in_parts] {
        let request = Request::put("/job-service/v1/partitions/p/jobs/j")
            .body(body)
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(
            (response.status(), &response.headers()["content-type"]),
            (
                StatusCode::PAYLOAD_TOO_LARGE,
                &"application/json".parse().unwrap()
            )
        );
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        assert_eq!(body, r#"{"message":"The body is larger than 1000 bytes."}"#);
    }
}

#[tokio::test]
async fn content_type_is_ignored() {
    let service = Service::start().await;
    let request = service
        .request(Method::PUT, &service.path("/jobs/j"))
        .header("Content-Type", "application/x-www-form-urlencoded");
    Answer::of(request.body(new_job().to_string()))
        .await
        .is(201);
}

/// The suite `caf_compat` tries more values.
#[tokio::test]
async fn bad_query_parameters_are_refused_by_name() {
    let service = Service::start().await;
    for (query, message) in [
        (
            "limit=1.5",
            "The parameter 'limit' must be a whole number, but is '1.5'.",
        ),
        (
            "offset=99999999999999999999",
            "The parameter 'offset' must be a whole number, but is '99999999999999999999'.",
        ),
        ("sort=name", "Invalid format for sort: name"),
        (
            "sort=labels.:asc",
            "Invalid format for label sort specified",
        ),
        ("sort=id:asc", "Invalid value for sort field: id:asc"),
        (
            "sort=createTime:ASC",
            "Invalid value for sort direction: ASC",
        ),
        (
            "sort=labels.tag:colour",
            "Invalid value for sort direction: colour",
        ),
        (
            "sort=labels.a%00:asc",
            "The parameter 'sort' contains the character U+0000.",
        ),
    ] {
        service
            .get(&format!("/jobs?{query}"))
            .await
            .refuses(400, message);
    }
    for (query, message) in [
        (
            "filter=colour%3D%3Dx",
            "Unsupported filter key specified: colour",
        ),
        (
            "jobIdStartsWith=%00",
            "The parameter 'jobIdStartsWith' contains the character U+0000.",
        ),
        (
            "labelExist=a%00",
            "The parameter 'labelExist' contains the character U+0000.",
        ),
    ] {
        for (method, path) in [
            (Method::GET, "/jobs"),
            (Method::GET, "/jobStats/count"),
            (Method::POST, "/jobs:cancel"),
            (Method::POST, "/jobs:delete"),
        ] {
            let path = service.path(&format!("{path}?{query}"));
            service
                .call(method, &path, None)
                .await
                .refuses(400, message);
        }
    }
    let dead = service.call(Method::GET, "/health-check?type=DEAD", None);
    dead.await.refuses(
        400,
        "The parameter 'type' must be ALIVE or READY, but is 'DEAD'.",
    );
    let twice = service.get("/jobs?limit=1&limit=2").await.is(400);
    assert!(twice.error().contains("limit"), "{twice:?}");
}

#[tokio::test]
async fn unknown_url_names_the_description_and_wrong_method_the_allowed_ones() {
    let service = Service::start().await;
    let text = "There is nothing at /nothing. The API is described at /job-service-ui/.";
    service
        .call(Method::GET, "/nothing", None)
        .await
        .refuses(404, text);
    for (method, path, allow) in [
        (
            Method::POST,
            service.path("/jobs/j"),
            vec!["DELETE", "GET", "HEAD", "PATCH", "PUT"],
        ),
        (Method::GET, service.path("/jobs:delete"), vec!["POST"]),
    ] {
        let refused = service.call(method.clone(), &path, None).await;
        let mut allowed: Vec<&str> = refused.header("allow").split(',').map(str::trim).collect();
        allowed.sort_unstable();
        assert_eq!(allowed, allow, "{path}");
        refused.refuses(405, &format!("{path} does not support {method}."));
    }
}

#[tokio::test]
async fn every_response_carries_the_given_or_a_new_correlation_id() {
    let service = Service::start().await;
    for path in ["/job-service/v1/ping", "/nothing", "/job-service-ui/"] {
        for (given, is_kept) in [
            ("corr-42".to_owned(), true),
            ("x".repeat(255), true),
            // It would make every message of a job long.
            ("x".repeat(256), false),
            (String::new(), false),
        ] {
            let request = service.request(Method::GET, path);
            let answer = Answer::of(request.header("CAF-Correlation-Id", &given)).await;
            let id = answer.header("CAF-Correlation-Id");
            assert_eq!(id == given, is_kept, "{path}: {id}");
            assert!(is_kept || uuid::Uuid::parse_str(id).is_ok(), "{path}: {id}");
        }
    }
}
