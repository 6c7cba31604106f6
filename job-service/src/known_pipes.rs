//! A cache of what the service knows about pipes, so that it rarely asks the broker.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use framework::broker::Flow;
use tokio::time::Instant;

/// For how long a pipe counts as missing before the broker is asked again.
const MISSING_FOR: Duration = Duration::from_mins(1);
/// For how long the pipes of the jobs count as known.
const JOBS_KNOWN_FOR: Duration = Duration::from_secs(10);
/// The shortest time over which a rate is measured.
const SHORTEST: Duration = Duration::from_secs(2);
/// The most pipes whose rates are measured.
const MOST: usize = 500;
/// The most pipes that are remembered as missing: the own, reject and invalid pipes and the quarantines of a list.
const MOST_MISSING: usize = 4 * MOST;

/// What the service remembers about pipes.
#[derive(Debug, Default)]
pub struct KnownPipes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    missing: HashMap<String, Instant>,
    flows: HashMap<String, Measured>,
    of_jobs: Option<(Instant, Vec<String>)>,
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
        let mut state = self.lock();
        state
            .missing
            .retain(|_, since| since.elapsed() < MISSING_FOR);
        let pipes = pipes.into_iter();
        pipes
            .filter(|pipe| !state.missing.contains_key(pipe))
            .collect()
    }

    /// Notes that the broker does not know this pipe.
    pub fn miss(&self, pipe: &str) {
        let mut state = self.lock();
        if state.missing.len() >= MOST_MISSING && !state.missing.contains_key(pipe) {
            // The broker is asked once more about one of them.
            let oldest = state.missing.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(pipe, _)| pipe.clone()) {
                state.missing.remove(&oldest);
            }
        }
        state.missing.insert(pipe.to_owned(), Instant::now());
    }

    /// Returns the pipes of the jobs, if they were read a moment ago.
    pub fn of_jobs(&self) -> Option<Vec<String>> {
        let state = self.lock();
        let (at, pipes) = state.of_jobs.as_ref()?;
        (at.elapsed() < JOBS_KNOWN_FOR).then(|| pipes.clone())
    }

    /// Remembers the pipes of the jobs.
    pub fn set_of_jobs(&self, pipes: Vec<String>) {
        self.lock().of_jobs = Some((Instant::now(), pipes));
    }

    /// Returns how many messages came per second and left, since the service measured them before.
    pub fn rates(&self, pipe: &str, flow: Flow) -> Option<(f64, f64)> {
        let mut state = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn missing_pipes_are_forgotten_after_a_while_and_when_there_are_too_many() {
        let known = KnownPipes::default();
        let name = |number: usize| format!("pipe-{number}");
        for number in 0..MOST_MISSING + 10 {
            known.miss(&name(number));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(known.lock().missing.len(), MOST_MISSING);
        let asked = known.not_missing([name(9), name(10)]);
        assert_eq!(asked, [name(9)]);
        tokio::time::advance(MISSING_FOR).await;
        assert_eq!(known.not_missing([name(10)]), [name(10)]);
        assert_eq!(known.lock().missing.len(), 0);
    }
}
