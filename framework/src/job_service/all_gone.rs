//! Warns when one status check after another says that the job does not exist.
//!
//! One such job was deleted. Several in a row whose change nobody has announced, and no other one,
//! may mean that their status URLs lead to the wrong job service, which rightly says that it does
//! not know them. Their messages are discarded, so a person should look.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use url::Url;

use crate::health::Health;
use crate::steps::routing::JobKnowledge;

/// The name of this degradation.
const NAME: &str = "all-jobs-gone";
/// How many jobs are several.
const SEVERAL: usize = 5;
/// How long after the last such check the worker is still degraded.
const REMEMBERED: Duration = Duration::from_mins(10);

/// The checks since one has found a job. Checks that failed do not count.
#[derive(Debug, Default)]
pub(super) struct AllGone {
    health: Health,
    worker: String,
    since: Mutex<Since>,
    degraded: Notify,
}

#[derive(Debug, Default)]
struct Since {
    /// The first jobs that are gone, at most [`SEVERAL`].
    jobs: Vec<String>,
    /// When the last check was.
    last: Option<Instant>,
}

impl AllGone {
    pub fn new(health: Health, worker: &str) -> Self {
        Self {
            health,
            worker: worker.to_owned(),
            ..Self::default()
        }
    }

    /// Notes what a check has said of a job (`partition:job`).
    pub fn note(&self, job: &str, url: &Url, known: JobKnowledge) {
        let mut since = self.since.lock();
        match known {
            JobKnowledge::Presumed => {}
            JobKnowledge::Is(_) => {
                if since.jobs.len() == SEVERAL {
                    info!(%url, "a status check finds a job again");
                    self.health.recover(NAME, &self.worker);
                }
                *since = Since::default();
            }
            JobKnowledge::Gone => {
                since.last = Some(Instant::now());
                if since.jobs.len() < SEVERAL && !since.jobs.iter().any(|gone| gone == job) {
                    since.jobs.push(job.to_owned());
                    if since.jobs.len() == SEVERAL {
                        let reason = reason(url);
                        warn!(jobs = ?since.jobs, "{reason}");
                        self.health.degrade(NAME, &self.worker, reason);
                        self.degraded.notify_one();
                    }
                }
            }
        }
    }

    /// Ends the degradation of a worker that makes no checks any more. Never returns.
    pub async fn forget(&self) {
        loop {
            while let Some(last) = self.last() {
                sleep_until(last + REMEMBERED).await;
                let mut since = self.since.lock();
                if since.last == Some(last) {
                    *since = Since::default();
                    self.health.recover(NAME, &self.worker);
                }
            }
            self.degraded.notified().await;
        }
    }

    fn last(&self) -> Option<Instant> {
        let since = self.since.lock();
        since.last.filter(|_| since.jobs.len() == SEVERAL)
    }
}

fn reason(url: &Url) -> String {
    format!(
        "status checks say of {SEVERAL} jobs in a row that they do not exist, so their messages are discarded; unless these \
         jobs were deleted, {} is not their job service: correct the BATCHWRIGHT_PUBLIC_URL of the job service that \
         created them",
        url.origin().ascii_serialization()
    )
}

#[cfg(test)]
mod tests {
    use contract::JobStatus;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn worker_is_degraded_while_every_check_of_several_jobs_says_gone() {
        use JobKnowledge::{Gone, Is, Presumed};
        let health = Health::default();
        let checks = AllGone::new(health.clone(), "w");
        let note = |job: &str, known| {
            let url = Url::parse("http://service:1/partitions/p/jobs/j/status").unwrap();
            checks.note(job, &url, known);
            !health.degradations().is_empty()
        };
        assert!(!["a", "b", "c", "d"].iter().any(|job| note(job, Gone)));
        assert!(!note("d", Gone), "one job counts once");
        assert!(!note("e", Is(JobStatus::Active)), "one job is known");
        assert!(!["a", "b", "c", "d"].iter().any(|job| note(job, Gone)));
        assert!(!note("e", Presumed), "a failed check says nothing");
        assert!(note("f", Gone));
        let reason = health.degradations().remove(0).reason;
        assert!(reason.contains("http://service:1 is not"), "{reason}");
        assert!(note("g", Gone) && note("g", Presumed));
        assert!(!note("g", Is(JobStatus::Completed)));
    }

    #[tokio::test(start_paused = true)]
    async fn degradation_ends_when_nothing_is_checked_any_more() {
        let health = Health::default();
        let checks = AllGone::new(health.clone(), "w");
        let gone = |job: &str| {
            let url = Url::parse("http://service:1/partitions/p/jobs/j/status").unwrap();
            checks.note(job, &url, JobKnowledge::Gone);
        };
        let story = async {
            for _ in 0..2 {
                for job in ["a", "b", "c", "d", "e"] {
                    gone(job);
                }
                for _ in 0..2 {
                    tokio::time::sleep(REMEMBERED * 2 / 3).await;
                    assert_eq!(health.degradations().len(), 1);
                    gone("e");
                }
                tokio::time::sleep(REMEMBERED * 4 / 3).await;
                assert_eq!(health.degradations(), []);
            }
        };
        tokio::select! {
            () = checks.forget() => panic!("it never ends"),
            () = story => {}
        }
    }
}
