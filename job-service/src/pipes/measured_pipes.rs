//! Shows in the metrics how many items wait for each pipe, also for one that no worker consumes.
//!
//! It is measured when somebody asks for the metrics, and not more often than it should. Shown are
//! the pipes of unfinished jobs and of the workers that tell of themselves.
//!
//! What must stay true: the number of the pipes that a process shows is bounded, whatever names
//! jobs give to theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::metrics::{PIPE_ITEMS, PIPE_SECONDS};
use metrics::gauge;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::http::ApiResult;

/// How long a measurement counts as new, and that as a multiple of the time that it took.
const AGE: Duration = Duration::from_secs(15);
const SHARE: u32 = 100;
/// How long the broker and the store may take.
const LIMIT: Duration = Duration::from_secs(2);
/// The most pipes that a process shows until it ends. Further ones are left out.
const MOST: usize = 500;

/// The pipes that the metrics show.
#[derive(Debug, Default)]
pub struct MeasuredPipes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    again_at: Option<Instant>,
    shown: BTreeSet<String>,
}

/// What waits for a pipe.
#[derive(Debug, Clone, Copy)]
pub struct PipeWork {
    pub items: u64,
    /// How much work that is, if that is known.
    pub seconds: Option<f64>,
}

impl MeasuredPipes {
    /// Measures how many items wait for each pipe, as `waiting` reads them, unless that is being
    /// measured, or was a moment ago.
    pub async fn measure(
        &self,
        waiting: impl Future<Output = ApiResult<BTreeMap<String, PipeWork>>>,
    ) {
        let Ok(mut state) = self.0.try_lock() else {
            return;
        };
        let begun = Instant::now();
        if state.again_at.is_some_and(|at| begun < at) {
            return;
        }
        let read = timeout(LIMIT, waiting).await;
        state.again_at = Some(begun + AGE.max(begun.elapsed() * SHARE));
        // Nothing waits for a pipe that is not known any more.
        let (unknown, waiting) = match read {
            Ok(Ok(waiting)) => (0.0, waiting),
            _ => (f64::NAN, BTreeMap::new()),
        };
        let mut items: BTreeMap<String, (f64, Option<f64>)> = state
            .shown
            .iter()
            .map(|pipe| (pipe.clone(), (unknown, None)))
            .collect();
        items.extend(
            waiting
                .into_iter()
                .map(|(pipe, waiting)| (pipe, (number(waiting.items), waiting.seconds))),
        );
        for (pipe, (items, seconds)) in items {
            if state.shown.len() < MOST || state.shown.contains(&pipe) {
                gauge!(PIPE_ITEMS, "pipe" => pipe.clone()).set(items);
                let seconds = seconds.unwrap_or(if items > 0.0 { f64::NAN } else { items });
                gauge!(PIPE_SECONDS, "pipe" => pipe.clone()).set(seconds);
                state.shown.insert(pipe);
            }
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge needs no more precision"
)]
const fn number(count: u64) -> f64 {
    count as f64
}
