//! For measurements: the sizes of tables, and enough sample jobs to measure the speed of a list.
//!
//! Sample jobs are written as they would be long after their end, in a few statements: a day's jobs
//! take minutes one by one. Nothing runs for them: they have no start message, no history and no
//! tasks.

use contract::PartitionId;

use crate::db::sql::inspect;
pub use crate::db::sql::inspect::{CatalogueSize, TaskTableSize};
use crate::{Result, Store};

impl Store {
    /// Adds `sample-1`, `sample-2`, … to a partition, each a second younger than the one before.
    ///
    /// Of ten, seven have completed, one has failed, one is cancelled and one active. Their names
    /// are `Sample 0` to `Sample 999`. They have the labels `team` (ten different values) and
    /// `ticket` (different for each).
    pub async fn add_sample_jobs(&self, partition: &PartitionId, count: u32) -> Result<()> {
        let mut db = self.database.begin().await?;
        inspect::insert_samples(&mut db, partition.as_str(), count).await?;
        self.database.commit(db).await?;
        Ok(inspect::vacuum(&mut self.database.reader().await?).await?)
    }

    /// Returns the size of all task tables together.
    pub async fn task_table_size(&self) -> Result<TaskTableSize> {
        let mut size = TaskTableSize::default();
        let tables = inspect::task_tables(&mut self.database.reader().await?).await?;
        for (table, bytes) in tables {
            // Each in a session of its own: a table may be swept in between, and that ends the
            // session.
            let db = &mut self.database.reader().await?;
            if let Some(rows) = inspect::task_table_rows(db, &table).await? {
                size.tables += 1;
                size.rows += rows;
                size.bytes += u64::try_from(bytes).unwrap_or_default();
            }
        }
        Ok(size)
    }

    /// Returns the size of what the database keeps about its own tables.
    pub async fn catalogue_size(&self) -> Result<CatalogueSize> {
        Ok(inspect::catalogue_size(&mut self.database.reader().await?).await?)
    }
}
