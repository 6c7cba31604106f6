//! The migrations of both databases, embedded in the program. A new migration is added to its list
//! here.
//!
//! The first one creates all tables. A later one is named by its time, e.g.
//! `20270131120000_labels`.
//!
//! What must stay true:
//! - A migration in `main` never changes, because each database remembers the checksums of those it
//!   has.
//! - The previous release works with the tables of this build: during an upgrade, processes of both
//!   run and restart on one database. So a migration only adds.

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// A file of a migration: its name without the extension, and its content.
type File = (&'static str, &'static str);

const POSTGRES: &[File] = &[(
    "0001_schema",
    include_str!("../../migrations/postgres/0001_schema.sql"),
)];

const SQLITE: &[File] = &[(
    "0001_schema",
    include_str!("../../migrations/sqlite/0001_schema.sql"),
)];

/// Returns the migrations of `PostgreSQL`.
pub fn postgres() -> Migrator {
    migrator(POSTGRES)
}

/// Returns the migrations of `SQLite`.
pub fn sqlite() -> Migrator {
    migrator(SQLITE)
}

/// Reads versions and descriptions from the names, as sqlx does: `0001_schema` is version 1,
/// described as `schema`.
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
    // A process that restarts during an upgrade finds migrations of the next release.
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
