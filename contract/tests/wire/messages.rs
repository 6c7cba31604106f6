//! Every message and REST body is written byte for byte as in the fixtures, and read back.

use std::collections::BTreeMap;

use contract::rest::{ErrorBody, Failure, Items, Job, JobTask, NewJob};
use contract::{
    Announced, BatchResult, BatchTask, ContextData, FailedItem, FailedRun, JobShare, JobStatus,
    JobTaskId, OnFailure, ReportDetails, ReportFailure, ReportStatus, SourceDigest, SourceInfo,
    TaskData, TaskMessage, TaskStatus, Tracking, TrackingReport, TrackingReportTask,
    patch_tracking, subtask_id,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

const TASK: &str = "7b1e0c44-90d2-4f6a-8a53-2f6f0b7d1c90";

const JOB: &str = "library:scan-12";

const STATUS_URL: &str = "http://jobs.internal:9410/job-service/v1/partitions/library/jobs/scan-12/status?n=41&k=9f86d081884c7d659a2feaa0c55ad015";

pub const NOW: i64 = 1_793_610_000_000;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../fixtures/", $name, ".json")).trim_end()
    };
}

#[derive(Serialize, Deserialize)]
struct ScanPage {
    page: u32,
}

impl TaskData for ScanPage {
    const CLASSIFIER: &'static str = "ScanPage";
    const API_VERSION: i32 = 2;
}

pub fn tracking(job_task_id: &str, track_to: &str) -> Tracking {
    Tracking {
        job_task_id: Some(job_task_id.into()),
        last_status_check_time: Some(NOW),
        status_check_interval_millis: 10_000,
        status_check_url: Some(STATUS_URL.into()),
        tracking_pipe: Some("worker-jobtracking-in".into()),
        track_to: Some(track_to.into()),
    }
}

fn source(name: &str, version: &str) -> SourceInfo {
    SourceInfo {
        name: Some(name.into()),
        version: Some(version.into()),
    }
}

fn correlated(message: TaskMessage) -> TaskMessage {
    TaskMessage {
        correlation_id: Some("req-8815".into()),
        ..message
    }
}

/// An item two levels down.
fn item() -> TaskMessage {
    let id = |root: &str| subtask_id(&subtask_id(root, 3, false), 17, false);
    let new = TaskMessage::new(id(TASK), "pages-in", &ScanPage { page: 217 }).unwrap();
    correlated(TaskMessage {
        tracking: Some(tracking(&id(JOB), "scans-done")),
        source_info: Some(source("worker-batch", "0.1.0")),
        ..new
    })
}

/// An answer of the worker that scans pages to its task 3.`page`.
fn answer(page: u32, status: TaskStatus, data: impl Into<Vec<u8>>) -> TaskMessage {
    TaskMessage {
        task_id: format!("{TASK}.3.{page}"),
        task_data: Some(data.into()),
        task_status: Some(status),
        to: Some("scans-done".into()),
        tracking: None,
        source_info: Some(source("worker-pages", "2.0.1")),
        ..item()
    }
}

fn note(service: &str, note: &[u8]) -> BTreeMap<String, ContextData> {
    BTreeMap::from([(service.into(), ContextData(note.to_vec()))])
}

fn assert_message(message: &TaskMessage, fixture: &str) {
    assert_eq!(String::from_utf8(message.encode()).unwrap(), fixture);
    let decoded = TaskMessage::decode(fixture.as_bytes()).unwrap();
    assert_eq!(decoded, *message);
    assert_eq!(decoded.encode(), fixture.as_bytes());
    // Tracking that stays as it was changes no byte of the message.
    assert_eq!(
        patch_tracking(fixture.as_bytes(), message.tracking.as_ref()).unwrap(),
        fixture.as_bytes()
    );
}

fn assert_body<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    body: &T,
    fixture: &str,
) {
    assert_eq!(serde_json::to_string(body).unwrap(), fixture);
    assert_eq!(serde_json::from_str::<T>(fixture).unwrap(), *body);
}

#[test]
fn start_message_matches_cafs_job_service() {
    let batch = BatchTask {
        batch_definition: Some("1-250".into()),
        batch_type: Some("range".into()),
        task_message_type: Some("PageBuilder".into()),
        task_message_params: Some(BTreeMap::from([
            ("shelf".into(), "Größe".into()),
            ("dpi".into(), "300".into()),
        ])),
        target_pipe: Some("pages-in".into()),
    };
    let new = TaskMessage::new(TASK, "worker-batch-in", &batch).unwrap();
    assert_message(
        &correlated(TaskMessage {
            tracking: Some(tracking(JOB, "scans-done")),
            ..new
        }),
        fixture!("job_message"),
    );
}

#[test]
fn item_two_levels_down_has_the_same_suffix_on_both_ids() {
    assert_message(&item(), fixture!("item"));
}

#[test]
fn item_of_a_second_incarnation_names_it_in_id_and_status_url() {
    let mut message = item();
    let tracking = message.tracking.as_mut().unwrap();
    let id = JobTaskId {
        incarnation: Some(42),
        ..JobTaskId::parse(tracking.job_task_id.as_deref().unwrap()).unwrap()
    };
    tracking.job_task_id = Some(id.to_string());
    tracking.status_check_url = Some(STATUS_URL.replace("n=41", "n=42").into());
    assert_message(&message, fixture!("item_of_second_life"));
}

#[test]
fn result_at_the_end_of_its_tracking_drops_it_and_keeps_the_context() {
    let result = TaskMessage {
        context: note("library/pages", b"\x00\xff note"),
        ..answer(
            17,
            TaskStatus::ResultSuccess,
            serde_json::to_vec(&json!({"words": 412})).unwrap(),
        )
    };
    assert_message(&result, fixture!("result"));
}

#[test]
fn final_message_of_a_split_has_the_next_number_and_a_star() {
    let result = BatchResult {
        batch_task: JOB.into(),
    };
    let new = TaskMessage::new(subtask_id(TASK, 4, true), "worker-batch-out", &result).unwrap();
    let message = TaskMessage {
        task_status: Some(TaskStatus::ResultSuccess),
        source_info: Some(source("worker-batch", "0.1.0")),
        ..new
    };
    assert_message(&correlated(message), fixture!("split_final"));
}

#[test]
fn details_of_reports_travel_beside_the_reports() {
    let failure = ReportFailure {
        item: Some(FailedItem::new(Some("a.tif"), "ü".repeat(2000).as_bytes())),
        ..ReportFailure::default()
    };
    let retried = ReportFailure {
        run: Some(FailedRun {
            attempt: Some(1),
            began: Some(NOW),
            host: Some("host-1".to_owned()),
            process: Some(4711),
            next: Some(NOW + 5000),
        }),
        ..ReportFailure::default()
    };
    let reports = vec![
        TrackingReport::new("library:scan-12.1", ReportStatus::Complete),
        TrackingReport::failed("library:scan-12.2", failure),
        TrackingReport {
            failure: Some(retried),
            ..TrackingReport::new("library:scan-12.3", ReportStatus::Retry)
        },
        TrackingReport {
            announced: Some(Announced {
                batches: 3,
                items: Some(2500),
            }),
            digest: Some(SourceDigest([0xa7; 32])),
            ..TrackingReport::new("library:scan-12.4*", ReportStatus::Progress)
        },
    ];
    let json = serde_json::to_string(&reports).unwrap();
    assert!(
        ["a.tif", "host-1", "batches", "a7a7"]
            .iter()
            .all(|text| !json.contains(text)),
        "{json}"
    );
    let mut read: Vec<TrackingReport> = serde_json::from_str(&json).unwrap();
    let entry = ReportDetails::of(&reports).unwrap();
    ReportDetails::add_to(&entry, &mut read);
    assert_eq!(read, reports);
    let item = read[1].failure.as_ref().unwrap().item.as_ref().unwrap();
    assert_eq!(item.input.as_ref().unwrap().len(), FailedItem::INPUT_BYTES);
    // What does not fit is left out; what is too long is cut.
    for entry in [
        "",
        "[]",
        "{\"7\":{}}",
        "{\"0\":{\"announced\":null,\"later\":[1]}}",
        "{\"0\":{\"digest\":\"sha3:x\"}}",
        "{\"0\":{\"digest\":[1]}}",
        "{\"0\":{\"item\":{\"label\":\"x\"}}}",
    ] {
        ReportDetails::add_to(entry, &mut read);
    }
    let long = format!(
        "{{\"1\":{{\"item\":{{\"label\":\"{0}\"}},\"run\":{{\"host\":\"{0}\",\"later\":1}}}}}}",
        "x".repeat(9000)
    );
    ReportDetails::add_to(&long, &mut read);
    let item = read[1].failure.as_ref().unwrap().item.as_ref().unwrap();
    assert_eq!(item.label.as_ref().unwrap().len(), FailedItem::LABEL_BYTES);
    let run = read[1].failure.as_ref().unwrap().run.as_ref().unwrap();
    assert_eq!(run.host.as_ref().unwrap().len(), FailedRun::HOST_BYTES);
    assert_eq!(ReportDetails::of(&reports[..1]), None);
    let bytes: usize = reports.iter().map(ReportDetails::bytes_of).sum();
    assert!(entry.len() <= bytes && bytes <= entry.len() + 48, "{bytes}");
}

#[test]
fn report_message_has_no_unknown_field() {
    let asleep = ReportFailure {
        failure_message: Some("the scanner is asleep".into()),
        ..ReportFailure::default()
    };
    let tracking_reports = vec![
        TrackingReport::new("library:scan-12.4*", ReportStatus::Progress),
        TrackingReport::new("library:scan-12.3.17", ReportStatus::Complete),
        TrackingReport {
            retries: Some(2),
            failure: Some(asleep),
            ..TrackingReport::new("library:scan-12.3.18", ReportStatus::Retry)
        },
    ];
    let id = "e3a4c1f6-02ab-4d0c-b5a4-9b8e6d7f1122";
    let message = TaskMessage::new(
        id,
        "worker-jobtracking-in",
        &TrackingReportTask { tracking_reports },
    )
    .unwrap();
    assert_message(&correlated(message), fixture!("tracking_report"));
}

#[test]
fn reported_failure_is_the_task_data_of_the_failed_result() {
    let failure = ReportFailure {
        failure_id: Some(TaskStatus::ResultException.name().into()),
        failure_time: Some(1_793_610_007_321),
        failure_source: Some("worker-pages".into()),
        failure_message: Some("\"the page is torn\"".into()),
        item: None,
        run: None,
    };
    let report = TrackingReportTask {
        tracking_reports: vec![TrackingReport::failed("library:scan-12.3.19", failure)],
    };
    assert_body(&report, fixture!("failure_report"));
}

#[test]
fn exception_keeps_unended_tracking() {
    let message = TaskMessage {
        tracking: Some(tracking("library:scan-12.3.19", "archive-in")),
        ..answer(
            19,
            TaskStatus::ResultException,
            serde_json::to_vec("the page is torn").unwrap(),
        )
    };
    assert_message(&message, fixture!("exception"));
}

#[test]
fn invalid_task_has_a_plain_text_reason_and_keeps_the_context() {
    let message = TaskMessage {
        context: note("library/index", b"shelf 9"),
        ..answer(20, TaskStatus::InvalidTask, "no page is named")
    };
    assert_message(&message, fixture!("invalid_task"));
}

#[test]
fn copy_of_a_rejected_task_has_its_own_id_and_the_same_tracking() {
    let data = serde_json::to_vec(&ScanPage { page: 219 }).unwrap();
    let copy = TaskMessage {
        task_id: "a90de1b2-6a55-4c1c-9d3b-1f2f7a0c6e31".into(),
        to: Some("worker-pages-reject".into()),
        tracking: Some(tracking("library:scan-12.3.19", "scans-done")),
        source_info: Some(source("worker-batch", "0.1.0")),
        ..answer(19, TaskStatus::ResultException, data)
    };
    assert_message(&copy, fixture!("reject_copy"));
}

#[test]
fn rest_bodies_match_the_fixtures() {
    let torn = ReportFailure {
        failure_id: Some("RESULT_EXCEPTION".into()),
        failure_time: Some(1_793_610_007_321),
        failure_source: Some("worker-pages".into()),
        failure_message: Some("the page is torn".into()),
        item: None,
        run: None,
    };
    let job = Job {
        id: "scan-12".into(),
        name: Some("Scan shelf 12".into()),
        description: Some("every page".into()),
        external_data: Some("order 77".into()),
        create_time: NOW,
        last_update_time: NOW + 61_000,
        status: JobStatus::Failed,
        percentage_complete: 93.75,
        failures: vec![Failure::of_task("3.19", torn)],
        cut: Vec::new(),
        labels: BTreeMap::from([
            ("owner:team".into(), Some("readers".into())),
            ("plain".into(), None),
        ]),
        on_failure: OnFailure::Continue,
        completed_items: 249,
        items: Items {
            total: Some(250),
            total_is_final: true,
            done: 249,
            failed: 1,
            retrying: Some(0),
            running: Some(0),
            waiting: Some(0),
        },
        progress: Some(100.0),
        start_time: Some(NOW + 1000),
        end_time: Some(NOW + 61_000),
        items_per_second: Some(4.15),
        estimated_end_time: None,
        expiry_time: None,
        failed_tasks: 1,
        failure_counts: BTreeMap::from([("RESULT_EXCEPTION".into(), 1)]),
        failed_attempts: 0,
        next_attempt_time: None,
        incarnation: 42,
        round: None,
        expiry: contract::rest::Expiry::default(),
        waiting_for: Vec::new(),
        delay: 0,
        due_time: None,
        suspended: false,
        correlation_id: None,
        retry: None,
        blocked: None,
        task_time_limit: None,
        share: JobShare::USUAL,
        owner: None,
        outputs: None,
        notes: Vec::new(),
    };
    assert_body(&job, fixture!("rest_job"));
    let task = JobTask {
        task_classifier: Some("BatchWorker".into()),
        task_api_version: Some(1),
        task_data: Some(json!({"batchDefinition": "1-250"})),
        task_data_encoding: None,
        task_pipe: Some("worker-batch-in".into()),
        target_pipe: Some("scans-done".into()),
    };
    assert_body(
        &NewJob {
            task: Some(task),
            ..NewJob::default()
        },
        fixture!("rest_new_job"),
    );
    assert_body(
        &ErrorBody::of_message("The job identifier has not been specified."),
        fixture!("rest_error"),
    );
}
