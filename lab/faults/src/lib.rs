//! Private servers, processes and networks that fail on demand.
//!
//! - [`PostgresServer`] and [`RabbitServer`] are the servers of Debian's packages (or of the search
//!   path) as child processes: in a temporary folder, on free ports of 127.0.0.1, without systemd
//!   and without root. They can be stopped, killed and started again.
//! - [`Proxy`] is a network that cuts connections, refuses them, or carries nothing.
//! - [`Process`] runs a program in the background, and kills and starts it again. A [`Keeper`] ends
//!   a group of processes.
//!
//! `batchwright chaos` and the tests share this crate.
//!
//! What must stay true:
//! - **Nothing outlives the process that started it**, however that process ends (see
//!   `supervisor.rs` and `process.rs`).
//! - If a server cannot be started, the error says what to install.
//! - It depends on none of the project's crates, so each of them can use it in its tests.

mod names;
mod postgres;
mod process;
mod proxy;
mod rabbitmq;
mod supervisor;
mod wait;

pub use crate::names::{free_port, unique};
pub use crate::postgres::{
    HeldLock, Postgres, PostgresServer, create_database, drop_database, postgres_program, psql,
};
pub use crate::process::{Keeper, Process, ProcessOptions};
pub use crate::proxy::Proxy;
pub use crate::rabbitmq::RabbitServer;
pub use crate::supervisor::{Home, Order, Supervisor, program};
pub use crate::wait::poll;
