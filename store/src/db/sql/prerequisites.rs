//! The table `prerequisite`: which jobs wait for which.
//!
//! What must stay true: a transaction that writes the prerequisites of a job holds its lock.

use contract::JobStatus;

use super::jobs;
use super::session::Session;
use super::statement::{Dialect, json, singles};
use crate::db::{Dependency, JobKey, JobRow, Result};

/// Returns the prerequisites of each of these jobs, with the status of the job that has this id, if
/// there is one.
pub async fn of_jobs(
    db: &mut Session,
    incarnations: &[i64],
) -> Result<Vec<(i64, String, Option<JobStatus>)>> {
    let each = db.dialect().each();
    let statement = db.statement(format!(
        "select p.incarnation, p.prerequisite_id, j.status from {each} \
         cross join prerequisite p left join job j on j.partition_id = p.partition_id and j.job_id = p.prerequisite_id \
         where p.incarnation = cast(k.value ->> 0 as bigint) order by p.incarnation, p.prerequisite_id"
    ));
    db.fetch(statement.bind(singles(incarnations)?), |row| {
        let status: Option<&str> = row.get(2)?;
        let status = status.map(jobs::status).transpose()?;
        Ok((row.get(0)?, row.get(1)?, status))
    })
    .await
}

/// Returns jobs that wait for this one, with their statuses, in the order of their ids.
pub async fn waiting_for(
    db: &mut Session,
    partition: &str,
    job: &str,
    limit: u32,
) -> Result<Vec<(String, JobStatus)>> {
    let statement = db
        .statement(
            "select p.job_id, j.status from prerequisite p join job j on j.incarnation = p.incarnation \
             where p.partition_id = $1 and p.prerequisite_id = $2 order by p.job_id limit $3",
        )
        .bind(partition)
        .bind(job)
        .bind(i64::from(limit));
    db.fetch(statement, |row| {
        Ok((row.get(0)?, jobs::status(row.get(1)?)?))
    })
    .await
}

/// Locks the creation of jobs in a partition until the end of the transaction. Transactions that
/// hold the lock `shared` do not wait for each other; an exclusive one waits for all. The one
/// writer of SQLite needs no lock.
pub async fn lock_creations(db: &mut Session, partition: &str, shared: bool) -> Result<()> {
    let lock = match (db.dialect(), shared) {
        (Dialect::Sqlite, _) => return Ok(()),
        (_, true) => "select pg_advisory_xact_lock_shared(hashtextextended($1, 2))",
        (_, false) => "select pg_advisory_xact_lock(hashtextextended($1, 2))",
    };
    db.run(db.statement(lock).bind(partition)).await
}

/// Adds the prerequisites of a new job.
pub async fn insert(db: &mut Session, job: &JobRow, prerequisites: &[String]) -> Result<()> {
    let each = db.dialect().each();
    let statement = db
        .statement(format!(
            "insert into prerequisite (incarnation, partition_id, job_id, prerequisite_id) \
             select $2, $3, $4, k.value ->> 0 from {each}"
        ))
        .bind(singles(prerequisites)?)
        .bind(job.incarnation)
        .bind(job.partition.as_str())
        .bind(job.job.as_str());
    db.run(statement).await
}

/// Returns the jobs that wait for these jobs; with `all` also the jobs that wait for those, and so
/// on.
pub async fn dependents(db: &mut Session, of: &[JobKey], all: bool) -> Result<Vec<Dependency>> {
    let each = db.dialect().each();
    let direct = format!(
        "select p.partition_id, p.job_id, p.incarnation, p.prerequisite_id from {each} \
         cross join prerequisite p where p.partition_id = k.value ->> 0 and p.prerequisite_id = k.value ->> 1"
    );
    let text = if all {
        format!(
            "with recursive waiting (partition_id, job_id, incarnation, prerequisite_id) as ({direct} union \
             select p.partition_id, p.job_id, p.incarnation, p.prerequisite_id from waiting w \
             join prerequisite p on p.partition_id = w.partition_id and p.prerequisite_id = w.job_id) \
             select partition_id, job_id, incarnation, prerequisite_id from waiting"
        )
    } else {
        direct
    };
    db.fetch(db.statement(text).bind(json(of)?), |row| {
        Ok(Dependency {
            partition: row.get(0)?,
            job: row.get(1)?,
            incarnation: row.get(2)?,
            prerequisite: row.get(3)?,
        })
    })
    .await
}

/// Returns the pairs (job, prerequisite) that lead up from these jobs of a partition, over any
/// number of steps.
pub async fn edges(
    db: &mut Session,
    partition: &str,
    jobs: &[String],
) -> Result<Vec<(String, String)>> {
    let each = db.dialect().each();
    let statement = db
        .statement(format!(
            "with recursive way (job_id, prerequisite_id) as (select p.job_id, p.prerequisite_id from {each} \
             cross join prerequisite p where p.partition_id = $2 and p.job_id = k.value ->> 0 union \
             select p.job_id, p.prerequisite_id from way w join prerequisite p \
             on p.partition_id = $2 and p.job_id = w.prerequisite_id) select job_id, prerequisite_id from way"
        ))
        .bind(singles(jobs)?)
        .bind(partition);
    db.fetch(statement, |row| Ok((row.get(0)?, row.get(1)?)))
        .await
}

/// Deletes the `completed` jobs as prerequisites. Those of the `waiting` jobs that have none left
/// become due after their delay.
pub async fn release(db: &mut Session, completed: &[JobKey], waiting: &[i64]) -> Result<()> {
    let (now, each) = (db.dialect().now(), db.dialect().each());
    let statement = db.statement(format!(
        "delete from prerequisite where (partition_id, prerequisite_id) in (select k.value ->> 0, k.value ->> 1 from {each})"
    ));
    db.execute(statement.bind(json(completed)?)).await?;
    let statement = db.statement(format!(
        "update outbox set due_time = {now} + 1000 * (select delay from job where job.incarnation = outbox.incarnation) \
         where due_time is null and incarnation in (select cast(k.value ->> 0 as bigint) from {each}) \
         and not exists (select 1 from prerequisite p where p.incarnation = outbox.incarnation)"
    ));
    db.run(statement.bind(singles(waiting)?)).await
}

/// Deletes the messages and the prerequisites of jobs that never start.
pub async fn forget_starts(db: &mut Session, incarnations: &[i64]) -> Result<()> {
    let (list, each) = (singles(incarnations)?, db.dialect().each());
    for table in ["outbox", "prerequisite"] {
        let statement = db.statement(format!(
            "delete from {table} where incarnation in (select cast(k.value ->> 0 as bigint) from {each})"
        ));
        db.execute(statement.bind(list.as_str())).await?;
    }
    Ok(())
}
