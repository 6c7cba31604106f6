//! Which failures the model tolerates, and what a failed job leaves.

use contract::rest::{Above, FailureLimit, Tolerance};
use contract::{FailedItem, OnFailure, ReportFailure, Step};
use proptest::prelude::*;

use super::{Chance, Event, Job, Model, Task, Truth};
use crate::model::EventKind;

pub fn policies() -> impl Strategy<Value = OnFailure> {
    let limit = prop_oneof![
        (0u32..6).prop_map(|items| items.to_string()),
        (0u32..101).prop_map(|percent| format!("{percent}%")),
    ];
    let above = prop_oneof![Just(Above::Stop), Just(Above::Continue)];
    let tolerating = (limit, above).prop_map(|(limit, above)| {
        let limit = limit.parse().unwrap();
        OnFailure::Tolerate(Tolerance { limit, above })
    });
    prop_oneof![
        Just(OnFailure::Stop),
        Just(OnFailure::Continue),
        tolerating.boxed()
    ]
}

/// Lets a splitter below the job fail before it comes to its end: its last subtask is never
/// reported.
pub fn fail_a_split(task: &Task, chance: &mut Chance, events: &mut Vec<Event>) {
    let (mut path, mut task, mut failing) = (Vec::new(), task, None);
    while let Task::Split(children) = task {
        if !path.is_empty() && (failing.is_none() || chance.one_in(2)) {
            failing = Some((path.clone(), children.len()));
        }
        let at = chance.below(children.len());
        path.push(Step {
            number: u32::try_from(at + 1).unwrap(),
            last: at + 1 == children.len(),
        });
        task = &children[at];
    }
    let Some((way, size)) = failing else { return };
    let numbers = |steps: &[Step]| -> Vec<u32> { steps.iter().map(|step| step.number).collect() };
    let mut last = numbers(&way);
    last.push(u32::try_from(size).unwrap());
    events.retain(|(steps, _)| !numbers(steps).starts_with(&last));
    let failure = ReportFailure {
        item: Some(FailedItem {
            batch: true,
            ..FailedItem::default()
        }),
        ..ReportFailure::default()
    };
    events.push((way, EventKind::Failed(failure)));
}

impl Model {
    pub fn failed_items(&self) -> i64 {
        let is_item = |path: &&Vec<u32>| {
            !path.is_empty() && !self.splits.contains(*path) && !self.is_final(path)
        };
        i64::try_from(self.failed.iter().filter(is_item).count()).unwrap()
    }

    /// Returns how many failed tasks below the job's own are no items.
    pub fn failed_splits(&self) -> i64 {
        let own = i64::from(self.failed.contains(&vec![]));
        i64::try_from(self.failed.len()).unwrap() - own - self.failed_items()
    }

    /// Returns whether a job of which every task is done or has failed is Completed.
    pub fn are_tolerated(&self, tolerance: Tolerance) -> bool {
        let failed = self.failed_items();
        let exceeded = is_exceeded(tolerance.limit, failed, self.items() + failed);
        self.failed_splits() == 0 && !exceeded
    }

    /// Returns whether a job that is not at its end has failed.
    pub fn has_stopped(&self, tolerance: Tolerance) -> bool {
        if self.failed.is_empty() || tolerance.above == Above::Continue {
            return false;
        }
        let exceeded = match tolerance.limit {
            FailureLimit::Items(_) => is_exceeded(tolerance.limit, self.failed_items(), 0),
            FailureLimit::Share(_) => {
                let counts = self.splits.contains(&vec![]).then(|| self.counts(&[]));
                let counts = counts.filter(|counts| counts.unsettled == 0);
                let items = counts.map(|it| it.total.max(self.items() + self.failed_items()));
                // Any number of items may still come. Of `0%` that makes no difference.
                let items = items.unwrap_or(i64::MAX / 100);
                is_exceeded(tolerance.limit, self.failed_items(), items)
            }
        };
        self.failed_splits() > 0 || exceeded
    }

    /// Returns whether every task is done or has failed. A split that has failed as a whole may
    /// have left tasks behind.
    pub fn have_all_ended(&self, path: &[u32]) -> bool {
        if self.done.contains(path) || !self.splits.contains(path) {
            return self.truth(path) != Truth::Open;
        }
        let child = |number| self.have_all_ended(&[path, &[number]].concat());
        !self.failed.contains(path)
            && self
                .sizes
                .get(path)
                .is_some_and(|size| (1..=*size).all(child))
    }

    /// Checks what a job knows about the tasks that it leaves, in the moment in which this batch of
    /// events has made it fail.
    pub fn check_what_is_left(&self, job: &Job, batch: &[Event]) {
        let of_batch = |(_, kind): &Event| {
            let EventKind::Failed(failure) = kind else {
                return false;
            };
            failure.item.as_ref().is_some_and(|item| item.batch)
        };
        // Nobody knows what a split or a batch has dispatched before it failed.
        let may_have_left = self.failed_splits() > 0 || batch.iter().any(of_batch);
        let is_certain = self.have_all_ended(&[]);
        assert!(job.leaves_work || is_certain, "work is left");
        assert!(
            !job.leaves_work || may_have_left || !is_certain,
            "no work is left"
        );
    }
}

/// Judges a limit as it is written: `3` or `20%`.
fn is_exceeded(limit: FailureLimit, failed: i64, items: i64) -> bool {
    let text = limit.to_string();
    match text.strip_suffix('%') {
        Some(percent) => failed * 100 > items * percent.parse::<i64>().unwrap(),
        None => failed > text.parse::<i64>().unwrap(),
    }
}
