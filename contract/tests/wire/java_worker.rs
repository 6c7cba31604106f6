//! What CAF's Java workers accept and refuse.

use std::collections::BTreeMap;

use contract::{DecodeError, TaskMessage, TaskStatus, Tracking, patch_tracking};

use crate::messages::{NOW, tracking};

/// A body with one field more, which comes last and so counts.
fn with(field: &str) -> String {
    format!(r#"{{"taskId":"t","taskApiVersion":1,"to":"in",{field}}}"#)
}

#[test]
fn accepts_what_a_java_worker_accepts() {
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
fn refuses_what_a_java_worker_refuses_and_names_the_field() {
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
            "the field taskData is an array with an element that is not a byte",
        ),
        (
            "context that is no base64",
            with(r#""context":{"a":"%"}"#),
            "the field context is not base64: ",
        ),
        (
            "a status in lower case",
            with(r#""taskStatus":"new_task""#),
            "the field taskStatus is \"new_task\", which is not a task status",
        ),
        (
            "an ordinal of no status",
            with(r#""taskStatus":5"#),
            "the field taskStatus is 5, which is not a task status",
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
fn replacing_tracking_keeps_every_other_byte() {
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
