//! The whole system in one process: the [`Stack`]. An author's own `main` runs everything with their worker in it.
//!
//! ```no_run
//! # use framework::{Context, NoOutput, Reply, Settings, TaskData, TaskError, Worker};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Greet { name: String }
//! # impl TaskData for Greet { const CLASSIFIER: &'static str = "Greet"; const API_VERSION: i32 = 1; }
//! # struct Greeter;
//! # impl Worker for Greeter {
//! #     type Input = Greet; type Output = NoOutput;
//! #     async fn run(&self, _: Greet, _: Context) -> Result<Reply<NoOutput>, TaskError> { Ok(Reply::none()) }
//! # }
//! use batchwright::{Stack, StackOptions};
//!
//! # async fn example() -> Result<(), batchwright::StackError> {
//! let running = Stack::new(StackOptions::embedded("data")).worker(Settings::new("worker-greet"), Greeter).start().await?;
//! println!("the API is at {}", running.api_url());
//! running.until_asked_to_stop().await
//! # }
//! ```
//!
//! The crate also holds what the command line is made of: a [`client`] of the REST API, the demonstration and the benchmark.

pub mod bench;
pub mod client;
pub mod demo;
mod stack;
pub mod watch;

pub use batch_worker::Results as BatchResults;
pub use stack::{
    BATCH_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, Role, Running, Stack, StackError, StackOptions,
    TRACKING_PIPE,
};
