//! Reads the history of a job: every change of its status, bounded in number.

use contract::{JobId, PartitionId, rest};

use crate::db::sql;
use crate::model::Transition;
use crate::{Result, Store};

impl Store {
    /// Returns the changes of a job's status, oldest first; none for an unknown job.
    pub async fn history(&self, partition: &PartitionId, job: &JobId) -> Result<Vec<Transition>> {
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(Vec::new());
        };
        let db = &mut self.database.reader().await?;
        let rows = sql::history::read(db, row.incarnation, 0, u32::MAX).await?;
        Ok(rows.into_iter().map(|row| row.transition).collect())
    }

    /// Returns up to `limit` changes of a job's status, oldest first, from the one behind `after`
    /// on; `None` if there is no such job.
    pub async fn history_page(
        &self,
        partition: &PartitionId,
        job: &JobId,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Option<rest::History>> {
        let Some(row) = self.job_row(partition, job).await? else {
            return Ok(None);
        };
        let limit = limit.max(1);
        let db = &mut self.database.reader().await?;
        let mut found = sql::history::read(
            db,
            row.incarnation,
            after.unwrap_or_default(),
            limit.saturating_add(1),
        )
        .await?;
        let is_last = found.len() <= limit as usize;
        found.truncate(limit as usize);
        let next = found.last().filter(|_| !is_last);
        Ok(Some(rest::History {
            next: next.map(|last| last.id.to_string()),
            left_out: found.iter().map(|row| row.left_out).sum(),
            history: found.into_iter().map(|row| row.transition).collect(),
        }))
    }
}
