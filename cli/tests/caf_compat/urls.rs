//! Rules for all endpoints: URLs, ids and correlation ids. Also the URLs of the health check and of
//! the API description.

use std::collections::BTreeSet;

use harness::{unique, wait_for};
use reqwest::{Method, Url};
use serde_json::{Value, json};

use crate::endpoints::{OF_JOB, is_refused, send};
use crate::service::{Service, Store, encoded};

on_both_stores![ids_may_contain_every_other_character,];

on_one_store![
    ping_and_api_description_are_at_cafs_urls,
    health_check_reports_the_requested_checks,
    unknown_url_is_404_and_wrong_method_is_405,
    trailing_slash_changes_nothing,
    correlation_id_of_a_request_is_in_its_response_and_its_message,
    ids_are_checked_before_anything_else,
];

/// The endpoints of a partition.
pub const OF_PARTITION: [(Method, &str); 4] = [
    (Method::GET, "/jobs"),
    (Method::POST, "/jobs:delete"),
    (Method::POST, "/jobs:cancel"),
    (Method::GET, "/jobStats/count"),
];

async fn ping_and_api_description_are_at_cafs_urls(store: Store) {
    let service = Service::start(store).await;
    let answer = service
        .call(Method::GET, "/job-service/v1/ping", None, &[])
        .await
        .is(200);
    assert_eq!(
        (answer.json(), answer.header("content-type")),
        (json!({"success": true}), Some("application/json"))
    );

    let moved = service
        .call(Method::GET, "/job-service-ui", None, &[])
        .await;
    assert_eq!(
        (moved.status / 100, moved.header("location")),
        (3, Some("/job-service-ui/"))
    );
    let page = service
        .call(Method::GET, "/job-service-ui/", None, &[])
        .await
        .is(200);
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/html"),
        "{page:?}"
    );
    // Every JSON document is a YAML document.
    let described = service
        .call(
            Method::GET,
            "/job-service-ui/api-docs/swagger.yaml",
            None,
            &[],
        )
        .await
        .is(200)
        .json();
    for (method, path) in OF_PARTITION {
        let path = format!("/job-service/v1/partitions/{{partitionId}}{path}");
        assert!(
            described["paths"][&path][method.as_str().to_lowercase()].is_object(),
            "{method} {path}"
        );
    }
    for (method, path) in OF_JOB {
        let path = format!("/job-service/v1/partitions/{{partitionId}}/jobs/{{jobId}}{path}");
        assert!(
            described["paths"][&path][method.as_str().to_lowercase()].is_object(),
            "{method} {path}"
        );
    }
}

async fn health_check_reports_the_requested_checks(store: Store) {
    let service = Service::start(store).await;
    let ask = async |query: &str| {
        service
            .call(Method::GET, &format!("/health-check{query}"), None, &[])
            .await
    };
    wait_for("the service to be healthy", async || {
        let answer = ask("?name=all&type=READY").await;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.body)
        }
    })
    .await;
    let check = |name: &str, kind: &str| json!({"name": name, "healthy": true, "type": kind, "critical": true});
    let alive = [check("deadlocks", "ALIVE"), check("ports-alive", "ALIVE")];
    let ready = ["ports-ready", "database", "ping", "queue"].map(|name| check(name, "READY"));
    let all: Vec<Value> = alive.iter().chain(&ready).cloned().collect();
    for (query, expected) in [
        ("?name=all&type=READY", &all[..]),
        ("?name=all", &all),
        ("?name=all&type=ready", &all),
        ("?name=all&type=ALIVE", &alive),
        (
            "?name=database&name=queue",
            &[ready[1].clone(), ready[3].clone()],
        ),
        ("?name=deadlocks&type=ALIVE", &alive[..1]),
        ("?name=nothing", &[]),
        ("", &[]),
        ("?type=READY", &[]),
    ] {
        let answer = ask(query).await.is(200);
        assert_eq!(answer.json().as_array().unwrap(), expected, "{query}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{query}"
        );
    }
}

async fn unknown_url_is_404_and_wrong_method_is_405(store: Store) {
    let service = Service::start(store).await;
    for path in [
        "/job-service",
        "/job-service/v1",
        "/job-service/v1/partitions",
        "/job-service/v1/partitions/p",
        "/job-service/v1/partitions/p/jobs:pause",
        "/job-service/v1/partitions/p/jobs/j/other",
        "/job-service/v1/partitions/p/jobs/j/status/other",
        "/job-service/v1/partitions/p/jobStats",
        "/job-service/v2/partitions/p/jobs",
        "/health",
    ] {
        for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE] {
            is_refused(
                &send(&service, &method, path).await,
                404,
                &format!("{method} {path}"),
            );
        }
    }
    is_refused(
        &send(&service, &Method::GET, "/job-service-ui/other").await,
        404,
        "a page of the description",
    );
    let of_partition = OF_PARTITION.map(|(method, path)| (method, service.path(path)));
    let of_job = OF_JOB.map(|(method, path)| (method, service.path(&format!("/jobs/j{path}"))));
    let ping = [
        (Method::GET, "/job-service/v1/ping".to_owned()),
        (Method::GET, "/health-check".to_owned()),
    ];
    // CAF's service creates no job whose id it makes, and changes none.
    let ours = [
        (Method::POST, service.path("/jobs")),
        (Method::PATCH, service.path("/jobs/j")),
    ];
    let known = of_partition.into_iter().chain(of_job).chain(ping);
    let known: Vec<(Method, String)> = known.chain(ours).collect();
    for path in known.iter().map(|(_, path)| path).collect::<BTreeSet<_>>() {
        for method in [
            Method::GET,
            Method::PUT,
            Method::POST,
            Method::DELETE,
            Method::PATCH,
        ] {
            if !known.contains(&(method.clone(), path.clone())) {
                let answer = send(&service, &method, path).await;
                is_refused(&answer, 405, &format!("{method} {path}"));
                assert!(answer.header("allow").is_some(), "{method} {path}");
            }
        }
    }
}

async fn trailing_slash_changes_nothing(store: Store) {
    let service = Service::start(store).await;
    service.put("j/", &service.new_job("in")).await.is(201);
    service.put("j", &service.new_job("in")).await.is(204);
    for path in [
        "/jobs",
        "/jobs?filter=id%3D%3Dj&sort=name:asc",
        "/jobs/j",
        "/jobs/j/status",
        "/jobs/j/isActive",
        "/jobStats/count",
    ] {
        let expected = service.get(path).await.is(200).json();
        let (before, query) = path.split_once('?').unwrap_or((path, ""));
        assert_eq!(
            service
                .get(&format!("{before}/?{query}"))
                .await
                .is(200)
                .json(),
            expected,
            "{path}"
        );
    }
    for (path, status) in [
        ("/jobs/j/pause/", 204),
        ("/jobs/j/resume/", 204),
        ("/jobs/j/cancel/", 204),
        ("/jobs:delete/", 200),
    ] {
        service
            .call(Method::POST, &service.path(path), None, &[])
            .await
            .is(status);
    }
    service
        .get("/jobs/j/")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
}

async fn correlation_id_of_a_request_is_in_its_response_and_its_message(store: Store) {
    const NAME: &str = "CAF-Correlation-Id";
    let service = Service::start(store).await;
    let jobs = service.path("/jobs");
    let requests = [
        (Method::GET, jobs.clone(), 200),
        (Method::GET, "/job-service/v1/ping".into(), 200),
        (Method::GET, format!("{jobs}/none"), 404),
        (Method::GET, format!("{jobs}/a*"), 400),
        (Method::PATCH, jobs.clone(), 405),
        (Method::GET, "/nowhere".into(), 404),
        (Method::GET, "/health-check".into(), 200),
        (Method::GET, "/job-service-ui/".into(), 200),
    ];
    let mut made = BTreeSet::new();
    for (method, path, status) in &requests {
        let ask = async |headers: &[(&str, &str)]| {
            let answer = service
                .call(method.clone(), path, None, headers)
                .await
                .is(*status);
            answer
                .header(NAME)
                .unwrap_or_else(|| panic!("{method} {path} has no correlation id"))
                .to_owned()
        };
        assert_eq!(
            ask(&[(NAME, "a Client's / id")]).await,
            "a Client's / id",
            "{method} {path}"
        );
        assert_eq!(
            ask(&[("caf-correlation-id", "1")]).await,
            "1",
            "{method} {path}"
        );
        for id in [ask(&[]).await, ask(&[(NAME, "")]).await] {
            assert!(uuid::Uuid::parse_str(&id).is_ok(), "{method} {path}: {id}");
            assert!(made.insert(id), "{method} {path}: the id is not unique");
        }
    }
    let mut workers = service.consume("in").await;
    let job = service.new_job("in").to_string();
    service
        .call(
            Method::PUT,
            &format!("{jobs}/j"),
            Some(&job),
            &[(NAME, "of the job")],
        )
        .await
        .is(201);
    assert_eq!(workers.next().await.0["correlationId"], "of the job");
}

async fn ids_are_checked_before_anything_else(store: Store) {
    const NOT_A_PARTITION: &str = "The partition ID contains one or more invalid characters.";
    const TOO_LONG: &str = "The partition ID is longer than 40 characters.";
    const NOT_A_JOB: &str = "The job identifier contains one or more invalid characters.";
    let service = Service::start(store).await;
    let (long_partition, long_job) = ("p".repeat(41), "j".repeat(49));
    let long_and_reserved = format!("{long_partition}*");
    let partitions = [
        ("a.b", NOT_A_PARTITION),
        (long_partition.as_str(), TOO_LONG),
        (&long_and_reserved, TOO_LONG),
    ];
    for (partition, text) in partitions {
        for (method, path) in OF_PARTITION {
            // The ids are checked first, although the parameters are invalid, too.
            let path = format!(
                "/job-service/v1/partitions/{}{path}?filter=x&sort=x",
                encoded(partition)
            );
            send(&service, &method, &path).await.refuses(400, text);
        }
        for (method, path) in OF_JOB {
            let path = format!(
                "/job-service/v1/partitions/{}/jobs/j*{path}",
                encoded(partition)
            );
            send(&service, &method, &path).await.refuses(400, text);
        }
    }
    let missing = "The partition ID has not been specified.";
    for (method, path) in OF_PARTITION {
        send(
            &service,
            &method,
            &format!("/job-service/v1/partitions/{path}"),
        )
        .await
        .refuses(400, missing);
    }
    for (method, path) in OF_JOB {
        send(
            &service,
            &method,
            &format!("/job-service/v1/partitions//jobs/j*{path}"),
        )
        .await
        .refuses(400, missing);
        if !path.is_empty() {
            let path = service.path(&format!("/jobs/{path}"));
            send(&service, &method, &path)
                .await
                .refuses(400, "The job identifier has not been specified.");
        }
        send(
            &service,
            &method,
            &service.path(&format!("/jobs/{}{path}", encoded("j|k"))),
        )
        .await
        .refuses(400, NOT_A_JOB);
        send(
            &service,
            &method,
            &service.path(&format!("/jobs/{long_job}*{path}")),
        )
        .await
        .refuses(400, NOT_A_JOB);
    }
    for reserved in [".", ",", ":", ";", "*", "?", "!", "|", "(", ")"] {
        let id = encoded(&format!("a{reserved}b"));
        service
            .put(&id, &service.new_job("in"))
            .await
            .refuses(400, NOT_A_JOB);
        service
            .call(
                Method::GET,
                &format!("/job-service/v1/partitions/{id}/jobs"),
                None,
                &[],
            )
            .await
            .refuses(400, NOT_A_PARTITION);
    }
    // CAF passes the id to its database and returns 500. For all other requests no job has such an
    // id.
    service
        .put(&long_job, &service.new_job("in"))
        .await
        .refuses(400, "The job identifier is longer than 48 characters.");
    // The id is checked before the body.
    let path = service.path("/jobs/a*");
    service
        .call(Method::PUT, &path, Some("{"), &[])
        .await
        .refuses(400, NOT_A_JOB);
    assert_eq!(service.get("/jobStats/count").await.is(200).json(), 0);
}

async fn ids_may_contain_every_other_character(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let longest = "ü".repeat(48);
    let ids = [
        "a b",
        "a/b",
        "a%b",
        "a%2Fb",
        "grün",
        "日本",
        "it's",
        "\"q\"",
        "{a}",
        "<a>&b=c#d",
        "a+b",
        "a\\b",
        "~$@[]^`",
        longest.as_str(),
    ];
    for id in ids {
        let in_url = encoded(id);
        let created = service.put(&in_url, &service.new_job("in")).await.is(201);
        assert_eq!(service.job(&in_url).await["id"], id);
        let location = Url::parse(created.header("location").unwrap()).unwrap();
        assert_eq!(
            service
                .call(Method::GET, location.path(), None, &[])
                .await
                .is(200)
                .json()["id"],
            id
        );
        let (message, _) = workers.next().await;
        assert_eq!(message["tracking"]["jobTaskId"], service.task(id, ""));
        let check = message["tracking"]["statusCheckUrl"].as_str().unwrap();
        let check = check.strip_prefix(&service.root).unwrap();
        assert_eq!(
            service
                .call(Method::GET, check, None, &[])
                .await
                .is(200)
                .json(),
            "Waiting",
            "{check}"
        );
        service.complete(id, "").await;
        service.becomes(&in_url, "Completed", 100.0).await;
    }
    assert_eq!(
        service
            .ask("/jobs", &[("sort", "createTime:asc")])
            .await
            .ids(),
        ids
    );
    // Upper and lower case are different ids.
    service.create("Job", &service.new_job("other")).await;
    service
        .get("/jobs/job")
        .await
        .refuses(404, "ERROR: job_id {job} not found");

    for partition in [unique("A partition"), "ü".repeat(40)] {
        let jobs = format!("/job-service/v1/partitions/{}/jobs", encoded(&partition));
        let id = unique("j");
        service
            .call(
                Method::PUT,
                &format!("{jobs}/{id}"),
                Some(&service.new_job("in").to_string()),
                &[],
            )
            .await
            .is(201);
        assert_eq!(
            workers.next().await.0["tracking"]["jobTaskId"],
            format!("{partition}:{id}")
        );
        service
            .call(Method::DELETE, &format!("{jobs}/{id}"), None, &[])
            .await
            .is(204);
    }
}
