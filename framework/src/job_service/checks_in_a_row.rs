//! Degrades a worker while one status check after another has no use.
//!
//! - Checks that fail stop no work, so nobody would notice that the worker learns of no
//!   cancellation.
//! - One job that does not exist was deleted. Several in a row whose change nobody has announced,
//!   and no other one, may mean that their status URLs lead to the wrong job service, which rightly
//!   says that it does not know them. Their messages are discarded, so a person should look.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::status_url::JobUrl;
use crate::health::Health;

/// The names of the degradations.
const ALL_GONE: &str = "all-jobs-gone";
const ALL_FAIL: &str = "status-checks-fail";
/// How many checks, or jobs, are several.
const SEVERAL: usize = 5;
/// How long after the last such check the worker is still degraded.
const REMEMBERED: Duration = Duration::from_mins(10);

/// The checks of a worker since one had another outcome.
#[derive(Debug, Default)]
pub(super) struct ChecksInARow {
    health: Health,
    worker: String,
    rows: Mutex<Rows>,
    degraded: Notify,
}

#[derive(Debug, Default)]
struct Rows {
    /// The first jobs that are gone, at most [`SEVERAL`].
    gone: Vec<String>,
    last_gone: Option<Instant>,
    /// How many checks have failed.
    failed: usize,
    last_failed: Option<Instant>,
}

impl ChecksInARow {
    pub fn new(health: Health, worker: &str) -> Self {
        Self {
            health,
            worker: worker.to_owned(),
            ..Self::default()
        }
    }

    /// Notes that a check has found its job.
    pub fn found(&self, url: &JobUrl) {
        self.answered();
        let mut rows = self.rows.lock();
        if rows.gone.len() == SEVERAL {
            info!(%url, "a status check finds a job again");
        }
        self.end_gone(&mut rows);
    }

    /// Notes that a check has an answer, whatever it is.
    pub fn answered(&self) {
        self.end_failed(&mut self.rows.lock());
    }

    /// Notes that a check has failed for this reason.
    pub fn failed(&self, url: &JobUrl, error: &str) {
        let mut rows = self.rows.lock();
        rows.last_failed = Some(Instant::now());
        rows.failed = (rows.failed + 1).min(SEVERAL + 1);
        if rows.failed == SEVERAL {
            let reason = format!(
                "the last {SEVERAL} status checks failed, so this worker does not learn that jobs are cancelled; the last one asked \
                 {}: {error}",
                url.origin().ascii_serialization()
            );
            self.health.degrade(ALL_FAIL, &self.worker, reason);
            self.degraded.notify_one();
        }
    }

    /// Notes that a check has said that its job (`partition:job`) does not exist.
    pub fn gone(&self, job: &str, url: &JobUrl) {
        self.answered();
        let mut rows = self.rows.lock();
        rows.last_gone = Some(Instant::now());
        if rows.gone.len() < SEVERAL && !rows.gone.iter().any(|gone| gone == job) {
            rows.gone.push(job.to_owned());
            if rows.gone.len() == SEVERAL {
                let reason = reason(url);
                warn!(jobs = ?rows.gone, "{reason}");
                self.health.degrade(ALL_GONE, &self.worker, reason);
                self.degraded.notify_one();
            }
        }
    }

    /// Ends the degradations of a worker that makes no checks any more. Never returns.
    pub async fn forget(&self) {
        loop {
            match self.end() {
                Some(end) => sleep_until(end).await,
                None => self.degraded.notified().await,
            }
            let (now, mut rows) = (Instant::now(), self.rows.lock());
            if rows.gone_until().is_some_and(|end| end <= now) {
                self.end_gone(&mut rows);
            }
            if rows.failed_until().is_some_and(|end| end <= now) {
                self.end_failed(&mut rows);
            }
        }
    }

    /// Returns when the first degradation ends, if there are no more checks.
    fn end(&self) -> Option<Instant> {
        let rows = self.rows.lock();
        let ends = [rows.gone_until(), rows.failed_until()];
        ends.into_iter().flatten().min()
    }

    fn end_gone(&self, rows: &mut Rows) {
        if rows.gone_until().is_some() {
            self.health.recover(ALL_GONE, &self.worker);
        }
        rows.gone.clear();
    }

    fn end_failed(&self, rows: &mut Rows) {
        if rows.failed_until().is_some() {
            self.health.recover(ALL_FAIL, &self.worker);
        }
        rows.failed = 0;
    }
}

impl Rows {
    /// Returns until when the worker is degraded because all jobs are gone, if it is.
    fn gone_until(&self) -> Option<Instant> {
        let last = self.last_gone.filter(|_| self.gone.len() >= SEVERAL);
        Some(last? + REMEMBERED)
    }

    /// Returns the same for checks that fail.
    fn failed_until(&self) -> Option<Instant> {
        let last = self.last_failed.filter(|_| self.failed >= SEVERAL);
        Some(last? + REMEMBERED)
    }
}

fn reason(url: &JobUrl) -> String {
    format!(
        "status checks say of {SEVERAL} jobs in a row that they do not exist, so their messages are discarded; unless these \
         jobs were deleted, {} is not their job service: correct the BATCHWRIGHT_PUBLIC_URL of the job service that \
         created them",
        url.origin().ascii_serialization()
    )
}

#[cfg(test)]
mod tests {
    use super::super::status_url::allowed_url;
    use super::*;
    use crate::config::StatusOrigins;

    fn checks() -> (Health, ChecksInARow, JobUrl) {
        let health = Health::default();
        let checks = ChecksInARow::new(health.clone(), "w");
        let url = "http://service:1/partitions/p/jobs/j/status";
        let url = allowed_url(url, Some("p:j"), &StatusOrigins::default()).unwrap();
        (health, checks, url)
    }

    #[tokio::test(start_paused = true)]
    async fn worker_is_degraded_while_every_check_of_several_jobs_says_gone() {
        let (health, checks, url) = checks();
        let gone = |job: &str| {
            checks.gone(job, &url);
            !health.degradations().is_empty()
        };
        assert!(!["a", "b", "c", "d"].iter().any(|job| gone(job)));
        assert!(!gone("d"), "one job counts once");
        checks.found(&url);
        assert!(!["a", "b", "c", "d"].iter().any(|job| gone(job)));
        checks.failed(&url, "no connection");
        assert!(gone("f"), "a failed check says nothing");
        let reason = health.degradations().remove(0).reason;
        assert!(reason.contains("http://service:1 is not"), "{reason}");
        assert!(gone("g"));
        checks.found(&url);
        assert_eq!(health.degradations(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn worker_is_degraded_while_every_check_fails() {
        let (health, checks, url) = checks();
        for _ in 0..SEVERAL - 1 {
            checks.failed(&url, "no connection");
        }
        checks.answered();
        for _ in 0..SEVERAL {
            assert_eq!(health.degradations(), []);
            checks.failed(&url, "no connection");
        }
        checks.failed(&url, "no connection");
        let degraded = health.degradations().remove(0);
        assert_eq!(degraded.name, ALL_FAIL);
        assert!(
            degraded.reason.ends_with("http://service:1: no connection"),
            "{degraded:?}"
        );
        checks.gone("a", &url);
        assert_eq!(health.degradations(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn degradation_ends_when_nothing_is_checked_any_more() {
        let (health, checks, url) = checks();
        let story = async {
            for _ in 0..2 {
                for job in ["a", "b", "c", "d", "e"] {
                    checks.gone(job, &url);
                }
                for _ in 0..2 {
                    tokio::time::sleep(REMEMBERED * 2 / 3).await;
                    assert_eq!(health.degradations().len(), 1);
                    checks.gone("e", &url);
                }
                tokio::time::sleep(REMEMBERED * 4 / 3).await;
                assert_eq!(health.degradations(), []);
            }
            for _ in 0..SEVERAL {
                checks.failed(&url, "no connection");
            }
            tokio::time::sleep(REMEMBERED * 4 / 3).await;
            assert_eq!(health.degradations(), []);
        };
        tokio::select! {
            () = checks.forget() => panic!("it never ends"),
            () = story => {}
        }
    }
}
