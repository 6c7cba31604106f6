//! Jobs, their labels and histories, and past incarnations, in memory.

use std::collections::BTreeMap;

use super::{MemoryTransaction, State, done};
use crate::db::sql::jobs::job_id;
use crate::db::views::PAGE_BYTES;
use crate::db::{
    DbFuture, Deletion, JobKey, JobRow, JobSteps, JobTexts, KeyState, NewIncarnation, NewParts,
    OutboxSteps, TransitionRow,
};
use crate::ledger::KeptFailure;
use crate::model::{RequestKey, Transition};
use crate::query::{Candidate, JobQuery};

impl State {
    /// Returns the failures of a job, oldest first.
    pub(super) fn failures_of(&self, incarnation: i64) -> Vec<&KeptFailure> {
        let range = (incarnation, String::new())..(incarnation + 1, String::new());
        let mut failures: Vec<_> = self.failures.range(range).map(|(_, kept)| kept).collect();
        failures.sort_by(|a, b| (a.since, &a.path).cmp(&(b.since, &b.path)));
        failures
    }

    /// Returns at most `limit` failures of a job, and fewer if they are large.
    pub(super) fn first_failures_of(
        &self,
        incarnation: i64,
        limit: usize,
    ) -> impl Iterator<Item = &KeptFailure> {
        let first = self.failures_of(incarnation).into_iter().take(limit);
        first.scan(0, |bytes, kept| {
            let is_shown = *bytes < PAGE_BYTES;
            *bytes += kept.bytes();
            is_shown.then_some(kept)
        })
    }

    pub(super) fn labels_of(&self, incarnation: i64) -> BTreeMap<String, Option<String>> {
        let labels = self
            .labels
            .range((incarnation, String::new())..(incarnation + 1, String::new()));
        labels
            .map(|((_, name), value)| (name.clone(), value.clone()))
            .collect()
    }

    pub(super) fn matching(&self, partition: &str, query: &JobQuery) -> Vec<Candidate> {
        let first = (partition.to_owned(), String::new());
        let jobs = self
            .jobs
            .range(first..)
            .take_while(|((p, _), _)| p == partition)
            .map(|(_, job)| job);
        jobs.map(|job| self.candidate(job))
            .filter(|candidate| candidate.matches(query))
            .collect()
    }

    pub(super) fn candidate(&self, job: &JobRow) -> Candidate {
        let texts = self.texts.get(&job.incarnation);
        Candidate {
            job: job.clone(),
            labels: self.labels_of(job.incarnation),
            texts: texts.cloned().unwrap_or_default(),
            waits: (job.blocked_tasks > 0).then(|| self.waits_of(job.incarnation)),
        }
    }
}

impl JobSteps for MemoryTransaction {
    fn lock_creations<'a>(&'a mut self, _partition: &'a str, _shared: bool) -> DbFuture<'a, ()> {
        done(())
    }
    fn lock_jobs<'a>(&'a mut self, keys: &'a [JobKey]) -> DbFuture<'a, Vec<JobRow>> {
        done(
            keys.iter()
                .filter_map(|key| self.state.jobs.get(key).cloned())
                .collect(),
        )
    }
    fn lock_free_jobs<'a>(
        &'a mut self,
        keys: &'a [JobKey],
    ) -> DbFuture<'a, (Vec<JobRow>, Vec<JobKey>)> {
        Box::pin(async move { Ok((self.lock_jobs(keys).await?, Vec::new())) })
    }
    fn insert_jobs<'a>(
        &'a mut self,
        jobs: &'a [(JobRow, JobTexts)],
    ) -> DbFuture<'a, Vec<Option<NewIncarnation>>> {
        let inserted = jobs
            .iter()
            .map(|(job, texts)| self.insert_job(job, texts))
            .collect();
        done(inserted)
    }
    fn insert_parts(&mut self, parts: Vec<NewParts>) -> DbFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let mut remembered = Vec::with_capacity(parts.len());
            for NewParts {
                job,
                step,
                start,
                due,
                definition,
            } in parts
            {
                let number = job.incarnation;
                self.put(|s| &mut s.definitions, number, Some(definition.clone()));
                self.append_history(number, &step).await?;
                let (pipe, headers) = (&definition.pipe, &definition.headers);
                self.push_outbox(Some(number), pipe, &start, headers, due)
                    .await?;
                remembered.push(self.has_past_incarnation(&job));
            }
            Ok(remembered)
        })
    }
    fn save_jobs<'a>(&'a mut self, jobs: &'a [JobRow]) -> DbFuture<'a, ()> {
        for job in jobs {
            self.change_job(job.incarnation, |stored| *stored = job.clone());
        }
        done(())
    }
    fn delete_job<'a>(
        &'a mut self,
        _: &'a JobKey,
        incarnation: i64,
        why: Deletion<'a>,
    ) -> DbFuture<'a, ()> {
        if let Some(id) = self.state.ids.get(&incarnation).cloned() {
            self.add_deletion(&id, why);
            self.put(|s| &mut s.jobs, id, None);
        }
        self.put(|s| &mut s.ids, incarnation, None);
        self.put(|s| &mut s.texts, incarnation, None);
        self.remove_all(|s| &mut s.labels, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.failures, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.history, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.parked, |(n, _), _| *n == incarnation);
        self.remove_all(|s| &mut s.waits.blocks, |(n, ..), _| *n == incarnation);
        self.put(|s| &mut s.unparking, incarnation, None);
        self.put(|s| &mut s.curves, incarnation, None);
        self.put(|s| &mut s.definitions, incarnation, None);
        self.put(|s| &mut s.unstarted, incarnation, None);
        self.remove_all(|s| &mut s.past_failures, |(n, ..), _| *n == incarnation);
        self.remove_all(|s| &mut s.attempts, |(n, ..), _| *n == incarnation);
        self.remove_all(
            |s| &mut s.outbox,
            |_, unsent| unsent.incarnation == Some(incarnation),
        );
        self.remove_all(
            |s| &mut s.dependencies,
            |_, wait| wait.incarnation == incarnation,
        );
        done(())
    }
    fn insert_labels<'a>(
        &'a mut self,
        of: &'a [(i64, &'a BTreeMap<String, Option<String>>)],
    ) -> DbFuture<'a, ()> {
        for (incarnation, labels) in of {
            for (key, value) in *labels {
                let label = (*incarnation, key.clone());
                self.put(|s| &mut s.labels, label, Some(value.clone()));
            }
        }
        done(())
    }
    fn append_history<'a>(
        &'a mut self,
        incarnation: i64,
        transition: &'a Transition,
    ) -> DbFuture<'a, ()> {
        let id = self.state.number();
        let row = TransitionRow {
            id,
            transition: transition.clone(),
            left_out: 0,
        };
        self.put(|s| &mut s.history, (incarnation, id), Some(row));
        self.add_event(incarnation, transition);
        done(())
    }
    fn shorten_history(&mut self, incarnation: i64, keep: u32) -> DbFuture<'_, ()> {
        let rows = self
            .state
            .history
            .range((incarnation, 0)..(incarnation + 1, 0));
        let ids: Vec<i64> = rows.map(|((_, id), _)| *id).collect();
        let Some(([first], later)) = ids.split_first_chunk() else {
            return done(());
        };
        let gone = &later[..later.len().saturating_sub(keep as usize)];
        for id in gone {
            self.put(|s| &mut s.history, (incarnation, *id), None);
        }
        if let Some(mut row) = self.state.history.get(&(incarnation, *first)).cloned() {
            row.left_out += i64::try_from(gone.len()).unwrap_or(i64::MAX);
            self.put(|s| &mut s.history, (incarnation, *first), Some(row));
        }
        done(())
    }
    fn append_histories<'a>(&'a mut self, steps: &'a [(i64, Transition)]) -> DbFuture<'a, ()> {
        Box::pin(async move {
            for (incarnation, step) in steps {
                self.append_history(*incarnation, step).await?;
            }
            Ok(())
        })
    }
    fn give_key<'a>(
        &'a mut self,
        partition: &'a str,
        RequestKey { key, fingerprint }: &'a RequestKey,
        job: &'a str,
    ) -> DbFuture<'a, KeyState> {
        let own = (partition.to_owned(), key.clone());
        if let Some((fingerprint, job, _)) = self.state.request_keys.get(&own) {
            return done(KeyState::Taken(fingerprint.clone(), job.clone()));
        }
        let now = self.shared.clock.now();
        Box::pin(async move {
            let given = (fingerprint.to_vec(), job_id(job)?, now);
            self.put(|s| &mut s.request_keys, own, Some(given));
            Ok(KeyState::Given)
        })
    }
    fn remember_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
        incarnation: i64,
    ) -> DbFuture<'a, ()> {
        let now = self.shared.clock.now();
        self.put(
            |s| &mut s.past_incarnations,
            (partition.to_owned(), job.to_owned(), incarnation),
            Some(now),
        );
        done(())
    }
}

impl MemoryTransaction {
    fn has_past_incarnation(&self, job: &JobRow) -> bool {
        let (partition, id) = job.key();
        let first = (partition.clone(), id.clone(), i64::MIN);
        let mut later = self.state.past_incarnations.range(first..);
        let found = later.next();
        found.is_some_and(|((p, j, _), _)| *p == partition && *j == id)
    }

    fn insert_job(&mut self, job: &JobRow, texts: &JobTexts) -> Option<NewIncarnation> {
        let id = (job.partition.to_string(), job.job.to_string());
        if self.state.jobs.contains_key(&id) {
            return None;
        }
        let first_life = !self.has_past_incarnation(job);
        // They follow each other, so that jobs are spread over all tracking shards. A rollback does
        // not give a number back.
        self.state.last_incarnation += 1;
        let number = self.state.last_incarnation;
        let row = JobRow {
            incarnation: number,
            first_life,
            ..job.clone()
        };
        self.put(|s| &mut s.jobs, id.clone(), Some(row));
        self.put(|s| &mut s.ids, number, Some(id));
        self.put(|s| &mut s.texts, number, Some(texts.clone()));
        Some(NewIncarnation { number, first_life })
    }
}
