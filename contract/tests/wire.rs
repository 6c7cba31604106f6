//! What crosses a wire, byte for byte, and how much of what others write is understood.
//!
//! The fixtures were not made by the code that they test: each is what CAF's own workers write, or expect, in this case.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

use std::collections::BTreeMap;

use contract::rest::{ErrorBody, Failure, Job, JobTask, NewJob};
use contract::{
    BatchResult, BatchTask, ContextData, DecodeError, JobStatus, JobTaskId, OnFailure,
    ReportFailure, ReportStatus, SourceInfo, TaskData, TaskMessage, TaskStatus, Tracking,
    TrackingReport, TrackingReportTask, patch_tracking, subtask_id,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TASK: &str = "7b1e0c44-90d2-4f6a-8a53-2f6f0b7d1c90";
const JOB: &str = "library:scan-12";
const STATUS_URL: &str =
    "http://jobs.internal:9410/job-service/v1/partitions/library/jobs/scan-12/status";
const NOW: i64 = 1_793_610_000_000;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name, ".json")).trim_end()
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

fn tracking(job_task_id: &str, track_to: &str) -> Tracking {
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
fn the_message_of_a_job_to_the_batch_worker_is_written_as_the_job_service_of_caf_writes_it() {
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
fn an_item_two_levels_down_has_the_same_suffix_on_both_ids() {
    assert_message(&item(), fixture!("item"));
}

#[test]
fn an_item_of_a_second_life_names_its_life_in_the_job_task_id_and_in_the_status_url() {
    let mut message = item();
    let tracking = message.tracking.as_mut().unwrap();
    let id = JobTaskId {
        incarnation: Some(42),
        ..JobTaskId::parse(tracking.job_task_id.as_deref().unwrap()).unwrap()
    };
    tracking.job_task_id = Some(id.to_string());
    tracking.status_check_url = Some(format!("{STATUS_URL}?n=42"));
    assert_message(&message, fixture!("item_of_second_life"));
}

#[test]
fn a_result_at_the_end_of_its_tracking_carries_none_and_keeps_the_context() {
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
fn the_final_answer_of_a_split_has_the_number_after_its_last_part_and_a_star() {
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
fn a_report_message_has_no_field_that_a_strict_tracker_does_not_know() {
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
fn the_failure_in_a_report_is_the_task_data_of_the_failed_answer_as_it_stands() {
    let failure = ReportFailure {
        failure_id: Some(TaskStatus::ResultException.name().into()),
        failure_time: Some(1_793_610_007_321),
        failure_source: Some("worker-pages".into()),
        failure_message: Some("\"the page is torn\"".into()),
    };
    let report = TrackingReportTask {
        tracking_reports: vec![TrackingReport::failed("library:scan-12.3.19", failure)],
    };
    assert_body(&report, fixture!("failure_report"));
}

#[test]
fn an_exception_that_is_not_yet_where_tracking_ends_keeps_its_tracking() {
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
fn an_invalid_task_says_why_in_plain_text_and_keeps_the_context() {
    let message = TaskMessage {
        context: note("library/index", b"shelf 9"),
        ..answer(20, TaskStatus::InvalidTask, "no page is named")
    };
    assert_message(&message, fixture!("invalid_task"));
}

#[test]
fn the_copy_of_a_task_that_was_given_up_has_an_id_of_its_own_and_the_tracking_of_the_task() {
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
fn the_bodies_of_the_rest_api_are_written_as_clients_know_them() {
    let torn = ReportFailure {
        failure_id: Some("RESULT_EXCEPTION".into()),
        failure_time: Some(1_793_610_007_321),
        failure_source: Some("worker-pages".into()),
        failure_message: Some("the page is torn".into()),
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
        labels: BTreeMap::from([
            ("owner:team".into(), Some("readers".into())),
            ("plain".into(), None),
        ]),
        on_failure: OnFailure::Continue,
        completed_items: 249,
        failed_tasks: 1,
        failure_counts: BTreeMap::from([("RESULT_EXCEPTION".into(), 1)]),
        incarnation: 42,
        expiry: contract::rest::Expiry::default(),
        waiting_for: Vec::new(),
        delay: 0,
        due_time: None,
        suspended: false,
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
        &ErrorBody {
            message: "The job identifier has not been specified.".into(),
        },
        fixture!("rest_error"),
    );
}

/// A body with one field more, which comes last and so counts.
fn with(field: &str) -> String {
    format!(r#"{{"taskId":"t","taskApiVersion":1,"to":"in",{field}}}"#)
}

#[test]
fn what_a_java_worker_accepts_is_accepted_with_the_same_meaning() {
    let t = || TaskMessage {
        task_id: "t".into(),
        task_api_version: 1,
        to: Some("in".into()),
        ..bare()
    };
    let tracked = |tracking| TaskMessage {
        tracking: Some(tracking),
        ..t()
    };
    let checked = |time| {
        tracked(Tracking {
            last_status_check_time: Some(time),
            ..Tracking::default()
        })
    };
    let data = |bytes: &[u8]| TaskMessage {
        task_data: Some(bytes.to_vec()),
        ..t()
    };
    let job = || Tracking {
        job_task_id: Some("p:j".into()),
        ..Tracking::default()
    };
    for (what, body, expected) in [
        (
            "missing fields",
            r#"{"taskId":"t"}"#.to_owned(),
            TaskMessage {
                task_id: "t".into(),
                ..bare()
            },
        ),
        ("an unknown field", with(r#""new":{"deep":[1,{}]}"#), t()),
        (
            "an unknown field of the tracking",
            with(r#""tracking":{"jobTaskId":"p:j","new":1}"#),
            tracked(job()),
        ),
        (
            "null for a number",
            with(r#""taskApiVersion":null"#),
            TaskMessage {
                task_api_version: 0,
                ..t()
            },
        ),
        (
            "null for the version",
            with(r#""version":null"#),
            TaskMessage { version: 0, ..t() },
        ),
        (
            "duplicate keys",
            with(r#""to":"a","to":"b""#),
            TaskMessage {
                to: Some("b".into()),
                ..t()
            },
        ),
        (
            "bytes after the end",
            format!("{} and more }}", with(r#""priority":4"#)),
            TaskMessage {
                priority: Some(4),
                ..t()
            },
        ),
        (
            "bytes that are no text after the end",
            with(r#""priority":null"#) + "\u{0}",
            t(),
        ),
        (
            "data as an array of bytes",
            with(r#""taskData":[104,-1,0]"#),
            data(b"h\xff\0"),
        ),
        (
            "data as an object (version 4)",
            with(r#""version":4,"taskData":{"a":[1,"x"]}"#),
            {
                TaskMessage {
                    version: 4,
                    ..data(br#"{"a":[1,"x"]}"#)
                }
            },
        ),
        (
            "a status as its ordinal",
            with(r#""taskStatus":4"#),
            TaskMessage {
                task_status: Some(TaskStatus::ResultException),
                ..t()
            },
        ),
        (
            "a number as text",
            with(r#""taskApiVersion":"2""#),
            TaskMessage {
                task_api_version: 2,
                ..t()
            },
        ),
        (
            "a number with a fraction",
            with(r#""taskApiVersion":2.9"#),
            TaskMessage {
                task_api_version: 2,
                ..t()
            },
        ),
        (
            "a task id that is a number",
            with(r#""taskId":17"#),
            TaskMessage {
                task_id: "17".into(),
                ..t()
            },
        ),
        ("no context", with(r#""context":null"#), t()),
        (
            "white space around",
            format!(" \r\n{}\n", with(r#""priority":null"#)),
            t(),
        ),
        (
            "an escape in a name",
            with(r#""\u0074o":"b""#),
            TaskMessage {
                to: Some("b".into()),
                ..t()
            },
        ),
        (
            "a time as text",
            with(r#""tracking":{"lastStatusCheckTime":"1793610000000"}"#),
            checked(NOW),
        ),
        (
            "an ISO 8601 time",
            with(r#""tracking":{"lastStatusCheckTime":"2026-11-02T09:00:00.500Z"}"#),
            checked(1_793_610_000_500),
        ),
        (
            "an ISO 8601 time of Java",
            with(r#""tracking":{"lastStatusCheckTime":"2026-11-02T11:00:00.500+0200"}"#),
            { checked(1_793_610_000_500) },
        ),
        // The time of the next check, which is the last one's and the interval.
        (
            "the time of the next check (2016)",
            with(r#""tracking":{"jobTaskId":"p:j","statusCheckTime":1793610000000}"#),
            {
                tracked(Tracking {
                    last_status_check_time: Some(NOW),
                    ..job()
                })
            },
        ),
        (
            "the time of the next check as text, with an interval",
            with(
                r#""tracking":{"statusCheckTime":"2026-11-02T09:00:00.000+0000","statusCheckIntervalMillis":5000}"#,
            ),
            tracked(Tracking {
                last_status_check_time: Some(NOW - 5000),
                status_check_interval_millis: 5000,
                ..Tracking::default()
            }),
        ),
        (
            "both times: the newer name counts",
            with(r#""tracking":{"statusCheckTime":5,"lastStatusCheckTime":1793610000000}"#),
            checked(NOW),
        ),
    ] {
        assert_eq!(
            TaskMessage::decode(body.as_bytes()).as_ref(),
            Ok(&expected),
            "{what}: {body}"
        );
    }
}

#[test]
fn what_a_java_worker_refuses_is_refused_and_the_field_is_named() {
    for (what, body, reason) in [
        ("nothing", String::new(), "the body is empty"),
        ("white space", " \n".into(), "the body is empty"),
        ("no JSON", "{taskId:1}".into(), "the body is not JSON: "),
        (
            "half a message",
            r#"{"taskId":"t","to":"#.into(),
            "the body is not JSON: ",
        ),
        (
            "a text",
            r#""taskId""#.into(),
            "the body is a JSON string, not an object",
        ),
        (
            "an array",
            "[]".into(),
            "the body is a JSON array, not an object",
        ),
        (
            "null",
            "null".into(),
            "the body is a JSON null, not an object",
        ),
        (
            "no task id",
            r#"{"version":3}"#.into(),
            "the field taskId is missing",
        ),
        (
            "null for the task id",
            with(r#""taskId":null"#),
            "the field taskId is missing",
        ),
        (
            "base64 for URLs",
            with(r#""taskData":"_-8=""#),
            "the field taskData is not base64: ",
        ),
        (
            "base64 without padding",
            with(r#""taskData":"YQ""#),
            "the field taskData is not base64: ",
        ),
        (
            "base64 with a line break",
            with(r#""taskData":"YW\nJj""#),
            "the field taskData is not base64: ",
        ),
        (
            "bytes that are none",
            with(r#""taskData":[256]"#),
            "the field taskData is an array with something other than bytes",
        ),
        (
            "context that is no base64",
            with(r#""context":{"a":"%"}"#),
            "the field context is not base64: ",
        ),
        (
            "a status in lower case",
            with(r#""taskStatus":"new_task""#),
            "the field taskStatus is \"new_task\", which is no task status",
        ),
        (
            "an ordinal of no status",
            with(r#""taskStatus":5"#),
            "the field taskStatus is 5, which is no task status",
        ),
        (
            "a number that is too large",
            with(r#""priority":3000000000"#),
            "the field priority is 3000000000, which is too large",
        ),
        (
            "tracking that is a text",
            with(r#""tracking":"p:j""#),
            "the field tracking is a JSON string, not an object",
        ),
        (
            "a pipe that is an object",
            with(r#""to":{}"#),
            "the field to is a JSON object, not text",
        ),
        (
            "nesting without end",
            "[".repeat(100_000),
            "the body is not JSON: ",
        ),
        (
            "nesting without end in an unknown field",
            with(&format!(r#""x":{}"#, "[".repeat(100_000))),
            "the body is not JSON: ",
        ),
    ] {
        let error = TaskMessage::decode(body.as_bytes())
            .expect_err(what)
            .to_string();
        assert!(error.starts_with(reason), "{what}: {error}");
    }
}

#[test]
fn other_tracking_leaves_every_other_byte_of_a_message_as_it_is() {
    let body = r#" {"new" : {"b":1.0,"a":1e5},"taskId":"t\u0041", "tracking":{"jobTaskId":"p:j","new":1},"to":"in" , "n":12345678901234567890123}tail"#;
    let tracking = tracking("p:j", "out");
    let written = serde_json::to_string(&tracking).unwrap();
    let patched =
        String::from_utf8(patch_tracking(body.as_bytes(), Some(&tracking)).unwrap()).unwrap();
    // The white space between fields is no value of anybody.
    assert_eq!(
        patched,
        format!(
            r#"{{"new":{{"b":1.0,"a":1e5}},"taskId":"t\u0041","tracking":{written},"to":"in","n":12345678901234567890123}}"#
        )
    );
    let twice = r#"{"tracking":null,"taskId":"t","tracking":{}}"#;
    assert_eq!(
        patch_tracking(twice.as_bytes(), None).unwrap(),
        br#"{"tracking":null,"taskId":"t"}"#
    );
    assert_eq!(
        patch_tracking(br#"{"taskId":"t"}"#, None).unwrap(),
        br#"{"taskId":"t","tracking":null}"#
    );
    assert!(matches!(
        patch_tracking(b"[]", None),
        Err(DecodeError::NotJson(_))
    ));
}

fn bare() -> TaskMessage {
    TaskMessage {
        version: 3,
        task_id: String::new(),
        task_classifier: None,
        task_api_version: 0,
        task_data: None,
        task_status: None,
        context: BTreeMap::new(),
        to: None,
        tracking: None,
        source_info: None,
        priority: None,
        correlation_id: None,
    }
}

prop_compose! {
    fn any_tracking()(
        job_task_id in any::<Option<String>>(),
        last_status_check_time in any::<Option<i64>>(),
        status_check_interval_millis in any::<i64>(),
        status_check_url in any::<Option<String>>(),
        tracking_pipe in any::<Option<String>>(),
        track_to in any::<Option<String>>(),
    ) -> Tracking {
        Tracking { job_task_id, last_status_check_time, status_check_interval_millis, status_check_url, tracking_pipe, track_to }
    }
}

prop_compose! {
    fn any_message()(
        ids in any::<(String, Option<String>, Option<String>, Option<String>)>(),
        numbers in any::<(i32, i32, Option<i32>)>(),
        task_data in any::<Option<Vec<u8>>>(),
        task_status in proptest::option::of(proptest::sample::select(TaskStatus::ALL.to_vec())),
        context in proptest::collection::btree_map(any::<String>(), any::<Vec<u8>>().prop_map(ContextData), 0..3),
        tracking in proptest::option::of(any_tracking()),
        source in any::<Option<(Option<String>, Option<String>)>>(),
    ) -> TaskMessage {
        let (task_id, task_classifier, to, correlation_id) = ids;
        let (version, task_api_version, priority) = numbers;
        let source_info = source.map(|(name, version)| SourceInfo { name, version });
        TaskMessage {
            version, task_id, task_classifier, task_api_version, task_data, task_status, context, to, tracking, source_info, priority,
            correlation_id,
        }
    }
}

/// JSON that looks like a message, with anything anywhere.
fn any_json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        proptest::sample::select(vec![
            "NEW_TASK",
            "YQ==",
            "2026-11-02T07:40:00Z",
            "17",
            "p:j.1*",
            "-9223372036854775808"
        ])
        .prop_map(Value::from),
    ];
    let name = proptest::sample::select(
        "version taskId taskClassifier taskApiVersion taskData taskStatus context to tracking sourceInfo priority correlationId \
         jobTaskId lastStatusCheckTime statusCheckTime statusCheckIntervalMillis statusCheckUrl trackingPipe trackTo name other"
            .split_whitespace()
            .collect::<Vec<_>>(),
    );
    scalar.prop_recursive(4, 64, 12, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..12)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_message_that_was_written_is_read_as_it_was(message in any_message()) {
        let body = message.encode();
        prop_assert_eq!(TaskMessage::decode(&body), Ok(message.clone()));
        prop_assert_eq!(patch_tracking(&body, message.tracking.as_ref()).unwrap(), body);
    }

    #[test]
    fn no_bytes_panic(body in any::<Vec<u8>>()) {
        let _ = TaskMessage::decode(&body);
        let _ = patch_tracking(&body, Some(&Tracking::default()));
    }

    #[test]
    fn no_json_panics_and_what_is_understood_can_be_patched(value in any_json(), tail in any::<Vec<u8>>()) {
        let mut body = serde_json::to_vec(&value).unwrap();
        body.extend(tail);
        if let Ok(message) = TaskMessage::decode(&body) {
            let tracking = Tracking { track_to: Some("out".into()), ..Tracking::default() };
            let patched = TaskMessage::decode(&patch_tracking(&body, Some(&tracking)).unwrap());
            prop_assert_eq!(patched, Ok(TaskMessage { tracking: Some(tracking), ..message }));
        }
    }

    #[test]
    fn cutting_a_message_short_never_panics(message in any_message(), part in 0.0f64..1.0) {
        let body = message.encode();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place within the body")]
        let cut = &body[..(body.len() as f64 * part) as usize];
        prop_assert!(TaskMessage::decode(cut).is_err());
    }
}
