//! Items of the simulated job that wait for a condition: the worker blocks them until it has
//! passed, and the service keeps them, tests the condition, and sends them again.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::rest::Job;
use contract::{
    Announced, Condition, ConditionCode, JobTaskId, PAUSED_PIPE, PartitionId, Tester, blocked_pipe,
};
use framework::broker::Broker as _;
use framework::internals::waiting_in;
use framework::{Context, RetryPolicy, TaskError};
use job_service::ConditionPace;
use store::internals::waiting_blocks;
use store::{
    ConditionPhase, ConditionQuery, ConditionRow, EventKind, JobRequest, StoreOptions,
    TrackingEvent,
};

use crate::dependents;
use crate::faults::{Action, Op, Who};
use crate::item_worker::ItemWorker;
use crate::rounds::round_of;
use crate::simulation::{Put, Simulation, job_id, lock};

/// The pace of the simulated services.
pub const PACE: ConditionPace = ConditionPace {
    test_interval: SECOND,
    canary_limit: Duration::from_secs(3),
    // Much more than a canary.
    first_release: 8,
    most_released: 16,
};
const SECOND: Duration = Duration::from_secs(1);
/// How many tasks the quota allows. So many run before the condition has passed.
const QUOTA: u32 = 5;
/// The tests, and the seconds, after which a condition with limits is given up.
const TESTS: u32 = 3;
const LASTS: Duration = Duration::from_secs(5);
/// The seconds between two looks of a person who gives the condition up.
const PERSON_LOOKS: u32 = 7;
/// How often a silent canary runs again, once a second. A service that crashes keeps others from
/// the condition for a minute.
const MOST_SILENCES: u32 = 300;
/// How many conditions there are, if there are many, and how many of these there may be.
const CONDITIONS: u64 = 5;
const MOST_CONDITIONS: u64 = 2;
/// How many of the tasks that wait a fault, or a client, brings to their worker at the most: a new
/// canary, and its copies.
const SENT_BY_FAULT: usize = 3;

/// Which items wait, and for how long.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each switches something on, whatever the others do"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Items whose number is divisible by this wait.
    pub every: u64,
    pub end: End,
    /// The time after the start in which the condition is there once more.
    pub returns: Option<(Duration, Duration)>,
    /// Whether a quota tests the condition. Otherwise a canary does.
    pub quota: bool,
    /// Whether the first item that comes back runs on until another one has passed. A canary is
    /// silent then.
    pub silent: bool,
    /// Whether other jobs wait for the condition, too.
    pub beside: bool,
    /// Whether the items wait for [`CONDITIONS`] conditions, more than there may be.
    pub many: bool,
}

/// How the condition ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It passes this long after the start.
    Passes(Duration),
    /// It never passes; its policy allows a few tests.
    Tests,
    /// It never passes; its policy allows a few seconds.
    Time,
    /// It never passes, and its policy has no limit. A person gives it up.
    Person,
}

impl Blocks {
    /// Returns whether an item waits for the condition.
    pub const fn concern(&self, number: u64) -> bool {
        number.is_multiple_of(self.every) && number != dependents::ITEM
    }

    /// Returns how many conditions there may be.
    pub const fn most_conditions(self) -> u64 {
        if self.many {
            MOST_CONDITIONS
        } else {
            StoreOptions::DEFAULT_CONDITIONS
        }
    }

    /// Returns the condition that the item with this number waits for.
    fn condition(&self, number: u64) -> Condition {
        let policy = RetryPolicy::constant(SECOND).forever();
        let policy = match self.end {
            // It would end after the simulation.
            End::Passes(_) => policy.within(Duration::from_hours(2)),
            End::Tests => policy.attempts(TESTS + 1),
            End::Time => policy.within(LASTS),
            End::Person => policy,
        };
        let tester = if self.quota {
            Tester::Quota {
                partition: gate(),
                jobs: None,
                tasks: Some(QUOTA),
            }
        } else {
            Tester::Canary
        };
        let part = if self.many { number % CONDITIONS } else { 0 };
        Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
            .tested_by(tester)
            .and_then(|condition| condition.policy(policy))
            .and_then(|condition| condition.parameter("part", part.to_string()))
            .unwrap()
    }

    /// Whether the condition is there so long after the start, if it passes.
    pub fn lasts(&self, passes: Duration, after: Duration) -> bool {
        let is_back = |(from, until)| (from..until).contains(&after);
        after < passes || self.returns.is_some_and(is_back)
    }

    /// Returns how many of the items may be sent while the condition is there, without faults: one
    /// for each test by a canary, and the release in the middle of which it returns.
    fn most_sent(&self) -> usize {
        let tests = match self.end {
            _ if self.quota => 0,
            End::Passes(after) => after.as_secs() + 1,
            End::Tests => u64::from(TESTS),
            End::Time => LASTS.as_secs(),
            End::Person => u64::from(PERSON_LOOKS) + 1,
        };
        let again = self.returns.map_or(0, |(from, until)| {
            until.saturating_sub(from).as_secs() + 1 + u64::from(PACE.most_released)
        });
        // Those above the bound have one in common.
        let conditions = if self.many { MOST_CONDITIONS + 1 } else { 1 };
        usize::try_from(tests * conditions + again).unwrap_or(usize::MAX)
    }
}

/// What the items have seen of the condition, by incarnation and number.
#[derive(Debug, Default)]
pub struct Seen {
    /// How often each was blocked.
    blocked: BTreeMap<(String, u64), u32>,
    /// Those that were not blocked any more, and how long after the start first.
    passed: BTreeMap<(String, u64), Duration>,
    /// Whether tasks have waited together because there were as many conditions as there may be.
    too_many: bool,
    /// How often one was blocked that had waited before.
    again: usize,
    silences: u32,
    broken: Vec<String>,
}

impl Seen {
    /// Returns how often an item was blocked, and when it was not any more.
    pub fn of_item(&self, key: &(String, u64)) -> (u32, Option<Duration>) {
        let blocked = self.blocked.get(key).copied().unwrap_or(0);
        (blocked, self.passed.get(key).copied())
    }

    /// Returns whether other items of this incarnation have waited, and none of them has passed.
    fn others_wait(&self, incarnation: &str, number: u64) -> bool {
        let is_other = |key: &&(String, u64)| key.0 == incarnation && key.1 != number;
        self.blocked.keys().any(|key| is_other(&key))
            && !self.passed.keys().any(|key| is_other(&key))
    }
}

tokio::task_local! {
    /// Set while the simulation looks at the store: that is no step of the system, and meets no
    /// fault.
    static LOOKING: ();
}

/// Whether the simulation looks at the store just now.
pub fn is_looking() -> bool {
    LOOKING.try_with(|()| ()).is_ok()
}

impl ItemWorker {
    /// Notes if the message of an item that runs still waits in the store, or one from before it.
    pub async fn look_for_copy(&self, number: u64, ctx: &Context) {
        let task = ctx.job_task_id().and_then(|id| JobTaskId::parse(id).ok());
        let Some(task) = task.filter(|_| ctx.blocks() > 0) else {
            return;
        };
        let waiting = waiting_blocks(&self.store, &task);
        let waiting = LOOKING.scope((), waiting).await.unwrap_or_default();
        if waiting.iter().any(|blocks| *blocks <= ctx.blocks()) {
            let broken = format!(
                "item {number} runs after block {}, and {waiting:?} of it wait",
                ctx.blocks()
            );
            lock(&self.seen).broken.push(broken);
        }
    }

    /// Blocks an item that waits for the condition.
    pub fn wait(&self, (incarnation, number): (&str, u64), ctx: &Context) -> Result<(), TaskError> {
        let Some(blocks) = self.scenario.blocks.filter(|it| it.concern(number)) else {
            return Ok(());
        };
        let (key, mut seen) = ((incarnation.to_owned(), number), lock(&self.seen));
        let round = round_of(ctx.job_task_id());
        if self
            .scenario
            .is_blocked(number, round, self.start.elapsed())
        {
            if ctx.attempt() > 1 {
                let broken =
                    format!("an attempt of item {number} was counted, which has only waited");
                seen.broken.push(broken);
            }
            seen.again += usize::from(ctx.blocks() > 0);
            *seen.blocked.entry(key).or_default() += 1;
            let error = TaskError::blocked(blocks.condition(number));
            return Err(waiting_in(error, blocked_pipe(PAUSED_PIPE)));
        }
        // Nobody follows a canary of a job that was deleted, and its worker may not learn that.
        let elapsed = self.start.elapsed();
        let is_deleted = self.scenario.ops.iter().any(|op| {
            matches!(op, Op::Client(Action::Delete | Action::PutAgain(_), at) if *at <= elapsed)
        });
        let is_silent = blocks.silent && number == blocks.every && ctx.blocks() > 0 && !is_deleted;
        if is_silent && seen.others_wait(incarnation, number) {
            if seen.silences < MOST_SILENCES {
                seen.silences += 1;
                return Err(TaskError::snooze(SECOND));
            }
            if !self
                .scenario
                .ops
                .iter()
                .any(|op| matches!(op, Op::Client(..)))
            {
                let broken = format!("no other item has followed the silent canary {number}");
                seen.broken.push(broken);
            }
        }
        seen.passed.entry(key).or_insert(self.start.elapsed());
        Ok(())
    }
}

/// The partition whose quota is used up.
fn gate() -> PartitionId {
    PartitionId::parse("gate").unwrap()
}

impl Simulation {
    /// Lets a job use up the quota until the condition passes.
    pub async fn keep_gate(&self) -> Result<(), String> {
        let Some(blocks) = self.0.scenario.blocks.filter(|blocks| blocks.quota) else {
            return Ok(());
        };
        let (store, request) = (&self.0.store, JobRequest::new(gate(), job_id().clone()));
        let start = |_: &_| ("worker-gate-in".to_owned(), b"{}".to_vec());
        self.insist(|| store.create_job(&request, start)).await?;
        let last = format!("{}*", QUOTA + 1);
        let size = EventKind::Announced {
            stated: Some(Announced {
                batches: 0,
                items: None,
            }),
            digest: None,
        };
        let mut events = vec![
            event_of_gate(&last, size),
            event_of_gate(&last, EventKind::Complete),
        ];
        let runs =
            |number: u32| event_of_gate(&number.to_string(), EventKind::Started { attempts: 0 });
        events.extend((1..=QUOTA).map(runs));
        self.insist(|| store.record(&events)).await?;
        if let End::Passes(after) = blocks.end {
            let simulation = self.clone();
            self.0.tasks.spawn(async move {
                tokio::time::sleep_until(simulation.0.start + after).await;
                drop(simulation.open_gate().await);
            });
        }
        Ok(())
    }

    /// Frees the quota.
    pub async fn open_gate(&self) -> Result<(), String> {
        let (store, gate) = (&self.0.store, gate());
        let deleted = self.insist(|| store.delete_job(&gate, job_id()));
        deleted.await.map(drop)
    }

    /// Does what a person asks of the condition.
    pub async fn steer_condition(&self, phase: ConditionPhase) -> Result<(), String> {
        let Some(blocks) = self.0.scenario.blocks else {
            return Ok(());
        };
        let (store, key) = (&self.0.store, blocks.condition(0).key());
        let steered = self.insist(|| store.command_condition(&key, phase));
        steered.await.map(drop)
    }

    /// Gives the condition up, now and then, if a person does that.
    pub async fn look_at_condition(&self, second: u32) -> Result<(), String> {
        match self.0.scenario.blocks {
            Some(Blocks {
                end: End::Person, ..
            }) if second % PERSON_LOOKS == PERSON_LOOKS - 1 => {
                self.steer_condition(ConditionPhase::Failing).await
            }
            _ => Ok(()),
        }
    }

    /// Returns how many tasks wait or are on their way to where they wait, and the conditions that
    /// are left.
    pub async fn left_of_blocks(&self) -> Option<String> {
        self.0.scenario.blocks?;
        let (parts, mut left) = (&self.0, Vec::new());
        let pipe = blocked_pipe(PAUSED_PIPE);
        let depth = parts.pipes.depth(&pipe).await.unwrap_or(u64::MAX);
        if depth > 0 {
            left.push(format!("{depth} in {pipe}"));
        }
        match self.conditions().await {
            Ok(rows) => left.extend(rows.iter().map(|row| format!("a condition: {row:?}"))),
            Err(error) => left.push(error),
        }
        (!left.is_empty()).then(|| left.join(", "))
    }

    async fn conditions(&self) -> Result<Vec<ConditionRow>, String> {
        let query = ConditionQuery {
            limit: 10,
            ..ConditionQuery::default()
        };
        let found = self.0.store.conditions(&query).await;
        found.map_err(|error| error.to_string())
    }

    /// Compares what the job says of its tasks that wait with what the conditions say.
    pub async fn compare_blocks(&self, job: &Job) {
        let Some(blocks) = self.0.scenario.blocks else {
            return;
        };
        if job.status.is_finished() {
            return;
        }
        let store = &self.0.store;
        let partition = crate::simulation::partition();
        let (Ok(rows), Ok(Some(job))) = (
            self.conditions().await,
            store.job(partition, job_id()).await,
        ) else {
            return;
        };
        let of_job = job.blocked.map_or(0, |blocked| blocked.tasks);
        let by_job = of_job + self.blocked_beside().await;
        let waiting = |rows: &[ConditionRow]| rows.iter().map(|row| row.waiting).sum::<u64>();
        let by_conditions = waiting(&rows);
        // Something may have changed between these reads.
        let again = self.conditions().await;
        if again.is_ok_and(|again| waiting(&again) != by_conditions) {
            return;
        }
        let is_common =
            |row: &&ConditionRow| *row.condition.code() == ConditionCode::TOO_MANY_CONDITIONS;
        let common = rows.iter().filter(is_common).count();
        lock(&self.0.seen).too_many |= common > 0;
        let own = (rows.len() - common) as u64;
        if own > blocks.most_conditions() {
            let broken = format!("there are {own} conditions");
            lock(&self.0.seen).broken.push(broken);
        }
        if by_conditions != by_job {
            let broken = format!("{by_conditions} tasks wait, and the job says {by_job}");
            lock(&self.0.seen).broken.push(broken);
        }
    }

    /// Returns what does not hold of the tasks that have waited.
    pub fn check_blocks(&self, put: &Put, job: &Job) -> Vec<String> {
        let scenario = &self.0.scenario;
        let Some(blocks) = scenario.blocks else {
            return Vec::new();
        };
        let seen = lock(&self.0.seen);
        let mut broken = seen.broken.clone();
        let most = blocks.most_sent()
            + SENT_BY_FAULT * (scenario.ops.len() + usize::from(scenario.letters));
        let steered = |to| {
            scenario
                .ops
                .iter()
                .any(|op| matches!(op, Op::Client(Action::Condition(phase), _) if *phase == to))
        };
        let by_person = steered(ConditionPhase::Failing);
        if seen.again > most && !steered(ConditionPhase::Releasing) {
            broken.push(format!(
                "{} items were sent before the condition had passed, not {most} at the most",
                seen.again
            ));
        }
        if blocks.many && !seen.too_many && scenario.ops.is_empty() {
            broken.push("no task has waited for the condition that there are too many".to_owned());
        }
        let repeats = scenario.embedded.is_some() || scenario.ops.iter().any(repeats);
        if !scenario.letters && !repeats {
            broken.extend(self.0.faults.sent_twice());
        }
        let runs_twice = scenario.retrying.or(scenario.hopeless).is_some() || blocks.silent;
        if scenario.ops.is_empty() && !runs_twice {
            broken.extend(self.check_runs(blocks, put, &seen));
        }
        let code = ConditionCode::DATABASE_NOT_AVAILABLE;
        for failure in &job.failures {
            let text = failure.failure_message.as_deref().unwrap_or_default();
            let is_given_up = failure.failure_id.as_deref() == Some(code.as_str());
            if is_given_up && !by_person && !blocks.is_at_its_end(text) {
                broken.push(format!("a task was given up too early: {text}"));
            }
        }
        broken
    }

    /// Compares how often each item has run with how often it was blocked.
    fn check_runs(&self, blocks: Blocks, put: &Put, seen: &Seen) -> Option<String> {
        let executed = lock(&self.0.executed);
        let of = |number| (put.task_id(), number);
        let runs_on = u32::from(matches!(blocks.end, End::Passes(_)));
        let wrong: Vec<_> = (1..=put.items)
            .filter(|number| blocks.concern(*number))
            .map(|number| {
                let key = of(number);
                let times = |map: &BTreeMap<_, u32>| map.get(&key).copied().unwrap_or(0);
                (number, times(&executed), times(&seen.blocked))
            })
            .filter(|(_, runs, blocked)| *runs != blocked + runs_on)
            .collect();
        (!wrong.is_empty())
            .then(|| format!("items, how often they have run, and were blocked: {wrong:?}"))
    }
}

impl Blocks {
    /// Returns whether the policy is at its end when a task fails with this text.
    fn is_at_its_end(self, text: &str) -> bool {
        let number_before = |unit: &str| {
            let before = text.split(unit).next().unwrap_or_default();
            before
                .rsplit(' ')
                .next()
                .and_then(|number| number.parse::<u32>().ok())
        };
        match self.end {
            End::Passes(_) => false,
            End::Person => true,
            End::Tests => number_before(" test").is_some_and(|tests| tests >= TESTS),
            // The next test would be after the end.
            End::Time => number_before(" s and ")
                .is_some_and(|lasted| u64::from(lasted) + 1 >= LASTS.as_secs()),
        }
    }
}

/// Returns whether a fault may lead to a message of the service being sent again. A task that was
/// parked is sent again as well.
const fn repeats(op: &Op) -> bool {
    matches!(
        op,
        Op::Publish(Who::Service, ..)
            | Op::Ack(Who::Service, ..)
            | Op::Restart(Who::Service, _)
            | Op::Store(..)
            | Op::CrashTracking(..)
            | Op::Client(Action::Pause | Action::Resume, _)
    )
}

fn event_of_gate(path: &str, kind: EventKind) -> TrackingEvent {
    let id = format!("{}:{}.{path}", gate(), job_id());
    TrackingEvent {
        task: JobTaskId::parse(&id).unwrap(),
        kind,
    }
}
