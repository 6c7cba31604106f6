//! Announcements: control messages that say that jobs have changed, or that a quarantine is in use.
//!
//! The job service announces a job that it has cancelled, paused or deleted, so that workers notice at once and not when
//! their next status check is due. An announcement decides nothing. It makes every message of that job due for a check,
//! whatever check is stamped on it, until a check has been made since.
//!
//! What must stay true: no announcement is forgotten. A process that may have missed some behaves as if every job had
//! been announced once, which costs one check per job.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use contract::{JobTaskId, Tracking};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, Confirm, Event};
use crate::clock::Clock;

/// How long an announcement is remembered. Longer than the interval of any status check.
const REMEMBERED: Duration = Duration::from_hours(1);
/// The largest number of jobs whose announcements are remembered one by one.
const CAPACITY: usize = 10_000;

/// The body of an announcement.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    /// Jobs as `partition:job`.
    jobs: Vec<String>,
    /// Quarantine pipes that a message has been moved to. Earlier versions ignore them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    quarantines: Vec<String>,
}

/// Announces to every worker process that the status of these jobs (`partition:job`) has changed.
///
/// A process that is not subscribed never receives the message, and does not need it: when it subscribes again, it assumes
/// that it has missed announcements.
pub fn announce(broker: &dyn Broker, jobs: Vec<String>) -> Confirm {
    send(
        broker,
        &Announcement {
            jobs,
            quarantines: Vec::new(),
        },
    )
}

/// Announces to every worker process that a message has been moved to this quarantine pipe.
pub(crate) fn announce_quarantine(broker: &dyn Broker, pipe: &str) -> Confirm {
    send(
        broker,
        &Announcement {
            jobs: Vec::new(),
            quarantines: vec![pipe.to_owned()],
        },
    )
}

fn send(broker: &dyn Broker, announcement: &Announcement) -> Confirm {
    let body = serde_json::to_vec(announcement).unwrap_or_default();
    broker.announce(body.into())
}

/// Remembers which jobs have been announced lately.
#[derive(Debug)]
pub(crate) struct ChangedJobs {
    clock: Clock,
    /// When each job was announced last; at most [`CAPACITY`].
    jobs: RwLock<HashMap<String, Instant>>,
    missed: Mutex<Missed>,
    /// How many announcements there were.
    count: AtomicU64,
    /// Notified with each announcement.
    announced: Notify,
    /// Notified when a quarantine may be in use that was not before.
    quarantined: Notify,
}

/// The latest time before which announcements may have been missed, by both clocks.
#[derive(Debug, Clone, Copy)]
struct Missed {
    until: Instant,
    until_millis: i64,
}

impl Missed {
    fn now(clock: Clock) -> Self {
        Self {
            until: Instant::now(),
            until_millis: clock.now_millis(),
        }
    }
}

impl ChangedJobs {
    /// A process that starts has missed all announcements so far.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            jobs: RwLock::default(),
            missed: Mutex::new(Missed::now(clock)),
            count: AtomicU64::new(0),
            announced: Notify::new(),
            quarantined: Notify::new(),
        }
    }

    /// Waits until a quarantine pipe is announced, or an announcement may have been missed.
    pub async fn quarantined(&self) {
        self.quarantined.notified().await;
    }

    /// Remembers announcements until the broker is closed or `until` is cancelled.
    pub async fn listen(&self, broker: &dyn Broker, until: &CancellationToken) {
        let Ok(mut announcements) = broker.announcements().await else {
            return;
        };
        while let Some(Some(event)) = until.run_until_cancelled(announcements.next()).await {
            self.note(event);
        }
    }

    pub fn note(&self, event: Event) {
        match event {
            Event::Missed => self.miss(),
            // A body that cannot be parsed comes from a later version and may announce anything.
            Event::Message(body) => match serde_json::from_slice::<Announcement>(&body) {
                Ok(Announcement { jobs, quarantines }) => {
                    self.remember(jobs);
                    if !quarantines.is_empty() {
                        self.quarantined.notify_one();
                    }
                }
                Err(_) => self.miss(),
            },
        }
        self.count.fetch_add(1, Ordering::Release);
        self.announced.notify_waiters();
    }

    /// Waits for the next announcement from now on: also for one that comes before the future is polled.
    pub fn announced(&self) -> Notified<'_> {
        self.announced.notified()
    }

    /// Returns how many announcements there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns when the job of a message was announced last. Returns `None` if no announcement makes the check that is
    /// stamped on the message invalid.
    pub fn changed_at(&self, tracking: &Tracking) -> Option<Instant> {
        let missed = *self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = tracking
            .last_status_check_time
            .is_none_or(|last| last < missed.until_millis)
            .then_some(missed.until);
        if self.count() == 0 {
            return missed;
        }
        let id = tracking.job_task_id.as_deref();
        id.and_then(|id| self.announced_at(id)).max(missed)
    }

    /// Returns whether a change of the job of this job task id was announced lately.
    pub fn was_announced(&self, job_task_id: &str) -> bool {
        self.announced_at(job_task_id).is_some()
    }

    /// If there are more jobs than fit, forgets them all and assumes that announcements were missed.
    fn remember(&self, announced: Vec<String>) {
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
        self.quarantined.notify_one();
        *self.missed.lock().unwrap_or_else(PoisonError::into_inner) = Missed::now(self.clock);
    }

    fn announced_at(&self, job_task_id: &str) -> Option<Instant> {
        let job = job_of(job_task_id);
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner);
        if job_task_id.contains(':') {
            jobs.get(job).copied()
        } else {
            let job = format!("{}:{job}", JobTaskId::DEFAULT_PARTITION);
            jobs.get(&job).copied()
        }
    }
}

/// Returns the `partition:job` of a job task id.
pub(crate) fn job_of(job_task_id: &str) -> &str {
    let end = job_task_id.find(['.', '!']).unwrap_or(job_task_id.len());
    &job_task_id[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn announcements_beyond_the_capacity_are_not_forgotten() {
        let clock = Clock::simulated(1_000_000);
        let changed = ChangedJobs::new(clock);
        changed.count.fetch_add(1, Ordering::Release);
        tokio::time::advance(Duration::from_millis(1)).await;
        // Stamped after the start, so that only an announcement can make it invalid.
        let stamp = clock.now_millis();
        tokio::time::advance(Duration::from_millis(1)).await;
        let stamped = |job: usize| Tracking {
            job_task_id: Some(format!("p:j{job}.1")),
            last_status_check_time: Some(stamp),
            ..Tracking::default()
        };
        assert!(changed.changed_at(&stamped(0)).is_none());
        for job in 0..CAPACITY * 2 + 7 {
            changed.remember(vec![format!("p:j{job}")]);
            assert!(changed.changed_at(&stamped(job)).is_some(), "{job}");
        }
        for job in [0, 5, CAPACITY, CAPACITY * 2, CAPACITY * 2 + 6] {
            assert!(changed.changed_at(&stamped(job)).is_some(), "{job}");
        }
        assert!(changed.jobs.read().unwrap().len() <= CAPACITY);
        changed.remember((0..=CAPACITY).map(|job| format!("p:x{job}")).collect());
        assert!(changed.changed_at(&stamped(3)).is_some());
    }
}
