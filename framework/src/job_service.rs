//! The client of the job service: asks it for the status of a job ([`status`]), its retry policy
//! ([`job_policy`]), the results of parts that are done once ([`memo`]), what an earlier round has
//! done of a split ([`split_state`]), how much of its pipes a job gets ([`share`]), and what a task
//! may wait for ([`blocking`]). It remembers the announcements that make earlier answers invalid.
//!
//! What must stay true: a request follows no redirect, has a time limit, and reads a limited number
//! of bytes.

mod answer;
mod blocking;
mod checks_in_a_row;
mod job_policy;
mod latest;
mod memo;
mod share;
mod split_state;
mod status;
mod status_url;
mod task_url;
mod unanswered;

use std::sync::Arc;
use std::time::Duration;

use contract::Tracking;
use metrics::Counter;
use moka::future::Cache;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

pub(crate) use self::blocking::Blocked;
use self::blocking::Sharing;
use self::checks_in_a_row::ChecksInARow;
use self::job_policy::{JobPolicies, job_policies};
use self::latest::LatestChecks;
pub(crate) use self::memo::MemoError;
pub(crate) use self::split_state::SplitQueryError;
use self::status::{Check, WhenInvalid};
use self::unanswered::Unanswered;
use crate::announcement::ChangedJobs;
use crate::broker::Broker;
use crate::clock::Clock;
use crate::config::StatusOrigins;
use crate::health::Health;
use crate::http::{self, HeaderMap, HttpClient, HttpError, Method, StatusCode};
use crate::tls::Tls;

/// The largest response that is read, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// How much of a URL or a job task id the log and the cache keep if the check is not allowed, in
/// bytes.
const SHOWN: usize = 200;
/// The largest number of jobs whose status is kept.
const CAPACITY: u64 = 10_000;

/// What a worker asks the job service, with a cache of its answers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct JobServiceClient {
    time_limit: Duration,
    origins: StatusOrigins,
    /// Counts the checks that are not allowed.
    refused: Counter,
    clock: Clock,
    client: HttpClient,
    /// The last check of each job, by its URL.
    checks: Cache<Arc<str>, Check>,
    latest: Arc<LatestChecks>,
    policies: JobPolicies,
    changed: Arc<ChangedJobs>,
    rows: Arc<ChecksInARow>,
    /// Counts blocked tasks, because only a bounded number of them may use the same answer of the
    /// job service.
    sharing: Arc<Sharing>,
    /// The jobs for which nobody has said what an earlier round has done.
    unanswered: Arc<Unanswered>,
    tasks: TaskTracker,
}

impl JobServiceClient {
    pub fn new(time_limit: Duration, tls: &Tls, clock: Clock, tasks: &TaskTracker) -> Self {
        Self {
            time_limit,
            origins: StatusOrigins::default(),
            refused: Counter::noop(),
            clock,
            client: HttpClient::new(tls, time_limit),
            checks: Cache::builder()
                .max_capacity(CAPACITY)
                .expire_after(WhenInvalid)
                .build(),
            latest: Arc::default(),
            policies: job_policies(),
            changed: Arc::new(ChangedJobs::new(clock)),
            rows: Arc::default(),
            sharing: Arc::default(),
            unanswered: Arc::default(),
            tasks: tasks.clone(),
        }
    }

    /// Asks no proxy for the job service at this URL, which is in this process.
    pub fn beside(self, own: Option<&str>, tls: &Tls) -> Self {
        Self {
            client: HttpClient::beside(own, tls, self.time_limit),
            ..self
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

    /// Reports to this health when every check of this worker fails, or says that its job does not
    /// exist.
    pub fn with_health(self, health: Health, worker: &str) -> Self {
        Self {
            rows: Arc::new(ChecksInARow::new(health, worker)),
            ..self
        }
    }

    /// Remembers announcements until the broker is closed or `until` is cancelled.
    pub async fn listen(&self, broker: &dyn Broker, until: &CancellationToken) {
        tokio::select! {
            () = self.changed.listen(broker, until) => {}
            () = self.rows.forget() => {}
        }
    }

    /// Waits until a quarantine pipe is announced, or an announcement may have been missed.
    pub async fn quarantined(&self) {
        self.changed.quarantined().await;
    }

    /// Returns how many announcements there were.
    pub fn announcements(&self) -> u64 {
        self.changed.count()
    }

    /// Waits for the next announcement of the job of a message from now on, or seldom for one of
    /// another.
    pub fn announced(&self, tracking: Option<&Tracking>) -> impl Future<Output = ()> {
        self.changed.announced(tracking)
    }

    /// Returns whether a change of the job of a message was announced at this time or later, or may
    /// have been.
    pub fn has_changed_since(&self, tracking: &Tracking, time: Instant) -> bool {
        let changed_at = self.changed.changed_at(tracking);
        changed_at.is_some_and(|changed_at| changed_at >= time)
    }

    /// Runs a request beside the task that needs its result.
    pub fn in_background(&self, check: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(check);
    }

    /// Sends a request with this body, and returns the status code, the headers and the body of the
    /// response, up to [`MAX_RESPONSE`].
    async fn exchange(
        &self,
        method: Method,
        url: &Url,
        body: Vec<u8>,
    ) -> Result<(StatusCode, HeaderMap, String), HttpError> {
        let request = http::request(method, url.as_str())?.map(|_| body.into());
        let mut response = self.client.send(request, Some(self.time_limit)).await?;
        let body = response.read(MAX_RESPONSE).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok((response.status(), response.headers().clone(), body))
    }
}

/// Returns the start of a text that may be of any length.
fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

impl std::fmt::Debug for JobServiceClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobServiceClient")
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
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

#[cfg(test)]
mod tests;
