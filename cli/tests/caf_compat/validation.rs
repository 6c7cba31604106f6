//! The validation of new jobs: every check with its text, in CAF's order, and the values that are
//! accepted. Requests that crash CAF, or fail in its database with status 500, are refused with
//! 400. The task data reaches the worker byte for byte.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, Service, Store};

on_both_stores![
    meaningless_fields_and_values_at_the_limit_are_accepted,
    task_data_reaches_the_worker_byte_for_byte,
];

on_one_store![
    reports_the_flaw_that_caf_checks_first,
    each_invalid_field_is_reported_in_cafs_words,
    requests_that_crash_caf_are_refused,
    body_that_is_not_a_job_is_refused,
];

const LABEL: &str = "A provided label name contains an invalid character, only alphanumeric, '-' and '_' are supported";

const DATA_TYPE: &str =
    "The taskData is null or empty, please ensure taskData is populated and of a suitable datatype";

const OBJECT_ENCODED: &str = "An encoding type has been found in the task along with taskDataObject. Remove taskDataEncoding and try again";

/// Returns the job with another value at a JSON pointer, or without that field if the value is
/// [`absent`].
fn with(job: &Value, pointer: &str, value: Value) -> Value {
    let mut job = job.clone();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = job.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value == absent() {
        parent.remove(field)
    } else {
        parent.insert(field.to_owned(), value)
    };
    job
}

/// The value that stands for a missing field.
fn absent() -> Value {
    json!("<absent>")
}

async fn put_text(service: &Service, job: &str, body: Option<&str>) -> Answer {
    service
        .call(
            Method::PUT,
            &service.path(&format!("/jobs/{job}")),
            body,
            &[],
        )
        .await
}

/// Checks a table of invalid jobs: each is refused with exactly this text, and none is created.
async fn are_refused(service: &Service, invalid: Vec<(&str, Value, &str)>) {
    let valid = service.new_job("in");
    for (pointer, value, text) in invalid {
        let answer = service
            .put("j", &with(&valid, pointer, value.clone()))
            .await;
        assert_eq!(
            (answer.status, answer.json()),
            (400, json!({"message": text})),
            "{pointer} is {value}"
        );
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{pointer} is {value}"
        );
    }
    assert_eq!(service.get("/jobs").await.is(200).json(), json!([]));
}

async fn reports_the_flaw_that_caf_checks_first(store: Store) {
    let service = Service::start(store).await;
    let mut body = json!({
        "type": "none", "name": "n".repeat(256), "labels": {"a b": "v".repeat(256)}, "prerequisiteJobIds": ["a:b"],
        "task": {"taskClassifier": "", "taskApiVersion": 0, "targetPipe": "", "taskPipe": "", "taskData": ""}
    });
    let path =
        |partition: &str, job: &str| format!("/job-service/v1/partitions/{partition}/jobs/{job}");
    let put = async |path: String, body: &Value| {
        service
            .call(Method::PUT, &path, Some(&body.to_string()), &[])
            .await
    };
    // The request has many errors. Each round corrects the one that was reported, and the next one
    // is reported.
    put(path("p*", "j*"), &body).await.refuses(
        400,
        "The partition ID contains one or more invalid characters.",
    );
    put(path("p", "j*"), &body).await.refuses(
        400,
        "The job identifier contains one or more invalid characters.",
    );
    let valid = path(&service.partition, "j");
    for (text, pointer, corrected) in [
        (
            "Specifying both typeId and task properties is not allowed.",
            "/type",
            absent(),
        ),
        (
            "The task classifier has not been specified.",
            "/task/taskClassifier",
            json!("W"),
        ),
        (
            "The task api version has not been specified.",
            "/task/taskApiVersion",
            json!(1),
        ),
        (
            "The target queue name has not been specified.",
            "/task/targetPipe",
            json!(null),
        ),
        (
            "The task queue name has not been specified.",
            "/task/taskPipe",
            json!(service.pipe("in")),
        ),
        (LABEL, "/labels", json!({"a": "v".repeat(256)})),
        ("The task data has not been specified.", "/task", {
            let task =
                json!({"taskClassifier": "W", "taskApiVersion": 1, "taskPipe": service.pipe("in")});
            with(
                &with(&json!({"task": task}), "/task/taskData", json!({})),
                "/task/taskDataEncoding",
                json!("utf8"),
            )["task"]
                .clone()
        }),
        (OBJECT_ENCODED, "/task/taskData", json!(1)),
        (DATA_TYPE, "/task/taskData", json!("data")),
        // The checks that CAF leaves to its database are last.
        ("The name is longer than 255 characters.", "/name", absent()),
        (
            "The value of the label 'a' is longer than 255 characters.",
            "/labels",
            absent(),
        ),
        (
            "The prerequisite job id 'a:b' is no job id: The job identifier contains one or more invalid characters.",
            "/prerequisiteJobIds",
            absent(),
        ),
    ] {
        put(valid.clone(), &body).await.refuses(400, text);
        body = with(&body, pointer, corrected);
    }
    put(valid, &body).await.is(201);
}

async fn each_invalid_field_is_reported_in_cafs_words(store: Store) {
    let service = Service::start(store).await;
    let mut invalid = Vec::new();
    for (pointer, text, values) in [
        (
            "/task/taskClassifier",
            "The task classifier has not been specified.",
            vec![absent(), json!(null), json!("")],
        ),
        (
            "/task/taskApiVersion",
            "The task api version has not been specified.",
            vec![json!(0)],
        ),
        (
            "/task/targetPipe",
            "The target queue name has not been specified.",
            vec![json!("")],
        ),
        (
            "/task/taskPipe",
            "The task queue name has not been specified.",
            vec![absent(), json!(null), json!("")],
        ),
        (
            "/labels",
            LABEL,
            ["", "a b", "a.b", "ä", "a\n", "*"]
                .map(|key| json!({"valid": "x", key: "y"}))
                .to_vec(),
        ),
        (
            "/task/taskData",
            "The task data has not been specified.",
            vec![absent(), json!(null), json!("")],
        ),
        (
            "/task/taskData",
            DATA_TYPE,
            vec![
                json!(0),
                json!(1.5),
                json!(true),
                json!([]),
                json!(["data"]),
                json!([{}]),
            ],
        ),
        (
            "/task/taskDataEncoding",
            OBJECT_ENCODED,
            vec![json!("utf8"), json!("base64")],
        ),
        (
            "/type",
            "Specifying both typeId and task properties is not allowed.",
            vec![json!("any"), json!("")],
        ),
    ] {
        invalid.extend(values.into_iter().map(|value| (pointer, value, text)));
    }
    are_refused(&service, invalid).await;
    put_text(&service, "j", Some(r#"{"type": "none"}"#))
        .await
        .refuses(400, "Unknown job type ID: none");
}

async fn requests_that_crash_caf_are_refused(store: Store) {
    const TASK: &str = "The task has not been specified.";
    const API_VERSION: &str = "The task api version has not been specified.";
    let service = Service::start(store).await;
    let long = "ü".repeat(256);
    let long_key = "k".repeat(256);
    let key_text = format!("The label name '{long_key}' is longer than 255 characters.");
    let long_id = "p".repeat(49);
    let id_text = format!(
        "The prerequisite job id '{long_id}' is no job id: The job identifier is longer than 48 characters."
    );
    let long_entry = format!("a,{}", "x".repeat(127));
    let entry_text =
        format!("The prerequisite job id '{long_entry}' is longer than 128 characters.");
    let same = service.new_job("in")["task"]["taskPipe"].clone();
    let same_text = format!(
        "The taskPipe and the targetPipe are both {}: tracking would end before the first task begins, and the job would never complete. \
         Name another targetPipe, or none.",
        same.to_string().replace('"', "'")
    );
    are_refused(
        &service,
        vec![
            ("/task", absent(), TASK),
            ("/task", json!(null), TASK),
            ("/task/taskApiVersion", absent(), API_VERSION),
            ("/task/taskApiVersion", json!(null), API_VERSION),
            (
                "/task/taskApiVersion",
                json!(-1),
                "The task api version must be 1 or more, but is -1.",
            ),
            (
                "/name",
                json!(long),
                "The name is longer than 255 characters.",
            ),
            (
                "/labels",
                json!({"a": "", "k": long}),
                "The value of the label 'k' is longer than 255 characters.",
            ),
            ("/labels", json!({long_key.as_str(): ""}), &key_text),
            (
                "/task/taskPipe",
                json!("q".repeat(256)),
                "The taskPipe is longer than 255 bytes.",
            ),
            (
                "/task/targetPipe",
                json!("q".repeat(256)),
                "The targetPipe is longer than 255 bytes.",
            ),
            // The only character that PostgreSQL does not accept in a text.
            (
                "/name",
                json!("a\0"),
                "The field 'name' contains the character U+0000.",
            ),
            (
                "/description",
                json!("\0"),
                "The field 'description' contains the character U+0000.",
            ),
            (
                "/externalData",
                json!("\0"),
                "The field 'externalData' contains the character U+0000.",
            ),
            (
                "/labels",
                json!({"k": "\0"}),
                "The field 'labels' contains the character U+0000.",
            ),
            ("/prerequisiteJobIds", json!(["a", long_id]), &id_text),
            ("/prerequisiteJobIds", json!([long_entry]), &entry_text),
            // CAF sends such a task without tracking, so its job waits forever.
            ("/task/targetPipe", same, &same_text),
        ],
    )
    .await;
}

async fn body_that_is_not_a_job_is_refused(store: Store) {
    let service = Service::start(store).await;
    let task = service.new_job("in")["task"].clone();
    let with_field = |field: &str| format!("{{\"task\": {task}, {field}}}");
    let absent = [None, Some(String::new()), Some(" \n".into())];
    let malformed = [
        "{",
        "{\"name\": }",
        "{\"name\": \"a\"",
        "{} {}",
        "name=a",
        "{'name': 'a'}",
        "\u{feff}",
    ]
    .map(str::to_owned);
    let others = [
        "null",
        "1",
        "true",
        "\"job\"",
        "[]",
        "[{}]",
        "{\"task\": 1}",
        "{\"task\": []}",
        "{\"task\": \"W\"}",
    ]
    .map(str::to_owned);
    let mistyped = [
        r#""name": {}"#,
        r#""description": []"#,
        r#""labels": []"#,
        r#""labels": {"a": {}}"#,
        r#""prerequisiteJobIds": "a""#,
        r#""prerequisiteJobIds": [{}]"#,
        r#""delay": "soon""#,
        r#""delay": 2147483648"#,
        r#""type": {}"#,
    ]
    .map(with_field);
    let in_task = [
        r#""taskApiVersion": "one""#,
        r#""taskApiVersion": 4294967297"#,
        r#""taskDataEncoding": "utf16""#,
        r#""taskPipe": {}"#,
    ]
    .map(|field| format!("{{\"task\": {{{field}, {}}}", &task.to_string()[1..]));
    let said = malformed
        .into_iter()
        .chain(others)
        .chain(mistyped)
        .chain(in_task)
        .map(Some);
    for body in absent.into_iter().chain(said) {
        let answer = put_text(&service, "j", body.as_deref()).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (400, Some("application/json")),
            "{body:?}: {}",
            answer.body
        );
        assert!(
            answer.json()["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{body:?}: {}",
            answer.body
        );
    }
    assert_eq!(service.get("/jobs").await.is(200).json(), json!([]));
}

async fn meaningless_fields_and_values_at_the_limit_are_accepted(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let valid = service.new_job("in");
    let (longest, key) = ("ü".repeat(255), "k".repeat(255));
    for (n, (pointer, value, field, expected)) in [
        ("/delay", json!(null), "name", json!(null)),
        ("/delay", json!(-5), "name", json!(null)),
        ("/labels", json!(null), "labels", json!({})),
        ("/labels", json!({}), "labels", json!({})),
        (
            "/labels",
            json!({"a:b": null, "A-b_1": ""}),
            "labels",
            json!({"a:b": null, "A-b_1": ""}),
        ),
        (
            "/labels",
            json!({key.as_str(): longest}),
            "labels",
            json!({key.as_str(): longest}),
        ),
        ("/name", json!(longest), "name", json!(longest)),
        ("/name", json!(null), "name", json!(null)),
        ("/name", json!(""), "name", json!("")),
        (
            "/description",
            json!("d".repeat(100_000)),
            "description",
            json!("d".repeat(100_000)),
        ),
        (
            "/externalData",
            json!("{\"a\": \"\u{1f980}\"}"),
            "externalData",
            json!("{\"a\": \"\u{1f980}\"}"),
        ),
        ("/prerequisiteJobIds", json!(null), "name", json!(null)),
        (
            "/prerequisiteJobIds",
            json!([null, "", " "]),
            "name",
            json!(null),
        ),
        ("/type", json!(null), "name", json!(null)),
        ("/parameters", json!({"a": 1}), "name", json!(null)),
        ("/unknown", json!({"a": 1}), "name", json!(null)),
        ("/task/unknown", json!([]), "name", json!(null)),
        ("/task/taskDataEncoding", json!(null), "name", json!(null)),
        ("/task/targetPipe", json!(null), "name", json!(null)),
        ("/task/targetPipe", absent(), "name", json!(null)),
        ("/task/taskApiVersion", json!(i32::MAX), "name", json!(null)),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("j{n}");
        let answer = service
            .put(&id, &with(&valid, pointer, value.clone()))
            .await;
        assert_eq!(answer.status, 201, "{pointer} is {value}: {}", answer.body);
        assert_eq!(
            service.job(&id).await[field],
            expected,
            "{pointer} is {value}"
        );
        assert_eq!(workers.next_jobs(1).await, [id], "{pointer} is {value}");
    }
}

async fn task_data_reaches_the_worker_byte_for_byte(store: Store) {
    let service = Service::start(store).await;
    let mut workers = service.consume("in").await;
    let ordered =
        r#"{"z":1,"a":{"y":[1,2.50,-3e7,12345678901234567890123],"b":null},"ü":"\"\\ \u0000 é"}"#;
    let spaced = "{ \"z\" : \" a  b \" ,\n\t\"a\" : [ ] }";
    for (n, (data, encoding, bytes)) in [
        (json!("plain").to_string(), None, b"plain".to_vec()),
        (
            json!("grün 日本 \u{1f980}\0\n\"").to_string(),
            None,
            "grün 日本 \u{1f980}\0\n\"".into(),
        ),
        (json!("grün").to_string(), Some("utf8"), "grün".into()),
        (
            json!("{\"data\" : \"as text\"}").to_string(),
            Some("utf8"),
            b"{\"data\" : \"as text\"}".to_vec(),
        ),
        // These bytes are not valid UTF-8; CAF replaces them with question marks.
        (
            json!("/+8AAYB/").to_string(),
            Some("base64"),
            vec![0xff, 0xef, 0x00, 0x01, 0x80, 0x7f],
        ),
        // CAF accepts both base64 alphabets, missing padding and line breaks.
        (
            json!("_-8AAYB_/w==").to_string(),
            Some("base64"),
            vec![0xff, 0xef, 0x00, 0x01, 0x80, 0x7f, 0xff],
        ),
        (
            json!("/+8\r\nAAQ").to_string(),
            Some("base64"),
            vec![0xff, 0xef, 0x00, 0x01],
        ),
        // An object is sent as JSON without white space, with the original order of fields and
        // notation of numbers.
        (ordered.to_owned(), None, ordered.into()),
        (
            spaced.to_owned(),
            None,
            b"{\"z\":\" a  b \",\"a\":[]}".to_vec(),
        ),
        ("{}".to_owned(), None, b"{}".to_vec()),
        (
            json!("x".repeat(1_000_000)).to_string(),
            None,
            vec![b'x'; 1_000_000],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let encoding = encoding
            .map(|encoding| format!("\"taskDataEncoding\": \"{encoding}\", "))
            .unwrap_or_default();
        let pipe = service.pipe("in");
        let body = format!(
            r#"{{"task": {{{encoding}"taskClassifier": "W", "taskApiVersion": 1, "taskPipe": "{pipe}", "taskData": {data}}}}}"#
        );
        put_text(&service, &format!("j{n}"), Some(&body))
            .await
            .is(201);
        let (message, _) = workers.next().await;
        let sent = STANDARD
            .decode(message["taskData"].as_str().unwrap())
            .unwrap();
        assert!(
            sent == bytes,
            "{data:.100} was sent as {:.200}",
            String::from_utf8_lossy(&sent)
        );
    }
}
