//! The circuit breaker: a worker whose tasks fail one after another in the same way takes no more
//! of them. Off by default.
//!
//! It is for workers that do not say [`TaskError::unavailable`]. When as many attempts in a row as
//! are set, of tasks of at least two jobs, end with the same kind of error, the breaker trips. The
//! worker takes nothing then. The task with which it tripped is the *canary*: it runs again and
//! again in its slot, and others that fail in the same way wait in theirs. When any task succeeds,
//! or the canary ends in another way, all go on.
//!
//! What must stay true: no attempt is counted while the breaker is open, and a canary that never
//! ends makes way for another.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::meters::circuit;
use crate::{RetryPolicy, TaskError};

/// How often a canary runs before it makes way for another task: for a good minute.
const CANARY_RUNS: u32 = 10;
/// How long a kind of error may be, in characters.
const LONGEST_KIND: usize = 200;

/// The delays between the runs of a canary.
static DELAYS: RetryPolicy =
    RetryPolicy::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(30)).forever();

/// The breaker of a worker.
pub(crate) struct CircuitBreaker {
    circuit: Mutex<Circuit>,
    /// Whether a success changes anything, so that others need not take the lock.
    is_stirred: AtomicBool,
    changes: watch::Sender<()>,
    opened: Mutex<Option<Instant>>,
    open: Gauge,
    trips: Counter,
}

/// The place of a task in the circuit while it fails. When this is dropped, the task has left.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    breaker: &'a CircuitBreaker,
    number: u64,
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What would follow without a breaker.
    Fails,
    /// The task stays in its slot and runs again ([`Place::wait`]).
    Stays,
    /// The task goes back to its pipe, without an attempt being counted, and another becomes the
    /// canary.
    MakesWay,
}

impl CircuitBreaker {
    /// Returns the breaker of this worker, which trips after this many tries.
    pub fn of(worker: &str, tries: u32) -> Self {
        let (open, times_open) = circuit(worker);
        Self {
            circuit: Mutex::new(Circuit::new(tries)),
            is_stirred: AtomicBool::new(false),
            changes: watch::Sender::new(()),
            opened: Mutex::default(),
            open,
            trips: times_open,
        }
    }

    /// Returns why the worker takes nothing, while it does not.
    pub fn reason(&self) -> Option<String> {
        let is_stirred = self.is_stirred.load(Ordering::Relaxed);
        is_stirred.then(|| self.circuit().reason()).flatten()
    }

    /// Notes that an attempt has succeeded.
    pub fn succeed(&self) {
        if self.is_stirred.load(Ordering::Relaxed) {
            let mut circuit = self.circuit();
            let was_open = circuit.open.is_some();
            circuit.succeed();
            self.settle(circuit, was_open);
        }
    }

    /// Notes that an attempt has failed with an error after which the task runs again, and decides
    /// what follows.
    pub fn fail<'a>(
        &'a self,
        error: &TaskError,
        job: Option<&str>,
        place: &mut Option<Place<'a>>,
    ) -> Verdict {
        let kind = kind_of(error);
        let mut circuit = self.circuit();
        let was_open = circuit.open.is_some();
        let number = place
            .get_or_insert_with(|| Place {
                breaker: self,
                number: circuit.next(),
            })
            .number;
        let verdict = circuit.fail(&kind, job, number);
        self.settle(circuit, was_open);
        verdict
    }

    /// Tells the log and the metrics of a change, and those that wait.
    fn settle(&self, circuit: MutexGuard<'_, Circuit>, was_open: bool) {
        let reason = circuit.reason();
        let is_open = circuit.open.is_some();
        let is_stirred = is_open || circuit.streak.is_some();
        self.is_stirred.store(is_stirred, Ordering::Relaxed);
        drop(circuit);
        let mut opened = self.opened.lock();
        match (was_open, is_open) {
            (false, true) => {
                *opened = Some(Instant::now());
                self.open.set(1);
                self.trips.increment(1);
                warn!(
                    reason,
                    "the circuit breaker has tripped; the worker takes no tasks until one of them ends in another way"
                );
            }
            (true, false) => {
                let open_for = opened.take().map(|opened| opened.elapsed());
                self.open.set(0);
                info!(
                    ?open_for,
                    "the circuit breaker is closed; the worker takes tasks again"
                );
            }
            _ => {}
        }
        self.changes.send_replace(());
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock()
    }
}

impl Place<'_> {
    /// Waits until the task runs again: after a delay if it is the canary, else when the breaker
    /// closes or the task becomes the canary.
    pub async fn wait(&self) {
        let mut changes = self.breaker.changes.subscribe();
        loop {
            let turn = self.breaker.circuit().turn(self.number);
            match turn {
                Turn::Now => return,
                Turn::Canary(runs) => {
                    let delay = DELAYS.delay_after(runs, Duration::ZERO);
                    return sleep(delay.unwrap_or_default()).await;
                }
                Turn::Later => {
                    // The sender lives as long as the breaker.
                    let _ = changes.changed().await;
                }
            }
        }
    }

    /// Notes that the task has ended, neither with success nor with an error after which it runs
    /// again. If it is the canary, the breaker closes.
    pub fn end_otherwise(&self) {
        let mut circuit = self.breaker.circuit();
        let was_open = circuit.open.is_some();
        if circuit.is_canary(self.number) {
            circuit.succeed();
        }
        self.breaker.settle(circuit, was_open);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut circuit = self.breaker.circuit();
        let was_open = circuit.open.is_some();
        circuit.leave(self.number);
        self.breaker.settle(circuit, was_open);
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker").finish_non_exhaustive()
    }
}

/// Returns the kind of an error: its deepest cause, with all numbers alike.
fn kind_of(error: &TaskError) -> String {
    let mut kind = String::new();
    let mut in_number = false;
    for char in error.root().chars().take(LONGEST_KIND) {
        let is_digit = char.is_ascii_digit();
        if !is_digit {
            kind.push(char);
        } else if !in_number {
            kind.push('#');
        }
        in_number = is_digit;
    }
    kind
}

/// The state of a breaker. Pure.
#[derive(Debug)]
struct Circuit {
    tries: u32,
    streak: Option<Streak>,
    open: Option<Open>,
    last_number: u64,
}

/// Attempts that have failed in a row in the same way.
#[derive(Debug)]
struct Streak {
    kind: String,
    count: u32,
    job: Option<String>,
    is_of_several_jobs: bool,
}

/// The breaker has tripped.
#[derive(Debug)]
struct Open {
    kind: String,
    /// The place of the task that runs again; `None` until another one fails.
    canary: Option<u64>,
    /// How often it has failed since.
    runs: u32,
}

/// When a task runs again that stays in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The breaker is closed.
    Now,
    /// It is the canary and has failed so often.
    Canary(u32),
    /// Another one is the canary.
    Later,
}

impl Circuit {
    const fn new(tries: u32) -> Self {
        Self {
            tries,
            streak: None,
            open: None,
            last_number: 0,
        }
    }

    const fn next(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns why the worker takes nothing; `None` if it takes tasks, also to find another canary.
    fn reason(&self) -> Option<String> {
        let open = self.open.as_ref()?;
        open.canary?;
        let (tries, kind) = (self.tries, &open.kind);
        Some(format!(
            "{tries} attempts in a row have failed in the same way ({kind}); one task runs again until it ends in another way"
        ))
    }

    fn succeed(&mut self) {
        (self.streak, self.open) = (None, None);
    }

    fn fail(&mut self, kind: &str, job: Option<&str>, me: u64) -> Verdict {
        if let Some(open) = &mut self.open {
            if open.kind != kind {
                if open.canary == Some(me) {
                    self.succeed();
                    self.count(kind, job);
                }
                return Verdict::Fails;
            }
            match open.canary {
                Some(canary) if canary == me => {
                    open.runs += 1;
                    if open.runs >= CANARY_RUNS {
                        (open.canary, open.runs) = (None, 0);
                        return Verdict::MakesWay;
                    }
                }
                Some(_) => {}
                None => (open.canary, open.runs) = (Some(me), 1),
            }
            return Verdict::Stays;
        }
        if self.count(kind, job) {
            self.streak = None;
            self.open = Some(Open {
                kind: kind.to_owned(),
                canary: Some(me),
                runs: 1,
            });
            return Verdict::Stays;
        }
        Verdict::Fails
    }

    /// Counts a failed attempt. Returns whether there are enough of them.
    fn count(&mut self, kind: &str, job: Option<&str>) -> bool {
        let streak = self.streak.take().filter(|streak| streak.kind == kind);
        let streak = match streak {
            Some(streak) => Streak {
                count: streak.count.saturating_add(1),
                is_of_several_jobs: streak.is_of_several_jobs || streak.job.as_deref() != job,
                ..streak
            },
            None => Streak {
                kind: kind.to_owned(),
                count: 1,
                job: job.map(str::to_owned),
                is_of_several_jobs: false,
            },
        };
        let is_enough = streak.count >= self.tries && streak.is_of_several_jobs;
        self.streak = Some(streak);
        is_enough
    }

    /// Decides when a task runs again. One that waits becomes the canary if there is none.
    fn turn(&mut self, me: u64) -> Turn {
        let Some(open) = &mut self.open else {
            return Turn::Now;
        };
        match open.canary {
            Some(canary) if canary == me => Turn::Canary(open.runs),
            Some(_) => Turn::Later,
            None => {
                (open.canary, open.runs) = (Some(me), 1);
                Turn::Canary(1)
            }
        }
    }

    fn is_canary(&self, me: u64) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.canary == Some(me))
    }

    /// Forgets a task that has left its slot.
    fn leave(&mut self, me: u64) {
        if let Some(open) = &mut self.open
            && open.canary == Some(me)
        {
            (open.canary, open.runs) = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to a circuit of three tries.
    #[derive(Debug, Clone, Copy)]
    enum Act {
        /// A task in this place, of this job, fails with this kind of error.
        Fail(u64, &'static str, &'static str, Verdict),
        Succeed,
        Leave(u64),
        /// A task that stays asks for its turn.
        Ask(u64, Turn),
    }

    #[test]
    fn the_breaker_trips_after_tries_in_a_row_of_one_kind_and_two_jobs_and_closes_with_a_success() {
        use Act::{Ask, Fail, Leave, Succeed};
        use Verdict::{Fails, MakesWay, Stays};
        let runs: Vec<Act> = (2..CANARY_RUNS)
            .map(|_| Fail(3, "a", "down", Stays))
            .collect();
        let trip = [
            Fail(1, "a", "down", Fails),
            Fail(2, "a", "down", Fails),
            Fail(3, "b", "down", Stays),
        ];
        let stories: &[(&str, Vec<Act>, bool)] = &[
            ("three in a row of two jobs", trip.to_vec(), true),
            (
                "one job alone",
                (1..9).map(|n| Fail(n, "a", "down", Fails)).collect(),
                false,
            ),
            (
                "the second job comes late",
                (1..9)
                    .map(|n| Fail(n, "a", "down", Fails))
                    .chain([Fail(9, "b", "down", Stays)])
                    .collect(),
                true,
            ),
            (
                "a success in between",
                vec![trip[0], trip[1], Succeed, Fail(3, "b", "down", Fails)],
                false,
            ),
            (
                "another kind in between",
                vec![
                    trip[0],
                    trip[1],
                    Fail(3, "b", "full", Fails),
                    Fail(4, "a", "down", Fails),
                ],
                false,
            ),
            (
                "a success closes it",
                [&trip[..], &[Succeed, Ask(3, Turn::Now)]].concat(),
                false,
            ),
            (
                "others of the kind wait, and those of another fail",
                [
                    &trip[..],
                    &[
                        Fail(4, "a", "down", Stays),
                        Ask(4, Turn::Later),
                        Fail(5, "a", "full", Fails),
                        Ask(3, Turn::Canary(1)),
                    ],
                ]
                .concat(),
                true,
            ),
            (
                "the canary fails in another way",
                [&trip[..], &[Fail(3, "b", "full", Fails)]].concat(),
                false,
            ),
            (
                "a canary makes way, and one that waits follows",
                [
                    &trip[..],
                    &[Fail(4, "a", "down", Stays)],
                    &runs,
                    &[
                        Fail(3, "a", "down", MakesWay),
                        Leave(3),
                        Ask(4, Turn::Canary(1)),
                    ],
                ]
                .concat(),
                true,
            ),
            (
                "a canary makes way, and the next one that fails follows at once",
                [
                    &trip[..],
                    &runs,
                    &[
                        Fail(3, "a", "down", MakesWay),
                        Leave(3),
                        Fail(7, "c", "down", Stays),
                    ],
                ]
                .concat(),
                true,
            ),
            (
                "a canary that is gone is followed by one that waits",
                [
                    &trip[..],
                    &[
                        Fail(4, "a", "down", Stays),
                        Leave(3),
                        Ask(4, Turn::Canary(1)),
                    ],
                ]
                .concat(),
                true,
            ),
            (
                "without a canary it takes tasks",
                [&trip[..], &[Leave(3)]].concat(),
                false,
            ),
        ];
        for (name, acts, takes_nothing) in stories {
            let mut circuit = Circuit::new(3);
            for (n, act) in acts.iter().enumerate() {
                match *act {
                    Fail(me, job, kind, verdict) => {
                        assert_eq!(circuit.fail(kind, Some(job), me), verdict, "{name}, {n}");
                    }
                    Succeed => circuit.succeed(),
                    Leave(me) => circuit.leave(me),
                    Ask(me, turn) => assert_eq!(circuit.turn(me), turn, "{name}, {n}"),
                }
            }
            assert_eq!(circuit.reason().is_some(), *takes_nothing, "{name}");
        }
    }

    #[test]
    fn errors_are_of_one_kind_if_their_deepest_causes_differ_in_numbers_only() {
        let io = |code| TaskError::from(std::io::Error::from_raw_os_error(code));
        assert_eq!(kind_of(&io(111)), "Connection refused (os error #)");
        let retry = |text: &str| kind_of(&TaskError::retry(text));
        assert_eq!(retry("page 17 of 300"), retry("page 4 of 9"));
        assert_ne!(retry("page 17"), retry("line 17"));
        assert_eq!(retry(&"é".repeat(1000)).chars().count(), LONGEST_KIND);
    }
}
