//! What the author of a worker depends on: a trait to implement, a runtime to run it, a way to test
//! it, and the whole system in one process.
//!
//! To write a worker, read [`Worker`]; to read its outputs, [`Outputs`]; to test it, [`testing`];
//! to teach the batch worker another kind of definition, [`batch`]. A worker on RabbitMQ, in a
//! process of its own:
//!
//! ```no_run
//! use batchwright::{Context, NoOutput, Reply, Runtime, TaskData, TaskError, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greet { name: String }
//!
//! impl TaskData for Greet {
//!     const CLASSIFIER: &'static str = "Greet";
//!     const API_VERSION: i32 = 1;
//! }
//!
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
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     Runtime::from_env()?.worker(Greeter).run().await?;
//!     Ok(())
//! }
//! ```
//!
//! With the feature `stack`, the worker runs in one process with the job service, the batch worker
//! and the tracking worker, with nothing to install. In its `main`:
//!
//! ```no_run
//! # use batchwright::{Context, NoOutput, Reply, Settings, TaskData, TaskError, Worker};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Greet { name: String }
//! # impl TaskData for Greet { const CLASSIFIER: &'static str = "Greet"; const API_VERSION: i32 = 1; }
//! # struct Greeter;
//! # impl Worker for Greeter {
//! #     type Input = Greet; type Output = NoOutput;
//! #     async fn run(&self, _: Greet, _: Context) -> Result<Reply<NoOutput>, TaskError> { Ok(Reply::none()) }
//! # }
//! # #[cfg(feature = "stack")]
//! use batchwright::{Stack, StackOptions};
//!
//! # #[cfg(feature = "stack")]
//! # async fn example() -> Result<(), batchwright::StackError> {
//! let running = Stack::new(StackOptions::embedded("data")).worker(Settings::new("worker-greet"), Greeter).start().await?;
//! println!("the API is at {}", running.api_url());
//! running.until_asked_to_stop().await
//! # }
//! ```
//!
//! A [`client`] of the REST API submits jobs and follows them.
//!
//! # Features
//!
//! | feature | what it adds | by default |
//! |---|---|---|
//! | `amqp` | RabbitMQ, and [`Runtime`]`::from_env` | yes |
//! | `prometheus` | metrics at `/metrics` | yes |
//! | `otlp` | spans to a collector of OpenTelemetry | |
//! | `embedded` | a durable broker inside the process | |
//! | `stack` | the whole system in one process, with `embedded` and `amqp` | |
//! | `job-types`, `swagger-ui` | for that system: jobs from a few parameters, the API as a page | |
//! | `buckets` | for that system: outputs and sources in buckets; built on reqwest | |

#![warn(missing_docs)]

pub mod advanced;
pub mod client;
#[cfg(feature = "stack")]
mod stack;

pub use framework::contract;
#[doc(inline)]
pub use framework::{
    Condition, ConditionCode, Context, NoOutput, OrFail, Outputs, Reply, RetryPolicy, Runtime,
    Settings, TaskData, TaskError, Tester, Worker, log, testing,
};

/// What the author of a batch plugin needs. `Stack::plugin` adds one.
pub use batch_worker as batch;
#[cfg(feature = "stack")]
pub use stack::{Role, Running, Stack, StackError, StackOptions, batch_job};
