//! Decides what the answer to a status check says about the job. Pure.
//!
//! What must stay true: an answer that discards messages certainly comes from a job service.
//! Gateways answer 404, too, also with JSON that has a `message`.

use crate::http::{HeaderMap, StatusCode};
use crate::steps::routing::JobKnowledge;
use contract::rest::{ErrorBody, NOT_FOUND_HEADER};
use contract::{JobStatus, without_key};

/// How much of an unexpected answer an error quotes, in bytes.
const SHOWN: usize = 200;

/// Returns what an answer says about this job, or why it says nothing.
pub(super) fn read_answer(
    code: StatusCode,
    headers: &HeaderMap,
    body: &str,
    job: &str,
) -> Result<JobKnowledge, String> {
    if code == StatusCode::NOT_FOUND {
        return if headers.contains_key(NOT_FOUND_HEADER) || names_missing_job(body, job) {
            Ok(JobKnowledge::Gone)
        } else {
            Err(format!(
                "the 404 does not come from a job service ({}); correct the route of the gateway there, or the \
                 BATCHWRIGHT_PUBLIC_URL of the job service",
                quoted(body)
            ))
        };
    }
    if !code.is_success() {
        return Err(format!("the response is {code} ({})", quoted(body)));
    }
    let word = body.lines().next().unwrap_or_default().replace('"', "");
    match JobStatus::from_name(word.trim()) {
        Some(status) => Ok(JobKnowledge::Is(status)),
        None => Err(format!("{} is not a job status", quoted(&word))),
    }
}

/// Returns whether the body of a 404 is CAF's sentence about this job: `ERROR: job_id {id} not
/// found`, perhaps with more lines after it. CAF's service sends no header. The first word is the
/// database's, which may speak another language.
fn names_missing_job(body: &str, job: &str) -> bool {
    let Ok(ErrorBody { message, .. }) = serde_json::from_str(body) else {
        return false;
    };
    let sentence = message.lines().next().unwrap_or_default().trim_end();
    sentence
        .split_once(": ")
        .is_some_and(|(_, text)| text == format!("job_id {{{job}}} not found"))
}

/// Quotes the start of a text that may be of any length. A gateway may quote the URL in it.
pub(super) fn quoted(text: &str) -> String {
    format!(
        "{:?}",
        without_key(&text[..text.floor_char_boundary(SHOWN)])
    )
}

#[cfg(test)]
mod tests {
    use contract::{JobTaskId, Tracking};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_a_gateway_answers_it_discards_nothing(
            code in 100u16..600,
            body in prop_oneof![
                any::<String>(),
                "\\{\"message\": ?\"(ERROR: )?(job_id )?[{}a-z\\\\n ]{0,20}( not found)?\"\\}",
            ],
        ) {
            let code = StatusCode::from_u16(code).unwrap();
            let says_gone = body.contains("job_id {the job} not found");
            let read = read_answer(code, &HeaderMap::new(), &body, "the job");
            prop_assert!(says_gone || read != Ok(JobKnowledge::Gone), "{body}");
        }

        #[test]
        fn the_sentence_about_any_job_is_recognised(id in "[^.,:;*?!|()\u{0}-\u{1f}\u{85}\u{2028}\u{2029}]{1,48}") {
            let tracking = Tracking { job_task_id: Some(format!("p:{id}.1")), ..Tracking::default() };
            let job = JobTaskId::parse(tracking.job_task_id.as_deref().unwrap()).unwrap().job;
            let message = format!("ERROR: job_id {{{job}}} not found");
            let body = serde_json::json!({ "message": message }).to_string();
            let read = read_answer(StatusCode::NOT_FOUND, &HeaderMap::new(), &body, &job);
            prop_assert_eq!(read, Ok(JobKnowledge::Gone));
        }
    }
}
