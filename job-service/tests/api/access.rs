//! Who may call the service: web pages of other origins must not change anything, and requests to
//! foreign host names are refused.

use contract::JobStatus;
use reqwest::Method;

use crate::service::{Answer, Service, new_job};

/// Sends a request without a body to a path of the test's partition, with one header.
async fn with_header(
    service: &Service,
    method: Method,
    path: &str,
    (name, value): (&str, &str),
) -> Answer {
    Answer::of(
        service
            .request(method, &service.path(path))
            .header(name, value),
    )
    .await
}

#[tokio::test]
async fn page_of_a_foreign_origin_changes_nothing() {
    let service = Service::start_configured(|options| {
        options.webservice_url = "https://jobs.example:8443/job-service/v1".to_owned();
    })
    .await;
    service.put("j", &new_job()).await.is(201);
    let own = service.root.clone();
    for (method, path) in [
        (Method::POST, "/jobs:delete"),
        (Method::POST, "/jobs:cancel"),
        (Method::POST, "/jobs/j/cancel"),
        (Method::POST, "/jobs/j/pause"),
        (Method::DELETE, "/jobs/j"),
        (Method::PUT, "/jobs/k"),
        (Method::POST, "/dispatch"),
    ] {
        for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
            let refused = with_header(&service, method.clone(), path, ("Origin", origin))
                .await
                .is(403);
            let message = refused.error();
            assert!(
                message.contains(origin) && message.contains("--allowed-origin"),
                "{message}"
            );
        }
    }
    let read = with_header(
        &service,
        Method::GET,
        "/jobs/j",
        ("Origin", "https://evil.example"),
    )
    .await
    .is(200);
    assert_eq!(read.json()["status"], JobStatus::Waiting.to_string());
    for origin in [&*own, "https://jobs.example:8443"] {
        with_header(
            &service,
            Method::POST,
            "/jobs:cancel?filter=id==x",
            ("Origin", origin),
        )
        .await
        .is(200);
    }
    let behind_proxy = service
        .request(Method::POST, &service.path("/jobs/j/cancel"))
        .header("Origin", "https://proxy.example")
        .header("X-Forwarded-Host", "proxy.example");
    Answer::of(behind_proxy).await.is(204);
}

#[tokio::test]
async fn on_a_loopback_address_a_request_to_a_foreign_host_is_refused() {
    let service = Service::start_configured(|options| {
        options.webservice_url = "https://jobs.example/job-service/v1".to_owned();
    })
    .await;
    for (method, path) in [
        (Method::GET, "/jobs"),
        (Method::POST, "/jobs:delete"),
        (Method::PUT, "/jobs/j"),
    ] {
        let refused = with_header(&service, method, path, ("Host", "evil.example:8080"))
            .await
            .is(421);
        let message = refused.error();
        assert!(
            message.contains("evil.example:8080") && message.contains("--allowed-host"),
            "{message}"
        );
    }
    for path in ["/metrics", "/health-check"] {
        let foreign = service.request(Method::GET, path);
        let foreign = foreign.header("Host", "evil.example:8080");
        Answer::of(foreign).await.is(421);
    }
    for host in [
        "localhost",
        "LocalHost:8080",
        "app.localhost:1",
        "127.0.0.1",
        "10.1.2.3:99",
        "[::1]:8080",
        "jobs.example",
    ] {
        with_header(&service, Method::GET, "/jobs", ("Host", host))
            .await
            .is(200);
    }
}

#[tokio::test]
async fn page_of_an_allowed_origin_may_call_the_service() {
    const ORIGIN: &str = "https://console.example";
    let service = Service::start_configured(|options| {
        options.allowed_origins = vec![ORIGIN.parse().unwrap()];
    })
    .await;
    for (origin, allowed) in [(ORIGIN, true), ("https://evil.example", false)] {
        let preflight = service
            .request(Method::OPTIONS, &service.path("/jobs/j"))
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "DELETE");
        let answer = Answer::of(preflight).await;
        let granted = answer.headers.get("access-control-allow-origin");
        assert_eq!(
            granted.is_some_and(|granted| granted == origin),
            allowed,
            "{answer:?}"
        );
        let status = if allowed { 200 } else { 403 };
        with_header(&service, Method::POST, "/jobs:cancel", ("Origin", origin))
            .await
            .is(status);
    }
}

#[tokio::test]
async fn responses_tell_browsers_and_proxies_what_they_need() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    for (path, streams) in [
        ("/jobs/j", false),
        ("/jobs/j/events", true),
        ("/events", true),
    ] {
        let response = service
            .request(Method::GET, &service.path(path))
            .send()
            .await
            .unwrap();
        let buffering = response.headers().get("x-accel-buffering");
        assert_eq!(buffering.is_some_and(|it| it == "no"), streams, "{path}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    }
    let description = service
        .call(Method::GET, "/job-service-ui/", None)
        .await
        .is(200);
    let policy = description.header("content-security-policy");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    let compressed = service
        .request(Method::PUT, &service.path("/jobs/k"))
        .header("Content-Encoding", "gzip")
        .body(vec![0x1f, 0x8b]);
    let refused = Answer::of(compressed).await.is(415);
    assert_eq!(refused.header("x-batchwright-error"), "BODY_ENCODED");
}
