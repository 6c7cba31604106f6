//! The conditions for which as many tasks wait as may, as status checks tell the workers.
//!
//! Tasks that are not stored yet may wait for any condition, so each of them counts for every one.
//!
//! What must stay true:
//! - As many tasks wait for a condition as may, and a bounded number more, however slow the store
//!   is.
//! - The store is asked at most once a second, and five times a second while tasks wait to be
//!   stored, however many workers check.

use std::time::Duration;

use axum::http::HeaderValue;
use contract::Condition;
use contract::headers::EVERY_CONDITION;
use store::Store;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::conditions::unstored::Unstored;

/// How long an answer of the store counts, and how long while tasks wait to be stored.
const NEW: Duration = Duration::from_secs(1);
const NEW_WHILE_BEHIND: Duration = Duration::from_millis(200);
/// The most conditions that are told; a worker reads no more. Where there are more, all count as
/// full.
const MOST: u32 = 100;

/// The conditions that take no more tasks.
#[derive(Debug, Default)]
pub struct FullConditions {
    seen: Mutex<Option<Seen>>,
    /// The tasks that are not stored yet.
    pub unstored: Unstored,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    keys: Option<HeaderValue>,
}

impl FullConditions {
    /// Returns the keys of the conditions for which at least so many `tasks` of one pipe may wait;
    /// `None` if there are none.
    pub async fn keys(&self, store: &Store, tasks: u64) -> Option<HeaderValue> {
        let mut seen = self.seen.lock().await;
        // Before the store is asked: a task that is stored in between counts twice, and not never.
        let unstored = self.unstored.tasks();
        let room = tasks.saturating_sub(unstored);
        if room == 0 {
            return Some(HeaderValue::from_static(EVERY_CONDITION));
        }
        let new = if unstored > 0 { NEW_WHILE_BEHIND } else { NEW };
        if let Some(seen) = seen.as_ref().filter(|seen| seen.at.elapsed() < new) {
            return seen.keys.clone();
        }
        // Without an answer, none is full: nothing is lost by one task more.
        let mut full = store.full_conditions(room, MOST).await.unwrap_or_default();
        let are_more = full.len() >= MOST as usize;
        full.dedup_by(|a, b| a.key == b.key);
        let mut keys: Vec<&str> = full.iter().map(|full| full.key.as_str()).collect();
        // Which conditions a worker may still name, it cannot know.
        if are_more || keys.contains(&Condition::common().key().as_str()) {
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
