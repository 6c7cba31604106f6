//! Properties of the rounds of a job: it ends early, is taken up again, and everything is reported
//! again while reports of earlier rounds still arrive, in any order and batching.

use std::collections::BTreeSet;

use contract::rest::{Above, Tolerance};
use contract::{JobStatus, OnFailure, Step};
use proptest::prelude::*;

use super::tolerated::policies;
use super::{
    Chance, Event, Job, Model, Task, Truth, announced, failure, path as steps, report, tasks,
};
use crate::ledger::{ACTIVE_TASK, COMPLETE, Counts, Ledger, NodeRow, counts_in, keys_of, steps_of};
use crate::model::EventKind;

/// The number of the last round. None of its tasks fails.
const LAST: u32 = 4;

impl Job {
    /// Begins the next round, as [`round`](crate::round) does in a transaction.
    fn retry(&mut self) {
        self.totals.begin_round();
        let active: Vec<NodeRow> = self
            .rows
            .extract_if(.., |(_, chunk), _| *chunk == ACTIVE_TASK)
            .map(|(_, row)| row)
            .collect();
        for task in active {
            let parent = task.path.rsplit_once('.').map_or("", |(parent, _)| parent);
            let split = self.rows.get_mut(&(parent.to_owned(), 0)).unwrap();
            split.kept -= 1;
            split.open_sum -= i64::from(task.percent);
        }
        self.failures.clear();
        self.decision = None;
        let mut complete = vec![Vec::new()];
        for row in self.rows.values_mut() {
            if row.begin_round() {
                complete.push(steps_of(&row.path));
            }
        }
        let splits = || complete.iter().map(Vec::as_slice);
        let mut ledger = Ledger::new(self.totals.clone(), 0, 0);
        let mut keys = keys_of(splits());
        keys.push((String::new(), 0));
        ledger.load(self.load(&keys));
        let more = ledger.also_needed(splits());
        ledger.load(self.load(&more));
        ledger.conclude(&complete);
        self.save(ledger.finish());
    }
}

/// A job, what is still to be reported of each of its rounds, and what was counted.
struct Rounds {
    job: Job,
    round: u32,
    /// The events of each round that have not arrived yet.
    under_way: Vec<Vec<Event>>,
    /// Those that counted, with their rounds.
    counted: Vec<(u32, Event)>,
    /// Whether a task failed in this round before the job was done.
    has_failed: bool,
}

impl Rounds {
    fn new(task: &Task, on_failure: OnFailure, chance: &mut Chance) -> Self {
        let under_way = (1..=LAST).map(|round| {
            let (task, mut events) = (fails_anew(task, round, chance), Vec::new());
            report(&task, &mut Vec::new(), chance, &mut events);
            chance.shuffle(&mut events);
            events
        });
        Self {
            under_way: under_way.collect(),
            job: Job::new(on_failure),
            round: 1,
            counted: Vec::new(),
            has_failed: false,
        }
    }

    /// Lets some events arrive, of this round and of earlier ones. Returns whether there were any.
    fn arrive(&mut self, chance: &mut Chance, largest_batch: usize) -> bool {
        let mut batch = Vec::new();
        for _ in 0..=chance.below(largest_batch) {
            let rounds = self.round as usize;
            let at = match chance.below(3) {
                0 => chance.below(rounds),
                _ => rounds - 1,
            };
            let round = u32::try_from(at + 1).unwrap();
            batch.extend(self.under_way[at].pop().map(|event| (round, event)));
        }
        let passed = batch.iter();
        let passed = passed.filter(|(of, (_, kind))| counts_in(kind, *of, self.round));
        let events: Vec<Event> = passed.map(|(_, event)| event.clone()).collect();
        let (was_open, is_one) = (self.job.decision.is_none(), batch.len() == 1);
        self.count(batch);
        self.job.flush(&events);
        let model = self.model();
        if was_open && is_one {
            let outcome = model.outcome(self.job.totals.on_failure);
            assert_eq!(self.job.decision, outcome);
        }
        self.check(&model);
        self.under_way[..self.round as usize]
            .iter()
            .any(|events| !events.is_empty())
    }

    /// Returns whether the job cannot be taken up again.
    fn is_over(&self) -> bool {
        let has_failures = self.job.totals.failed_tasks > 0 && self.round < LAST;
        self.job.decision == Some(JobStatus::Completed) && !has_failures
    }

    /// Counts what has arrived, by rules of its own: whatever is done is done, and everything else
    /// is so only in its round. Of a Completed job, tasks that have failed can be done after all.
    fn count(&mut self, batch: Vec<(u32, Event)>) {
        let is_completed = self.job.decision == Some(JobStatus::Completed);
        let counted = self.counted.iter().map(|(_, event)| event);
        let done = counted.filter(|(_, kind)| matches!(kind, EventKind::Complete));
        let done: BTreeSet<Vec<u32>> = done.map(|(steps, _)| path(steps)).collect();
        for (round, (steps, kind)) in batch {
            let counts = match kind {
                EventKind::Complete => true,
                _ => round == self.round && !is_completed,
            };
            if !counts {
                continue;
            }
            let has_failed = matches!(kind, EventKind::Failed(_)) && !done.contains(&path(&steps));
            self.has_failed |= has_failed;
            self.counted.push((round, (steps, kind)));
        }
    }

    fn retry(&mut self) {
        let before = self.job.totals.clone();
        self.job.retry();
        (self.round, self.has_failed) = (self.round + 1, false);
        assert_eq!(self.job.totals.completed_items, before.completed_items);
        if before.percentage < COMPLETE {
            let now = self.job.totals.percentage;
            assert!(
                now >= before.percentage,
                "a round begins at {now}, and the one before has reached {}",
                before.percentage
            );
        }
        self.check(&self.model());
    }

    /// Returns the model of what was counted: what is done in all rounds, and what has failed in
    /// this one.
    fn model(&self) -> Model {
        let mut batches = BTreeSet::new();
        let counted = self.counted.iter().map(|(round, (steps, kind))| {
            let kind = match kind {
                // The subtasks that it shows stay known.
                EventKind::Failed(failure) if *round < self.round => {
                    let is_batch = failure.item.as_ref().is_some_and(|item| item.batch);
                    batches.extend(is_batch.then(|| path(steps)));
                    EventKind::Progress(1)
                }
                kind => kind.clone(),
            };
            (steps.clone(), kind)
        });
        let counted = counted.collect::<Vec<Event>>();
        let on_failure = self.job.totals.on_failure;
        let mut model = Model::of(&counted, on_failure);
        if on_failure.tolerance().is_some() {
            model.splits.extend(batches);
        }
        model.failed = model.failed.difference(&model.done).cloned().collect();
        model
    }

    fn check(&self, model: &Model) {
        let totals = &self.job.totals;
        assert_eq!(totals.completed_items, model.items(), "items");
        let failed = i64::try_from(model.failed.len()).unwrap();
        match self.job.decision {
            None | Some(JobStatus::Completed) => assert_eq!(totals.failed_tasks, failed),
            // The failures of a job that has failed stay, although their tasks may be done later.
            Some(_) => assert!(totals.failed_tasks >= failed),
        }
        match (self.job.decision, model.truth(&[])) {
            (Some(JobStatus::Completed), Truth::Done) => assert_eq!(failed, 0),
            (Some(JobStatus::Completed), truth) => {
                let tolerance = totals.on_failure.tolerance();
                let tolerated = tolerance.is_some_and(|it| model.are_tolerated(it));
                assert!(truth == Truth::Failed && tolerated, "not tolerated");
            }
            (Some(JobStatus::Failed), _) => {
                assert!(self.has_failed, "nothing has failed in this round");
            }
            (Some(_), _) => {}
            (None, truth) => assert!(truth != Truth::Done, "all is done"),
        }
    }
}

fn path(steps: &[Step]) -> Vec<u32> {
    steps.iter().map(|step| step.number).collect()
}

/// Returns the same tree with other tasks that fail.
fn fails_anew(task: &Task, round: u32, chance: &mut Chance) -> Task {
    match task {
        Task::Leaf { .. } => Task::Leaf {
            fails: round < LAST && chance.one_in(6),
        },
        Task::Split(children) => {
            let children = children
                .iter()
                .map(|child| fails_anew(child, round, chance));
            Task::Split(children.collect())
        }
    }
}

/// Generates jobs with a task table. A job whose own task is not split has none, and counts nothing
/// once it has ended.
fn splits() -> impl Strategy<Value = Task> {
    tasks().prop_map(|task| match task {
        Task::Leaf { .. } => Task::Split(vec![task]),
        Task::Split(_) => task,
    })
}

/// A later round may state more than the one before, or less: another version of the worker may
/// have repeated the split.
#[test]
fn job_stops_above_its_share_of_the_largest_number_of_items_that_any_round_states() {
    let total = |total, unsettled| Counts {
        total,
        unsettled,
        ..Counts::default()
    };
    let stopped = Some(JobStatus::Failed);
    let cases = [
        // In the first round, in the second one, what is then known, and how the job has ended.
        (None, None, total(6, 1), None),
        (None, Some(7), total(7, 0), stopped),
        (Some(7), None, total(7, 0), stopped),
        (Some(7), Some(200), total(200, 0), None),
        (Some(200), Some(7), total(200, 0), None),
    ];
    for (first, second, counts, decision) in cases {
        let on_failure = Tolerance {
            limit: "1%".parse().unwrap(),
            above: Above::Stop,
        };
        let mut job = Job::new(OnFailure::Tolerate(on_failure));
        job.flush(&[(steps("3*"), announced(1, first))]);
        job.flush(&[(steps("1.5"), EventKind::Complete)]);
        job.decision = Some(JobStatus::Cancelled);
        job.retry();
        job.flush(&[(steps("3*"), announced(1, second))]);
        assert_eq!(job.decision, None, "nothing has failed");
        job.flush(&[(steps("1.1"), EventKind::Failed(failure()))]);
        let found = (job.totals.counts, job.decision);
        assert_eq!(
            found,
            (Some(counts), decision),
            "{first:?}, then {second:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rounds_end_exactly_when_all_is_done_whatever_arrives_of_earlier_ones(
        task in splits(), seed: u64, on_failure in policies(), largest_batch in prop_oneof![Just(1usize), 1usize..30],
    ) {
        let mut chance = Chance(seed | 1);
        let mut rounds = Rounds::new(&task, on_failure, &mut chance);
        loop {
            let more = rounds.arrive(&mut chance, largest_batch);
            let is_open = rounds.job.decision.is_none();
            match rounds.job.decision {
                None if rounds.round < LAST && chance.one_in(8) => rounds.job.decision = Some(JobStatus::Cancelled),
                Some(_) if !rounds.is_over() && (!more || chance.one_in(3)) => rounds.retry(),
                _ if !more => break,
                _ => {}
            }
            prop_assert!(more || !is_open || rounds.job.decision.is_some(), "everything was reported, and nothing is decided");
        }
        prop_assert_eq!(rounds.job.decision, Some(JobStatus::Completed));
        prop_assert_eq!(rounds.job.totals.failed_tasks, 0);
    }
}
