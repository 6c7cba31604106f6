//! For measurements: the sizes of tables, and enough sample jobs to measure the speed of a list.
//!
//! Sample jobs are written as they would be long after their end, in a few statements: a day's jobs
//! take minutes one by one. Nothing runs for them: they have no start message, no history and no
//! tasks.

use std::collections::BTreeMap;

use contract::rest::Expiry;
use contract::{JobStatus, OnFailure, PartitionId};

use super::sql::jobs;
use super::{DbError, DbFuture, JobRow};
use crate::curve::CurveState;
use crate::ledger::JobTotals;
use crate::model::{CatalogueSize, TaskTableSize};
use crate::pace::Pace;
use crate::{Store, StoreError};

/// Measurements of a database. No operation of the store uses them.
pub trait Inspect {
    /// Returns the size of all task tables together.
    fn task_table_size(&self) -> DbFuture<'_, TaskTableSize>;

    /// Returns the size of what the database keeps about its own tables.
    fn catalogue_size(&self) -> DbFuture<'_, CatalogueSize>;

    /// Adds sample jobs, and then does what the database would do by itself some time after a bulk
    /// insertion.
    fn insert_samples<'a>(&'a self, partition: &'a str, count: u32) -> DbFuture<'a, ()>;
}

impl Store {
    /// Adds `sample-1`, `sample-2`, … to a partition, each a second younger than the one before.
    ///
    /// Of ten, seven have completed, one has failed, one is cancelled and one active. Their names
    /// are `Sample 0` to `Sample 999`. They have the labels `team` (ten different values) and
    /// `ticket` (different for each).
    pub async fn add_sample_jobs(
        &self,
        partition: &PartitionId,
        count: u32,
    ) -> Result<(), StoreError> {
        let inspect = self.backend.inspect();
        Ok(inspect.insert_samples(partition.as_str(), count).await?)
    }

    /// Returns the size of all task tables together. For measurements.
    pub async fn task_table_size(&self) -> Result<TaskTableSize, StoreError> {
        Ok(self.backend.inspect().task_table_size().await?)
    }

    /// Returns the size of what the database keeps about its own tables. For measurements.
    pub async fn catalogue_size(&self) -> Result<CatalogueSize, StoreError> {
        Ok(self.backend.inspect().catalogue_size().await?)
    }
}

/// Returns the sample job with this number and its labels, for the store that has no SQL.
pub fn sample(
    partition: &str,
    number: u32,
) -> Result<(JobRow, BTreeMap<String, Option<String>>), DbError> {
    let id = format!("sample-{number}");
    let number = i64::from(number);
    let time = 1_600_000_000_000 + number * 1000;
    let status = match number % 10 {
        0 => JobStatus::Failed,
        1 => JobStatus::Active,
        2 => JobStatus::Cancelled,
        _ => JobStatus::Completed,
    };
    let labels = [
        ("team", format!("team-{}", time / 1000 * 31 % 10)),
        ("ticket", format!("T-{id}")),
    ];
    let job = JobRow {
        partition: jobs::partition_id(partition)?,
        job: jobs::job_id(&id)?,
        incarnation: 0,
        first_life: true,
        round: 1,
        name: Some(format!("Sample {}", number * 7919 % 1000)),
        has_texts: false,
        content_hash: vec![0; 32],
        status,
        delay: 0,
        failed_attempts: 0,
        totals: JobTotals {
            percentage: if number % 10 < 3 { 0 } else { 10_000 },
            ..JobTotals::new(OnFailure::Stop)
        },
        task_table: false,
        create_time: time,
        last_update_time: time,
        finish_time: None,
        expiry: Expiry::default(),
        expiry_time: None,
        without_target: false,
        correlation_id: None,
        pace: Pace::default(),
        curve: CurveState::default(),
        output_pipe: None,
        items_pipe: None,
        retry: None,
        task_time_limit: None,
        blocked_tasks: 0,
    };
    Ok((
        job,
        labels
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Some(value)))
            .collect(),
    ))
}
