//! A cache of what the service knows about pipes, so that it rarely asks the broker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use framework::broker::Flow;
use moka::future::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

/// For how long a pipe counts as missing before the broker is asked again.
const MISSING_FOR: Duration = Duration::from_mins(1);
/// For how long the pipes of the jobs count as known, and that as a multiple of the time that it
/// took to read them.
const JOBS_KNOWN_FOR: Duration = Duration::from_secs(10);
const JOBS_SHARE: u32 = 100;
/// The shortest time over which a rate is measured.
const SHORTEST: Duration = Duration::from_secs(2);
/// The most pipes whose rates are measured.
const MOST: usize = 500;
/// The most pipes that are remembered as missing: the own, reject and invalid pipes and the
/// quarantines of a list.
const MOST_MISSING: u64 = 2000;

/// What the service remembers about pipes.
#[derive(Debug)]
pub struct KnownPipes {
    missing: Cache<String, ()>,
    state: Mutex<State>,
}

impl Default for KnownPipes {
    fn default() -> Self {
        let missing = Cache::builder().max_capacity(MOST_MISSING);
        Self {
            missing: missing.time_to_live(MISSING_FOR).build(),
            state: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    flows: HashMap<String, Measured>,
    /// Until when the pipes of the jobs count as known, and these.
    of_jobs: Option<(Instant, Arc<PipesOfJobs>)>,
}

/// The pipes of the jobs that have not ended.
#[derive(Debug, Default)]
pub struct PipesOfJobs {
    /// Where their start messages go.
    pub first: Vec<String>,
    /// How many items wait, by the pipe to which their batches send them.
    pub items: BTreeMap<String, u64>,
    /// How many messages are held until there is room in their pipe.
    pub held: BTreeMap<String, u64>,
}

impl PipesOfJobs {
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let held = self.held.keys();
        self.first.iter().chain(self.items.keys()).chain(held)
    }
}

/// What came and left up to a moment, and the rates before it.
#[derive(Debug)]
struct Measured {
    at: Instant,
    flow: Flow,
    rates: Option<(f64, f64)>,
}

impl KnownPipes {
    /// Returns the pipes among these that the broker did not miss a moment ago.
    pub fn not_missing(&self, pipes: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut pipes: Vec<_> = pipes.into_iter().collect();
        pipes.retain(|pipe| !self.missing.contains_key(pipe));
        pipes
    }

    /// Notes that the broker does not know this pipe.
    pub async fn miss(&self, pipe: &str) {
        self.missing.insert(pipe.to_owned(), ()).await;
    }

    /// Returns the pipes of the jobs, if they were read a moment ago.
    pub fn of_jobs(&self) -> Option<Arc<PipesOfJobs>> {
        let state = self.state.lock();
        let (until, pipes) = state.of_jobs.as_ref()?;
        (Instant::now() < *until).then(|| Arc::clone(pipes))
    }

    /// Remembers the pipes of the jobs, which it took this time to read.
    pub fn set_of_jobs(&self, pipes: &Arc<PipesOfJobs>, took: Duration) {
        let until = Instant::now() + JOBS_KNOWN_FOR.max(took * JOBS_SHARE);
        self.state.lock().of_jobs = Some((until, Arc::clone(pipes)));
    }

    /// Returns how many messages came per second and left, since the service measured them before.
    pub fn rates(&self, pipe: &str, flow: Flow) -> Option<(f64, f64)> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.flows.len() > MOST {
            state.flows.clear();
        }
        let measured = state.flows.entry(pipe.to_owned()).or_insert(Measured {
            at: now,
            flow,
            rates: None,
        });
        let time = now.duration_since(measured.at);
        if time >= SHORTEST {
            let rate = |before: u64, after: u64| {
                let messages = u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX);
                f64::from(messages) / time.as_secs_f64()
            };
            let rates = (
                rate(measured.flow.came, flow.came),
                rate(measured.flow.left, flow.left),
            );
            *measured = Measured {
                at: now,
                flow,
                rates: Some(rates),
            };
        }
        measured.rates
    }
}
