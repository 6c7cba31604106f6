//! Which jobs are listed, counted, cancelled and deleted, over real HTTP: the same suite on `SQLite` and on `PostgreSQL`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

#[macro_use]
mod service;

use contract::ReportFailure;
use framework::broker::{Broker, Event};
use reqwest::Method;
use serde_json::{Value, json};
use service::{Answer, Backend, Service, new_job};
use store::EventKind;

suite![Service:
    every_operator_finds_what_it_says,
    a_filter_a_prefix_a_status_type_and_labels_all_count,
    labels_without_a_value_are_shown_and_found,
    jobs_are_sorted_by_every_field_and_by_labels,
    what_is_wrong_with_a_question_is_said,
    many_jobs_are_cancelled_in_more_than_one_batch,
    many_jobs_are_deleted_in_more_than_one_batch,
    without_parameters_the_whole_partition_is_meant_and_no_other,
    a_request_for_many_that_is_not_understood_ends_none,
];

/// `GET` with a query of which every part is encoded.
async fn ask(service: &Service, path: &str, query: &[(&str, &str)]) -> Answer {
    call(service, Method::GET, path, query).await
}

async fn call(service: &Service, method: Method, path: &str, query: &[(&str, &str)]) -> Answer {
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

async fn put(service: &Service, job: &str, name: Option<&str>, labels: Value) {
    let mut body = new_job();
    (body["name"], body["labels"], body["description"]) =
        (json!(name), labels, json!(format!("{job} as told")));
    service.put(job, &body).await.is(201);
}

/// Four jobs, the oldest first: `alpha`, `Beta`, `gamma` and `delta`.
async fn four_jobs(service: &Service) {
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

async fn every_operator_finds_what_it_says(service: Service) {
    four_jobs(&service).await;
    for (filter, expected) in [
        ("id==alpha", &["alpha"][..]),
        ("id!=alpha", &["Beta", "gamma", "delta"]),
        ("id=gt=beta", &["Beta", "gamma", "delta"]),
        ("id>=Beta", &["Beta", "gamma", "delta"]),
        ("id<beta", &["alpha"]),
        ("id=le=Beta", &["alpha", "Beta"]),
        ("id=in=(alpha,delta,x)", &["alpha", "delta"]),
        ("id=out=(alpha,delta,x)", &["Beta", "gamma"]),
        ("id==*a*a", &["alpha", "gamma"]),
        ("id!=*a", &[]),
        ("name=='Index one'", &["alpha"]),
        ("name!='Index one'", &["Beta", "delta"]),
        ("name==\"100% *_it\"", &["Beta"]),
        ("name=='*%'", &[]),
        ("name==*x*", &["alpha"]),
        ("name!=*x*", &["Beta", "delta"]),
        ("name>index", &["alpha", "delta"]),
        ("name<index", &["Beta"]),
        ("name==Übung", &["delta"]),
        ("name==übung", &[]),
        ("status==Failed", &["delta"]),
        ("status!=Failed", &["alpha", "Beta", "gamma"]),
        ("status=in=(Waiting,Active)", &["alpha", "Beta"]),
        ("status=out=(Waiting,Active)", &["gamma", "delta"]),
        ("status>Completed", &["alpha", "delta"]),
        ("percentageComplete==40", &["Beta"]),
        ("percentageComplete!=40.0", &["alpha", "gamma", "delta"]),
        ("percentageComplete>0;percentageComplete<100", &["Beta"]),
        ("percentageComplete=ge=40", &["Beta", "gamma"]),
        ("percentageComplete=in=(40,100)", &["Beta", "gamma"]),
        ("percentageComplete=out=(40,100)", &["alpha", "delta"]),
        ("labels.team==search", &["alpha"]),
        ("labels.team!=search", &["Beta"]),
        ("labels.team=in=(search,Search)", &["alpha", "Beta"]),
        ("labels.team=out=(search)", &["Beta"]),
        ("labels.tag:colour<b", &["gamma"]),
        ("labels.tag:colour==*e*", &["alpha", "Beta", "gamma"]),
        ("labels.owner=='it\\'s \"me\"'", &["delta"]),
        ("labels.owner==\"it's \\\"me\\\"\"", &["delta"]),
        ("labels.none!=x", &[]),
        (
            "status==Waiting,status==Active;name==*it",
            &["alpha", "Beta"],
        ),
        (
            "(status==Waiting or status==Active) and name==*it",
            &["Beta"],
        ),
    ] {
        let listed = ask(
            &service,
            "/jobs",
            &[("filter", filter), ("sort", "createTime:asc")],
        )
        .await
        .is(200)
        .job_ids();
        assert_eq!(listed, expected, "{filter}");
        assert_eq!(
            ask(&service, "/jobStats/count", &[("filter", filter)])
                .await
                .is(200)
                .json(),
            expected.len(),
            "{filter}"
        );
    }
    // As people write it.
    assert_eq!(
        service
            .get("/jobs?filter=labels.team==search;status==Waiting+or+id==delta")
            .await
            .job_ids(),
        ["delta", "alpha"]
    );
}

async fn a_filter_a_prefix_a_status_type_and_labels_all_count(service: Service) {
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

async fn labels_without_a_value_are_shown_and_found(service: Service) {
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

async fn jobs_are_sorted_by_every_field_and_by_labels(service: Service) {
    four_jobs(&service).await;
    for (sort, expected) in [
        ("jobId:asc", ["alpha", "Beta", "delta", "gamma"]),
        ("name:asc", ["Beta", "alpha", "delta", "gamma"]),
        ("description:asc", ["alpha", "Beta", "delta", "gamma"]),
        ("externalData:asc", ["alpha", "Beta", "gamma", "delta"]),
        ("createTime:asc", ["alpha", "Beta", "gamma", "delta"]),
        ("status:asc", ["Beta", "gamma", "delta", "alpha"]),
        (
            "percentageComplete:asc",
            ["alpha", "delta", "Beta", "gamma"],
        ),
        ("labels.team:asc", ["alpha", "Beta", "gamma", "delta"]),
        ("labels.tag:colour:asc", ["gamma", "alpha", "Beta", "delta"]),
        ("labels.owner:asc", ["delta", "alpha", "Beta", "gamma"]),
    ] {
        assert_eq!(
            ask(&service, "/jobs", &[("sort", sort)])
                .await
                .is(200)
                .job_ids(),
            expected,
            "{sort}"
        );
        let down = sort.replace(":asc", ":desc");
        let mut listed = ask(&service, "/jobs", &[("sort", &down)])
            .await
            .is(200)
            .job_ids();
        listed.reverse();
        assert_eq!(listed, expected, "{down}");
        assert_eq!(
            ask(
                &service,
                "/jobs",
                &[("sort", sort), ("limit", "2"), ("offset", "1")]
            )
            .await
            .job_ids(),
            expected[1..3],
            "{sort}"
        );
    }
    let by_update = ask(&service, "/jobs", &[("sort", "lastUpdateTime:asc")])
        .await
        .is(200)
        .json();
    let times: Vec<i64> = by_update
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["lastUpdateTime"].as_i64().unwrap())
        .collect();
    assert!(times.is_sorted() && times.len() == 4, "{times:?}");
}

async fn what_is_wrong_with_a_question_is_said(service: Service) {
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

/// More jobs than two batches hold, of which one is done, one has failed and one is at work.
async fn many_jobs(service: &Service) {
    let task = new_job()["task"].take();
    for n in 0..205 {
        let labels = if n % 2 == 0 {
            json!({"even": null})
        } else {
            json!({})
        };
        service
            .put(
                &format!("job-{n}"),
                &json!({"task": task, "labels": labels}),
            )
            .await
            .is(201);
    }
    service.put("other", &json!({"task": task})).await.is(201);
    service.report("job-0", "", EventKind::Complete).await;
    service
        .report("job-1", "", EventKind::Failed(ReportFailure::default()))
        .await;
    service.report("job-2", ".1", EventKind::Complete).await;
}

async fn many_jobs_are_cancelled_in_more_than_one_batch(service: Service) {
    many_jobs(&service).await;
    let mut announced = service.broker.announcements().await.unwrap();
    announced.next().await;
    let cancel = async |query: &[(&str, &str)]| {
        call(&service, Method::POST, "/jobs:cancel", query)
            .await
            .is(200)
            .body
    };
    assert_eq!(
        cancel(&[("filter", "id==job-3*;labels.even!=x")]).await,
        r#"{"jobsCanceled":0}"#
    );
    assert_eq!(
        cancel(&[("jobIdStartsWith", "job-")]).await,
        r#"{"jobsCanceled":203}"#
    );
    assert_eq!(
        cancel(&[("jobIdStartsWith", "job-")]).await,
        r#"{"jobsCanceled":0}"#
    );
    for (filter, count) in [
        ("status==Cancelled", 203),
        ("status==Waiting", 1),
        ("status=in=(Completed,Failed)", 2),
    ] {
        assert_eq!(
            ask(&service, "/jobStats/count", &[("filter", filter)])
                .await
                .json(),
            count,
            "{filter}"
        );
    }
    // Three messages have told of all of them.
    let mut told = Vec::new();
    for expected in [100, 100, 3] {
        let Some(Event::Message(body)) = announced.next().await else {
            panic!("nothing was announced")
        };
        let message: Value = serde_json::from_slice(&body).unwrap();
        let jobs = message["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job.as_str().unwrap().to_owned());
        told.push(jobs.collect::<Vec<_>>());
        assert_eq!(told.last().unwrap().len(), expected);
    }
    assert!(
        told.concat()
            .contains(&format!("{}:job-204", service.partition))
    );
    assert!(
        !told
            .concat()
            .contains(&format!("{}:job-0", service.partition))
    );
}

async fn many_jobs_are_deleted_in_more_than_one_batch(service: Service) {
    many_jobs(&service).await;
    let delete = async |query: &[(&str, &str)]| {
        call(&service, Method::POST, "/jobs:delete", query)
            .await
            .is(200)
            .body
    };
    assert_eq!(
        delete(&[("statusType", "Inactive")]).await,
        r#"{"jobsDeleted":2}"#
    );
    assert_eq!(
        delete(&[("labelExist", "even")]).await,
        r#"{"jobsDeleted":102}"#
    );
    assert_eq!(
        delete(&[("filter", "id==job-*")]).await,
        r#"{"jobsDeleted":101}"#
    );
    assert_eq!(service.get("/jobs").await.job_ids(), ["other"]);
    service
        .get("/jobs/job-7")
        .await
        .refuses(404, "ERROR: job_id {job-7} not found");
}

async fn without_parameters_the_whole_partition_is_meant_and_no_other(mut service: Service) {
    let post = async |service: &Service, path: &str| {
        call(service, Method::POST, path, &[]).await.is(200).json()
    };
    let mine = service.partition.clone();
    service.partition = harness::unique("q");
    put(&service, "j", None, json!({})).await;
    let theirs = std::mem::replace(&mut service.partition, mine);
    four_jobs(&service).await;
    assert_eq!(
        post(&service, "/jobs:cancel").await,
        json!({"jobsCanceled": 2})
    );
    assert_eq!(
        post(&service, "/jobs:delete").await,
        json!({"jobsDeleted": 4})
    );
    assert_eq!(
        post(&service, "/jobs:delete").await,
        json!({"jobsDeleted": 0})
    );
    service.partition = theirs;
    assert_eq!(service.get("/jobs/j/status").await.json(), "Waiting");
}

async fn a_request_for_many_that_is_not_understood_ends_none(service: Service) {
    four_jobs(&service).await;
    let message = "The parameter 'statusType' must be NotFinished, NotCompleted, Completed or Inactive, but is 'completed'.";
    for path in ["/jobs:cancel", "/jobs:delete"] {
        call(&service, Method::POST, path, &[("statusType", "completed")])
            .await
            .refuses(400, message);
        let partition = format!("/job-service/v1/partitions/a.b{path}");
        let refused = service.call(Method::POST, &partition, None).await;
        refused.refuses(
            400,
            "The partition ID contains one or more invalid characters.",
        );
    }
    assert_eq!(
        service
            .get("/jobStats/count?statusType=NotFinished")
            .await
            .json(),
        2
    );
}
