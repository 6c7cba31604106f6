//! The tasks that run in the slots of a worker. Its signs of life tell of which jobs they are.
//!
//! What must stay true: a task that ends at its first poll costs nothing here, and none ever waits
//! for another. So a task finds no place now and then, and is not counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contract::{BatchTask, JobSlots, JobTaskId, TaskData as _};
use parking_lot::Mutex;

use super::Context;

/// The number of places.
const PLACES: usize = 1024;
/// How many of them a task looks at.
const LOOKS: usize = 8;
/// The most jobs that are told.
const MOST_JOBS: usize = 16;

/// The tasks that have been polled and wait for something.
#[derive(Debug)]
pub(crate) struct RunningTasks {
    places: Box<[Mutex<Option<Context>>]>,
    next: AtomicUsize,
}

/// A task counts as running until this is dropped.
#[derive(Debug)]
#[must_use = "the task counts as running until this is dropped"]
pub(crate) struct Noted<'a>(&'a Mutex<Option<Context>>);

impl Default for RunningTasks {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            next: AtomicUsize::new(0),
        }
    }
}

impl RunningTasks {
    /// Returns of which jobs the tasks are that run and are not told otherwise, those with most
    /// first. `polled` are the tasks that threads poll now, of any worker.
    pub fn by_job(self: &Arc<Self>, polled: Vec<Context>) -> Vec<JobSlots> {
        let of_this_worker = |ctx: &Context| Arc::ptr_eq(&ctx.0.shared.running, self);
        let waiting = self.places.iter().filter_map(|place| {
            let place = place.lock();
            place.clone()
        });
        let running: Vec<Context> = waiting
            .chain(polled.into_iter().filter(of_this_worker))
            .collect();
        let (mut seen, mut jobs) = (BTreeSet::new(), BTreeMap::new());
        for ctx in &running {
            if seen.insert(Arc::as_ptr(&ctx.0).addr())
                && let Some(job) = ctx.untold_item_of()
            {
                *jobs.entry(job).or_insert(0_u32) += 1;
            }
        }
        let jobs = jobs.into_iter();
        let mut jobs: Vec<JobSlots> = jobs.map(|(job, tasks)| JobSlots { job, tasks }).collect();
        jobs.sort_by_key(|job| Reverse(job.tasks));
        jobs.truncate(MOST_JOBS);
        jobs
    }
}

impl Context {
    /// Notes that the task runs, until the returned value is dropped.
    pub(crate) fn note_running(&self) -> Option<Noted<'_>> {
        let RunningTasks { places, next } = &*self.0.shared.running;
        let first = next.fetch_add(1, Ordering::Relaxed);
        (0..LOOKS).find_map(|look| {
            let place = places.get((first + look) % PLACES)?;
            let mut taken = place.try_lock()?;
            taken.is_none().then(|| {
                *taken = Some(self.clone());
                Noted(place)
            })
        })
    }

    /// Returns the job, `partition:job`, if the task is an item that no report has told of: a task
    /// that runs for a while is reported, one that runs again counts as retrying, and a batch is no
    /// item.
    fn untold_item_of(&self) -> Option<String> {
        let is_told = self.0.is_told_running.load(Ordering::Relaxed) || self.0.attempt > 1;
        let is_split = self.0.expected.get().is_some()
            || self.0.input.task_classifier.as_deref() == Some(BatchTask::CLASSIFIER);
        if is_told || is_split {
            return None;
        }
        let id = JobTaskId::parse(self.0.input.job_task_id()?).ok()?;
        Some(format!("{}:{}", id.partition, id.job))
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let task = self.0.lock().take();
        // It may be the last one that holds what the task has.
        drop(task);
    }
}
