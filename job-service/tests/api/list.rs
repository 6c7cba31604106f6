//! Listing and counting jobs.

use contract::ReportFailure;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::service::{Answer, Service, new_job};

#[tokio::test]
async fn lists_jobs_newest_first_in_pages() {
    let service = Service::start().await;
    let names: Vec<String> = (0..27).map(|n| format!("j{n:02}")).collect();
    for name in &names {
        service.put(name, &new_job()).await.is(201);
    }
    let newest_first: Vec<String> = names.iter().rev().cloned().collect();
    for (query, expected) in [
        ("", &newest_first[..25]),
        ("?limit=", &newest_first[..25]),
        ("?limit=0&offset=-1", &newest_first[..25]),
        ("?limit=-5", &newest_first[..25]),
        ("?limit=3", &newest_first[..3]),
        ("?limit=99999999999", &newest_first[..]),
        ("?offset=25", &newest_first[25..]),
        ("?offset=2&limit=2", &newest_first[2..4]),
        ("?offset=27", &[]),
        ("?sort=createTime:desc&limit=2", &newest_first[..2]),
        ("?sort=createTime:asc&limit=2", &names[..2]),
        ("?sort=createTime%3Aasc&limit=2&offset=1", &names[1..3]),
    ] {
        assert_eq!(
            service
                .get(&format!("/jobs{query}"))
                .await
                .is(200)
                .job_ids(),
            expected,
            "{query}"
        );
    }
    let listed = service.get("/jobs?limit=1").await.json();
    assert_eq!(listed[0], service.get("/jobs/j26").await.json());
}

#[tokio::test]
async fn job_keeps_the_correlation_id_of_the_request_that_created_it_and_is_found_by_it() {
    let service = Service::start().await;
    let put = async |job: &str, correlation_id: &str, status| {
        let request = service
            .request(Method::PUT, &service.path(&format!("/jobs/{job}")))
            .header("CAF-Correlation-Id", correlation_id);
        Answer::of(request.body(new_job().to_string()))
            .await
            .is(status);
    };
    put("a", "corr-1", 201).await;
    put("a", "corr-2", 204).await;
    put("b", "corr-2", 201).await;
    service.put("c", &new_job()).await.is(201);
    assert_eq!(
        service.get("/jobs/a").await.json()["correlationId"],
        "corr-1"
    );
    for (filter, found) in [
        ("correlationId==corr-1", &["a"][..]),
        ("correlationId=='corr-*';id!=a", &["b"]),
        ("correlationId=in=(corr-2,x)", &["b"]),
    ] {
        let listed = ask(&service, "/jobs", &[("filter", filter)]).await;
        assert_eq!(listed.is(200).job_ids(), found, "{filter}");
    }
}

/// Sends a `GET` request whose query parameters are URL-encoded.
pub async fn ask(service: &Service, path: &str, query: &[(&str, &str)]) -> Answer {
    call(service, Method::GET, path, query).await
}

pub async fn call(service: &Service, method: Method, path: &str, query: &[(&str, &str)]) -> Answer {
    let encode = |text: &str| {
        percent_encoding::percent_encode(text.as_bytes(), percent_encoding::NON_ALPHANUMERIC)
            .to_string()
    };
    let query: Vec<String> = query
        .iter()
        .map(|(name, value)| format!("{name}={}", encode(value)))
        .collect();
    service
        .call(
            method,
            &service.path(&format!("{path}?{}", query.join("&"))),
            None,
        )
        .await
}

pub async fn put(service: &Service, job: &str, name: Option<&str>, labels: Value) {
    let mut body = new_job();
    (body["name"], body["labels"], body["description"]) =
        (json!(name), labels, json!(format!("{job} as described")));
    service.put(job, &body).await.is(201);
}

/// Creates four jobs, the oldest first: `alpha`, `Beta`, `gamma` and `delta`.
pub async fn four_jobs(service: &Service) {
    put(
        service,
        "alpha",
        Some("Index one"),
        json!({"team": "search", "tag:colour": "blue"}),
    )
    .await;
    put(
        service,
        "Beta",
        Some("100% of_it"),
        json!({"team": "Search", "tag:colour": "red"}),
    )
    .await;
    put(
        service,
        "gamma",
        None,
        json!({"team": null, "tag:colour": "Amber"}),
    )
    .await;
    put(
        service,
        "delta",
        Some("Übung"),
        json!({"owner": "it's \"me\""}),
    )
    .await;
    service.report("Beta", "", EventKind::Progress(40)).await;
    service.report("gamma", "", EventKind::Complete).await;
    service
        .report("delta", "", EventKind::Failed(ReportFailure::default()))
        .await;
}

/// One filter of each kind shows that the routes apply filters. The suite `caf_compat` covers the
/// whole language.
#[tokio::test]
async fn filter_selects_listed_and_counted_jobs() {
    let service = Service::start().await;
    four_jobs(&service).await;
    for (filter, expected) in [
        ("id=in=(alpha,delta,x)", &["alpha", "delta"][..]),
        ("name==*x*", &["alpha"]),
        ("status=out=(Waiting,Active)", &["gamma", "delta"]),
        ("percentageComplete=ge=40", &["Beta", "gamma"]),
        ("labels.tag:colour<b", &["gamma"]),
        (
            "(status==Waiting or status==Active) and name==*it",
            &["Beta"],
        ),
    ] {
        let oldest_first = [("filter", filter), ("sort", "createTime:asc")];
        let listed = ask(&service, "/jobs", &oldest_first).await.is(200);
        assert_eq!(listed.job_ids(), expected, "{filter}");
        let count = ask(&service, "/jobStats/count", &[("filter", filter)]).await;
        assert_eq!(count.is(200).json(), expected.len(), "{filter}");
    }
}

#[tokio::test]
async fn filter_prefix_status_type_and_labels_combine() {
    let service = Service::start().await;
    four_jobs(&service).await;
    for (query, expected) in [
        (
            &[("filter", "name!=x"), ("statusType", "NotFinished")][..],
            &["Beta", "alpha"][..],
        ),
        (
            &[("filter", "name!=x"), ("jobIdStartsWith", "B")],
            &["Beta"],
        ),
        (
            &[("filter", "name!=x"), ("labelExist", "owner,none")],
            &["delta"],
        ),
        (
            &[("labelExist", "team"), ("statusType", "Completed")],
            &["gamma"],
        ),
        (
            &[
                ("labelExist", " owner , tag:colour,"),
                ("jobIdStartsWith", ""),
            ],
            &["delta", "gamma", "Beta", "alpha"],
        ),
        (&[("labelExist", "none")], &[]),
        (
            &[("labelExist", ""), ("filter", " "), ("limit", "1")],
            &["delta"],
        ),
    ] {
        assert_eq!(
            ask(&service, "/jobs", query).await.is(200).job_ids(),
            expected,
            "{query:?}"
        );
        if !query.iter().any(|(name, _)| *name == "limit") {
            assert_eq!(
                ask(&service, "/jobStats/count", query).await.is(200).json(),
                expected.len(),
                "{query:?}"
            );
        }
    }
}

#[tokio::test]
async fn labels_without_a_value_are_shown_and_found() {
    let service = Service::start().await;
    four_jobs(&service).await;
    let listed = ask(&service, "/jobs", &[("filter", "id==gamma")])
        .await
        .json();
    assert_eq!(
        listed[0]["labels"],
        json!({"team": null, "tag:colour": "Amber"})
    );
    assert_eq!(listed[0], service.get("/jobs/gamma").await.json());
    assert_eq!(
        ask(
            &service,
            "/jobs",
            &[("labelExist", "team"), ("sort", "jobId:asc")]
        )
        .await
        .job_ids(),
        ["alpha", "Beta", "gamma"]
    );
}

#[tokio::test]
async fn invalid_filter_or_sort_is_refused_with_the_reason() {
    let service = Service::start().await;
    let status = "Invalid value for status in filter: done. \
        It must be one of Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting.";
    for (name, value, message) in [
        (
            "filter",
            "colour==x",
            "Unsupported filter key specified: colour",
        ),
        (
            "filter",
            "labels.==x",
            "Unsupported filter key specified: labels.",
        ),
        (
            "filter",
            "name",
            "Unable to parse filter: an operator such as ==, !=, =lt= or =in= is expected at character 5.",
        ),
        ("filter", "status==done", status),
        (
            "filter",
            "percentageComplete>x",
            "Invalid value for percentageComplete in filter: x. It must be a number.",
        ),
        (
            "filter",
            "name==a\0",
            "Unable to parse filter: it contains the character U+0000.",
        ),
        (
            "jobIdStartsWith",
            "a\0",
            "The parameter 'jobIdStartsWith' contains the character U+0000.",
        ),
        (
            "labelExist",
            "a\0",
            "The parameter 'labelExist' contains the character U+0000.",
        ),
    ] {
        for path in ["/jobs", "/jobStats/count"] {
            ask(&service, path, &[(name, value)])
                .await
                .refuses(400, message);
        }
        for path in ["/jobs:cancel", "/jobs:delete"] {
            call(&service, Method::POST, path, &[(name, value)])
                .await
                .refuses(400, message);
        }
    }
    for (sort, message) in [
        ("name", "Invalid format for sort: name"),
        ("labels.team", "Invalid format for sort: labels.team"),
        ("labels.:asc", "Invalid format for label sort specified"),
        ("labels:asc", "Invalid value for sort field: labels:asc"),
        ("colour:asc", "Invalid value for sort field: colour:asc"),
        ("id:asc", "Invalid value for sort field: id:asc"),
        ("name:ASC", "Invalid value for sort direction: ASC"),
        (
            "labels.tag:colour",
            "Invalid value for sort direction: colour",
        ),
        (
            "labels.a\0:asc",
            "The parameter 'sort' contains the character U+0000.",
        ),
    ] {
        ask(&service, "/jobs", &[("sort", sort)])
            .await
            .refuses(400, message);
    }
}

#[tokio::test]
async fn list_in_brief_cuts_long_fields_and_names_them_and_other_lists_are_whole() {
    let service = Service::start().await;
    let mut job = new_job();
    job["description"] = json!("ä\"".repeat(20_000));
    job["externalData"] = json!("x".repeat(200));
    service.put("j", &job).await.is(201);
    service.put("k", &new_job()).await.is(201);

    let brief = service.get("/jobs?brief=true").await.is(200).json();
    assert_eq!(brief[0], service.get("/jobs/k").await.json());
    assert_eq!(brief[1]["cut"], json!(["description"]));
    assert_eq!(brief[1]["description"], "ä\"".repeat(100));
    assert_eq!(brief[1]["externalData"], job["externalData"]);

    let whole = service.get("/jobs?sort=name:asc").await.is(200).json();
    let j = service.get("/jobs/j").await.is(200).json();
    assert_eq!(j["description"], job["description"]);
    assert_eq!(j.get("cut"), None);
    assert!(whole.as_array().unwrap().contains(&j));
    ask(&service, "/jobs", &[("brief", "yes")]).await.refuses(
        400,
        "The parameter 'brief' must be true or false, but is 'yes'.",
    );
}

#[tokio::test]
async fn list_breaks_off_if_a_job_is_deleted_in_the_middle_of_its_long_text() {
    let service = Service::start().await;
    let mut job = new_job();
    job["description"] = json!("x".repeat(1024 * 1024));
    // More than what the sockets hold.
    job["externalData"] = job["description"].clone();
    for number in 0..12 {
        service.put(&format!("j{number}"), &job).await.is(201);
    }
    let list = service.request(Method::GET, &service.path("/jobs"));
    let mut list = list.send().await.unwrap();
    list.chunk().await.unwrap().unwrap();
    service
        .call(Method::POST, &service.path("/jobs:delete"), None)
        .await
        .is(200);
    // Jobs that are not begun are left out; the one that is begun cannot be.
    harness::in_time("the list to break off", async {
        while list.chunk().await.map_err(drop)?.is_some() {}
        Ok::<_, ()>(())
    })
    .await
    .unwrap_err();
}
