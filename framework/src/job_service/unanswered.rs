//! Decides how long to wait before asking a job service again that did not answer.
//!
//! The messages of a job whose URL leads nowhere come again until a person acts. So each time that
//! they have asked in vain, they wait twice as long, up to a limit. The waits are those of one job
//! in one process: others, and other jobs, are asked at once.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The first wait.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(32);
/// The most jobs that are remembered. Further ones wait for the first time again and again.
const MOST: usize = 1000;

/// The jobs about which nobody has answered, by the URLs of their status.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<HashMap<String, Wait>>);

#[derive(Debug, Clone, Copy)]
struct Wait {
    long: Duration,
    until: Instant,
}

impl Unanswered {
    /// Notes that nobody has answered, and returns how long to wait. Questions that were asked side
    /// by side count as one.
    pub fn pause(&self, url: &str) -> Duration {
        let now = Instant::now();
        let mut waits = self.lock();
        let before = waits.get(url).copied();
        let wait = match before {
            Some(wait) if now < wait.until => return wait.long,
            Some(wait) => (wait.long * 2).min(LONGEST),
            None => FIRST,
        };
        if before.is_none() && waits.len() >= MOST {
            // Nobody has asked about those for long.
            waits.retain(|_, wait| now < wait.until + LONGEST);
        }
        if before.is_some() || waits.len() < MOST {
            let until = now + wait;
            waits.insert(url.to_owned(), Wait { long: wait, until });
        }
        wait
    }

    /// Forgets a job about which somebody has answered.
    pub fn answered(&self, url: &str) {
        self.lock().remove(url);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Wait>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_gets_no_answer_asks_ever_more_rarely_until_there_is_one() {
        let unanswered = Unanswered::default();
        for seconds in [1, 2, 4, 8, 16, 32, 32] {
            let wait = unanswered.pause("u");
            assert_eq!(wait.as_secs(), seconds);
            // Another message of the same job, at the same time.
            assert_eq!(unanswered.pause("u"), wait);
            tokio::time::advance(wait).await;
        }
        assert_eq!(unanswered.pause("other"), FIRST);
        unanswered.answered("u");
        assert_eq!(unanswered.pause("u"), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_jobs_are_bounded() {
        let unanswered = Unanswered::default();
        for number in 0..=MOST {
            unanswered.pause(&number.to_string());
        }
        assert_eq!(unanswered.lock().len(), MOST);
        tokio::time::advance(FIRST + LONGEST).await;
        unanswered.pause("new");
        assert_eq!(unanswered.lock().len(), 1);
    }
}
