//! The start message of a job, and the JSON representation of a job.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Service, Store, encoded, now};

on_both_stores![
    task_data_is_sent_as_given,
    status_url_of_a_message_returns_the_status_of_its_incarnation,
    job_response_has_every_field_and_null_for_missing_values,
    failure_response_has_everything_that_was_reported,
];

on_one_store![
    start_message_has_exactly_cafs_fields,
    ids_are_encoded_in_the_status_url,
];

async fn start_message_has_exactly_cafs_fields(store: Store) {
    let service = Service::start_with(store, &[("CAF_STATUS_CHECK_INTERVAL_SECONDS", "7")]).await;
    let mut pipe = service.consume("in").await;
    let mut without_target = service.new_job("in");
    without_target["task"]["targetPipe"] = json!(null);
    let mut without_target_field = service.new_job("in");
    without_target_field["task"]
        .as_object_mut()
        .unwrap()
        .remove("targetPipe");
    for (job, body, correlation_id) in [
        ("given", service.new_job("in"), Some("corr-42")),
        ("null", without_target, None),
        ("absent", without_target_field, Some("corr 43")),
    ] {
        let headers: Vec<_> = correlation_id
            .map(|id| ("CAF-Correlation-Id", id))
            .into_iter()
            .collect();
        let before = now();
        let answer = service
            .call(
                Method::PUT,
                &service.path(&format!("/jobs/{job}")),
                Some(&body.to_string()),
                &headers,
            )
            .await
            .is(201);
        let (mut message, data) = pipe.next().await;
        assert_eq!(data, body["task"]["taskData"]);
        let task_id = message["taskId"].take();
        let parts: Vec<usize> = task_id.as_str().unwrap().split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{task_id} is no UUID");
        let checked = u128::from(
            message["tracking"]["lastStatusCheckTime"]
                .take()
                .as_u64()
                .unwrap(),
        );
        assert!((before..=now()).contains(&checked), "{checked}");
        let correlation_id = message["correlationId"].take();
        let echoed = answer.headers.get("CAF-Correlation-Id").unwrap().as_bytes();
        assert_eq!(
            correlation_id.as_str().unwrap().as_bytes(),
            echoed,
            "the same id as in the response"
        );
        let incarnation = &service.job(job).await["incarnation"];
        let url = message["tracking"]["statusCheckUrl"].as_str().unwrap();
        let key = url.split("&k=").nth(1).unwrap_or_default();
        assert!(
            key.len() == 32 && key.bytes().all(|it| it.is_ascii_hexdigit()),
            "{url}"
        );
        let path = service.path(&format!("/jobs/{job}/status?n={incarnation}&k={key}"));
        assert_eq!(
            message,
            json!({
                "version": 3, "taskId": null, "taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskData": message["taskData"],
                "taskStatus": "NEW_TASK", "context": {}, "to": service.pipe("in"),
                "tracking": {
                    "jobTaskId": service.task(job, ""), "lastStatusCheckTime": null, "statusCheckIntervalMillis": 7000,
                    "statusCheckUrl": format!("{}{path}", service.root), "trackingPipe": service.tracking_pipe,
                    "trackTo": body["task"]["targetPipe"]
                },
                "sourceInfo": null, "priority": null, "correlationId": null
            })
        );
    }
    // A waiting job keeps the correlation id of the request that created it. CAF uses the id of the
    // report that completes the prerequisite.
    let mut dependent = service.new_job("in");
    dependent["prerequisiteJobIds"] = json!(["given"]);
    let (path, headers) = (
        service.path("/jobs/dependent"),
        [("CAF-Correlation-Id", "corr-44")],
    );
    service
        .call(Method::PUT, &path, Some(&dependent.to_string()), &headers)
        .await
        .is(201);
    service.complete("given", "").await;
    let (message, _) = pipe.next().await;
    assert_eq!(
        (&message["tracking"]["jobTaskId"], &message["correlationId"]),
        (&json!(service.task("dependent", "")), &json!("corr-44"))
    );
}

async fn task_data_is_sent_as_given(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for (job, data, encoding, sent) in [
        ("text", json!("grün\n"), None, "grün\n".as_bytes()),
        ("utf8", json!("grün"), Some("utf8"), "grün".as_bytes()),
        ("base64", json!("aGVsbG8="), Some("base64"), b"hello"),
        // CAF changes task data that is not UTF-8.
        (
            "binary",
            json!("/+8AAYD+"),
            Some("base64"),
            &[0xff, 0xef, 0, 1, 0x80, 0xfe],
        ),
        ("looks-like-base64", json!("aGVsbG8="), None, b"aGVsbG8="),
        (
            "object",
            json!({"z": 1, "a": [null, {"ü": "\""}]}),
            None,
            r#"{"a":[null,{"ü":"\""}],"z":1}"#.as_bytes(),
        ),
    ] {
        let mut body = service.new_job("in");
        body["task"]["taskData"] = data;
        if let Some(encoding) = encoding {
            body["task"]["taskDataEncoding"] = json!(encoding);
        }
        service.create(job, &body).await;
        let (message, _) = pipe.next().await;
        let bytes = STANDARD
            .decode(message["taskData"].as_str().unwrap())
            .unwrap();
        match encoding {
            // JSON objects are compared without regard to the order of their fields.
            None if job == "object" => {
                assert_eq!(
                    serde_json::from_slice::<Value>(&bytes).unwrap(),
                    serde_json::from_slice::<Value>(sent).unwrap()
                );
                assert_eq!(bytes.len(), sent.len(), "no white space");
            }
            _ => assert_eq!(bytes, sent, "{job}"),
        }
    }
}

async fn status_url_of_a_message_returns_the_status_of_its_incarnation(store: Store) {
    let service = Service::start_with(store, &[("CAF_STATUS_CHECK_INTERVAL_SECONDS", "7")]).await;
    let mut pipe = service.consume("in").await;
    let mut urls: Vec<String> = Vec::new();
    for round in 0..3 {
        service.create("j", &service.new_job("in")).await;
        let (message, _) = pipe.next().await;
        let incarnation = service.job("j").await["incarnation"].clone();
        let expected = if round == 0 {
            service.task("j", "")
        } else {
            format!("{}!{incarnation}", service.task("j", ""))
        };
        let id = message["tracking"]["jobTaskId"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(id, expected);
        let url = message["tracking"]["statusCheckUrl"]
            .as_str()
            .unwrap()
            .strip_prefix(&service.root)
            .unwrap()
            .to_owned();
        let answer = service.call(Method::GET, &url, None, &[]).await.is(200);
        assert_eq!(
            (answer.body.as_str(), answer.header("CacheableJobStatus")),
            ("\"Waiting\"", Some("true"))
        );
        assert_eq!(
            answer.header("Cache-Control"),
            Some("no-transform, max-age=7")
        );
        for past in &urls {
            service
                .call(Method::GET, past, None, &[])
                .await
                .refuses(404, "ERROR: job_id {j} not found");
        }
        // Reports of this incarnation count; those of earlier incarnations do not.
        service
            .report(&[
                json!({"jobTaskId": id, "status": "Progress", "estimatedPercentageCompleted": 30}),
            ])
            .await;
        service.becomes("j", "Active", 30.0).await;
        if round > 0 {
            service.complete("j", "").await;
            service.all_is_counted().await;
            assert_eq!(service.state("j").await, ("Active".to_owned(), 30.0));
        }
        service
            .report(&[json!({"jobTaskId": format!("{id}.1"), "status": "Complete"})])
            .await;
        service.becomes("j", "Active", 50.0).await;
        assert_eq!(
            service
                .call(Method::GET, &url, None, &[])
                .await
                .is(200)
                .body,
            "\"Active\""
        );
        urls.push(url);
        service.delete("j").await.is(204);
        service
            .call(Method::GET, urls.last().unwrap(), None, &[])
            .await
            .refuses(404, "ERROR: job_id {j} not found");
    }
}

async fn ids_are_encoded_in_the_status_url(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    let (partition, job) = ("a b/ü+&", "50% #1=ß\"'<>");
    let path = format!(
        "/job-service/v1/partitions/{}/jobs/{}",
        encoded(partition),
        encoded(job)
    );
    service
        .call(
            Method::PUT,
            &path,
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    let (message, _) = pipe.next().await;
    assert_eq!(
        message["tracking"]["jobTaskId"],
        format!("{partition}:{job}")
    );
    let url = message["tracking"]["statusCheckUrl"].as_str().unwrap();
    assert!(
        url.starts_with(&format!(
            "{}/job-service/v1/partitions/a%20b%2F%C3%BC%2B%26/jobs/50%25%20%231%3D",
            service.root
        )),
        "{url}"
    );
    let status = service
        .call(
            Method::GET,
            url.strip_prefix(&service.root).unwrap(),
            None,
            &[],
        )
        .await
        .is(200);
    assert_eq!(status.json(), "Waiting");
    service.report(&[json!({"jobTaskId": format!("{partition}:{job}"), "status": "Progress", "estimatedPercentageCompleted": 5})]).await;
    service.all_is_counted().await;
    let job_json = service
        .call(Method::GET, &path, None, &[])
        .await
        .is(200)
        .json();
    assert_eq!(
        (&job_json["id"], &job_json["status"]),
        (&json!(job), &json!("Active"))
    );
}

async fn job_response_has_every_field_and_null_for_missing_values(store: Store) {
    let service = Service::start(store).await;
    let before = now();
    service.create("bare", &service.new_job("in")).await;
    let mut full = service.new_job("in");
    full["name"] = json!("A näme");
    full["description"] = json!("");
    full["externalData"] = json!("{\"any\": \"thing\"}");
    full["labels"] = json!({"tag:1": "red", "_none": null, "empty": ""});
    full["delay"] = json!(3600);
    service.create("full", &full).await;
    for (job, expected) in [
        (
            "bare",
            json!({"name": null, "description": null, "externalData": null, "labels": {}}),
        ),
        (
            "full",
            json!({
                "name": full["name"], "description": "", "externalData": full["externalData"], "labels": full["labels"]
            }),
        ),
    ] {
        let job_json = service.job(job).await;
        for field in ["name", "description", "externalData", "labels"] {
            assert_eq!(job_json.get(field), expected.get(field), "{field} of {job}");
        }
        assert_eq!(job_json["id"], job);
        assert_eq!(
            (&job_json["status"], &job_json["failures"]),
            (&json!("Waiting"), &json!([]))
        );
        // A Java client reads a number with a fraction.
        assert!(job_json["percentageComplete"].is_f64(), "{job_json}");
        assert_eq!(job_json["percentageComplete"], json!(0.0));
        let created = u128::from(job_json["createTime"].as_u64().unwrap());
        assert!((before..=now()).contains(&created), "{created}");
        assert_eq!(job_json["lastUpdateTime"], job_json["createTime"]);
        // The response has neither the task nor the prerequisites.
        for field in ["task", "prerequisiteJobIds", "parameters", "type"] {
            assert_eq!(job_json.get(field), None, "{field} of {job}");
        }
        assert_eq!(
            service
                .ask("/jobs", &[("filter", &format!("id=={job}"))])
                .await
                .is(200)
                .json(),
            json!([job_json])
        );
    }
    service.complete("bare", "").await;
    service.becomes("bare", "Completed", 100.0).await;
    let job_json = service.job("bare").await;
    assert!(
        job_json["percentageComplete"].is_f64()
            && job_json["lastUpdateTime"].as_u64() >= job_json["createTime"].as_u64(),
        "{job_json}"
    );
}

async fn failure_response_has_everything_that_was_reported(store: Store) {
    let service = Service::start(store).await;
    let long = "a line\nanother \"line\" {\u{1F4A5}}\\ ".repeat(200);
    let full = |text: &str| json!({"failureId": "X-1", "failureTime": 1_793_610_007_321_i64, "failureSource": "worker-pages", "failureMessage": text});
    for (job, failure) in [
        ("plain", full("boom")),
        ("quoted", full("\"class java.lang.RuntimeException boom\"")),
        ("long", full(&long)),
        ("empty", full("")),
        ("partial", json!({"failureId": "X-2"})),
        (
            "nulls",
            json!({"failureId": null, "failureTime": null, "failureSource": null, "failureMessage": null}),
        ),
        ("none", json!(null)),
    ] {
        service.create(job, &service.new_job("in")).await;
        service.report(&[json!({"jobTaskId": service.task(job, ".1"), "status": "Failed", "failure": failure})]).await;
        service.becomes(job, "Failed", 0.0).await;
        let failures = service.job(job).await["failures"].clone();
        assert_eq!(failures.as_array().unwrap().len(), 1, "{job}: {failures}");
        for field in [
            "failureId",
            "failureTime",
            "failureSource",
            "failureMessage",
        ] {
            assert_eq!(
                failures[0].get(field),
                Some(&failure[field]),
                "{field} of {job}"
            );
        }
    }
}
