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

/// Makes two tests of each function, one per store.
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

mod service;

mod control;
mod defects;
mod endpoints;
mod filters;
mod job_types;
mod messages;
mod percentages;
mod prerequisites;
mod put_again;
mod transitions;
mod validation;
