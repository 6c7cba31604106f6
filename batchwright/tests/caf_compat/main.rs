//! The CAF Job Service from outside: what its clients and workers rely on, held against the binary itself over HTTP and AMQP only.
//!
//! Each test is a row of what CAF specifies, or of what it got wrong and is right here. It takes place twice: with jobs in
//! `PostgreSQL`, configured by CAF's own variables, and with jobs in `SQLite`; the broker is `RabbitMQ`. No type of this project is
//! used to make or to read what crosses the wire: requests, messages and answers are plain JSON, as a Java worker writes and reads it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

/// Makes two tests of each function, one per store. For rules in which the store takes part.
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

/// Makes one test of each function, on `SQLite`. For rules that are decided before the store is asked.
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
