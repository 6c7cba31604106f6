//! Reports in the tracking pipe: those that workers send, and those implied by messages that pass
//! through it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::service::{Service, Store, message, now};

on_both_stores![
    reports_count_in_order_and_a_retry_decides_nothing,
    id_without_partition_belongs_to_the_default_partition,
    proxied_message_is_counted_and_forwarded,
    proxied_message_of_an_ended_job_is_dropped,
];

on_one_store![
    older_tracking_events_count_as_progress,
    report_with_unknown_fields_counts,
    invalid_report_is_set_aside_and_loses_no_other,
];

/// The pipe for messages that the tracking worker cannot decode. All services of a broker share it,
/// so one test at a time consumes it.
const INVALID_PIPE: &str = "worker-jobtracking-invalid";

static INVALID: Mutex<()> = Mutex::const_new(());

async fn reports_count_in_order_and_a_retry_decides_nothing(store: Store) {
    let service = Service::start(store).await;
    let report = |job: &str, steps: &str, status: &str, percentage: u8| {
        json!({"jobTaskId": service.task(job, steps), "status": status, "estimatedPercentageCompleted": percentage, "retries": null,
            "failure": null})
    };
    let jobs = ["progress", "completes", "fails", "tried-again", "mixed"];
    for job in jobs {
        service.create(job, &service.new_job("in")).await;
    }
    // Workers send up to five reports in a message, of any jobs.
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

async fn id_without_partition_belongs_to_the_default_partition(store: Store) {
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

async fn older_tracking_events_count_as_progress(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    for (steps, percentage, expected) in [
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
            (expected.0.to_owned(), expected.1),
            "{percentage} at {steps:?}"
        );
    }
}

/// CAF's tracking worker rejects such a message as invalid, so its job never completes.
async fn report_with_unknown_fields_counts(store: Store) {
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

async fn invalid_report_is_set_aside_and_loses_no_other(store: Store) {
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
    let invalid = [
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
            "an invalid id",
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
    let mut sent_as_invalid = Vec::new();
    for (case, classifier, data) in invalid {
        let message = message(classifier, &data, "NEW_TASK", tracker, &json!(null));
        service.publish(&service.tracking_pipe, &message).await;
        sent_as_invalid.push((case, message));
        // A valid report between the invalid ones counts.
        service
            .progress("good", "", u8::try_from(sent_as_invalid.len()).unwrap())
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
    sent_as_invalid.push(("no data", without_data));
    // These are not task messages.
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
    let _exclusive = INVALID.lock().await;
    for (case, message) in sent_as_invalid {
        let found = service
            .consume_named(INVALID_PIPE)
            .await
            .find(message["taskId"].as_str().unwrap())
            .await;
        assert_eq!(found, message, "{case}");
    }
}

/// A message that passes through the tracking pipe, and its expected effect on the job.
struct Proxied {
    name: &'static str,
    status: Option<&'static str>,
    /// The name of one of the test's own pipes.
    to: Option<&'static str>,
    track_to: Option<&'static str>,
    headers: &'static [(&'static str, &'static str)],
    /// The status and the percentage of the job; for a failed job also the id, source and message
    /// of the failure.
    becomes: (&'static str, f64, Option<[&'static str; 3]>),
    keeps_tracking: bool,
}

const FAILED_AS_TASK: Option<[&str; 3]> =
    Some(["RESULT_EXCEPTION", "worker-x", "\"class X boom\""]);

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
        // A negative result also completes the task.
        row("failure-ends", Some("RESULT_FAILURE"), Some("out"), Some("out"), COMPLETED, false),
        row("case-is-ignored", Some("RESULT_SUCCESS"), Some("OUT"), Some("out"), COMPLETED, false),
        row("no-next-pipe", Some("RESULT_SUCCESS"), None, None, COMPLETED, false),
        row("new-task-continues", Some("NEW_TASK"), Some("out"), Some("end"), WAITS, true),
        row("success-continues", Some("RESULT_SUCCESS"), Some("out"), Some("end"), WAITS, true),
        row("ends-nowhere", Some("RESULT_FAILURE"), Some("out"), None, WAITS, true),
        row("exception", Some("RESULT_EXCEPTION"), Some("out"), Some("end"), ("Failed", 0.0, FAILED_AS_TASK), true),
        row("invalid", Some("INVALID_TASK"), Some("out"), Some("end"), ("Failed", 0.0, Some(["INVALID_TASK", "worker-x", "\"class X boom\""])), true),
        Proxied {
            headers: REJECTED,
            ..row("rejected", None, Some("out"), Some("end"), ("Failed", 0.0, Some([
                "x-caf-worker-rejected", "worker-x", "TASKMESSAGE_REJECTED. Execution of this job task was retried 10 times."
            ])), true)
        },
        row("tried-again", None, Some("out"), Some("end"), WAITS, true),
    ]
};

async fn proxied_message_is_counted_and_forwarded(store: Store) {
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
        sent["taskData"] = json!(STANDARD.encode("\"class X boom\""));
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
            u64::try_from(crate::service::now()).unwrap()
                >= failure["failureTime"].as_u64().unwrap(),
            "{name}"
        );
        assert!(
            failure["failureTime"].as_u64().unwrap() >= now,
            "{name}: the time is that of its arrival"
        );
    }
    // Without tracking, or with empty tracking, it is forwarded unchanged.
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
    // The message does not name its worker.
    for (name, source, expected) in [
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
            expected,
            "{name}"
        );
    }
}

async fn proxied_message_of_an_ended_job_is_dropped(store: Store) {
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
    // If a status check gets no response, the message is still forwarded.
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
