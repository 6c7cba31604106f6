//! What reports and failures tell of the attempts of a task: which one failed, when it began, where
//! it ran, and when the next one is due.
use std::time::Duration;

use contract::headers::RUN_HEADER;
use contract::{FailedRun, ReportStatus};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue};
use framework::config::Route;
use framework::{RetryPolicy, Settings, TaskError};

use crate::retries::{message, noting, reports, run_until};

#[tokio::test]
async fn report_tells_which_attempt_failed_and_when_the_next_one_is_due() {
    let (delayed, in_place) = (
        RetryPolicy::constant(Duration::from_millis(1)),
        RetryPolicy::immediate(),
    );
    for (policy, is_delayed) in [(delayed, true), (in_place, false)] {
        let pipes = Memory::new();
        let worker = noting(|_, _| Err(TaskError::retry("the scanner is asleep")));
        pipes.publish(message(1, "tracking")).await.unwrap();
        let settings = Settings {
            retry: policy.attempts(2),
            ..Settings::new("w")
        };
        let reports = run_until(&pipes, settings, worker, reports(&pipes, 1)).await;
        let failures = reports
            .iter()
            .map(|report| report.failure.as_ref().unwrap());
        let ends: Vec<i64> = failures
            .clone()
            .map(|it| it.failure_time.unwrap())
            .collect();
        let runs: Vec<&FailedRun> = failures.map(|it| it.run.as_ref().unwrap()).collect();
        let status: Vec<_> = reports.iter().map(|report| report.status).collect();
        assert_eq!(status, [ReportStatus::Retry, ReportStatus::Failed]);
        assert_eq!([runs[0].attempt, runs[1].attempt], [Some(1), Some(2)]);
        for (run, end) in runs.iter().zip(&ends) {
            assert!(run.began.is_some_and(|began| began <= *end), "{run:?}");
            assert_eq!(run.process, Some(std::process::id()));
            assert_eq!(run.host.is_some(), cfg!(target_os = "linux"));
        }
        assert!(runs[1].began >= runs[0].began);
        assert_eq!(runs[0].next.is_some(), is_delayed);
        assert!(
            runs[0].next.is_none_or(|next| Some(next) >= runs[0].began),
            "{runs:?}"
        );
        assert_eq!(runs[1].next, None);
    }
}

#[tokio::test]
async fn failure_that_passes_through_the_tracking_worker_tells_which_attempt_failed() {
    let pipes = Memory::new();
    let worker = noting(|_, _| Err(TaskError::failed("the page is torn")));
    pipes.publish(message(1, "tracking")).await.unwrap();
    let settings = Settings {
        output: Some("out".to_owned()),
        route: Route::Reroute,
        ..Settings::new("w")
    };
    let mut tracking = pipes.consume("tracking", 1).await.unwrap();
    let failure = run_until(&pipes, settings, worker, tracking.next()).await;
    let failure = failure.unwrap();
    let Some(HeaderValue::Text(run)) = failure.headers.get(RUN_HEADER) else {
        panic!("{:?}", failure.headers)
    };
    let run: FailedRun = serde_json::from_str(run).unwrap();
    assert_eq!(
        (run.attempt, run.process, run.next),
        (Some(1), Some(std::process::id()), None)
    );
    failure.ack();
}
