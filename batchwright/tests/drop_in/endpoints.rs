//! CAF's endpoints: what each answers when all is well, and each refusal that a request can provoke;
//! what all of them have in common; and the URLs beside them, of health and of the description of the API.

use std::collections::BTreeSet;

use harness::{unique, wait_for};
use reqwest::{Method, Url};
use serde_json::{Value, json};

use crate::service::{Answer, STATUSES, Service, Store, encoded};

on_both_stores![
    a_ping_is_answered_and_the_api_is_described_where_caf_describes_it,
    health_tells_of_the_checks_that_are_asked_for,
    what_is_no_url_is_404_and_a_wrong_method_405,
    a_slash_at_the_end_changes_nothing,
    the_correlation_id_of_a_request_is_that_of_its_answer_and_of_its_message,
    ids_are_looked_at_first_wherever_they_stand,
    any_other_character_may_be_in_an_id,
    a_job_that_is_not_there_is_not_found,
    a_job_is_created_told_completed_and_deleted,
    a_status_is_told_with_how_long_it_holds,
    a_job_is_cancelled_paused_and_resumed_where_its_status_allows_it,
    jobs_are_listed_counted_cancelled_and_deleted_a_partition_at_a_time,
];

/// What stands below a partition.
const OF_PARTITION: [(Method, &str); 4] = [
    (Method::GET, "/jobs"),
    (Method::POST, "/jobs:delete"),
    (Method::POST, "/jobs:cancel"),
    (Method::GET, "/jobStats/count"),
];

/// What stands below a job.
const OF_JOB: [(Method, &str); 8] = [
    (Method::GET, ""),
    (Method::PUT, ""),
    (Method::DELETE, ""),
    (Method::GET, "/isActive"),
    (Method::GET, "/status"),
    (Method::POST, "/cancel"),
    (Method::POST, "/pause"),
    (Method::POST, "/resume"),
];

/// Any request to any URL, with a job in its body where that is due.
async fn send(service: &Service, method: &Method, path: &str) -> Answer {
    let job = service.new_job("in").to_string();
    let body = (*method == Method::PUT).then_some(job.as_str());
    service.call(method.clone(), path, body, &[]).await
}

/// An error as every error is sent, with some text.
#[track_caller]
fn is_refused(answer: &Answer, status: u16, what: &str) {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (status, Some("application/json")),
        "{what}: {}",
        answer.body
    );
    let body = answer.json();
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{what}: {body}"
    );
    assert_eq!(body.as_object().unwrap().len(), 1, "{what}: {body}");
}

async fn a_ping_is_answered_and_the_api_is_described_where_caf_describes_it(store: Store) {
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

async fn health_tells_of_the_checks_that_are_asked_for(store: Store) {
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

async fn what_is_no_url_is_404_and_a_wrong_method_405(store: Store) {
    let service = Service::start(store).await;
    for path in [
        "/",
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
    let known: Vec<(Method, String)> = of_partition.into_iter().chain(of_job).chain(ping).collect();
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

async fn a_slash_at_the_end_changes_nothing(store: Store) {
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

async fn the_correlation_id_of_a_request_is_that_of_its_answer_and_of_its_message(store: Store) {
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
            assert!(made.insert(id), "{method} {path}: an id was made twice");
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

async fn ids_are_looked_at_first_wherever_they_stand(store: Store) {
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
            // Before what else is wrong.
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
    // CAF finds this out from its database, and answers 500. To all other requests no job has such an id.
    service
        .put(&long_job, &service.new_job("in"))
        .await
        .refuses(400, "The job identifier is longer than 48 characters.");
    // Before the body.
    let path = service.path("/jobs/a*");
    service
        .call(Method::PUT, &path, Some("{"), &[])
        .await
        .refuses(400, NOT_A_JOB);
    assert_eq!(service.get("/jobStats/count").await.is(200).json(), 0);
}

async fn any_other_character_may_be_in_an_id(store: Store) {
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

async fn a_job_that_is_not_there_is_not_found(store: Store) {
    let service = Service::start(store).await;
    service.create("here", &service.new_job("in")).await;
    let elsewhere = format!("/job-service/v1/partitions/{}", unique("elsewhere"));
    let too_long = "j".repeat(49);
    let nowhere = [
        (service.path("/jobs/j-1"), "j-1"),
        (format!("{elsewhere}/jobs/here"), "here"),
        (service.path(&format!("/jobs/{too_long}")), &too_long),
    ];
    for (path, id) in nowhere {
        for (method, below) in OF_JOB
            .into_iter()
            .filter(|(method, below)| *method != Method::PUT && *below != "/isActive")
        {
            send(&service, &method, &format!("{path}{below}"))
                .await
                .refuses(404, &format!("ERROR: job_id {{{id}}} not found"));
        }
        let answer = send(&service, &Method::GET, &format!("{path}/isActive"))
            .await
            .is(200);
        assert_eq!(
            (answer.json(), answer.header("CacheableJobStatus")),
            (json!(false), Some("true"))
        );
    }
    // A partition needs no creation.
    for ((method, path), expected) in OF_PARTITION.into_iter().zip([
        json!([]),
        json!({"jobsDeleted": 0}),
        json!({"jobsCanceled": 0}),
        json!(0),
    ]) {
        let answer = send(&service, &method, &format!("{elsewhere}{path}"))
            .await
            .is(200);
        assert_eq!(
            (answer.json(), answer.header("content-type")),
            (expected, Some("application/json")),
            "{method} {path}"
        );
    }
    assert_eq!(service.state("here").await, ("Waiting".to_owned(), 0.0));
}

async fn a_job_is_created_told_completed_and_deleted(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let mut body = service.new_job("in");
    (body["name"], body["description"], body["externalData"]) =
        (json!("Naïve"), json!("line 1\nline 2"), json!("{\"a\": 1}"));
    body["labels"] = json!({"team": "search", "tag:1": null});
    let created = service.put("j", &body).await.is(201);
    assert_eq!(created.body, "");
    assert_eq!(
        created.header("location"),
        Some(format!("{}{}", service.root, service.path("/jobs/j")).as_str())
    );
    let again = service.put("j", &body).await.is(204);
    assert_eq!((again.body.as_str(), again.header("location")), ("", None));
    service
        .put("j", &service.new_job("in"))
        .await
        .refuses(403, "Job already exists");

    let job = service.job("j").await;
    for (field, value) in [
        ("id", json!("j")),
        ("name", json!("Naïve")),
        ("description", json!("line 1\nline 2")),
        ("externalData", json!("{\"a\": 1}")),
        ("status", json!("Waiting")),
        ("percentageComplete", json!(0.0)),
        ("failures", json!([])),
        ("labels", json!({"team": "search", "tag:1": null})),
    ] {
        assert_eq!(job[field], value, "{field}");
    }
    assert!(
        job["createTime"].as_i64().unwrap() > 1_700_000_000_000,
        "milliseconds: {job}"
    );
    assert_eq!(job["createTime"], job["lastUpdateTime"]);
    assert_eq!(service.get("/jobs").await.is(200).json(), json!([job]));

    // What is not said is told as null, or as none.
    service.create("bare", &service.new_job("other")).await;
    let bare = service.job("bare").await;
    for (field, value) in [
        ("name", json!(null)),
        ("description", json!(null)),
        ("externalData", json!(null)),
        ("labels", json!({})),
    ] {
        assert_eq!(bare.get(field), Some(&value), "{field}");
    }
    // Its task waits in its pipe, which nobody has made before.
    wait_for("the task to be in its pipe", async || {
        match service.depth("other").await {
            1 => Ok(()),
            depth => Err(format!("{depth} messages")),
        }
    })
    .await;

    let (message, _) = workers.next().await;
    assert_eq!(message["tracking"]["jobTaskId"], service.task("j", ""));
    service.complete("j", "").await;
    service.becomes("j", "Completed", 100.0).await;

    assert_eq!(service.delete("j").await.is(204).body, "");
    service
        .get("/jobs/j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    service
        .delete("j")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
    assert_eq!(service.get("/jobs").await.ids(), ["bare"]);
}

async fn a_status_is_told_with_how_long_it_holds(store: Store) {
    let service = Service::start_with(store, &[("CAF_STATUS_CHECK_INTERVAL_SECONDS", "7")]).await;
    service.create_in_every_status().await;
    for status in STATUSES {
        let active = matches!(status, "Active" | "Waiting");
        for (url, body) in [
            ("status", format!("\"{status}\"")),
            ("isActive", active.to_string()),
        ] {
            let answer = service.get(&format!("/jobs/{status}/{url}")).await.is(200);
            assert_eq!(answer.body, body, "{url} of {status}");
            assert_eq!(
                answer.header("content-type"),
                Some("application/json"),
                "{url} of {status}"
            );
            assert_eq!(
                answer.header("CacheableJobStatus"),
                Some("true"),
                "{url} of {status}"
            );
            assert_eq!(
                answer.header("Cache-Control"),
                Some("no-transform, max-age=7"),
                "{url} of {status}"
            );
        }
    }
    // A refusal is not to be kept: the next check asks again.
    assert_eq!(
        service
            .get("/jobs/none/status")
            .await
            .is(404)
            .header("CacheableJobStatus"),
        None
    );
}

async fn a_job_is_cancelled_paused_and_resumed_where_its_status_allows_it(store: Store) {
    let service = Service::start(store).await;
    service.create_in_every_status().await;
    let cancel = |job: &str| format!("ERROR: job_id {{{job}}} cannot be cancelled");
    let pause = |job: &str| {
        format!(
            "ERROR: job_id {{{job}}} cannot be paused as it has a status of {{{job}}}. \
             Only jobs with a status of Active or Waiting can be paused."
        )
    };
    let resume = |job: &str| {
        format!(
            "job_id {job} cannot be resumed as it has a status of {job}. Only jobs with a status of Paused can be resumed."
        )
    };
    let post =
        async |job: &str, what: &str| service.post(&format!("/jobs/{job}/{what}"), &[]).await;
    for job in ["Completed", "Failed"] {
        // Only the beginning of this text is CAF's to the letter.
        let answer = post(job, "cancel").await;
        is_refused(&answer, 400, job);
        assert!(
            answer.json()["message"]
                .as_str()
                .unwrap()
                .starts_with(&cancel(job)),
            "{answer:?}"
        );
    }
    for job in ["Cancelled", "Completed", "Failed"] {
        post(job, "pause").await.refuses(400, &pause(job));
    }
    for job in ["Cancelled", "Completed", "Failed", "Waiting"] {
        post(job, "resume").await.refuses(400, &resume(job));
    }
    for status in STATUSES {
        assert_eq!(service.state(status).await.0, status);
    }
    for (job, what, status) in [
        ("Active", "resume", "Active"),
        ("Cancelled", "cancel", "Cancelled"),
        ("Paused", "pause", "Paused"),
        ("Waiting", "pause", "Paused"),
        ("Waiting", "resume", "Active"),
        ("Active", "pause", "Paused"),
        ("Active", "cancel", "Cancelled"),
        ("Paused", "resume", "Active"),
        ("Waiting", "cancel", "Cancelled"),
    ] {
        assert_eq!(post(job, what).await.is(204).body, "", "{what} {job}");
        assert_eq!(service.state(job).await.0, status, "{what} {job}");
    }
}

async fn jobs_are_listed_counted_cancelled_and_deleted_a_partition_at_a_time(store: Store) {
    let service = Service::start(store).await;
    service.create_in_every_status().await;
    let elsewhere = format!("/job-service/v1/partitions/{}/jobs", unique("elsewhere"));
    // The same id in two partitions: two jobs, each with a status of its own.
    let job = service.new_job("in").to_string();
    for id in ["Completed", "Active"] {
        service
            .call(Method::PUT, &format!("{elsewhere}/{id}"), Some(&job), &[])
            .await
            .is(201);
    }
    let told = async |path: &str| -> Vec<(String, String)> {
        let jobs = service
            .call(Method::GET, path, None, &[])
            .await
            .is(200)
            .json();
        let text = |job: &Value, field: &str| job[field].as_str().unwrap().to_owned();
        jobs.as_array()
            .unwrap()
            .iter()
            .map(|job| (text(job, "id"), text(job, "status")))
            .collect()
    };
    let pairs = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(id, status)| ((*id).to_owned(), (*status).to_owned()))
            .collect::<Vec<_>>()
    };
    // The newest first.
    let mut all = STATUSES.map(|status| (status, status));
    all.reverse();
    assert_eq!(told(&service.path("/jobs")).await, pairs(&all));
    assert_eq!(
        told(&elsewhere).await,
        pairs(&[("Active", "Waiting"), ("Completed", "Waiting")])
    );

    assert_eq!(service.get("/jobStats/count").await.is(200).body, "6");
    assert_eq!(
        service.post("/jobs:cancel", &[]).await.is(200).json(),
        json!({"jobsCanceled": 3})
    );
    for (id, status) in [
        ("Active", "Cancelled"),
        ("Paused", "Cancelled"),
        ("Waiting", "Cancelled"),
        ("Completed", "Completed"),
    ] {
        assert_eq!(service.state(id).await.0, status, "{id}");
    }
    assert_eq!(
        service.post("/jobs:delete", &[]).await.is(200).json(),
        json!({"jobsDeleted": 6})
    );
    assert_eq!(service.get("/jobs").await.is(200).json(), json!([]));
    assert_eq!(
        told(&elsewhere).await,
        pairs(&[("Active", "Waiting"), ("Completed", "Waiting")])
    );
}
