//! Dead letters: kept once and within bounds, found, deleted, and replayed.

use std::time::Duration;

use contract::rest::LetterCause;
use contract::{JobStatus, OnFailure};
use store::{
    Header, Incarnation, JobRequest, Keep, Letter, LetterCounts, LetterLimits, LetterQuery,
    LetterTask, NewLetter, NewMessage, NotReplayed, Replay, StoreOptions,
};

use crate::fixture::{TestStore, event, failed, request};

suite![
    message_that_is_delivered_twice_is_one_letter,
    letters_are_bounded_and_what_is_above_a_bound_is_told,
    letters_are_found_by_each_filter_the_latest_first,
    old_letters_are_swept_and_counted,
    replayed_letter_of_no_job_is_in_the_outbox_and_no_letter_any_more,
    replayed_task_of_a_finished_job_begins_a_round_of_it_alone,
    replayed_tasks_of_one_job_begin_one_round,
    many_letters_of_one_job_begin_one_round,
    replayed_first_task_begins_a_round,
    replayed_task_of_a_running_job_is_waited_for,
    letter_that_cannot_be_replayed_stays_and_says_why,
];

/// What restricts a query for all letters, and which of the letters it finds then.
type Restricted<'a> = (&'a dyn Fn(&mut LetterQuery), &'a [usize]);

/// A query for all letters.
fn all() -> LetterQuery {
    LetterQuery {
        limit: 100,
        ..LetterQuery::default()
    }
}

fn noise(number: u8) -> NewLetter {
    NewLetter {
        identity: vec![number],
        cause: LetterCause::NotUnderstood,
        reason: "it is no JSON".to_owned(),
        pipe: "w-invalid".to_owned(),
        origin: Some("w-in".to_owned()),
        worker: None,
        attempts: None,
        task: None,
        label: None,
        headers: [("h".to_owned(), Header::Integer(1))].into(),
        body: vec![number; 10],
        body_bytes: 10,
    }
}

fn letter(number: u8, job: &Incarnation, path: &str) -> NewLetter {
    NewLetter {
        cause: LetterCause::Poison,
        reason: "it kills".to_owned(),
        pipe: "w-reject".to_owned(),
        worker: Some("w".to_owned()),
        attempts: Some(3),
        task: Some(LetterTask {
            partition: job.partition.to_string(),
            job: job.job.to_string(),
            incarnation: (!job.first).then_some(job.number),
            path: path.to_owned(),
        }),
        label: Some(format!("item {number}")),
        ..noise(number)
    }
}

/// Returns a message that says in which round the job counts it.
fn again(letter: &Letter, job: Option<&Incarnation>) -> Result<NewMessage, String> {
    let pipe = letter.content.origin.clone().ok_or("no origin")?;
    let round = job.map_or(0, |job| job.round);
    Ok(NewMessage {
        pipe,
        body: format!("{} in {round}", letter.content.body[0]).into_bytes(),
        headers: letter.content.headers.clone(),
    })
}

impl TestStore {
    async fn keep(&self, letters: &[NewLetter]) -> Vec<Keep> {
        self.keep_letters(letters).await.unwrap()
    }

    /// Returns the numbers of all letters, the oldest first.
    async fn letter_ids(&self) -> Vec<i64> {
        let letters = self.letters(&all()).await.unwrap();
        letters.iter().rev().map(|letter| letter.id).collect()
    }

    async fn replay(&self, ids: &[i64]) -> Vec<Replay> {
        let replayed = self.replay_letters(ids, again).await.unwrap();
        replayed.into_iter().map(|(_, replay)| replay).collect()
    }

    /// Creates a job that tolerates failures, and ends it: tasks 1 and 2 have failed, task 3 is
    /// done.
    async fn completed_with_failures(&self, job: &str) -> Incarnation {
        let job = self.tolerant(job).await;
        for path in ["1", "2"] {
            self.report(&job, path, failed("POISON")).await;
        }
        self.complete(&job, &["3", "4*"]).await;
        assert_eq!(self.status(&job).await, JobStatus::Completed);
        job
    }

    async fn tolerant(&self, job: &str) -> Incarnation {
        let on_failure: OnFailure =
            serde_json::from_str(r#"{"continue": {"tolerate": 5}}"#).unwrap();
        let job = self
            .create_with(JobRequest {
                on_failure,
                headers: [("limit".to_owned(), Header::Integer(5))].into(),
                ..request(job)
            })
            .await;
        self.sent().await;
        job
    }
}

fn not(reason: NotReplayed) -> Replay {
    Replay::Not(reason)
}

fn sent(job: &Incarnation, round: u32) -> Replay {
    Replay::Sent {
        pipe: "w-in".to_owned(),
        job: Some(Incarnation {
            round,
            ..job.clone()
        }),
    }
}

async fn message_that_is_delivered_twice_is_one_letter(store: TestStore) {
    let job = store.started("j").await;
    let letters = [letter(1, &job, "3.17"), noise(2), letter(1, &job, "3.17")];
    let kept = store.keep(&letters).await;
    assert_eq!(kept, [Keep::Kept, Keep::Kept, Keep::Known]);
    assert_eq!(store.keep(&letters[1..]).await, [Keep::Known, Keep::Known]);
    let ids = store.letter_ids().await;
    let found = store.letter(ids[0]).await.unwrap().unwrap();
    let content = NewLetter {
        identity: Vec::new(),
        ..found.content
    };
    let expected = NewLetter {
        identity: Vec::new(),
        ..letter(1, &job, "3.17")
    };
    assert_eq!((content, found.cut), (expected, false));
    assert_eq!(store.count_letters().await.unwrap().letters, 2);
    assert_eq!(store.delete_letters(&ids).await.unwrap(), 2);
    assert_eq!(store.delete_letters(&ids).await.unwrap(), 0);
    assert_eq!(
        store.count_letters().await.unwrap(),
        LetterCounts::default()
    );
    assert_eq!(store.letter(ids[0]).await.unwrap(), None);
}

async fn letters_are_bounded_and_what_is_above_a_bound_is_told(mut store: TestStore) {
    let limits = LetterLimits {
        letters: 3,
        letters_of_job: 1,
        ..LetterLimits::DEFAULT
    };
    let options = StoreOptions {
        letters: limits,
        ..StoreOptions::default()
    };
    store.reopen_with(options).await;
    let (one, other) = (store.started("one").await, store.started("other").await);
    let letters = [letter(1, &one, "1"), letter(2, &one, "2"), noise(3)];
    let kept = store.keep(&letters).await;
    assert_eq!(kept, [Keep::Kept, Keep::AboveBoundOfJob, Keep::Kept]);
    assert!(!store.count_letters().await.unwrap().full);
    let letters = [letter(4, &other, "1"), noise(5)];
    assert_eq!(store.keep(&letters).await, [Keep::Kept, Keep::Full]);
    let counts = store.count_letters().await.unwrap();
    assert_eq!(
        (counts.letters, counts.overflowed, counts.full),
        (3, 1, true)
    );

    // There is room again, and a letter alone fits whatever its size.
    let ids = store.letter_ids().await;
    store.delete_letters(&ids[..1]).await.unwrap();
    let large = NewLetter {
        body: vec![0; 100_000],
        body_bytes: 200_000,
        ..letter(6, &one, "3")
    };
    assert_eq!(store.keep(&[large]).await, [Keep::Kept]);
    let ids = store.letter_ids().await;
    assert!(store.letter(ids[2]).await.unwrap().unwrap().cut);
    assert!(
        store.letters(&all()).await.unwrap()[0].cut,
        "also in a list"
    );
    let limits = LetterLimits { bytes: 1, ..limits };
    let options = StoreOptions {
        letters: limits,
        ..options
    };
    store.reopen_with(options).await;
    assert_eq!(store.keep(&[noise(7)]).await, [Keep::Full]);
    store.delete_letters(&ids).await.unwrap();
    assert_eq!(store.keep(&[noise(7)]).await, [Keep::Kept]);
}

async fn letters_are_found_by_each_filter_the_latest_first(store: TestStore) {
    let (one, other) = (store.started("one").await, store.started("other").await);
    let unroutable = NewLetter {
        cause: LetterCause::Unroutable,
        origin: None,
        ..noise(3)
    };
    let letters = [letter(1, &one, "1"), letter(2, &other, ""), unroutable];
    store.keep(&letters).await;
    let ids = store.letter_ids().await;
    let text = |text: &str| Some(text.to_owned());
    let time = store.letter(ids[2]).await.unwrap().unwrap().time;
    let queries: [Restricted<'_>; 12] = [
        (&|_| {}, &[2, 1, 0]),
        (&|all| all.partition = text("acme"), &[1, 0]),
        (&|all| all.partition = text("ACME"), &[]),
        (&|all| all.job = text("other"), &[1]),
        (&|all| all.pipe = text("w-reject"), &[1, 0]),
        (&|all| all.pipe = text("w-in"), &[1, 0]),
        (&|all| all.cause = Some(LetterCause::Unroutable), &[2]),
        (&|all| all.reason = text("kill"), &[1, 0]),
        (&|all| all.reason = text("%"), &[]),
        (&|all| all.since = Some(time + 1), &[]),
        (&|all| all.until = Some(time + 1), &[2, 1, 0]),
        (&|all| (all.before, all.limit) = (Some(ids[2]), 1), &[1]),
    ];
    for (restrict, expected) in queries {
        let mut query = all();
        restrict(&mut query);
        let found = store.letters(&query).await.unwrap();
        let found: Vec<i64> = found.iter().map(|letter| letter.id).collect();
        let expected: Vec<i64> = expected.iter().map(|at| ids[*at]).collect();
        assert_eq!(found, expected, "{query:?}");
    }
    let of_one = LetterQuery {
        job: text("one"),
        ..all()
    };
    assert_eq!(store.delete_matching_letters(&of_one).await.unwrap(), 1);
    assert_eq!(store.letter_ids().await, ids[1..]);
}

async fn old_letters_are_swept_and_counted(mut store: TestStore) {
    let options = StoreOptions {
        letters: LetterLimits {
            kept: Duration::ZERO,
            ..LetterLimits::DEFAULT
        },
        ..StoreOptions::default()
    };
    let job = store.started("j").await;
    store.keep(&[letter(1, &job, "1")]).await;
    store.sweep().await.unwrap();
    assert_eq!(store.letter_ids().await.len(), 1);
    store.reopen_with(options).await;
    store.keep(&[noise(1), noise(2)]).await;
    let before = store.count_letters().await.unwrap().letters;
    store.sweep().await.unwrap();
    let counts = store.count_letters().await.unwrap();
    assert_eq!((counts.letters, counts.bytes), (0, 0));
    assert_eq!(counts.expired, before);
}

async fn replayed_letter_of_no_job_is_in_the_outbox_and_no_letter_any_more(store: TestStore) {
    store.keep(&[noise(7)]).await;
    let ids = store.letter_ids().await;
    let none = store
        .replay_letters(&ids, |_, _| Err("it is of no use".to_owned()))
        .await
        .unwrap();
    let reason = NotReplayed::Impossible("it is of no use".to_owned());
    assert_eq!(none, [(ids[0], not(reason))]);
    let replayed = store.replay(&ids).await;
    assert!(matches!(&replayed[..], [Replay::Sent { job: None, .. }]));
    assert!(store.letter_ids().await.is_empty());
    assert_eq!(store.count_letters().await.unwrap().letters, 0);
    let message = store.outbox(10).await.unwrap().pop().unwrap();
    assert_eq!((message.pipe.as_str(), message.headers.len()), ("w-in", 1));
    assert_eq!(store.sent().await, ["7 in 0"]);
    assert_eq!(store.replay(&ids).await, [not(NotReplayed::NotFound)]);
}

async fn replayed_task_of_a_finished_job_begins_a_round_of_it_alone(store: TestStore) {
    let job = store.completed_with_failures("j").await;
    store.keep(&[letter(1, &job, "1")]).await;
    let replayed = store.replay(&store.letter_ids().await).await;
    assert_eq!(replayed, [sent(&job, 2)]);
    let message = store.outbox(10).await.unwrap().remove(0);
    let expected = [("h", 1), ("limit", 5)];
    let expected = expected.map(|(name, value)| (name.to_owned(), Header::Integer(value)));
    assert_eq!(
        message.headers,
        expected.into(),
        "its own and those of its job"
    );
    assert_eq!(store.sent().await, ["1 in 2"], "and no start message");
    let now = store.job(&job).await;
    assert_eq!((now.status, now.round), (JobStatus::Active, Some(2)));
    assert_eq!((now.failed_tasks, now.completed_items), (1, 1));
    assert!(now.percentage_complete < 100.0);
    let (actor, reason) = store.last_transition(&job).await;
    assert_eq!(
        (actor.as_str(), reason.as_str()),
        (
            "client",
            "dead letters are replayed: round 2 after Completed"
        )
    );
    let round = Incarnation { round: 2, ..job };
    // It fails once more: the job has ended again.
    store.report(&round, "1", failed("AGAIN")).await;
    let now = store.job(&round).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Completed, 2));
    store.keep(&[letter(2, &round, "1")]).await;
    let replayed = store.replay(&store.letter_ids().await).await;
    assert_eq!(replayed, [sent(&round, 3)]);
    store.sent().await;
    let round = Incarnation { round: 3, ..round };
    store.complete(&round, &["1"]).await;
    let now = store.job(&round).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Completed, 1));
    assert_eq!(now.completed_items, 2);
    let counts: Vec<_> = now.failure_counts.into_iter().collect();
    assert_eq!(counts, [("POISON".to_owned(), 1)]);
}

async fn replayed_tasks_of_one_job_begin_one_round(store: TestStore) {
    let job = store.completed_with_failures("j").await;
    let letters = [letter(1, &job, "1"), letter(2, &job, "2")];
    store.keep(&letters).await;
    let replayed = store.replay(&store.letter_ids().await).await;
    assert_eq!(replayed, [sent(&job, 2), sent(&job, 2)]);
    let round = Incarnation { round: 2, ..job };
    store.complete(&round, &["2"]).await;
    assert_eq!(
        store.status(&round).await,
        JobStatus::Active,
        "1 is not done"
    );
    store.complete(&round, &["1"]).await;
    let now = store.job(&round).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Completed, 0));
    assert_eq!((now.completed_items, now.percentage_complete), (3, 100.0));
}

async fn many_letters_of_one_job_begin_one_round(store: TestStore) {
    let job = store.started("j").await;
    let paths = || (1..=250).map(|number| number.to_string());
    let failures: Vec<_> = paths()
        .map(|path| event(&job, &path, failed("POISON")))
        .collect();
    store.record(&failures).await.unwrap();
    store.complete(&job, &["251*"]).await;
    let letters: Vec<_> = paths()
        .zip(1..)
        .map(|(path, n)| letter(n, &job, &path))
        .collect();
    store.keep(&letters).await;
    let query = LetterQuery {
        limit: 1000,
        ..all()
    };
    let found = store.letters(&query).await.unwrap();
    let ids: Vec<i64> = found.iter().map(|letter| letter.id).collect();
    let before = store.job(&job).await;
    assert!(before.status.is_finished(), "{before:?}");
    let replayed = store.replay(&ids).await;
    let is_sent =
        |replay: &Replay| matches!(replay, Replay::Sent { job: Some(job), .. } if job.round == 2);
    assert!(replayed.iter().all(is_sent), "{replayed:?}");
    assert_eq!(replayed.len(), 250);
    assert_eq!(store.count_letters().await.unwrap().letters, 0);
    let now = store.job(&job).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Active, 0));
}

async fn replayed_first_task_begins_a_round(store: TestStore) {
    let job = store.started("j").await;
    store.report(&job, "", failed("POISON")).await;
    assert_eq!(store.status(&job).await, JobStatus::Failed);
    store.keep(&[letter(1, &job, "")]).await;
    let replayed = store.replay(&store.letter_ids().await).await;
    assert_eq!(replayed, [sent(&job, 2)]);
    assert_eq!(store.sent().await, ["1 in 2"]);
    let now = store.job(&job).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Active, 0));
    let round = Incarnation { round: 2, ..job };
    store.report(&round, "", store::EventKind::Complete).await;
    assert_eq!(store.status(&round).await, JobStatus::Completed);
}

async fn replayed_task_of_a_running_job_is_waited_for(store: TestStore) {
    let job = store.tolerant("j").await;
    store.report(&job, "1", failed("POISON")).await;
    store
        .keep(&[letter(1, &job, "1"), letter(2, &job, "2")])
        .await;
    let replayed = store.replay(&store.letter_ids().await).await;
    assert_eq!(replayed, [sent(&job, 1), sent(&job, 1)]);
    assert_eq!(store.job(&job).await.failed_tasks, 0);
    store.complete(&job, &["2", "3", "4*"]).await;
    assert_eq!(store.status(&job).await, JobStatus::Active);
    store.complete(&job, &["1"]).await;
    let now = store.job(&job).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Completed, 0));
}

async fn letter_that_cannot_be_replayed_stays_and_says_why(store: TestStore) {
    let gone = store.started("gone").await;
    let earlier = store.started("earlier").await;
    store
        .keep(&[letter(1, &gone, "1"), letter(2, &earlier, "1")])
        .await;
    store.delete(&gone).await;
    store.delete(&earlier).await;
    store.started("earlier").await;

    // A job that stops at the first failure has tasks that nothing would do.
    let stopped = store.started("stopped").await;
    store.complete(&stopped, &["2", "4*"]).await;
    store.report(&stopped, "1", failed("POISON")).await;
    let done = store.started("done").await;
    store.complete(&done, &["1", "2*"]).await;
    let split = store.tolerant("split").await;
    store.report(&split, "1.1", failed("POISON")).await;
    store.report(&split, "1", failed("POISON")).await;
    store.complete(&split, &["2", "3*"]).await;
    assert_eq!(store.status(&split).await, JobStatus::Failed);
    let cut = NewLetter {
        body_bytes: 11,
        ..noise(6)
    };
    store
        .keep(&[
            letter(3, &stopped, "1"),
            letter(4, &done, "1"),
            letter(5, &split, "1.1"),
            cut,
        ])
        .await;
    let ids = store.letter_ids().await;
    let mut reasons = Vec::new();
    for id in &ids {
        match store.replay(&[*id]).await.pop() {
            Some(Replay::Not(reason)) => reasons.push(reason),
            other => panic!("{other:?}"),
        }
    }
    let retry = |reason: &str| NotReplayed::RetryInstead(reason.to_owned());
    assert_eq!(
        reasons,
        [
            NotReplayed::JobGone,
            NotReplayed::PastIncarnation,
            retry("other tasks of it are neither done nor failed, and nothing would do them"),
            NotReplayed::Done,
            retry("the task has subtasks, or is part of a split that has failed as a whole"),
            NotReplayed::Cut,
        ]
    );
    assert_eq!(store.letter_ids().await, ids);
    assert_eq!(store.status(&stopped).await, JobStatus::Failed);
    assert_eq!(store.job(&split).await.round, None);

    // The table of the tasks is gone.
    let job = store.completed_with_failures("dropped").await;
    store.keep(&[letter(7, &job, "1")]).await;
    let id = store.letter_ids().await.pop().unwrap();
    let mut store = store;
    let options = StoreOptions {
        most_failed_tables: 0,
        ..StoreOptions::default()
    };
    store.reopen_with(options).await;
    store.sweep().await.unwrap();
    assert_eq!(store.replay(&[id]).await, [not(NotReplayed::Forgotten)]);
}
