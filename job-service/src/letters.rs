//! Dead letters: messages of reject and invalid pipes, and how they are sent again.
//!
//! This file reads from a message why it is there, and builds the message that replaces it when it
//! is sent again. Pure.
//!
//! What must stay true:
//! - Every message can be a letter, whatever its bytes: text that a database cannot store is left
//!   out.
//! - A message that a broker delivers twice has the same identity both times. Two messages share
//!   one only if nothing tells them apart.
//! - What is sent again names the job in the round in which the job counts it.

pub mod collector;
pub mod page;
pub mod routes;

use bytes::Bytes;
use contract::headers::{
    BLOCKS_HEADER, CAUSE_HEADER, LABEL_HEADER, ORIGIN_HEADER, REASON_HEADER, RUN_HEADER,
    WORKER_HEADER,
};
use contract::rest::{DeadLetter, LetterCause};
use contract::{
    FailedRun, JobId, JobTaskId, MAX_PIPE_BYTES, PartitionId, PipeHeader, PipeMessage,
    ReservedPipes, TaskMessage, TaskStatus, Tracking, input_of_quarantine, is_tracking_pipe,
    patch_tracking,
};
use framework::broker::{Delivery, HeaderValue, Outgoing};
use sha2::{Digest as _, Sha256};
use store::{Header, Headers, Incarnation, Letter, LetterTask, NewLetter, NewMessage};

use crate::jobs::status_url::status_url;
use crate::options::ServiceOptions;
use crate::pipes::stored_message::to_headers;

/// The beginning of the names of all headers of ours.
const OWN_HEADERS: &str = "x-batchwright-";
/// The headers in which CAF's workers count what concerns a single delivery.
const CAF_HEADERS: &str = "x-caf-worker-";
/// The header with the number of failed attempts at a task that comes again.
const ATTEMPTS_HEADER: &str = "x-batchwright-attempts";
/// The header of a message that is published anew: when it was sent before that, in seconds since
/// 1970.
const SENT_HEADER: &str = "x-batchwright-sent";
/// The most characters of a text that is only shown.
const LONGEST_TEXT: usize = 2000;

/// A message that becomes a letter.
#[derive(Debug)]
pub struct Found<'a> {
    /// The pipe in which it was found.
    pub pipe: &'a str,
    pub body: Bytes,
    pub headers: Headers,
    /// When it was sent, in seconds since 1970.
    pub sent: Option<i64>,
}

impl<'a> Found<'a> {
    pub fn of_delivery(delivery: &'a Delivery) -> Self {
        let mut headers = to_headers(&delivery.headers);
        let sent = match headers.remove(SENT_HEADER) {
            Some(Header::Integer(sent)) => Some(sent),
            _ => delivery.sent,
        };
        Self {
            pipe: &delivery.pipe,
            body: delivery.body(),
            headers,
            sent,
        }
    }

    /// Returns the letter that keeps at most so many bytes of the body.
    pub fn into_letter(self, max_body: usize) -> NewLetter {
        let message = TaskMessage::decode(&self.body).ok();
        let text = |name| text(&self.headers, name);
        let cause = text(CAUSE_HEADER).and_then(|name| LetterCause::from_name(&name));
        let run = text(RUN_HEADER).and_then(|run| serde_json::from_str::<FailedRun>(&run).ok());
        let attempts = run.and_then(|run| run.attempt);
        let failed = match self.headers.get(ATTEMPTS_HEADER) {
            Some(Header::Integer(failed)) => u32::try_from(*failed).ok(),
            _ => None,
        };
        // Workers of other makers put copies of poison into their reject pipes, and say no more.
        let presumed = match &message {
            Some(message) if is_copy(message, self.pipe) => LetterCause::Poison,
            _ => LetterCause::NotUnderstood,
        };
        let origin = text(ORIGIN_HEADER).filter(|pipe| pipe.len() <= MAX_PIPE_BYTES);
        NewLetter {
            identity: self.identity(),
            cause: cause.unwrap_or(presumed),
            reason: text(REASON_HEADER).unwrap_or_default(),
            pipe: self.pipe.to_owned(),
            origin: origin.map(|pipe| input_of_quarantine(&pipe).to_owned()),
            worker: text(WORKER_HEADER),
            attempts: attempts.or(failed),
            task: message.as_ref().and_then(task_of),
            label: text(LABEL_HEADER),
            body: self.body[..self.body.len().min(max_body)].to_vec(),
            body_bytes: self.body.len() as u64,
            headers: self.headers,
        }
    }

    fn identity(&self) -> Vec<u8> {
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        };
        add(self.pipe.as_bytes());
        add(&self.sent.unwrap_or_default().to_le_bytes());
        for (name, value) in &self.headers {
            add(name.as_bytes());
            match value {
                Header::Text(text) => add(text.as_bytes()),
                Header::Integer(number) => add(&number.to_le_bytes()),
            }
        }
        add(&self.body);
        digest.finalize().to_vec()
    }
}

/// Returns the message to publish it to its pipe again. It has the same identity.
pub fn anew(delivery: &Delivery) -> Outgoing {
    let mut message = delivery.anew();
    if message.headers.get(SENT_HEADER).is_none() {
        let sent = HeaderValue::Integer(delivery.sent.unwrap_or_default());
        message.headers.set(SENT_HEADER, sent);
    }
    message
}

/// Returns the text of a header as a database stores it.
fn text(headers: &Headers, name: &str) -> Option<String> {
    match headers.get(name)? {
        Header::Text(text) => {
            let clean = text.chars().filter(|c| *c != '\0').take(LONGEST_TEXT);
            Some(clean.collect())
        }
        Header::Integer(_) => None,
    }
}

/// Returns whether a message is the copy of a task that a worker has put into this reject pipe.
fn is_copy(message: &TaskMessage, pipe: &str) -> bool {
    message.task_status == Some(TaskStatus::ResultException) && message.to.as_deref() == Some(pipe)
}

/// Returns the task of a message, if it belongs to a job that there can be.
fn task_of(message: &TaskMessage) -> Option<LetterTask> {
    let id = JobTaskId::parse(message.job_task_id()?).ok()?;
    PartitionId::parse(&id.partition).ok()?;
    JobId::parse(&id.job).ok()?;
    let steps = id.steps.iter().map(|step| step.number.to_string());
    Some(LetterTask {
        path: steps.collect::<Vec<_>>().join("."),
        partition: id.partition,
        job: id.job,
        incarnation: id.incarnation,
    })
}

/// Returns the message that takes the place of a letter, for its job in the round in which it
/// counts. `pipe` is the one that the request names.
///
/// # Errors
/// Returns why there is none, and what to do.
pub fn message_again(
    letter: &Letter,
    job: Option<&Incarnation>,
    (pipe, now): (Option<&str>, i64),
    (options, reserved): (&ServiceOptions, &ReservedPipes),
) -> Result<NewMessage, String> {
    let content = &letter.content;
    let message = TaskMessage::decode(&content.body).ok();
    let origin = pipe.or_else(|| destination(content, message.as_ref(), options));
    let pipe = origin.map(str::to_owned).ok_or(
        "the message does not say from which pipe it came. Name the input pipe of its worker with the parameter 'pipe'",
    )?;
    reserved.check(&pipe, None).map_err(|refusal| {
        format!(
            "the pipe '{}' is {}. Name the input pipe of a worker with the parameter 'pipe'",
            refusal.pipe, refusal.purpose
        )
    })?;
    let headers = content.headers.iter().filter(|(name, _)| {
        let of_delivery = name.starts_with(OWN_HEADERS) || name.starts_with(CAF_HEADERS);
        // A block with a number that was used before would be taken for a copy of the earlier one.
        !of_delivery || [LABEL_HEADER, BLOCKS_HEADER].contains(&name.as_str())
    });
    let headers = headers.map(|(name, value)| (name.clone(), value.clone()));
    Ok(NewMessage {
        headers: headers.collect(),
        body: match message {
            Some(message) => body_again(content, message, job, (&pipe, now), options)?,
            None => content.body.clone(),
        },
        pipe,
    })
}

/// Returns the pipe from which a letter came. A task that the tracking worker could not forward
/// goes where it was addressed to.
fn destination<'l>(
    letter: &'l NewLetter,
    message: Option<&'l TaskMessage>,
    options: &ServiceOptions,
) -> Option<&'l str> {
    let origin = letter.origin.as_deref()?;
    let is_tracking = is_tracking_pipe(&options.tracking_pipe, origin);
    let is_task =
        |message: &&TaskMessage| matches!(message.task_status, None | Some(TaskStatus::NewTask));
    match message.filter(is_task) {
        Some(task) if is_tracking => task.to.as_deref(),
        _ => Some(origin),
    }
}

fn body_again(
    letter: &NewLetter,
    mut message: TaskMessage,
    job: Option<&Incarnation>,
    (pipe, now): (&str, i64),
    options: &ServiceOptions,
) -> Result<Vec<u8>, String> {
    let tracking = message.tracking.take();
    let tracking = match (tracking, job) {
        (Some(tracking), Some(job)) => Some(tracking_again(tracking, job, now, options)?),
        (tracking, _) => tracking,
    };
    if is_copy(&message, &letter.pipe) {
        let message = TaskMessage {
            task_status: Some(TaskStatus::NewTask),
            to: Some(pipe.into()),
            tracking,
            ..message
        };
        return Ok(message.encode());
    }
    patch_tracking(&letter.body, tracking.as_ref()).map_err(|error| error.to_string())
}

fn tracking_again(
    tracking: Tracking,
    job: &Incarnation,
    now: i64,
    options: &ServiceOptions,
) -> Result<Tracking, String> {
    let id = tracking.job_task_id.as_deref().unwrap_or_default();
    let id = JobTaskId::parse(id).map_err(|error| error.to_string())?;
    let is_later = job.round > 1;
    let id = JobTaskId {
        incarnation: (is_later || !job.first).then_some(job.number),
        round: job.round,
        ..id
    };
    let pipe = tracking.tracking_pipe;
    Ok(Tracking {
        job_task_id: Some(id.to_string()),
        last_status_check_time: Some(now),
        status_check_url: Some(status_url(&options.webservice_url, job).into()),
        tracking_pipe: pipe.map(|pipe| {
            let again = options.tracking_pipe_again(&pipe, job.number, job.round);
            again.into()
        }),
        ..tracking
    })
}

/// Returns a letter as the API shows it: `in_full` with its message.
pub fn shown(letter: Letter, in_full: bool) -> DeadLetter {
    let Letter {
        id,
        time,
        content,
        cut,
    } = letter;
    let (job, task_id) = match content.task {
        Some(task) => (Some((task.partition, task.job)), Some(task.path)),
        None => (None, None),
    };
    let (partition_id, job_id) = job.unzip();
    let header = |(name, value)| match value {
        Header::Text(text) => (name, PipeHeader::Text(text)),
        Header::Integer(number) => (name, PipeHeader::Integer(number)),
    };
    let headers = content.headers.into_iter().map(header).collect();
    DeadLetter {
        id,
        time,
        cause: content.cause,
        reason: content.reason,
        pipe: content.pipe,
        origin: content.origin,
        worker: content.worker,
        attempts: content.attempts,
        partition_id,
        job_id,
        task_id: task_id.map(|path| {
            if path.is_empty() {
                contract::headers::FIRST_TASK.to_owned()
            } else {
                path
            }
        }),
        label: content.label,
        bytes: content.body_bytes,
        cut,
        message: in_full.then(|| PipeMessage::of_body(headers, &content.body)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::LifeKey;
    use framework::broker::{Settlement, Settler};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn found<'a>(pipe: &'a str, body: &'a [u8], headers: &[(&str, Header)]) -> Found<'a> {
        let headers = headers.iter().cloned();
        Found {
            pipe,
            body: Bytes::copy_from_slice(body),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            sent: Some(7),
        }
    }

    fn text(value: &str) -> Header {
        Header::Text(value.to_owned())
    }

    fn letter(content: NewLetter) -> Letter {
        Letter {
            id: 1,
            time: 1,
            cut: false,
            content,
        }
    }

    fn again(
        content: NewLetter,
        job: Option<&Incarnation>,
        pipe: Option<&str>,
    ) -> Result<(NewMessage, Value), String> {
        let options = ServiceOptions::default();
        let reserved = options.all_reserved_pipes();
        let message = message_again(&letter(content), job, (pipe, 99), (&options, &reserved))?;
        let body = serde_json::from_slice(&message.body).unwrap_or_default();
        Ok((message, body))
    }

    fn copy(to: &str, id: &str) -> Vec<u8> {
        let message = json!({
            "version": 3, "taskId": "t", "taskClassifier": "C", "taskApiVersion": 1, "taskData": "e30=", "context": {},
            "taskStatus": "RESULT_EXCEPTION", "to": to,
            "tracking": {"jobTaskId": id, "statusCheckUrl": "http://old", "trackingPipe": "worker-jobtracking-in", "trackTo": "out"}
        });
        serde_json::to_vec(&message).unwrap()
    }

    fn incarnation(number: i64, first: bool, round: u32) -> Incarnation {
        Incarnation {
            partition: PartitionId::parse("p").unwrap(),
            job: JobId::parse("j").unwrap(),
            number,
            first,
            round,
            key: Some(LifeKey::from("00f1")),
        }
    }

    struct Nowhere;

    impl Settler for Nowhere {
        fn settle(&self, _: u64, _: Settlement) {}
    }

    #[test]
    fn message_that_is_published_anew_is_the_same_letter() {
        let delivery = |message: Outgoing, sent| {
            let (body, settler) = (message.body, Arc::new(Nowhere));
            Delivery::new(message.pipe, body, message.headers, 0, 1, settler).sent_at(sent)
        };
        let letter = |delivery: &Delivery| Found::of_delivery(delivery).into_letter(1000);
        for sent in [Some(7), None] {
            let first = delivery(Outgoing::new("w-reject", "again and again"), sent);
            let second = delivery(anew(&first), Some(8));
            let third = delivery(anew(&second), Some(9));
            for again in [&second, &third] {
                let (found, expected) = (letter(again), letter(&first));
                assert_eq!(found.identity, expected.identity);
                assert_eq!(found.headers, expected.headers);
            }
        }
    }

    #[test]
    fn copy_of_a_task_says_where_it_came_from_and_becomes_that_task_again() {
        let body = copy("w-reject", "p:j.1.2*");
        let headers = [
            (CAUSE_HEADER, text("givenUp")),
            (REASON_HEADER, text("no\0 luck")),
            (ORIGIN_HEADER, text("w-in.suspects")),
            (WORKER_HEADER, text("w")),
            (RUN_HEADER, text(r#"{"attempt": 3}"#)),
            (LABEL_HEADER, text("a.tif")),
            (BLOCKS_HEADER, Header::Integer(2)),
            ("traceparent", text("00")),
            ("x-caf-worker-retry", Header::Integer(2)),
        ];
        let content = found("w-reject", &body, &headers).into_letter(1000);
        assert_eq!(content.cause, LetterCause::GivenUp);
        assert_eq!(content.origin.as_deref(), Some("w-in"));
        assert_eq!(
            (content.attempts, content.worker.as_deref()),
            (Some(3), Some("w"))
        );
        let task = content.task.as_ref().unwrap();
        assert_eq!((task.path.as_str(), task.incarnation), ("1.2", None));

        let (message, body) =
            again(content.clone(), Some(&incarnation(42, true, 1)), None).unwrap();
        let names: Vec<&str> = message.headers.keys().map(String::as_str).collect();
        assert_eq!(names, ["traceparent", BLOCKS_HEADER, LABEL_HEADER]);
        assert_eq!(
            (message.pipe.as_str(), &body["to"]),
            ("w-in", &json!("w-in"))
        );
        assert_eq!(body["taskStatus"], "NEW_TASK");
        let tracking = |id: &str, query: &str, pipe: &str| {
            json!({
                "jobTaskId": id, "lastStatusCheckTime": 99, "statusCheckIntervalMillis": 0,
                "statusCheckUrl": format!("http://127.0.0.1:8080/job-service/v1/partitions/p/jobs/j/status?n=42{query}&k=00f1"),
                "trackingPipe": pipe, "trackTo": "out"
            })
        };
        let first = tracking("p:j.1.2*", "", "worker-jobtracking-in");
        assert_eq!(body["tracking"], first);
        let (_, body) = again(content, Some(&incarnation(42, true, 2)), None).unwrap();
        let later = tracking("p:j!42r2.1.2*", "&r=2", "worker-jobtracking-in.rounds");
        assert_eq!(body["tracking"], later);
    }

    #[test]
    fn copy_of_a_caf_worker_says_nothing_and_goes_to_the_pipe_of_the_request() {
        let body = copy("w-reject", "p:j.1");
        let content = found("w-reject", &body, &[]).into_letter(1000);
        assert_eq!(
            (content.cause, content.reason.as_str()),
            (LetterCause::Poison, "")
        );
        let job = incarnation(42, false, 1);
        let refused = again(content.clone(), Some(&job), None).unwrap_err();
        assert!(refused.contains("with the parameter 'pipe'"), "{refused}");
        let (message, body) = again(content.clone(), Some(&job), Some("java-in")).unwrap();
        assert_eq!(
            (message.pipe.as_str(), &body["to"]),
            ("java-in", &json!("java-in"))
        );
        assert_eq!(body["tracking"]["jobTaskId"], "p:j!42.1");
        let refused = again(content, Some(&job), Some("worker-jobtracking-in")).unwrap_err();
        assert!(refused.contains("worker-jobtracking-in"), "{refused}");
    }

    #[test]
    fn noise_goes_back_byte_for_byte() {
        let headers = [(ORIGIN_HEADER, text("in")), ("own", Header::Integer(1))];
        let content = found("in-invalid", b"{ noise", &headers).into_letter(4);
        assert_eq!(
            (content.cause, content.body_bytes),
            (LetterCause::NotUnderstood, 7)
        );
        assert_eq!(content.body, b"{ no");
        let content = found("in-invalid", b"{ noise", &headers).into_letter(1000);
        let (message, _) = again(content, None, None).unwrap();
        assert_eq!(
            (message.pipe.as_str(), &message.body[..]),
            ("in", &b"{ noise"[..])
        );
        assert_eq!(message.headers.len(), 1);
    }

    #[test]
    fn task_that_the_tracking_worker_could_not_forward_goes_where_it_was_addressed_to() {
        let mut message: Value = serde_json::from_slice(&copy("next-in", "p:j.1")).unwrap();
        message["taskStatus"] = json!("NEW_TASK");
        let body = serde_json::to_vec(&message).unwrap();
        for origin in ["worker-jobtracking-in", "worker-jobtracking-in-7.rounds"] {
            let headers = [(ORIGIN_HEADER, text(origin))];
            let content = found("worker-jobtracking-invalid", &body, &headers).into_letter(1000);
            let (message, body) = again(content, Some(&incarnation(42, true, 1)), None).unwrap();
            assert_eq!(
                (message.pipe.as_str(), &body["to"]),
                ("next-in", &json!("next-in"))
            );
        }
    }

    #[test]
    fn identity_is_the_same_only_where_nothing_differs() {
        let identity = |pipe, body, sent, header| {
            let header = Header::Integer(header);
            let found = Found {
                sent: Some(sent),
                ..found(pipe, body, &[("h", header)])
            };
            found.into_letter(2).identity
        };
        let first = identity("a", b"body", 1, 1);
        assert_eq!(first, identity("a", b"body", 1, 1));
        for other in [
            identity("b", b"body", 1, 1),
            identity("a", b"bodx", 1, 1),
            identity("a", b"body", 2, 1),
            identity("a", b"body", 1, 2),
        ] {
            assert_ne!(first, other);
        }
    }

    proptest! {
        #[test]
        fn no_message_panics_and_no_text_has_a_zero(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            value in "[a-z\x00]*",
            id in ".*",
        ) {
            let copy = copy("pipe", &id);
            for body in [&body[..], &copy] {
                let headers = [
                    CAUSE_HEADER, REASON_HEADER, ORIGIN_HEADER, WORKER_HEADER, LABEL_HEADER, RUN_HEADER,
                ];
                let headers = headers.map(|name| (name, text(&value)));
                let letter = found("pipe", body, &headers).into_letter(100);
                let task = letter.task.clone().map(|task| format!("{}{}", task.partition, task.job));
                let texts = [Some(letter.reason.clone()), letter.origin.clone(), letter.worker.clone(), letter.label.clone(), task];
                prop_assert!(texts.iter().flatten().all(|text| !text.contains('\0')));
                let _ = again(letter, None, None);
            }
        }
    }
}
