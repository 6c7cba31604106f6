//! The jobs that clients watch: each has one reader, however many event streams follow it.
//!
//! What must stay true:
//! - The first state of a stream was read after its request had arrived. One read serves all
//!   requests that wait for it.
//! - A job is read only if a stream asks for it, or after the store has signalled a change of this
//!   job, of a job that it waits for, or of a condition that blocks it. The signal is subscribed to
//!   before the read, so no stream misses the last state.
//! - A job that changes is read ten times a second at most, but its end is told at once.
//! - A stream buffers nothing: a slow client skips intermediate states.
//! - A reader ends with the last stream that follows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use contract::{JobId, PartitionId};
use framework::health::Health;
use framework::supervision::run_or_tell;
use parking_lot::{Mutex, MutexGuard};
use store::{JobSignal, Store, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::conditions::show_conditions;
use crate::http::{ApiError, ApiResult};
use crate::pipes::seen_workers::SeenWorkers;
use crate::wakeup::backoff;

/// The minimum time between two reads of a job that changes, unless it ends.
const PACE: Duration = Duration::from_millis(100);
/// The same for each of its streams: all streams of a job together send at most 20,000 events a
/// second.
const PACE_PER_STREAM: Duration = Duration::from_micros(50);

/// The name of a reader in the log and in the metric of panics.
const READER: &str = "job-service: reader of a watched job";

/// The readers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WatchedJobs {
    store: Store,
    workers: SeenWorkers,
    health: Health,
    readers: Arc<Mutex<HashMap<Key, Arc<Reader>>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

type Key = (PartitionId, JobId);

/// What an event stream sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Job {
        json: Arc<str>,
        is_finished: bool,
    },
    /// There is no such job.
    Gone,
}

/// What the reader of a job and its streams share.
#[derive(Debug)]
struct Reader {
    /// The number of streams that have asked for a state.
    asked: watch::Sender<u64>,
    reads: watch::Sender<Read>,
    states: watch::Sender<State>,
}

/// The last read.
#[derive(Debug, Default)]
struct Read {
    /// The number of streams that had asked before it.
    served: u64,
    error: Option<StoreError>,
}

/// Follows one job for one event stream.
#[derive(Debug)]
pub struct Follower {
    number: u64,
    reads: watch::Receiver<Read>,
    states: watch::Receiver<State>,
}

impl WatchedJobs {
    pub fn new(store: Store, workers: SeenWorkers, health: Health) -> Self {
        Self {
            store,
            workers,
            health,
            readers: Arc::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Follows a job. Its reader reads it now, once more if it is there already.
    pub fn follow(&self, partition: PartitionId, job: JobId) -> Follower {
        let key = (partition, job);
        let mut new = None;
        let follower = {
            let mut readers = self.lock();
            let reader = readers.entry(key.clone());
            let reader = reader.or_insert_with(|| new.insert(Arc::new(Reader::new())).clone());
            reader.follow()
        };
        if let Some(reader) = new {
            let jobs = self.clone();
            let ended = Ended { jobs, key, reader };
            let stop = self.stop.clone();
            self.tasks.spawn(async move {
                let reading = stop.run_until_cancelled(read(&ended));
                // After a panic its streams end, and the clients follow the job again.
                run_or_tell(&ended.jobs.health, READER, reading).await
            });
        }
        follower
    }

    /// Ends all readers, and with them the streams.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Takes the reader away if no stream follows it. Returns whether it did.
    fn remove_unused(&self, key: &Key, reader: &Reader) -> bool {
        // New streams join under the same lock.
        let mut readers = self.lock();
        let is_unused = reader.states.is_closed();
        if is_unused {
            readers.remove(key);
        }
        is_unused
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Reader>>> {
        self.readers.lock()
    }
}

impl Follower {
    /// Returns the current state.
    pub async fn first(&mut self) -> ApiResult<State> {
        let number = self.number;
        let read = self.reads.wait_for(|read| read.served >= number).await;
        let read = read.map_err(|_| ApiError::Bug("the reader of a job has ended".to_owned()))?;
        if let Some(error) = &read.error {
            return Err(error.clone().into());
        }
        Ok(self.states.borrow_and_update().clone())
    }

    /// Waits until the state differs from the last one. Returns `None` if the stream must end.
    pub async fn next(&mut self) -> Option<State> {
        self.states.changed().await.ok()?;
        Some(self.states.borrow_and_update().clone())
    }
}

impl Reader {
    fn new() -> Self {
        Self {
            asked: watch::Sender::new(0),
            reads: watch::Sender::new(Read::default()),
            states: watch::Sender::new(State::Gone),
        }
    }

    fn pace(&self) -> Duration {
        let streams = u32::try_from(self.states.receiver_count()).unwrap_or(u32::MAX);
        PACE.max(PACE_PER_STREAM.saturating_mul(streams))
    }

    fn follow(&self) -> Follower {
        let (reads, states) = (self.reads.subscribe(), self.states.subscribe());
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        Follower {
            number,
            reads,
            states,
        }
    }
}

/// Takes a reader away when its task ends, also by a panic: its streams then end, and the next one
/// gets a new reader.
struct Ended {
    jobs: WatchedJobs,
    key: Key,
    reader: Arc<Reader>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut readers = self.jobs.lock();
        let own = readers.get(&self.key);
        if own.is_some_and(|reader| Arc::ptr_eq(reader, &self.reader)) {
            readers.remove(&self.key);
        }
    }
}

/// Reads a job whenever that is asked for or it may have changed, until no stream follows it.
async fn read(ended: &Ended) {
    let Ended { jobs, key, reader } = ended;
    let mut signal = jobs.store.job_signal(&key.0, &key.1);
    let end = jobs.store.job_end_signal(&key.0, &key.1);
    let mut asked = reader.asked.subscribe();
    let mut failures = 0;
    loop {
        let served = *asked.borrow_and_update();
        let began = Instant::now();
        let outcome = read_once(jobs, key, &mut signal).await;
        let due = outcome.is_err().then(|| began + backoff(failures));
        failures = if outcome.is_err() { failures + 1 } else { 0 };
        let error = match outcome {
            Ok(state) => {
                reader.states.send_if_modified(|last| {
                    let differs = *last != state;
                    *last = state;
                    differs
                });
                None
            }
            Err(error) => Some(error),
        };
        reader.reads.send_replace(Read { served, error });
        let changed = async {
            signal.changed().await;
            tokio::select! {
                () = sleep_until(began + reader.pace()) => {}
                () = end.changed() => {}
            }
        };
        let retry = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            _ = asked.changed() => {}
            () = retry => {}
            () = reader.states.closed() => if jobs.remove_unused(key, reader) {
                return;
            },
        }
    }
}

/// Reads the job, and extends the signal to the jobs that it waits for and the conditions that
/// block it: what happens to them is part of its state.
async fn read_once(
    jobs: &WatchedJobs,
    key: &Key,
    signal: &mut JobSignal,
) -> Result<State, StoreError> {
    loop {
        let Some(mut job) = jobs.store.job(&key.0, &key.1).await? else {
            return Ok(State::Gone);
        };
        show_conditions(&jobs.store, &mut job).await?;
        let blocked = job.blocked.iter().flat_map(|it| &it.conditions);
        let is_blocked = signal.also_conditions(blocked.map(|it| it.key.as_str()));
        let waits = signal.also(job.waiting_for.iter().map(|other| other.job_id.as_str()));
        if !is_blocked && !waits {
            jobs.workers.running().show(&key.0, &mut job);
            return Ok(State::Job {
                json: serde_json::to_string(&job).unwrap_or_default().into(),
                is_finished: job.status.is_finished(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::JobTaskId;
    use store::{EventKind, JobRequest, StoreOptions, TrackingEvent};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_of_a_job_are_told_in_their_pace_and_its_end_at_once() {
        let store = Store::temporary(StoreOptions::default());
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let request = JobRequest::new(partition.clone(), job.clone());
        let created = store.create_job(&request, |_| ("in".to_owned(), Vec::new()));
        created.await.unwrap();
        let complete = async |task: &str| {
            let task = JobTaskId::parse(task).unwrap();
            let kind = EventKind::Complete;
            store.record(&[TrackingEvent { task, kind }]).await.unwrap();
        };
        let jobs = WatchedJobs::new(store.clone(), SeenWorkers::default(), Health::default());
        let mut follower = jobs.follow(partition, job);
        follower.first().await.unwrap();
        let began = Instant::now();
        for (task, is_end, told) in [
            ("p:j.1", false, PACE),
            ("p:j.2", false, 2 * PACE),
            ("p:j.3*", true, 2 * PACE),
        ] {
            complete(task).await;
            let State::Job { is_finished, .. } = follower.next().await.unwrap() else {
                panic!("the job is gone");
            };
            assert_eq!((is_finished, began.elapsed()), (is_end, told), "{task}");
        }
    }
}
