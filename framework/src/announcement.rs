//! Announcements: control messages that say that jobs have changed, or that a quarantine is in use.
//!
//! The job service announces a job that was cancelled, paused or deleted, or has failed while tasks
//! of it may run, so that workers notice at once and not when their next status check is due. An
//! announcement decides nothing. It makes every message of that job due for a check, whatever check
//! is stamped on it, until a check has been made since.
//!
//! What must stay true: no announcement is forgotten. A process that may have missed some behaves
//! as if every job had been announced once, which costs one check per job.

mod memory;

use std::borrow::Cow;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};

use contract::{JobTaskId, Tracking};
use parking_lot::{RwLock, RwLockReadGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::memory::{Memory, Moment};
use crate::broker::{Broker, Confirm, Event};
use crate::clock::Clock;

/// The largest number of jobs whose announcements are remembered one by one.
const CAPACITY: usize = 10_000;

/// How many slots the tasks have that wait for announcements.
const SLOTS: usize = 256;

/// The body of an announcement.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    /// Jobs as `partition:job`.
    jobs: Vec<String>,
    /// Quarantine pipes that a message has been moved to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    quarantines: Vec<String>,
}

/// Announces to every worker process that the status of these jobs (`partition:job`) has changed.
///
/// A process that is not subscribed never receives the message, and does not need it: when it
/// subscribes again, it assumes that it has missed announcements.
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
    memory: RwLock<Memory>,
    /// How many announcements there were.
    count: AtomicU64,
    /// Notified with each announcement of a job of the slot ([`slot_of`]), so that few tasks wake
    /// for the job of another.
    announced: Box<[Notify]>,
    /// Notified when a quarantine may be in use that was not before.
    quarantined: Notify,
}

impl ChangedJobs {
    /// A process that starts has missed all announcements so far.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            memory: RwLock::new(Memory::new(CAPACITY, now(clock))),
            count: AtomicU64::new(0),
            announced: std::iter::repeat_with(Notify::new).take(SLOTS).collect(),
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
        let changed = match event {
            Event::Missed => None,
            // A body that cannot be parsed comes from a later version and may announce anything.
            Event::Message(body) => serde_json::from_slice::<Announcement>(&body).ok(),
        };
        let now = now(self.clock);
        let mut memory = self.memory.write();
        let (slots, is_quarantine) = if let Some(Announcement { jobs, quarantines }) = changed {
            let slots: Vec<usize> = jobs.iter().map(|job| slot_of(job)).collect();
            memory.remember(jobs, now);
            (Some(slots), !quarantines.is_empty())
        } else {
            memory.miss(now);
            (None, true)
        };
        drop(memory);
        self.count.fetch_add(1, Ordering::Release);
        if is_quarantine {
            self.quarantined.notify_one();
        }
        match slots {
            Some(slots) => slots
                .into_iter()
                .for_each(|slot| self.announced[slot].notify_waiters()),
            None => self.announced.iter().for_each(Notify::notify_waiters),
        }
    }

    /// Waits for the next announcement of the job of a message from now on: also for one that comes
    /// before the future is polled. Seldom it is one of another job.
    pub fn announced(&self, tracking: Option<&Tracking>) -> Notified<'_> {
        let id = tracking.and_then(|tracking| tracking.job_task_id.as_deref());
        self.announced[slot_of(&announced_name(id.unwrap_or_default()))].notified()
    }

    /// Returns how many announcements there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns when the job of a message was announced last. Returns `None` if no announcement
    /// makes the check that is stamped on the message invalid.
    pub fn changed_at(&self, tracking: &Tracking) -> Option<Instant> {
        let memory = self.memory();
        let unknown = memory.unknown_since(tracking.last_status_check_time);
        let id = tracking.job_task_id.as_deref();
        let id = id.filter(|_| !memory.is_empty());
        let announced = id.and_then(|id| memory.announced_at(&announced_name(id)));
        announced.max(unknown)
    }

    /// Returns whether a change of the job of this job task id was announced lately.
    pub fn was_announced(&self, job_task_id: &str) -> bool {
        let announced = self.memory().announced_at(&announced_name(job_task_id));
        announced.is_some()
    }

    fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read()
    }
}

fn now(clock: Clock) -> Moment {
    Moment {
        at: Instant::now(),
        millis: clock.now_millis(),
    }
}

/// Returns the name under which the job of a job task id is announced.
fn announced_name(job_task_id: &str) -> Cow<'_, str> {
    let job = job_of(job_task_id);
    if job_task_id.contains(':') {
        Cow::Borrowed(job)
    } else {
        Cow::Owned(format!("{}:{job}", JobTaskId::DEFAULT_PARTITION))
    }
}

/// Returns the slot of a job, given by the name under which it is announced.
fn slot_of(job: &str) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(job);
    usize::try_from(hash % SLOTS as u64).unwrap_or_default()
}

/// Returns the `partition:job` of a job task id.
pub(crate) fn job_of(job_task_id: &str) -> &str {
    let end = job_task_id.find(['.', '!']).unwrap_or(job_task_id.len());
    &job_task_id[..end]
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn task_wakes_for_its_own_job_and_for_what_it_may_have_missed_but_not_for_another_job() {
        let changed = ChangedJobs::new(Clock::simulated(1_000_000));
        let wakes = |own: &str, body: Option<&str>| {
            let tracking = Tracking {
                job_task_id: Some(own.to_owned()),
                ..Tracking::default()
            };
            let announced = changed.announced(Some(&tracking));
            changed.note(body.map_or(Event::Missed, |body| Event::Message(body.to_owned().into())));
            announced.now_or_never().is_some()
        };
        assert_ne!(slot_of("p:a"), slot_of("p:b"));
        assert!(wakes("p:a.1.2", Some(r#"{"jobs":["p:a"]}"#)));
        assert!(wakes("a.1.2", Some(r#"{"jobs":["p:b","default:a"]}"#)));
        assert!(!wakes("p:a.1.2", Some(r#"{"jobs":["p:b"]}"#)));
        assert!(wakes("p:a.1.2", None));
        assert!(wakes("p:a.1.2", Some("of a later version")));
        assert!(wakes("", Some("{}")));
    }
}
