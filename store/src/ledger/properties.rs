//! Properties of the ledger: for any tree, order, repetition and batching of events, its totals are
//! those of a model that keeps every task in a map.

mod tolerated;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contract::{Announced, FailedItem, JobStatus, OnFailure, ReportFailure, SourceDigest, Step};
use proptest::prelude::*;

use self::tolerated::{fail_a_split, policies};
use super::{
    ACTIVE_TASK, COMPLETE, Counts, JobTotals, Ledger, NodeKey, NodeRow, Outcome, PERCENT,
    SplitCounts, keys_of,
};
use crate::model::EventKind;

mod rounds;

type Event = (Vec<Step>, EventKind);

/// A task as it really is. The last subtask of a split is the final one.
#[derive(Debug, Clone)]
enum Task {
    Leaf { fails: bool },
    Split(Vec<Task>),
}

impl Task {
    /// Returns what the splitter of this task can state: the number of its sub-batches, and of the
    /// items below.
    fn announced(&self) -> (u32, u64) {
        let Self::Split(children) = self else {
            return (0, 1);
        };
        let (last, parts) = children.split_last().unwrap();
        let batches = parts.iter().filter(|part| matches!(part, Self::Split(_)));
        let items: u64 = parts.iter().map(|part| part.announced().1).sum();
        let of_last = match last {
            Self::Leaf { .. } => 0,
            Self::Split(_) => last.announced().1,
        };
        (u32::try_from(batches.count()).unwrap(), items + of_last)
    }
}

fn tasks() -> impl Strategy<Value = Task> {
    let leaf = prop::bool::weighted(0.15).prop_map(|fails| Task::Leaf { fails });
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop::collection::vec(inner, 1..=6).prop_map(Task::Split)
    })
}

/// Generates splits that are wide enough to need several rows.
fn wide_tasks() -> impl Strategy<Value = Task> {
    (4000usize..9000, prop::bool::ANY).prop_map(|(width, nested)| {
        let wide = Task::Split(vec![Task::Leaf { fails: false }; width]);
        if nested {
            Task::Split(vec![wide, Task::Leaf { fails: false }])
        } else {
            wide
        }
    })
}

/// A random generator that a seed repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % n.max(1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

fn failure() -> ReportFailure {
    ReportFailure {
        failure_id: Some("BROKEN".to_owned()),
        ..ReportFailure::default()
    }
}

/// Adds the events that workers report of a tree, some of them more than once.
fn report(task: &Task, way: &mut Vec<Step>, chance: &mut Chance, events: &mut Vec<Event>) {
    if chance.one_in(4) {
        events.push((
            way.clone(),
            EventKind::Progress(u8::try_from(chance.below(101)).unwrap()),
        ));
    }
    if chance.one_in(5) {
        let attempts = i32::try_from(chance.below(4)).unwrap();
        events.push((way.clone(), EventKind::Started { attempts }));
    }
    if chance.one_in(5) {
        let attempts = Some(i32::try_from(chance.below(4)).unwrap());
        events.push((
            way.clone(),
            EventKind::Retry {
                attempts,
                failure: chance.one_in(2).then(failure),
            },
        ));
    }
    match task {
        Task::Leaf { fails } => {
            let kind = if *fails {
                EventKind::Failed(ReportFailure {
                    item: Some(FailedItem {
                        batch: chance.one_in(20),
                        ..FailedItem::default()
                    }),
                    ..failure()
                })
            } else {
                EventKind::Complete
            };
            for _ in 0..=chance.below(3) / 2 {
                events.push((way.clone(), kind.clone()));
            }
            // The same task, named without its star.
            if chance.one_in(4) {
                let plain = way
                    .iter()
                    .map(|step| Step {
                        last: false,
                        ..*step
                    })
                    .collect();
                events.push((plain, kind));
            }
        }
        Task::Split(children) => {
            let is_stated = chance.one_in(2);
            let knows_items = chance.one_in(2);
            let size = children.len();
            for (at, child) in children.iter().enumerate() {
                way.push(Step {
                    number: u32::try_from(at + 1).unwrap(),
                    last: at + 1 == size,
                });
                if at + 1 == size && chance.one_in(2) {
                    events.push((way.clone(), EventKind::Progress(0)));
                }
                if at + 1 == size && is_stated {
                    let (batches, items) = task.announced();
                    let items = knows_items.then_some(items);
                    let mut kind = announced(batches, items);
                    if let EventKind::Announced { digest, .. } = &mut kind {
                        *digest = chance.one_in(2).then_some(SourceDigest([7; 32]));
                    }
                    events.push((way.clone(), kind));
                }
                report(child, way, chance, events);
                way.pop();
            }
        }
    }
}

/// A job with a task table in a map.
struct Job {
    totals: JobTotals,
    rows: BTreeMap<NodeKey, NodeRow>,
    failures: HashMap<String, String>,
    active: bool,
    decision: Option<JobStatus>,
    leaves_work: bool,
}

impl Job {
    fn new(on_failure: OnFailure) -> Self {
        Self {
            totals: JobTotals::new(on_failure),
            rows: BTreeMap::new(),
            failures: HashMap::new(),
            active: false,
            decision: None,
            leaves_work: false,
        }
    }

    fn load(&self, keys: &[NodeKey]) -> Vec<NodeRow> {
        keys.iter()
            .filter_map(|key| self.rows.get(key).cloned())
            .collect()
    }

    fn flush(&mut self, events: &[Event]) {
        if self.decision == Some(JobStatus::Completed) && self.totals.failed_tasks == 0 {
            return;
        }
        let steps = || events.iter().map(|(steps, _)| steps.as_slice());
        let mut ledger = Ledger::new(self.totals.clone(), 100, 0);
        if let Some(status) = self.decision {
            ledger = ledger.of_ended_job(status);
        }
        ledger.load(self.load(&keys_of(steps())));
        let more = ledger.also_needed(steps());
        ledger.load(self.load(&more));
        let mut kept = self.failures.clone();
        let among = ledger.failed_among(steps());
        kept.retain(|path, _| among.contains(path));
        ledger.load_kept(kept);
        for (steps, kind) in events {
            ledger.apply(steps, kind);
        }
        self.save(ledger.finish());
    }

    fn save(&mut self, outcome: Outcome) {
        for path in &outcome.nodes.pruned {
            let below = format!("{path}.");
            self.rows
                .retain(|(other, _), _| other != path && !other.starts_with(&below));
        }
        self.rows
            .retain(|(path, _), _| !outcome.nodes.gone.contains(path));
        for path in outcome.nodes.inactive {
            self.rows.remove(&(path, ACTIVE_TASK));
        }
        self.rows.extend(
            outcome
                .nodes
                .rows
                .into_iter()
                .map(|row| ((row.path.clone(), row.chunk), row)),
        );
        for path in outcome.gone_failures {
            self.failures.remove(&path);
        }
        let kind = |failure: ReportFailure| failure.failure_id.unwrap_or_default();
        self.failures.extend(
            outcome
                .new_failures
                .into_iter()
                .map(|kept| (kept.path, kind(kept.failure))),
        );
        self.active |= outcome.active;
        self.leaves_work |= outcome.leaves_work;
        let before = self.decision;
        self.decision = before.or(outcome.decision.map(|(status, _)| status));
        self.check_percentage(outcome.totals.percentage);
        if before.is_some() {
            assert_eq!(outcome.totals.percentage, self.totals.percentage);
        }
        self.totals = outcome.totals;
    }

    fn check_percentage(&self, now: i32) {
        assert!(
            now >= self.totals.percentage,
            "the percentage fell from {} to {now}",
            self.totals.percentage
        );
        assert!((0..=COMPLETE).contains(&now));
        assert_eq!(now == COMPLETE, self.decision == Some(JobStatus::Completed));
    }

    fn run(
        on_failure: OnFailure,
        events: &[Event],
        chance: &mut Chance,
        largest_batch: usize,
    ) -> Self {
        let mut job = Self::new(on_failure);
        let mut rest = events;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at((1 + chance.below(largest_batch)).min(rest.len()));
            let was_open = job.decision.is_none();
            job.flush(batch);
            rest = later;
            if was_open && job.decision == Some(JobStatus::Failed) {
                let seen = &events[..events.len() - rest.len()];
                let model = Model::of(seen, on_failure);
                assert_eq!(model.outcome(on_failure), job.decision);
                model.check_what_is_left(&job, batch);
            }
        }
        assert!(!job.leaves_work || job.decision == Some(JobStatus::Failed));
        job
    }
}

/// Every task in a map, with the rules of the design. It sees all events at once, so their order
/// cannot matter.
#[derive(Default)]
struct Model {
    done: BTreeSet<Vec<u32>>,
    failed: BTreeSet<Vec<u32>>,
    under_way: BTreeSet<Vec<u32>>,
    retrying: BTreeSet<Vec<u32>>,
    sizes: BTreeMap<Vec<u32>, u32>,
    /// The highest subtask of each split that an event names.
    tops: BTreeMap<Vec<u32>, u32>,
    /// What is stated of splits: the number of sub-batches, and of items; of each the largest.
    stated: BTreeMap<Vec<u32>, (u32, Option<u64>)>,
    splits: BTreeSet<Vec<u32>>,
    /// Whether anything but another attempt is reported.
    has_begun: bool,
}

#[derive(PartialEq, Clone, Copy)]
enum Truth {
    Open,
    Done,
    Failed,
}

impl Model {
    fn of(events: &[Event], on_failure: OnFailure) -> Self {
        let mut model = Self::default();
        for (steps, kind) in events {
            let path: Vec<u32> = steps.iter().map(|step| step.number).collect();
            for (depth, step) in steps.iter().enumerate().filter(|(_, step)| step.last) {
                model.sizes.insert(path[..depth].to_vec(), step.number);
                model
                    .splits
                    .extend((0..=depth).map(|depth| path[..depth].to_vec()));
            }
            let size_only = matches!(kind, EventKind::Progress(0) | EventKind::Announced { .. });
            let last = steps.iter().rposition(|step| step.last);
            let seen = if size_only {
                last.map_or(0, |last| last + 1)
            } else {
                path.len()
            };
            for depth in 0..seen {
                let top = model.tops.entry(path[..depth].to_vec()).or_default();
                *top = path[depth].max(*top);
            }
            if let EventKind::Announced { stated, .. } = kind
                && let Some(Announced { batches, items }) = stated
            {
                let split = path[..path.len() - 1].to_vec();
                let known = model.stated.entry(split).or_default();
                *known = (known.0.max(*batches), known.1.max(*items));
            }
            if size_only {
                continue;
            }
            model
                .splits
                .extend((0..path.len()).map(|depth| path[..depth].to_vec()));
            model.has_begun |= !matches!(kind, EventKind::Retry { .. });
            match kind {
                EventKind::Complete => model.done.insert(path),
                EventKind::Failed(failure) => {
                    let is_batch = failure.item.as_ref().is_some_and(|item| item.batch);
                    if is_batch && !path.is_empty() && on_failure.tolerance().is_some() {
                        model.splits.insert(path.clone());
                    }
                    model.failed.insert(path)
                }
                EventKind::Progress(_) | EventKind::Started { .. } => model.under_way.insert(path),
                EventKind::Retry { .. } => {
                    model.retrying.insert(path.clone());
                    model.under_way.insert(path)
                }
                EventKind::Announced { .. } => unreachable!(),
            };
        }
        model
    }

    fn truth(&self, path: &[u32]) -> Truth {
        if self.done.contains(path) {
            return Truth::Done;
        }
        if self.failed.contains(path) {
            return Truth::Failed;
        }
        let Some(size) = self.sizes.get(path) else {
            return Truth::Open;
        };
        let child = |number| self.truth(&[path, &[number]].concat());
        let children: Vec<Truth> = (1..=*size).map(child).collect();
        match () {
            () if children.contains(&Truth::Open) => Truth::Open,
            () if children.contains(&Truth::Failed) => Truth::Failed,
            () => Truth::Done,
        }
    }

    fn is_final(&self, path: &[u32]) -> bool {
        let (own, parent) = path.split_last().unwrap();
        self.sizes.get(parent) == Some(own)
    }

    fn items(&self) -> i64 {
        i64::try_from(
            self.done
                .iter()
                .filter(|path| path.is_empty() || !self.is_final(path))
                .count(),
        )
        .unwrap()
    }

    /// Returns what a split that is not done adds to the counts above it.
    fn counts(&self, split: &[u32]) -> Counts {
        let size = self.sizes.get(split).copied();
        let top = self.tops.get(split).copied().unwrap_or_default();
        let (mut sum, mut opened) = (Counts::default(), 0);
        for number in 1..=size.unwrap_or(top) {
            let path = [split, &[number]].concat();
            let is_split = self.splits.contains(&path) && !self.done.contains(&path);
            opened += i64::from(is_split && size != Some(number));
            let below = match self.truth(&path) {
                Truth::Done => Counts {
                    total: if is_split { self.items_below(&path) } else { 0 },
                    ..Counts::default()
                },
                _ if is_split => self.counts(&path),
                Truth::Open if self.under_way.contains(&path) => {
                    Counts::of_active_task(self.retrying.contains(&path))
                }
                _ => Counts::default(),
            };
            sum = sum + below;
        }
        let stated = self.stated.get(split);
        let batches = stated.map_or(0, |(batches, _)| i64::from(*batches));
        let slots = i64::from(size.map_or(top, |size| size - 1));
        sum.total += slots - batches.max(opened);
        sum.unsettled += (batches - opened).max(0) + i64::from(stated.is_none());
        if let Some((_, Some(items))) = stated {
            sum.total = sum.total.max(i64::try_from(*items).unwrap());
            sum.unsettled = 0;
        }
        sum
    }

    fn items_below(&self, split: &[u32]) -> i64 {
        let below = self.done.iter().filter(|path| path.starts_with(split));
        i64::try_from(below.filter(|path| !self.is_final(path)).count()).unwrap()
    }

    /// Returns how the job must have ended, if it must.
    fn outcome(&self, on_failure: OnFailure) -> Option<JobStatus> {
        match (self.truth(&[]), on_failure) {
            (_, OnFailure::Stop) if !self.failed.is_empty() => Some(JobStatus::Failed),
            _ if self.failed.contains(&vec![]) => Some(JobStatus::Failed),
            (Truth::Failed, OnFailure::Tolerate(tolerance)) if self.are_tolerated(tolerance) => {
                Some(JobStatus::Completed)
            }
            (_, OnFailure::Tolerate(tolerance)) if self.has_stopped(tolerance) => {
                Some(JobStatus::Failed)
            }
            (Truth::Open, _) => None,
            (Truth::Done, _) => Some(JobStatus::Completed),
            (Truth::Failed, _) => Some(JobStatus::Failed),
        }
    }

    fn check(&self, job: &Job) {
        // The first decision holds. A job may have exceeded its share of failures before a final
        // subtask turned out to be a split, so that nobody knows the number of items any more.
        let outcome = self.outcome(job.totals.on_failure);
        if outcome.is_some() || job.decision != Some(JobStatus::Failed) {
            assert_eq!(job.decision, outcome);
        }
        assert_eq!(job.totals.completed_items, self.items(), "items");
        assert_eq!(
            job.totals.failed_tasks,
            i64::try_from(self.failed.len()).unwrap(),
            "failed tasks"
        );
        assert_eq!(
            job.totals.failure_counts.values().sum::<i64>(),
            job.totals.failed_tasks
        );
        assert_eq!(
            job.totals.failed_splits,
            self.failed_splits(),
            "failed splits"
        );
        assert_eq!(job.active, self.has_begun);
        if outcome != Some(JobStatus::Completed) {
            self.check_rows(job);
            let counts = self.splits.contains(&vec![]).then(|| self.counts(&[]));
            assert_eq!(job.totals.counts, counts);
        }
    }

    /// Checks that there is a row for every open split, and that all other rows are active tasks or
    /// further chunks.
    fn check_rows(&self, job: &Job) {
        let numbers = |path: &str| -> Vec<u32> {
            path.split('.')
                .filter(|n| !n.is_empty())
                .map(|n| n.parse().unwrap())
                .collect()
        };
        // Found once, because the truth of a split is found by looking at each of its subtasks.
        let is_done = |split: &&Vec<u32>| self.truth(split) == Truth::Done;
        let done: BTreeSet<&[u32]> = self.splits.iter().filter(is_done).map(|it| &**it).collect();
        let is_open = |path: &[u32]| {
            (0..=path.len()).all(|depth| match &path[..depth] {
                split if self.splits.contains(split) => !done.contains(split),
                task => self.truth(task) != Truth::Done,
            })
        };
        for (path, chunk) in job.rows.keys() {
            let path = numbers(path);
            assert!(is_open(&path), "a row of {path:?}, which is done");
            if *chunk == ACTIVE_TASK {
                assert!(
                    self.under_way.contains(&path)
                        && !self.splits.contains(&path)
                        && !self.failed.contains(&path),
                    "{path:?}"
                );
            } else {
                assert!(self.splits.contains(&path), "{path:?} is no split");
            }
        }
        for split in self.splits.iter().filter(|path| is_open(path)) {
            let row = &job.rows[&(super::path_of(split.iter().copied()), 0)];
            let children = |of: &BTreeSet<Vec<u32>>| {
                of.iter()
                    .filter(|path| path.split_last().is_some_and(|(_, p)| p == split))
                    .count()
            };
            let done = row.done_count.unsigned_abs() as usize;
            assert!(done >= children(&self.done), "{split:?}");
            assert_eq!(
                row.size,
                self.sizes
                    .get(split)
                    .map(|size| i32::try_from(*size).unwrap())
            );
        }
    }
}

/// Runs the same events twice, in different orders and batches. Both runs must agree with the model
/// and with each other.
fn check(task: &Task, seed: u64, on_failure: OnFailure, lost: usize, largest_batch: usize) {
    let mut chance = Chance(seed | 1);
    let mut events = Vec::new();
    report(task, &mut Vec::new(), &mut chance, &mut events);
    if chance.one_in(4) {
        fail_a_split(task, &mut chance, &mut events);
    }
    chance.shuffle(&mut events);
    // Some events have not arrived yet.
    events.truncate(events.len() - events.len() * lost / 100);
    let model = Model::of(&events, on_failure);
    let first = Job::run(on_failure, &events, &mut chance, largest_batch);
    model.check(&first);
    if chance.one_in(2) {
        // Final subtasks before the others.
        events.sort_by_key(|(steps, _)| {
            std::cmp::Reverse(steps.last().is_some_and(|step| step.last))
        });
    } else {
        chance.shuffle(&mut events);
    }
    let second = Job::run(on_failure, &events, &mut chance, largest_batch);
    model.check(&second);
    if first.decision != Some(JobStatus::Completed) {
        let rows = |job: &Job| {
            job.rows
                .values()
                .cloned()
                .map(without_attempts)
                .collect::<Vec<_>>()
        };
        assert_eq!(rows(&first), rows(&second));
        assert_eq!(first.failures, second.failures);
    }
}

/// Returns a row without what depends on the order of events: times, and the number of attempts,
/// because those of a task that has ended are not counted.
fn without_attempts(row: NodeRow) -> NodeRow {
    let counts = row.detail.as_deref().filter(|_| row.chunk == 0);
    let counts = counts.map(|counts| {
        let mut counts: SplitCounts = serde_json::from_str(counts).unwrap();
        counts.retried = 0;
        serde_json::to_string(&counts).unwrap()
    });
    NodeRow {
        since: None,
        detail: counts.or(row.detail),
        ..row
    }
}

fn path(text: &str) -> Vec<Step> {
    let step = |step: &str| Step {
        number: step.trim_end_matches('*').parse().unwrap(),
        last: step.ends_with('*'),
    };
    text.split('.').map(step).collect()
}

const fn announced(batches: u32, items: Option<u64>) -> EventKind {
    EventKind::Announced {
        stated: Some(Announced { batches, items }),
        digest: None,
    }
}

#[test]
fn split_that_is_reported_complete_as_a_whole_counts_as_one_item() {
    let mut job = Job::new(OnFailure::Stop);
    job.flush(&[(path("2.6*"), announced(0, None))]);
    job.flush(&[(path("2.4"), EventKind::Progress(10))]);
    let counts = |total, running| Counts {
        total,
        // Whether the subtasks of the job are items is not stated.
        unsettled: 1,
        retrying: 0,
        running,
    };
    assert_eq!(job.totals.counts, Some(counts(6, 1)));
    job.flush(&[(path("2"), EventKind::Complete)]);
    assert_eq!(job.totals.counts, Some(counts(2, 0)));
}

/// The example in the module head of the ledger.
#[test]
fn counters_move_as_in_the_worked_example() {
    let mut job = Job::new(OnFailure::Stop);
    let mut flush = |task: &str, kind: EventKind| {
        job.flush(&[(path(task), kind)]);
        let row = &job.rows[&(String::new(), 0)];
        let counters = (row.size, row.top, row.done_count, row.kept);
        let sums = (row.open_sum / PERCENT, row.items, job.totals.percentage);
        (counters, sums)
    };
    assert_eq!(
        flush("1", EventKind::Complete),
        ((None, 1, 1, 0), (0, 1, 5000))
    );
    assert_eq!(
        flush("2", EventKind::Progress(40)),
        ((None, 2, 1, 1), (40, 1, 5000))
    );
    assert_eq!(
        flush("2.1", EventKind::Complete),
        ((None, 2, 1, 1), (50, 2, 5000))
    );
    assert_eq!(
        flush("2.2*", EventKind::Complete),
        ((None, 2, 2, 0), (0, 2, 6667))
    );
    flush("3*", EventKind::Complete);
    assert_eq!(job.decision, Some(JobStatus::Completed));
    assert_eq!(
        (job.totals.percentage, job.totals.completed_items),
        (COMPLETE, 2)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn totals_agree_with_the_model_in_any_order_repetition_and_batching(
        task in tasks(), seed: u64, on_failure in policies(), lost in prop_oneof![Just(0usize), 0usize..60], largest_batch in 1usize..30,
    ) {
        check(&task, seed, on_failure, lost, largest_batch);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5))]

    #[test]
    fn totals_agree_with_the_model_for_splits_of_thousands(task in wide_tasks(), seed: u64, lost in prop_oneof![Just(0usize), 0usize..60]) {
        check(&task, seed, OnFailure::Continue, lost, 3000);
    }
}
