//! The CAF Job Service from outside: what its clients and workers rely on, checked on the binary
//! over HTTP and AMQP only.
//!
//! Each test is a rule that CAF specifies, or one that CAF gets wrong and Batchwright gets right.
//! The broker is `RabbitMQ`. A rule that involves the store is tested twice: with jobs in
//! `PostgreSQL`, configured by CAF's own variables, and with jobs in `SQLite`. A rule that does not
//! involve the store (the form of requests, URLs, job types) is tested once. The tests use none of
//! this project's types: requests, messages and responses are plain JSON, as a Java client or
//! worker sees them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

/// Makes two tests of each function, one per store. For rules that involve the store.
macro_rules! on_both_stores {
    ($($test:ident),+ $(,)?) => {
        mod on_postgres {
            $(#[tokio::test] async fn $test() { super::$test(crate::service::Store::Postgres).await; })+
        }
        mod on_sqlite {
            $(#[tokio::test] async fn $test() { super::$test(crate::service::Store::Sqlite).await; })+
        }
    };
}

/// Makes one test of each function, on `SQLite`. For rules that do not involve the store.
macro_rules! on_one_store {
    ($($test:ident),+ $(,)?) => {
        mod on_one_store {
            $(#[tokio::test] async fn $test() { super::$test(crate::service::Store::Sqlite).await; })+
        }
    };
}

mod service;

mod bulk;
mod control;
mod defects;
mod endpoints;
mod filters;
mod job_types;
mod lists;
mod percentages;
mod prerequisites;
mod put_again;
mod reports;
mod start_messages;
mod transitions;
mod urls;
mod validation;
