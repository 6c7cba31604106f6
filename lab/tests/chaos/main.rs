//! Chaos: every role is a process of its own, on `RabbitMQ` and `PostgreSQL`, and something fails
//! in the middle of a job. Processes are killed; servers restart, are killed or stay down; networks
//! drop everything; servers start after their clients.
//!
//! These are scenarios of `batchwright chaos`: its system, its job and its comparison at the end,
//! with one fault each, chosen and not drawn. At the end of each story nothing may be lost, counted
//! twice, rejected or left, and the percentage never fell.
//!
//! By default the stories are short. `CHAOS_ITEMS`, `CHAOS_OUTAGE` and `CHAOS_HOLE` (seconds) and
//! `CHAOS_BINARY` turn them into experiments; with `--nocapture` each story prints a line of
//! numbers.
//!
//! What must stay true: the stories run one after the other, because the pipes of the binary have
//! fixed names. They share one pair of servers, because starting a pair takes long. A story that
//! fails drops its servers; the next one starts new ones.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod command;
mod faults;
mod start;
mod story;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// The size of the stories.
struct Size {
    items: u64,
    /// How long the database is unavailable.
    outage: Duration,
    /// How long the network drops everything.
    hole: Duration,
    /// The program `batchwright`.
    product: PathBuf,
}

/// The program `batchwright-lab`.
const LABORATORY: &str = env!("CARGO_BIN_EXE_batchwright-lab");

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
        items: number("CHAOS_ITEMS", 1200),
        outage: Duration::from_secs(number("CHAOS_OUTAGE", 8)),
        hole: Duration::from_secs(number("CHAOS_HOLE", 10)),
        product: set("CHAOS_BINARY").map_or_else(shipped, PathBuf::from),
    }
});

/// Returns the program `batchwright` beside the laboratory. Cargo builds no program of another
/// crate for a test.
fn shipped() -> PathBuf {
    let product = Path::new(LABORATORY).with_file_name("batchwright");
    assert!(
        product.exists(),
        "there is no {}: cargo build -p batchwright-cli",
        product.display()
    );
    product
}
