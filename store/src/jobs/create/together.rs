//! Creations that come at the same time share a transaction: with a database server, each of its
//! statements is a round trip.
//!
//! What must stay true:
//! - A creation waits for none that may come. The first one runs at once; those that come meanwhile
//!   run together when it has ended.
//! - None waits longer than [`PATIENCE`] for those before it, which may wait for a lock themselves:
//!   then it runs by itself.
//! - One that the database refuses, or that has to wait for a lock, spoils no other: each of them
//!   runs again by itself.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Attempt, Inserted, MakeStart, NewJob, insert, may_wait};
use crate::db::run_tx::{End, Locks, Tx, job_key};
use crate::db::{DbError, JobKey, Signal};
use crate::model::{Creation, JobRequest};
use crate::{Result, Store, StoreError};

/// The most creations that share a transaction.
const MOST: usize = 64;
/// A job whose definition has more bytes is created by itself.
const MOST_BYTES: usize = 32 * 1024;
/// PostgreSQL's codes of a lock that is not to be had, of a deadlock, and of a conflict with
/// another transaction.
const CONTENTION: [&str; 3] = ["55P03", "40P01", "40001"];
/// How long a creation waits for those before it.
const PATIENCE: Duration = Duration::from_millis(100);

/// The creations that wait for those that run.
#[derive(Default)]
pub(crate) struct Creations {
    state: Mutex<State>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    is_running: bool,
    is_closed: bool,
    /// How many have come.
    count: u64,
    /// Of each job one at most.
    waiting: Vec<Waiting>,
}

struct Waiting {
    /// Which of all that have come it is.
    number: u64,
    id: JobKey,
    request: JobRequest,
    start: Arc<MakeStart>,
    /// Dropped if the creation is to run by itself.
    ended: oneshot::Sender<Result<Attempt>>,
}

/// A creation that waits, or runs.
struct Added {
    number: u64,
    ended: oneshot::Receiver<Result<Attempt>>,
    /// Whether no transaction of creations is running. Then the caller that has added this creation
    /// must start one.
    is_first: bool,
}

/// The creations of a transaction, in (partition, job) order.
type Group = BTreeMap<JobKey, Waiting>;

impl Store {
    /// Creates a job together with others. Returns nothing if the creation has to run by itself.
    pub(super) async fn create_with_others(
        &self,
        request: &JobRequest,
        start: &Arc<MakeStart>,
    ) -> Result<Option<Attempt>> {
        if !self.database.is_server() || !may_share(request) {
            return Ok(None);
        }
        let Some(mut added) = self.creations.add(request, start) else {
            return Ok(None);
        };
        if added.is_first {
            // In a task of its own: this future is dropped if its client leaves, and would end the
            // creations of other clients with it.
            let running = Running {
                creations: Arc::clone(&self.creations),
                has_ended: false,
            };
            let all = create_all(self.for_request(None), running);
            self.creations.tasks.spawn(all);
        }
        match timeout(PATIENCE, &mut added.ended).await {
            Ok(ended) => ended.ok().transpose(),
            Err(_) if self.creations.withdraw(added.number) => Ok(None),
            Err(_) => added.ended.await.ok().transpose(),
        }
    }
}

/// Returns whether a creation looks at nothing but its id, and is small.
fn may_share(request: &JobRequest) -> bool {
    let is_plain = !may_wait(request) && request.uploads.is_empty() && !request.only_tries;
    is_plain && request.definition.len() <= MOST_BYTES
}

/// Runs all creations that wait.
async fn create_all(store: Store, mut running: Running) {
    while let Some(group) = running.next() {
        let created = store.run_tx_on_jobs("create_jobs", Locks::failing(), |tx| {
            Box::pin(create_group(tx, &group))
        });
        let ends: Vec<_> = match created.await {
            Ok(ends) => ends.into_iter().map(Ok).collect(),
            Err(error) if may_concern_one(&error) => continue,
            Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
        };
        for (waiting, end) in group.into_values().zip(ends) {
            // Its client may be gone.
            drop(waiting.ended.send(end));
        }
    }
}

/// Returns whether an error may be about only one of several creations.
fn may_concern_one(error: &StoreError) -> bool {
    match error {
        StoreError::Refused(_) => true,
        StoreError::Unavailable(cause) => {
            cause.code().is_some_and(|code| CONTENTION.contains(&code))
        }
        StoreError::Unusable { .. } => false,
    }
}

async fn create_group(tx: &mut Tx<'_>, group: &Group) -> Result<End<Vec<Attempt>>, DbError> {
    let new: Vec<NewJob<'_>> = group
        .values()
        .map(|waiting| NewJob {
            request: &waiting.request,
            start: &*waiting.start,
            waits_for: Vec::new(),
        })
        .collect();
    let (mut ends, mut is_any_created) = (Vec::with_capacity(new.len()), false);
    for inserted in insert(tx, &new).await? {
        ends.push(match inserted {
            Inserted::Created(created) => {
                is_any_created = true;
                Attempt::Done(Creation::Created(created))
            }
            Inserted::IdTaken => Attempt::IdTaken,
            Inserted::Outdated => return Ok(End::Rerun),
        });
    }
    if !is_any_created {
        return Ok(End::Rollback(ends));
    }
    tx.notify(Signal::Outbox);
    Ok(End::Commit(ends))
}

impl Creations {
    /// Adds a creation. Returns nothing if it has to run by itself: one of the same job waits, or
    /// the store is closed.
    fn add(&self, request: &JobRequest, start: &Arc<MakeStart>) -> Option<Added> {
        let (sender, ended) = oneshot::channel();
        let id = job_key(&request.partition, &request.job);
        let mut state = self.lock();
        if state.is_closed || state.waiting.iter().any(|waiting| waiting.id == id) {
            return None;
        }
        state.count += 1;
        let number = state.count;
        state.waiting.push(Waiting {
            number,
            id,
            request: request.clone(),
            start: Arc::clone(start),
            ended: sender,
        });
        Some(Added {
            number,
            ended,
            is_first: !mem::replace(&mut state.is_running, true),
        })
    }

    /// Takes back a creation that waits. Returns false if it runs.
    fn withdraw(&self, number: u64) -> bool {
        let waiting = &mut self.lock().waiting;
        let at = waiting.iter().position(|waiting| waiting.number == number);
        at.map(|at| waiting.remove(at)).is_some()
    }

    /// Returns those that run next. If there are none, none runs any more.
    fn next(&self) -> Option<Group> {
        let mut state = self.lock();
        state.waiting.retain(|waiting| !waiting.ended.is_closed());
        let count = state.waiting.len().min(MOST);
        let next = state.waiting.drain(..count);
        let group: Group = next.map(|waiting| (waiting.id.clone(), waiting)).collect();
        state.is_running = !group.is_empty();
        state.is_running.then_some(group)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits for those that run. Those that wait, and later ones, run by themselves.
    pub async fn close(&self) {
        {
            let mut state = self.lock();
            state.is_closed = true;
            state.waiting.clear();
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl std::fmt::Debug for Creations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.lock().waiting.len();
        f.debug_struct("Creations")
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

/// What runs the creations. If it ends before none waits any more, because of a panic or with the
/// runtime, those that wait run by themselves.
struct Running {
    creations: Arc<Creations>,
    has_ended: bool,
}

impl Running {
    fn next(&mut self) -> Option<Group> {
        let next = self.creations.next();
        self.has_ended = next.is_none();
        next
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut state = self.creations.lock();
            state.is_running = false;
            state.waiting.clear();
        }
    }
}
