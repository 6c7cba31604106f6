//! Finds runs that keep their thread busy, such as a long computation. Nothing polls such a run
//! again, so it cannot notice by itself that it has lasted long. So each thread shows the run that
//! it polls, and one thread of the process looks at all of them.
//!
//! What must stay true: a thread shows without waiting for others, except for the moment in which
//! it is looked at.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::Context;

/// How long a poll lasts before it is told that its task runs. It is seen after half as much again
/// at the latest.
const LONG_POLL: Duration = Duration::from_secs(1);

/// Every thread that has polled a run.
static THREADS: Mutex<Vec<Weak<Thread>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Arc<Thread> = Thread::join();
}

/// What a thread shows.
#[derive(Default)]
struct Thread(Mutex<Shown>);

#[derive(Default)]
struct Shown {
    /// Differs from poll to poll.
    number: u64,
    run: Option<Context>,
}

/// Polls `run`, and shows meanwhile that this thread does.
pub(crate) async fn shown<F: Future>(mut run: Pin<&mut F>, ctx: &Context) -> F::Output {
    std::future::poll_fn(|cx| {
        let _shown = Showing::begin(ctx);
        let polled: Poll<F::Output> = run.as_mut().poll(cx);
        polled
    })
    .await
}

/// Shows a run until this is dropped. A run may be polled within the poll of another one.
struct Showing {
    /// `None` while the thread ends.
    thread: Option<Arc<Thread>>,
    outer: Option<Context>,
}

impl Showing {
    fn begin(ctx: &Context) -> Self {
        let thread = OWN.try_with(Arc::clone).ok();
        let outer = thread
            .as_ref()
            .and_then(|thread| thread.show(Some(ctx.clone())));
        Self { thread, outer }
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            thread.show(self.outer.take());
        }
    }
}

impl Thread {
    fn join() -> Arc<Self> {
        static WATCH: OnceLock<()> = OnceLock::new();
        WATCH.get_or_init(watch);
        let thread = Arc::<Self>::default();
        threads().push(Arc::downgrade(&thread));
        thread
    }

    /// Shows this run, and returns the one before.
    fn show(&self, run: Option<Context>) -> Option<Context> {
        let mut shown = self.shown();
        shown.number += 1;
        std::mem::replace(&mut shown.run, run)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.0.lock()
    }
}

/// Looks at all threads for as long as the process lives, on a thread of its own: the others may
/// all be busy.
fn watch() {
    let looking = || {
        let mut seen = Seen::new();
        loop {
            std::thread::park_timeout(LONG_POLL / 2);
            seen = look(&seen, Instant::now());
        }
    };
    let thread = std::thread::Builder::new().name("long-tasks".to_owned());
    if let Err(error) = thread.spawn(looking) {
        tracing::warn!(%error, "cannot start the thread that looks for long tasks; a task that never awaits is told when it ends");
    }
}

/// Returns the runs that threads poll now.
pub(crate) fn polled() -> Vec<Context> {
    let threads: Vec<_> = threads().iter().filter_map(Weak::upgrade).collect();
    let runs = threads
        .iter()
        .filter_map(|thread| thread.shown().run.clone());
    runs.collect()
}

/// The number of the poll of each thread, and when it was seen first.
type Seen = HashMap<*const Thread, (u64, Instant)>;

/// Reports each run whose poll was seen a while ago. Returns what is seen now.
fn look(seen: &Seen, now: Instant) -> Seen {
    let threads: Vec<_> = {
        let mut threads = threads();
        threads.retain(|thread| thread.strong_count() > 0);
        threads.iter().filter_map(Weak::upgrade).collect()
    };
    let mut seen_now = Seen::new();
    for thread in threads {
        let (number, run) = {
            let shown = thread.shown();
            (shown.number, shown.run.clone())
        };
        let Some(run) = run else { continue };
        let key = Arc::as_ptr(&thread);
        let before = seen.get(&key).filter(|(known, _)| *known == number);
        let since = before.map_or(now, |(_, since)| *since);
        if now.duration_since(since) >= LONG_POLL {
            run.report_running();
        }
        seen_now.insert(key, (number, since));
    }
    seen_now
}

fn threads() -> MutexGuard<'static, Vec<Weak<Thread>>> {
    THREADS.lock()
}
