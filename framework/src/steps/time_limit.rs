//! How long one attempt of a task may take: its worker has a limit, or its job, which the message
//! tells, or both.
//!
//! What must stay true: a task that stays in its job inherits the limit of the job. Whatever a
//! message says of the limit, its task runs.

use std::fmt;
use std::time::Duration;

use contract::TaskTimeLimit;
use contract::headers::TASK_TIME_LIMIT_HEADER;
use smol_str::ToSmolStr as _;
use tracing::warn;

use crate::broker::{HeaderValue, Headers};

/// The limit of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeLimit {
    pub span: Duration,
    is_of_job: bool,
}

impl TimeLimit {
    /// Returns the smaller of the limits of the worker and the job.
    pub fn smaller(worker: Option<Duration>, job: Option<TaskTimeLimit>) -> Option<Self> {
        let worker = worker.map(|span| Self {
            span,
            is_of_job: false,
        });
        let job = job.map(|limit| Self {
            span: limit.span(),
            is_of_job: true,
        });
        worker.into_iter().chain(job).min_by_key(|limit| limit.span)
    }
}

/// Says of an attempt that it has exceeded the limit.
impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { span, is_of_job } = self;
        write!(
            f,
            "the task took longer than {} time limit of {span:?}{}",
            if *is_of_job { "the" } else { "its" },
            if *is_of_job { " that its job sets" } else { "" }
        )
    }
}

/// Returns the limit that the job of a message sets. One that this version cannot read counts as
/// none.
pub(crate) fn of_job(headers: &Headers) -> Option<TaskTimeLimit> {
    read(headers).unwrap_or_default()
}

/// Returns the limit that the job of a message sets, as [`of_job`] does, and logs one that cannot
/// be read.
pub(crate) fn of_job_or_warning(headers: &Headers) -> Option<TaskTimeLimit> {
    read(headers).unwrap_or_else(|reason| {
        warn!(
            reason,
            header = TASK_TIME_LIMIT_HEADER,
            "the time limit in a message cannot be read; the task has none of its job"
        );
        None
    })
}

/// Sets the limit on a message.
pub(crate) fn set(headers: &mut Headers, limit: TaskTimeLimit) {
    let seconds = limit.to_smolstr();
    headers.set(TASK_TIME_LIMIT_HEADER, HeaderValue::Text(seconds));
}

fn read(headers: &Headers) -> Result<Option<TaskTimeLimit>, String> {
    let text = match headers.get(TASK_TIME_LIMIT_HEADER) {
        None => return Ok(None),
        Some(HeaderValue::Text(text)) => text,
        Some(HeaderValue::Integer(number)) => &number.to_smolstr(),
    };
    let limit = text.parse::<TaskTimeLimit>();
    limit.map(Some).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smaller_limit_counts_and_its_error_says_whose_it_is() {
        let worker = |seconds| Some(Duration::from_secs(seconds));
        for (own, job, text) in [
            (None, None, None),
            (worker(90), None, Some("its time limit of 90s")),
            (
                worker(90),
                Some(30),
                Some("the time limit of 30s that its job sets"),
            ),
            (worker(30), Some(90), Some("its time limit of 30s")),
            (
                None,
                Some(30),
                Some("the time limit of 30s that its job sets"),
            ),
        ] {
            let job = job.and_then(TaskTimeLimit::of_seconds);
            let limit = TimeLimit::smaller(own, job).map(|limit| limit.to_string());
            let expected = text.map(|text| format!("the task took longer than {text}"));
            assert_eq!(limit, expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_header_says_it_is_a_limit_or_none(text in "[0-9+ -]{0,12}|.*", number: i64) {
            for value in [HeaderValue::Text(text.into()), HeaderValue::Integer(number)] {
                let mut headers = Headers::default();
                headers.set(TASK_TIME_LIMIT_HEADER, value);
                let limit = of_job(&headers);
                prop_assert_eq!(of_job_or_warning(&headers), limit);
                if let Some(limit) = limit {
                    let mut own = Headers::default();
                    set(&mut own, limit);
                    prop_assert_eq!(of_job(&own), Some(limit));
                }
            }
        }
    }
}
