//! The store in PostgreSQL or SQLite: plain functions, a module for each group of tables, that run
//! statements in a [`Session`](session::Session).
//!
//! The databases share nearly every statement. What they spell differently is a value, the
//! [`Dialect`](statement::Dialect) of the session; a statement that only one of them has stands in
//! a `match` on it.

pub mod attempts;
pub mod conditions;
pub mod creation;
pub mod curve;
pub mod events;
pub mod failures;
pub mod history;
#[cfg(feature = "measurements")]
pub mod inspect;
pub mod job_query;
pub mod jobs;
pub mod ledger;
pub mod letters;
pub mod memos;
pub mod outbox;
pub mod outputs;
pub mod parking;
pub mod prerequisites;
pub mod request_keys;
pub mod retention;
pub mod rounds;
pub mod session;
pub mod shards;
pub mod statement;
pub mod tokens;
pub mod uploads;
pub mod views;

/// Returns a span of time as the databases count it, limited so that it can be added to a time.
fn millis(span: u64) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// Returns the number of a round as the databases have it, in a column of the type `integer`.
fn number(round: u32) -> i32 {
    i32::try_from(round).unwrap_or(i32::MAX)
}
