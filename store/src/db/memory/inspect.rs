//! What measurements need of the store in memory.

use super::Memory;
use crate::db::inspect::sample;
use crate::db::{Backend as _, DbFuture, Inspect, JobTexts};
use crate::ledger::NodeRow;
use crate::model::{CatalogueSize, TaskTableSize};

impl Inspect for Memory {
    fn insert_samples<'a>(&'a self, partition: &'a str, count: u32) -> DbFuture<'a, ()> {
        Box::pin(async move {
            let mut tx = self.begin().await?;
            for number in 1..=count {
                let (job, labels) = sample(partition, number)?;
                let inserted = tx.insert_jobs(&[(job, JobTexts::default())]).await?;
                for incarnation in inserted.into_iter().flatten() {
                    tx.insert_labels(&[(incarnation.number, &labels)]).await?;
                }
            }
            tx.commit().await
        })
    }
    fn catalogue_size(&self) -> DbFuture<'_, CatalogueSize> {
        Box::pin(async move {
            Ok(CatalogueSize {
                entries: self.read().await?.tables.len() as u64,
                bytes: 0,
            })
        })
    }
    fn task_table_size(&self) -> DbFuture<'_, TaskTableSize> {
        Box::pin(async move {
            let state = self.read().await?;
            let bytes = |row: &NodeRow| {
                let texts =
                    row.path.len() + row.done.len() + row.failed.as_ref().map_or(0, Vec::len);
                (size_of::<NodeRow>() + texts + row.detail.as_ref().map_or(0, String::len)) as u64
            };
            Ok(TaskTableSize {
                tables: state.tables.len() as u64,
                rows: state.nodes.len() as u64,
                bytes: state.nodes.values().map(bytes).sum(),
            })
        })
    }
}
