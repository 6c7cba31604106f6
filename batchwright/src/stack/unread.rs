//! Drops results in the embedded broker that nobody reads, and reports it in the log and the health
//! checks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use framework::broker::embedded::{DroppedOutputs, Embedded};
use framework::health::Health;
use framework::supervision::supervise;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::roles::RunningRole;

/// The time between two looks when not much is published. Also how long after a drop the process is
/// degraded.
const INTERVAL: Duration = Duration::from_mins(10);
/// The name of the degradation.
const NAME: &str = "unread-results";
/// How many pipes the degradation names.
const NAMED: usize = 3;

/// The pipes whose results were dropped: how many, and when last.
type Dropped = BTreeMap<Arc<str>, (u64, Instant)>;

/// Returns a role that looks at the start, whenever much is published to pipes without consumers,
/// and now and then.
pub fn unread(broker: Arc<Embedded>, health: Health, stop: CancellationToken) -> RunningRole {
    Box::pin(async move {
        let look = || look_repeatedly(&broker, &health);
        stop.run_until_cancelled(supervise(&health, "unread results", &stop, look))
            .await;
        Ok(())
    })
}

/// Runs until the broker is closed.
async fn look_repeatedly(broker: &Embedded, health: &Health) {
    let mut all = Dropped::new();
    while let Ok(dropped) = broker.drop_unread().await {
        tell(&mut all, dropped, health);
        // Reports only that the time is over.
        let _ = timeout(INTERVAL, broker.unread_grew()).await;
    }
}

/// Reports dropped results: each pipe once in the log, and the number of each pipe in the health
/// checks as long as results are dropped.
fn tell(all: &mut Dropped, dropped: Vec<DroppedOutputs>, health: &Health) {
    let now = Instant::now();
    for DroppedOutputs { pipe, count } in dropped {
        if !all.contains_key(&pipe) {
            warn!(
                %pipe, count,
                "nobody reads this pipe: its oldest results are dropped (--max-unread, --max-unread-age). Read it, or keep the outputs of the job"
            );
        }
        let (total, last) = all.entry(pipe).or_insert((0, now));
        *total += count;
        *last = now;
    }
    let recent = all
        .iter()
        .filter(|(_, (_, last))| now.duration_since(*last) < INTERVAL);
    let mut named: Vec<String> = recent
        .map(|(pipe, (count, _))| format!("{count} of {pipe}"))
        .collect();
    if named.is_empty() {
        return health.recover(NAME, NAME);
    }
    if named.len() > NAMED {
        let others = format!("more of {} other pipes", named.len() - NAMED);
        named.truncate(NAMED);
        named.push(others);
    }
    let reason = format!(
        "results are dropped because nobody reads their pipes: {}. Read them, or keep the outputs of the jobs",
        named.join(", ")
    );
    health.degrade(NAME, NAME, reason);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(pipe: &str, count: u64) -> DroppedOutputs {
        DroppedOutputs {
            pipe: pipe.into(),
            count,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn process_is_degraded_while_results_are_dropped_and_names_pipes_and_numbers() {
        let (health, mut all) = (Health::default(), Dropped::new());
        tell(&mut all, Vec::new(), &health);
        assert_eq!(health.degradations(), []);
        tell(&mut all, vec![dropped("a", 2), dropped("b", 3)], &health);
        tell(&mut all, vec![dropped("a", 5)], &health);
        let [trouble] = &health.degradations()[..] else {
            panic!("{:?}", health.degradations())
        };
        assert_eq!(trouble.name, "unread-results");
        let expected = "results are dropped because nobody reads their pipes: 7 of a, 3 of b. Read";
        assert!(trouble.reason.starts_with(expected), "{}", trouble.reason);
        tell(
            &mut all,
            vec![dropped("c", 1), dropped("d", 1), dropped("e", 1)],
            &health,
        );
        let reason = health.degradations()[0].reason.clone();
        assert!(
            reason.contains("1 of c, more of 2 other pipes."),
            "{reason}"
        );
        tokio::time::advance(INTERVAL).await;
        tell(&mut all, Vec::new(), &health);
        assert_eq!(health.degradations(), []);
    }
}
