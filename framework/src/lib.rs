//! What a worker author depends on: a trait to implement, a runtime to run it, and a way to test
//! it.
//!
//! To write a worker, read [`Worker`], and to read its outputs, [`Outputs`]. To see what happens to
//! a delivery, read the module `pipeline`. The framework hides the broker: RabbitMQ, a file on this
//! machine, or memory ([`broker`]). It has no access to the database.
//!
//! The names in the root of this crate are all that most workers need. Code that works with many
//! deliveries at once finds more in [`handler`], and programs that run workers in [`config`] and
//! [`runtime`].
//!
//! ```no_run
//! # use batchwright_framework as batchwright;
//! # use batchwright::{Context, NoOutput, Reply, Runtime, TaskData, TaskError, Worker};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Greet { name: String }
//! # impl TaskData for Greet { const CLASSIFIER: &'static str = "Greet"; const API_VERSION: i32 = 1; }
//! struct Greeter;
//!
//! impl Worker for Greeter {
//!     type Input = Greet;
//!     type Output = NoOutput;
//!     async fn run(&self, task: Greet, _: Context) -> Result<Reply<NoOutput>, TaskError> {
//!         println!("hello, {}", task.name);
//!         Ok(Reply::none())
//!     }
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! Runtime::from_env()?.worker(Greeter).run().await?;
//! # Ok(()) }
//! ```
#![warn(missing_docs)]

pub mod announcement;
pub mod broker;
pub mod clock;
pub mod config;
mod context;
mod current;
pub mod handler;
pub mod health;
#[doc(hidden)]
pub mod http;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod job_service;
pub mod log;
pub mod meters;
pub mod outputs;
pub mod pipe_message;
mod pipeline;
mod process_name;
pub mod queries;
pub mod runtime;
pub mod signs;
mod steps;
pub mod supervision;
mod telemetry;
pub mod testing;
pub mod tls;
pub mod trace;
mod worker;

pub use broker::gauges::Room;
pub use config::{Settings, SettingsError};
pub use context::{Context, Payload, Source};
pub use contract::{self, Condition, ConditionCode, RetryPolicy, TaskData, Tester};
pub use outputs::{Output, Outputs};
pub use runtime::{Runtime, RuntimeError};
pub use worker::{NoOutput, OrFail, Reply, TaskError, Worker};
