//! What crosses the wire: the start message, the job as it is told, tracking reports and events, and messages that pass through the
//! tracking pipe.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::service::{Service, Store, encoded, message};

on_both_stores![
    a_start_message_has_every_field_of_cafs_and_no_other,
    the_task_data_is_sent_as_it_was_given,
    the_status_url_of_a_message_tells_the_status_of_this_life_of_the_job,
    ids_are_encoded_in_the_status_url,
    a_job_is_told_with_every_field_and_null_where_there_is_nothing,
    a_failure_is_told_with_all_that_was_reported,
    reports_count_in_their_order_and_a_retry_decides_nothing,
    an_id_without_a_partition_is_of_the_default_partition,
    events_of_the_older_kind_are_progress,
    a_report_with_fields_of_a_later_version_counts,
    what_is_no_report_is_put_aside_and_loses_nothing_else,
    what_passes_through_the_tracking_pipe_is_counted_and_goes_on,
    what_passes_through_the_tracking_pipe_is_dropped_when_its_job_is_over,
];

/// Where the tracking worker puts what it does not understand. All services of a broker share it, so one test at a time looks there.
const INVALID_PIPE: &str = "worker-jobtracking-invalid";
static INVALID: Mutex<()> = Mutex::const_new(());

/// Milliseconds since 1970.
fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()
}

async fn a_start_message_has_every_field_of_cafs_and_no_other(store: Store) {
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
            "as it is told in the answer"
        );
        let incarnation = &service.job(job).await["incarnation"];
        let path = service.path(&format!("/jobs/{job}/status?n={incarnation}"));
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
    // A job that waits keeps the id of the request that has created it; CAF takes that of whoever completes the other one.
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

async fn the_task_data_is_sent_as_it_was_given(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for (job, data, encoding, sent) in [
        ("text", json!("grün\n"), None, "grün\n".as_bytes()),
        ("utf8", json!("grün"), Some("utf8"), "grün".as_bytes()),
        ("base64", json!("aGVsbG8="), Some("base64"), b"hello"),
        // CAF sends something else when it is no UTF-8.
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
            // The order of the members of an object is the sender's.
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

async fn the_status_url_of_a_message_tells_the_status_of_this_life_of_the_job(store: Store) {
    let service = Service::start_with(store, &[("CAF_STATUS_CHECK_INTERVAL_SECONDS", "7")]).await;
    let mut pipe = service.consume("in").await;
    let mut urls: Vec<String> = Vec::new();
    for life in 0..3 {
        service.create("j", &service.new_job("in")).await;
        let (message, _) = pipe.next().await;
        let incarnation = service.job("j").await["incarnation"].clone();
        let expected = if life == 0 {
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
        // The reports of this life count, and those of lives before do not.
        service
            .report(&[
                json!({"jobTaskId": id, "status": "Progress", "estimatedPercentageCompleted": 30}),
            ])
            .await;
        service.becomes("j", "Active", 30.0).await;
        if life > 0 {
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
    let told = service
        .call(Method::GET, &path, None, &[])
        .await
        .is(200)
        .json();
    assert_eq!(
        (&told["id"], &told["status"]),
        (&json!(job), &json!("Active"))
    );
}

async fn a_job_is_told_with_every_field_and_null_where_there_is_nothing(store: Store) {
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
        let told = service.job(job).await;
        for field in ["name", "description", "externalData", "labels"] {
            assert_eq!(told.get(field), expected.get(field), "{field} of {job}");
        }
        assert_eq!(told["id"], job);
        assert_eq!(
            (&told["status"], &told["failures"]),
            (&json!("Waiting"), &json!([]))
        );
        // A number with a fraction, as a Java client reads it.
        assert!(told["percentageComplete"].is_f64(), "{told}");
        assert_eq!(told["percentageComplete"], json!(0.0));
        let created = u128::from(told["createTime"].as_u64().unwrap());
        assert!((before..=now()).contains(&created), "{created}");
        assert_eq!(told["lastUpdateTime"], told["createTime"]);
        // Neither the task nor what it waits for is told back.
        for field in ["task", "prerequisiteJobIds", "parameters", "type"] {
            assert_eq!(told.get(field), None, "{field} of {job}");
        }
        assert_eq!(
            service
                .ask("/jobs", &[("filter", &format!("id=={job}"))])
                .await
                .is(200)
                .json(),
            json!([told])
        );
    }
    service.complete("bare", "").await;
    service.becomes("bare", "Completed", 100.0).await;
    let told = service.job("bare").await;
    assert!(
        told["percentageComplete"].is_f64()
            && told["lastUpdateTime"].as_u64() >= told["createTime"].as_u64(),
        "{told}"
    );
}

async fn a_failure_is_told_with_all_that_was_reported(store: Store) {
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
        let told = service.job(job).await["failures"].clone();
        assert_eq!(told.as_array().unwrap().len(), 1, "{job}: {told}");
        for field in [
            "failureId",
            "failureTime",
            "failureSource",
            "failureMessage",
        ] {
            assert_eq!(
                told[0].get(field),
                Some(&failure[field]),
                "{field} of {job}"
            );
        }
    }
}

async fn reports_count_in_their_order_and_a_retry_decides_nothing(store: Store) {
    let service = Service::start(store).await;
    let report = |job: &str, steps: &str, status: &str, percentage: u8| {
        json!({"jobTaskId": service.task(job, steps), "status": status, "estimatedPercentageCompleted": percentage, "retries": null,
            "failure": null})
    };
    let jobs = ["progress", "completes", "fails", "tried-again", "mixed"];
    for job in jobs {
        service.create(job, &service.new_job("in")).await;
    }
    // As a worker sends them: five to a message, of any jobs.
    service
        .report(&[
            report("progress", "", "Progress", 0),
            report("progress", "", "Progress", 30),
            report("completes", "", "Complete", 100),
            report("completes", "", "Failed", 0),
            report("completes", "", "Progress", 20),
        ])
        .await;
    service
        .report(&[
            report("fails", "", "Progress", 30),
            report("fails", "", "Failed", 0),
            report("fails", "", "Complete", 100),
        ])
        .await;
    let failure = json!({"failureId": "X", "failureTime": 1, "failureSource": "w", "failureMessage": "again"});
    let mut retry = report("tried-again", ".1", "Retry", 0);
    (retry["retries"], retry["failure"]) = (json!(3), failure);
    service
        .report(&[
            report("tried-again", ".1", "Progress", 40),
            retry,
            report("mixed", ".2*", "Complete", 100),
        ])
        .await;
    service
        .report(&[report("mixed", ".1", "Complete", 0)])
        .await;
    service.becomes("mixed", "Completed", 100.0).await;
    assert_eq!(service.state("progress").await, ("Active".to_owned(), 30.0));
    assert_eq!(
        service.state("completes").await,
        ("Completed".to_owned(), 100.0)
    );
    assert_eq!(service.state("fails").await, ("Failed".to_owned(), 30.0));
    assert_eq!(
        service.state("tried-again").await,
        ("Active".to_owned(), 20.0)
    );
    assert_eq!(service.job("tried-again").await["failures"], json!([]));
    service.complete("tried-again", ".1").await;
    service.complete("tried-again", ".2*").await;
    service.becomes("tried-again", "Completed", 100.0).await;
}

async fn an_id_without_a_partition_is_of_the_default_partition(store: Store) {
    let service = Service::start(store).await;
    let path = "/job-service/v1/partitions/default/jobs/j";
    service
        .call(
            Method::PUT,
            path,
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    service.create("j", &service.new_job("in")).await;
    service
        .report(&[json!({"jobTaskId": "j.1", "status": "Complete"})])
        .await;
    service.all_is_counted().await;
    assert_eq!(
        service
            .call(Method::GET, path, None, &[])
            .await
            .is(200)
            .json()["percentageComplete"],
        50.0
    );
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
}

async fn events_of_the_older_kind_are_progress(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    for (steps, percentage, told) in [
        ("", 0, ("Waiting", 0.0)),
        ("", 30, ("Active", 30.0)),
        (".1", 80, ("Active", 40.0)),
    ] {
        let data = json!({"jobTaskId": service.task("j", steps), "estimatedPercentageCompleted": percentage});
        let event = message(
            "JobTrackingWorker",
            &data,
            "NEW_TASK",
            Some(&service.tracking_pipe),
            &json!(null),
        );
        service.publish(&service.tracking_pipe, &event).await;
        service.all_is_counted().await;
        assert_eq!(
            service.state("j").await,
            (told.0.to_owned(), told.1),
            "{percentage} at {steps:?}"
        );
    }
}

/// CAF's tracker calls such a message invalid, and its job would never be complete.
async fn a_report_with_fields_of_a_later_version_counts(store: Store) {
    let service = Service::start(store).await;
    service.create("done", &service.new_job("in")).await;
    service.create("failed", &service.new_job("in")).await;
    service
        .report(&[
            json!({"jobTaskId": service.task("done", ""), "status": "Complete", "duration": 5}),
        ])
        .await;
    let failure = json!({"failureId": "X", "failureTime": 1, "failureSource": "w", "failureMessage": "boom", "cause": "y"});
    service.report(&[json!({"jobTaskId": service.task("failed", ""), "status": "Failed", "failure": failure})]).await;
    service.becomes("done", "Completed", 100.0).await;
    service.becomes("failed", "Failed", 0.0).await;
}

async fn what_is_no_report_is_put_aside_and_loses_nothing_else(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    service.create("good", &service.new_job("in")).await;
    let tracker = Some(service.tracking_pipe.as_str());
    let reports = |report: Value| json!({"trackingReports": [report]});
    let with = |field: &str, value: Value| {
        let mut report = json!({"jobTaskId": service.task("j", ""), "status": "Complete", "estimatedPercentageCompleted": 100});
        report[field] = value;
        report
    };
    let flawed = [
        (
            "an unknown status",
            "TrackingReportTask",
            reports(with("status", json!("Finished"))),
        ),
        (
            "no status",
            "TrackingReportTask",
            reports(with("status", json!(null))),
        ),
        (
            "no id",
            "TrackingReportTask",
            reports(with("jobTaskId", json!(null))),
        ),
        (
            "an id that is none",
            "TrackingReportTask",
            reports(with(
                "jobTaskId",
                json!(format!("{}.x", service.task("j", ""))),
            )),
        ),
        (
            "no list",
            "TrackingReportTask",
            json!({"trackingReports": null}),
        ),
        ("no object", "TrackingReportTask", json!("Complete")),
        (
            "another classifier",
            "BatchWorker",
            reports(with("status", json!("Complete"))),
        ),
    ];
    let mut put_aside = Vec::new();
    for (flaw, classifier, data) in flawed {
        let message = message(classifier, &data, "NEW_TASK", tracker, &json!(null));
        service.publish(&service.tracking_pipe, &message).await;
        put_aside.push((flaw, message));
        // What comes between is counted.
        service
            .progress("good", "", u8::try_from(put_aside.len()).unwrap())
            .await;
    }
    let mut without_data = message(
        "TrackingReportTask",
        &json!({}),
        "NEW_TASK",
        tracker,
        &json!(null),
    );
    without_data["taskData"] = json!(null);
    service.publish(&service.tracking_pipe, &without_data).await;
    put_aside.push(("no data", without_data));
    // No task message at all.
    service
        .publish(
            &service.tracking_pipe,
            &json!({"to": service.tracking_pipe}),
        )
        .await;
    service.publish(&service.tracking_pipe, &json!([1])).await;
    service.all_is_counted().await;
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
    assert_eq!(service.state("good").await, ("Active".to_owned(), 7.0));
    let _alone = INVALID.lock().await;
    for (flaw, message) in put_aside {
        let found = service
            .consume_named(INVALID_PIPE)
            .await
            .find(message["taskId"].as_str().unwrap())
            .await;
        assert_eq!(found, message, "{flaw}");
    }
}

/// A message that passes through the tracking pipe, and what becomes of it.
struct Proxied {
    name: &'static str,
    status: Option<&'static str>,
    /// Names of pipes of the test's own.
    to: Option<&'static str>,
    track_to: Option<&'static str>,
    headers: &'static [(&'static str, &'static str)],
    /// The status, the percentage, and where the job has failed, the id, source and message of the failure.
    becomes: (&'static str, f64, Option<[&'static str; 3]>),
    keeps_tracking: bool,
}

const FAILED_AS_TASK: Option<[&str; 3]> = Some(["RESULT_EXCEPTION", "worker-x", "class X boom"]);
const REJECTED: &[(&str, &str)] = &[
    ("x-caf-worker-rejected", "TASKMESSAGE_REJECTED"),
    ("x-caf-worker-retry", "10"),
];

#[rustfmt::skip]
const PROXIED: [Proxied; 12] = {
    const fn row(
        name: &'static str, status: Option<&'static str>, to: Option<&'static str>, track_to: Option<&'static str>,
        becomes: (&'static str, f64, Option<[&'static str; 3]>), keeps_tracking: bool,
    ) -> Proxied {
        Proxied { name, status, to, track_to, headers: &[], becomes, keeps_tracking }
    }
    const COMPLETED: (&str, f64, Option<[&str; 3]>) = ("Completed", 100.0, None);
    const WAITS: (&str, f64, Option<[&str; 3]>) = ("Waiting", 0.0, None);
    [
        row("new-task-ends", Some("NEW_TASK"), Some("out"), Some("out"), COMPLETED, false),
        row("success-ends", Some("RESULT_SUCCESS"), Some("out"), Some("out"), COMPLETED, false),
        // A negative result is a result.
        row("failure-ends", Some("RESULT_FAILURE"), Some("out"), Some("out"), COMPLETED, false),
        row("case-does-not-count", Some("RESULT_SUCCESS"), Some("OUT"), Some("out"), COMPLETED, false),
        row("nobody-is-next", Some("RESULT_SUCCESS"), None, None, COMPLETED, false),
        row("new-task-goes-on", Some("NEW_TASK"), Some("out"), Some("end"), WAITS, true),
        row("success-goes-on", Some("RESULT_SUCCESS"), Some("out"), Some("end"), WAITS, true),
        row("ends-nowhere", Some("RESULT_FAILURE"), Some("out"), None, WAITS, true),
        row("exception", Some("RESULT_EXCEPTION"), Some("out"), Some("end"), ("Failed", 0.0, FAILED_AS_TASK), true),
        row("invalid", Some("INVALID_TASK"), Some("out"), Some("end"), ("Failed", 0.0, Some(["INVALID_TASK", "worker-x", "class X boom"])), true),
        Proxied {
            headers: REJECTED,
            ..row("rejected", None, Some("out"), Some("end"), ("Failed", 0.0, Some([
                "x-caf-worker-rejected", "worker-x", "TASKMESSAGE_REJECTED. Execution of this job task was retried 10 times."
            ])), true)
        },
        row("tried-again", None, Some("out"), Some("end"), WAITS, true),
    ]
};

async fn what_passes_through_the_tracking_pipe_is_counted_and_goes_on(store: Store) {
    let service = Service::start(store).await;
    let mut out = service.consume("out").await;
    let mut upper = service.consume_named(&service.pipe("OUT")).await;
    let pass = async |tracking: &Value,
                      status: Option<&str>,
                      to: Option<&str>,
                      headers: &[(&str, &str)]| {
        let to = to.map(|to| service.pipe(to));
        let mut sent = message("Order", &json!({}), "NEW_TASK", to.as_deref(), tracking);
        sent["taskStatus"] = json!(status);
        sent["taskData"] = json!(STANDARD.encode("class X boom"));
        sent["sourceInfo"] = json!({"name": "worker-x", "version": "1"});
        sent["new"] = json!({"deep": [1]});
        service
            .publish_with(&service.tracking_pipe, &sent, headers)
            .await;
        sent
    };
    for Proxied {
        name,
        status,
        to,
        track_to,
        headers,
        becomes,
        keeps_tracking,
    } in PROXIED
    {
        service.create(name, &service.new_job("in")).await;
        let url = format!(
            "{}{}",
            service.root,
            service.path(&format!("/jobs/{name}/status"))
        );
        let now = u64::try_from(now()).unwrap();
        let tracking = json!({
            "jobTaskId": service.task(name, ""), "lastStatusCheckTime": now + 30_000, "statusCheckIntervalMillis": 60_000,
            "statusCheckUrl": url, "trackingPipe": service.tracking_pipe, "trackTo": track_to.map(|to| service.pipe(to))
        });
        let mut sent = pass(&tracking, status, to, headers).await;
        if let Some(to) = to {
            let (arrived, _) = if to == "OUT" {
                upper.next().await
            } else {
                out.next().await
            };
            if !keeps_tracking {
                sent["tracking"] = json!(null);
            }
            assert_eq!(arrived, sent, "{name}");
        }
        service.all_is_counted().await;
        let job = service.job(name).await;
        assert_eq!(
            (&job["status"], &job["percentageComplete"]),
            (&json!(becomes.0), &json!(becomes.1)),
            "{name}: {job}"
        );
        let Some([id, source, text]) = becomes.2 else {
            assert_eq!(job["failures"], json!([]), "{name}");
            continue;
        };
        let failure = &job["failures"][0];
        assert_eq!(
            (&failure["failureId"], &failure["failureSource"]),
            (&json!(id), &json!(source)),
            "{name}"
        );
        assert_eq!(failure["failureMessage"], text, "{name}");
        assert!(
            u64::try_from(self::now()).unwrap() >= failure["failureTime"].as_u64().unwrap(),
            "{name}"
        );
        assert!(
            failure["failureTime"].as_u64().unwrap() >= now,
            "{name}: the time is when it came"
        );
    }
    // Without tracking, or with tracking of nothing, it goes on as it is.
    for tracking in [
        json!(null),
        json!({"jobTaskId": null, "statusCheckIntervalMillis": 0, "trackTo": "end"}),
    ] {
        let sent = pass(&tracking, Some("RESULT_SUCCESS"), Some("out"), &[]).await;
        let mut arrived = out.next().await.0;
        if !tracking.is_null() {
            assert_eq!(arrived["tracking"]["jobTaskId"], json!(null));
            arrived["tracking"] = tracking;
        }
        assert_eq!(arrived, sent);
    }
    // A worker that does not say who it is.
    for (name, source, told) in [
        ("no-source", json!(null), "Unknown - no source info"),
        (
            "no-name",
            json!({"name": null, "version": "1"}),
            "Unknown - worker name not set",
        ),
    ] {
        service.create(name, &service.new_job("in")).await;
        let tracking = json!({"jobTaskId": service.task(name, ".1"), "trackingPipe": service.tracking_pipe, "trackTo": "end"});
        let mut sent = message(
            "Order",
            &json!({}),
            "RESULT_EXCEPTION",
            Some(&service.pipe("out")),
            &tracking,
        );
        sent["sourceInfo"] = source;
        service.publish(&service.tracking_pipe, &sent).await;
        service.becomes(name, "Failed", 0.0).await;
        assert_eq!(
            service.job(name).await["failures"][0]["failureSource"],
            told,
            "{name}"
        );
    }
}

async fn what_passes_through_the_tracking_pipe_is_dropped_when_its_job_is_over(store: Store) {
    let service = Service::start(store).await;
    let mut out = service.consume("out").await;
    let statuses = [
        "Completed",
        "Failed",
        "Cancelled",
        "Waiting",
        "Active",
        "Paused",
    ];
    for status in statuses {
        service.create_as(status, status).await;
    }
    service.create("deleted", &service.new_job("in")).await;
    service.delete("deleted").await.is(204);
    let url = |job: &str| {
        format!(
            "{}{}",
            service.root,
            service.path(&format!("/jobs/{job}/status"))
        )
    };
    // A check that nobody answers stops nothing.
    let nowhere = "http://127.0.0.1:1/job-service/v1/partitions/p/jobs/Cancelled/status".to_owned();
    let mut checks: Vec<(&str, String)> = statuses
        .iter()
        .chain(&["deleted"])
        .map(|job| (*job, url(job)))
        .collect();
    checks.extend([("unchecked", nowhere), ("last", url("Active"))]);
    for (job, url) in checks {
        let tracking = json!({
            "jobTaskId": service.task(job, ".1"), "lastStatusCheckTime": null, "statusCheckIntervalMillis": 5000, "statusCheckUrl": url,
            "trackingPipe": service.tracking_pipe, "trackTo": "end"
        });
        let passing = message(
            "Order",
            &json!({}),
            "NEW_TASK",
            Some(&service.pipe("out")),
            &tracking,
        );
        service.publish(&service.tracking_pipe, &passing).await;
    }
    assert_eq!(
        out.next_jobs(5).await,
        ["Waiting.1", "Active.1", "Paused.1", "unchecked.1", "last.1"]
    );
}
