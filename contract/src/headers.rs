//! The names and values of the headers of messages. They carry what has no field in the envelope,
//! whose format is CAF's.
//!
//! Readers must do without them: CAF's workers set none, and drop those of the messages that they
//! receive.

use std::borrow::Cow;

use crate::{JobTaskId, TaskStatus};

/// On an output of a tracked task: its job, `partition:job`.
pub const JOB_HEADER: &str = "x-batchwright-job";
/// On an output of a tracked task: the path from the job to the task; see [`job_and_path`].
pub const TASK_HEADER: &str = "x-batchwright-task";
/// On an output of a tracked task: the [label](crate::TaskData::label) of its item, if the type of
/// its task data gives one; at most [`FailedItem::LABEL_BYTES`](crate::FailedItem::LABEL_BYTES).
pub const LABEL_HEADER: &str = "x-batchwright-label";
/// On an output of a tracked task: what became of the task, as an [`Outcome`].
pub const OUTCOME_HEADER: &str = "x-batchwright-outcome";
/// On a failure that passes through the tracking worker: the beginning of the item's task data; at
/// most [`FailedItem::INPUT_BYTES`](crate::FailedItem::INPUT_BYTES).
pub const INPUT_HEADER: &str = "x-batchwright-input";
/// On a failure that passes through the tracking worker: which attempt has failed and where it ran,
/// as the JSON of a [`FailedRun`](crate::FailedRun).
pub const RUN_HEADER: &str = "x-batchwright-run";
/// On a failure that passes through the tracking worker, of a task that has dispatched subtasks:
/// `true`.
pub const SPLIT_HEADER: &str = "x-batchwright-split";
/// On a task of a job that limits the time of its tasks: the seconds of a
/// [`TaskTimeLimit`](crate::TaskTimeLimit), as text. Tasks inherit it from the task that dispatches
/// or sends them.
pub const TASK_TIME_LIMIT_HEADER: &str = "x-batchwright-task-time-limit";
/// On a task that was sent by itself because its bundle came back to the broker: `true`. The
/// process that had the bundle may still run the task.
pub const RETURNED_HEADER: &str = "x-batchwright-returned";
/// On a message with tracking reports: their [details](crate::ReportDetails).
pub const REPORT_DETAILS_HEADER: &str = "x-batchwright-report-details";
/// On a message with tracking reports: `true` if its sender gathers reports, so that others of the
/// same jobs may follow at once. CAF's workers send each report when it is due.
pub const GATHERED_HEADER: &str = "x-batchwright-gathered";
/// On a message that passes through the tracking worker and comes back to it: `true` if it has gone
/// on to its pipe, and is only to be counted.
pub const FORWARDED_HEADER: &str = "x-batchwright-forwarded";

/// On a message in an invalid pipe, and on a copy in a reject pipe: the reason why it is there.
pub const REASON_HEADER: &str = "x-batchwright-reason";
/// On a message in an invalid pipe, and on a copy in a reject pipe: the name of the pipe that it
/// came from.
pub const ORIGIN_HEADER: &str = "x-batchwright-origin";
/// On a message in an invalid pipe, and on a copy in a reject pipe: what kind of reason that is, as
/// a [`LetterCause`](crate::rest::LetterCause).
pub const CAUSE_HEADER: &str = "x-batchwright-cause";
/// On a message in an invalid pipe, and on a copy in a reject pipe: the name of the worker that has
/// put it there.
pub const WORKER_HEADER: &str = "x-batchwright-worker";
/// On a message in an invalid pipe: a name that no other message there has.
pub const LETTER_HEADER: &str = "x-batchwright-letter";

/// On a task that waits for a condition: the JSON of the [`Condition`](crate::Condition).
pub const CONDITION_HEADER: &str = "x-batchwright-condition";
/// On a task that waits, or has waited, for a condition: how often it was blocked, this time
/// included.
pub const BLOCKS_HEADER: &str = "x-batchwright-blocks";

/// On the answer to a status check: the pipe to which tasks go that wait for a condition. Absent if
/// the job service keeps none.
pub const BLOCKED_PIPE_HEADER: &str = "x-batchwright-blocked-pipe";
/// On the answer to a status check: the keys of the conditions for which as many tasks wait as may,
/// separated by spaces.
pub const FULL_CONDITIONS_HEADER: &str = "x-batchwright-full-conditions";
/// Among these keys: no condition takes further tasks.
pub const EVERY_CONDITION: &str = "*";

/// The path of the first task of a job, which has no number.
pub const FIRST_TASK: &str = "0";

/// The longest job and path in a header, in bytes. Ids of ours are shorter; a longer one is left
/// out.
const LONGEST: usize = JobTaskId::MAX_BYTES;

/// What became of a task at the worker that sent the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The worker has done the task.
    Done,
    /// The worker has done the task, and says that the result is a negative one.
    Negative,
    /// The task has failed.
    Failed,
    /// The worker has not understood the task.
    Invalid,
}

impl Outcome {
    /// Returns the outcome that a message of this status tells; `None` for a request.
    pub const fn of(status: TaskStatus) -> Option<Self> {
        match status {
            TaskStatus::NewTask => None,
            TaskStatus::ResultSuccess => Some(Self::Done),
            TaskStatus::ResultFailure => Some(Self::Negative),
            TaskStatus::ResultException => Some(Self::Failed),
            TaskStatus::InvalidTask => Some(Self::Invalid),
        }
    }

    /// Returns the word in the header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Negative => "negative",
            Self::Failed => "failed",
            Self::Invalid => "invalid",
        }
    }
}

/// Returns the job of a job task id, `partition:job`, and the path from the job to the task: the
/// numbers of the id, e.g. `3.17`, or [`FIRST_TASK`]. Returns `None` if the id names no job, or is
/// longer than any id of ours.
///
/// Every output needs both, so this does not parse the numbers.
///
/// ```
/// use batchwright_contract::headers::job_and_path;
///
/// let (job, path) = job_and_path("acme:reindex!42.3.7*").unwrap();
/// assert_eq!((&*job, &*path), ("acme:reindex", "3.7"));
/// ```
pub fn job_and_path(job_task_id: &str) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    let (partition, rest) = match job_task_id.split_once(':') {
        Some((partition, rest)) => (Some(partition), rest),
        None => (None, job_task_id),
    };
    let (head, path) = rest.split_once('.').unwrap_or((rest, FIRST_TASK));
    // The life of the job, behind the `!`, is of no use to the reader of a result.
    let id = head.split_once('!').map_or(head, |(id, _)| id);
    if job_task_id.len() > LONGEST || id.is_empty() || partition.is_some_and(str::is_empty) {
        return None;
    }
    let job = match partition {
        Some(partition) => Cow::Borrowed(&job_task_id[..partition.len() + 1 + id.len()]),
        None => Cow::Owned(format!("{}:{id}", JobTaskId::DEFAULT_PARTITION)),
    };
    let path = if path.contains('*') {
        Cow::Owned(path.replace('*', ""))
    } else {
        Cow::Borrowed(path)
    };
    Some((job, path))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn job_and_path_are_read_from_every_form_of_the_id() {
        for (id, expected) in [
            ("acme:reindex.3.17", Some(("acme:reindex", "3.17"))),
            ("acme:reindex.3*.17*", Some(("acme:reindex", "3.17"))),
            ("acme:reindex!42.3", Some(("acme:reindex", "3"))),
            ("acme:reindex!42r2.1.3", Some(("acme:reindex", "1.3"))),
            ("acme:reindex", Some(("acme:reindex", "0"))),
            ("reindex.3", Some(("default:reindex", "3"))),
            (":reindex.3", None),
            ("acme:.3", None),
            ("acme:!1.3", None),
            ("", None),
        ] {
            let read = job_and_path(id);
            let read = read.as_ref().map(|(job, path)| (&**job, &**path));
            assert_eq!(read, expected, "{id}");
        }
        assert_eq!(job_and_path(&format!("p:j{}", ".1".repeat(2000))), None);
    }

    proptest! {
        #[test]
        fn job_and_path_are_those_that_parsing_finds(id in "([a-z]{1,9}:)?[a-z]{1,9}(![1-9])?([.][1-9][0-9]?[*]?){0,9}") {
            let parsed = JobTaskId::parse(&id).unwrap();
            let (job, path) = job_and_path(&id).unwrap();
            prop_assert_eq!(&*job, format!("{}:{}", parsed.partition, parsed.job));
            let steps: Vec<_> = parsed.steps.iter().map(|step| step.number.to_string()).collect();
            let expected = if steps.is_empty() { FIRST_TASK.to_owned() } else { steps.join(".") };
            prop_assert_eq!(&*path, expected);
        }

        #[test]
        fn no_id_panics(id in ".*") {
            let _ = job_and_path(&id);
        }
    }
}
