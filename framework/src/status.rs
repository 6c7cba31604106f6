//! Whether a job is still wanted: the status check.
//!
//! A tracked message carries the time of its last check and the interval between checks. When a check is due, the job
//! service is asked by the URL in the message; one answer serves all waiting messages of the job, and is kept as long as
//! its `max-age` says.
//!
//! An *announcement* (a job was cancelled, deleted, …) decides nothing: it makes every message of that job due until a check
//! has answered since, whatever is stamped on it. Whoever has missed announcements takes every job for announced once.
//!
//! What must stay true:
//! - A check that cannot be made never stops work: a warning names the URL, and the job is presumed active.
//! - Only a definite answer discards: a finished status, or a 404 with the job service's error body.
//! - The check has a time limit and runs off the consume loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use contract::rest::ErrorBody;
use contract::{JobStatus, JobTaskId, Tracking};
use moka::Expiry;
use moka::future::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::broker::{Broker, Confirm, Event};
use crate::clock::now_millis;
use crate::routing::JobKnowledge;

/// For answers that do not say how long they hold.
const DEFAULT_INTERVAL: Duration = Duration::from_mins(2);
/// How long a check that could not be made is not made again.
const AFTER_TROUBLE: Duration = Duration::from_secs(5);
/// How long an announcement is remembered: longer than any stamp from before it holds.
const REMEMBERED: Duration = Duration::from_hours(1);
/// How many jobs' answers are kept, and how many announcements.
const CAPACITY: usize = 10_000;

/// Asks the job service, seldom. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StatusChecker {
    time_limit: Duration,
    /// Made for the first check: it reads the system's certificates.
    client: Arc<OnceCell<reqwest::Client>>,
    answers: Cache<Arc<str>, Answer>,
    announced: Arc<Announced>,
    tasks: TaskTracker,
}

/// What has been announced lately.
#[derive(Debug)]
struct Announced {
    /// When each job was announced last; not more than fit.
    jobs: RwLock<HashMap<String, Instant>>,
    /// Before this time anything may have been announced.
    missed_until: Mutex<(Instant, i64)>,
    /// How many announcements there were.
    count: AtomicU64,
}

/// The body of an announcement.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    /// `partition:job` each.
    jobs: Vec<String>,
}

/// Tells every worker process that the status of these jobs (`partition:job`) has changed.
pub fn announce(broker: &dyn Broker, jobs: Vec<String>) -> Confirm {
    broker.announce(
        serde_json::to_vec(&Announcement { jobs })
            .unwrap_or_default()
            .into(),
    )
}

#[derive(Debug, Clone, Copy)]
struct Answer {
    job: JobKnowledge,
    /// When it was given, milliseconds since 1970.
    at: i64,
    /// When it was asked for.
    asked: Instant,
    /// How long it holds.
    holds: Duration,
}

impl StatusChecker {
    pub fn new(time_limit: Duration, tasks: &TaskTracker) -> Self {
        Self {
            time_limit,
            client: Arc::default(),
            answers: Cache::builder()
                .max_capacity(CAPACITY as u64)
                .expire_after(AsLongAsItHolds)
                .build(),
            announced: Arc::default(),
            tasks: tasks.clone(),
        }
    }

    /// Hears announcements until the broker is closed or `until` trips.
    pub async fn listen(&self, broker: &dyn Broker, until: &CancellationToken) {
        let Ok(mut announcements) = broker.announcements().await else {
            return;
        };
        while let Some(Some(heard)) = until.run_until_cancelled(announcements.next()).await {
            self.hear(heard);
        }
    }

    fn hear(&self, heard: Event) {
        match heard {
            Event::Missed => self.announced.miss(),
            // What is no announcement is of a later version, which may mean anything.
            Event::Message(body) => match serde_json::from_slice::<Announcement>(&body) {
                Ok(Announcement { jobs }) => self.announced.note(jobs),
                Err(_) => self.announced.miss(),
            },
        }
        self.announced.count.fetch_add(1, Ordering::Release);
    }

    /// Grows with every announcement.
    pub fn announcements(&self) -> u64 {
        self.announced.count.load(Ordering::Acquire)
    }

    /// What is known about the job of a message. Stamps the tracking when a check was made.
    pub async fn check(&self, tracking: Option<&mut Tracking>) -> JobKnowledge {
        let Some(tracking) = tracking else {
            return JobKnowledge::Presumed;
        };
        let announced = self.announced.since(tracking);
        if announced.is_none() && !is_due(tracking, now_millis()) {
            return JobKnowledge::Presumed;
        }
        let Some(url) = tracking.status_check_url.as_deref() else {
            return JobKnowledge::Presumed;
        };
        let answer = self.ask_once(url, announced).await;
        tracking.last_status_check_time = Some(answer.at);
        if answer.job != JobKnowledge::Presumed {
            tracking.status_check_interval_millis =
                i64::try_from(answer.holds.as_millis()).unwrap_or(i64::MAX);
        }
        answer.job
    }

    /// Whether the job is known to have ended; asks when the last answer no longer holds.
    pub async fn has_ended(&self, tracking: &Tracking) -> bool {
        let Some(url) = tracking.status_check_url.as_deref() else {
            return false;
        };
        match self.ask_once(url, self.announced.since(tracking)).await.job {
            JobKnowledge::Gone => true,
            JobKnowledge::Is(status) => status.is_finished(),
            JobKnowledge::Presumed => false,
        }
    }

    /// Runs a check beside the task that wants to know.
    pub fn in_background(&self, check: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(check);
    }

    /// The answer that still holds, if it is not older than the announcement; otherwise a new one, one request for all.
    async fn ask_once(&self, url: &str, announced: Option<Instant>) -> Answer {
        let is_outdated =
            |answer: &Answer| announced.is_some_and(|announced| answer.asked < announced);
        self.answers
            .entry(Arc::from(url))
            .or_insert_with_if(self.ask(url), is_outdated)
            .await
            .into_value()
    }

    async fn ask(&self, url: &str) -> Answer {
        let asked = Instant::now();
        let (job, holds) = match self.request(url).await {
            Ok(answered) => answered,
            Err(trouble) => {
                warn!(url, %trouble, "the status of a job could not be checked; its work goes on");
                (JobKnowledge::Presumed, AFTER_TROUBLE)
            }
        };
        Answer {
            job,
            at: now_millis(),
            asked,
            holds,
        }
    }

    async fn request(&self, url: &str) -> Result<(JobKnowledge, Duration), String> {
        let make = || async { make_client(self.time_limit) };
        let client = self
            .client
            .get_or_try_init(make)
            .await
            .map_err(|error| chain(&error))?;
        let response = client
            .get(url)
            .send()
            .await
            .map_err(|error| chain(&error))?;
        let code = response.status();
        let holds = response
            .headers()
            .get("cache-control")
            .and_then(|value| max_age(value.to_str().ok()?))
            .unwrap_or(DEFAULT_INTERVAL);
        let body = response.text().await.map_err(|error| chain(&error))?;
        if code == reqwest::StatusCode::NOT_FOUND {
            // Any proxy can say 404; the job service says so in its own words.
            return match serde_json::from_str::<ErrorBody>(&body) {
                Ok(_) => Ok((JobKnowledge::Gone, holds)),
                Err(_) => Err("a 404 that is not the job service's".to_owned()),
            };
        }
        if !code.is_success() {
            return Err(format!("the answer was {code}"));
        }
        let word = body.lines().next().unwrap_or_default().replace('"', "");
        match JobStatus::from_name(word.trim()) {
            Some(status) => Ok((JobKnowledge::Is(status), holds)),
            None => Err(format!("{word:?} is no status")),
        }
    }
}

impl Default for Announced {
    /// A process that starts has missed everything.
    fn default() -> Self {
        Self {
            jobs: RwLock::default(),
            missed_until: Mutex::new((Instant::now(), now_millis())),
            count: AtomicU64::new(0),
        }
    }
}

impl Announced {
    /// Remembers that these have been announced. When there are more than fit, everything counts as announced once, which costs a
    /// check for each job and forgets nothing.
    fn note(&self, announced: Vec<String>) {
        let mut jobs = self.jobs.write().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if jobs.len() + announced.len() > CAPACITY {
            jobs.retain(|_, at| now.duration_since(*at) < REMEMBERED);
        }
        if jobs.len() + announced.len() > CAPACITY {
            jobs.clear();
            self.miss();
        } else {
            jobs.extend(announced.into_iter().map(|job| (job, now)));
        }
    }

    fn miss(&self) {
        *self
            .missed_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (Instant::now(), now_millis());
    }

    /// When the job of a message was announced; `None` when nothing says that the stamp on it is out of date.
    fn since(&self, tracking: &Tracking) -> Option<Instant> {
        let (instant, millis) = *self
            .missed_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let missed = tracking
            .last_status_check_time
            .is_none_or(|last| last < millis)
            .then_some(instant);
        if self.count.load(Ordering::Acquire) == 0 {
            return missed;
        }
        match tracking.job_task_id.as_deref() {
            Some(id) if id.contains(':') => self.noted(job_of(id)).max(missed),
            Some(id) => self
                .noted(&format!("{}:{}", JobTaskId::DEFAULT_PARTITION, job_of(id)))
                .max(missed),
            None => missed,
        }
    }

    fn noted(&self, job: &str) -> Option<Instant> {
        self.jobs
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(job)
            .copied()
    }
}

/// `partition:job` of a job task id.
fn job_of(job_task_id: &str) -> &str {
    let end = job_task_id.find(['.', '!']).unwrap_or(job_task_id.len());
    &job_task_id[..end]
}

fn make_client(time_limit: Duration) -> Result<reqwest::Client, reqwest::Error> {
    // Whoever comes first wins; either way there is one, which is all that the client needs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(time_limit).build()
}

/// Whether the message is due for a check. A stamp from the future by more than the interval comes from a wrong clock.
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

struct AsLongAsItHolds;

impl Expiry<Arc<str>, Answer> for AsLongAsItHolds {
    fn expire_after_create(&self, _: &Arc<str>, answer: &Answer, _: Instant) -> Option<Duration> {
        Some(answer.holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    fn due_at(url: String) -> Tracking {
        Tracking {
            status_check_url: Some(url),
            ..Tracking::default()
        }
    }

    async fn ask(response: ResponseTemplate) -> (JobKnowledge, Tracking) {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .and(path("/status"))
            .respond_with(response)
            .mount(&server)
            .await;
        let mut tracking = due_at(format!("{}/status", server.uri()));
        let checker = StatusChecker::new(Duration::from_millis(300), &TaskTracker::new());
        (checker.check(Some(&mut tracking)).await, tracking)
    }

    #[test]
    fn a_check_is_due_after_the_interval_and_for_stamps_from_the_future() {
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
    async fn a_status_is_read_with_or_without_quotes_and_holds_for_its_max_age() {
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
    async fn only_the_job_services_own_404_means_that_the_job_is_gone() {
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
    async fn a_check_that_cannot_be_made_does_not_stop_work() {
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
        let checker = StatusChecker::new(Duration::from_secs(1), &TaskTracker::new());
        for url in ["http://127.0.0.1:1/status", "no url at all"] {
            assert_eq!(
                checker.check(Some(&mut due_at(url.into()))).await,
                JobKnowledge::Presumed,
                "{url}"
            );
        }
    }

    #[tokio::test]
    async fn an_announcement_makes_every_message_of_its_job_due_until_a_check_has_answered() {
        let server = MockServer::start().await;
        let answer = |word: &str| {
            ResponseTemplate::new(200)
                .set_body_string(word)
                .insert_header("Cache-Control", "max-age=60")
        };
        Mock::given(method("GET"))
            .respond_with(answer("Active"))
            .up_to_n_times(1)
            .expect(1)
            .mount(&server)
            .await;
        Mock::given(method("GET"))
            .respond_with(answer("Cancelled"))
            .expect(1)
            .mount(&server)
            .await;
        let checker = StatusChecker::new(Duration::from_secs(5), &TaskTracker::new());
        let fresh = |job: &str| Tracking {
            job_task_id: Some(format!("{job}.1.2*")),
            last_status_check_time: Some(now_millis() + 1000),
            status_check_interval_millis: 60_000,
            ..due_at(format!("{}/{job}", server.uri()))
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
        let said = serde_json::to_vec(&Announcement {
            jobs: vec!["p:j".into()],
        })
        .unwrap();
        checker.hear(Event::Message(said.into()));
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
    async fn whoever_has_missed_announcements_takes_every_stamp_from_before_for_outdated() {
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(200).set_body_string("Active"))
            .expect(1)
            .mount(&server)
            .await;
        let checker = StatusChecker::new(Duration::from_secs(5), &TaskTracker::new());
        let stamped = |last| Tracking {
            job_task_id: Some("p:j".into()),
            last_status_check_time: Some(last),
            status_check_interval_millis: 600_000,
            ..due_at(server.uri())
        };
        checker.hear(Event::Missed);
        assert_eq!(
            checker.check(Some(&mut stamped(now_millis() - 5000))).await,
            JobKnowledge::Is(JobStatus::Active)
        );
        assert_eq!(
            checker.check(Some(&mut stamped(now_millis() + 5000))).await,
            JobKnowledge::Presumed
        );
    }

    #[test]
    fn more_announcements_than_fit_are_not_forgotten() {
        let announced = Announced::default();
        announced.count.fetch_add(1, Ordering::Release);
        // Of just now; without an announcement it would hold.
        let stamp = now_millis();
        let stamped = |job: usize| Tracking {
            job_task_id: Some(format!("p:j{job}.1")),
            last_status_check_time: Some(stamp),
            ..Tracking::default()
        };
        while now_millis() == stamp {}
        assert!(announced.since(&stamped(0)).is_none());
        for job in 0..CAPACITY * 2 + 7 {
            announced.note(vec![format!("p:j{job}")]);
            assert!(announced.since(&stamped(job)).is_some(), "{job}");
        }
        for job in [0, 5, CAPACITY, CAPACITY * 2, CAPACITY * 2 + 6] {
            assert!(announced.since(&stamped(job)).is_some(), "{job}");
        }
        assert!(announced.jobs.read().unwrap().len() <= CAPACITY);
        announced.note((0..=CAPACITY).map(|job| format!("p:x{job}")).collect());
        assert!(announced.since(&stamped(3)).is_some());
    }

    #[tokio::test]
    async fn one_request_serves_all_waiting_messages_of_a_job() {
        let server = MockServer::start().await;
        let answer = ResponseTemplate::new(200)
            .set_body_string("Active")
            .insert_header("Cache-Control", "max-age=60");
        Mock::given(method("GET"))
            .respond_with(answer.set_delay(Duration::from_millis(50)))
            .expect(1)
            .mount(&server)
            .await;
        let checker = StatusChecker::new(Duration::from_secs(5), &TaskTracker::new());
        let checks = (0..50).map(|_| async {
            let mut tracking = due_at(format!("{}/status?n=7", server.uri()));
            checker.check(Some(&mut tracking)).await
        });
        let answers = futures_util::future::join_all(checks).await;
        assert!(
            answers
                .iter()
                .all(|job| *job == JobKnowledge::Is(JobStatus::Active))
        );
    }
}
