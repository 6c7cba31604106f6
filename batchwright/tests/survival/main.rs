//! The faults of an ordinary week, on `RabbitMQ` and `PostgreSQL`, with every role as a process of its own: processes that are
//! killed, servers that restart, are killed, or stay away, networks that swallow everything, servers that come after their clients.
//!
//! Each story runs one job and does something to it in the middle. Then the job must be Completed, with exactly as many items as
//! there are, an output of each, nothing rejected, and a percentage that never fell.
//!
//! By default the stories are short. `SURVIVAL_ITEMS`, `SURVIVAL_OUTAGE` and `SURVIVAL_HOLE` (seconds) and `SURVIVAL_BINARY` make
//! experiments of them; `--nocapture` shows a line of numbers for each.
//!
//! What must stay true: the stories take place one after the other, because the binary's pipes have fixed names, on one pair of
//! servers, because starting one takes long. A story that fails takes its servers with it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod faults;
mod start;
mod system;

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// How large the stories are.
struct Size {
    items: u64,
    /// How long a database stays away.
    outage: Duration,
    /// How long a network swallows everything.
    hole: Duration,
    binary: PathBuf,
}

static SIZE: LazyLock<Size> = LazyLock::new(|| {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no `main` that could pass it"
    )]
    let set = |name: &str| std::env::var(name).ok();
    let number = |name: &str, default| {
        set(name).map_or(default, |text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{name} is {text:?}"))
        })
    };
    Size {
        items: number("SURVIVAL_ITEMS", 3000),
        outage: Duration::from_secs(number("SURVIVAL_OUTAGE", 8)),
        hole: Duration::from_secs(number("SURVIVAL_HOLE", 10)),
        binary: set("SURVIVAL_BINARY")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_batchwright").to_owned())
            .into(),
    }
});
