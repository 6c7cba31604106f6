//! Properties of the rounds of a job: it ends early, is taken up again, and everything is reported again while reports of earlier
//! rounds still arrive, in any order and batching.

use contract::{JobStatus, OnFailure};
use proptest::prelude::*;

use super::{Chance, Event, Job, Model, Task, Truth, report, tasks};
use crate::ledger::{ACTIVE_TASK, Ledger, NodeRow, counts_in, keys_of, steps_of};
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
        let counts = |(round, (_, kind)): &(u32, Event)| counts_in(kind, *round, self.round);
        batch.retain(counts);
        let done = self.model().done;
        self.has_failed |= batch.iter().any(|(_, (steps, kind))| {
            let path: Vec<u32> = steps.iter().map(|step| step.number).collect();
            matches!(kind, EventKind::Failed(_)) && !done.contains(&path)
        });
        let events: Vec<Event> = batch.iter().map(|(_, event)| event.clone()).collect();
        if self.job.decision != Some(JobStatus::Completed) {
            self.counted.extend(batch);
        }
        self.job.flush(&events);
        self.check();
        self.under_way[..self.round as usize]
            .iter()
            .any(|events| !events.is_empty())
    }

    fn retry(&mut self) {
        let before = self.job.totals.clone();
        self.job.retry();
        (self.round, self.has_failed) = (self.round + 1, false);
        assert_eq!(self.job.totals.completed_items, before.completed_items);
        self.check();
    }

    /// Returns the model of what was counted: what is done in all rounds, and what has failed in this one.
    fn model(&self) -> Model {
        let counted = self.counted.iter().map(|(round, (steps, kind))| {
            let kind = match kind {
                // The size that it shows stays known.
                EventKind::Failed(_) if *round < self.round => EventKind::Progress(0),
                kind => kind.clone(),
            };
            (steps.clone(), kind)
        });
        Model::of(&counted.collect::<Vec<Event>>(), OnFailure::Continue)
    }

    fn check(&self) {
        let (model, totals) = (self.model(), &self.job.totals);
        assert_eq!(totals.completed_items, model.items(), "items");
        let failed = model.failed.difference(&model.done).count();
        let failed = i64::try_from(failed).unwrap();
        match self.job.decision {
            None => assert_eq!(totals.failed_tasks, failed),
            // The failures of a job that has ended stay, although their tasks may be done later.
            Some(_) => assert!(totals.failed_tasks >= failed),
        }
        match self.job.decision {
            Some(JobStatus::Completed) => {
                assert!(model.truth(&[]) == Truth::Done && totals.failed_tasks == 0);
            }
            Some(JobStatus::Failed) => assert!(self.has_failed, "nothing has failed in this round"),
            Some(_) => {}
            None => assert!(model.truth(&[]) != Truth::Done, "all is done"),
        }
    }
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

/// Generates jobs with a task table. A job whose own task is not split has none, and counts nothing once it has ended.
fn splits() -> impl Strategy<Value = Task> {
    tasks().prop_map(|task| match task {
        Task::Leaf { .. } => Task::Split(vec![task]),
        Task::Split(_) => task,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn rounds_end_exactly_when_all_is_done_whatever_arrives_of_earlier_ones(
        task in splits(), seed: u64, on_failure in prop_oneof![Just(OnFailure::Stop), Just(OnFailure::Continue)], largest_batch in 1usize..30,
    ) {
        let mut chance = Chance(seed | 1);
        let mut rounds = Rounds::new(&task, on_failure, &mut chance);
        loop {
            let more = rounds.arrive(&mut chance, largest_batch);
            let is_open = rounds.job.decision.is_none();
            match rounds.job.decision {
                None if rounds.round < LAST && chance.one_in(8) => rounds.job.decision = Some(JobStatus::Cancelled),
                Some(JobStatus::Failed | JobStatus::Cancelled) if !more || chance.one_in(3) => rounds.retry(),
                _ if !more => break,
                _ => {}
            }
            prop_assert!(more || !is_open || rounds.job.decision.is_some(), "everything was reported, and nothing is decided");
        }
        prop_assert_eq!(rounds.job.decision, Some(JobStatus::Completed));
        prop_assert_eq!(rounds.job.totals.failed_tasks, 0);
    }
}
