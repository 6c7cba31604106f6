use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::ServiceOptions;

fn validate(body: &str) -> Result<ValidJob, String> {
    let reserved = ServiceOptions::default().all_reserved_pipes();
    let ids = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
    let validated = RawRequest::parse(body.as_bytes()).and_then(|raw| {
        raw.job_type()?;
        raw.validate(ids.0, ids.1, None, &reserved)
    });
    validated.map_err(|error| error.to_string())
}

fn job() -> Value {
    json!({
        "name": "n", "labels": {"a:b": "1", "c": null},
        "task": {"taskClassifier": "W", "taskApiVersion": 1, "taskData": "data", "taskPipe": "in", "targetPipe": "out"}
    })
}

/// Returns a valid job in which one member, of the job or of its task, has another value.
fn with(member: &str, value: Value) -> String {
    let mut job = job();
    match member.strip_prefix("task.") {
        Some(member) => job["task"][member] = value,
        None => job[member] = value,
    }
    job.to_string()
}

fn tolerating(tolerance: &Value) -> String {
    with("onFailure", json!({"continue": tolerance}))
}

fn hash(body: &str) -> [u8; 32] {
    validate(body).unwrap().request.content_hash
}

#[test]
fn every_invalid_request_is_rejected_with_its_own_text() {
    let long = "x".repeat(256);
    for (body, text) in [
        (with("type", json!("t")), "Specifying both typeId and task properties is not allowed."),
        ("{}".into(), "The task has not been specified."),
        (with("task", json!(null)), "The task has not been specified."),
        (with("task.taskClassifier", json!("")), "The task classifier has not been specified."),
        (with("task.taskClassifier", json!(null)), "The task classifier has not been specified."),
        (with("task.taskApiVersion", json!(0)), "The task api version has not been specified."),
        (with("task.taskApiVersion", json!(null)), "The task api version has not been specified."),
        (with("task.taskApiVersion", json!(-1)), "The task api version must be 1 or more, but is -1."),
        (with("task.targetPipe", json!("")), "The target queue name has not been specified."),
        (with("task.taskPipe", json!("")), "The task queue name has not been specified."),
        (with("task.taskPipe", json!(null)), "The task queue name has not been specified."),
        (
            with("labels", json!({"a b": "1"})),
            "A provided label name contains an invalid character, only alphanumeric, '-' and '_' are supported",
        ),
        (
            with("labels", json!({"": "1"})),
            "A provided label name contains an invalid character, only alphanumeric, '-' and '_' are supported",
        ),
        (with("task.taskData", json!(null)), "The task data has not been specified."),
        (with("task.taskData", json!("")), "The task data has not been specified."),
        (
            json!({"task": {"taskClassifier": "W", "taskApiVersion": 1, "taskData": {}, "taskDataEncoding": "utf8", "taskPipe": "in"}})
                .to_string(),
            "An encoding type has been found in the task along with taskDataObject. Remove taskDataEncoding and try again",
        ),
        (
            with("task.taskData", json!(7)),
            "The taskData is null or empty, please ensure taskData is populated and of a suitable datatype",
        ),
        (
            with("task.taskData", json!([])),
            "The taskData is null or empty, please ensure taskData is populated and of a suitable datatype",
        ),
        (
            with("task.taskDataEncoding", json!("base64")).replace("data\"", "d%\""),
            "The taskData is not base64: Invalid symbol 37, offset 1.",
        ),
        (with("task.taskPipe", json!(long)), "The taskPipe is longer than 255 bytes."),
        (with("task.targetPipe", json!("a\u{0}")), "The targetPipe contains a control character."),
        (
            with("task.taskPipe", json!("worker-batch-in.delay.400")),
            "The taskPipe is reserved: no task may be addressed to the pipe 'worker-batch-in.delay.400', which by its name",
        ),
        (with("task.taskPipe", json!("Worker-JobTracking-in")), "The taskPipe is reserved: no task may be addressed to the pipe"),
        (with("task.taskPipe", json!("worker-paused-in")), "The taskPipe is reserved: "),
        (with("task.taskPipe", json!("worker-paused-in.invalid")), "The taskPipe is reserved: "),
        (with("task.targetPipe", json!("out.suspects")), "The targetPipe is reserved: "),
        (with("name", json!(long)), "The name is longer than 255 characters."),
        (with("labels", json!({"k": long})), "The value of the label 'k' is longer than 255 characters."),
        (with("description", json!("\u{0}")), "The field 'description' contains the character U+0000."),
        (with("labels", json!({"k": "\u{0}"})), "The field 'labels' contains the character U+0000."),
        (with("prerequisiteJobIds", json!(["a", "b*"])), "The prerequisite job id 'b*' is no job id: The job identifier contains"),
        (with("delay", json!(2_147_483_648_i64)), "The body is not a job: invalid value: integer `2147483648`, expected i32"),
        (" ".into(), "The body has not been specified. Send the job as a JSON object."),
        ("{\"name\":\n x}".into(), "The body is not valid JSON: expected value at line 2 column 2"),
        ("{\"name\":".into(), "The body is not valid JSON: EOF while parsing a value at line 1 column 8"),
        ("[1]".into(), "The body is not a job: invalid type: sequence, expected a map at line 1 column 0"),
        ("{\"task\":[]}".into(), "The task is not an object: invalid type: sequence, expected a map at line 1 column 0"),
        (with("delay", json!("soon")).replace(' ', ""), "The body is not a job: invalid type: string \"soon\", expected i32"),
        (with("onFailure", json!("explode")), "The body is not a job: unknown variant `explode`, expected `stop` or `continue`"),
        (with("onFailure", json!(7)), "The body is not a job: invalid type: integer `7`, expected `stop`, `continue` or {\"continue\": "),
        (with("onFailure", json!({})), "The body is not a job: onFailure: missing field `continue`"),
        (with("onFailure", json!({"stop": {}})), "The body is not a job: onFailure: unknown field `stop`, expected `continue`"),
        (tolerating(&json!({})), "The body is not a job: onFailure: missing field `tolerate`"),
        (
            tolerating(&json!({"tolerates": 1})),
            "The body is not a job: onFailure: unknown field `tolerates`, expected `tolerate` or `above`",
        ),
        (
            tolerating(&json!({"tolerate": 1, "above": "explode"})),
            "The body is not a job: onFailure: unknown variant `explode`, expected `stop` or `continue`",
        ),
        (
            tolerating(&json!({"tolerate": -1})),
            "The body is not a job: onFailure: invalid type: integer `-1`, expected a number of items, such as 100",
        ),
        (tolerating(&json!({"tolerate": 2.5})), "The body is not a job: onFailure: invalid type: floating point `2.5`, expected a number"),
        (tolerating(&json!({"tolerate": 1e30})), "The body is not a job: onFailure: invalid type: floating point"),
        (
            tolerating(&json!({"tolerate": u64::MAX})),
            "The body is not a job: onFailure: invalid value: integer `18446744073709551615`, expected a number of items",
        ),
        (tolerating(&json!({"tolerate": "abc"})), "The body is not a job: onFailure: invalid value: string \"abc\", expected a number"),
        (tolerating(&json!({"tolerate": "100"})), "The body is not a job: onFailure: invalid value: string \"100\", expected a number"),
        (tolerating(&json!({"tolerate": "NaN%"})), "The body is not a job: onFailure: invalid value: string \"NaN%\", expected"),
        (tolerating(&json!({"tolerate": "100.1%"})), "The body is not a job: onFailure: invalid value: string \"100.1%\", expected"),
        (tolerating(&json!({"tolerate": "-2%"})), "The body is not a job: onFailure: invalid value: string \"-2%\", expected"),
        (tolerating(&json!({"tolerate": null})), "The body is not a job: onFailure: invalid type: null, expected a number of items"),
    ] {
        let refusal = validate(&body).expect_err(&body);
        assert!(refusal.starts_with(text), "{body}: {refusal}");
    }
}

#[test]
fn reports_the_flaw_that_caf_checks_first() {
    let body = json!({"labels": {" ": ""}, "delay": 1, "task": {"taskClassifier": "W", "taskApiVersion": 1, "targetPipe": ""}});
    assert_eq!(
        validate(&body.to_string()).unwrap_err(),
        "The target queue name has not been specified."
    );
}

#[test]
fn equal_task_and_target_pipes_are_rejected_whatever_their_case() {
    let refusal = validate(&with("task.targetPipe", json!("IN"))).unwrap_err();
    assert!(
        refusal.starts_with("The taskPipe and the targetPipe are both 'in'"),
        "{refusal}"
    );
}

#[test]
fn empty_null_and_unknown_fields_are_accepted_and_do_not_change_the_hash() {
    for (member, value) in [
        ("prerequisiteJobIds", json!([])),
        ("prerequisiteJobIds", json!([null, " "])),
        ("prerequisiteJobIds", json!(null)),
        ("delay", json!(0)),
        ("delay", json!(null)),
        ("delay", json!(-5)),
        ("somethingElse", json!({"a": 1})),
    ] {
        assert_eq!(
            hash(&with(member, value.clone())),
            hash(&job().to_string()),
            "{member} = {value}"
        );
    }
    assert!(
        validate(&with("labels", json!(null)))
            .unwrap()
            .request
            .labels
            .is_empty()
    );
    assert_eq!(
        validate(&with("task.targetPipe", json!(null)))
            .unwrap()
            .task
            .target_pipe,
        None
    );
}

#[test]
fn an_object_as_task_data_is_sent_as_written_without_whitespace() {
    let data = r#"{ "z" : 1.10, "a": [123456789012345678901234567890 , "q \" { \\" ],
        "ü\u00fc": {}}"#;
    let body = format!(
        r#"{{"task": {{"taskClassifier": "W", "taskApiVersion": 1, "taskPipe": "in", "taskData": {data}}}}}"#
    );
    let expected = r#"{"z":1.10,"a":[123456789012345678901234567890,"q \" { \\"],"ü\u00fc":{}}"#;
    assert_eq!(
        String::from_utf8(validate(&body).unwrap().task.data).unwrap(),
        expected
    );
}

#[test]
fn text_task_data_is_utf8_or_decoded_base64() {
    for (text, encoding, bytes) in [
        ("grün", None, "grün".as_bytes()),
        ("grün", Some("utf8"), "grün".as_bytes()),
        ("/+8AAQ==", Some("base64"), &[0xff, 0xef, 0, 1]),
        ("_-8AAQ", Some("base64"), &[0xff, 0xef, 0, 1]),
        ("/+8A\r\nAQ==\n", Some("base64"), &[0xff, 0xef, 0, 1]),
    ] {
        let mut body = job();
        body["task"]["taskData"] = json!(text);
        body["task"]["taskDataEncoding"] = json!(encoding);
        assert_eq!(
            validate(&body.to_string()).unwrap().task.data,
            bytes,
            "{text} as {encoding:?}"
        );
    }
}

#[test]
fn the_hash_depends_on_the_meaning_and_not_on_the_notation() {
    let reordered = r#"{"task": {"targetPipe": "out", "taskPipe": "in", "taskData": "data", "taskApiVersion": 1, "taskClassifier": "W"},
        "unknown": 1, "onFailure": "stop", "labels": {"c": null, "a:b": "1"}, "name": "n"}"#;
    assert_eq!(hash(reordered), hash(&job().to_string()));
    for (member, value) in [
        ("name", json!("m")),
        ("description", json!("")),
        ("externalData", json!("x")),
        ("onFailure", json!("continue")),
        ("labels", json!({"a:b": "1"})),
        ("task.taskData", json!("other")),
        ("task.taskData", json!({"a": 1})),
        ("task.taskPipe", json!("in2")),
        ("delay", json!(5)),
        ("prerequisiteJobIds", json!(["a"])),
        ("task.targetPipe", json!(null)),
    ] {
        assert_ne!(
            hash(&with(member, value.clone())),
            hash(&job().to_string()),
            "{member} = {value}"
        );
    }
}

#[test]
fn prerequisites_are_hashed_by_meaning() {
    let with_ids = |ids: Value| hash(&with("prerequisiteJobIds", ids));
    assert_eq!(
        with_ids(json!(["b", null, "a,pc", "a", " "])),
        with_ids(json!(["a,x,pc", "b,y"]))
    );
    assert_ne!(with_ids(json!(["a", "b"])), with_ids(json!(["a,pc", "b"])));
}

#[test]
fn the_hash_is_the_same_in_every_build_and_version() {
    let canonical = concat!(
        r#"{"labels":{"a:b":"1","c":null},"name":"n","onFailure":"stop","task":{"targetPipe":"out","taskApiVersion":1,"#,
        r#""taskClassifier":"W","taskData":"data","taskPipe":"in"}}"#
    );
    assert_eq!(
        hash(&job().to_string()),
        <[u8; 32]>::from(Sha256::digest(canonical))
    );
}

#[test]
fn time_limit_of_tasks_goes_into_a_header_and_belongs_to_what_the_request_means() {
    let limited = with("taskTimeLimit", json!(90));
    let headers = validate(&limited).unwrap().request.headers;
    let expected = (
        TASK_TIME_LIMIT_HEADER.to_owned(),
        Header::Text("90".to_owned()),
    );
    assert_eq!(headers.into_iter().collect::<Vec<_>>(), [expected]);
    assert_ne!(hash(&limited), hash(&job().to_string()));
    assert_eq!(
        hash(&with("taskTimeLimit", json!(null))),
        hash(&job().to_string())
    );
    let refused = validate(&with("taskTimeLimit", json!(0))).unwrap_err();
    assert!(
        refused.starts_with("The body is not a job: taskTimeLimit: 0 is not a time limit for tasks; expected whole seconds from 1 to"),
        "{refused}"
    );
}
