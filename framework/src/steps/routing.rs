//! Decides where messages go. Pure: each decision is a table.
//!
//! - [`admit`]: what happens to a message that has arrived.
//! - [`check_forward`]: whether a message that has arrived may go on to the pipe that it is
//!   addressed to.
//! - [`reply_pipe`], [`failure_pipe`]: which pipe a result is addressed to that names none itself.
//! - [`next_hop`]: which pipe an output goes to, whether tracking ends there, and what is reported.

use contract::{
    JobStatus, PipePurpose, ReportStatus, ReservedPipe, ReservedPipes, TaskMessage, TaskStatus,
    Tracking, kept_outputs_pipe, same_pipe,
};

use crate::config::Route;

/// What is known about the job of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKnowledge {
    /// Nothing is known: the message is not tracked, no check is due, or the check failed. The job
    /// is presumed active.
    Presumed,
    /// The job service returned this status.
    Is(JobStatus),
    /// The job service has no such job.
    Gone,
}

impl JobKnowledge {
    /// Returns whether the job is known to have ended.
    pub const fn has_ended(self) -> bool {
        match self {
            Self::Gone => true,
            Self::Is(status) => status.is_finished(),
            Self::Presumed => false,
        }
    }
}

/// What happens to a message that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The message is for this worker.
    Execute,
    /// The message is addressed to another pipe and passes through.
    Divert,
    /// The job is paused, and there is a pipe for tasks of paused jobs.
    Pause,
    /// The job has ended, so the message is dropped.
    Discard,
    /// The message has no `to`. If it is tracked it goes to its tracking pipe, otherwise to the
    /// invalid pipe.
    Stray,
}

/// Decides what happens to a message that has arrived in the pipe `input`.
pub fn admit(job: JobKnowledge, to: Option<&str>, input: &str, has_paused_pipe: bool) -> Admission {
    match (job, to) {
        (JobKnowledge::Gone, _) => Admission::Discard,
        (JobKnowledge::Is(status), _) if status.is_finished() => Admission::Discard,
        (_, None) => Admission::Stray,
        (_, Some(to)) if !same_pipe(to, input) => Admission::Divert,
        (JobKnowledge::Is(JobStatus::Paused), _) if has_paused_pipe => Admission::Pause,
        _ => Admission::Execute,
    }
}

/// Checks that a diverted message may go on to the pipe that it is addressed to. Results, and
/// messages that CAF's workers have given up, may go to invalid and reject pipes, where they end,
/// and to the pipe of the outputs that are kept.
pub fn check_forward(reserved: &ReservedPipes, message: &TaskMessage) -> Result<(), ReservedPipe> {
    let tracking = message.tracking.as_ref();
    let tracking_pipe = tracking.and_then(|tracking| tracking.tracking_pipe.as_deref());
    let to = message.to.as_deref().unwrap_or_default();
    match reserved.check(to, tracking_pipe) {
        Err(ReservedPipe {
            purpose: PipePurpose::Invalid | PipePurpose::Reject | PipePurpose::Outputs,
            ..
        }) if message.task_status != Some(TaskStatus::NewTask) => Ok(()),
        checked => checked,
    }
}

/// Returns the pipe of a reply that names none: the worker's own output pipe, or else the one that
/// the job asks for. That is where the service takes the outputs that it keeps, or where tracking
/// ends.
pub fn reply_pipe<'a>(
    configured: Option<&'a str>,
    tracking: Option<&'a Tracking>,
) -> Option<&'a str> {
    configured.or_else(|| {
        let track_to = tracking?.track_to.as_deref()?;
        Some(kept_outputs_pipe(track_to).unwrap_or(track_to))
    })
}

/// Returns the pipe of a failure: the worker's own output pipe, or else where the service takes the
/// outputs that it keeps. With `None`, the failure is only reported.
pub fn failure_pipe<'a>(
    configured: Option<&'a str>,
    tracking: Option<&'a Tracking>,
) -> Option<&'a str> {
    configured.or_else(|| kept_outputs_pipe(tracking?.track_to.as_deref()?))
}

/// Where an output goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop<'a> {
    /// The pipe to publish to; `None` if there is only a report and no message.
    pub pipe: Option<&'a str>,
    /// Whether the message carries tracking.
    pub is_tracked: bool,
    /// The status to report to the tracking pipe, if any.
    pub report: Option<ReportStatus>,
}

/// The pipes of a message that is tracked.
#[derive(Debug, Clone, Copy)]
pub struct TrackingPipes<'a> {
    /// The pipe of the tracking worker.
    pub tracking: Option<&'a str>,
    /// The pipe at which tracking ends.
    pub end: Option<&'a str>,
}

impl<'a> From<&'a Tracking> for TrackingPipes<'a> {
    fn from(tracking: &'a Tracking) -> Self {
        Self {
            tracking: tracking.tracking_pipe.as_deref(),
            end: tracking.track_to.as_deref(),
        }
    }
}

/// Decides where an output for the pipe `to` goes. With `None` there is no message, only a report.
pub fn next_hop<'a>(
    route: Route,
    to: Option<&'a str>,
    tracked: Option<TrackingPipes<'a>>,
    is_failure: bool,
) -> Hop<'a> {
    let Some(tracked) = tracked else {
        return Hop {
            pipe: to,
            is_tracked: false,
            report: None,
        };
    };
    let ends = ends_in(to, tracked.end);
    let report = if is_failure {
        ReportStatus::Failed
    } else {
        ReportStatus::Complete
    };
    let report = (is_failure || ends).then_some(report);
    match (route, to, tracked.tracking) {
        // The message itself is the report.
        (Route::Reroute, Some(_), Some(tracking_pipe)) => Hop {
            pipe: Some(tracking_pipe),
            is_tracked: true,
            report: None,
        },
        _ => Hop {
            pipe: to,
            is_tracked: !ends,
            report,
        },
    }
}

/// Returns whether the tracking of a message ends in the pipe `to`.
pub fn tracking_ends(to: Option<&str>, tracking: &Tracking) -> bool {
    ends_in(to, tracking.track_to.as_deref())
}

fn ends_in(to: Option<&str>, track_to: Option<&str>) -> bool {
    match (to, track_to) {
        (None, None) => true,
        (Some(to), Some(track_to)) => same_pipe(to, track_to),
        _ => false,
    }
}

/// Returns the status that a diverted message reports for its task: `Failed` if its task status is
/// a failure, `Complete` if its tracking ends where it is addressed to, otherwise `None`.
pub fn diverted_report(message: &TaskMessage) -> Option<ReportStatus> {
    let tracking = message
        .tracking
        .as_ref()
        .filter(|tracking| tracking.job_task_id.is_some())?;
    if message
        .task_status
        .is_some_and(contract::TaskStatus::is_failure)
    {
        return Some(ReportStatus::Failed);
    }
    tracking_ends(message.to.as_deref(), tracking).then_some(ReportStatus::Complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_depends_on_the_job_and_on_the_addressed_pipe() {
        use Admission::{Discard, Divert, Execute, Pause, Stray};
        use JobKnowledge::{Gone, Is, Presumed};
        for (job, to, has_paused_pipe, expected) in [
            (Presumed, Some("in"), true, Execute),
            (Presumed, Some("IN"), true, Execute),
            (Presumed, Some("other"), true, Divert),
            (Presumed, None, true, Stray),
            (Is(JobStatus::Waiting), Some("in"), true, Execute),
            (Is(JobStatus::Active), Some("in"), true, Execute),
            (Is(JobStatus::Active), Some("other"), true, Divert),
            (Is(JobStatus::Blocked), Some("in"), true, Execute),
            (Is(JobStatus::Paused), Some("in"), true, Pause),
            (Is(JobStatus::Paused), Some("in"), false, Execute),
            (Is(JobStatus::Paused), Some("other"), true, Divert),
            (Is(JobStatus::Completed), Some("in"), true, Discard),
            (Is(JobStatus::Failed), Some("other"), true, Discard),
            (Is(JobStatus::Cancelled), None, true, Discard),
            (Gone, Some("in"), true, Discard),
            (Gone, Some("other"), true, Discard),
        ] {
            assert_eq!(
                admit(job, to, "in", has_paused_pipe),
                expected,
                "{job:?} to {to:?}"
            );
        }
    }

    #[test]
    fn forwarding_to_a_reserved_pipe_is_refused_except_for_results_that_end_there() {
        use TaskStatus::{InvalidTask, NewTask, ResultException, ResultSuccess};
        let reserved = ReservedPipes::default()
            .reserve(PipePurpose::Paused, "paused")
            .reserve(PipePurpose::Invalid, "w-invalid")
            .reserve(PipePurpose::Reject, "w-reject")
            .reserve(PipePurpose::Outputs, "kept-in");
        for (to, status, is_forwarded) in [
            ("next", Some(NewTask), true),
            ("next", None, true),
            ("next.delay.400", Some(NewTask), false),
            ("next.delay.400", Some(ResultException), false),
            ("next.suspects", Some(ResultSuccess), false),
            ("TRACKING", Some(ResultSuccess), false),
            ("paused", None, false),
            ("w-invalid", Some(NewTask), false),
            ("w-invalid", Some(InvalidTask), true),
            ("w-reject", Some(NewTask), false),
            ("w-reject", Some(ResultException), true),
            ("w-reject", None, true),
            ("kept-in", Some(NewTask), false),
            ("kept-in", Some(ResultSuccess), true),
            ("kept-in.kept", Some(ResultSuccess), false),
        ] {
            let message = TaskMessage {
                task_status: status,
                tracking: Some(Tracking {
                    tracking_pipe: Some("tracking".into()),
                    ..Tracking::default()
                }),
                ..TaskMessage::new("t", to, &contract::BatchTask::default()).unwrap()
            };
            let checked = check_forward(&reserved, &message);
            assert_eq!(checked.is_ok(), is_forwarded, "{to} {status:?}");
        }
    }

    #[test]
    fn pipe_of_a_result_is_the_workers_own_or_else_the_one_that_the_job_asks_for() {
        let tracked = |track_to: Option<&str>| {
            Some(Tracking {
                track_to: track_to.map(Into::into),
                ..Tracking::default()
            })
        };
        for (configured, tracking, reply, failure) in [
            (Some("own"), None, Some("own"), Some("own")),
            (Some("own"), tracked(Some("end")), Some("own"), Some("own")),
            (
                Some("own"),
                tracked(Some("kept-in.kept")),
                Some("own"),
                Some("own"),
            ),
            (None, None, None, None),
            (None, tracked(None), None, None),
            (None, tracked(Some("end")), Some("end"), None),
            (
                None,
                tracked(Some("kept-in.kept")),
                Some("kept-in"),
                Some("kept-in"),
            ),
        ] {
            let pipes = (
                reply_pipe(configured, tracking.as_ref()),
                failure_pipe(configured, tracking.as_ref()),
            );
            assert_eq!(pipes, (reply, failure), "{configured:?} {tracking:?}");
        }
    }

    #[test]
    fn next_hop_depends_on_route_tracking_and_failure() {
        use ReportStatus::{Complete, Failed};
        let tracked = |track_to: Option<&str>| Tracking {
            tracking_pipe: Some("tracking".into()),
            track_to: track_to.map(Into::into),
            ..Tracking::default()
        };
        // route, to, trackTo, failure => pipe, tracking kept, report
        for (route, to, track_to, is_failure, pipe, kept, report) in [
            (
                Route::Direct,
                Some("next"),
                Some("end"),
                false,
                Some("next"),
                true,
                None,
            ),
            (
                Route::Direct,
                Some("end"),
                Some("end"),
                false,
                Some("end"),
                false,
                Some(Complete),
            ),
            (
                Route::Direct,
                Some("END"),
                Some("end"),
                false,
                Some("END"),
                false,
                Some(Complete),
            ),
            (
                Route::Direct,
                Some("next"),
                None,
                false,
                Some("next"),
                true,
                None,
            ),
            (
                Route::Direct,
                None,
                None,
                false,
                None,
                false,
                Some(Complete),
            ),
            (Route::Direct, None, Some("end"), false, None, true, None),
            (
                Route::Direct,
                Some("next"),
                Some("end"),
                true,
                Some("next"),
                true,
                Some(Failed),
            ),
            (
                Route::Direct,
                Some("end"),
                Some("end"),
                true,
                Some("end"),
                false,
                Some(Failed),
            ),
            (
                Route::Reroute,
                Some("next"),
                Some("end"),
                false,
                Some("tracking"),
                true,
                None,
            ),
            (
                Route::Reroute,
                Some("end"),
                Some("end"),
                false,
                Some("tracking"),
                true,
                None,
            ),
            (
                Route::Reroute,
                Some("end"),
                Some("end"),
                true,
                Some("tracking"),
                true,
                None,
            ),
            (
                Route::Reroute,
                None,
                None,
                false,
                None,
                false,
                Some(Complete),
            ),
            (Route::Reroute, None, None, true, None, false, Some(Failed)),
        ] {
            let tracking = tracked(track_to);
            let expected = Hop {
                pipe,
                is_tracked: kept,
                report,
            };
            assert_eq!(
                next_hop(route, to, Some((&tracking).into()), is_failure),
                expected,
                "{route:?} {to:?} {track_to:?} {is_failure}"
            );
        }
        let untracked = Hop {
            pipe: Some("next"),
            is_tracked: false,
            report: None,
        };
        assert_eq!(
            next_hop(Route::Reroute, Some("next"), None, false),
            untracked
        );
    }

    #[test]
    fn rerouted_output_without_a_tracking_pipe_goes_direct() {
        let tracking = Tracking {
            track_to: Some("end".into()),
            ..Tracking::default()
        };
        assert_eq!(
            next_hop(
                Route::Reroute,
                Some("next"),
                Some((&tracking).into()),
                false
            )
            .pipe,
            Some("next")
        );
    }
}
