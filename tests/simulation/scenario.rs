//! A scenario: a system, a job, and the faults of both. It is made from a seed, and made smaller
//! when it fails.

use std::time::Duration;

use batch_worker::BatchWorker;
use contract::rest::{Above, FailureLimit, Tolerance};
use contract::{OnFailure, TrackingShards};
use framework::config::Route;
use store::{ConditionPhase, FaultPoint};

use crate::blocks::{Blocks, End};
use crate::dependents;
use crate::disk::Kill;
use crate::faults::{AckFault, Action, Op, PublishFault, Who};

#[expect(
    clippy::struct_excessive_bools,
    reason = "each switches a part of the system on, whatever the others do"
)]
#[derive(Debug, Clone)]
pub struct Scenario {
    pub items: u64,
    pub route: Route,
    pub on_failure: OnFailure,
    /// Items whose number is divisible by this fail.
    pub failing: Option<u64>,
    /// Items whose number is divisible by this are done at their third attempt.
    pub retrying: Option<u64>,
    /// Items whose number is divisible by this are given up after their last attempt.
    pub hopeless: Option<u64>,
    /// Items send output, and tracking ends where it goes.
    pub output: bool,
    /// Items send output, and the service keeps it.
    pub kept: bool,
    /// Items whose number is divisible by this are done in the first round, and fail in later ones.
    pub worsening: Option<u64>,
    /// The time that an item takes.
    pub work: Duration,
    /// The system is one process with an embedded broker, which gathers what it writes for this
    /// long.
    pub embedded: Option<Duration>,
    /// Over how many shards of the tracking pipe jobs are spread.
    pub shards: TrackingShards,
    /// Processes of each role, and of each shard.
    pub processes: usize,
    pub concurrency: usize,
    pub prefetch: u32,
    /// Subtasks that a split sends in one message.
    pub bundle: u32,
    /// How many items may wait in their pipe: fewer than a split has, so that it stops and goes on.
    pub room: u64,
    /// Messages that a tracking worker takes at a time.
    pub flush: usize,
    /// Whether workers learn at once that a job has been completed, and discard its tasks.
    /// Otherwise they never do.
    pub checked: bool,
    /// How long workers rely on what they have read about a pause. `None`: they never learn of
    /// pauses.
    pub pauses_hold: Option<Duration>,
    /// The round from which on no item fails any more.
    pub mended: Option<u32>,
    /// The service keeps what is given up as dead letters, and the client sends them again at the
    /// end.
    pub letters: bool,
    /// Items that wait for a condition.
    pub blocks: Option<Blocks>,
    /// Jobs in a chain, each of which waits for the one before; the first waits for the job.
    pub dependents: u64,
    pub ops: Vec<Op>,
}

impl Default for Scenario {
    /// A small job without faults.
    fn default() -> Self {
        Self {
            items: 25,
            route: Route::Direct,
            on_failure: OnFailure::Stop,
            failing: None,
            retrying: None,
            hopeless: None,
            worsening: None,
            output: false,
            kept: false,
            work: Duration::from_millis(1),
            embedded: None,
            shards: TrackingShards::ONE,
            processes: 1,
            concurrency: 4,
            prefetch: 100,
            bundle: 100,
            room: BatchWorker::DEFAULT_DEPTH,
            flush: 1000,
            checked: false,
            pauses_hold: None,
            mended: None,
            letters: false,
            blocks: None,
            dependents: 0,
            ops: Vec::new(),
        }
    }
}

impl Scenario {
    pub fn from_seed(route: Route, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let items = dice.pick(&[1, 7, 10, 11, 40, 100, 101, 150]);
        let (failing, hopeless) = match dice.below(6) {
            0 => (Some(dice.between(1, 30)), None),
            1 => (None, Some(dice.between(1, 30))),
            2 => (Some(dice.between(2, 30)), Some(dice.between(2, 30))),
            _ => (None, None),
        };
        let mut scenario = Self {
            items,
            route,
            on_failure: dice.pick(&[OnFailure::Stop, OnFailure::Continue]),
            failing,
            retrying: dice.chance(3).then(|| dice.between(1, 20)),
            hopeless,
            worsening: None,
            output: dice.chance(2),
            kept: false,
            work: Duration::from_millis(dice.below(4)),
            embedded: None,
            shards: TrackingShards::ONE,
            processes: dice.pick(&[1, 1, 2, 3]),
            concurrency: dice.pick(&[1, 2, 8]),
            prefetch: dice.pick(&[1, 3, 10, 1000]),
            bundle: 1,
            room: BatchWorker::DEFAULT_DEPTH,
            flush: dice.pick(&[1, 5, 1000]),
            checked: dice.chance(2),
            pauses_hold: None,
            mended: None,
            letters: false,
            blocks: None,
            dependents: 0,
            ops: Vec::new(),
        };
        let count = dice.below(9);
        scenario.ops = (0..count).map(|_| op(&mut dice, items)).collect();
        if dice.chance(2) {
            scenario.pauses_hold = dice
                .pick(&[Some(0), Some(0), Some(7), Some(50), None])
                .map(Duration::from_millis);
            for _ in 0..dice.between(1, 3) {
                scenario.ops.extend(pause(&mut dice));
            }
        }
        // Last, so that older seeds keep their meaning.
        scenario.dependents = dice.pick(&[0, 0, 1, 3]);
        if dice.chance(3) {
            scenario.mended = dice.pick(&[None, Some(2), Some(2), Some(3)]);
            for _ in 0..dice.between(1, 3) {
                scenario.ops.extend(round(&mut dice));
            }
        }
        if scenario.output && dice.chance(3) {
            (scenario.output, scenario.kept) = (false, true);
            scenario.ops.extend(fault_of_outputs(&mut dice));
        }
        if dice.chance(3) {
            scenario.on_failure = OnFailure::Tolerate(tolerance(&mut dice, items));
        }
        scenario.add_late_reports(&mut dice);
        if scenario.hopeless.is_some() && scenario.worsening.is_none() && dice.chance(2) {
            scenario.add_letters(&mut dice);
        }
        if dice.chance(2) {
            scenario.add_blocks(&mut dice);
        }
        scenario.bundle = dice.pick(&[1, 2, 3, 100, 100, 100]);
        // If every item failed at first, the circuit breaker would let few of them run until the
        // tables of a failed job are gone.
        scenario.retrying = scenario.retrying.map(|every| every.max(2));
        if dice.chance(3) {
            scenario.embed(&mut dice);
        }
        if dice.chance(3) {
            scenario.shards = dice.pick(&[2, 3, 4].map(shards));
            // One job alone uses one shard.
            scenario.dependents = scenario.dependents.max(1);
        }
        scenario.room = dice.pick(&[1, 3, 7, scenario.room, scenario.room]);
        scenario
    }

    /// Makes one process of the system, with an embedded broker, and kills it now and then.
    fn embed(&mut self, dice: &mut Dice) {
        self.processes = 1;
        self.embedded = Some(Duration::from_millis(dice.between(0, 5)));
        // Reports take a while now. A letter that is sent again before its failure is counted may
        // be dropped with the end of the job.
        let is_replay = |op: &Op| matches!(op, Op::Client(Action::Replay, _));
        self.ops.retain(|op| !is_replay(op));
        for _ in 0..dice.between(1, 3) {
            let nth = u32::try_from(dice.between(1, 40)).unwrap_or(1);
            self.ops.push(Op::Kill(dice.pick(&Kill::ALL), nth));
        }
    }

    /// If the job is taken up again: lets reports of earlier rounds arrive late, and items fail
    /// that were done before.
    fn add_late_reports(&mut self, dice: &mut Dice) {
        let retried: Vec<Duration> = self.ops.iter().copied().filter_map(retry).collect();
        let Some(first) = retried.first() else { return };
        if dice.chance(2) {
            let from = first.saturating_sub(Duration::from_millis(dice.between(0, 60)));
            let time = Duration::from_millis(dice.pick(&[30, 100, 1000, 6000]));
            self.ops.push(Op::HoldReports(from, from + time));
        }
        // Only if every task of every round runs, it is certain what is done.
        if !self.checked && self.pauses_hold.is_none() {
            self.worsening = dice.chance(2).then(|| dice.between(1, 12));
        }
    }

    /// Keeps what is given up, and sends it again now and then.
    fn add_letters(&mut self, dice: &mut Dice) {
        self.letters = true;
        // What fails otherwise is no letter, so that a round in which only letters are sent again
        // does not mend it.
        self.failing = None;
        self.output = false;
        self.mended = dice.pick(&[None, Some(2), Some(2)]);
        for _ in 0..dice.below(3) {
            let moment = Duration::from_millis(dice.pick(&[3000, 3000, 6000]));
            let moment = moment + Duration::from_millis(dice.between(0, 200));
            self.ops.push(Op::Client(Action::Replay, moment));
        }
        let nth = u32::try_from(dice.between(1, 20)).unwrap_or(1);
        match dice.below(4) {
            0 => self
                .ops
                .push(Op::Publish(Who::Service, nth, publish_fault(dice))),
            1 => self
                .ops
                .push(Op::Ack(Who::Service, nth, AckFault::CrashBefore)),
            _ => {}
        }
    }

    /// Lets items wait for a condition, with faults while they do.
    fn add_blocks(&mut self, dice: &mut Dice) {
        let passes = Duration::from_millis(dice.pick(&[0, 30, 1500, 3000, 6500]));
        let passes = End::Passes(passes);
        let blocks = Blocks {
            every: dice.pick(&[1, 2, 3, 10]),
            end: match dice.pick(&[passes, passes, passes, End::Tests, End::Time, End::Person]) {
                // A round in which only letters are sent again would not mend what fails otherwise.
                _ if self.letters => passes,
                end => end,
            },
            returns: None,
            quota: dice.chance(4),
            silent: dice.chance(2),
            beside: false,
            many: false,
        };
        self.blocks = Some(blocks);
        let may_pass = matches!(blocks.end, End::Passes(_));
        if !may_pass {
            // The service fails these items, and sends no output for them.
            (self.output, self.kept) = (false, false);
        }
        let may_fail = self.failing.or(self.hopeless).or(self.worsening).is_some();
        if may_fail || !may_pass {
            // The end of the job would drop the tasks that wait.
            self.on_failure = match self.on_failure {
                OnFailure::Tolerate(tolerance) => OnFailure::Tolerate(Tolerance {
                    above: Above::Continue,
                    ..tolerance
                }),
                OnFailure::Stop | OnFailure::Continue => OnFailure::Continue,
            };
        }
        for _ in 0..dice.below(3) {
            let phases = [
                ConditionPhase::Testing,
                ConditionPhase::Releasing,
                ConditionPhase::Failing,
            ];
            let phase = dice.pick(&phases[..if may_pass { 2 } else { 3 }]);
            let moment = Duration::from_millis(dice.between(0, 8000));
            self.ops.push(Op::Client(Action::Condition(phase), moment));
        }
        for _ in 0..dice.below(4) {
            self.ops.push(fault_of_blocks(dice, self.items));
        }
    }

    /// Whether the item with this number waits for a condition, in this round and so long after the
    /// start.
    pub fn is_blocked(&self, number: u64, round: u32, after: Duration) -> bool {
        self.blocks.is_some_and(|blocks| match blocks.end {
            End::Passes(passes) => blocks.concern(number) && blocks.lasts(passes, after),
            _ => self.is_blocked_for_ever(number, round),
        })
    }

    fn is_blocked_for_ever(&self, number: u64, round: u32) -> bool {
        let waits =
            |blocks: &Blocks| blocks.concern(number) && !matches!(blocks.end, End::Passes(_));
        self.blocks.as_ref().is_some_and(waits) && self.may_fail(number, round)
    }

    /// Whether the item with this number is reported failed in the end of this round.
    pub fn fails(&self, number: u64, round: u32) -> bool {
        let is_hopeless = self.hopeless.is_some_and(|n| number.is_multiple_of(n));
        self.fails_untried(number, round) || (is_hopeless && self.may_fail(number, round))
    }

    /// Whether this item fails without having been given up by the worker.
    pub fn fails_untried(&self, number: u64, round: u32) -> bool {
        self.fails_at_once(number, round) || self.is_blocked_for_ever(number, round)
    }

    /// Whether the worker says at once that this item has failed.
    pub fn fails_at_once(&self, number: u64, round: u32) -> bool {
        let worse = self.worsening.filter(|_| round > 1);
        let mut failing = [self.failing, worse].into_iter().flatten();
        self.may_fail(number, round) && failing.any(|n| number.is_multiple_of(n))
    }

    fn may_fail(&self, number: u64, round: u32) -> bool {
        number != dependents::ITEM && !self.is_mended(round)
    }

    fn is_mended(&self, round: u32) -> bool {
        self.mended.is_some_and(|mended| round >= mended)
    }

    /// Returns a smaller scenario that still fails, found by leaving things out.
    pub fn shrink(mut self, fails: impl Fn(&Self) -> bool) -> Self {
        loop {
            let mut smaller: Vec<Self> = (0..self.ops.len())
                .map(|at| {
                    let mut ops = self.ops.clone();
                    ops.remove(at);
                    Self {
                        ops,
                        ..self.clone()
                    }
                })
                .collect();
            smaller.extend([
                Self {
                    bundle: 1,
                    ..self.clone()
                },
                Self {
                    room: BatchWorker::DEFAULT_DEPTH,
                    ..self.clone()
                },
                Self {
                    items: self.items / 2,
                    ..self.clone()
                },
                Self {
                    embedded: None,
                    ..self.clone()
                },
                Self {
                    shards: TrackingShards::ONE,
                    ..self.clone()
                },
                Self {
                    processes: 1,
                    ..self.clone()
                },
                Self {
                    failing: None,
                    ..self.clone()
                },
                Self {
                    retrying: None,
                    ..self.clone()
                },
                Self {
                    hopeless: None,
                    ..self.clone()
                },
                Self {
                    worsening: None,
                    ..self.clone()
                },
                Self {
                    output: false,
                    ..self.clone()
                },
                Self {
                    checked: false,
                    ..self.clone()
                },
                Self {
                    pauses_hold: self.pauses_hold.map(|_| Duration::ZERO),
                    ..self.clone()
                },
                Self {
                    dependents: 0,
                    ..self.clone()
                },
                Self {
                    kept: false,
                    ..self.clone()
                },
                Self {
                    mended: None,
                    ..self.clone()
                },
                Self {
                    letters: false,
                    ..self.clone()
                },
                Self {
                    blocks: None,
                    ..self.clone()
                },
                Self {
                    blocks: self.blocks.map(|blocks| Blocks {
                        returns: None,
                        quota: false,
                        silent: false,
                        beside: false,
                        many: false,
                        ..blocks
                    }),
                    ..self.clone()
                },
                Self {
                    on_failure: OnFailure::Stop,
                    ..self.clone()
                },
            ]);
            let is_smaller =
                |other: &Self| other.items > 0 && format!("{other:?}") != format!("{self:?}");
            match smaller.into_iter().filter(is_smaller).find(&fails) {
                Some(found) => self = found,
                None => return self,
            }
        }
    }
}

/// Returns this number of shards.
pub fn shards(number: u32) -> TrackingShards {
    TrackingShards::new(number).unwrap()
}

fn op(dice: &mut Dice, items: u64) -> Op {
    let role = dice.pick(&[Who::Service, Who::Batch, Who::Items, Who::Tracking]);
    let steps = if role == Who::Service {
        2
    } else {
        items + items / 5 + 2
    };
    // Several reports travel in one message, so a role may publish fewer messages than it makes
    // reports.
    let most = if dice.chance(2) { steps } else { steps.min(8) };
    let nth = u32::try_from(dice.between(1, most)).unwrap_or(1);
    let point = dice.pick(&[
        FaultPoint::Read,
        FaultPoint::Begin,
        FaultPoint::Commit,
        FaultPoint::Committed,
    ]);
    let early = u32::try_from(dice.between(1, 25)).unwrap_or(1);
    let moment = Duration::from_millis(dice.between(0, 120));
    match dice.below(12) {
        0..=4 => Op::Publish(role, nth, publish_fault(dice)),
        5..=6 => Op::Ack(
            role,
            if role == Who::Items { nth } else { early },
            dice.pick(&[AckFault::CrashBefore, AckFault::CrashAfter]),
        ),
        7 => Op::Store(point, early, u32::try_from(dice.below(12)).unwrap_or(1)),
        8 => Op::CrashTracking(point, early),
        9 => Op::Restart(role, moment),
        10 => Op::Client(dice.pick(&[Action::Cancel, Action::Delete]), moment),
        _ => Op::Client(Action::PutAgain(dice.between(1, 60)), moment),
    }
}

/// A pause, its end, and perhaps a fault of the service that parks the tasks meanwhile.
fn pause(dice: &mut Dice) -> Vec<Op> {
    let moment = dice.between(0, 120);
    let nth = u32::try_from(dice.between(1, 40)).unwrap_or(1);
    let mut ops = vec![
        Op::Client(Action::Pause, Duration::from_millis(moment)),
        Op::Client(
            Action::Resume,
            Duration::from_millis(moment + dice.between(0, 80)),
        ),
    ];
    match dice.below(5) {
        0 => ops.push(Op::Publish(Who::Service, nth, publish_fault(dice))),
        1 => ops.push(Op::Ack(
            Who::Service,
            nth,
            dice.pick(&[AckFault::CrashBefore, AckFault::CrashAfter]),
        )),
        2 => ops.push(Op::Restart(
            Who::Service,
            Duration::from_millis(moment + dice.between(0, 80)),
        )),
        _ => {}
    }
    ops
}

/// The job is taken up again, perhaps after it was cancelled. Most often soon, so that the earlier
/// round is still under way.
fn round(dice: &mut Dice) -> Vec<Op> {
    let within = dice.pick(&[60, 120, 120, 4000]);
    let moment = dice.between(0, within);
    let at = Duration::from_millis(moment + dice.pick(&[0, 1, 5, 30, 80, 3000]));
    let mut ops = Vec::new();
    if !dice.chance(3) {
        ops.push(Op::Client(Action::Cancel, Duration::from_millis(moment)));
    }
    ops.push(Op::Client(Action::Retry, at));
    match dice.below(8) {
        0 => ops.push(Op::Publish(Who::Service, 2, publish_fault(dice))),
        1 => ops.push(Op::Restart(Who::Service, at)),
        2 => ops.push(Op::Restart(Who::Tracking, at)),
        _ => {}
    }
    ops
}

/// Returns when the job is taken up again, if this does it.
fn retry(op: Op) -> Option<Duration> {
    match op {
        Op::Client(Action::Retry, at) => Some(at),
        _ => None,
    }
}

/// A number of failed items or a part of all, often near to what fails.
fn tolerance(dice: &mut Dice, items: u64) -> Tolerance {
    let limit = match dice.below(4) {
        0 => FailureLimit::Items(dice.between(0, 5)),
        1 => FailureLimit::Items(dice.between(0, items)),
        _ => {
            let percent = dice.pick(&[0, 1, 5, 10, 20, 33, 50, 100]);
            format!("{percent}%")
                .parse()
                .unwrap_or(FailureLimit::Items(0))
        }
    };
    let above = dice.pick(&[Above::Stop, Above::Continue]);
    Tolerance { limit, above }
}

/// Perhaps a fault of the processes that keep outputs.
fn fault_of_outputs(dice: &mut Dice) -> Option<Op> {
    let nth = u32::try_from(dice.between(1, 12)).unwrap_or(1);
    let crash = dice.pick(&[AckFault::CrashBefore, AckFault::CrashAfter]);
    let moment = Duration::from_millis(dice.between(0, 300));
    match dice.below(4) {
        0 => Some(Op::Publish(Who::Outputs, nth, publish_fault(dice))),
        1 => Some(Op::Ack(Who::Outputs, nth, crash)),
        2 => Some(Op::Restart(Who::Outputs, moment)),
        _ => None,
    }
}

/// A fault while items wait for a condition, or something that a client does then.
fn fault_of_blocks(dice: &mut Dice, items: u64) -> Op {
    let role = dice.pick(&[Who::Service, Who::Service, Who::Items, Who::Tracking]);
    let nth = u32::try_from(dice.between(1, items + 20)).unwrap_or(1);
    let crash = dice.pick(&[AckFault::CrashBefore, AckFault::CrashAfter]);
    let moment = Duration::from_millis(dice.between(0, 8000));
    let point = dice.pick(&[FaultPoint::Begin, FaultPoint::Commit, FaultPoint::Committed]);
    let late = u32::try_from(dice.between(1, 200)).unwrap_or(1);
    let actions = [
        Action::Pause,
        Action::Resume,
        Action::Cancel,
        Action::Retry,
        Action::Delete,
        Action::PutAgain(items.min(20)),
    ];
    match dice.below(8) {
        0 => Op::Publish(role, nth, publish_fault(dice)),
        1 => Op::Publish(Who::Items, nth, PublishFault::Again(moment)),
        2 | 3 => Op::Ack(role, nth, crash),
        4 => Op::Restart(role, moment),
        5 => Op::Store(point, late, u32::try_from(dice.below(12)).unwrap_or(1)),
        _ => Op::Client(dice.pick(&actions), moment),
    }
}

fn publish_fault(dice: &mut Dice) -> PublishFault {
    let delay = Duration::from_millis(dice.between(1, 300));
    dice.pick(&PublishFault::all(delay))
}

/// Random numbers from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap_or(0)]
    }
}
