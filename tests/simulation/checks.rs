//! The status checks of simulated processes. There is no HTTP under a paused clock, so the check is
//! imitated as the framework makes it: a message that was checked recently is not checked again,
//! and a status is cached for a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use contract::{Bundle, JobStatus, TaskMessage, patch_tracking};
use framework::broker::Delivery;
use store::{Store, StoreError};
use tokio::time::Instant;

use crate::faults::Who;
use crate::rounds::round_of;
use crate::simulation::{ITEMS_REJECT, job_id, partition};

/// The status checks of one process.
pub struct Checks {
    store: Store,
    /// Whether the process learns at once that a job has been completed, or that a round is over.
    /// Otherwise it never does.
    completions: bool,
    /// How long the process relies on what it has read about a pause. `None`: it never learns of
    /// pauses.
    pauses: Option<Duration>,
    /// The zero of the times that are written to messages.
    start: Instant,
    /// Whether a round of an incarnation is paused, and when that was read.
    cached: Mutex<HashMap<(i64, u32), (i64, bool)>>,
}

pub enum Checked {
    Admitted,
    Discarded,
    /// The messages, stamped: one, or the members of a bundle.
    Paused(Vec<Vec<u8>>),
}

impl Checks {
    pub fn new(store: Store, completions: bool, pauses: Option<Duration>, start: Instant) -> Self {
        Self {
            store,
            completions,
            pauses,
            start,
            cached: Mutex::default(),
        }
    }

    pub async fn check(&self, role: Who, delivery: &Delivery) -> Checked {
        if *delivery.pipe == *ITEMS_REJECT {
            // It becomes a dead letter, whatever has become of its job.
            return Checked::Admitted;
        }
        let body = delivery.body();
        let bundle = Bundle::decode(&body).ok();
        let message = match &bundle {
            Some(bundle) => Ok(bundle.shared.clone()),
            None => TaskMessage::decode(&body),
        };
        let Ok(mut message) = message else {
            return Checked::Admitted;
        };
        // The simulation uses the correlation id for the incarnation.
        let incarnation = message
            .correlation_id
            .as_deref()
            .and_then(|id| id.parse().ok());
        let (Some(tracking), Some(incarnation)) = (&mut message.tracking, incarnation) else {
            return Checked::Admitted;
        };
        let life = (incarnation, round_of(tracking.job_task_id.as_deref()));
        if self.completions && self.is_over(life).await {
            return Checked::Discarded;
        }
        let Some(holds) = self
            .pauses
            .filter(|_| matches!(role, Who::Batch | Who::Items))
        else {
            return Checked::Admitted;
        };
        let holds = i64::try_from(holds.as_millis()).unwrap_or(i64::MAX);
        if tracking
            .last_status_check_time
            .is_some_and(|last| last + holds > self.now())
        {
            return Checked::Admitted;
        }
        let (asked, is_paused) = self.is_paused(life, holds).await;
        if !is_paused {
            return Checked::Admitted;
        }
        tracking.last_status_check_time = Some(asked);
        let Some(mut bundle) = bundle else {
            let body = patch_tracking(&body, message.tracking.as_ref()).unwrap_or_default();
            return Checked::Paused(vec![body]);
        };
        bundle.shared = message;
        let members = (0..bundle.members.len()).filter_map(|index| bundle.message(index, &body));
        Checked::Paused(members.map(|member| member.encode()).collect())
    }

    async fn is_paused(&self, life: (i64, u32), holds: i64) -> (i64, bool) {
        let known = self
            .cached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&life)
            .copied();
        if let Some(answer) = known.filter(|(asked, _)| asked + holds > self.now()) {
            return answer;
        }
        let answer = (
            self.now(),
            matches!(self.status(life).await, Ok(Some(JobStatus::Paused))),
        );
        self.cached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(life, answer);
        answer
    }

    /// Returns whether the job is completed, or goes on in a later round.
    async fn is_over(&self, life: (i64, u32)) -> bool {
        match self.status(life).await {
            Ok(Some(status)) => status == JobStatus::Completed,
            Ok(None) => {
                let store = &self.store;
                let job = store.job_status(partition(), job_id(), Some(life.0), None);
                matches!(job.await, Ok(Some(_)))
            }
            Err(_) => false,
        }
    }

    async fn status(
        &self,
        (incarnation, round): (i64, u32),
    ) -> Result<Option<JobStatus>, StoreError> {
        self.store
            .job_status(partition(), job_id(), Some(incarnation), Some(round))
            .await
    }

    fn now(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}
