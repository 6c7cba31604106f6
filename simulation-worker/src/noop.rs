//! A worker that does nothing with tasks of any kind: for a first look, and to see what a batch
//! becomes.

use framework::{Context, NoOutput, Reply, TaskData, TaskError, Worker};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

/// Completes every task at once, whatever it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noop;

/// The data of any task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Anything;

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl TaskData for Anything {
    const CLASSIFIER: &'static str = "Anything";
    const API_VERSION: i32 = i32::MAX;

    fn reads(_: &str) -> bool {
        true
    }
}

impl Worker for Noop {
    type Input = Anything;
    type Output = NoOutput;

    async fn run(&self, _: Anything, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}
