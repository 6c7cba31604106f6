//! What has happened to jobs, in memory. A transaction that is rolled back gives its ids back, as
//! in SQLite.

use std::collections::{BTreeMap, BTreeSet};

use contract::JobStatus;

use super::{Memory, MemoryTransaction};
use crate::db::events::{EventMarks, EventPage, EventRange, EventReads};
use crate::db::{DbFuture, Deletion, JobKey, Signal};
use crate::model::{JobEvent, Transition};

#[derive(Debug, Default)]
pub struct Events {
    pub rows: BTreeMap<i64, JobEvent>,
    pub swept: i64,
}

impl Events {
    fn last(&self) -> i64 {
        let last = self.rows.last_key_value();
        last.map_or(self.swept, |(id, _)| *id)
    }
}

impl EventReads for Memory {
    fn event_marks(&self) -> DbFuture<'_, EventMarks> {
        Box::pin(async move {
            Ok(EventMarks {
                last: self.read().await?.events.last(),
                writers: BTreeSet::new(),
            })
        })
    }
    fn events<'a>(&'a self, range: EventRange<'a>) -> DbFuture<'a, EventPage> {
        Box::pin(async move {
            let state = self.read().await?;
            let is_asked = |event: &&JobEvent| {
                let id = event.id > range.after && event.id <= range.up_to;
                id && range.partition.is_none_or(|it| it == event.partition)
            };
            let events = state.events.rows.values().filter(is_asked);
            Ok(EventPage {
                events: events.take(range.limit as usize).cloned().collect(),
                swept: state.events.swept,
            })
        })
    }
    fn first_event_since(&self, time: i64) -> DbFuture<'_, Option<i64>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut events = state.events.rows.values();
            Ok(events.find(|event| event.time >= time).map(|it| it.id))
        })
    }
}

impl MemoryTransaction {
    pub fn add_event(&mut self, incarnation: i64, step: &Transition) {
        let Some((partition, job)) = self.state.ids.get(&incarnation).cloned() else {
            return;
        };
        self.push_event(JobEvent {
            id: 0,
            time: step.time,
            partition,
            job,
            from: step.from,
            to: Some(step.to),
            round: step.round,
            actor: Some(step.actor.clone()),
            reason: Some(step.reason.chars().take(300).collect()),
            correlation_id: step.correlation_id.clone(),
            prerequisite: step.prerequisite.clone(),
        });
    }

    pub fn add_deletion(&mut self, (partition, job): &JobKey, why: Deletion<'_>) {
        let row = self.state.jobs.get(&(partition.clone(), job.clone()));
        let (from, round) = row.map_or((None, 1), |row| (Some(row.status), row.round));
        self.push_event(JobEvent {
            id: 0,
            time: self.shared.clock.now(),
            partition: partition.clone(),
            job: job.clone(),
            from,
            to: None::<JobStatus>,
            round,
            actor: Some(why.actor.to_owned()),
            reason: Some(why.reason.to_owned()),
            correlation_id: why.correlation_id.map(str::to_owned),
            prerequisite: None,
        });
    }

    fn push_event(&mut self, event: JobEvent) {
        let id = self.state.events.last() + 1;
        self.put(|s| &mut s.events.rows, id, Some(JobEvent { id, ..event }));
        self.wakes.add(Signal::Events);
    }

    /// Deletes the events that are older than this many milliseconds, or more than `most`. Returns
    /// false: none of them are left.
    pub fn delete_events(&mut self, older_than: u64, most: u64) -> bool {
        let limit = self.shared.clock.now().saturating_sub_unsigned(older_than);
        let too_many = self.state.events.last().saturating_sub_unsigned(most);
        let rows = self.state.events.rows.values();
        let due = rows.filter(|event| event.time <= limit || event.id <= too_many);
        let Some(up_to) = due.map(|event| event.id).max() else {
            return false;
        };
        self.remove_all(|s| &mut s.events.rows, |id, _| *id <= up_to);
        let before = std::mem::replace(&mut self.state.events.swept, up_to);
        self.undo
            .push(Box::new(move |state| state.events.swept = before));
        false
    }
}
