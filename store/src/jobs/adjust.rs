//! Adjusts a job that has not ended: how much of its pipes it gets.

use contract::{JobId, JobShare, PartitionId};

use crate::db::run_tx::{End, JobLocks, job_key};
use crate::db::sql;
use crate::model::Change;
use crate::outbox::announce;
use crate::{Result, Store};

impl Store {
    /// Changes the share of a job that has not ended, and announces that to the workers.
    pub async fn adjust_job(
        &self,
        partition: &PartitionId,
        job: &JobId,
        share: JobShare,
    ) -> Result<Change> {
        let locks = JobLocks::from([job_key(partition, job)]);
        self.run_tx_on_jobs("adjust_job", locks, |tx| {
            Box::pin(async move {
                let Some(job) = tx.lock_known_jobs().await?.pop() else {
                    return Ok(End::Rollback(Change::NotFound));
                };
                if job.status.is_finished() {
                    return Ok(End::Rollback(Change::Impossible(job.status)));
                }
                if job.share == share {
                    return Ok(End::Rollback(Change::NotNeeded));
                }
                sql::jobs::set_share(tx, job.incarnation, share).await?;
                announce(tx, &[job.qualified_id()]).await?;
                tx.notify_job(job.partition.as_str(), job.job.as_str());
                Ok(End::Commit(Change::Made))
            })
        })
        .await
    }
}
