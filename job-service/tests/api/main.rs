//! The job service over real HTTP: every route, with valid and invalid input, and the messages that
//! it sends to the broker.
//!
//! The store's conformance suite checks the rules of the store. These tests therefore use a
//! temporary store, except for the few that depend on a database; those run on `SQLite` and on
//! `PostgreSQL`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

/// Makes two tests of each function, one per database.
macro_rules! on_both_databases {
    [$($test:ident),+ $(,)?] => {
        mod on_sqlite {
            $(#[tokio::test] async fn $test() { super::$test(harness::Backend::Sqlite).await; })+
        }
        mod on_postgres {
            $(#[tokio::test] async fn $test() { super::$test(harness::Backend::Postgres).await; })+
        }
    };
}

extern crate batchwright_job_service as job_service;

mod service;

mod access;
mod adjust;
mod batches;
mod blocked;
mod conditions;
mod dead_letters;
mod description;
mod errors;
mod events;
mod expiry;
mod failures;
mod history;
mod job_types;
mod jobs;
mod life_key;
mod limits;
mod list;
mod memos;
mod notes;
mod outputs;
mod page;
mod pause;
mod pipes;
mod relay;
mod requests;
mod resubmit;
mod retry;
mod rights;
mod scheduling;
mod shards;
mod sources;
mod tasks;
mod watch;
mod workers;
