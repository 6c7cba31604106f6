//! Reads the failures of a job: page by page, or in groups.

use std::fmt;
use std::str::FromStr;

use contract::rest::{Failure, FailureGroup, Failures};
use contract::{JobId, PartitionId};

use crate::db::sql;
use crate::db::sql::failures::{GROUPED_BYTES, KeptGroup, PAGE_BYTES};
use crate::job_row::JobRow;
use crate::ledger::KeptFailure;
use crate::{Result, Store};

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

/// How many failures are read at a time.
const AT_ONCE: usize = 100;

impl Store {
    /// Returns up to `limit` failures of a job, oldest first, from the place behind `after` on;
    /// `None` if there is no such job. A page of large failures has fewer.
    pub async fn failures(
        &self,
        partition: &PartitionId,
        job: &JobId,
        after: Option<&FailureCursor>,
        limit: usize,
    ) -> Result<Option<Failures>> {
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(None);
        };
        let after = after.map_or((i64::MIN, ""), |after| (after.since, after.path.as_str()));
        let (kept, is_last) = self.page_of_failures(&row, after, limit.max(1)).await?;
        let next = kept.last().filter(|_| !is_last).map(|last| FailureCursor {
            since: last.since,
            path: last.path.clone(),
        });
        Ok(Some(Failures {
            failed_tasks: row.totals.failed_tasks,
            kept: if row.totals.failed_tasks == 0 {
                0
            } else {
                let db = &mut self.database.reader().await?;
                sql::failures::count(db, row.incarnation).await?
            },
            next: next.map(|next| next.to_string()),
            failures: kept.into_iter().map(shown).collect(),
            ..Failures::default()
        }))
    }

    /// Returns the kept failures of a job in groups of the same kind and message, at most `limit`
    /// of these and fewer if they are large, the largest first; `None` if there is no such job.
    pub async fn failure_groups(
        &self,
        partition: &PartitionId,
        job: &JobId,
        limit: u32,
    ) -> Result<Option<Failures>> {
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(None);
        };
        let failed_tasks = row.totals.failed_tasks;
        let (groups, kept) = if failed_tasks == 0 {
            (Vec::new(), 0)
        } else {
            let mut groups =
                sql::failures::groups(&mut self.database.lister().await?, row.incarnation, limit)
                    .await?;
            let mut bytes = 0;
            groups.retain(|group| {
                let is_shown = bytes < PAGE_BYTES;
                bytes += group.first.bytes();
                is_shown
            });
            (
                groups,
                sql::failures::count(&mut self.database.reader().await?, row.incarnation).await?,
            )
        };
        let grouped: i64 = groups.iter().map(|group| group.count).sum();
        Ok(Some(Failures {
            failed_tasks,
            kept,
            groups: Some(groups.into_iter().map(shown_group).collect()),
            ungrouped: Some((failed_tasks - grouped).max(0)),
            ..Failures::default()
        }))
    }

    /// Returns the failures of a page, and whether no further ones follow.
    async fn page_of_failures(
        &self,
        row: &JobRow,
        after: (i64, &str),
        limit: usize,
    ) -> Result<(Vec<KeptFailure>, bool)> {
        let (mut page, mut bytes) = (Vec::<KeptFailure>::new(), 0);
        if row.totals.failed_tasks == 0 {
            return Ok((page, true));
        }
        loop {
            let last = page.last();
            let place = last.map_or(after, |last| (last.since, last.path.as_str()));
            let db = &mut self.database.reader().await?;
            let read = sql::failures::after(db, row.incarnation, place, AT_ONCE).await?;
            let is_last = read.len() < AT_ONCE;
            for kept in read {
                if page.len() == limit || bytes >= PAGE_BYTES {
                    return Ok((page, false));
                }
                bytes += kept.bytes();
                page.push(kept);
            }
            if is_last {
                return Ok((page, true));
            }
        }
    }
}

fn shown(kept: KeptFailure) -> Failure {
    Failure::of_task(kept.path, kept.failure)
}

fn shown_group(group: KeptGroup) -> FailureGroup {
    let KeptGroup { first, count, last } = group;
    let message = first.failure.failure_message.as_ref();
    let message = message.map(|text| text[..text.floor_char_boundary(GROUPED_BYTES)].to_owned());
    FailureGroup {
        failure_id: first.failure.failure_id.clone(),
        failure_message: message,
        count,
        first_time: first.since,
        last_time: last,
        example: shown(first),
    }
}
