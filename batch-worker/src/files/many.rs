//! Looks at many files: those elsewhere take long to answer, so several are asked at the same time.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::{Files, Pin};
use crate::SplitError;
use crate::reading::Reading;

/// How many files one split or check looks at at the same time. Each look has a thread of the
/// runtime that may block, of which there are some hundred.
const AT_ONCE: usize = 16;

impl Files {
    /// Returns what each of these files looks like now, in their order, or the error of the first
    /// one that has one.
    pub fn look_at_all(&self, names: Vec<String>) -> Result<Vec<(String, Pin)>, SplitError> {
        let files = self.clone();
        in_order(names, &self.reading, move |name| {
            files.reading.check()?;
            let pin = files.look(&name)?;
            Ok((name, pin))
        })
    }
}

/// Does work that blocks for each name, [`AT_ONCE`] of them at the same time. Blocks itself. Each
/// thread keeps the slot of the reading.
fn in_order<T: Send + 'static>(
    names: Vec<String>,
    reading: &Reading,
    work: impl Fn(String) -> Result<T, SplitError> + Send + Sync + 'static,
) -> Result<Vec<T>, SplitError> {
    if names.len() == 1 {
        return names.into_iter().map(work).collect();
    }
    let work = Arc::new(work);
    let mut done = Vec::with_capacity(names.len());
    let (mut names, mut begun) = (
        names.into_iter().peekable(),
        VecDeque::with_capacity(AT_ONCE),
    );
    loop {
        while names.peek().is_some() && begun.len() < AT_ONCE {
            let (work, reading) = (Arc::clone(&work), reading.clone());
            let name = names.next().unwrap_or_default();
            begun.push_back(spawn_blocking(move || {
                let _keeps_the_slot = reading;
                work(name)
            }));
        }
        let Some(first) = begun.pop_front() else {
            return Ok(done);
        };
        done.push(reading.wait(first)???);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn files_are_looked_at_several_at_a_time_and_answered_in_their_order() {
        // How many are under way, and the most that were.
        let under_way = Arc::new((Mutex::new((0, 0)), Condvar::new()));
        let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let work = {
            let under_way = Arc::clone(&under_way);
            move |name: String| {
                let (counts, changed) = &*under_way;
                let mut now = counts.lock().unwrap();
                now.0 += 1;
                now.1 = now.1.max(now.0);
                changed.notify_all();
                // The first ones wait for each other.
                let enough = |now: &mut (usize, usize)| now.1 < AT_ONCE;
                let limit = Duration::from_secs(20);
                let (mut now, _) = changed.wait_timeout_while(now, limit, enough).unwrap();
                now.0 -= 1;
                match name.as_str() {
                    "bad" => Err(SplitError::Missing(name)),
                    _ => Ok(name),
                }
            }
        };
        let work = Arc::new(work);
        let run = async |names: Vec<String>| {
            let work = Arc::clone(&work);
            let run = spawn_blocking(move || {
                in_order(names, &Reading::default(), move |name| work(name))
            });
            run.await.unwrap()
        };
        assert_eq!(run(names.clone()).await.unwrap(), names);
        assert_eq!(under_way.0.lock().unwrap().1, AT_ONCE);
        let mut names = names;
        names.insert(7, "bad".to_owned());
        let error = run(names).await.unwrap_err();
        assert!(matches!(error, SplitError::Missing(name) if name == "bad"));
    }
}
