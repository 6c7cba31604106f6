//! The conditions for which as many tasks wait as may, as status checks tell the workers.
//!
//! What must stay true: the store is asked at most once a second, however many workers check.

use std::time::Duration;

use axum::http::HeaderValue;
use contract::Condition;
use contract::headers::EVERY_CONDITION;
use store::Store;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long an answer of the store counts.
const NEW: Duration = Duration::from_secs(1);
/// The most conditions that are told; a worker reads no more. Those with the most tasks are told.
const MOST: u32 = 100;

/// The conditions that take no more tasks.
#[derive(Debug, Default)]
pub struct FullConditions(Mutex<Option<Seen>>);

#[derive(Debug)]
struct Seen {
    at: Instant,
    keys: Option<HeaderValue>,
}

impl FullConditions {
    /// Returns the keys of the conditions for which at least so many `tasks` of one pipe wait; `None` if there are none.
    pub async fn keys(&self, store: &Store, tasks: u64) -> Option<HeaderValue> {
        let mut seen = self.0.lock().await;
        if let Some(seen) = seen.as_ref().filter(|seen| seen.at.elapsed() < NEW) {
            return seen.keys.clone();
        }
        // Without an answer, none is full: nothing is lost by one task more.
        let mut full = store.full_conditions(tasks, MOST).await.unwrap_or_default();
        full.dedup_by(|a, b| a.key == b.key);
        let mut keys: Vec<&str> = full.iter().map(|full| full.key.as_str()).collect();
        // Which conditions a worker may still name, it cannot know.
        if keys.contains(&Condition::common().key().as_str()) {
            keys.insert(0, EVERY_CONDITION);
        }
        let keys = (!keys.is_empty()).then(|| keys.join(" "));
        let keys = keys.and_then(|keys| HeaderValue::try_from(keys).ok());
        *seen = Some(Seen {
            at: Instant::now(),
            keys: keys.clone(),
        });
        keys
    }
}
