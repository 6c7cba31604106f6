//! How a split gathers its subtasks into bundles.
//!
//! What must stay true:
//! - A subtask goes in a bundle only if somebody reads bundles for its pipe, only if nothing that
//!   is known of that pipe makes it slow, and only if nothing is reported when it is dispatched.
//! - No member waits longer than [`MAX_DELAY`]. One waits if it was dispatched quickly after the
//!   one before, or if it is the first and the task has said that others follow.

use std::sync::{Arc, Weak};

use contract::{bundle_pipe, input_of_bundles};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use super::{Context, Inner, Payload, Split};
use crate::broker::{Broker, PublishError};
use crate::steps::bundles::gathering::{Gathering, MAX_DELAY, MAX_MEMBER_BYTES, QUICK};
use crate::steps::bundles::readers::PipeReaders;
use crate::steps::output::TaskPart;

/// What the splits of a runtime share about bundles.
#[derive(Debug, Default)]
pub(crate) struct Bundling {
    /// The largest number of members. Below 2 nothing goes in bundles.
    pub most: u32,
    pub readers: Arc<PipeReaders>,
    /// What sends bundles in time runs here.
    pub tasks: TaskTracker,
}

impl Bundling {
    /// Returns how many bundles wait for the readers of a pipe, and how many members one has at the
    /// most.
    pub async fn waiting(&self, pipe: &str, broker: &dyn Broker) -> (u64, u32) {
        (self.readers.waiting(pipe, broker).await, self.most.max(1))
    }

    /// Notes that a pipe of bundles has not taken one, for this reason.
    pub fn not_taken(&self, bundles: &str, reason: &PublishError) {
        if let Some(input) = input_of_bundles(bundles) {
            self.readers.not_taken(input, reason);
        }
    }

    async fn reaches(&self, pipe: &str, broker: &dyn Broker) -> bool {
        self.most > 1 && self.readers.has(pipe, broker).await
    }
}

impl Context {
    /// Returns whether the next subtask, which was dispatched at `called`, goes in a bundle. A
    /// bundle that it does not belong to is sent before.
    pub(super) async fn goes_in_bundle(
        &self,
        split: &mut Split,
        called: Instant,
        pipe: &str,
        payload: &Payload,
    ) -> bool {
        let shared = &self.0.shared;
        if shared.bundling.most < 2 {
            return false;
        }
        // How long the author's code has taken, not how long the broker has.
        let is_quick = |latest| called.duration_since(latest) < QUICK;
        let others_follow = || self.0.expected.get().is_some_and(|subtasks| *subtasks > 1);
        let may_wait = split.latest.map_or_else(others_follow, is_quick);
        let fits = may_wait && payload.data.len() <= MAX_MEMBER_BYTES;
        if let Some(gathering) = &split.gathering {
            let (classifier, api_version) = (&payload.classifier, payload.api_version);
            if fits && gathering.takes(pipe, classifier, api_version) {
                return true;
            }
            split.send_gathered(shared);
        }
        if !fits
            || !shared.gauges.is_fast(pipe)
            || !shared.bundling.reaches(pipe, &*shared.broker).await
        {
            return false;
        }
        split.gathering = self.begin_bundle(pipe, payload).map(Box::new);
        split.gathering.is_some()
    }

    /// Begins a bundle for subtasks like this one; `None` if they do not go to their pipe, or
    /// something is to be reported of each.
    fn begin_bundle(&self, pipe: &str, payload: &Payload) -> Option<Gathering> {
        let Inner { input, shared, .. } = &*self.0;
        // The ids of the members follow from those of the split.
        let spec = self.subtask_spec(
            TaskPart::Subtask(1),
            pipe,
            &payload.classifier,
            payload.api_version,
        );
        let made = shared.identity.make(input, &spec);
        if made.report.is_some() {
            return None;
        }
        let made = made.message.filter(|made| *made.pipe == *pipe)?;
        let mut shared_by_all = made.message;
        shared_by_all.task_id.clone_from(&input.task_id);
        if let Some(tracking) = &mut shared_by_all.tracking {
            tracking.job_task_id = input.job_task_id().map(str::to_owned);
        }
        let mut headers = made.headers;
        if let Some(context) = input.span.context() {
            context.set_on(&mut headers);
        }
        let bundles = bundle_pipe(pipe)?;
        Some(Gathering::new(
            pipe.to_owned(),
            bundles,
            shared_by_all,
            headers,
        ))
    }

    /// Adds the subtask whose turn it is to the bundle, and sends that if it is full.
    pub(super) fn gather(&self, split: &mut Split, payload: &Payload) {
        let shared = &self.0.shared;
        let number = split.count;
        let Some(gathering) = &mut split.gathering else {
            return;
        };
        let most = shared.bundling.most;
        if gathering.add(number, &payload.data, payload.label.as_deref(), most) {
            split.send_gathered(shared);
        } else if !split.is_timed {
            split.is_timed = true;
            let inner = Arc::downgrade(&self.0);
            shared.bundling.tasks.spawn(send_in_time(inner));
        }
    }
}

/// Sends the bundle of a split when its first member has waited for [`MAX_DELAY`], as long as there
/// is one.
async fn send_in_time(inner: Weak<Inner>) {
    let mut until = Instant::now() + MAX_DELAY;
    loop {
        sleep_until(until).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut split = inner.split.lock().await;
        match &split.gathering {
            Some(gathering) if gathering.begun + MAX_DELAY > Instant::now() => {
                until = gathering.begun + MAX_DELAY;
            }
            _ => {
                split.send_gathered(&inner.shared);
                split.is_timed = false;
                return;
            }
        }
    }
}
