//! Dead letters of the simulated job: what its worker has given up is kept, and the client sends it
//! again.

use std::collections::BTreeMap;

use contract::{JobTaskId, RangeItem, TaskMessage, TaskStatus, Tracking, overflow_pipe};
use framework::broker::Broker as _;
use store::{Incarnation, Letter, LetterQuery, NewMessage, Replay};

use crate::simulation::{
    Expected, ITEMS_IN, ITEMS_REJECT, Put, Simulation, job_id, lock, partition,
};

/// More letters than a scenario makes.
const LETTERS: u32 = 10_000;

impl Simulation {
    /// Sends all dead letters of the job again that can be.
    pub async fn replay(&self, put: &mut Put) -> Result<(), String> {
        let store = &self.0.store;
        let ids: Vec<i64> = self.letters().await?.iter().map(|it| it.id).collect();
        let round = self.round().await?;
        let replayed = self.insist(|| store.replay_letters(&ids, again)).await?;
        for (id, replay) in replayed {
            let is_sent = matches!(replay, Replay::Sent { .. });
            if is_sent && !lock(&self.0.replayed).insert(id) {
                return Err(format!("the dead letter {id} was sent again twice"));
            }
        }
        // The answer to an earlier attempt may have been lost.
        if self.round().await? > round {
            put.expected = Expected::Outcome;
        }
        Ok(())
    }

    async fn round(&self) -> Result<Option<u32>, String> {
        let store = &self.0.store;
        let job = self.insist(|| store.job(partition(), job_id())).await?;
        Ok(job.and_then(|job| job.round))
    }

    async fn letters(&self) -> Result<Vec<Letter>, String> {
        let query = LetterQuery {
            partition: Some(partition().to_string()),
            limit: LETTERS,
            ..LetterQuery::default()
        };
        let store = &self.0.store;
        let found = self.insist(|| store.letters(&query)).await?;
        let mut letters = Vec::with_capacity(found.len());
        for Letter { id, .. } in found {
            letters.extend(self.insist(|| store.letter(id)).await?);
        }
        Ok(letters)
    }

    /// Returns what does not hold of the letters at rest: each task that was given up and is not
    /// done has one, and a letter that can be sent again is of such a task.
    pub async fn check_letters(&self, put: &Put, round: u32) -> Vec<String> {
        let scenario = &self.0.scenario;
        let letters = match self.letters().await {
            Ok(letters) => letters,
            Err(error) => return vec![error],
        };
        let mut broken = Vec::new();
        let mut kept: BTreeMap<u64, u32> = BTreeMap::new();
        for letter in &letters {
            let Some((incarnation, number)) = item_of(letter) else {
                broken.push(format!("a letter is of no item: {letter:?}"));
                continue;
            };
            let is_hopeless = scenario.hopeless.is_some_and(|n| number.is_multiple_of(n));
            if !is_hopeless {
                broken.push(format!("item {number} has a letter and was never given up"));
            }
            if incarnation == put.task_id() {
                *kept.entry(number).or_default() += 1;
            }
        }
        let lost: Vec<u64> = (1..=put.items)
            .filter(|number| !scenario.fails_untried(*number, round))
            .filter(|number| scenario.fails(*number, round) && !kept.contains_key(number))
            .collect();
        if !lost.is_empty() {
            broken.push(format!(
                "items {lost:?} were given up and have no letter; there are {kept:?}"
            ));
        }
        broken
    }

    /// Returns how many messages wait to become letters, or could not.
    pub async fn left_of_letters(&self) -> Option<String> {
        let mut left = Vec::new();
        for pipe in [ITEMS_REJECT, &overflow_pipe(ITEMS_REJECT)] {
            let depth = self.0.pipes.depth(pipe).await.unwrap_or(u64::MAX);
            if depth > 0 {
                left.push(format!("{depth} in {pipe}"));
            }
        }
        (!left.is_empty()).then(|| left.join(", "))
    }
}

/// Returns the item that a letter is about, by incarnation and number.
fn item_of(letter: &Letter) -> Option<(String, u64)> {
    let message = TaskMessage::decode(&letter.content.body).ok()?;
    let item: RangeItem = serde_json::from_slice(&message.task_data?).ok()?;
    Some((item.params.get("incarnation")?.clone(), item.number))
}

/// Returns the task of a letter in the round in which the job counts it, as the job service makes
/// it.
fn again(letter: &Letter, job: Option<&Incarnation>) -> Result<NewMessage, String> {
    let copy = TaskMessage::decode(&letter.content.body).map_err(|error| error.to_string())?;
    let job = job.ok_or("the letter belongs to no job")?;
    let tracking = copy.tracking.unwrap_or_default();
    let id = tracking.job_task_id.as_deref().unwrap_or_default();
    let id = JobTaskId {
        incarnation: (job.round > 1 || !job.first).then_some(job.number),
        round: job.round,
        ..JobTaskId::parse(id).map_err(|error| error.to_string())?
    };
    let message = TaskMessage {
        task_status: Some(TaskStatus::NewTask),
        to: Some(ITEMS_IN.into()),
        tracking: Some(Tracking {
            job_task_id: Some(id.to_string()),
            ..tracking
        }),
        ..copy
    };
    Ok(NewMessage {
        pipe: ITEMS_IN.to_owned(),
        body: message.encode(),
        headers: store::Headers::default(),
    })
}
