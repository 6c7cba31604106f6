//! Begins a loop of the store again after a panic. The store does not know the framework, whose
//! module of this name does the same for all other loops.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep};

/// How many panics within [`WINDOW`] are the end.
const MOST_PANICS: usize = 5;
/// The time within which panics are counted.
const WINDOW: Duration = Duration::from_mins(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs a loop until it returns. After a panic, calls `panicked` with the reason and begins it
/// again. Returns the reason once it has panicked too often.
pub async fn supervise<F: Future<Output = ()>>(
    name: &str,
    mut begin: impl FnMut() -> F,
    panicked: impl Fn(&str),
) -> Result<(), String> {
    let mut panics: Vec<Instant> = Vec::new();
    loop {
        let run = AssertUnwindSafe(async { begin().await });
        let Err(panic) = run.catch_unwind().await else {
            return Ok(());
        };
        let panic = text(&*panic);
        panics.retain(|earlier| earlier.elapsed() < WINDOW);
        panics.push(Instant::now());
        if panics.len() >= MOST_PANICS {
            tracing::error!(
                name,
                panic,
                "a loop has panicked {MOST_PANICS} times within {WINDOW:?}; the process ends"
            );
            return Err(format!(
                "{name} has panicked {MOST_PANICS} times within {WINDOW:?}: {panic}"
            ));
        }
        let earlier = u32::try_from(panics.len() - 1).unwrap_or(u32::MAX);
        let delay = FIRST_PAUSE
            .saturating_mul(4_u32.saturating_pow(earlier))
            .min(LONGEST_PAUSE);
        tracing::error!(name, panic, ?delay, "a loop has panicked; it begins again");
        panicked(panic);
        sleep(delay).await;
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
