//! The pipes that belong to the system itself: no request, no batch and no task may address a
//! message to one. Pure.
//!
//! The rule is applied to `to`, the pipe that a message is addressed to, and to names that become
//! one. It is not applied to hops: the framework itself moves messages to these pipes.
//!
//! What must stay true: a name that the framework makes for a delay or a quarantine is reserved,
//! whatever the configuration.

use std::fmt;

use crate::MAX_PIPE_BYTES;
use crate::tracking_pipes::{is_beside_tracking_pipe, is_tracking_pipe};

/// Between the name of a pipe and a delay in milliseconds, in the name of the queue for messages
/// with that delay.
const DELAY_INFIX: &str = ".delay.";
/// The end of the name of a quarantine pipe.
const QUARANTINE_SUFFIX: &str = ".suspects";
/// The end of the name of a pipe with bundles.
const BUNDLE_SUFFIX: &str = ".bundles";
/// The end of the name of the pipe where tracking ends for a job that keeps its outputs. No pipe
/// has such a name.
const KEPT_SUFFIX: &str = ".kept";
/// The beginning of the name of the queue with the questions about a pipe.
const QUERIES_PREFIX: &str = "batchwright.queries.";
/// The end of the name of a pipe with the dead letters that are above the bound of their job.
const OVERFLOW_SUFFIX: &str = ".overflow";

/// The end of the name of the pipe with the tasks that wait for conditions.
const BLOCKED_SUFFIX: &str = ".blocked";

/// What a reserved pipe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipePurpose {
    /// Holds the messages of another pipe for a time.
    Delay,
    /// Holds tasks that processes held when they died.
    Quarantine,
    /// Holds bundles of tasks for another pipe.
    Bundles,
    /// The input of the tracking worker: what arrives there is counted.
    Tracking,
    /// Holds the tasks of paused jobs until the job service parks them.
    Paused,
    /// Holds tasks that wait for a condition until the job service has taken them.
    Blocked,
    /// Holds messages that could not be understood.
    Invalid,
    /// Holds copies of tasks that were given up.
    Reject,
    /// Holds the results that the output worker keeps. Only results may be addressed to it.
    Outputs,
    /// The name where the tracking of kept outputs ends. There is no such pipe.
    Kept,
    /// Holds the questions of job services about another pipe.
    Queries,
}

/// The pipes that an installation reserves for itself.
///
/// The names for delays, quarantines, bundles, kept outputs and questions (`*.delay.<number>`,
/// `*.suspects`, `*.bundles`, `*.kept`, `batchwright.queries.*`) are always reserved, the others as
/// configured. Case matters, as it does to the broker, except for the tracking pipe: the tracking
/// worker takes every message as its own whose `to` is [the same pipe](crate::same_pipe). With the
/// tracking pipe, all [shards](crate::TrackingShards) of it are reserved that there may be.
///
/// ```
/// use batchwright_contract::{PipePurpose, ReservedPipes};
///
/// let reserved = ReservedPipes::default().reserve(PipePurpose::Tracking, "worker-jobtracking-in");
/// assert!(reserved.check("orders-in", None).is_ok());
/// assert!(reserved.check("worker-jobtracking-in", None).is_err());
/// assert!(reserved.check("orders-in.delay.400", None).is_err());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedPipes {
    pipes: Vec<(String, PipePurpose)>,
    allowed: Vec<String>,
}

/// A pipe that nothing may be addressed to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no task may be addressed to the pipe '{pipe}', {purpose}. Name the input pipe of a worker; if this pipe is one, its \
     operator can allow it by the setting `allowed-pipe`"
)]
pub struct ReservedPipe {
    /// The name of the pipe.
    pub pipe: String,
    /// What the pipe is for.
    pub purpose: PipePurpose,
}

impl ReservedPipes {
    /// Reserves a pipe, unless the name is empty.
    #[must_use]
    pub fn reserve(mut self, purpose: PipePurpose, pipe: impl Into<String>) -> Self {
        let pipe = pipe.into();
        if !pipe.is_empty() {
            self.pipes.push((pipe, purpose));
        }
        self
    }

    /// Allows pipes by their exact names, although they are reserved.
    #[must_use]
    pub fn allow(mut self, pipes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed.extend(pipes.into_iter().map(Into::into));
        self
    }

    /// Checks that a message may be addressed to a pipe. `tracking_pipe` is that of the message, if
    /// it is tracked; it is reserved in addition, with the other shards of the same tracking pipe.
    ///
    /// # Errors
    /// Returns an error with the purpose of the pipe if it is reserved and not allowed.
    pub fn check(&self, pipe: &str, tracking_pipe: Option<&str>) -> Result<(), ReservedPipe> {
        let is_tracking = tracking_pipe
            .is_some_and(|tracking| !pipe.is_empty() && is_beside_tracking_pipe(tracking, pipe));
        let purpose = own_purpose(pipe)
            .or(is_tracking.then_some(PipePurpose::Tracking))
            .or_else(|| self.configured_purpose(pipe));
        match purpose {
            Some(purpose) if !self.allowed.iter().any(|allowed| allowed == pipe) => {
                Err(ReservedPipe {
                    pipe: pipe.to_owned(),
                    purpose,
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks that a result may be addressed to a pipe: as [`Self::check`], but the pipe of the
    /// outputs that the service keeps is for results.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_result(
        &self,
        pipe: &str,
        tracking_pipe: Option<&str>,
    ) -> Result<(), ReservedPipe> {
        match self.check(pipe, tracking_pipe) {
            Err(ReservedPipe {
                purpose: PipePurpose::Outputs,
                ..
            }) => Ok(()),
            checked => checked,
        }
    }

    fn configured_purpose(&self, pipe: &str) -> Option<PipePurpose> {
        let is_found = |(name, purpose): &&(String, PipePurpose)| {
            name == pipe || (*purpose == PipePurpose::Tracking && is_tracking_pipe(name, pipe))
        };
        self.pipes
            .iter()
            .find(is_found)
            .map(|(_, purpose)| *purpose)
    }
}

/// Returns the name of the queue for messages of a pipe that are delayed by this many milliseconds.
pub fn delay_pipe(pipe: &str, millis: i64) -> String {
    format!("{pipe}{DELAY_INFIX}{millis}")
}

/// Returns the name of the quarantine of an input pipe.
pub fn quarantine_pipe(input: &str) -> String {
    format!("{input}{QUARANTINE_SUFFIX}")
}

/// Returns the name of the pipe with the bundles for an input pipe; `None` if it would be too long,
/// or the pipe is a reserved one itself.
pub fn bundle_pipe(input: &str) -> Option<String> {
    has_bundle_pipe(input).then(|| format!("{input}{BUNDLE_SUFFIX}"))
}

/// Returns whether an input pipe has one of [`bundle_pipe`].
pub fn has_bundle_pipe(input: &str) -> bool {
    input.len() + BUNDLE_SUFFIX.len() <= MAX_PIPE_BYTES && own_purpose(input).is_none()
}

/// Returns whether a pipe is one of [`bundle_pipe`].
pub fn is_bundle_pipe(pipe: &str) -> bool {
    input_of_bundles(pipe).is_some()
}

/// Returns the input pipe for whose bundles a pipe is; `None` if it is for none.
pub fn input_of_bundles(pipe: &str) -> Option<&str> {
    pipe.strip_suffix(BUNDLE_SUFFIX)
}

/// Returns the pipe of the tasks that wait for a condition, beside the paused pipe of a job
/// service. Empty if that has none, and if the name would be too long.
pub fn blocked_pipe(paused: &str) -> String {
    if paused.is_empty() || paused.len() + BLOCKED_SUFFIX.len() > MAX_PIPE_BYTES {
        return String::new();
    }
    format!("{paused}{BLOCKED_SUFFIX}")
}

/// Returns the name of the queue with the questions about a pipe.
pub fn queries_pipe(pipe: &str) -> String {
    format!("{QUERIES_PREFIX}{pipe}")
}

/// Returns where tracking ends (`trackTo`) for a job whose outputs are kept from the pipe
/// `outputs`: a name that no pipe has, so that the tracking of a result does not end in that pipe.
pub fn kept_track_to(outputs: &str) -> String {
    format!("{outputs}{KEPT_SUFFIX}")
}

/// Returns the pipe to which the results of a task go whose tracking ends at `track_to`, if its job
/// keeps its outputs.
pub fn kept_outputs_pipe(track_to: &str) -> Option<&str> {
    track_to
        .strip_suffix(KEPT_SUFFIX)
        .filter(|outputs| !outputs.is_empty())
}

/// Returns the pipe to which a quarantine pipe belongs. Any other pipe is that itself.
pub fn input_of_quarantine(pipe: &str) -> &str {
    pipe.strip_suffix(QUARANTINE_SUFFIX).unwrap_or(pipe)
}

/// Returns the name of the pipe for the dead letters of a pipe that are above the bound of their
/// job. Pipes whose names are too long share one.
pub fn overflow_pipe(pipe: &str) -> String {
    let pipe = if pipe.len() + OVERFLOW_SUFFIX.len() > MAX_PIPE_BYTES {
        "dead-letters"
    } else {
        pipe
    };
    format!("{pipe}{OVERFLOW_SUFFIX}")
}

/// Returns what a pipe of this name is for in every installation, if the framework itself makes
/// such names.
fn own_purpose(pipe: &str) -> Option<PipePurpose> {
    if pipe.ends_with(QUARANTINE_SUFFIX) {
        Some(PipePurpose::Quarantine)
    } else if is_bundle_pipe(pipe) {
        Some(PipePurpose::Bundles)
    } else if is_delay_pipe(pipe) {
        Some(PipePurpose::Delay)
    } else if pipe.ends_with(KEPT_SUFFIX) {
        Some(PipePurpose::Kept)
    } else if pipe.starts_with(QUERIES_PREFIX) {
        Some(PipePurpose::Queries)
    } else {
        None
    }
}

/// Returns whether a name is one of [`delay_pipe`].
pub fn is_delay_pipe(pipe: &str) -> bool {
    pipe.rsplit_once(DELAY_INFIX).is_some_and(|(_, delay)| {
        !delay.is_empty() && delay.bytes().all(|byte| byte.is_ascii_digit())
    })
}

impl fmt::Display for PipePurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delay => {
                "which by its name (`.delay.` and a number) holds the delayed messages of another pipe"
            }
            Self::Quarantine => {
                "which by its name (`.suspects`) holds the quarantined tasks of another pipe"
            }
            Self::Bundles => {
                "which by its name (`.bundles`) holds bundles of tasks for another pipe"
            }
            Self::Tracking => "which is the tracking pipe",
            Self::Paused => "which is the paused pipe",
            Self::Blocked => "which is the pipe of the tasks that wait for a condition",
            Self::Invalid => "which is an invalid pipe",
            Self::Reject => "which is a reject pipe",
            Self::Outputs => {
                "which is for the results that the service keeps (a job keeps them by `\"outputs\": \"keep\"`)"
            }
            Self::Kept => {
                "which by its name (`.kept`) is where the tracking of kept outputs ends, and no pipe"
            }
            Self::Queries => {
                "which by its name (`batchwright.queries.`) holds questions about another pipe"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rounds_pipe, same_pipe};
    use proptest::prelude::*;

    fn configured() -> ReservedPipes {
        ReservedPipes::default()
            .reserve(PipePurpose::Tracking, "worker-jobtracking-in")
            .reserve(PipePurpose::Paused, "worker-paused-in")
            .reserve(PipePurpose::Invalid, "worker-batch-invalid")
            .reserve(PipePurpose::Reject, "worker-batch-reject")
            .reserve(PipePurpose::Reject, "")
            .reserve(PipePurpose::Outputs, "worker-output-in")
            .allow(["orders.suspects", "worker-batch-reject"])
    }

    #[test]
    fn our_own_suffixes_and_the_configured_pipes_are_reserved_and_what_looks_alike_is_not() {
        use PipePurpose::{
            Bundles, Delay, Invalid, Kept, Outputs, Paused, Quarantine, Queries, Tracking,
        };
        for (pipe, expected) in [
            ("worker-batch-in", None),
            ("worker-batch-in.delay.400", Some(Delay)),
            ("worker-batch-in.delay.400.delay.1", Some(Delay)),
            (".delay.0", Some(Delay)),
            ("a.delay.99999999999999999999999", Some(Delay)),
            ("a.delay.", None),
            ("a.delay.4s", None),
            ("a.delay.-4", None),
            ("a.delay.٤", None),
            ("a.delay.400.in", None),
            ("a-delay-400", None),
            ("a.DELAY.400", None),
            ("worker-batch-in.suspects", Some(Quarantine)),
            ("worker-batch-in.bundles", Some(Bundles)),
            ("bundles", None),
            ("suspects", None),
            ("a.suspects.in", None),
            ("worker-output-in", Some(Outputs)),
            ("worker-output-in.kept", Some(Kept)),
            (".kept", Some(Kept)),
            ("kept", None),
            ("batchwright.queries.worker-batch-in", Some(Queries)),
            ("batchwright.queries", None),
            ("my.batchwright.queries.in", None),
            ("worker-jobtracking-in", Some(Tracking)),
            ("Worker-JobTracking-IN", Some(Tracking)),
            ("worker-jobtracking-in-2", Some(Tracking)),
            ("worker-jobtracking-in-63.rounds", Some(Tracking)),
            ("worker-jobtracking-in-64", None),
            ("my-worker-jobtracking-in", None),
            ("worker-jobtracking-in.rounds", Some(Tracking)),
            ("worker-jobtracking-in-2.reports", Some(Tracking)),
            ("worker-paused-in.rounds", None),
            (".rounds", None),
            ("tracking-of-the-message", Some(Tracking)),
            ("tracking-of-the-message.rounds", Some(Tracking)),
            ("tracking-of-the-message-0", Some(Tracking)),
            ("worker-paused-in", Some(Paused)),
            ("Worker-Paused-in", None),
            ("worker-batch-invalid", Some(Invalid)),
            ("worker-orders-invalid", None),
            ("worker-batch-reject", None),
            ("orders.suspects", None),
            ("Orders.suspects", Some(Quarantine)),
            ("", None),
        ] {
            let checked = configured().check(pipe, Some("tracking-of-the-message"));
            assert_eq!(
                checked.err().map(|refusal| refusal.purpose),
                expected,
                "{pipe:?}"
            );
        }
    }

    #[test]
    fn refusal_names_the_pipe_its_purpose_and_the_remedy() {
        let refusal = configured().check("worker-jobtracking-in", None);
        assert_eq!(
            refusal.unwrap_err().to_string(),
            "no task may be addressed to the pipe 'worker-jobtracking-in', which is the tracking pipe. Name the input pipe of a \
             worker; if this pipe is one, its operator can allow it by the setting `allowed-pipe`"
        );
    }

    #[test]
    fn only_results_may_be_addressed_to_the_pipe_of_kept_outputs() {
        let checked = |pipe| configured().check_result(pipe, None).is_ok();
        assert!(checked("worker-output-in") && checked("orders-out"));
        assert!(!checked("worker-output-in.kept") && !checked("worker-jobtracking-in"));
        assert_eq!(
            kept_outputs_pipe(&kept_track_to("worker-output-in")),
            Some("worker-output-in")
        );
        assert_eq!(kept_outputs_pipe("orders-out"), None);
        assert_eq!(kept_outputs_pipe(".kept"), None);
    }

    #[test]
    fn pipe_of_later_rounds_is_beside_the_tracking_pipe_and_stays_the_same() {
        let rounds = rounds_pipe("worker-jobtracking-in");
        assert_eq!(rounds, "worker-jobtracking-in.rounds");
        assert_eq!(rounds_pipe(&rounds), rounds);
        let reserved = ReservedPipes::default();
        assert!(
            reserved
                .check("worker-jobtracking-in", Some(&rounds))
                .is_err()
        );
        let long = "t".repeat(249);
        assert_eq!(rounds_pipe(&long), long);
        assert_eq!(rounds_pipe(""), "");
    }

    proptest! {
        #[test]
        fn a_name_made_for_a_delay_or_a_quarantine_is_reserved(pipe in ".{0,300}", millis in 0i64..) {
            let reserved = ReservedPipes::default();
            prop_assert!(reserved.check(&delay_pipe(&pipe, millis), None).is_err());
            prop_assert!(reserved.check(&quarantine_pipe(&pipe), None).is_err());
            if let Some(bundles) = bundle_pipe(&pipe) {
                prop_assert!(reserved.check(&bundles, None).is_err());
            }
            prop_assert!(reserved.check(&kept_track_to(&pipe), None).is_err());
            prop_assert!(reserved.check(&queries_pipe(&pipe), None).is_err());
        }

        #[test]
        fn a_name_that_passes_is_no_reserved_pipe(pipe in "(?s).{0,20}(\\.delay\\.[0-9a]{0,3}|\\.suspects|)|[wW]orker-(paused|jobtracking)-[iI]n") {
            if configured().check(&pipe, None).is_ok() && pipe != "orders.suspects" {
                prop_assert!(!pipe.ends_with(".suspects"));
                let digits = pipe.trim_end_matches(|c: char| c.is_ascii_digit());
                prop_assert!(digits.len() == pipe.len() || !digits.ends_with(".delay."));
                prop_assert!(pipe != "worker-paused-in" && !same_pipe(&pipe, "worker-jobtracking-in"));
            }
        }
    }
}
