//! Tells a task, in a header of its message, how many of its subtasks an earlier delivery has
//! dispatched. Pure.
//!
//! What must stay true: a task goes on only where it stopped. A count of another round of its job
//! tells nothing, because what was dispatched then may have failed.

use std::fmt::Write as _;

use contract::{JobTaskId, SourceDigest};

use crate::broker::{HeaderValue, Headers};

/// The header: the round of the job, the number of subtasks, and the digest of what they were made
/// from, if the task says from what, with colons between.
const DISPATCHED_HEADER: &str = "x-batchwright-dispatched";

/// Where a task goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resumption {
    /// The number of subtasks that are dispatched and confirmed.
    pub count: u32,
    /// What the task said that they are made from.
    pub digest: Option<SourceDigest>,
}

impl Resumption {
    /// Reads where the task with this job task id goes on from the headers of its message; `None`
    /// if it begins.
    pub fn of(headers: &Headers, job_task_id: Option<&str>) -> Option<Self> {
        let Some(HeaderValue::Text(text)) = headers.get(DISPATCHED_HEADER) else {
            return None;
        };
        let mut parts = text.splitn(3, ':');
        let (round, count, digest) = (parts.next()?, parts.next()?, parts.next()?);
        if round.parse() != Ok(round_of(job_task_id)) {
            return None;
        }
        let digest = (!digest.is_empty()).then(|| digest.parse()).transpose();
        Some(Self {
            count: count.parse().ok()?,
            digest: digest.ok()?,
        })
    }

    /// Returns the header that says so for the task with this job task id.
    pub fn header(self, job_task_id: Option<&str>) -> (&'static str, HeaderValue) {
        let mut text = format!("{}:{}:", round_of(job_task_id), self.count);
        if let Some(digest) = self.digest {
            // Writing to a text does not fail.
            let _ = write!(text, "{digest}");
        }
        (DISPATCHED_HEADER, HeaderValue::Text(text.into()))
    }
}

fn round_of(job_task_id: Option<&str>) -> u32 {
    let id = job_task_id.and_then(|id| JobTaskId::parse(id).ok());
    id.map_or(0, |id| id.round)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with((name, value): (&'static str, HeaderValue)) -> Headers {
        let mut headers = Headers::default();
        headers.set(name, value);
        headers
    }

    #[test]
    fn task_goes_on_in_the_same_round_only() {
        for digest in [None, Some(SourceDigest([7; 32]))] {
            let resumption = Resumption { count: 12, digest };
            let headers = with(resumption.header(Some("p:j!1r2.3")));
            assert_eq!(
                Resumption::of(&headers, Some("p:j!1r2.3*")),
                Some(resumption)
            );
            for other in [Some("p:j!1r3.3"), Some("p:j.3"), None] {
                assert_eq!(Resumption::of(&headers, other), None, "{other:?}");
            }
            let untracked = with(resumption.header(None));
            assert_eq!(Resumption::of(&untracked, None), Some(resumption));
        }
    }

    #[test]
    fn header_that_is_not_ours_tells_nothing() {
        for text in [
            "",
            "1",
            "1:2",
            "1:-2:",
            "1:4294967296:",
            "1:2:ff",
            "x:2:",
            "0:2:",
        ] {
            let headers = with((DISPATCHED_HEADER, HeaderValue::Text(text.into())));
            assert_eq!(Resumption::of(&headers, Some("p:j.1")), None, "{text}");
        }
        let number = with((DISPATCHED_HEADER, HeaderValue::Integer(2)));
        assert_eq!(Resumption::of(&number, None), None);
    }
}
