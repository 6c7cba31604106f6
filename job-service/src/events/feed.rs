//! What happens to all jobs, for the event streams of this process: one reader of the store for all
//! of them.
//!
//! What must stay true:
//! - The reader reads when the store has signalled events, and only while there are streams. It
//!   goes no further than to what is settled, so that a stream skips no event of a transaction that
//!   commits late.
//! - The last events are kept once, for all streams, as the bytes that are sent. A stream has a
//!   place among the events and at most a few of them; one that is slow, or that begins further
//!   back, reads from the store by itself.
//! - A stream whose next events are not kept any more is told so. No stream is ever silently short
//!   of events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use contract::PartitionId;
use contract::rest::{EventReset, JobEvent, JobEventKind};
use framework::health::Health;
use framework::supervision::run_or_tell;
use parking_lot::{Mutex, MutexGuard};
use store::{SettledEvents, Store, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::{ApiError, ApiResult};
use crate::wakeup::backoff;

/// The minimum time between two looks at the store.
const PACE: Duration = Duration::from_millis(50);
/// The number of events that are kept for all streams.
const KEPT: usize = 8192;
/// The number of events that one statement reads.
const PAGE: u32 = 500;
/// The same for a stream that reads by itself.
const PAGE_OF_STREAM: u32 = 64;
/// The bytes from which on a stream sends what it has.
const CHUNK: usize = 16 * 1024;

/// The name of the reader in the log and in the metric of panics.
const READER: &str = "job-service: reader of events";

/// The events of all jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventFeed {
    store: Store,
    health: Health,
    feed: Arc<Mutex<Option<Arc<Feed>>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Where a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Behind what has happened so far.
    Now,
    /// At the oldest event that is kept.
    Oldest,
    /// Behind this event, which the client has seen.
    After(i64),
    /// At the first event that happened in this last span of time.
    Within(Duration),
}

/// What the reader fills. Streams share the events, and end when its reader does.
#[derive(Debug)]
struct Feed {
    kept: Arc<Mutex<Kept>>,
    reached: watch::Sender<Reached>,
}

/// How far the reader is.
#[derive(Debug, Clone)]
enum Reached {
    Nothing,
    /// It has all events up to this one.
    Event(i64),
    /// It could not read any yet, for this reason.
    Failed(StoreError),
}

/// The last events.
#[derive(Debug, Default)]
struct Kept {
    /// All events behind this one are here, as far as the reader is.
    after: i64,
    frames: VecDeque<Frame>,
}

/// An event as it is sent.
#[derive(Debug, Clone)]
struct Frame {
    id: i64,
    partition: Arc<str>,
    bytes: Bytes,
}

impl EventFeed {
    pub fn new(store: Store, health: Health) -> Self {
        Self {
            store,
            health,
            feed: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Begins to follow the events of a partition, or of all. Returns when it is certain that
    /// nothing will be missing that happens from then on.
    pub async fn follow(
        &self,
        partition: Option<PartitionId>,
        start: Start,
    ) -> ApiResult<EventFollower> {
        let (kept, mut reached) = self.join();
        let settled = loop {
            match &*reached.borrow_and_update() {
                Reached::Nothing => {}
                Reached::Event(id) => break *id,
                Reached::Failed(error) => return Err(error.clone().into()),
            }
            let ended = |_| ApiError::Bug("the reader of events has ended".to_owned());
            reached.changed().await.map_err(ended)?;
        };
        let mut follower = EventFollower {
            store: self.store.clone(),
            partition,
            after: settled,
            skips_swept: false,
            reset: None,
            failures: 0,
            kept,
            reached,
        };
        match start {
            Start::Now => {}
            Start::Oldest => (follower.after, follower.skips_swept) = (0, true),
            Start::Within(span) => {
                let first = self.store.first_event_within(span).await?;
                follower.after = first.map_or(settled, |first| (first - 1).min(settled));
            }
            Start::After(id) if id <= settled || id <= self.store.last_event().await? => {
                follower.after = id;
            }
            Start::After(id) => {
                let message = format!(
                    "There is no event {id} yet; the database may be another one, or older than that event. Read the list of the jobs again; \
                     the stream goes on with what happens from now on."
                );
                follower.reset = Some(message);
            }
        }
        Ok(follower)
    }

    /// Ends the reader, and with it the streams.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Returns the feed, whose reader starts if it does not run.
    fn join(&self) -> (Arc<Mutex<Kept>>, watch::Receiver<Reached>) {
        let mut current = self.lock();
        if let Some(feed) = &*current {
            return (Arc::clone(&feed.kept), feed.reached.subscribe());
        }
        let feed = Arc::new(Feed {
            kept: Arc::default(),
            reached: watch::Sender::new(Reached::Nothing),
        });
        let joined = (Arc::clone(&feed.kept), feed.reached.subscribe());
        *current = Some(Arc::clone(&feed));
        drop(current);
        let ended = Ended {
            of: self.clone(),
            feed,
        };
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let reading = stop.run_until_cancelled(read(&ended));
            // After a panic the streams end, and the clients come again.
            run_or_tell(&ended.of.health, READER, reading).await
        });
        joined
    }

    /// Takes the feed away if no stream follows it. Returns whether it did.
    fn remove_unused(&self, feed: &Feed) -> bool {
        // New streams join under the same lock.
        let mut current = self.lock();
        let is_unused = feed.reached.is_closed();
        if is_unused {
            *current = None;
        }
        is_unused
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Feed>>> {
        self.feed.lock()
    }
}

/// Takes the feed away when its reader ends, also by a panic: its streams then end, and the next
/// one gets a new reader.
struct Ended {
    of: EventFeed,
    feed: Arc<Feed>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut current = self.of.lock();
        if current
            .as_ref()
            .is_some_and(|feed| Arc::ptr_eq(feed, &self.feed))
        {
            *current = None;
        }
    }
}

/// Reads the events whenever there may be new ones, until no stream follows.
async fn read(ended: &Ended) {
    let Ended { of, feed } = ended;
    let mut signal = of.store.event_signal();
    let mut settled = SettledEvents::default();
    let mut failures = 0;
    loop {
        signal.mark_unchanged();
        let began = Instant::now();
        let again = match feed.extend(&of.store, &mut settled).await {
            Ok(()) => {
                failures = 0;
                settled.waits().then(|| began + PACE)
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(%error, code = error.code().as_str(), "cannot read the events of jobs; trying again");
                }
                feed.failed(error);
                failures += 1;
                Some(began + backoff(failures - 1))
            }
        };
        let changed = async {
            // The store lives as long as this service.
            let _ = signal.changed().await;
            sleep_until(began + PACE).await;
        };
        let again = async {
            match again {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = again => {}
            () = feed.reached.closed() => if of.remove_unused(feed) {
                return;
            },
        }
    }
}

impl Feed {
    /// Reads what is settled and not read yet.
    async fn extend(&self, store: &Store, settled: &mut SettledEvents) -> Result<(), StoreError> {
        let Some(up_to) = settled.look(store).await? else {
            return Ok(());
        };
        let reached = match *self.reached.borrow() {
            Reached::Event(id) => Some(id),
            _ => None,
        };
        let kept = i64::try_from(KEPT).unwrap_or(i64::MAX);
        let mut after = reached.unwrap_or_else(|| {
            // The last events, for clients that come back.
            let after = (up_to - kept).max(0);
            let mut kept = self.lock();
            kept.frames.clear();
            kept.after = after;
            after
        });
        while after < up_to {
            let page = store.events(None, after, up_to, PAGE).await?;
            let is_last = page.events.len() < PAGE as usize;
            let last = page.events.last().filter(|_| !is_last);
            let last = last.map_or(up_to, |event| event.id);
            let mut kept = self.lock();
            if page.swept > after {
                // Streams that have not read these look into the store, and learn it there.
                kept.frames.clear();
                kept.after = page.swept;
            }
            for event in page.events {
                kept.push(frame(event));
            }
            drop(kept);
            after = last;
            if reached.is_some() {
                self.reached.send_replace(Reached::Event(after));
            }
        }
        if reached != Some(up_to) {
            self.reached.send_replace(Reached::Event(up_to));
        }
        Ok(())
    }

    /// Tells those who wait for the beginning. Streams that have begun outlive an outage of the
    /// store.
    fn failed(&self, error: StoreError) {
        self.reached.send_if_modified(|reached| {
            let begun = matches!(reached, Reached::Event(_));
            if !begun {
                *reached = Reached::Failed(error);
            }
            !begun
        });
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        locked(&self.kept)
    }
}

/// Follows the events for one stream.
#[derive(Debug)]
pub struct EventFollower {
    store: Store,
    partition: Option<PartitionId>,
    /// Everything up to this event is sent, or belongs to other partitions.
    after: i64,
    /// Whether events that are not kept any more may be left out without a word.
    skips_swept: bool,
    /// What the stream says before the next event.
    reset: Option<String>,
    failures: u32,
    kept: Arc<Mutex<Kept>>,
    reached: watch::Receiver<Reached>,
}

impl EventFollower {
    /// Returns the id behind which the stream goes on.
    pub const fn after(&self) -> i64 {
        self.after
    }

    /// Waits for further events and returns them as they are sent. Returns `None` if the stream
    /// must end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.reset.take() {
                return Some(reset(message, self.after));
            }
            let reached = match *self.reached.borrow_and_update() {
                Reached::Event(id) => id,
                Reached::Nothing | Reached::Failed(_) => self.after,
            };
            if self.after >= reached {
                self.reached.changed().await.ok()?;
                continue;
            }
            let kept = locked(&self.kept).behind(self.after, reached, self.partition.as_ref());
            let (frames, after) = match kept {
                Some(found) => found,
                None => self.read(reached).await,
            };
            self.after = after;
            if !frames.is_empty() {
                return Some(frames.concat().into());
            }
        }
    }

    /// Reads the next events from the store. Returns them, and the place behind them.
    async fn read(&mut self, up_to: i64) -> (Vec<Bytes>, i64) {
        let partition = self.partition.as_ref().map(PartitionId::as_str);
        let reading = self
            .store
            .events(partition, self.after, up_to, PAGE_OF_STREAM);
        let Ok(page) = reading.await else {
            // The reader logs it.
            self.failures += 1;
            sleep_until(Instant::now() + backoff(self.failures - 1)).await;
            return (Vec::new(), self.after);
        };
        self.failures = 0;
        let skips_swept = std::mem::take(&mut self.skips_swept);
        if page.swept > self.after && !skips_swept {
            let (after, swept) = (self.after, page.swept);
            self.reset = Some(format!(
                "The events behind {after} are kept no longer, up to {swept} (--keep-events, --max-events). Read the list of the jobs again; the \
                 stream goes on with the events that are kept."
            ));
            return (Vec::new(), swept);
        }
        let is_last = page.events.len() < PAGE_OF_STREAM as usize;
        let last = page.events.last().filter(|_| !is_last);
        let after = last.map_or(up_to, |event| event.id);
        let frames = page.events.into_iter().map(|event| frame(event).bytes);
        (frames.collect(), after)
    }
}

impl Kept {
    fn push(&mut self, frame: Frame) {
        self.frames.push_back(frame);
        if self.frames.len() > KEPT
            && let Some(first) = self.frames.pop_front()
        {
            self.after = first.id;
        }
    }

    /// Returns some events behind this one, and the place behind them, which is at least `reached`
    /// if there are no more. Returns `None` if they are not kept here.
    fn behind(
        &self,
        after: i64,
        reached: i64,
        partition: Option<&PartitionId>,
    ) -> Option<(Vec<Bytes>, i64)> {
        if after < self.after {
            return None;
        }
        let (mut found, mut size) = (Vec::new(), 0);
        let first = self.frames.partition_point(|frame| frame.id <= after);
        for frame in self.frames.range(first..) {
            if partition.is_none_or(|partition| partition.as_str() == &*frame.partition) {
                size += frame.bytes.len();
                found.push(frame.bytes.clone());
            }
            if size >= CHUNK {
                return Some((found, frame.id));
            }
        }
        let last = self.frames.back().map_or(0, |frame| frame.id);
        Some((found, last.max(reached)))
    }
}

fn locked(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock()
}

/// Returns an event as it is sent.
fn frame(event: store::JobEvent) -> Frame {
    let kind = match (event.from, event.to) {
        (_, None) => JobEventKind::Deleted,
        (None, Some(_)) => JobEventKind::Created,
        (Some(_), Some(_)) => JobEventKind::Status,
    };
    let (id, partition) = (event.id, event.partition.as_str().into());
    let event = JobEvent {
        id,
        event: kind,
        partition_id: event.partition,
        job_id: event.job,
        time: event.time,
        from: event.from,
        to: event.to,
        round: event.round,
        actor: event.actor,
        reason: event.reason,
        correlation_id: event.correlation_id,
        prerequisite: event.prerequisite,
    };
    let bytes = sent(id, kind.name(), &event);
    Frame {
        id,
        partition,
        bytes,
    }
}

fn reset(message: String, after: i64) -> Bytes {
    sent(after, "reset", &EventReset { message, after })
}

/// Returns a server-sent event. JSON has no line breaks.
fn sent(id: i64, name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("id: {id}\nevent: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(frames: impl IntoIterator<Item = (i64, &'static str)>) -> Kept {
        let mut kept = Kept::default();
        for (id, partition) in frames {
            kept.push(Frame {
                id,
                partition: partition.into(),
                bytes: Bytes::from(format!("{id} ")),
            });
        }
        kept
    }

    #[test]
    fn stream_gets_what_is_behind_its_place_and_belongs_to_its_partition() {
        let kept = kept([(1, "a"), (3, "b"), (4, "a"), (9, "a")]);
        let partition = PartitionId::parse("a").unwrap();
        let behind = |after, reached, of: Option<&PartitionId>| {
            let (frames, place) = kept.behind(after, reached, of).unwrap();
            (String::from_utf8(frames.concat()).unwrap(), place)
        };
        assert_eq!(behind(0, 9, None), ("1 3 4 9 ".to_owned(), 9));
        assert_eq!(behind(1, 9, Some(&partition)), ("4 9 ".to_owned(), 9));
        // Ids between were given to transactions that were rolled back.
        assert_eq!(behind(9, 12, Some(&partition)), (String::new(), 12));
        assert_eq!(behind(2, 4, Some(&partition)), ("4 9 ".to_owned(), 9));
    }

    #[test]
    fn stream_that_is_too_far_behind_reads_from_the_store() {
        let most = i64::try_from(KEPT).unwrap();
        let kept = kept((1..=most + 10).map(|id| (id, "a")));
        assert!(kept.behind(9, most + 10, None).is_none());
        let (mut place, mut seen) = (10, Vec::new());
        while place < most + 10 {
            let (frames, next) = kept.behind(place, most + 10, None).unwrap();
            let size: usize = frames.iter().map(Bytes::len).sum();
            assert!(size < CHUNK + 10, "{size}");
            (place, seen) = (next, [seen, frames].concat());
        }
        assert_eq!(seen.len(), KEPT);
    }
}
