//! The test harness: everything that several test binaries need and that knows none of the
//! project's crates.
//!
//! - [`postgres()`] and [`rabbitmq()`] return servers that all tests of a process share. They use
//!   `DATABASE_URL` and `AMQP_URL` when these are set. Otherwise they start the servers of Debian's
//!   packages once: as child processes, in a temporary folder, on free ports of 127.0.0.1, without
//!   systemd and without root.
//! - [`Database`] is a fresh database of one test: a SQLite file or on `PostgreSQL`.
//! - [`PostgresServer`] and [`RabbitServer`] are servers that one test owns, to stop and kill them.
//!   [`Proxy`] is a network that fails on demand.
//! - [`run_command`] runs a binary to its end. [`HttpClient`] speaks to a service. [`Scrape`]
//!   reads its metrics.
//! - [`RawServer`] is a web server that leaves its responses unfinished.
//! - [`tls`] makes certificates and a server that speaks TLS.
//! - [`wait_for`], [`in_time`] and [`block_on_in_time`] bound every wait. [`unique`] and
//!   [`free_port`] keep tests apart.
//! - [`check_page`] compares a page of the documentation with what the program says.
//! - [`Prometheus`] scrapes a process and evaluates rules and queries. [`Browser`] shows pages.
//!   These two are the only servers that a test may do without; [`left_out()`] says what it did not
//!   look at then.
//!
//! The binary `servers` starts both servers ([`Servers`]) for a command, so that many test
//! processes can share them. The binary `run-tests` runs all test binaries of the workspace (see
//! `test.sh`).
//!
//! What must stay true:
//! - **A test never passes without its server.** If a server cannot be started, the error says what
//!   to install.
//! - **Tests share nothing by name.** Every database is fresh, and [`unique`] names everything
//!   else.
//! - **No wait is unbounded.** A wait that gives up says what it waited for and what it saw last.
//! - Of the project's crates the harness depends only on `faults`, which starts servers, so each of
//!   the others can use it in its tests.

mod browser;
mod database;
mod http;
mod left_out;
mod names;
mod pages;
mod postgres;
mod process;
mod prometheus;
mod rabbitmq;
mod raw_server;
mod scrape;
mod servers;
pub mod tls;
mod wait;

pub use crate::browser::{Browser, Tab};
pub use crate::database::{Backend, Database};
pub use crate::http::{HttpClient, HttpResponse};
pub use crate::left_out::left_out;
pub use crate::names::{asked, sized};
pub use crate::pages::check_page;
pub use crate::postgres::postgres;
pub use crate::process::{CommandOutput, run_command};
pub use crate::prometheus::Prometheus;
pub use crate::rabbitmq::{Amqp, rabbitmq};
pub use crate::raw_server::{RawServer, Sent};
pub use crate::scrape::{Family, Scrape};
pub use crate::servers::Servers;
pub use crate::wait::{PATIENCE, block_on_in_time, in_time, wait_for};
pub use faults::{
    HeldLock, Keeper, Postgres, PostgresServer, Process, ProcessOptions, Proxy, RabbitServer,
    free_port, psql, unique,
};
