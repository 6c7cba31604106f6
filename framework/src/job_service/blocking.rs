//! Where a task goes that waits for a condition: asked of the job service when the task is blocked.
//!
//! What must stay true:
//! - A task that is not blocked asks nothing more than before.
//! - An answer serves a bounded number of tasks, so that a fast worker does not go on long after
//!   its condition takes no more.

use std::sync::Arc;
use std::time::Duration;

use contract::headers::{BLOCKED_PIPE_HEADER, EVERY_CONDITION, FULL_CONDITIONS_HEADER};
use contract::{MAX_PIPE_BYTES, Tracking};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::JobServiceClient;
use crate::http::HeaderMap;
use crate::steps::routing::JobKnowledge;

/// How old an answer may be. The tasks that are blocked meanwhile share it.
const NEW: Duration = Duration::from_secs(1);
/// The most tasks of this process that share the answers of one time.
const MOST_TASKS: u32 = 500;
/// How much of the list of full conditions is read, in bytes.
const MOST_BYTES: usize = 4096;

/// Where a task goes that waits for a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// To this pipe.
    To(String),
    /// Nowhere: as many tasks wait for the condition as may.
    Full,
    /// Nowhere: its job service, if it has one, keeps no such tasks.
    NotKept,
    /// That is not known, because the job service did not answer.
    Unknown,
    /// Nowhere: its job has ended.
    Over,
}

/// What the answer to a status check says of tasks that wait for conditions.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    pipe: Option<Arc<str>>,
    /// The keys of those that take no more tasks.
    full: Option<Arc<str>>,
}

impl Conditions {
    /// Returns what these headers say.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name, most: usize| {
            let value = headers.get(name)?.to_str().ok()?;
            (!value.is_empty()).then(|| value[..value.floor_char_boundary(most)].into())
        };
        Self {
            pipe: text(BLOCKED_PIPE_HEADER, MAX_PIPE_BYTES),
            full: text(FULL_CONDITIONS_HEADER, MOST_BYTES),
        }
    }
}

/// Counts the tasks that are blocked, and says which answers they may share.
#[derive(Debug, Default)]
pub(super) struct Sharing(Mutex<(u32, Option<Instant>)>);

impl Sharing {
    /// Counts a task. Returns the time since which its answer must have been asked.
    fn count(&self) -> Option<Instant> {
        let mut sharing = self.0.lock();
        let (tasks, since) = &mut *sharing;
        if *tasks >= MOST_TASKS {
            (*tasks, *since) = (0, Some(Instant::now()));
        }
        *tasks += 1;
        Instant::now().checked_sub(NEW).max(*since)
    }
}

impl JobServiceClient {
    /// Returns where a task goes that waits for the condition with this key.
    pub async fn blocked(&self, tracking: Option<&Tracking>, key: &str) -> Blocked {
        let tracked = tracking.filter(|tracking| tracking.job_task_id.is_some());
        let Some((tracking, url)) =
            tracked.and_then(|tracking| Some((tracking, tracking.status_check_url.as_deref()?)))
        else {
            return Blocked::NotKept;
        };
        let since = self.sharing.count();
        let check = self.check_own_job(tracking, url, since).await;
        match check.job {
            JobKnowledge::Presumed => return Blocked::Unknown,
            JobKnowledge::Gone => return Blocked::Over,
            JobKnowledge::Is(status) if status.is_finished() => return Blocked::Over,
            JobKnowledge::Is(_) => {}
        }
        let Conditions { pipe, full } = check.conditions;
        let is_key = |full: &str| full == key || full == EVERY_CONDITION;
        let is_full = full.is_some_and(|keys| keys.split(' ').any(is_key));
        match pipe {
            None => Blocked::NotKept,
            Some(_) if is_full => Blocked::Full,
            Some(pipe) => Blocked::To(pipe.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answer_serves_a_bounded_number_of_tasks() {
        let sharing = Sharing::default();
        let since = Instant::now().checked_sub(NEW);
        for _ in 0..500 {
            assert_eq!(sharing.count(), since);
        }
        assert_eq!(sharing.count(), Some(Instant::now()), "a new one");
    }
}
