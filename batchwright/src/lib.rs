//! The whole system in one process: the [`Stack`]. Use it in your own `main` to run your worker together with the job service, the
//! batch worker and the tracking worker.
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
//! use batchwright::{Stack, StackOptions};
//!
//! # async fn example() -> Result<(), batchwright::StackError> {
//! let running = Stack::new(StackOptions::embedded("data")).worker(Settings::new("worker-greet"), Greeter).start().await?;
//! println!("the API is at {}", running.api_url());
//! running.until_asked_to_stop().await
//! # }
//! ```
//!
//! A [`client`] of the REST API submits jobs and follows them. The command line of the program `batchwright` is built on both.

#![warn(missing_docs)]

pub mod client;
mod stack;

#[doc(inline)]
pub use framework::*;

/// What the author of a batch plugin needs; see [`Stack::plugin`].
pub use batch_worker as batch;
pub use batch_worker::Results as BatchResults;
pub use output_worker::Limits as OutputLimits;
pub use stack::{
    BATCH_PIPE, BatchOptions, COMMAND_OUT_PIPE, COMMAND_PIPE, CommandOptions, Drained,
    DrainedOutput, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, NOOP_PIPE, Role, Running, SIMULATION_PIPE,
    Stack, StackError, StackOptions, TRACKING_PIPE, WorkerOptions, batch_job,
};
