//! Which tasks of a job are read, and where a page ends.

use std::fmt;
use std::str::FromStr;

use contract::JobTaskId;
use contract::rest::SubtaskState;

use crate::ledger::NodeRow;

/// Which tasks [`Store::tasks`](crate::Store::tasks) returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskQuery {
    /// The path of the task whose subtasks are returned; empty for the job's own task.
    pub under: Vec<u32>,
    /// The states of the tasks. Empty means all.
    pub states: Vec<SubtaskState>,
    /// Whether tasks that have failed, and those with failures below, come first. Not with `deep`.
    pub failed_first: bool,
    /// Whether the subtasks of open splits follow each of these, at any depth.
    pub deep: bool,
    /// Where the page before this one ended.
    pub after: Option<TaskCursor>,
    /// The largest number of tasks and ranges.
    pub limit: usize,
}

impl TaskQuery {
    /// Returns a query for all subtasks of the job's own task.
    pub const fn new(limit: usize) -> Self {
        Self {
            under: Vec::new(),
            states: Vec::new(),
            failed_first: false,
            deep: false,
            after: None,
            limit,
        }
    }

    pub(super) fn wants(&self, state: SubtaskState) -> bool {
        self.states.is_empty() || self.states.contains(&state)
    }

    /// Returns whether an open split may have tasks of these states below it, as far as its row
    /// tells.
    pub(super) fn may_find_below(&self, split: &NodeRow) -> bool {
        let has_failed = split.failed_count > 0 && self.wants(SubtaskState::Failed);
        let has_bits_only = self.wants(SubtaskState::Waiting) || self.wants(SubtaskState::Done);
        split.kept > 0 || has_failed || has_bits_only
    }

    /// Returns whether a page of this query can end at this place.
    pub fn can_go_on(&self, after: &TaskCursor) -> bool {
        let depth_fits = self.deep || after.path.len() == self.under.len();
        let pass_fits = after.pass == 0 || self.failed_first;
        depth_fits && pass_fits && after.path.starts_with(&self.under)
    }
}

/// A place among the tasks of a job: behind a subtask of a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCursor {
    /// 0, or 1 for the tasks that come after those that have failed.
    pub(super) pass: u8,
    /// The path of the split.
    pub(super) path: Vec<u32>,
    /// The number of the subtask, or 0 before the first one.
    pub(super) number: u32,
}

impl fmt::Display for TaskCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.pass)?;
        for step in &self.path {
            write!(f, "{step}.")?;
        }
        write!(f, "{}", self.number)
    }
}

impl FromStr for TaskCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (pass, path) = text.split_once('-')?;
            let pass = match pass {
                "0" => 0,
                "1" => 1,
                _ => return None,
            };
            let number = |text: &str| {
                let digits = text.bytes().all(|b| b.is_ascii_digit());
                text.parse()
                    .ok()
                    .filter(|n| digits && i32::try_from(*n).is_ok())
            };
            // More steps than a task can have.
            let steps = path.splitn(JobTaskId::MAX_DEPTH + 2, '.');
            let mut path: Vec<u32> = steps.map(number).collect::<Option<_>>()?;
            let number = path.pop()?;
            let is_path = path.iter().all(|step| *step > 0);
            is_path.then_some(Self { pass, path, number })
        };
        parse().ok_or_else(|| {
            format!(
                "'{text}' is no place among these tasks; use the value of 'next' of the page before"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_as_it_is_written_and_nothing_else_does() {
        for text in ["0-0", "1-17", "0-3.17", "0-3.2147483647.0"] {
            assert_eq!(text.parse::<TaskCursor>().unwrap().to_string(), text);
        }
        let deep = format!("0-{}1", "1.".repeat(80));
        for text in [
            "",
            "0",
            "-",
            "2-1",
            "0-",
            "0-x",
            "0-1.",
            "0-.1",
            "0-0.1",
            "0-+1",
            "0--1",
            "0-2147483648",
            "0-99999999999",
            &deep,
        ] {
            assert!(text.parse::<TaskCursor>().is_err(), "{text}");
        }
    }
}
