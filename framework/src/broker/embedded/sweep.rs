//! Deletes what deleted and cancelled jobs have left in pipes that nobody consumes.
//!
//! Consumers discard the messages of a job that has ended. Where there is no consumer, for example
//! because the name of a pipe was mistyped, the messages would stay for ever.
//!
//! What must stay true:
//! - A message is deleted only if its job is known to have ended. One that names no job, or no job
//!   service that knows it, stays.
//! - A message that a consumer may have received is left to the consumer.
//! - Copies of failed tasks stay until their job is deleted, because people look at them.

use std::borrow::Cow;
use std::collections::HashMap;

use contract::JobTaskId;
use futures_util::future::BoxFuture;
use serde::Deserialize;

use super::Embedded;
use crate::broker::BrokerError;
use crate::broker::local::Command;
use crate::broker::local::pipe::{Id, Message, UnconsumedPipe, rows_of};
use crate::broker::local::work::Page;

/// How much is read at a time.
const PAGE_BYTES: usize = 2 << 20;

/// The job that a message belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageJob {
    /// The partition of the job.
    pub partition: String,
    /// The id of the job.
    pub job: String,
    /// The incarnation of the job, if the message names it.
    pub incarnation: Option<i64>,
    /// The round of the job that the message belongs to.
    pub round: u32,
}

/// What has become of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its messages are needed.
    Needed,
    /// It was cancelled, or the round of the message is over.
    Cancelled,
    /// It was deleted. Another incarnation may exist.
    Deleted,
}

impl Embedded {
    /// Deletes the messages of deleted jobs from the pipes that nobody consumes, and those of
    /// cancelled jobs, except for copies of failed tasks. Asks `fate` once about each job. Returns
    /// how many messages were deleted.
    ///
    /// # Errors
    /// [`BrokerError::Closed`] after [`close`](crate::broker::Broker::close).
    pub async fn sweep<'a>(
        &self,
        fate: impl Fn(MessageJob) -> BoxFuture<'a, Fate>,
    ) -> Result<u64, BrokerError> {
        let _alone = self.place.sweep.lock().await;
        let (mut fates, mut deleted) = (HashMap::new(), 0);
        let pipes = self.request(|reply| Command::Unconsumed { reply }).await?;
        for UnconsumedPipe { number, joined, .. } in pipes {
            let mut after = rows_of(number).0;
            loop {
                let page = Page {
                    number,
                    after,
                    bytes: PAGE_BYTES,
                };
                let messages = self.request(|reply| Command::Peek { page, reply }).await?;
                let Some(last) = messages.last() else { break };
                after = last.id;
                let ids = left_over(&messages, &fate, &mut fates).await;
                if !ids.is_empty() {
                    deleted += self
                        .request(|reply| Command::Discard { ids, joined, reply })
                        .await?;
                }
            }
        }
        Ok(deleted)
    }
}

/// Returns the messages whose jobs need them no more.
async fn left_over<'a>(
    messages: &[Message],
    fate: &impl Fn(MessageJob) -> BoxFuture<'a, Fate>,
    fates: &mut HashMap<MessageJob, Fate>,
) -> Vec<Id> {
    let mut ids = Vec::new();
    for message in messages {
        let Some((job, is_failure)) = job_of(&message.body) else {
            continue;
        };
        let known = if let Some(known) = fates.get(&job) {
            *known
        } else {
            let known = fate(job.clone()).await;
            fates.insert(job, known);
            known
        };
        if known == Fate::Deleted || known == Fate::Cancelled && !is_failure {
            ids.push(message.id);
        }
    }
    ids
}

/// The parts of a task message that are needed here. The task data is not decoded.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    task_status: Option<String>,
    #[serde(borrow)]
    tracking: Tracking<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tracking<'a> {
    #[serde(borrow)]
    job_task_id: Cow<'a, str>,
    #[serde(borrow)]
    status_check_url: Cow<'a, str>,
}

/// Returns the job of a message, and whether the message is about a failure. The incarnation is in
/// the id of the task or, for the first job with an id, only in the URL of the status check.
fn job_of(body: &[u8]) -> Option<(MessageJob, bool)> {
    let Envelope {
        task_status,
        tracking,
    } = serde_json::from_slice(body)
        .or_else(|error| {
            first_line(body)
                .ok_or(error)
                .and_then(serde_json::from_slice)
        })
        .ok()?;
    let id = JobTaskId::parse(&tracking.job_task_id).ok()?;
    let query = tracking.status_check_url.split_once('?');
    let in_url = query
        .and_then(|(_, query)| query.split('&').find_map(|part| part.strip_prefix("n=")))
        .and_then(|number| number.parse().ok());
    if id.incarnation.is_some() && in_url.is_some() && id.incarnation != in_url {
        return None;
    }
    let job = MessageJob {
        partition: id.partition,
        job: id.job,
        incarnation: id.incarnation.or(in_url),
        round: id.round,
    };
    let is_failure = task_status.is_some_and(|status| {
        ["RESULT_EXCEPTION", "RESULT_FAILURE", "INVALID_TASK"].contains(&status.as_str())
    });
    Some((job, is_failure))
}

/// Returns the first line of a bundle, which is the task message that its members share.
fn first_line(body: &[u8]) -> Option<&[u8]> {
    let end = body.iter().position(|byte| *byte == b'\n')?;
    Some(&body[..end])
}

#[cfg(test)]
mod tests;
