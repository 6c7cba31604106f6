//! Listing and counting jobs.

use reqwest::Method;
use serde_json::json;
use store::EventKind;

use crate::service::{Answer, Service, new_job};

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

/// The suite `caf_compat` tries more pages, orders and filters.
#[tokio::test]
async fn page_order_and_conditions_of_a_list_are_read_from_its_parameters() {
    let service = Service::start_configured(|options| options.page_size = 3).await;
    for job in ["a", "b", "c", "d"] {
        let mut body = new_job();
        body["labels"] = if job < "c" {
            json!({"team": null})
        } else {
            json!({})
        };
        service.put(job, &body).await.is(201);
    }
    service.report("b", "", EventKind::Complete).await;
    service.cancel("c").await.is(204);
    for (query, expected) in [
        (&[][..], &["d", "c", "b"][..]),
        (&[("limit", "")], &["d", "c", "b"]),
        (&[("limit", "0"), ("offset", "-1")], &["d", "c", "b"]),
        (&[("limit", "99999999999")], &["d", "c", "b", "a"]),
        (&[("limit", "2"), ("offset", "1")], &["c", "b"]),
        (&[("sort", "createTime:asc"), ("limit", "2")], &["a", "b"]),
        (&[("sort", "jobId:desc"), ("offset", "3")], &["a"]),
        (&[("statusType", "NotFinished")], &["d", "a"]),
        (&[("statusType", "NotCompleted")], &["d", "c", "a"]),
        (&[("statusType", "Inactive")], &["c", "b"]),
        (&[("statusType", "Completed"), ("filter", " ")], &["b"]),
        (&[("jobIdStartsWith", "d"), ("labelExist", "")], &["d"]),
        (&[("labelExist", " none , team,")], &["b", "a"]),
        (
            &[
                ("labelExist", "team"),
                ("filter", "id!=b"),
                ("statusType", "NotFinished"),
            ],
            &["a"],
        ),
    ] {
        let listed = ask(&service, "/jobs", query).await.is(200);
        assert_eq!(listed.job_ids(), expected, "{query:?}");
    }
    let all = [("limit", "2"), ("statusType", "NotFinished")];
    let counted = ask(&service, "/jobStats/count", &all).await.is(200);
    assert_eq!(counted.json(), 2);
}

/// The laws of the store say which jobs a batch holds.
#[tokio::test]
async fn bulk_cancel_and_delete_take_one_batch_after_the_other() {
    let service = Service::start_configured(|options| {
        (options.cancel_batch, options.delete_batch) = (2, 2);
    })
    .await;
    for job in ["a1", "a2", "a3", "a4", "a5", "b"] {
        service.put(job, &new_job()).await.is(201);
    }
    let some = [("jobIdStartsWith", "a")];
    for (path, answer) in [
        ("/jobs:cancel", json!({"jobsCanceled": 5})),
        ("/jobs:cancel", json!({"jobsCanceled": 0})),
        ("/jobs:delete", json!({"jobsDeleted": 5})),
    ] {
        let done = call(&service, Method::POST, path, &some).await.is(200);
        assert_eq!(done.json(), answer);
    }
    assert_eq!(service.get("/jobs").await.job_ids(), ["b"]);
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
    service.post("/jobs:delete").await.is(200);
    // Jobs that are not begun are left out; the one that is begun cannot be.
    harness::in_time("the list to break off", async {
        while list.chunk().await.map_err(drop)?.is_some() {}
        Ok::<_, ()>(())
    })
    .await
    .unwrap_err();
}
