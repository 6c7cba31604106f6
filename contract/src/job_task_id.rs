//! The job task id: names one task of one incarnation of one job. The field `jobTaskId` of messages
//! and reports.
//!
//! ```text
//! jobTaskId   = [ partition ":" ] job [ "!" incarnation [ "r" round ] ] *( "." number [ "*" ] )
//! ```
//!
//! A task that is split numbers its subtasks from 1, in publish order. Its own final message has
//! the next number, marked with `*`. The number of a marked step is therefore the number of
//! children of its parent.
//!
//! This is CAF's format, with one addition: if a job id is used again after a deletion, the new job
//! writes its incarnation, and a job that was taken up again writes its incarnation and its round,
//! from 2. The first round of the first job with an id uses CAF's plain form.
//!
//! What must stay true: every subtask that a worker dispatches has an id that the ledger can
//! count: it has at most [`JobTaskId::MAX_DEPTH`] steps.

use std::fmt;

/// One step on the way from a job to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The number of the task among its siblings, from 1 to 2147483647.
    pub number: u32,
    /// Whether `*` follows the number: the task is the last of its siblings.
    pub last: bool,
}

/// A parsed job task id. `Display` returns its text, always with the partition.
///
/// ```
/// use batchwright_contract::JobTaskId;
///
/// let id = JobTaskId::parse("acme:reindex!42.3.7*").unwrap();
/// assert_eq!((id.partition.as_str(), id.job.as_str(), id.incarnation), ("acme", "reindex", Some(42)));
/// assert_eq!(id.to_string(), "acme:reindex!42.3.7*");
/// assert!(id.steps[1].last); // task 3 has seven children
/// assert_eq!(JobTaskId::parse("acme:reindex!42r2.3").unwrap().round, 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobTaskId {
    /// The partition of the job.
    pub partition: String,
    /// The id of the job.
    pub job: String,
    /// The incarnation; `None` for the first job with this id.
    pub incarnation: Option<i64>,
    /// The round, from 1. An id without an incarnation is of round 1.
    pub round: u32,
    /// The steps from the job to the task; empty for the first task of the job.
    pub steps: Vec<Step>,
}

/// Why a text is not a valid job task id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobTaskIdError {
    /// The job or the partition is empty.
    #[error("the job task id {0:?} contains no job id")]
    NoJob(String),
    /// A step, the incarnation or the round is not a valid number.
    #[error("the job task id {id:?} contains {part:?}; expected a number from 1 to 2147483647")]
    BadNumber {
        /// The whole id.
        id: String,
        /// The part that is not a valid number.
        part: String,
    },
    /// There are more than [`JobTaskId::MAX_DEPTH`] steps.
    #[error(
        "the job task id is nested deeper than {} levels",
        JobTaskId::MAX_DEPTH
    )]
    TooDeep,
}

impl JobTaskId {
    /// The partition of an id that contains none. Messages of old CAF versions have no partitions.
    pub const DEFAULT_PARTITION: &'static str = "default";
    /// The maximum number of steps.
    pub const MAX_DEPTH: usize = 64;
    /// The maximum length of the id of a subtask, in bytes. An id of ours with [`Self::MAX_DEPTH`]
    /// steps is shorter.
    pub const MAX_BYTES: usize = 2048;

    /// Parses a job task id.
    ///
    /// # Errors
    /// Returns an error if the partition or the job is empty, if the incarnation, the round or a
    /// step is not a valid number, or if there are too many steps. Does not check the characters of
    /// the partition and the job.
    pub fn parse(text: &str) -> Result<Self, JobTaskIdError> {
        let (partition, rest) = text
            .split_once(':')
            .unwrap_or((Self::DEFAULT_PARTITION, text));
        let (head, tail) = match rest.split_once('.') {
            Some((head, tail)) => (head, Some(tail)),
            None => (rest, None),
        };
        let bad = |part: &str| JobTaskIdError::BadNumber {
            id: text.to_owned(),
            part: part.to_owned(),
        };
        let (job, incarnation, round) = match head.split_once('!') {
            Some((job, life)) => {
                let (incarnation, round) = parse_life(life).ok_or_else(|| bad(life))?;
                (job, Some(incarnation), round)
            }
            None => (head, None, 1),
        };
        if job.is_empty() || partition.is_empty() {
            return Err(JobTaskIdError::NoJob(text.to_owned()));
        }
        let mut steps = Vec::new();
        for part in tail.into_iter().flat_map(|tail| tail.split('.')) {
            let (digits, last) = match part.strip_suffix('*') {
                Some(digits) => (digits, true),
                None => (part, false),
            };
            // At most i32::MAX, because the task table stores the number as an `integer`.
            let number = digits
                .bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| digits.parse::<i32>().ok())
                .flatten();
            let number = number
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .ok_or_else(|| bad(part))?;
            if steps.len() == Self::MAX_DEPTH {
                return Err(JobTaskIdError::TooDeep);
            }
            steps.push(Step { number, last });
        }
        Ok(Self {
            partition: partition.to_owned(),
            job: job.to_owned(),
            incarnation,
            round,
            steps,
        })
    }
}

/// Parses what follows the `!`: an incarnation, and a round from 2 on.
fn parse_life(text: &str) -> Option<(i64, u32)> {
    let (incarnation, round) = match text.split_once('r') {
        Some((incarnation, round)) if round.bytes().all(|b| b.is_ascii_digit()) => {
            let round: i32 = round.parse().ok().filter(|round| *round > 1)?;
            (incarnation, u32::try_from(round).ok()?)
        }
        Some(_) => return None,
        None => (text, 1),
    };
    let incarnation = incarnation.parse().ok().filter(|n| *n > 0)?;
    Some((incarnation, round))
}

impl fmt::Display for JobTaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.job)?;
        if let Some(n) = self.incarnation {
            write!(f, "!{n}")?;
            if self.round > 1 {
                write!(f, "r{}", self.round)?;
            }
        }
        for step in &self.steps {
            write!(f, ".{}{}", step.number, if step.last { "*" } else { "" })?;
        }
        Ok(())
    }
}

/// Why a task cannot have subtasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NestingError {
    /// The job task id has [`JobTaskId::MAX_DEPTH`] steps.
    #[error(
        "the task is on level {} of its job, the deepest one, and cannot have subtasks. Split into more parts per level",
        JobTaskId::MAX_DEPTH
    )]
    TooDeep,
    /// The id of a subtask would have more than [`JobTaskId::MAX_BYTES`] bytes.
    #[error(
        "the id of a subtask would be longer than {} bytes. Split into more parts per level, or choose a shorter id for the first \
         task",
        JobTaskId::MAX_BYTES
    )]
    TooLong,
}

/// Checks that the subtasks of a task have ids that [`JobTaskId::parse`] accepts. Without it,
/// nothing would count them.
///
/// # Errors
/// Returns an error if the job task id has too many steps, or if one of the two ids would become
/// too long.
pub fn check_nesting(task_id: &str, job_task_id: Option<&str>) -> Result<(), NestingError> {
    // "." and "2147483647*"
    const LONGEST_STEP: usize = 12;
    let job_task_id = job_task_id.unwrap_or_default();
    let steps = job_task_id
        .split_once(':')
        .map_or(job_task_id, |(_, job)| job);
    if steps.matches('.').count() >= JobTaskId::MAX_DEPTH {
        return Err(NestingError::TooDeep);
    }
    if task_id.len().max(job_task_id.len()) + LONGEST_STEP > JobTaskId::MAX_BYTES {
        return Err(NestingError::TooLong);
    }
    Ok(())
}

/// Returns the id of a subtask. Works for task ids and for job task ids.
///
/// ```
/// assert_eq!(batchwright_contract::subtask_id("acme:reindex.2*", 3, true), "acme:reindex.2*.3*");
/// ```
pub fn subtask_id(parent: &str, number: u32, last: bool) -> String {
    // Without the formatting of the standard library, which takes several times as long: each task
    // has some such ids.
    let (mut digits, mark) = (itoa::Buffer::new(), if last { "*" } else { "" });
    [parent, ".", digits.format(number), mark].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn id_without_a_partition_is_in_the_default_partition() {
        let id = JobTaskId::parse("job1.2").unwrap();
        assert_eq!(
            (id.partition.as_str(), id.job.as_str()),
            ("default", "job1")
        );
    }

    #[test]
    fn invalid_part_is_rejected_and_named() {
        for (text, part) in [
            ("p:j.", ""),
            ("p:j.0", "0"),
            ("p:j.1.x", "x"),
            ("p:j.+1", "+1"),
            ("p:j.2147483648", "2147483648"),
            ("p:j!0", "0"),
            ("p:j!x.1", "x"),
            ("p:j!7r.1", "7r"),
            ("p:j!7r1", "7r1"),
            ("p:j!7r+2", "7r+2"),
            ("p:j!7r2147483648", "7r2147483648"),
            ("p:j!r2", "r2"),
        ] {
            let error = JobTaskId::parse(text).unwrap_err();
            assert_eq!(
                error,
                JobTaskIdError::BadNumber {
                    id: text.into(),
                    part: part.into()
                }
            );
        }
        assert!(matches!(
            JobTaskId::parse(":j"),
            Err(JobTaskIdError::NoJob(_))
        ));
        assert!(matches!(
            JobTaskId::parse("p:.1"),
            Err(JobTaskIdError::NoJob(_))
        ));
        assert_eq!(
            JobTaskId::parse(&format!("p:j{}", ".1".repeat(65))),
            Err(JobTaskIdError::TooDeep)
        );
    }

    #[test]
    fn a_task_on_the_deepest_level_or_with_a_long_id_cannot_have_subtasks() {
        let level = |steps: usize| format!("p:j{}", ".2147483647*".repeat(steps));
        let long = "t".repeat(2037);
        for (task_id, job_task_id, expected) in [
            ("t", Some(level(63)), Ok(())),
            ("t", Some(level(64)), Err(NestingError::TooDeep)),
            ("t", None, Ok(())),
            (&long[1..], None, Ok(())),
            (&long, None, Err(NestingError::TooLong)),
            (&long, Some(level(0)), Err(NestingError::TooLong)),
            ("t", Some(format!("p:{long}")), Err(NestingError::TooLong)),
        ] {
            let checked = check_nesting(task_id, job_task_id.as_deref());
            assert_eq!(checked, expected, "{task_id:.9} {job_task_id:?}");
        }
    }

    proptest! {
        #[test]
        fn every_subtask_of_a_task_that_may_have_some_can_be_parsed(
            partition in "[a-z0-9ü]{1,40}", job in "[A-Za-z0-9ü]{1,48}", (incarnation, round) in life(),
            steps in proptest::collection::vec((1u32..=i32::MAX as u32, any::<bool>()), 0..70), number in 1u32..=i32::MAX as u32,
        ) {
            let steps: Vec<Step> = steps.into_iter().map(|(number, last)| Step { number, last }).collect();
            let depth = steps.len();
            let id = JobTaskId { partition, job, incarnation, round, steps }.to_string();
            prop_assert_eq!(check_nesting("t", Some(&id)).is_ok(), depth < JobTaskId::MAX_DEPTH);
            if depth < JobTaskId::MAX_DEPTH {
                prop_assert!(JobTaskId::parse(&subtask_id(&id, number, true)).is_ok());
            }
        }

        #[test]
        fn parsing_reverses_formatting(
            partition in "[a-z0-9-]{1,40}", job in "[A-Za-z0-9_-]{1,48}", (incarnation, round) in life(),
            steps in proptest::collection::vec((1u32..=i32::MAX as u32, any::<bool>()), 0..8),
        ) {
            let steps = steps.into_iter().map(|(number, last)| Step { number, last }).collect();
            let id = JobTaskId { partition, job, incarnation, round, steps };
            prop_assert_eq!(JobTaskId::parse(&id.to_string()), Ok(id));
        }

        #[test]
        fn no_text_panics(text in prop_oneof![".*", "p:j![0-9r+-]{0,12}(\\.[0-9*]{0,4}){0,3}"]) {
            if let Ok(id) = JobTaskId::parse(&text) {
                prop_assert_eq!(JobTaskId::parse(&id.to_string()), Ok(id));
            }
        }
    }

    fn life() -> impl Strategy<Value = (Option<i64>, u32)> {
        prop_oneof![
            Just((None, 1)),
            (1i64.., 1..=i32::MAX as u32)
                .prop_map(|(incarnation, round)| (Some(incarnation), round)),
        ]
    }
}
