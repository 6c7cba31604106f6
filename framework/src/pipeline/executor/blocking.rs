//! What happens to a task that waits for a condition: it goes to the job service, which keeps it
//! until the condition has passed.
//!
//! What must stay true: no attempt is counted for a task that the job service keeps.

use contract::headers::{BLOCKS_HEADER, CONDITION_HEADER};
use tracing::debug;

use super::TaskExecutor;
use crate::broker::{HeaderValue, Headers, Outgoing};
use crate::context::Dispatched;
use crate::handler::{Disposition, Outputs, Received};
use crate::job_service::Blocked;
use crate::steps::output::set_label;
use crate::{TaskError, Worker};

impl<W: Worker> TaskExecutor<W> {
    /// Returns what an error becomes that says that a task waits for a condition; `None` if the
    /// task has to wait here, because as many wait for the condition as may.
    pub(super) async fn hand_over(
        &self,
        received: &Received,
        error: TaskError,
    ) -> Option<TaskError> {
        let Some(condition) = error.condition() else {
            return Some(error);
        };
        if error.waits_in().is_some() {
            // A simulation has said it: nobody can be asked under its clock.
            return Some(error);
        }
        let key = condition.key();
        let tracking = received.message().tracking.as_ref();
        match self
            .shared
            .job_service
            .blocked(tracking, key.as_str())
            .await
        {
            Blocked::To(pipe) => Some(error.waiting_in(pipe)),
            Blocked::Full => None,
            Blocked::NotKept => Some(TaskError::retry(error.chain())),
            // It runs again in a moment, and no attempt is counted.
            Blocked::Unknown => Some(TaskError::unavailable(error.chain())),
            Blocked::Over => Some(TaskError::cancelled()),
        }
    }

    /// Sends a task to the pipe of those that wait.
    pub(super) fn block(
        &self,
        received: &Received,
        error: &TaskError,
        dispatched: Dispatched,
    ) -> Disposition {
        let (Some(condition), Some(pipe)) = (error.condition(), error.waits_in()) else {
            return Disposition::Redeliver(error.chain());
        };
        debug!(reason = error.chain(), "a task waits for a condition");
        self.shared.counters.blocked.increment(1);
        let mut headers = received.headers().clone();
        let blocks = i64::from(blocks(&headers)).saturating_add(1);
        headers.set(BLOCKS_HEADER, HeaderValue::Integer(blocks));
        headers.set(
            CONDITION_HEADER,
            HeaderValue::Text(condition.to_json().into()),
        );
        // The job service names the item if it fails the task.
        if let Some(label) = Self::label_of(received) {
            set_label(&mut headers, &label);
        }
        let message = Outgoing {
            headers,
            ..Outgoing::new(pipe, received.delivery.body())
        };
        // Without the reports: the next run dispatches the same subtasks and reports them.
        Disposition::Done(Outputs {
            pending: dispatched.pending,
            messages: vec![message],
            ..Outputs::default()
        })
    }
}

/// Returns how often a task was blocked before.
pub(super) fn blocks(headers: &Headers) -> u32 {
    let number = match headers.get(BLOCKS_HEADER) {
        Some(HeaderValue::Integer(number)) => Some(*number),
        Some(HeaderValue::Text(text)) => text.parse().ok(),
        None => None,
    };
    number.map_or(0, |number| u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}
