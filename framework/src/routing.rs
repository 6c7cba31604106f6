//! Where messages go. Pure: two decisions, each a table.
//!
//! - [`admit`]: what becomes of a message that has arrived.
//! - [`next_hop`]: where an output physically goes, whether tracking ends there, and what is to be reported.

use contract::{JobStatus, ReportStatus, TaskMessage, Tracking, same_pipe};

/// How a tracked output travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Route {
    /// Straight to its pipe; a report goes to the tracking pipe.
    #[default]
    Direct,
    /// Through the tracking pipe, whose worker records it and passes it on.
    Reroute,
}

impl Route {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Reroute => "reroute",
        }
    }
}

impl std::str::FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "direct" => Ok(Self::Direct),
            "reroute" => Ok(Self::Reroute),
            other => Err(format!("{other:?} is no route; write direct or reroute")),
        }
    }
}

/// What is known about the job of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKnowledge {
    /// The message is not tracked, no check was due, or none could be made: work goes on.
    Presumed,
    /// The job service said so.
    Is(JobStatus),
    /// The job service knows no such job.
    Gone,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is for this worker.
    Execute,
    /// It is for somebody else and came past here.
    Divert,
    /// Its job is paused, and there is a pipe for such messages.
    Pause,
    /// Its job has ended: nobody wants it any more.
    Discard,
    /// It names nobody. A tracked one goes to its tracking pipe, any other to the invalid pipe.
    Stray,
}

/// Decides what becomes of a message that has arrived in the pipe `input`.
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

/// Where an output goes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The physical pipe; `None` when there is no message to send, only a report.
    pub pipe: Option<String>,
    /// The tracking that travels on.
    pub tracking: Option<Tracking>,
    /// What to tell the tracking pipe.
    pub report: Option<ReportStatus>,
}

/// Decides the way of an output that is for the pipe `to` (`None`: there is no message).
pub fn next_hop(
    route: Route,
    to: Option<&str>,
    tracking: Option<&Tracking>,
    is_failure: bool,
) -> Hop {
    let Some(tracking) = tracking else {
        return Hop {
            pipe: to.map(str::to_owned),
            tracking: None,
            report: None,
        };
    };
    let ends = tracking_ends(to, tracking);
    let report = if is_failure {
        ReportStatus::Failed
    } else {
        ReportStatus::Complete
    };
    let report = (is_failure || ends).then_some(report);
    match (route, to, &tracking.tracking_pipe) {
        // The message itself is the report.
        (Route::Reroute, Some(_), Some(tracking_pipe)) => Hop {
            pipe: Some(tracking_pipe.clone()),
            tracking: Some(tracking.clone()),
            report: None,
        },
        _ => Hop {
            pipe: to.map(str::to_owned),
            tracking: (!ends).then(|| tracking.clone()),
            report,
        },
    }
}

/// Whether a tracked message that is for `to` has reached the end of its tracking.
pub fn tracking_ends(to: Option<&str>, tracking: &Tracking) -> bool {
    match (to, tracking.track_to.as_deref()) {
        (None, None) => true,
        (Some(to), Some(track_to)) => same_pipe(to, track_to),
        _ => false,
    }
}

/// What a diverted message tells about its task: the outcome that stands in its envelope, if it tells any.
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
    fn a_message_is_admitted_by_the_state_of_its_job_and_by_whom_it_is_for() {
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
    fn an_output_goes_where_the_route_and_its_tracking_say() {
        use ReportStatus::{Complete, Failed};
        let tracked = |track_to: Option<&str>| Tracking {
            tracking_pipe: Some("tracking".into()),
            track_to: track_to.map(str::to_owned),
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
                pipe: pipe.map(str::to_owned),
                tracking: kept.then(|| tracking.clone()),
                report,
            };
            assert_eq!(
                next_hop(route, to, Some(&tracking), is_failure),
                expected,
                "{route:?} {to:?} {track_to:?} {is_failure}"
            );
        }
        let untracked = Hop {
            pipe: Some("next".into()),
            tracking: None,
            report: None,
        };
        assert_eq!(
            next_hop(Route::Reroute, Some("next"), None, false),
            untracked
        );
    }

    #[test]
    fn without_a_tracking_pipe_a_rerouted_output_goes_straight_on() {
        let tracking = Tracking {
            track_to: Some("end".into()),
            ..Tracking::default()
        };
        assert_eq!(
            next_hop(Route::Reroute, Some("next"), Some(&tracking), false)
                .pipe
                .as_deref(),
            Some("next")
        );
    }
}
