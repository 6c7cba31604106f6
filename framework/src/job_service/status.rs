//! The status check: asks the job service whether the job of a message still runs.
//!
//! A tracked message carries the time of its last check and the interval between checks. When a
//! check is due, this process asks the job service by the URL in the message. One response serves
//! all waiting messages of the job, and is kept for its `max-age`. An announcement makes a job due
//! early ([`crate::announcement`]).
//!
//! What must stay true:
//! - A check that fails never stops work. A warning names the URL without the key, and the job is
//!   presumed active.
//! - Only a definite response discards messages: a finished status, or a 404 that is certainly a
//!   job service's ([`answer`](super::answer)).
//! - A check does not block the receipt of other deliveries.
//! - A check asks only the status of the message's own job ([`status_url`](super::status_url)). One
//!   that is not allowed counts as one that failed.

use std::sync::Arc;
use std::time::Duration;

use contract::{JobShare, JobTaskId, Tracking, without_key};
use moka::Expiry;
use tokio::time::Instant;
use tracing::warn;

use super::answer::read_answer;
use super::blocking::Conditions;
use super::job_policy::Said;
use super::share::share_of;
use super::status_url::{JobUrl, allowed_url};
use super::{JobServiceClient, chain, start_of};
use crate::announcement::job_of;
use crate::http::Method;
use crate::steps::routing::JobKnowledge;

/// How long a response without a `max-age` is valid.
const DEFAULT_INTERVAL: Duration = Duration::from_mins(2);
/// How long a failed check is not repeated.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The longest time that a response is valid, whatever its `max-age`.
const LONGEST_INTERVAL: Duration = Duration::from_hours(24);
/// The result of a status check.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) job: JobKnowledge,
    pub(super) retry: Said,
    pub(super) conditions: Conditions,
    /// `None` if there was no answer.
    pub(super) share: Option<JobShare>,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// When it began, in milliseconds since 1970: it has seen all that had changed by then.
    pub(super) began_millis: i64,
    pub(super) valid_for: Duration,
}

impl Check {
    /// Returns whether the check is valid still, and not older than the change of its job.
    pub(super) fn holds(&self, changed_at: Option<Instant>) -> bool {
        changed_at.is_none_or(|changed_at| self.began >= changed_at)
            && self.ended.elapsed() < self.valid_for
    }
}

impl JobServiceClient {
    /// Returns what is known about the job of a message. Asks the job service if a check is due,
    /// and stamps the tracking with it.
    pub async fn check(&self, tracking: Option<&mut Tracking>) -> JobKnowledge {
        let Some(tracking) = tracking else {
            return JobKnowledge::Presumed;
        };
        let changed_at = self.changed.changed_at(tracking);
        if changed_at.is_none() && !is_due(tracking, self.clock.now_millis()) {
            return JobKnowledge::Presumed;
        }
        let Some(url) = tracking.status_check_url.as_deref() else {
            return JobKnowledge::Presumed;
        };
        let check = self.check_own_job(tracking, url, changed_at).await;
        tracking.last_status_check_time = Some(check.began_millis);
        if check.job != JobKnowledge::Presumed {
            tracking.status_check_interval_millis =
                i64::try_from(check.valid_for.as_millis()).unwrap_or(i64::MAX);
        }
        check.job
    }

    /// Returns what is known about the job. Asks the job service if the last check is no longer
    /// valid.
    pub async fn job_now(&self, tracking: &Tracking) -> JobKnowledge {
        let Some(url) = tracking.status_check_url.as_deref() else {
            return JobKnowledge::Presumed;
        };
        let changed_at = self.changed.changed_at(tracking);
        self.check_own_job(tracking, url, changed_at).await.job
    }

    /// Returns what the last check of the job of a message has said, while it is valid. Asks
    /// nobody.
    pub async fn last_known(&self, tracking: Option<&Tracking>) -> JobKnowledge {
        let url = tracking.and_then(|tracking| {
            let (url, id) = (tracking.status_check_url.as_deref()?, &tracking.job_task_id);
            allowed_url(url, id.as_deref(), &self.origins).ok()
        });
        match url {
            Some(url) => self.checks.get(url.as_str()).await,
            None => None,
        }
        .map_or(JobKnowledge::Presumed, |check| check.job)
    }

    /// Returns the check of the message's own job by this URL, if the URL is allowed.
    pub(super) async fn check_own_job(
        &self,
        tracking: &Tracking,
        url: &str,
        changed_at: Option<Instant>,
    ) -> Check {
        let id = tracking.job_task_id.as_deref();
        let job = id.map_or("", job_of);
        let latest = self.latest.get(url, job);
        if let Some(check) = latest.filter(|check| check.holds(changed_at)) {
            return check;
        }
        match allowed_url(url, id, &self.origins) {
            Ok(allowed) => {
                let key = Arc::from(allowed.as_str());
                let check = self.valid_check(key, self.ask(allowed, id), changed_at);
                let check = check.await;
                self.latest.put(url, job, &check);
                check
            }
            Err(reason) => {
                self.refused.increment(1);
                // One line in the log for all messages of a job, for a while. No allowed URL is
                // like this key.
                let key = format!("not allowed: {}", start_of(job));
                let refused = async { self.refuse(url, &reason) };
                self.valid_check(key.into(), refused, changed_at).await
            }
        }
    }

    /// Returns the last check under this key if it is valid and not older than the change of the
    /// job. Otherwise makes a new check, one for all that wait for it.
    async fn valid_check(
        &self,
        key: Arc<str>,
        check: impl Future<Output = Check>,
        changed_at: Option<Instant>,
    ) -> Check {
        // The cache drops invalid checks by the system's clock. Under a paused clock only this
        // condition does.
        let is_invalid = |check: &Check| !check.holds(changed_at);
        self.checks
            .entry(key)
            .or_insert_with_if(check, is_invalid)
            .await
            .into_value()
    }

    /// Returns the outcome of a check that is not allowed.
    fn refuse(&self, url: &str, reason: &str) -> Check {
        let url = without_key(start_of(url));
        warn!(
            url,
            reason, "a status check is not allowed; the job is presumed active"
        );
        let now = Instant::now();
        Check {
            job: JobKnowledge::Presumed,
            retry: Said::Unknown,
            conditions: Conditions::default(),
            share: None,
            began: now,
            ended: now,
            began_millis: self.clock.now_millis(),
            valid_for: AFTER_FAILURE,
        }
    }

    async fn ask(&self, url: JobUrl, id: Option<&str>) -> Check {
        let (began, began_millis) = (Instant::now(), self.clock.now_millis());
        let (job, retry, conditions, share, valid_for) = match self.request(url.clone(), id).await {
            Ok(response) => response,
            Err(mut error) => {
                if let Some(proxy) = self.client.proxy_of(&url) {
                    error = format!("{error} (asked through the proxy {proxy})");
                }
                self.rows.failed(&url, &error);
                warn!(%url, %error, "the status check of a job failed; the job is presumed active");
                let nothing = Conditions::default();
                (
                    JobKnowledge::Presumed,
                    Said::Unknown,
                    nothing,
                    None,
                    AFTER_FAILURE,
                )
            }
        };
        // A job whose change was announced is of this system: if it is gone, it was deleted.
        let is_announced = id.is_some_and(|id| self.changed.was_announced(id));
        let of_job = id.map_or("", job_of);
        match job {
            JobKnowledge::Presumed => {}
            JobKnowledge::Gone if !is_announced => self.rows.gone(of_job, &url),
            JobKnowledge::Gone => self.rows.answered(),
            JobKnowledge::Is(_) => self.rows.found(&url),
        }
        Check {
            job,
            retry,
            conditions,
            share,
            began,
            ended: Instant::now(),
            began_millis,
            valid_for,
        }
    }

    async fn request(
        &self,
        url: JobUrl,
        id: Option<&str>,
    ) -> Result<(JobKnowledge, Said, Conditions, Option<JobShare>, Duration), String> {
        let (code, headers, body) = self
            .exchange(Method::GET, &url, Vec::new())
            .await
            .map_err(|error| chain(&error))?;
        let valid_for = headers
            .get("cache-control")
            .and_then(|value| max_age(value.to_str().ok()?))
            .unwrap_or(DEFAULT_INTERVAL)
            .min(LONGEST_INTERVAL);
        let own = id.and_then(|id| JobTaskId::parse(id).ok());
        let job = own.as_ref().map_or("", |own| own.job.as_ref());
        let known = read_answer(code, &headers, &body, job)?;
        let conditions = Conditions::of(&headers);
        let share = Some(share_of(&headers));
        Ok((known, Said::of(&headers), conditions, share, valid_for))
    }
}

/// Returns whether a message is due for a check. A stamp that is more than the interval in the
/// future is from a wrong clock, and makes the message due, too.
pub(super) fn is_due(tracking: &Tracking, now: i64) -> bool {
    let Some(last) = tracking.last_status_check_time else {
        return true;
    };
    let interval = tracking.status_check_interval_millis.max(0);
    last.saturating_add(interval) <= now || last > now.saturating_add(interval)
}

fn max_age(cache_control: &str) -> Option<Duration> {
    let seconds = cache_control
        .split(',')
        .find_map(|directive| directive.trim().strip_prefix("max-age="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// Drops a check from the cache when it is no longer valid.
pub(super) struct WhenInvalid;

impl Expiry<Arc<str>, Check> for WhenInvalid {
    fn expire_after_create(
        &self,
        _: &Arc<str>,
        check: &Check,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(check.valid_for)
    }
}
