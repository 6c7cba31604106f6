//! What is a job: from the body of a PUT to a checked request, or to the text that says what is wrong. Pure.
//!
//! The checks, their order and their texts are CAF's; clients match on them. What CAF lets through to its database (and
//! answers 500) is refused here too, after the others.
//!
//! What must stay true:
//! - Task data given as an object travels as the client wrote it, less white space: no number is read and written again.
//! - The content hash depends on what a request means and on nothing else: not on the order of fields, not on fields
//!   that are not known, not on this build. It is stored, so it must not change from one version to the next.

use std::collections::{BTreeMap, HashMap};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use contract::rest::{Expiry, ExpiryOperation, JobTask, NewJob, Policer, TaskDataEncoding};
use contract::{JobId, PartitionId, same_pipe};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use store::{JobRequest, KeptUntil, StartCondition};

use crate::error::{ApiError, ApiResult};
use crate::job_types::MadeTask;
use crate::prerequisites;
use crate::start::FirstTask;

/// The longest name, label name and label value, in characters.
const MAX_CHARS: usize = 255;
/// The longest name of a pipe, in bytes: AMQP's.
const MAX_PIPE_BYTES: usize = 255;

/// A request that can become a job.
#[derive(Debug)]
pub struct Accepted {
    pub request: JobRequest,
    pub task: FirstTask,
}

/// What was sent, not yet checked.
#[derive(Debug)]
pub struct Given {
    new: NewJob,
    /// The task data as it is written, where that is an object.
    task_data_text: Option<Vec<u8>>,
    parameters: Box<RawValue>,
}

impl Given {
    /// The job type that is to make the task, and its parameters.
    pub fn job_type(&self) -> ApiResult<Option<(&str, &RawValue)>> {
        match (&self.new.job_type, &self.new.task) {
            (Some(_), Some(_)) => Err(ApiError::bad_request(
                "Specifying both typeId and task properties is not allowed.",
            )),
            (Some(id), None) => Ok(Some((id, &self.parameters))),
            (None, _) => Ok(None),
        }
    }
}

/// `made` is what the job type has made, where there is one.
pub fn accept(
    partition: PartitionId,
    job: JobId,
    given: Given,
    made: Option<MadeTask>,
) -> ApiResult<Accepted> {
    let Given {
        mut new,
        mut task_data_text,
        ..
    } = given;
    if let Some(MadeTask { task, data_text }) = made {
        (new.task, task_data_text) = (Some(task), Some(data_text.into_bytes()));
    }
    // A task that a job type has made is not the client's to correct.
    let made_by = new.job_type.clone();
    let flaw = |error: ApiError| match &made_by {
        Some(id) => ApiError::JobType {
            id: id.clone(),
            reason: error.to_string(),
        },
        None => error,
    };
    let given = check_task(&new).map_err(flaw)?;
    check_label_names(&new)?;
    let data = task_data(&given, task_data_text).map_err(flaw)?;
    let task = check_pipes(&given, data).map_err(flaw)?;
    check_texts(&new)?;
    let start = start(&new)?;
    let expiry = check_expiry(new.expiry.clone().unwrap_or_default())?;

    // Of what was given: another version of a job type makes no other request of it.
    new.task = new.task.filter(|_| made_by.is_none());
    new.prerequisite_job_ids = prerequisites::spell(&start.prerequisites);
    let content_hash = content_hash(&mut new)?;
    let NewJob {
        name,
        description,
        external_data,
        labels,
        on_failure,
        ..
    } = new;
    let request = JobRequest {
        partition,
        job,
        name,
        description,
        external_data,
        labels: labels.unwrap_or_default(),
        on_failure,
        expiry,
        start,
        without_target: task.target_pipe.is_none(),
        content_hash,
    };
    Ok(Accepted { request, task })
}

/// The body as types.
pub fn read(body: &[u8]) -> ApiResult<Given> {
    type Fields<'a> = HashMap<String, &'a RawValue>;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request(
            "The body has not been specified. Send the job as a JSON object.",
        ));
    }
    let not_json = |error: serde_json::Error| match error.classify() {
        serde_json::error::Category::Data => {
            ApiError::bad_request(format!("The body is not a job: {error}"))
        }
        _ => ApiError::bad_request(format!("The body is not valid JSON: {error}")),
    };
    // First by hand: the derived types would take an array for an object.
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(not_json)?;
    let task: Option<Fields<'_>> = match fields.get("task") {
        Some(task) => serde_json::from_str(task.get()).map_err(|error| {
            ApiError::bad_request(format!("The task is not an object: {error}"))
        })?,
        None => None,
    };
    let new: NewJob = serde_json::from_slice(body).map_err(not_json)?;
    let data = task
        .as_ref()
        .and_then(|task| task.get("taskData"))
        .map(|data| data.get());
    let task_data_text = data
        .filter(|text| text.starts_with('{'))
        .map(without_white_space);
    let parameters = fields.get("parameters").map_or_else(
        || RawValue::NULL.to_owned(),
        |parameters| (*parameters).to_owned(),
    );
    Ok(Given {
        new,
        task_data_text,
        parameters,
    })
}

/// The same JSON without the white space between its parts.
fn without_white_space(json: &str) -> Vec<u8> {
    let (mut in_text, mut escaped) = (false, false);
    json.bytes()
        .filter(|&byte| {
            if in_text {
                in_text = escaped || byte != b'"';
                escaped = byte == b'\\' && !escaped;
                return true;
            }
            in_text = byte == b'"';
            !byte.is_ascii_whitespace()
        })
        .collect()
}

/// The task with what every task has.
struct GivenTask<'a> {
    task: &'a JobTask,
    classifier: &'a str,
    api_version: i32,
    pipe: &'a str,
}

fn check_task(new: &NewJob) -> ApiResult<GivenTask<'_>> {
    let task = new
        .task
        .as_ref()
        .ok_or_else(|| ApiError::bad_request("The task has not been specified."))?;
    let classifier = given(task.task_classifier.as_deref())
        .ok_or_else(|| ApiError::bad_request("The task classifier has not been specified."))?;
    let api_version = task.task_api_version.unwrap_or(0);
    if api_version == 0 {
        return Err(ApiError::bad_request(
            "The task api version has not been specified.",
        ));
    }
    if api_version < 0 {
        return Err(ApiError::bad_request(format!(
            "The task api version must be 1 or more, but is {api_version}."
        )));
    }
    if task.target_pipe.as_deref() == Some("") {
        return Err(ApiError::bad_request(
            "The target queue name has not been specified.",
        ));
    }
    let pipe = given(task.task_pipe.as_deref())
        .ok_or_else(|| ApiError::bad_request("The task queue name has not been specified."))?;
    Ok(GivenTask {
        task,
        classifier,
        api_version,
        pipe,
    })
}

fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn check_label_names(new: &NewJob) -> ApiResult<()> {
    let allowed = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_:".contains(&b))
    };
    if !new.labels.iter().flatten().all(|(name, _)| allowed(name)) {
        return Err(ApiError::bad_request(
            "A provided label name contains an invalid character, only alphanumeric, '-' and '_' are supported",
        ));
    }
    Ok(())
}

fn task_data(given: &GivenTask<'_>, object_text: Option<Vec<u8>>) -> ApiResult<Vec<u8>> {
    let missing = || ApiError::bad_request("The task data has not been specified.");
    match given.task.task_data.as_ref().ok_or_else(missing)? {
        Value::Null => Err(missing()),
        Value::String(text) if text.is_empty() => Err(missing()),
        Value::String(text) => match given.task.task_data_encoding {
            Some(TaskDataEncoding::Base64) => decode_base64(text),
            None | Some(TaskDataEncoding::Utf8) => Ok(text.clone().into_bytes()),
        },
        Value::Object(_) if given.task.task_data_encoding.is_some() => Err(ApiError::bad_request(
            "An encoding type has been found in the task along with taskDataObject. Remove taskDataEncoding and try again",
        )),
        object @ Value::Object(_) => {
            Ok(object_text.unwrap_or_else(|| object.to_string().into_bytes()))
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => Err(ApiError::bad_request(
            "The taskData is null or empty, please ensure taskData is populated and of a suitable datatype",
        )),
    }
}

/// As lenient as CAF where no meaning is lost: either alphabet, padding or none, line breaks.
fn decode_base64(text: &str) -> ApiResult<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let standard = |c: char| match c {
        '-' => '+',
        '_' => '/',
        other => other,
    };
    let plain: String = text
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .map(standard)
        .collect();
    LENIENT
        .decode(plain)
        .map_err(|error| ApiError::bad_request(format!("The taskData is not base64: {error}")))
}

fn check_pipes(given: &GivenTask<'_>, data: Vec<u8>) -> ApiResult<FirstTask> {
    let GivenTask {
        task,
        classifier,
        api_version,
        pipe,
    } = *given;
    let target_pipe = task.target_pipe.as_deref();
    for (field, name) in [("taskPipe", Some(pipe)), ("targetPipe", target_pipe)] {
        let name = name.unwrap_or_default();
        if name.len() > MAX_PIPE_BYTES {
            return Err(ApiError::bad_request(format!(
                "The {field} is longer than {MAX_PIPE_BYTES} bytes."
            )));
        }
        if name.contains(char::is_control) {
            return Err(ApiError::bad_request(format!(
                "The {field} contains a control character."
            )));
        }
    }
    // CAF sends such a task without tracking, so its job waits for ever.
    if target_pipe.is_some_and(|target| same_pipe(pipe, target)) {
        return Err(ApiError::bad_request(format!(
            "The taskPipe and the targetPipe are both '{pipe}': tracking would end before the first task begins, and the job would never \
             complete. Name another targetPipe, or none."
        )));
    }
    Ok(FirstTask {
        classifier: classifier.to_owned(),
        api_version,
        data,
        pipe: pipe.to_owned(),
        target_pipe: target_pipe.map(str::to_owned),
    })
}

fn check_texts(new: &NewJob) -> ApiResult<()> {
    let too_long = |what: &str| {
        ApiError::bad_request(format!("{what} is longer than {MAX_CHARS} characters."))
    };
    let long = |text: &str| text.chars().count() > MAX_CHARS;
    if new.name.as_deref().is_some_and(long) {
        return Err(too_long("The name"));
    }
    for (label, value) in new.labels.iter().flatten() {
        if long(label) {
            return Err(too_long(&format!("The label name '{label}'")));
        }
        if value.as_deref().is_some_and(long) {
            return Err(too_long(&format!("The value of the label '{label}'")));
        }
    }
    // The one character that PostgreSQL cannot store in a text.
    let texts = [
        ("name", &new.name),
        ("description", &new.description),
        ("externalData", &new.external_data),
    ]
    .into_iter();
    for (field, text) in texts.chain(
        new.labels
            .iter()
            .flatten()
            .map(|(_, value)| ("labels", value)),
    ) {
        if text.as_deref().is_some_and(|text| text.contains('\0')) {
            return Err(ApiError::bad_request(format!(
                "The field '{field}' contains the character U+0000."
            )));
        }
    }
    Ok(())
}

fn check_expiry(mut expiry: Expiry) -> ApiResult<Expiry> {
    for (status, policy) in expiry.policies() {
        policy.policer = Some(Policer::User);
        let until: Result<KeptUntil, String> = policy.expiry_time.parse();
        until.map_err(|flaw| {
            ApiError::bad_request(format!(
                "The expiry of a {status} job is not valid: {flaw}."
            ))
        })?;
        if policy.operation == ExpiryOperation::Expire {
            return Err(ApiError::bad_request(format!(
                "The expiry of a {status} job is not supported: this service can delete a job, not mark it as expired. Write Delete as \
                 the operation."
            )));
        }
    }
    Ok(expiry)
}

/// When the job starts. CAF takes a negative delay for none, and so does this.
fn start(new: &NewJob) -> ApiResult<StartCondition> {
    let prerequisites =
        prerequisites::parse(new.prerequisite_job_ids.as_deref().unwrap_or_default())?;
    Ok(StartCondition {
        delay: u32::try_from(new.delay.unwrap_or(0)).unwrap_or(0),
        prerequisites,
        suspended: false,
    })
}

fn content_hash(new: &mut NewJob) -> ApiResult<[u8; 32]> {
    // Absent, null and empty mean the same, so they count the same.
    new.labels = new.labels.take().filter(|labels| !labels.is_empty());
    new.parameters = new
        .parameters
        .take()
        .filter(|parameters| new.job_type.is_some() && !parameters.is_null());
    new.expiry = new.expiry.take().filter(|expiry| !expiry.is_empty());
    new.expiry
        .iter_mut()
        .flat_map(Expiry::policies)
        .for_each(|(_, policy)| policy.policer = None);
    new.delay = new.delay.filter(|delay| *delay > 0);
    let value = serde_json::to_value(&*new).map_err(|error| ApiError::Bug(error.to_string()))?;
    Ok(Sha256::digest(canonical(&value)).into())
}

/// JSON with the members of every object in the order of their names. Spelled out, because the order of a
/// `serde_json::Map` depends on a feature that any crate of a build can switch on.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<&String, &Value> = members.iter().collect();
            let members = sorted.into_iter().map(|(name, value)| {
                format!("{}:{}", Value::from(name.as_str()), canonical(value))
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Value::Array(values) => format!(
            "[{}]",
            values.iter().map(canonical).collect::<Vec<_>>().join(",")
        ),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn try_accept(body: &str) -> Result<Accepted, String> {
        let ids = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let given =
            read(body.as_bytes()).and_then(|given| given.job_type().map(drop).map(|()| given));
        given
            .and_then(|given| accept(ids.0, ids.1, given, None))
            .map_err(|error| error.to_string())
    }

    fn job() -> Value {
        json!({
            "name": "n", "labels": {"a:b": "1", "c": null},
            "task": {"taskClassifier": "W", "taskApiVersion": 1, "taskData": "data", "taskPipe": "in", "targetPipe": "out"}
        })
    }

    /// A good job with one member of it, or of its task, set to something else.
    fn with(member: &str, value: Value) -> String {
        let mut job = job();
        match member.strip_prefix("task.") {
            Some(member) => job["task"][member] = value,
            None => job[member] = value,
        }
        job.to_string()
    }

    fn hash(body: &str) -> [u8; 32] {
        try_accept(body).unwrap().request.content_hash
    }

    #[test]
    fn each_flaw_of_a_job_is_refused_with_its_own_text() {
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
        ] {
            let refusal = try_accept(&body).expect_err(&body);
            assert!(refusal.starts_with(text), "{body}: {refusal}");
        }
    }

    #[test]
    fn the_flaw_that_caf_looks_for_first_is_told_first() {
        let body = json!({"labels": {" ": ""}, "delay": 1, "task": {"taskClassifier": "W", "taskApiVersion": 1, "targetPipe": ""}});
        assert_eq!(
            try_accept(&body.to_string()).unwrap_err(),
            "The target queue name has not been specified."
        );
    }

    #[test]
    fn a_target_pipe_that_is_the_task_pipe_is_refused_and_both_are_named() {
        let refusal = try_accept(&with("task.targetPipe", json!("IN"))).unwrap_err();
        assert!(
            refusal.starts_with("The taskPipe and the targetPipe are both 'in'"),
            "{refusal}"
        );
    }

    #[test]
    fn what_means_nothing_is_accepted() {
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
            try_accept(&with("labels", json!(null)))
                .unwrap()
                .request
                .labels
                .is_empty()
        );
        assert_eq!(
            try_accept(&with("task.targetPipe", json!(null)))
                .unwrap()
                .task
                .target_pipe,
            None
        );
    }

    #[test]
    fn task_data_given_as_an_object_travels_as_written_less_white_space() {
        let data = r#"{ "z" : 1.10, "a": [123456789012345678901234567890 , "q \" { \\" ],
            "ü\u00fc": {}}"#;
        let body = format!(
            r#"{{"task": {{"taskClassifier": "W", "taskApiVersion": 1, "taskPipe": "in", "taskData": {data}}}}}"#
        );
        let expected =
            r#"{"z":1.10,"a":[123456789012345678901234567890,"q \" { \\"],"ü\u00fc":{}}"#;
        assert_eq!(
            String::from_utf8(try_accept(&body).unwrap().task.data).unwrap(),
            expected
        );
    }

    #[test]
    fn task_data_given_as_text_is_its_utf8_or_what_its_base64_stands_for() {
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
                try_accept(&body.to_string()).unwrap().task.data,
                bytes,
                "{text} as {encoding:?}"
            );
        }
    }

    #[test]
    fn the_hash_tells_requests_apart_by_meaning_and_not_by_spelling() {
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
    fn prerequisites_count_by_what_they_mean() {
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
}
