//! What a message that is put aside says of itself: why, where it came from, and which worker says
//! so. The job service reads it when it keeps the message as a dead letter.

use std::collections::BTreeMap;

use contract::headers::{
    BLOCKS_HEADER, CAUSE_HEADER, LETTER_HEADER, ORIGIN_HEADER, REASON_HEADER, RUN_HEADER,
    WORKER_HEADER,
};
use contract::rest::LetterCause;
use contract::{FailedRun, TaskMessage, TaskStatus};

use crate::broker::{Delivery, HeaderValue, Headers, Outgoing};
use crate::steps::output::{LONGEST_REASON, describe};

/// Why a message goes to the invalid or the reject pipe, and which worker says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Explanation<'a> {
    pub cause: LetterCause,
    pub reason: &'a str,
    pub worker: Option<&'a str>,
}

impl Explanation<'_> {
    /// Adds the reason to the headers of a message, and where it came from.
    pub fn set_on(self, headers: &mut Headers, delivery: &Delivery) {
        let text = |text: &str| HeaderValue::Text(text.into());
        let reason = &self.reason[..self.reason.floor_char_boundary(LONGEST_REASON)];
        headers.set(REASON_HEADER, text(reason));
        headers.set(ORIGIN_HEADER, text(&delivery.pipe));
        headers.set(CAUSE_HEADER, text(self.cause.name()));
        if let Some(worker) = self.worker {
            headers.set(WORKER_HEADER, text(worker));
        }
    }

    /// As [`Self::set_on`], and tells the message from every other one with the same content.
    pub fn set_on_invalid(self, headers: &mut Headers, delivery: &Delivery) {
        self.set_on(headers, delivery);
        let name = uuid::Uuid::new_v4().to_string();
        headers.set(LETTER_HEADER, HeaderValue::Text(name.into()));
    }

    /// Returns a copy of a task for this reject pipe. `run` says which attempt was the last.
    pub fn reject_copy(
        self,
        reject: &str,
        (message, delivery): (&TaskMessage, &Delivery),
        label: Option<&str>,
        run: Option<&FailedRun>,
    ) -> Outgoing {
        let copy = TaskMessage {
            task_id: uuid::Uuid::new_v4().to_string(),
            task_status: Some(TaskStatus::ResultException),
            context: BTreeMap::new(),
            to: Some(reject.into()),
            priority: None,
            ..message.clone()
        };
        let mut headers = Headers::default();
        if let Some(tracking) = &copy.tracking {
            describe(
                &mut headers,
                tracking.job_task_id.as_deref(),
                TaskStatus::ResultException,
                label,
            );
        }
        // If it is sent again, it is the same task: its blocks go on being counted.
        if let Some(blocks) = delivery.headers.get(BLOCKS_HEADER) {
            headers.set(BLOCKS_HEADER, blocks.clone());
        }
        self.set_on(&mut headers, delivery);
        if let Some(run) = run.and_then(|run| serde_json::to_string(run).ok()) {
            headers.set(RUN_HEADER, HeaderValue::Text(run.into()));
        }
        Outgoing {
            headers,
            ..Outgoing::new(reject, copy.encode())
        }
    }
}
