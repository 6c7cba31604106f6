//! Asks the job service whether a part of a task is done, and lets it keep the result of one.
//!
//! What must stay true: only an answer of a job service says that a part is not done.

use contract::rest::{ERROR_HEADER, ErrorBody, ErrorCode, NOT_FOUND_HEADER};
use contract::{Memo, MemoKey, NewMemo, Tracking};

use super::status_url::JobUrl;
use super::{JobServiceClient, answer, chain};
use crate::http::{HeaderMap, Method, StatusCode};

/// Why it is not known whether a part of a task is done, or why its result is not kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MemoError {
    /// The job has ended, or there is no such job any more, or the round is over.
    Ended,
    /// The URL may not be asked.
    NotAllowed(String),
    /// The job service refuses it.
    Refused(String),
    /// There was no answer, or none that can be understood.
    NoAnswer(String),
}

impl JobServiceClient {
    /// Returns the result of a part of this message's task, as JSON, if the part is done.
    pub async fn memo(
        &self,
        tracking: &Tracking,
        key: &MemoKey,
    ) -> Result<Option<String>, MemoError> {
        let memo = self.exchange_memo(tracking, key, None).await?;
        match (memo.done, memo.result) {
            (true, Some(result)) => Ok(Some(result)),
            (false, None) => Ok(None),
            _ => Err(MemoError::NoAnswer(
                "the answer contradicts itself".to_owned(),
            )),
        }
    }

    /// Keeps the result of a part of this message's task, which is JSON. Returns the one that is
    /// kept.
    pub async fn keep_memo(
        &self,
        tracking: &Tracking,
        key: &MemoKey,
        result: &str,
    ) -> Result<String, MemoError> {
        let memo = self.exchange_memo(tracking, key, Some(result)).await?;
        let missing = || MemoError::NoAnswer("the answer lacks the result".to_owned());
        memo.result.filter(|_| memo.done).ok_or_else(missing)
    }

    async fn exchange_memo(
        &self,
        tracking: &Tracking,
        key: &MemoKey,
        result: Option<&str>,
    ) -> Result<Memo, MemoError> {
        let mut url = self
            .url_of_task(tracking, "memos")
            .map_err(MemoError::NotAllowed)?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.push(key.as_str());
        }
        let no_answer = |reason: String| MemoError::NoAnswer(format!("{url}: {reason}"));
        let (method, body) = match result {
            None => (Method::GET, Vec::new()),
            Some(result) => {
                let result = result.to_owned();
                let body = serde_json::to_vec(&NewMemo { result });
                (
                    Method::PUT,
                    body.map_err(|error| no_answer(error.to_string()))?,
                )
            }
        };
        let (code, headers, body) = self
            .exchange(method, &url, body)
            .await
            .map_err(|error| no_answer(chain(&error)))?;
        let memo = read(code, &headers, &body).map_err(|error| located(error, &url))?;
        if let Some(url) = &tracking.status_check_url {
            self.unanswered.answered(url);
        }
        Ok(memo)
    }
}

fn read(code: StatusCode, headers: &HeaderMap, body: &str) -> Result<Memo, MemoError> {
    let error = headers.get(ERROR_HEADER).and_then(|it| it.to_str().ok());
    let is = |code: ErrorCode| error == Some(code.as_str());
    if code == StatusCode::NOT_FOUND && headers.contains_key(NOT_FOUND_HEADER)
        || is(ErrorCode::WrongJobStatus)
    {
        return Err(MemoError::Ended);
    }
    let refusals = [
        ErrorCode::TooManyMemos,
        ErrorCode::BodyTooLarge,
        ErrorCode::InvalidRequest,
        ErrorCode::InvalidId,
    ];
    if refusals.into_iter().any(is) {
        let message = serde_json::from_str(body).map(|it: ErrorBody| it.message);
        return Err(MemoError::Refused(
            message.unwrap_or_else(|_| answer::quoted(body)),
        ));
    }
    if !code.is_success() {
        let body = answer::quoted(body);
        return Err(MemoError::NoAnswer(format!(
            "the response is {code} ({body})"
        )));
    }
    serde_json::from_str(body).map_err(|error| MemoError::NoAnswer(error.to_string()))
}

/// Names the URL in the reason why there is no answer.
fn located(error: MemoError, url: &JobUrl) -> MemoError {
    match error {
        MemoError::NoAnswer(reason) => MemoError::NoAnswer(format!("{url}: {reason}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_a_gateway_answers_it_does_not_say_that_a_part_is_not_done(
            code in 100u16..600,
            body in prop_oneof![any::<String>(), "[{]?\"?(message|result|Done|status)\"?:? ?(false|null|\"x\"|0)[}]?"],
        ) {
            let code = StatusCode::from_u16(code).unwrap();
            prop_assert!(read(code, &HeaderMap::new(), &body).is_err(), "{body}");
        }
    }
}
