//! What the output of a job says: how many tests passed and failed, and why.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitStatus;
use std::time::Duration;

use crate::job::describe;

/// Of a job that failed without naming a test, this much of the end of its output is shown.
const TAIL: usize = 60;
/// Of the failures that a test binary prints, at most this many lines are shown. The file has them
/// all.
const LONGEST: usize = 400;

/// The counts of a job. A job that failed for another reason than a failed test counts as one
/// failure.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
    /// What to show of a job that failed.
    pub reason: String,
}

impl Outcome {
    /// Reads the output of a job that ended by itself.
    pub fn of(output: &str, status: ExitStatus, is_test_binary: bool) -> Self {
        let mut outcome = Self::default();
        let mut results = 0;
        for line in output.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                results += 1;
                outcome.passed += count(result, "passed");
                outcome.failed += count(result, "failed");
                outcome.ignored += count(result, "ignored");
            }
        }
        let complete = results > 0 && (!is_test_binary || results == 1);
        if outcome.failed > 0 {
            outcome.reason = failures(output);
        } else if !status.success() || !complete {
            outcome.failed = 1;
            outcome.reason = format!("no result: {}\n{}", describe(status), tail(output));
        }
        outcome
    }

    /// A job that was killed because it exceeded its limit. `all` are the tests that it has, if
    /// that is known.
    pub fn timed_out(output: &str, limit: Duration, all: &[String]) -> Self {
        let mut outcome = Self::default();
        let mut ended = BTreeSet::new();
        for line in output.lines() {
            let Some((name, result)) = line
                .strip_prefix("test ")
                .and_then(|test| test.rsplit_once(" ... "))
            else {
                continue;
            };
            match result {
                "ok" => outcome.passed += 1,
                "FAILED" => outcome.failed += 1,
                _ => outcome.ignored += 1,
            }
            ended.insert(name.strip_suffix(" - should panic").unwrap_or(name));
        }
        let hanging: Vec<&str> = all
            .iter()
            .map(String::as_str)
            .filter(|name| !ended.contains(name))
            .collect();
        outcome.failed += hanging.len().max(1) as u64;
        let mut reason = format!("killed after {limit:?}");
        if !hanging.is_empty() {
            let _ = write!(reason, "; not finished:\n  {}", hanging.join("\n  "));
        }
        outcome.reason = format!("{reason}\n{}", tail(output));
        outcome
    }

    /// A job that could not be run.
    pub fn failure(reason: String) -> Self {
        Self {
            failed: 1,
            reason,
            ..Self::default()
        }
    }
}

/// Returns the number before a word, as in `ok. 12 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> u64 {
    result
        .split(['.', ';'])
        .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns what a test binary prints about its failures.
fn failures(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let begin = lines
        .iter()
        .position(|line| *line == "failures:")
        .unwrap_or(lines.len().saturating_sub(TAIL));
    let end = lines.len().min(begin + LONGEST);
    lines[begin..end].join("\n")
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const PASSED: &str = "\nrunning 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ignored\n\n\
        test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";

    fn ended(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn the_result_line_is_counted() {
        let outcome = Outcome::of(PASSED, ended(0), true);
        assert_eq!((outcome.passed, outcome.failed, outcome.ignored), (2, 0, 1));
    }

    #[test]
    fn several_results_are_added_up_for_a_command() {
        let outcome = Outcome::of(&PASSED.repeat(2), ended(0), false);
        assert_eq!((outcome.passed, outcome.failed), (4, 0));
        let outcome = Outcome::of(&PASSED.repeat(2), ended(0), true);
        assert_eq!(outcome.failed, 1, "a test binary has one result");
    }

    #[test]
    fn failed_tests_are_shown_from_the_heading_on() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nboom\n\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let outcome = Outcome::of(output, ended(101), true);
        assert_eq!((outcome.passed, outcome.failed), (1, 1));
        assert!(
            outcome.reason.starts_with("failures:\n\n---- a stdout"),
            "{}",
            outcome.reason
        );
    }

    #[test]
    fn a_job_without_a_result_or_with_a_bad_exit_code_counts_as_failed() {
        for (output, code) in [("running 3 tests\n", 134), ("", 0), (PASSED, 1)] {
            let outcome = Outcome::of(output, ended(code), true);
            assert_eq!(outcome.failed, 1, "{output:?} {code}");
            assert!(
                outcome.reason.starts_with("no result: "),
                "{}",
                outcome.reason
            );
        }
    }

    #[test]
    fn the_tests_that_did_not_finish_in_time_are_named() {
        let output = "running 3 tests\ntest fine ... ok\ntest broken - should panic ... FAILED\n";
        let all = ["fine", "broken", "hanging"].map(str::to_owned);
        let outcome = Outcome::timed_out(output, Duration::from_mins(5), &all);
        assert_eq!((outcome.passed, outcome.failed), (1, 2));
        assert!(
            outcome
                .reason
                .starts_with("killed after 300s; not finished:\n  hanging\nrunning"),
            "{}",
            outcome.reason
        );
    }
}
