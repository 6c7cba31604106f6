//! The latest checks, found by what messages say. The messages of a job come in thousands with the
//! same URL, and to parse it for each of them costs more than all else that is done about a check
//! that still holds.
//!
//! What must stay true: a check is found only by the URL and the job for which it was made. Whether
//! it still holds is for the caller to say.

use parking_lot::{Mutex, MutexGuard};

use super::status::Check;

/// The number of places. Each job has one, which it may share.
const PLACES: usize = 32;

/// The latest check of each place.
#[derive(Default)]
pub(super) struct LatestChecks([Mutex<Option<Latest>>; PLACES]);

struct Latest {
    url: Box<str>,
    job: Box<str>,
    check: Check,
}

impl LatestChecks {
    /// Returns the check of this job by this URL, if it is the latest one of its place.
    pub fn get(&self, url: &str, job: &str) -> Option<Check> {
        let place = self.place(job);
        let latest = place.as_ref()?;
        (*latest.url == *url && *latest.job == *job).then(|| latest.check.clone())
    }

    /// Keeps the check of this job by this URL, which may be asked.
    pub fn put(&self, url: &str, job: &str, check: &Check) {
        *self.place(job) = Some(Latest {
            url: url.into(),
            job: job.into(),
            check: check.clone(),
        });
    }

    fn place(&self, job: &str) -> MutexGuard<'_, Option<Latest>> {
        let mix = |hash: usize, byte: u8| hash.wrapping_mul(31).wrapping_add(byte.into());
        let place = job.bytes().fold(0, mix) % PLACES;
        self.0[place].lock()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::job_service::blocking::Conditions;
    use crate::job_service::job_policy::Said;
    use crate::steps::routing::JobKnowledge;

    #[test]
    fn check_is_found_by_its_own_url_and_job_alone() {
        let now = Instant::now();
        let check = Check {
            job: JobKnowledge::Gone,
            retry: Said::Unknown,
            conditions: Conditions::default(),
            share: None,
            began: now,
            ended: now,
            began_millis: 1,
            valid_for: Duration::ZERO,
        };
        let latest = LatestChecks::default();
        latest.put("http://h/j?n=1", "p:j", &check);
        for (url, job, found) in [
            ("http://h/j?n=1", "p:j", true),
            ("http://h/j?n=2", "p:j", false),
            ("http://h/j?n=1", "p:other", false),
        ] {
            assert_eq!(latest.get(url, job).is_some(), found, "{url} {job}");
        }
        latest.put("http://h/j?n=2", "p:j", &check);
        assert!(latest.get("http://h/j?n=1", "p:j").is_none());
    }
}
