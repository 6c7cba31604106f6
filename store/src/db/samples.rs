//! Sample jobs for measurements: so many of them that the speed of a query beside them means something.
//!
//! They are written as they would be long after their end, in a few statements, because creating a day's jobs one by one
//! takes minutes.

use std::collections::BTreeMap;

use contract::{JobStatus, OnFailure};

use crate::db::DbError;
use crate::db::JobRow;
use crate::ledger::JobTotals;

pub const INSERT_JOBS: &str = "insert into job (partition_id, job_id, first_life, name, content_hash, on_failure, status, percentage, \
    completed_items, failed_tasks, failure_counts, task_table, create_time, last_update_time) \
    with recursive number(n) as (select cast(1 as bigint) union all select n + 1 from number where n < $2) \
    select $1, 'sample-' || n, true, 'Sample ' || (n * 7919 % 1000), $3, 'stop', \
    case n % 10 when 0 then 'Failed' when 1 then 'Active' when 2 then 'Cancelled' else 'Completed' end, \
    case when n % 10 < 3 then 0 else 10000 end, 0, 0, '{}', false, 1600000000000 + n * 1000, 1600000000000 + n * 1000 \
    from number where n <= $2";

pub const INSERT_LABELS: &str = "insert into label (incarnation, name, value) \
    select incarnation, 'team', 'team-' || (create_time / 1000 * 31 % 10) from job where partition_id = $1 and job_id like 'sample-%' \
    union all select incarnation, 'ticket', 'T-' || job_id from job where partition_id = $1 and job_id like 'sample-%'";

/// Returns the same job for the store in memory, with its labels.
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
        partition: crate::db::sql::partition_id(partition)?,
        job: crate::db::sql::job_id(&id)?,
        incarnation: 0,
        first_life: true,
        name: Some(format!("Sample {}", number * 7919 % 1000)),
        description: None,
        external_data: None,
        content_hash: vec![0; 32],
        status,
        delay: 0,
        totals: JobTotals {
            percentage: if number % 10 < 3 { 0 } else { 10_000 },
            ..JobTotals::new(OnFailure::Stop)
        },
        task_table: false,
        create_time: time,
        last_update_time: time,
        finish_time: None,
        expiry: contract::rest::Expiry::default(),
        expiry_time: None,
        without_target: false,
    };
    Ok((
        job,
        labels
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Some(value)))
            .collect(),
    ))
}
