//! Wake-ups: background tasks learn that a transaction has given them work, and watchers of jobs
//! that these have changed.
//!
//! What must stay true: no wake-up is lost; some are superfluous. A task that waits subscribes
//! first and reads the store then. Nothing polls the database.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use contract::{JobId, PartitionId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

/// Something that background tasks wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The outbox has messages that can be claimed.
    Outbox,
    /// The outbox has announcements that can be claimed.
    Announcements,
    /// The sweeper has work.
    Sweep,
    /// Parked tasks can leave.
    Unpark,
    /// There are new events. In PostgreSQL a trigger says so, for services of every version.
    Events,
    /// There is room for dead letters.
    Letters,
    /// A job service has to look at a condition, or at the times of all.
    Conditions,
    /// Jobs are spread over more tracking pipes than before.
    TrackingShards,
    /// A token was revoked.
    Tokens,
}

impl Signal {
    pub const ALL: [Self; 9] = [
        Self::Outbox,
        Self::Announcements,
        Self::Sweep,
        Self::Unpark,
        Self::Events,
        Self::Letters,
        Self::Conditions,
        Self::TrackingShards,
        Self::Tokens,
    ];

    /// Returns the name in notifications between processes, which may be of different versions.
    const fn name(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Announcements => "announcements",
            Self::Sweep => "sweep",
            Self::Unpark => "unstow",
            Self::Events => "events",
            Self::Letters => "letters",
            Self::Conditions => "conditions",
            Self::TrackingShards => "shards",
            Self::Tokens => "tokens",
        }
    }
}

/// Whom a transaction wakes once it is committed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wakes {
    signals: Vec<Signal>,
    jobs: ChangedJobs,
}

/// The jobs that have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum ChangedJobs {
    #[default]
    None,
    These(BTreeSet<JobHash>),
    /// Too many to name, or not known.
    Any,
}

/// In place of a partition: what is watched is a condition, by its key. No partition has an empty
/// id.
pub const OF_CONDITIONS: &str = "";

/// In place of a job: what is watched is its end. No job has an id with a colon.
pub fn end_of(job: &str) -> String {
    format!("{job}:")
}

/// A short name of a job. Two jobs may share one: then the watchers of one are woken by the other,
/// too.
type JobHash = u64;

impl Wakes {
    /// The word of a notification that says that jobs have changed: any, unless [`Self::CHANGED`]
    /// says which.
    const JOBS: &str = "jobs";
    /// What precedes the list of the changed jobs. Versions that do not know it ignore the word.
    const CHANGED: &str = "changed=";
    /// The maximum number of jobs that are named. A notification of PostgreSQL has less than 8,000
    /// bytes.
    const MAX_JOBS: usize = 400;

    /// Returns what wakes all who wait.
    pub fn all() -> Self {
        Self {
            signals: Signal::ALL.to_vec(),
            jobs: ChangedJobs::Any,
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn add(&mut self, signal: Signal) {
        if !self.signals.contains(&signal) {
            self.signals.push(signal);
        }
    }

    pub fn add_job(&mut self, partition: &str, job: &str) {
        let job = hash(partition, job);
        match &mut self.jobs {
            ChangedJobs::None => self.jobs = ChangedJobs::These(BTreeSet::from([job])),
            ChangedJobs::These(jobs) => {
                jobs.insert(job);
                if jobs.len() > Self::MAX_JOBS {
                    self.jobs = ChangedJobs::Any;
                }
            }
            ChangedJobs::Any => {}
        }
    }

    pub fn add_any_job(&mut self) {
        self.jobs = ChangedJobs::Any;
    }

    /// Returns the payload of the notification to other processes.
    pub fn payload(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        words.extend(self.signals.iter().map(|signal| signal.name().to_owned()));
        if self.jobs != ChangedJobs::None {
            words.push(Self::JOBS.to_owned());
        }
        if let ChangedJobs::These(jobs) = &self.jobs {
            let jobs: Vec<String> = jobs.iter().map(|job| format!("{job:x}")).collect();
            words.push(format!("{}{}", Self::CHANGED, jobs.join(",")));
        }
        words.join(" ")
    }

    /// Parses the payload of a notification, also of another version.
    pub fn parse(payload: &str) -> Self {
        let mut wakes = Self::default();
        let mut named = None;
        for word in payload.split(' ') {
            if let Some(signal) = Signal::ALL.into_iter().find(|s| s.name() == word) {
                wakes.add(signal);
            } else if word == Self::JOBS {
                wakes.add_any_job();
            } else if let Some(jobs) = word.strip_prefix(Self::CHANGED) {
                let jobs = jobs.split(',').map(|job| JobHash::from_str_radix(job, 16));
                named = jobs.collect::<Result<BTreeSet<_>, _>>().ok();
            }
        }
        if let (ChangedJobs::Any, Some(jobs)) = (&wakes.jobs, named) {
            wakes.jobs = ChangedJobs::These(jobs);
        }
        wakes
    }
}

/// The receivers in this process.
#[derive(Debug, Default)]
pub struct Signals {
    /// One for each signal, in the order of their declaration.
    senders: [watch::Sender<u64>; Signal::ALL.len()],
    watched: Arc<WatchedJobs>,
}

impl Signals {
    pub fn wake(&self, wakes: &Wakes) {
        for signal in &wakes.signals {
            self.sender(*signal).send_modify(|count| *count += 1);
        }
        self.watched.wake(&wakes.jobs);
    }

    /// Returns a receiver that counts as woken.
    pub fn receiver(&self, signal: Signal) -> watch::Receiver<u64> {
        let mut receiver = self.sender(signal).subscribe();
        receiver.mark_changed();
        receiver
    }

    /// Returns the signal of one job.
    pub fn of_job(&self, partition: &PartitionId, job: &JobId) -> JobSignal {
        self.of(partition, job.as_str())
    }

    /// Returns the signal of the end of one job.
    pub fn of_end(&self, partition: &PartitionId, job: &JobId) -> JobSignal {
        self.of(partition, &end_of(job.as_str()))
    }

    fn of(&self, partition: &PartitionId, watched: &str) -> JobSignal {
        let mut signal = JobSignal {
            partition: partition.clone(),
            jobs: BTreeSet::new(),
            woken: Arc::default(),
            watched: Arc::clone(&self.watched),
        };
        signal.add(hash(partition.as_str(), watched));
        signal
    }

    fn sender(&self, signal: Signal) -> &watch::Sender<u64> {
        &self.senders[signal as usize]
    }
}

/// Tells one waiter that a job may have changed, in this process or another. Subscribe first and
/// read the job then: a change in between wakes at once.
#[derive(Debug)]
pub struct JobSignal {
    partition: PartitionId,
    jobs: BTreeSet<JobHash>,
    woken: Arc<Notify>,
    watched: Arc<WatchedJobs>,
}

impl JobSignal {
    /// Waits until one of the jobs may have changed since the last call returned. Dropping the
    /// future loses nothing.
    pub async fn changed(&self) {
        self.woken.notified().await;
    }

    /// Waits for changes of these jobs of the partition, too. Returns whether one of them is new:
    /// then they have to be read once more.
    pub fn also<'a>(&mut self, jobs: impl IntoIterator<Item = &'a str>) -> bool {
        let partition = self.partition.clone();
        self.also_in(partition.as_str(), jobs)
    }

    /// Waits for steps of these conditions, too, by their keys. Returns whether one of them is new.
    pub fn also_conditions<'a>(&mut self, keys: impl IntoIterator<Item = &'a str>) -> bool {
        self.also_in(OF_CONDITIONS, keys)
    }

    fn also_in<'a>(&mut self, partition: &str, of: impl IntoIterator<Item = &'a str>) -> bool {
        let new = of
            .into_iter()
            .filter(|name| self.add(hash(partition, name)));
        new.count() > 0
    }

    fn add(&mut self, job: JobHash) -> bool {
        let is_new = self.jobs.insert(job);
        if is_new {
            let mut waiting = self.watched.lock();
            waiting.entry(job).or_default().push(self.woken.clone());
        }
        is_new
    }
}

impl Drop for JobSignal {
    fn drop(&mut self) {
        let mut waiting = self.watched.lock();
        for job in &self.jobs {
            if let Some(waiters) = waiting.get_mut(job) {
                waiters.retain(|woken| !Arc::ptr_eq(woken, &self.woken));
                if waiters.is_empty() {
                    waiting.remove(job);
                }
            }
        }
    }
}

/// Who waits for which job.
#[derive(Debug, Default)]
struct WatchedJobs(Mutex<HashMap<JobHash, Vec<Arc<Notify>>>>);

impl WatchedJobs {
    fn wake(&self, changed: &ChangedJobs) {
        let waiting = match changed {
            ChangedJobs::None => return,
            _ => self.lock(),
        };
        let wake = |waiters: &Vec<Arc<Notify>>| waiters.iter().for_each(|woken| woken.notify_one());
        match changed {
            ChangedJobs::These(jobs) => {
                jobs.iter()
                    .filter_map(|job| waiting.get(job))
                    .for_each(wake);
            }
            _ => waiting.values().for_each(wake),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobHash, Vec<Arc<Notify>>>> {
        self.0.lock()
    }
}

/// Hashes the name of a job as every version does: 64-bit FNV-1a. No id contains a colon.
fn hash(partition: &str, job: &str) -> JobHash {
    let bytes = partition.bytes().chain([b':']).chain(job.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    fn changed(jobs: &[&str]) -> Wakes {
        let mut wakes = Wakes::default();
        for job in jobs {
            wakes.add_job("acme", job);
        }
        wakes
    }

    fn signal(signals: &Signals, job: &str) -> JobSignal {
        let partition = PartitionId::parse("acme").unwrap();
        signals.of_job(&partition, &JobId::parse(job).unwrap())
    }

    fn is_woken(signal: &JobSignal) -> bool {
        signal.changed().now_or_never().is_some()
    }

    #[test]
    fn job_wakes_those_who_wait_for_it_and_no_others() {
        let signals = Signals::default();
        let (a, b) = (signal(&signals, "a"), signal(&signals, "b"));
        assert!(!is_woken(&a), "nothing has changed yet");
        signals.wake(&changed(&["a", "a"]));
        signals.wake(&changed(&["a"]));
        assert!(is_woken(&a) && !is_woken(&a) && !is_woken(&b));
        signals.wake(&Wakes::all());
        assert!(is_woken(&a) && is_woken(&b));
    }

    #[test]
    fn signal_waits_for_further_jobs_until_it_is_dropped() {
        let signals = Signals::default();
        let mut a = signal(&signals, "a");
        assert!(a.also(["b", "c"]) && !a.also(["c"]));
        signals.wake(&changed(&["c"]));
        assert!(is_woken(&a));
        drop(a);
        assert!(signals.watched.lock().is_empty());
    }

    #[test]
    fn end_of_a_job_wakes_those_who_wait_for_it_and_for_no_other_job() {
        let signals = Signals::default();
        let of_end = |job| {
            let partition = PartitionId::parse("acme").unwrap();
            signals.of_end(&partition, &JobId::parse(job).unwrap())
        };
        let (a, b) = (of_end("a"), of_end("b"));
        signals.wake(&changed(&["a"]));
        assert!(!is_woken(&a));
        signals.wake(&changed(&["a", &end_of("a")]));
        assert!(is_woken(&a) && !is_woken(&b));
    }

    /// Pairs of a payload and who is woken by it.
    #[test]
    fn payloads_of_every_version_are_understood() {
        let mut outbox = Wakes::default();
        outbox.add(Signal::Outbox);
        let mut events = Wakes::default();
        events.add(Signal::Events);
        let mut any = outbox.clone();
        any.add_any_job();
        let mut these = outbox.clone();
        these.add_job("acme", "a");
        assert_eq!(these.payload(), "outbox jobs changed=6aa44946defd36ea");
        for (payload, expected) in [
            ("outbox", &outbox),
            ("events", &events),
            ("outbox jobs", &any),
            ("jobs outbox", &any),
            ("outbox jobs changed=6aa44946defd36ea", &these),
            ("changed=6aa44946defd36ea jobs outbox", &these),
            ("outbox changed=6aa44946defd36ea", &outbox),
            ("outbox jobs changed=", &any),
            ("outbox jobs changed=6aa44946defd36ea,!", &any),
            ("outbox jobs changed=10000000000000000", &any),
            ("outbox jobs another=7", &any),
            ("heartbeat outbox", &outbox),
            ("heartbeat", &Wakes::default()),
        ] {
            assert_eq!(Wakes::parse(payload), *expected, "{payload}");
        }
    }

    #[test]
    fn notification_about_many_jobs_stays_below_the_limit_of_postgresql() {
        let names: Vec<String> = (0..=Wakes::MAX_JOBS).map(|n| n.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut most = changed(&names[1..]);
        most.signals = Signal::ALL.to_vec();
        let payload = most.payload();
        assert!(payload.contains(Wakes::CHANGED) && payload.len() < 8000);
        assert_eq!(Wakes::parse(&payload), most);
        assert_eq!(changed(&names).payload(), "jobs");
    }

    proptest! {
        #[test]
        fn any_payload_can_be_parsed(payload in "((jobs|outbox|changed=|[0-9a-f]{0,17}|,| |\\PC){0,9}){0,40}") {
            let _ = Wakes::parse(&payload);
        }
    }
}
