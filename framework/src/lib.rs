//! What a worker author depends on: a trait to implement, a runtime to run it, and a way to test it.
//!
//! Read [`Worker`] to write a worker, and the module `process` to see what happens to a delivery. The framework hides the
//! broker: RabbitMQ, a file on this machine, or memory ([`broker`]). It never sees the database.
//!
//! ```no_run
//! # use framework::{Context, NoOutput, Reply, Runtime, TaskData, TaskError, Worker};
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

mod answer;
pub mod broker;
mod clock;
mod collector;
mod context;
mod health;
mod metrics;
mod one_by_one;
mod process;
mod reports;
mod retry;
mod routing;
mod runtime;
mod sending;
mod settings;
mod status;
mod suspects;
pub mod testing;
mod variables;
mod worker;

pub use collector::{Arrival, Collector, Courier, Effects, Verdict};
pub use context::{Context, Payload};
pub use contract::TaskData;
pub use process::{ORIGIN_HEADER, REASON_HEADER};
pub use retry::RetryPolicy;
pub use routing::Route;
pub use runtime::{Ready, Runtime, RuntimeError, stop_signal};
pub use sending::Sent;
pub use settings::{PREFIX, Settings, SettingsError, VARIABLES, Variable};
pub use status::announce;
pub use variables::{Caf, Found, UrlParts, Variables, encoded};
pub use worker::{NoOutput, OrFail, Reply, TaskError, Worker};
