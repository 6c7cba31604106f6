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

use std::collections::HashMap;

use rusqlite::{Connection, TransactionBehavior, params};
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use super::Result;

/// A file of a migration: its name without the extension, and its content.
type File = (&'static str, &'static str);

const POSTGRES: &[File] = &[
    (
        "0001_schema",
        include_str!("../../migrations/postgres/0001_schema.sql"),
    ),
    (
        "20261130190000_shares",
        include_str!("../../migrations/postgres/20261130190000_shares.sql"),
    ),
    (
        "20261130210000_life_key",
        include_str!("../../migrations/postgres/20261130210000_life_key.sql"),
    ),
    (
        "20261130220000_rights",
        include_str!("../../migrations/postgres/20261130220000_rights.sql"),
    ),
];

const SQLITE: &[File] = &[
    (
        "0001_schema",
        include_str!("../../migrations/sqlite/0001_schema.sql"),
    ),
    (
        "20261130190000_shares",
        include_str!("../../migrations/sqlite/20261130190000_shares.sql"),
    ),
    (
        "20261130210000_life_key",
        include_str!("../../migrations/sqlite/20261130210000_life_key.sql"),
    ),
    (
        "20261130220000_rights",
        include_str!("../../migrations/sqlite/20261130220000_rights.sql"),
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

/// The table in which sqlx notes the migrations of a database.
const APPLIED: &str = "create table if not exists _sqlx_migrations (\
    version bigint primary key, description text not null, \
    installed_on timestamp not null default current_timestamp, success boolean not null, \
    checksum blob not null, execution_time bigint not null)";

/// Applies the migrations of SQLite that a file does not have, all or none, as sqlx does to
/// PostgreSQL.
pub fn apply(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(APPLIED)?;
    let applied: HashMap<i64, Vec<u8>> = transaction
        .prepare("select version, checksum from _sqlx_migrations")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for migration in sqlite().iter() {
        match applied.get(&migration.version) {
            Some(checksum) if **checksum == *migration.checksum => {}
            Some(_) => return Err(MigrateError::VersionMismatch(migration.version).into()),
            None => {
                transaction.execute_batch(migration.sql.as_str())?;
                transaction.execute(
                    "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
                     values ($1, $2, true, $3, 0)",
                    params![migration.version, migration.description, migration.checksum],
                )?;
            }
        }
    }
    Ok(transaction.commit()?)
}

/// Returns the content of a file to which all migrations are applied. Its blobs belong to
/// `temporary`.
#[cfg(any(test, feature = "internals"))]
#[expect(clippy::expect_used, reason = "for tests, which fail by it")]
pub fn new_file() -> &'static [u8] {
    static FILE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let path = folder.path().join("new.db");
        let mut file = Connection::open(&path).expect("a file can be created");
        apply(&mut file).expect("the migrations can be applied");
        let name = "update blob_owner set name = 'temporary'";
        file.execute_batch(name).expect("the table has a row");
        drop(file);
        std::fs::read(path).expect("the file can be read")
    });
    &FILE
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::db::DbError;

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

    #[test]
    fn sqlite_file_gets_each_migration_once_and_one_that_has_changed_is_refused() {
        let mut file = Connection::open_in_memory().unwrap();
        apply(&mut file).unwrap();
        // What the next build has added stays.
        let later = "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
                     select 99991231235959, 'later', true, checksum, 0 from _sqlx_migrations where version = 1";
        file.execute_batch(later).unwrap();
        apply(&mut file).unwrap();
        let change = "update _sqlx_migrations set checksum = x'00' where version = 1";
        file.execute_batch(change).unwrap();
        let error = apply(&mut file).unwrap_err();
        let DbError::Refused(cause) = error else {
            panic!("{error:?}")
        };
        let reason = "migration 1 was previously applied but has been modified";
        assert_eq!(cause.to_string(), reason);
    }
}
