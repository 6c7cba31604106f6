//! The events that wait a moment for others of their job, so that fewer transactions record them
//! all.
//!
//! - *The first events of a job* wait up to [`PATIENCE`] for those that end it, because it may be
//!   small. A job whose events are recorded in one transaction needs no task table. One whose
//!   events come in two needs one in between, which costs the database more than all else about a
//!   small job.
//! - *Later events* wait until some time has passed since the last ones were recorded: a twentieth
//!   of the time that the job has been known, at most [`PATIENCE`]. So a job ends later by a
//!   twentieth at most.
//!
//! What must stay true:
//! - Whoever gets a [`Share`] records its events and says how that ended ([`Share::end`]). The
//!   message that they come from waits for that, and is settled only then.
//! - Events wait only as long as all of them come from our workers. The first ones wait only as
//!   long as they are about subtasks of a small job, of which none has failed and some are not
//!   done.
//! - What waits is bounded: for each job, by the messages that its reader takes at a time and by
//!   [`ENOUGH`].

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use contract::Step;
use moka::sync::Cache;
use parking_lot::Mutex;
use store::{EventKind, TrackingEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::events::Reported;

/// The longest time that events wait for others of their job.
const PATIENCE: Duration = Duration::from_millis(100);
/// Later events wait for this part of the time that their job has been known.
const PACE: u32 = 20;
/// So many events of a job do not wait: recorded together, an event costs hardly more than among
/// more of them.
const ENOUGH: usize = 5000;
/// The largest number of subtasks of a small job.
const SMALL: u32 = 1000;
/// Of how many jobs is known when events of theirs were recorded.
const BEGUN: u64 = 10_000;

/// A job, by its partition, its id and its incarnation.
type Job = (String, String, Option<i64>);

/// The events that wait.
#[derive(Debug)]
pub struct Held {
    jobs: Mutex<HashMap<Job, HeldJob>>,
    /// Jobs of which some events were recorded.
    begun: Cache<Job, Begun>,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            jobs: Mutex::default(),
            begun: Cache::new(BEGUN),
        }
    }
}

/// When events of a job were recorded.
#[derive(Debug, Clone, Copy)]
struct Begun {
    first: Instant,
    last: Instant,
}

#[derive(Debug)]
struct HeldJob {
    /// When its events wait no longer.
    due: Instant,
    /// What its first events say; `None` of later ones.
    first: Option<Progress>,
    /// Whether there are events of workers that are not ours.
    has_foreign: bool,
    /// The number of its events.
    events: usize,
    shares: Vec<Share>,
}

/// The events of one job in one message.
#[derive(Debug)]
pub struct Share {
    pub events: Vec<TrackingEvent>,
    ended: oneshot::Sender<Ended>,
}

/// How it ended that events were recorded by whoever had them.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Recorded,
    /// The store rejects the events, for this reason.
    Rejected(String),
    /// Somebody keeps a job locked. They must come again after this delay.
    Locked(Duration),
    /// Nobody knows: the task that had them is gone.
    Unknown,
}

impl Ended {
    /// Returns which of several ends of a message counts: the highest. One that was put aside would
    /// be recorded nowhere for the other jobs. When it comes again, it is rejected again.
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Recorded => 0,
            Self::Rejected(_) => 1,
            Self::Locked(_) => 2,
            Self::Unknown => 3,
        }
    }
}

/// A message of which events wait.
#[derive(Debug)]
pub struct Waiting {
    /// The index of the message in its batch.
    pub index: usize,
    /// When they wait no longer.
    pub due: Instant,
    job: Job,
    ended: oneshot::Receiver<Ended>,
}

/// What some events of a job say about its subtasks.
#[derive(Debug, Default)]
struct Progress {
    size: Option<u32>,
    /// The highest number of a subtask.
    top: u32,
    done: HashSet<u32>,
    /// Whether there are events of another kind, or of subtasks of subtasks.
    has_others: bool,
}

impl Held {
    /// Takes the events that have to wait out of these messages. Returns the messages that have
    /// some, and the shares of earlier messages that need not wait any longer. Of one job, the
    /// events of at most so many messages wait.
    pub fn hold(&self, messages: &mut [Reported], most: usize) -> (Vec<Waiting>, Vec<Share>) {
        let now = Instant::now();
        let mut jobs = self.jobs.lock();
        let mut touched = HashSet::new();
        for message in &*messages {
            for run in runs(&message.events) {
                let job = job_of(&run[0]);
                let held = jobs
                    .entry(job.clone())
                    .or_insert_with(|| HeldJob::new(self.begun.get(&job), now));
                held.add(run, message.may_wait);
                touched.insert(job);
            }
        }
        let mut ready = Vec::new();
        touched.retain(|job| {
            let waits = jobs[job].waits(now, most);
            if !waits {
                ready.extend(self.let_go(&mut jobs, job));
            }
            waits
        });
        let mut waiting = Vec::new();
        for message in messages {
            for (job, events) in take_events_of(&touched, &mut message.events) {
                let Some(held) = jobs.get_mut(&job) else {
                    continue;
                };
                let (sender, ended) = oneshot::channel();
                held.shares.push(Share {
                    events,
                    ended: sender,
                });
                waiting.push(Waiting {
                    index: message.index,
                    due: held.due,
                    job,
                    ended,
                });
            }
        }
        (waiting, ready)
    }

    /// Returns all shares that wait together with these messages, unless somebody has taken them.
    pub fn take<'w>(&self, waiting: impl IntoIterator<Item = &'w Waiting>) -> Vec<Share> {
        let mut jobs = self.jobs.lock();
        let mut taken = Vec::new();
        for Waiting { job, due, .. } in waiting {
            if jobs.get(job).is_some_and(|held| held.due <= *due) {
                taken.extend(self.let_go(&mut jobs, job));
            }
        }
        taken
    }

    /// Returns the shares of a job of which no event waits any longer.
    fn let_go(&self, jobs: &mut HashMap<Job, HeldJob>, job: &Job) -> Vec<Share> {
        let last = Instant::now();
        let first = self.begun.get(job).map_or(last, |begun| begun.first);
        self.begun.insert(job.clone(), Begun { first, last });
        jobs.remove(job).map_or_else(Vec::new, |held| held.shares)
    }
}

impl HeldJob {
    /// Begins to hold events of a job: its first ones, or later ones if some were recorded.
    fn new(begun: Option<Begun>, now: Instant) -> Self {
        Self {
            due: begun.map_or(now + PATIENCE, Begun::next),
            first: begun.is_none().then(Progress::default),
            has_foreign: false,
            events: 0,
            shares: Vec::new(),
        }
    }

    fn add(&mut self, events: &[TrackingEvent], may_wait: bool) {
        self.has_foreign |= !may_wait;
        self.events += events.len();
        if let Some(progress) = &mut self.first {
            for event in events {
                progress.add(event);
            }
        }
    }

    /// Returns whether its events wait, of at most so many messages.
    fn waits(&self, now: Instant, most: usize) -> bool {
        let is_full = self.shares.len() >= most || self.events >= ENOUGH;
        let lacks_some = self.first.as_ref().is_none_or(Progress::lacks_some);
        now < self.due && lacks_some && !is_full && !self.has_foreign
    }
}

impl Begun {
    /// Returns until when the next events wait.
    fn next(self) -> Instant {
        let pace = self.last.duration_since(self.first) / PACE;
        self.last + pace.min(PATIENCE)
    }
}

impl Share {
    /// Tells the message how it ended.
    pub fn end(self, ended: Ended) {
        // An error means that the message is being redelivered.
        drop(self.ended.send(ended));
    }
}

impl Waiting {
    /// Waits until the events are recorded.
    pub async fn ended(&mut self) -> Ended {
        (&mut self.ended).await.unwrap_or(Ended::Unknown)
    }
}

impl Progress {
    fn add(&mut self, event: &TrackingEvent) {
        let [Step { number, last }] = event.task.steps[..] else {
            self.has_others = true;
            return;
        };
        self.top = self.top.max(number);
        if last {
            self.size = Some(number);
        }
        match event.kind {
            EventKind::Complete => drop(self.done.insert(number)),
            EventKind::Announced { .. } | EventKind::Progress(_) | EventKind::Started { .. } => {}
            _ => self.has_others = true,
        }
    }

    /// Returns whether only further events are missing to end a job that may be small.
    fn lacks_some(&self) -> bool {
        let is_done = self
            .size
            .is_some_and(|size| self.done.len() >= size as usize);
        !self.has_others && !is_done && self.top <= SMALL
    }
}

fn job_of(event: &TrackingEvent) -> Job {
    let task = &event.task;
    (task.partition.clone(), task.job.clone(), task.incarnation)
}

fn same_job(TrackingEvent { task: one, .. }: &TrackingEvent, other: &TrackingEvent) -> bool {
    let other = &other.task;
    one.job == other.job && one.partition == other.partition && one.incarnation == other.incarnation
}

/// Returns the events in runs of one job each.
fn runs(events: &[TrackingEvent]) -> impl Iterator<Item = &[TrackingEvent]> {
    events.chunk_by(same_job)
}

/// Takes the events of these jobs out of a message.
fn take_events_of(
    jobs: &HashSet<Job>,
    events: &mut Vec<TrackingEvent>,
) -> HashMap<Job, Vec<TrackingEvent>> {
    let mut taken: HashMap<Job, Vec<TrackingEvent>> = HashMap::new();
    let (Some(first), false) = (events.first(), jobs.is_empty()) else {
        return taken;
    };
    let job = job_of(first);
    if runs(events).nth(1).is_none() {
        if jobs.contains(&job) {
            taken.insert(job, std::mem::take(events));
        }
        return taken;
    }
    let mut left = Vec::with_capacity(events.len());
    let mut all = std::mem::take(events).into_iter().peekable();
    while let Some(first) = all.next() {
        let job = job_of(&first);
        let mut run = vec![first];
        while let Some(next) = all.next_if(|next| same_job(next, &run[0])) {
            run.push(next);
        }
        if jobs.contains(&job) {
            taken.entry(job).or_default().append(&mut run);
        } else {
            left.append(&mut run);
        }
    }
    *events = left;
    taken
}

#[cfg(test)]
mod tests {
    use contract::{JobTaskId, ReportFailure, SourceDigest};
    use futures_util::FutureExt as _;

    use super::*;

    fn event(id: &str, kind: EventKind) -> TrackingEvent {
        let task = JobTaskId::parse(id).unwrap();
        TrackingEvent { task, kind }
    }

    fn done(id: &str) -> TrackingEvent {
        event(id, EventKind::Complete)
    }

    fn announced(id: &str) -> TrackingEvent {
        let digest = Some(SourceDigest([0; 32]));
        let stated = None;
        event(id, EventKind::Announced { stated, digest })
    }

    fn messages<const N: usize>(events: [Vec<TrackingEvent>; N]) -> Vec<Reported> {
        let numbered = events.into_iter().enumerate();
        let reported = numbered.map(|(index, events)| Reported {
            index,
            events,
            problem: None,
            may_wait: true,
        });
        reported.collect()
    }

    fn left(messages: &[Reported]) -> Vec<usize> {
        messages
            .iter()
            .map(|message| message.events.len())
            .collect()
    }

    #[test]
    fn beginning_of_a_small_job_waits_for_its_end() {
        let held = Held::default();
        // The first message also ends another job, and the second one is about a large job.
        let first = vec![
            announced("p:a.3*"),
            done("p:a.1"),
            announced("p:b.2*"),
            done("p:b.2*"),
            done("p:b.1"),
        ];
        let mut batch = messages([first, vec![done("p:c.7000")]]);
        let (mut waiting, ready) = held.hold(&mut batch, 64);
        assert_eq!((left(&batch), ready.len()), (vec![3, 1], 0));
        let [of_a] = &mut waiting[..] else {
            panic!("{waiting:?}")
        };
        assert_eq!(of_a.index, 0);
        assert_eq!(of_a.ended().now_or_never(), None);

        let mut batch = messages([vec![done("p:a.2"), done("p:a.3*")]]);
        let (later, ready) = held.hold(&mut batch, 64);
        assert_eq!((left(&batch), later.len(), ready.len()), (vec![2], 0, 1));
        for share in ready {
            assert_eq!(share.events.len(), 2);
            share.end(Ended::Recorded);
        }
        assert_eq!(of_a.ended().now_or_never(), Some(Ended::Recorded));
        assert!(held.jobs.lock().is_empty());
    }

    #[test]
    fn only_jobs_that_are_small_and_can_end_at_once_wait() {
        let failed = |id| event(id, EventKind::Failed(ReportFailure::default()));
        for events in [
            // Large.
            vec![announced("p:a.1001*"), done("p:a.1")],
            // Large, and its size is not known.
            vec![done("p:a.1"), done("p:a.1001")],
            // Failed.
            vec![announced("p:a.3*"), failed("p:a.1")],
            // Split further.
            vec![announced("p:a.3*"), announced("p:a.1.2*")],
        ] {
            let held = Held::default();
            let count = events.len();
            let mut batch = messages([events]);
            let (waiting, ready) = held.hold(&mut batch, 64);
            assert_eq!(
                (left(&batch), waiting.len(), ready.len()),
                (vec![count], 0, 0)
            );
            assert!(held.jobs.lock().is_empty());
        }
    }

    #[test]
    fn events_from_workers_that_are_not_ours_do_not_wait() {
        let held = Held::default();
        let (waiting, _) = held.hold(&mut messages([vec![done("p:a.1")]]), 64);
        assert_eq!(waiting.len(), 1);
        let mut batch = messages([vec![done("p:a.2")], vec![done("p:b.1")]]);
        for message in &mut batch {
            message.may_wait = false;
        }
        let (waiting, ready) = held.hold(&mut batch, 64);
        assert_eq!(
            (left(&batch), waiting.len(), ready.len()),
            (vec![1, 1], 0, 1)
        );
    }

    #[test]
    fn failure_ends_the_wait_of_its_job() {
        let held = Held::default();
        let (waiting, _) = held.hold(&mut messages([vec![announced("p:a.3*")]]), 64);
        assert_eq!(waiting.len(), 1);
        let failure = event("p:a.1", EventKind::Failed(ReportFailure::default()));
        let (waiting, ready) = held.hold(&mut messages([vec![failure]]), 64);
        assert_eq!((waiting.len(), ready.len()), (0, 1));
    }

    #[test]
    fn message_that_is_also_rejected_comes_again_first() {
        let mut ends = [
            Ended::Unknown,
            Ended::Locked(PATIENCE),
            Ended::Rejected("it has U+0000".to_owned()),
            Ended::Recorded,
        ];
        ends.sort_by_key(Ended::rank);
        let [recorded, rejected, again @ ..] = ends;
        assert_eq!(recorded, Ended::Recorded);
        assert!(matches!(rejected, Ended::Rejected(_)));
        assert_eq!(again, [Ended::Locked(PATIENCE), Ended::Unknown]);
    }

    #[test]
    fn whoever_has_waited_long_enough_takes_all_of_its_job() {
        let held = Held::default();
        // The size is known only later.
        let (first, _) = held.hold(&mut messages([vec![done("p:a.1")]]), 64);
        let (second, _) = held.hold(&mut messages([vec![announced("p:a.3*")]]), 64);
        assert_eq!(held.take(&first).len(), 2);
        assert_eq!(held.take(&second).len(), 0);
        // What comes right after it does not wait, but for the next job with this id.
        let (waiting, ready) = held.hold(&mut messages([vec![done("p:a.2")]]), 64);
        assert_eq!((waiting.len(), ready.len()), (0, 0));
        let (waiting, _) = held.hold(&mut messages([vec![done("p:a!7.1")]]), 64);
        assert_eq!(waiting.len(), 1);
    }

    /// Returns what holds a job that has been known for this long, and of which an event has just
    /// been recorded.
    async fn known_for(time: Duration) -> Held {
        let held = Held::default();
        for event in [done("p:a.7000"), done("p:a.7001")] {
            let (waiting, _) = held.hold(&mut messages([vec![event]]), 64);
            assert!(waiting.is_empty());
            tokio::time::advance(time).await;
        }
        held
    }

    /// Returns whether an event of this job waits.
    fn waits(held: &Held, most: usize, may_wait: bool) -> bool {
        let mut batch = messages([vec![done("p:a.7")]]);
        batch[0].may_wait = may_wait;
        let (waiting, ready) = held.hold(&mut batch, most);
        assert!(waiting.is_empty() || ready.is_empty());
        !waiting.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn later_events_wait_for_a_part_of_the_time_that_their_job_has_been_known() {
        let ms = Duration::from_millis;
        for (known, pace) in [(ms(200), ms(10)), (ms(60_000), PATIENCE)] {
            let held = known_for(known).await;
            // Long after the last events, they need not wait.
            assert!(!waits(&held, 64, true));
            let (mut waiting, _) = held.hold(&mut messages([vec![done("p:a.8")]]), 64);
            let until_due = waiting[0].due - Instant::now();
            assert!(until_due >= pace && until_due <= PATIENCE, "{until_due:?}");
            tokio::time::advance(until_due / 2).await;
            assert!(waits(&held, 64, true));
            tokio::time::advance(until_due / 2).await;
            // The next ones take those with them that wait.
            let (later, ready) = held.hold(&mut messages([vec![done("p:a.9")]]), 64);
            assert_eq!((later.len(), ready.len()), (0, 2));
            for share in ready {
                share.end(Ended::Recorded);
            }
            assert_eq!(waiting[0].ended().now_or_never(), Some(Ended::Recorded));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn later_events_that_are_many_or_not_from_our_workers_do_not_wait() {
        let held = known_for(Duration::from_mins(1)).await;
        assert!(!waits(&held, 2, true));
        assert_eq!(
            [2, 2, 2].map(|most| waits(&held, most, true)),
            [true, true, false]
        );
        assert_eq!(
            [true, false].map(|ours| waits(&held, 2, ours)),
            [true, false]
        );
        let many = (1..=5000).map(|number| done(&format!("p:a.1.{number}")));
        let (waiting, _) = held.hold(&mut messages([many.collect()]), 64);
        assert!(waiting.is_empty());
    }
}
