//! Runs the word counter against RabbitMQ: `BATCHWRIGHT_NAME=worker-example
//! BATCHWRIGHT_OUTPUT_PIPE=worker-example-out`.

use batchwright_example_worker::WordCounter;
use framework::{Runtime, RuntimeError};

#[tokio::main]
async fn main() -> Result<(), RuntimeError> {
    let root = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    Runtime::from_env()?
        .worker(WordCounter { root: root.into() })
        .run()
        .await
}
