//! Keeps the loops of a process running: a loop that panics is logged with its name and begins
//! again.
//!
//! What must stay true:
//! - A loop ends only when it returns or when its process is asked to stop. Meanwhile the process
//!   is not ready, and says which loop begins again ([`Health`]).
//! - A loop that panics again and again does not hide it: after [`MOST_PANICS`] panics within
//!   [`WINDOW`] the process gives up ([`Health::give_up`]), and ends with an error.
//! - What a loop must not lose when it panics lives outside of it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use contract::metrics::LOOP_PANICS;
use futures_util::FutureExt as _;
use metrics::counter;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::health::Health;
use crate::{RetryPolicy, meters};

/// How many panics of one loop within [`WINDOW`] end the process.
pub const MOST_PANICS: usize = 5;
/// The time within which panics of one loop are counted.
pub const WINDOW: Duration = Duration::from_mins(1);
/// The delays before a loop begins again: one for each panic within [`WINDOW`].
static DELAYS: RetryPolicy =
    RetryPolicy::exponential(Duration::from_millis(100), 4.0, Duration::from_secs(10)).forever();

/// Runs a loop until it returns, and returns its result. Begins it again after each panic. Returns
/// `None` if `stop` is cancelled before it begins again, or if the process gives up; `stop` does
/// not end a loop that runs.
///
/// `name` is told in the log and by the health checks. It is unique within the process.
pub async fn supervise<F: Future>(
    health: &Health,
    name: &str,
    stop: &CancellationToken,
    mut begin: impl FnMut() -> F,
) -> Option<F::Output> {
    let mut panics = VecDeque::with_capacity(MOST_PANICS);
    let mut delays = DELAYS.delays();
    loop {
        // The call itself may panic, too.
        let run = AssertUnwindSafe(async {
            #[cfg(any(test, feature = "internals"))]
            health.begins(name);
            run(health, name, Box::pin(begin())).await
        });
        let panic = match run.catch_unwind().await {
            Ok(result) => return Some(result),
            Err(panic) => panic,
        };
        let (panic, now) = (panic_text(&*panic), Instant::now());
        count_panic(name);
        panics.retain(|earlier| now.duration_since(*earlier) < WINDOW);
        if panics.is_empty() {
            delays = DELAYS.delays();
        }
        panics.push_back(now);
        if panics.len() >= MOST_PANICS {
            error!(
                name,
                panic,
                "a loop has panicked {MOST_PANICS} times within {WINDOW:?}; the process ends"
            );
            health.give_up(format!(
                "{name} has panicked {MOST_PANICS} times within {WINDOW:?}: {panic}"
            ));
            return None;
        }
        let delay = delays.next().unwrap_or_default();
        error!(name, panic, ?delay, "a loop has panicked; it begins again");
        let _outage = health.outage(name, format!("begins again after a panic: {panic}"));
        stop.run_until_cancelled(sleep(delay)).await?;
    }
}

/// Runs a future until `stop` is cancelled. Looks at `stop` first: what ends together with it is no
/// reason to complain.
pub async fn until<F: Future>(stop: &CancellationToken, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        output = future => Some(output),
    }
}

/// Runs what cannot begin again, because nobody knows what its state is worth after a panic. If it
/// panics, the process gives up, and this returns `None`.
pub async fn run_or_give_up<F: Future>(
    health: &Health,
    name: &str,
    future: F,
) -> Option<F::Output> {
    match caught(health, name, future).await {
        Ok(result) => Some(result),
        Err(panic) => {
            error!(
                name,
                panic, "a panic that only a new process can mend; the process ends"
            );
            health.give_up(format!("{name} has panicked: {panic}"));
            None
        }
    }
}

/// Runs what need not begin again after a panic, because others do again what it has not done.
/// Returns `None` after a panic, which is logged and counted.
pub async fn run_or_tell<F: Future>(health: &Health, name: &str, future: F) -> Option<F::Output> {
    match caught(health, name, future).await {
        Ok(result) => Some(result),
        Err(panic) => {
            error!(
                name,
                panic, "a task has panicked; what it did is done again"
            );
            None
        }
    }
}

/// Runs to the end, or to a panic, which is counted. Returns the text of the panic.
async fn caught<F: Future>(health: &Health, name: &str, future: F) -> Result<F::Output, String> {
    let run = AssertUnwindSafe(run(health, name, Box::pin(future)));
    run.catch_unwind().await.map_err(|panic| {
        count_panic(name);
        panic_text(&*panic).to_owned()
    })
}

fn count_panic(name: &str) {
    meters::install();
    counter!(LOOP_PANICS, "loop" => name.to_owned()).increment(1);
}

/// Makes the process give up if it is dropped by a panic. As a local value it is dropped before
/// what the function was given, so nobody who notices that this is gone takes it for an end in
/// order.
#[cfg(feature = "embedded")]
#[derive(Debug)]
pub(crate) struct LastWill<'a> {
    pub health: &'a Health,
    pub name: &'static str,
}

#[cfg(feature = "embedded")]
impl Drop for LastWill<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health.give_up(format!("{} has panicked", self.name));
        }
    }
}

#[cfg(any(test, feature = "internals"))]
async fn run<F: Future>(health: &Health, name: &str, future: F) -> F::Output {
    // It panics while the future is alive, as a panic of its own would.
    let panicking = async {
        health.planned_panic(name).await;
        #[expect(clippy::panic, reason = "a test has planned it")]
        {
            panic!("a planned panic")
        }
    };
    tokio::select! {
        biased;
        never = panicking => never,
        result = future => result,
    }
}

#[cfg(not(any(test, feature = "internals")))]
async fn run<F: Future>(_: &Health, _: &str, future: F) -> F::Output {
    future.await
}

/// Returns the message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The rules of a loop that panics, and a log for tests.
#[cfg(test)]
pub mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A log in memory.
    #[derive(Debug, Clone, Default)]
    pub struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        /// Keeps what this thread logs, until the guard is dropped.
        pub fn keep(&self) -> tracing::subscriber::DefaultGuard {
            let log = self.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || log.clone())
                .with_ansi(false)
                .finish();
            tracing::subscriber::set_default(subscriber)
        }

        /// Returns what was logged.
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_logged_by_name_and_begins_again_while_the_process_is_not_ready()
    {
        let (health, log) = (Health::default(), Log::default());
        let _kept = log.keep();
        let (runs, begun) = (Cell::new(0), Instant::now());
        let stop = CancellationToken::new();
        let supervised = supervise(&health, "a sweeper", &stop, || async {
            runs.set(runs.get() + 1);
            assert_eq!(health.outages(), [], "it runs");
            assert!(runs.get() > 3, "run {}", runs.get());
            "done"
        });
        let observed = async {
            tokio::task::yield_now().await;
            health.outages()
        };
        let (done, outages) = tokio::join!(supervised, observed);
        assert_eq!((done, runs.get()), (Some("done"), 4));
        assert_eq!(outages[0].name, "a sweeper");
        assert_eq!(outages[0].reason, "begins again after a panic: run 1");
        assert_eq!(begun.elapsed().as_millis(), 100 + 400 + 1600);
        assert_eq!(health.outages(), []);
        let said =
            "a loop has panicked; it begins again name=\"a sweeper\" panic=\"run 3\" delay=1.6s";
        assert!(log.text().contains(said), "{}", log.text());
        let counted = "batchwright_loop_panics_total{loop=\"a sweeper\"} 3\n";
        assert!(meters::scrape().await.contains(counted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_again_and_again_ends_the_process() {
        let (health, log) = (Health::default(), Log::default());
        let _kept = log.keep();
        let stop = CancellationToken::new();
        let ended = supervise(&health, "relay", &stop, || async { panic!("no disk") }).await;
        assert_eq!(ended, None::<()>);
        let reason = "relay has panicked 5 times within 60s: no disk";
        assert_eq!(health.given_up().await, reason);
        assert!(log.text().contains("the process ends"), "{}", log.text());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_now_and_then_goes_on_for_ever() {
        let (health, stop) = (Health::default(), CancellationToken::new());
        let runs = Cell::new(0);
        supervise(&health, "relay", &stop, || async {
            runs.set(runs.get() + 1);
            sleep(WINDOW / 3).await;
            assert!(runs.get() >= 20, "run {}", runs.get());
        })
        .await
        .unwrap();
        assert_eq!(health.given_up_now(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_a_loop_to_begin_again() {
        let (health, stop) = (Health::default(), CancellationToken::new());
        stop.cancel();
        let begun = Instant::now();
        let ended = supervise(&health, "relay", &stop, || async { panic!("no disk") }).await;
        assert_eq!((ended, begun.elapsed()), (None::<()>, Duration::ZERO));
    }

    #[tokio::test]
    async fn a_panic_of_what_need_not_begin_again_is_told_by_name() {
        let (health, log) = (Health::default(), Log::default());
        let _kept = log.keep();
        let panics = run_or_tell(&health, "left channel", async {
            assert_eq!(1, 2, "oh");
        });
        assert_eq!(panics.await, None);
        let told = String::from_utf8(log.0.lock().clone()).unwrap();
        assert!(
            told.contains("left channel") && told.contains("oh"),
            "{told}"
        );
        assert_eq!(health.outages(), []);
        assert_eq!(run_or_tell(&health, "other", async { 1 }).await, Some(1));
    }
}
