//! Reads the failures of a job: page by page, or in groups.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use contract::rest::{Failure, FailureGroup, Failures};
use contract::{JobId, PartitionId};

use crate::job_row::JobRow;
use crate::ledger::KeptFailure;
use crate::{Store, StoreError};

/// The number of failures that are read at once to group them.
const ROWS: usize = 500;
/// The largest number of groups.
const GROUPS: usize = 1000;
/// How many bytes of their messages failures of a group share.
const MESSAGE_BYTES: usize = 1000;

/// The place of a failure among the failures of its job: they are sorted by time and task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureCursor {
    since: i64,
    path: String,
}

impl fmt::Display for FailureCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.since, self.path)
    }
}

impl FromStr for FailureCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.split_once('-').and_then(|(since, path)| {
            let is_path = path.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let since = since.parse().ok().filter(|_| is_path)?;
            let path = path.to_owned();
            Some(Self { since, path })
        });
        place.ok_or_else(|| {
            format!("'{text}' is no place among the failures; use the value of 'next' of the page before")
        })
    }
}

impl Store {
    /// Returns up to `limit` failures of a job, oldest first, from the place behind `after` on; `None` if there is no such job.
    pub async fn failures(
        &self,
        partition: &PartitionId,
        job: &JobId,
        after: Option<&FailureCursor>,
        limit: usize,
    ) -> Result<Option<Failures>, StoreError> {
        let Some(row) = self.backend.job(partition.as_str(), job.as_str()).await? else {
            return Ok(None);
        };
        let after = after.map_or((i64::MIN, ""), |after| (after.since, after.path.as_str()));
        let limit = limit.max(1);
        let mut kept = self.failures_behind(&row, after, limit + 1).await?;
        let is_last = kept.len() <= limit;
        kept.truncate(limit);
        let next = kept.last().filter(|_| !is_last).map(|last| FailureCursor {
            since: last.since,
            path: last.path.clone(),
        });
        Ok(Some(Failures {
            failed_tasks: row.totals.failed_tasks,
            kept: if row.totals.failed_tasks == 0 {
                0
            } else {
                self.backend.failures_kept(row.incarnation).await?
            },
            next: next.map(|next| next.to_string()),
            failures: kept.into_iter().map(shown).collect(),
            ..Failures::default()
        }))
    }

    /// Returns the kept failures of a job in groups of the same kind and message, the largest first; `None` if there is no such
    /// job.
    pub async fn failure_groups(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<Failures>, StoreError> {
        let Some(row) = self.backend.job(partition.as_str(), job.as_str()).await? else {
            return Ok(None);
        };
        let mut groups = Groups::default();
        let mut last = (i64::MIN, String::new());
        loop {
            let kept = self.failures_behind(&row, (last.0, &last.1), ROWS).await?;
            let is_last = kept.len() < ROWS;
            for kept in kept {
                last = (kept.since, kept.path.clone());
                groups.add(kept);
            }
            if is_last {
                return Ok(Some(groups.into_failures(row.totals.failed_tasks)));
            }
        }
    }

    async fn failures_behind(
        &self,
        row: &JobRow,
        after: (i64, &str),
        limit: usize,
    ) -> Result<Vec<KeptFailure>, StoreError> {
        if row.totals.failed_tasks == 0 {
            return Ok(Vec::new());
        }
        let kept = self.backend.failures_after(row.incarnation, after, limit);
        Ok(kept.await?)
    }
}

fn shown(kept: KeptFailure) -> Failure {
    Failure::of_task(kept.path, kept.failure)
}

/// The groups, in the order of their first failures.
#[derive(Default)]
struct Groups {
    kept: i64,
    found: Vec<FailureGroup>,
    by_key: HashMap<(Option<String>, Option<String>), usize>,
}

impl Groups {
    fn add(&mut self, kept: KeptFailure) {
        self.kept += 1;
        let message = kept.failure.failure_message.as_ref();
        let message =
            message.map(|text| text[..text.floor_char_boundary(MESSAGE_BYTES)].to_owned());
        let key = (kept.failure.failure_id.clone(), message);
        if let Some(at) = self.by_key.get(&key) {
            let group = &mut self.found[*at];
            group.count += 1;
            group.last_time = kept.since;
        } else if self.found.len() < GROUPS {
            let (failure_id, failure_message) = key.clone();
            self.by_key.insert(key, self.found.len());
            self.found.push(FailureGroup {
                failure_id,
                failure_message,
                count: 1,
                first_time: kept.since,
                last_time: kept.since,
                example: shown(kept),
            });
        }
    }

    fn into_failures(mut self, failed_tasks: i64) -> Failures {
        // Stable: of groups of the same size, the one that began first comes first.
        self.found
            .sort_by_key(|group| std::cmp::Reverse(group.count));
        let grouped: i64 = self.found.iter().map(|group| group.count).sum();
        Failures {
            failed_tasks,
            kept: self.kept,
            groups: Some(self.found),
            ungrouped: Some((failed_tasks - grouped).max(0)),
            ..Failures::default()
        }
    }
}
