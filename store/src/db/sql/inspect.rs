//! Measurements of the databases, and sample jobs to measure with.

use super::ledger;
use super::session::Session;
use super::statement::Dialect;
use crate::db::Result;

/// The size of all task tables together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskTableSize {
    /// The number of task tables.
    pub tables: u64,
    /// The number of rows in all of them.
    pub rows: u64,
    /// The size of all of them in bytes.
    pub bytes: u64,
}

/// The size of the database's own catalogue. It must not grow with the number of past jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CatalogueSize {
    /// The number of tables, indexes and similar objects.
    pub entries: u64,
    /// The size of the catalogue in bytes; of the whole file, for a database that keeps everything
    /// in one file.
    pub bytes: u64,
}

const INSERT_JOBS: &str = "insert into job (partition_id, job_id, first_life, name, content_hash, on_failure, status, percentage, \
    completed_items, failed_tasks, failure_counts, task_table, create_time, last_update_time) \
    with recursive number(n) as (select cast(1 as bigint) union all select n + 1 from number where n < $2) \
    select $1, 'sample-' || n, true, 'Sample ' || (n * 7919 % 1000), $3, 'stop', \
    case n % 10 when 0 then 'Failed' when 1 then 'Active' when 2 then 'Cancelled' else 'Completed' end, \
    case when n % 10 < 3 then 0 else 10000 end, 0, 0, '{}', false, 1600000000000 + n * 1000, 1600000000000 + n * 1000 \
    from number where n <= $2";

const INSERT_LABELS: &str = "insert into label (incarnation, name, value) \
    select incarnation, 'team', 'team-' || (create_time / 1000 * 31 % 10) from job where partition_id = $1 and job_id like 'sample-%' \
    union all select incarnation, 'ticket', 'T-' || job_id from job where partition_id = $1 and job_id like 'sample-%'";

/// Returns the size of what the database keeps about its own tables.
pub async fn catalogue_size(db: &mut Session) -> Result<CatalogueSize> {
    let statement = db.statement(match db.dialect() {
        Dialect::Postgres => {
            "select (select count(*) from pg_class), (select sum(pg_total_relation_size(oid))::bigint from pg_class \
             where relkind = 'r' and relnamespace = 'pg_catalog'::regnamespace)"
        }
        Dialect::Sqlite => {
            "select (select count(*) from sqlite_schema), \
             (select page_count from pragma_page_count) * (select page_size from pragma_page_size)"
        }
    });
    let size = db.fetch_first(statement, |row| {
        Ok(CatalogueSize {
            entries: row.unsigned(0)?,
            bytes: row.unsigned(1)?,
        })
    });
    Ok(size.await?.unwrap_or_default())
}

/// Adds sample jobs.
pub async fn insert_samples(db: &mut Session, partition: &str, count: u32) -> Result<()> {
    let jobs = db
        .statement(INSERT_JOBS)
        .bind(partition)
        .bind(i64::from(count))
        .bind(&[0_u8; 32][..]);
    db.execute(jobs).await?;
    db.execute(db.statement(INSERT_LABELS).bind(partition))
        .await?;
    // A server would do this by itself before long, and its plans depend on it.
    for table in ["job", "label"] {
        db.execute(db.statement(format!("analyze {table}"))).await?;
    }
    Ok(())
}

/// Does what PostgreSQL would do by itself some time after a bulk insertion of jobs.
pub async fn vacuum(db: &mut Session) -> Result<()> {
    if db.dialect() == Dialect::Postgres {
        db.execute(db.statement("vacuum (analyze) job, label"))
            .await?;
    }
    Ok(())
}

/// Returns how many rows a task table has; `None` if it has been swept.
pub async fn task_table_rows(db: &mut Session, table: &str) -> Result<Option<u64>> {
    let count = db.statement(format!("select count(*) from {table}"));
    let counted = db.fetch(count, |row| row.get::<i64, _>(0)).await;
    let rows = counted.or_else(ledger::none_if_swept)?.pop();
    Ok(rows.map(|rows| u64::try_from(rows).unwrap_or_default()))
}

/// Returns the names and the sizes in bytes of all task tables.
pub async fn task_tables(db: &mut Session) -> Result<Vec<(String, i64)>> {
    let statement = db.statement(match db.dialect() {
        Dialect::Postgres => {
            "select relname::text, coalesce(pg_total_relation_size(oid), 0) from pg_class \
             where relkind = 'r' and relname ~ '^task_[0-9]+$' and relnamespace = current_schema()::regnamespace"
        }
        Dialect::Sqlite => {
            "select t.name, (select coalesce(sum(pgsize), 0) from dbstat where name = t.name) from sqlite_schema as t \
             where t.type = 'table' and t.name glob 'task_[0-9]*'"
        }
    });
    db.fetch(statement, |row| Ok((row.get(0)?, row.get(1)?)))
        .await
}
