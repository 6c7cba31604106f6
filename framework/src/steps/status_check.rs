//! The status check: asks the job service whether the job of a message still runs.
//!
//! A tracked message carries the time of its last check and the interval between checks. When a check is due, this
//! process asks the job service by the URL in the message. One response serves all waiting messages of the job, and is
//! kept for its `max-age`. An announcement makes a job due early ([`crate::announcement`]).
//!
//! What must stay true:
//! - A check that fails never stops work. A warning names the URL, and the job is presumed active.
//! - Only a definite response discards messages: a finished status, or a 404 with the job service's error body.
//! - A check has a time limit, and does not block the receipt of other deliveries.
//! - A check asks only the status of the message's own job ([`status_url`](crate::steps::status_url)), follows no
//!   redirect, and reads a limited number of bytes. One that is not allowed counts as one that failed.

use std::sync::Arc;
use std::time::Duration;

use contract::rest::ErrorBody;
use contract::{JobStatus, Tracking};
use metrics::Counter;
use moka::Expiry;
use moka::future::Cache;
use reqwest::Url;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::announcement::{ChangedJobs, job_of};
use crate::broker::Broker;
use crate::clock::Clock;
use crate::config::StatusOrigins;
use crate::steps::routing::JobKnowledge;
use crate::steps::status_url::allowed_url;
use crate::tls::Tls;

/// How long a response without a `max-age` is valid.
const DEFAULT_INTERVAL: Duration = Duration::from_mins(2);
/// How long a failed check is not repeated.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The longest time that a response is valid, whatever its `max-age`.
const LONGEST_INTERVAL: Duration = Duration::from_hours(24);
/// The largest response that is read, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// How much of a URL or a job task id the log and the cache keep if the check is not allowed, in bytes.
const SHOWN: usize = 200;
/// The largest number of jobs whose status is kept.
const CAPACITY: u64 = 10_000;

/// Checks the status of jobs, with a cache. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StatusChecker {
    time_limit: Duration,
    origins: StatusOrigins,
    /// Counts the checks that are not allowed.
    refused: Counter,
    tls: Tls,
    clock: Clock,
    /// Made for the first check, because it reads the system's certificates.
    client: Arc<OnceCell<reqwest::Client>>,
    /// The last check of each job, by its URL.
    checks: Cache<Arc<str>, Check>,
    changed: Arc<ChangedJobs>,
    tasks: TaskTracker,
}

/// The result of a status check.
#[derive(Debug, Clone, Copy)]
struct Check {
    job: JobKnowledge,
    began: Instant,
    ended: Instant,
    /// When it ended, in milliseconds since 1970.
    ended_millis: i64,
    valid_for: Duration,
}

impl StatusChecker {
    pub fn new(time_limit: Duration, tls: Tls, clock: Clock, tasks: &TaskTracker) -> Self {
        Self {
            time_limit,
            origins: StatusOrigins::default(),
            refused: Counter::noop(),
            tls,
            clock,
            client: Arc::default(),
            checks: Cache::builder()
                .max_capacity(CAPACITY)
                .expire_after(WhenInvalid)
                .build(),
            changed: Arc::new(ChangedJobs::new(clock)),
            tasks: tasks.clone(),
        }
    }

    /// Limits the origins that checks may ask. `refused` counts the checks that are not allowed.
    pub fn with_origins(self, origins: StatusOrigins, refused: Counter) -> Self {
        Self {
            origins,
            refused,
            ..self
        }
    }

    /// Remembers announcements until the broker is closed or `until` is cancelled.
    pub async fn listen(&self, broker: &dyn Broker, until: &CancellationToken) {
        self.changed.listen(broker, until).await;
    }

    /// Returns how many announcements there were.
    pub fn announcements(&self) -> u64 {
        self.changed.count()
    }

    /// Returns what is known about the job of a message. Asks the job service if a check is due, and stamps the
    /// tracking with it.
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
        tracking.last_status_check_time = Some(check.ended_millis);
        if check.job != JobKnowledge::Presumed {
            tracking.status_check_interval_millis =
                i64::try_from(check.valid_for.as_millis()).unwrap_or(i64::MAX);
        }
        check.job
    }

    /// Returns whether the job is known to have ended. Asks the job service if the last check is no longer valid.
    pub async fn has_ended(&self, tracking: &Tracking) -> bool {
        let Some(url) = tracking.status_check_url.as_deref() else {
            return false;
        };
        let changed_at = self.changed.changed_at(tracking);
        match self.check_own_job(tracking, url, changed_at).await.job {
            JobKnowledge::Gone => true,
            JobKnowledge::Is(status) => status.is_finished(),
            JobKnowledge::Presumed => false,
        }
    }

    /// Runs a check beside the task that needs its result.
    pub fn in_background(&self, check: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(check);
    }

    /// Returns the check of the message's own job by this URL, if the URL is allowed.
    async fn check_own_job(
        &self,
        tracking: &Tracking,
        url: &str,
        changed_at: Option<Instant>,
    ) -> Check {
        let id = tracking.job_task_id.as_deref();
        match allowed_url(url, id, &self.origins) {
            Ok(url) => {
                let key = Arc::from(url.as_str());
                self.valid_check(key, self.ask(url), changed_at).await
            }
            Err(reason) => {
                self.refused.increment(1);
                // One line in the log for all messages of a job, for a while. No allowed URL is like this key.
                let key = format!("not allowed: {}", start_of(id.map_or("", job_of)));
                let refused = async { self.refuse(url, &reason) };
                self.valid_check(key.into(), refused, changed_at).await
            }
        }
    }

    /// Returns the last check under this key if it is valid and not older than the change of the job. Otherwise makes a new
    /// check, one for all that wait for it.
    async fn valid_check(
        &self,
        key: Arc<str>,
        check: impl Future<Output = Check>,
        changed_at: Option<Instant>,
    ) -> Check {
        // The cache drops invalid checks by the system's clock. Under a paused clock only this condition does.
        let is_invalid = |check: &Check| {
            changed_at.is_some_and(|changed_at| check.began < changed_at)
                || check.ended.elapsed() >= check.valid_for
        };
        self.checks
            .entry(key)
            .or_insert_with_if(check, is_invalid)
            .await
            .into_value()
    }

    /// Returns the outcome of a check that is not allowed.
    fn refuse(&self, url: &str, reason: &str) -> Check {
        let url = start_of(url);
        warn!(
            url,
            reason, "a status check is not allowed; the job is presumed active"
        );
        let now = Instant::now();
        Check {
            job: JobKnowledge::Presumed,
            began: now,
            ended: now,
            ended_millis: self.clock.now_millis(),
            valid_for: AFTER_FAILURE,
        }
    }

    async fn ask(&self, url: Url) -> Check {
        let began = Instant::now();
        let (job, valid_for) = match self.request(url.clone()).await {
            Ok(response) => response,
            Err(error) => {
                warn!(%url, %error, "the status check of a job failed; the job is presumed active");
                (JobKnowledge::Presumed, AFTER_FAILURE)
            }
        };
        Check {
            job,
            began,
            ended: Instant::now(),
            ended_millis: self.clock.now_millis(),
            valid_for,
        }
    }

    async fn request(&self, url: Url) -> Result<(JobKnowledge, Duration), String> {
        let make = || async { make_client(self.time_limit, &self.tls) };
        let client = self
            .client
            .get_or_try_init(make)
            .await
            .map_err(|error| chain(&*error))?;
        let response = client
            .get(url)
            .send()
            .await
            .map_err(|error| chain(&error))?;
        let code = response.status();
        let valid_for = response
            .headers()
            .get("cache-control")
            .and_then(|value| max_age(value.to_str().ok()?))
            .unwrap_or(DEFAULT_INTERVAL)
            .min(LONGEST_INTERVAL);
        let body = read_body(response).await?;
        if code == reqwest::StatusCode::NOT_FOUND {
            // A proxy can return 404, too. Only the job service adds its own error body.
            return match serde_json::from_str::<ErrorBody>(&body) {
                Ok(_) => Ok((JobKnowledge::Gone, valid_for)),
                Err(_) => Err("the 404 does not come from the job service".to_owned()),
            };
        }
        if !code.is_success() {
            return Err(format!("the response is {code}"));
        }
        let word = body.lines().next().unwrap_or_default().replace('"', "");
        match JobStatus::from_name(word.trim()) {
            Some(status) => Ok((JobKnowledge::Is(status), valid_for)),
            None => Err(format!("{word:?} is not a job status")),
        }
    }
}

/// Reads a response, up to [`MAX_RESPONSE`].
async fn read_body(mut response: reqwest::Response) -> Result<String, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| chain(&error))? {
        if body.len() + chunk.len() > MAX_RESPONSE {
            return Err(format!("the response has more than {MAX_RESPONSE} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Returns the start of a text that may be of any length.
fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

impl std::fmt::Debug for StatusChecker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusChecker")
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}

fn make_client(
    time_limit: Duration,
    tls: &Tls,
) -> Result<reqwest::Client, Box<dyn std::error::Error + Send + Sync>> {
    let client = reqwest::Client::builder()
        .timeout(time_limit)
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls.client_config()?)
        .build()?;
    Ok(client)
}

/// Returns whether a message is due for a check. A stamp that is more than the interval in the future is from a wrong
/// clock, and makes the message due, too.
fn is_due(tracking: &Tracking, now: i64) -> bool {
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

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Drops a check from the cache when it is no longer valid.
struct WhenInvalid;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Event;
    use crate::tls::TlsFiles;
    use harness::tls::{Authority, TlsServer};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    const STATUS: &str = "/job-service/v1/partitions/p/jobs/j/status";

    fn checker() -> StatusChecker {
        checker_with(Duration::from_secs(5), Tls::default())
    }

    fn checker_with(time_limit: Duration, tls: Tls) -> StatusChecker {
        StatusChecker::new(time_limit, tls, Clock::system(), &TaskTracker::new())
    }

    fn due_at(url: String) -> Tracking {
        Tracking {
            job_task_id: Some("p:j.1".into()),
            status_check_url: Some(url),
            ..Tracking::default()
        }
    }

    async fn ask(response: ResponseTemplate) -> (JobKnowledge, Tracking) {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .and(path(STATUS))
            .respond_with(response)
            .mount(&server)
            .await;
        let mut tracking = due_at(server.uri() + STATUS);
        let checker = checker_with(Duration::from_millis(300), Tls::default());
        (checker.check(Some(&mut tracking)).await, tracking)
    }

    #[test]
    fn check_is_due_after_the_interval_and_for_stamps_from_the_future() {
        let at = |last, interval| Tracking {
            last_status_check_time: last,
            status_check_interval_millis: interval,
            ..Tracking::default()
        };
        for (last, interval, due) in [
            (None, 1000, true),
            (Some(9_001), 1000, false),
            (Some(9_000), 1000, true),
            (Some(10_500), 1000, false),
            (Some(11_001), 1000, true),
            (Some(10_000), 0, true),
            (Some(i64::MAX), i64::MAX, false),
        ] {
            assert_eq!(
                is_due(&at(last, interval), 10_000),
                due,
                "{last:?} {interval}"
            );
        }
    }

    #[tokio::test]
    async fn status_is_read_with_or_without_quotes_and_valid_for_its_max_age() {
        let quoted = ResponseTemplate::new(200)
            .set_body_string("\"Cancelled\"")
            .insert_header("Cache-Control", "no-transform, max-age=7");
        let (job, tracking) = ask(quoted).await;
        assert_eq!(job, JobKnowledge::Is(JobStatus::Cancelled));
        assert_eq!(tracking.status_check_interval_millis, 7000);
        assert!(tracking.last_status_check_time.is_some());
        let (job, tracking) = ask(ResponseTemplate::new(200).set_body_string("Active\nmore")).await;
        assert_eq!(job, JobKnowledge::Is(JobStatus::Active));
        assert_eq!(tracking.status_check_interval_millis, 120_000);
    }

    #[tokio::test]
    async fn only_a_404_of_the_job_service_means_that_the_job_is_gone() {
        let own = ResponseTemplate::new(404)
            .set_body_string(r#"{"message":"ERROR: job_id {j} not found"}"#);
        assert_eq!(ask(own).await.0, JobKnowledge::Gone);
        assert_eq!(
            ask(ResponseTemplate::new(404).set_body_string("<html>no such page</html>"))
                .await
                .0,
            JobKnowledge::Presumed
        );
    }

    #[tokio::test]
    async fn response_is_read_up_to_a_limit_and_valid_for_a_day_at_most() {
        let cancelled = |bytes: usize| {
            let body = format!("Cancelled\n{}", " ".repeat(bytes - "Cancelled\n".len()));
            ResponseTemplate::new(200)
                .set_body_string(body)
                .insert_header("Cache-Control", "max-age=18446744073709551615")
        };
        let (job, tracking) = ask(cancelled(MAX_RESPONSE)).await;
        assert_eq!(job, JobKnowledge::Is(JobStatus::Cancelled));
        assert_eq!(tracking.status_check_interval_millis, 86_400_000);
        let (job, _) = ask(cancelled(MAX_RESPONSE + 1)).await;
        assert_eq!(job, JobKnowledge::Presumed);
    }

    #[tokio::test]
    async fn redirect_is_not_followed() {
        let server = MockServer::start().await;
        Mock::given(path("/elsewhere"))
            .respond_with(ResponseTemplate::new(200).set_body_string("Cancelled"))
            .expect(0)
            .mount(&server)
            .await;
        let elsewhere = format!("{}/elsewhere", server.uri());
        let redirect = ResponseTemplate::new(302).insert_header("Location", elsewhere);
        assert_eq!(ask(redirect).await.0, JobKnowledge::Presumed);
    }

    #[tokio::test]
    async fn check_that_is_not_allowed_asks_nobody_and_does_not_stop_work() {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(200).set_body_string("Cancelled"))
            .expect(1)
            .mount(&server)
            .await;
        let own = due_at(server.uri() + STATUS);
        let foreign = Tracking {
            job_task_id: Some("p:other.1".into()),
            ..own.clone()
        };
        let (allowing, limited) = (
            checker(),
            checker().with_origins("http://safe".parse().unwrap(), Counter::noop()),
        );
        // The status of the own job, which is in the cache then, says nothing about another.
        for (checker, tracking, known) in [
            (&allowing, &own, JobKnowledge::Is(JobStatus::Cancelled)),
            (&allowing, &foreign, JobKnowledge::Presumed),
            (&limited, &own, JobKnowledge::Presumed),
        ] {
            assert_eq!(checker.check(Some(&mut tracking.clone())).await, known);
            let ended = known != JobKnowledge::Presumed;
            assert_eq!(checker.has_ended(tracking).await, ended);
        }
    }

    #[tokio::test]
    async fn failed_check_does_not_stop_work() {
        assert_eq!(
            ask(ResponseTemplate::new(500)).await.0,
            JobKnowledge::Presumed
        );
        assert_eq!(
            ask(ResponseTemplate::new(200).set_body_string("Bored"))
                .await
                .0,
            JobKnowledge::Presumed
        );
        assert_eq!(
            ask(ResponseTemplate::new(200).set_delay(Duration::from_secs(5)))
                .await
                .0,
            JobKnowledge::Presumed
        );
        let checker = checker();
        for url in [&format!("http://127.0.0.1:1{STATUS}"), "no url at all"] {
            assert_eq!(
                checker.check(Some(&mut due_at(url.into()))).await,
                JobKnowledge::Presumed,
                "{url}"
            );
        }
    }

    #[tokio::test]
    async fn job_service_at_https_is_asked_if_its_authority_is_trusted() {
        const RESPONSE: &[u8] =
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 8\r\n\r\n\"Active\"";
        let authority = Authority::new().unwrap();
        let certificate = authority.issue("localhost").unwrap();
        let server = TlsServer::start(&certificate, None).await.unwrap();
        let url = format!(
            "https://localhost:{}{STATUS}",
            server.address().unwrap().port()
        );
        let trusting = Tls::load(&TlsFiles {
            ca: Some(authority.file()),
            ..TlsFiles::default()
        });
        for (tls, expected) in [
            (Tls::default(), JobKnowledge::Presumed),
            (trusting.unwrap(), JobKnowledge::Is(JobStatus::Active)),
        ] {
            let checker = checker_with(Duration::from_secs(5), tls);
            let mut tracking = due_at(url.clone());
            let known = tokio::select! {
                never = server.serve(RESPONSE) => match never {},
                known = checker.check(Some(&mut tracking)) => known,
            };
            assert_eq!(known, expected);
        }
    }

    #[tokio::test]
    async fn announcement_makes_every_message_of_its_job_due_until_the_next_check() {
        let server = MockServer::start().await;
        let response = |word: &str| {
            ResponseTemplate::new(200)
                .set_body_string(word)
                .insert_header("Cache-Control", "max-age=60")
        };
        Mock::given(method("GET"))
            .respond_with(response("Active"))
            .up_to_n_times(1)
            .expect(1)
            .mount(&server)
            .await;
        Mock::given(method("GET"))
            .respond_with(response("Cancelled"))
            .expect(1)
            .mount(&server)
            .await;
        let checker = checker();
        let fresh = |job: &str| Tracking {
            job_task_id: Some(format!("{job}.1.2*")),
            last_status_check_time: Some(Clock::system().now_millis() + 1000),
            status_check_interval_millis: 60_000,
            ..due_at(format!(
                "{}/partitions/p/jobs/{}/status",
                server.uri(),
                &job[2..]
            ))
        };
        let mut due = Tracking {
            last_status_check_time: None,
            ..fresh("p:j")
        };
        assert_eq!(
            checker.check(Some(&mut due)).await,
            JobKnowledge::Is(JobStatus::Active)
        );
        assert_eq!(
            checker.check(Some(&mut fresh("p:j"))).await,
            JobKnowledge::Presumed
        );
        let body = bytes::Bytes::from_static(br#"{"jobs":["p:j"]}"#);
        checker.changed.note(Event::Message(body));
        for _ in 0..3 {
            assert_eq!(
                checker.check(Some(&mut fresh("p:j"))).await,
                JobKnowledge::Is(JobStatus::Cancelled)
            );
        }
        assert_eq!(
            checker.check(Some(&mut fresh("p:j2"))).await,
            JobKnowledge::Presumed
        );
    }

    #[tokio::test]
    async fn missed_announcements_invalidate_every_earlier_stamp() {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(200).set_body_string("Active"))
            .expect(1)
            .mount(&server)
            .await;
        let checker = checker();
        let stamped = |last| Tracking {
            job_task_id: Some("p:j".into()),
            last_status_check_time: Some(last),
            status_check_interval_millis: 600_000,
            ..due_at(server.uri() + STATUS)
        };
        checker.changed.note(Event::Missed);
        assert_eq!(
            checker
                .check(Some(&mut stamped(Clock::system().now_millis() - 5000)))
                .await,
            JobKnowledge::Is(JobStatus::Active)
        );
        assert_eq!(
            checker
                .check(Some(&mut stamped(Clock::system().now_millis() + 5000)))
                .await,
            JobKnowledge::Presumed
        );
    }

    #[tokio::test]
    async fn one_request_serves_all_waiting_messages_of_a_job() {
        let server = MockServer::start().await;
        let response = ResponseTemplate::new(200)
            .set_body_string("Active")
            .insert_header("Cache-Control", "max-age=60");
        Mock::given(method("GET"))
            .respond_with(response.set_delay(Duration::from_millis(50)))
            .expect(1)
            .mount(&server)
            .await;
        let checker = checker();
        let checks = (0..50).map(|_| async {
            let mut tracking = due_at(format!("{}{STATUS}?n=7", server.uri()));
            checker.check(Some(&mut tracking)).await
        });
        let known = futures_util::future::join_all(checks).await;
        assert!(
            known
                .iter()
                .all(|job| *job == JobKnowledge::Is(JobStatus::Active))
        );
    }
}
