//! The test harness: everything that several test binaries need and that knows none of the project's crates.
//!
//! - [`postgres()`] and [`rabbitmq()`] return servers that all tests of a process share. They use `DATABASE_URL` and `AMQP_URL`
//!   when these are set. Otherwise they start the servers of Debian's packages once: as child processes, in a temporary
//!   folder, on free ports of 127.0.0.1, without systemd and without root.
//! - [`Database`] is a fresh database of one test: in memory, an SQLite file or on `PostgreSQL`.
//! - [`PostgresServer`] and [`RabbitServer`] are servers that one test owns, to stop and kill them. [`Proxy`] is a network
//!   that fails on demand.
//! - [`Process`] runs a binary in the background; [`run_command`] runs one to its end. [`HttpClient`] speaks to a service. [`Scrape`]
//!   reads its metrics.
//! - [`tls`] makes certificates and a server that speaks TLS.
//! - [`wait_for`], [`in_time`] and [`block_on_in_time`] bound every wait. [`unique`] and [`free_port`] keep tests apart.
//! - [`Prometheus`] scrapes a process and evaluates rules and queries. It is the only server that a test may do without.
//!
//! The binary `servers` starts both servers ([`Servers`]) for a command, so that many test processes can share them. The
//! binary `run-tests` runs all test binaries of the workspace (see `test.sh`).
//!
//! What must stay true:
//! - **No server outlives the process that started it**, however that process ends (see `supervisor.rs`).
//! - **A test never passes without its server.** If a server cannot be started, the error says what to install.
//! - **Tests share nothing by name.** Every database is fresh, and [`unique`] names everything else.
//! - **No wait is unbounded.** A wait that gives up says what it waited for and what it saw last.
//! - The harness depends on none of the project's crates, so each of them can use it in its tests.

mod database;
mod http;
mod names;
mod postgres;
mod process;
mod prometheus;
mod proxy;
mod rabbitmq;
mod scrape;
mod servers;
mod supervisor;
pub mod tls;
mod wait;

pub use crate::database::{Backend, Database};
pub use crate::http::{HttpClient, HttpResponse};
pub use crate::names::{free_port, sized, unique};
pub use crate::postgres::{Postgres, PostgresServer, postgres, psql};
pub use crate::process::{CommandOutput, Process, ProcessOptions, run_command};
pub use crate::prometheus::Prometheus;
pub use crate::proxy::Proxy;
pub use crate::rabbitmq::{Amqp, RabbitServer, rabbitmq};
pub use crate::scrape::{Family, Scrape};
pub use crate::servers::Servers;
pub use crate::wait::{PATIENCE, block_on_in_time, in_time, wait_for};
