//! The migrations of both databases, embedded in the program. A new migration is added to its list here.
//!
//! What must stay true:
//! - A published migration never changes, because every database holds the checksums of those it has.
//! - The build before works on with the tables of this one: processes of both run, and restart, on one database during an upgrade.

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// A file of a migration: its name without the extension, and its content.
type File = (&'static str, &'static str);

const POSTGRES: &[File] = &[
    (
        "0001_jobs",
        include_str!("../../migrations/postgres/0001_jobs.sql"),
    ),
    (
        "0002_dispatch",
        include_str!("../../migrations/postgres/0002_dispatch.sql"),
    ),
    (
        "0003_pause",
        include_str!("../../migrations/postgres/0003_pause.sql"),
    ),
    (
        "0004_reading",
        include_str!("../../migrations/postgres/0004_reading.sql"),
    ),
    (
        "0005_expiry",
        include_str!("../../migrations/postgres/0005_expiry.sql"),
    ),
    (
        "0006_without_target",
        include_str!("../../migrations/postgres/0006_without_target.sql"),
    ),
    (
        "20261122145000_correlation_id",
        include_str!("../../migrations/postgres/20261122145000_correlation_id.sql"),
    ),
    (
        "20261122150000_failures_by_time",
        include_str!("../../migrations/postgres/20261122150000_failures_by_time.sql"),
    ),
    (
        "20261122150500_progress",
        include_str!("../../migrations/postgres/20261122150500_progress.sql"),
    ),
    (
        "20261122174500_kept_outputs",
        include_str!("../../migrations/postgres/20261122174500_kept_outputs.sql"),
    ),
    (
        "20261122184500_rounds",
        include_str!("../../migrations/postgres/20261122184500_rounds.sql"),
    ),
    (
        "20261122203000_history",
        include_str!("../../migrations/postgres/20261122203000_history.sql"),
    ),
    (
        "20261122203100_attempts",
        include_str!("../../migrations/postgres/20261122203100_attempts.sql"),
    ),
    (
        "20261122203517_request_keys",
        include_str!("../../migrations/postgres/20261122203517_request_keys.sql"),
    ),
    (
        "20261122204500_curve",
        include_str!("../../migrations/postgres/20261122204500_curve.sql"),
    ),
    (
        "20261122214500_tolerance",
        include_str!("../../migrations/postgres/20261122214500_tolerance.sql"),
    ),
    (
        "20261123003000_unfinished_jobs",
        include_str!("../../migrations/postgres/20261123003000_unfinished_jobs.sql"),
    ),
    (
        "20261123003500_events",
        include_str!("../../migrations/postgres/20261123003500_events.sql"),
    ),
    (
        "20261123024500_jobs_that_can_go_on",
        include_str!("../../migrations/postgres/20261123024500_jobs_that_can_go_on.sql"),
    ),
    (
        "20261123030000_dead_letters",
        include_str!("../../migrations/postgres/20261123030000_dead_letters.sql"),
    ),
    (
        "20261123040000_retry_policy",
        include_str!("../../migrations/postgres/20261123040000_retry_policy.sql"),
    ),
    (
        "20261123064000_memos",
        include_str!("../../migrations/postgres/20261123064000_memos.sql"),
    ),
    (
        "20261123064500_task_time_limit",
        include_str!("../../migrations/postgres/20261123064500_task_time_limit.sql"),
    ),
    (
        "20261123065500_blocked",
        include_str!("../../migrations/postgres/20261123065500_blocked.sql"),
    ),
    (
        "20261123070000_uploads",
        include_str!("../../migrations/postgres/20261123070000_uploads.sql"),
    ),
    (
        "20261123173500_blocked_of_job",
        include_str!("../../migrations/postgres/20261123173500_blocked_of_job.sql"),
    ),
    (
        "20261123174500_canaries",
        include_str!("../../migrations/postgres/20261123174500_canaries.sql"),
    ),
    (
        "20261125223000_tracking_shards",
        include_str!("../../migrations/postgres/20261125223000_tracking_shards.sql"),
    ),
    (
        "20261126140000_events_by_statement",
        include_str!("../../migrations/postgres/20261126140000_events_by_statement.sql"),
    ),
    (
        "20261128225000_checksums",
        include_str!("../../migrations/postgres/20261128225000_checksums.sql"),
    ),
    (
        "20261128225500_items_pipe",
        include_str!("../../migrations/postgres/20261128225500_items_pipe.sql"),
    ),
    (
        "20261128230000_announcements",
        include_str!("../../migrations/postgres/20261128230000_announcements.sql"),
    ),
    (
        "20261128231000_room_of_uploads",
        include_str!("../../migrations/postgres/20261128231000_room_of_uploads.sql"),
    ),
    (
        "20261128231500_jobs_with_blocked_tasks",
        include_str!("../../migrations/postgres/20261128231500_jobs_with_blocked_tasks.sql"),
    ),
];

const SQLITE: &[File] = &[
    (
        "0001_jobs",
        include_str!("../../migrations/sqlite/0001_jobs.sql"),
    ),
    (
        "0002_dispatch",
        include_str!("../../migrations/sqlite/0002_dispatch.sql"),
    ),
    (
        "0003_pause",
        include_str!("../../migrations/sqlite/0003_pause.sql"),
    ),
    (
        "0004_reading",
        include_str!("../../migrations/sqlite/0004_reading.sql"),
    ),
    (
        "0005_expiry",
        include_str!("../../migrations/sqlite/0005_expiry.sql"),
    ),
    (
        "0006_without_target",
        include_str!("../../migrations/sqlite/0006_without_target.sql"),
    ),
    (
        "20261122145000_correlation_id",
        include_str!("../../migrations/sqlite/20261122145000_correlation_id.sql"),
    ),
    (
        "20261122150000_failures_by_time",
        include_str!("../../migrations/sqlite/20261122150000_failures_by_time.sql"),
    ),
    (
        "20261122150500_progress",
        include_str!("../../migrations/sqlite/20261122150500_progress.sql"),
    ),
    (
        "20261122174500_kept_outputs",
        include_str!("../../migrations/sqlite/20261122174500_kept_outputs.sql"),
    ),
    (
        "20261122184500_rounds",
        include_str!("../../migrations/sqlite/20261122184500_rounds.sql"),
    ),
    (
        "20261122203000_history",
        include_str!("../../migrations/sqlite/20261122203000_history.sql"),
    ),
    (
        "20261122203100_attempts",
        include_str!("../../migrations/sqlite/20261122203100_attempts.sql"),
    ),
    (
        "20261122203517_request_keys",
        include_str!("../../migrations/sqlite/20261122203517_request_keys.sql"),
    ),
    (
        "20261122204500_curve",
        include_str!("../../migrations/sqlite/20261122204500_curve.sql"),
    ),
    (
        "20261122214500_tolerance",
        include_str!("../../migrations/sqlite/20261122214500_tolerance.sql"),
    ),
    (
        "20261123003000_unfinished_jobs",
        include_str!("../../migrations/sqlite/20261123003000_unfinished_jobs.sql"),
    ),
    (
        "20261123003500_events",
        include_str!("../../migrations/sqlite/20261123003500_events.sql"),
    ),
    (
        "20261123024500_jobs_that_can_go_on",
        include_str!("../../migrations/sqlite/20261123024500_jobs_that_can_go_on.sql"),
    ),
    (
        "20261123030000_dead_letters",
        include_str!("../../migrations/sqlite/20261123030000_dead_letters.sql"),
    ),
    (
        "20261123040000_retry_policy",
        include_str!("../../migrations/sqlite/20261123040000_retry_policy.sql"),
    ),
    (
        "20261123064000_memos",
        include_str!("../../migrations/sqlite/20261123064000_memos.sql"),
    ),
    (
        "20261123064500_task_time_limit",
        include_str!("../../migrations/sqlite/20261123064500_task_time_limit.sql"),
    ),
    (
        "20261123065500_blocked",
        include_str!("../../migrations/sqlite/20261123065500_blocked.sql"),
    ),
    (
        "20261123070000_uploads",
        include_str!("../../migrations/sqlite/20261123070000_uploads.sql"),
    ),
    (
        "20261123173500_blocked_of_job",
        include_str!("../../migrations/sqlite/20261123173500_blocked_of_job.sql"),
    ),
    (
        "20261123174500_canaries",
        include_str!("../../migrations/sqlite/20261123174500_canaries.sql"),
    ),
    (
        "20261125223000_tracking_shards",
        include_str!("../../migrations/sqlite/20261125223000_tracking_shards.sql"),
    ),
    (
        "20261128225000_checksums",
        include_str!("../../migrations/sqlite/20261128225000_checksums.sql"),
    ),
    (
        "20261128225500_items_pipe",
        include_str!("../../migrations/sqlite/20261128225500_items_pipe.sql"),
    ),
    (
        "20261128230000_announcements",
        include_str!("../../migrations/sqlite/20261128230000_announcements.sql"),
    ),
    (
        "20261128231000_room_of_uploads",
        include_str!("../../migrations/sqlite/20261128231000_room_of_uploads.sql"),
    ),
    (
        "20261128231500_jobs_with_blocked_tasks",
        include_str!("../../migrations/sqlite/20261128231500_jobs_with_blocked_tasks.sql"),
    ),
];

/// Returns the migrations of `PostgreSQL`.
pub fn postgres() -> Migrator {
    migrator(POSTGRES)
}

/// Returns the migrations of `SQLite`.
pub fn sqlite() -> Migrator {
    migrator(SQLITE)
}

/// Reads versions and descriptions from the names, as sqlx does: `0001_jobs` is version 1, described as `jobs`.
fn migrator(files: &[File]) -> Migrator {
    let migrations = files.iter().filter_map(|(name, sql)| {
        let (version, description) = name.split_once('_')?;
        Some(Migration::new(
            version.parse().ok()?,
            description.replace('_', " ").into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            false,
        ))
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    // A process that restarts during an upgrade finds migrations of the next build.
    migrator.set_ignore_missing(true);
    migrator
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn facts(migrations: &Migrator) -> Vec<(i64, &str, MigrationType, &[u8])> {
        migrations
            .iter()
            .map(|it| {
                (
                    it.version,
                    &*it.description,
                    it.migration_type,
                    &*it.checksum,
                )
            })
            .collect()
    }

    #[tokio::test]
    async fn every_file_is_embedded_and_read_as_sqlx_reads_it() {
        for (folder, embedded) in [("postgres", postgres()), ("sqlite", sqlite())] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../migrations")
                .join(folder);
            let files = Migrator::new(folder).await.unwrap();
            assert!(embedded.iter().len() > 0);
            assert_eq!(facts(&embedded), facts(&files));
        }
    }
}
