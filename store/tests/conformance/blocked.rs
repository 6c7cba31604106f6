//! Tasks that wait for conditions: each waits in the store or is on its way, whatever happens
//! around it.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::headers::LABEL_HEADER;
use contract::{Condition, ConditionCode, ConditionKey, JobStatus, RetryPolicy, rest};
use futures_util::future::join_all;
use store::{
    Blocking, Comparison, ConditionAct, ConditionPhase, ConditionQuery, ConditionRow,
    ConditionStep, EventKind, Filter, Heard, Incarnation, JobQuery, NewBlock, ParkedTask, Retry,
    Stepped, StoreOptions,
};

use crate::fixture::{MINUTE, TestStore, failure, task_id, texts};

suite![
    task_waits_once_and_leaves_with_its_message,
    only_open_tasks_of_the_present_round_wait,
    condition_hears_what_its_canaries_do,
    canary_of_a_deleted_job_is_lost_at_once,
    news_during_a_step_makes_the_condition_due_at_once,
    step_of_a_claim_that_has_passed_on_does_nothing,
    tasks_of_a_paused_job_leave_after_its_resume,
    tasks_of_ended_jobs_wait_no_more,
    tasks_of_an_expired_condition_fail_as_reported,
    job_says_what_blocks_it_and_whether_nothing_else_is_under_way,
    conditions_are_listed_counted_and_forgotten_only_without_tasks,
    tasks_of_one_condition_too_many_wait_together_until_there_is_room,
    steps_of_a_condition_wake_those_who_watch_its_jobs,
    concurrent_blocks_releases_and_ends_leave_no_task_twice_or_nowhere,
];

fn condition(database: &str) -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
        .parameter("database", database)
        .unwrap()
        .policy(RetryPolicy::constant(60 * MINUTE).forever())
        .unwrap()
        .because("it is away")
}

fn key(database: &str) -> ConditionKey {
    condition(database).key()
}

fn block(job: &Incarnation, path: &str, number: u32, database: &str) -> NewBlock {
    block_by(job, path, number, condition(database))
}

/// Returns a task that is blocked for the nth time. Its identity is its path.
pub fn block_by(job: &Incarnation, path: &str, number: u32, condition: Condition) -> NewBlock {
    NewBlock {
        task: task_id(job, path),
        identity: path.as_bytes().to_vec(),
        number,
        condition,
        message: ParkedTask {
            pipe: "items".to_owned(),
            body: format!("{path}-{number}").into(),
            headers: [("n".to_owned(), store::Header::Integer(number.into()))].into(),
        },
    }
}

pub const fn step(phase: ConditionPhase, act: ConditionAct) -> ConditionStep {
    ConditionStep {
        phase,
        tests: 1,
        restarts: false,
        result: None,
        pace: 0,
        next: 60_000,
        act,
    }
}

impl TestStore {
    async fn block(&self, blocks: &[NewBlock]) -> Vec<Blocking> {
        self.block_tasks(blocks).await.unwrap()
    }

    /// Makes a condition due and claims it. No other one may be due.
    async fn claim(&self, database: &str) -> ConditionRow {
        self.claim_key(&key(database)).await
    }

    async fn claim_key(&self, key: &ConditionKey) -> ConditionRow {
        let found = self.command_condition(key, ConditionPhase::Testing).await;
        assert!(found.unwrap());
        let claimed = self.claim_condition(MINUTE).await.unwrap().unwrap();
        let (row, time) = (claimed.row, claimed.time);
        assert_eq!(row.key, *key);
        let soon = row.since + 600_000;
        assert!((row.since..soon).contains(&time), "one clock: {time}");
        row
    }

    /// Returns the number of tasks that wait for each condition, and of its canaries.
    async fn counted(&self) -> BTreeSet<(ConditionKey, u64, u64)> {
        let query = ConditionQuery {
            limit: 99,
            ..ConditionQuery::default()
        };
        let rows = self.conditions(&query).await.unwrap();
        rows.into_iter()
            .map(|row| (row.key, row.waiting, row.canaries))
            .collect()
    }

    async fn take(&self, row: &ConditionRow, step: ConditionStep) -> Stepped {
        self.step_condition(row, &step).await.unwrap().unwrap()
    }

    async fn release(&self, database: &str) -> Stepped {
        let claimed = self.claim(database).await;
        let release = step(ConditionPhase::Releasing, ConditionAct::Release(1000));
        self.take(&claimed, release).await
    }

    async fn let_canary_go(&self, database: &str) -> Stepped {
        let claimed = self.claim(database).await;
        let canary = step(ConditionPhase::Canary, ConditionAct::Canary);
        self.take(&claimed, canary).await
    }

    pub async fn heard(&self, database: &str) -> Option<Heard> {
        self.condition(&key(database)).await.unwrap().unwrap().heard
    }
}

/// Creates a job that goes on after failures and is split into so many tasks.
pub async fn split(store: &TestStore, job: &str, tasks: u32) -> Incarnation {
    let job = store.create_continuing(job).await;
    store.sent().await;
    let stated = EventKind::Announced {
        stated: Some(contract::Announced {
            batches: 0,
            items: None,
        }),
        digest: None,
    };
    let last = format!("{}*", tasks + 1);
    store.report(&job, &last, stated).await;
    store.complete(&job, &[&last]).await;
    job
}

async fn task_waits_once_and_leaves_with_its_message(mut store: TestStore) {
    use Blocking::{Known, Waits};
    let job = split(&store, "j", 3).await;
    let [one, two] = [block(&job, "1", 1, "db"), block(&job, "2", 1, "db")];
    assert_eq!(
        store.block(&[one.clone(), one.clone(), two.clone()]).await,
        [Waits, Known, Waits]
    );
    assert_eq!(store.block(std::slice::from_ref(&one)).await, [Known]);
    store.reopen().await;
    let claimed = store.claim("db").await;
    assert_eq!(
        (claimed.waiting, claimed.tests, claimed.heard),
        (2, 0, None)
    );
    assert_eq!(claimed.condition, condition("db"));
    assert!(
        store.claim_condition(MINUTE).await.unwrap().is_none(),
        "it is claimed"
    );
    let release = step(ConditionPhase::Releasing, ConditionAct::Release(1));
    let stepped = store.take(&claimed, release).await;
    assert_eq!((stepped.tasks, stepped.waiting), (1, 1));
    let sent = store.outbox(10).await.unwrap();
    assert_eq!(
        (sent[0].pipe.as_str(), &sent[0].headers),
        ("items", &one.message.headers)
    );
    assert_eq!(store.sent().await, ["1-1"]);
    assert_eq!(
        store.block(&[one, two]).await,
        [Known, Known],
        "copies of both"
    );
    assert_eq!(store.heard("db").await, None);
    assert_eq!(store.block(&[block(&job, "1", 2, "db")]).await, [Waits]);
    assert_eq!(store.heard("db").await, Some(Heard::Again));
    let stepped = store.release("db").await;
    assert_eq!((stepped.tasks, stepped.waiting), (2, 0));
    assert_eq!(store.sent().await, ["1-2", "2-1"]);
    assert_eq!(store.heard("db").await, None);
}

async fn only_open_tasks_of_the_present_round_wait(store: TestStore) {
    use Blocking::{Over, Waits};
    let job = split(&store, "j", 4).await;
    store.complete(&job, &["1"]).await;
    store
        .report(&job, "2", EventKind::Failed(failure("X")))
        .await;
    let past = Incarnation {
        number: job.number + 7,
        first: false,
        ..job.clone()
    };
    let later = Incarnation {
        round: 2,
        ..job.clone()
    };
    let blocks = [
        block(&job, "1", 1, "db"),
        block(&job, "2", 1, "db"),
        block(&job, "3", 1, "db"),
        block(&past, "4", 1, "db"),
        block(&later, "4", 1, "db"),
    ];
    assert_eq!(store.block(&blocks).await, [Over, Over, Waits, Over, Over]);
    assert_eq!(store.job(&job).await.status, JobStatus::Active);
    // One that has ended although a copy of it waits is not sent again.
    store.complete(&job, &["3"]).await;
    assert_eq!(store.block(&[block(&job, "3", 2, "db")]).await, [Over]);
    assert_eq!(store.release("db").await.tasks, 0);
    // The first task of a job has not reported anything.
    let single = store.started("single").await;
    assert_eq!(store.block(&[block(&single, "", 1, "db")]).await, [Waits]);
    assert_eq!(store.job(&single).await.status, JobStatus::Active);
    store.cancel(&single).await;
    assert_eq!(store.block(&[block(&single, "", 2, "db")]).await, [Over]);
}

async fn condition_hears_what_its_canaries_do(store: TestStore) {
    let job = split(&store, "j", 9).await;
    let blocks: Vec<_> = (1..=8)
        .map(|n| block(&job, &n.to_string(), 1, "db"))
        .collect();
    store.block(&blocks).await;
    assert_eq!(store.let_canary_go("db").await.tasks, 1);
    assert_eq!(store.sent().await, ["1-1"]);
    store.complete(&job, &["9"]).await;
    assert_eq!(store.heard("db").await, None, "no canary");
    store.complete(&job, &["1"]).await;
    assert_eq!(store.heard("db").await, Some(Heard::Ended));
    assert_eq!(store.next_condition().await.unwrap(), Some(Duration::ZERO));

    store.let_canary_go("db").await;
    store
        .report(&job, "2", EventKind::Failed(failure("X")))
        .await;
    assert_eq!(
        store.heard("db").await,
        Some(Heard::Ended),
        "a failure is an end"
    );

    store.let_canary_go("db").await;
    store.block(&[block(&job, "3", 2, "db")]).await;
    assert_eq!(store.heard("db").await, Some(Heard::Again));

    let stepped = store.let_canary_go("db").await;
    assert_eq!((stepped.tasks, stepped.waiting), (1, 5), "3 waits again");
    store.block(&[block(&job, "3", 3, "other")]).await;
    assert_eq!(store.heard("db").await, Some(Heard::Elsewhere));
    assert_eq!(store.heard("other").await, None);

    store.let_canary_go("db").await;
    store.cancel(&job).await;
    while store.unpark_tasks(2).await.unwrap() {}
    assert_eq!(store.heard("db").await, Some(Heard::Elsewhere));
}

async fn canary_of_a_deleted_job_is_lost_at_once(store: TestStore) {
    let [deleted, other] = [split(&store, "d", 2).await, split(&store, "o", 2).await];
    store
        .block(&[block(&deleted, "1", 1, "db"), block(&other, "1", 1, "db")])
        .await;
    store.let_canary_go("db").await;
    assert_eq!(store.sent().await, ["1-1"]);
    store.delete(&deleted).await;
    let next = store.claim_condition(MINUTE).await.unwrap().unwrap().row;
    assert_eq!(
        (next.heard, next.waiting, next.canaries),
        (Some(Heard::Elsewhere), 1, 0)
    );
}

async fn news_during_a_step_makes_the_condition_due_at_once(store: TestStore) {
    let job = split(&store, "j", 2).await;
    store
        .block(&[block(&job, "1", 1, "db"), block(&job, "2", 1, "db")])
        .await;
    store.let_canary_go("db").await;
    let claimed = store.claim("db").await;
    store.complete(&job, &["1"]).await;
    let rest = step(ConditionPhase::Canary, ConditionAct::Nothing);
    store.take(&claimed, rest).await;
    let next = store.claim_condition(MINUTE).await.unwrap().unwrap().row;
    assert_eq!(
        (next.heard, next.phase),
        (Some(Heard::Ended), ConditionPhase::Canary)
    );
    let heard = step(ConditionPhase::Testing, ConditionAct::Nothing);
    store.take(&next, heard).await;
    assert!(store.claim_condition(MINUTE).await.unwrap().is_none());
    assert!(store.next_condition().await.unwrap().unwrap() > MINUTE / 2);
}

async fn step_of_a_claim_that_has_passed_on_does_nothing(store: TestStore) {
    let job = split(&store, "j", 2).await;
    store.block(&[block(&job, "1", 1, "db")]).await;
    let db = key("db");
    let due = store.command_condition(&db, ConditionPhase::Testing);
    due.await.unwrap();
    let first = store
        .claim_condition(Duration::ZERO)
        .await
        .unwrap()
        .unwrap()
        .row;
    let second = store.claim_condition(MINUTE).await.unwrap().unwrap().row;
    let release = step(ConditionPhase::Releasing, ConditionAct::Release(9));
    assert_eq!(store.step_condition(&first, &release).await.unwrap(), None);
    assert!(store.sent().await.is_empty());
    assert_eq!(store.take(&second, release.clone()).await.tasks, 1);
    let (db, unknown) = (key("db"), key("unknown"));
    let by_hand = store.command_condition(&db, ConditionPhase::Failing);
    assert!(by_hand.await.unwrap());
    assert_eq!(store.step_condition(&second, &release).await.unwrap(), None);
    let none = store.command_condition(&unknown, ConditionPhase::Failing);
    assert!(!none.await.unwrap());
}

async fn tasks_of_a_paused_job_leave_after_its_resume(store: TestStore) {
    let job = split(&store, "j", 3).await;
    store.pause(&job).await;
    store
        .block(&[block(&job, "1", 1, "db"), block(&job, "2", 1, "other")])
        .await;
    assert_eq!(store.let_canary_go("db").await.tasks, 0, "none may run");
    assert_eq!(store.release("other").await.tasks, 1);
    assert!(store.sent().await.is_empty());
    let mut signal = store.condition_signal();
    signal.mark_unchanged();
    store.resume(&job).await;
    let woken = harness::in_time("the condition to be due", signal.changed());
    woken.await.unwrap();
    assert_eq!(store.sent().await, ["2-1"]);
    assert_eq!(store.next_condition().await.unwrap(), Some(Duration::ZERO));
    assert_eq!(store.let_canary_go("db").await.tasks, 1);
    assert_eq!(store.sent().await, ["1-1"]);
}

async fn tasks_of_ended_jobs_wait_no_more(store: TestStore) {
    let [cancelled, deleted] = [split(&store, "c", 3).await, split(&store, "d", 3).await];
    for job in [&cancelled, &deleted] {
        let blocks = ["1", "2"].map(|path| block(job, path, 1, "db"));
        store.block(&blocks).await;
    }
    store.delete(&deleted).await;
    store.cancel(&cancelled).await;
    assert_eq!(store.release("db").await, Stepped::default());
    assert!(store.sent().await.is_empty());
    // The next round knows nothing of them.
    let again = split(&store, "r", 3).await;
    store
        .block(&[block(&again, "1", 1, "db"), block(&again, "2", 1, "db")])
        .await;
    store.release("db").await;
    store.block(&[block(&again, "1", 2, "db")]).await;
    store.cancel(&again).await;
    let start = |_: &Incarnation, _: &store::Definition| Ok(b"again".to_vec());
    let retried = store
        .retry_job(&again.partition, &again.job, false, &start)
        .await
        .unwrap();
    let Retry::Begun(begun) = retried else {
        panic!("{retried:?}")
    };
    assert_eq!(store.job(&again).await.blocked, None);
    assert_eq!(
        store.block(&[block(&again, "1", 3, "db")]).await,
        [Blocking::Over]
    );
    assert_eq!(
        store.block(&[block(&begun.job, "1", 1, "db")]).await,
        [Blocking::Waits]
    );
}

async fn tasks_of_an_expired_condition_fail_as_reported(store: TestStore) {
    let job = split(&store, "j", 3).await;
    let stops = store.started("stops").await;
    let mut blocks = [
        block(&job, "1", 1, "db"),
        block(&job, "2", 1, "db"),
        block(&stops, "", 1, "db"),
    ];
    let label = store::Header::Text("a.tif".to_owned());
    let headers = &mut blocks[1].message.headers;
    headers.insert(LABEL_HEADER.to_owned(), label);
    store.block(&blocks).await;
    let fail = |limit| {
        step(
            ConditionPhase::Failing,
            ConditionAct::Fail(limit, Box::new(failure("DATABASE"))),
        )
    };
    let claimed = store.claim("db").await;
    let stepped = store.take(&claimed, fail(2)).await;
    assert_eq!((stepped.tasks, stepped.waiting), (2, 1));
    let claimed = store.claim("db").await;
    let stepped = store.take(&claimed, fail(2)).await;
    assert_eq!((stepped.tasks, stepped.waiting), (1, 0));
    assert_eq!(store.status(&stops).await, JobStatus::Failed);
    let failed = store.job(&job).await;
    assert_eq!(failed.failed_tasks, 2);
    let labels = failed.failures.iter().map(|it| it.label.as_deref());
    let labels: BTreeSet<_> = labels.collect();
    assert_eq!(labels, BTreeSet::from([None, Some("a.tif")]));
    store.complete(&job, &["3"]).await;
    assert_eq!(
        store.status(&job).await,
        JobStatus::Failed,
        "it does not tolerate them"
    );
    assert!(store.sent().await.is_empty());
}

async fn job_says_what_blocks_it_and_whether_nothing_else_is_under_way(store: TestStore) {
    let job = split(&store, "j", 4).await;
    let blocked = async || store.job(&job).await.blocked;
    assert_eq!(blocked().await, None);
    store
        .block(&[block(&job, "1", 1, "db"), block(&job, "2", 1, "db")])
        .await;
    store.complete(&job, &["3"]).await;
    let before = blocked().await.unwrap();
    assert_eq!(
        (before.tasks, before.nothing_else_under_way),
        (2, false),
        "4 is under way"
    );
    store.block(&[block(&job, "4", 1, "other")]).await;
    let now = blocked().await.unwrap();
    assert_eq!((now.tasks, now.nothing_else_under_way), (3, true));
    assert_eq!(now.since, before.since);
    let by = store.blocked_by(job.number).await.unwrap();
    let by: Vec<_> = by
        .into_iter()
        .map(|(row, tasks)| (row.key, tasks))
        .collect();
    assert_eq!(by, [(key("db"), 2), (key("other"), 1)]);
    store.let_canary_go("db").await;
    let during = blocked().await.unwrap();
    assert_eq!(
        (during.tasks, during.nothing_else_under_way),
        (2, false),
        "the canary is under way"
    );
    store
        .report(&job, "1", EventKind::Failed(failure("X")))
        .await;
    let single = store.started("single").await;
    store.block(&[block(&single, "", 1, "db")]).await;
    split(&store, "other", 2).await;
    // A list says the same of each job, and a filter finds those of which tasks wait.
    let list = async |filter: Option<Filter>| {
        let query = JobQuery {
            filter,
            limit: 9,
            ..JobQuery::default()
        };
        let listed = store.jobs(&job.partition, &query).await.unwrap();
        let shown = |job: rest::Job| {
            let tasks = job.blocked.as_ref().map(|blocked| blocked.tasks);
            (job.shown_status(), tasks, job.id)
        };
        listed.into_iter().map(shown).collect::<Vec<_>>()
    };
    let blocked = [
        (JobStatus::Blocked, Some(1), "single".to_owned()),
        (JobStatus::Blocked, Some(2), "j".to_owned()),
    ];
    let waits = Filter::BlockedTasks(Comparison::Greater, 0.0);
    assert_eq!(list(Some(waits)).await, blocked);
    let is_blocked = |is| list(Some(Filter::ShownAsBlocked(is)));
    assert_eq!(is_blocked(true).await, blocked);
    let [single, j] = blocked;
    let other = (JobStatus::Active, None, "other".to_owned());
    assert_eq!(is_blocked(false).await, std::slice::from_ref(&other));
    assert_eq!(list(None).await, [other, single, j]);
    // To the store, all three are Active.
    let active = Filter::Status(vec![JobStatus::Active]);
    assert_eq!(list(Some(active)).await.len(), 3);
    let all = JobQuery::default();
    let counted = store.count_jobs_by_status(&job.partition, &all);
    let mut counted = counted.await.unwrap();
    counted.sort();
    let shown = [(JobStatus::Active, 1), (JobStatus::Blocked, 2)];
    assert_eq!(counted, shown);
    let shown = shown.map(|(status, jobs)| (status.name(), jobs));
    assert_eq!(store.backlog().await.unwrap().jobs, shown.into());
    let blocked = JobQuery {
        limit: 9,
        ..JobQuery::default().shown_as(JobStatus::Blocked)
    };
    // The canary ends with the rest of the job.
    store.cancel("single").await;
    let found = store.jobs(&job.partition, &blocked).await.unwrap();
    assert_eq!(found.iter().map(|job| &*job.id).collect::<Vec<_>>(), ["j"]);
}

async fn conditions_are_listed_counted_and_forgotten_only_without_tasks(store: TestStore) {
    let [a, b] = [split(&store, "a", 5).await, split(&store, "b", 5).await];
    store
        .block(&[
            block(&a, "1", 1, "db"),
            block(&a, "2", 1, "db"),
            block(&b, "1", 1, "db"),
        ])
        .await;
    store.block(&[block(&b, "2", 1, "other")]).await;
    let all = ConditionQuery {
        limit: 9,
        ..ConditionQuery::default()
    };
    let list = async |query: ConditionQuery| {
        let rows = store.conditions(&query).await.unwrap();
        rows.into_iter()
            .map(|row| (row.key, row.waiting))
            .collect::<BTreeSet<_>>()
    };
    let (db, other) = ((key("db"), 3), (key("other"), 1));
    assert_eq!(list(all.clone()).await, [db.clone(), other.clone()].into());
    let of_job = ConditionQuery {
        partition: Some("acme".into()),
        job: Some("a".into()),
        ..all.clone()
    };
    assert_eq!(list(of_job).await, [db.clone()].into());
    let none = ConditionQuery {
        code: Some("QUOTA_EXCEEDED".into()),
        ..all.clone()
    };
    assert_eq!(list(none).await, BTreeSet::new());
    let (first, second) = if key("db") < key("other") {
        (&db, &other)
    } else {
        (&other, &db)
    };
    let rest = ConditionQuery {
        after: Some(first.0.clone()),
        ..all
    };
    assert_eq!(list(rest).await, [second.clone()].into());
    let jobs = store.waiting_jobs(&key("db"), 9).await.unwrap();
    let jobs: Vec<_> = jobs.iter().map(|it| (it.job.as_str(), it.tasks)).collect();
    assert_eq!(jobs, [("a", 2), ("b", 1)]);
    let full = store.full_conditions(3, 9).await.unwrap();
    let full: Vec<_> = full
        .iter()
        .map(|it| (&it.key, it.pipe.as_str(), it.tasks))
        .collect();
    assert_eq!(full, [(&key("db"), "items", 3)]);

    let forget = || step(ConditionPhase::Idle, ConditionAct::Forget);
    let other = store.claim("other").await;
    assert_eq!(store.take(&other, forget()).await.waiting, 1);
    assert!(store.condition(&key("other")).await.unwrap().is_some());
    // A new task makes an idle condition due.
    store.release("other").await;
    let other = store.claim("other").await;
    store
        .take(&other, step(ConditionPhase::Idle, ConditionAct::Nothing))
        .await;
    store.block(&[block(&b, "3", 1, "other")]).await;
    let other = store.claim_condition(MINUTE).await.unwrap();
    assert!(other.is_some(), "it is due");
    store.release("other").await;
    let other = store.claim("other").await;
    store.take(&other, forget()).await;
    assert!(store.condition(&key("other")).await.unwrap().is_none());
}

async fn tasks_of_one_condition_too_many_wait_together_until_there_is_room(mut store: TestStore) {
    use Blocking::{Known, Waits};
    store
        .reopen_with(StoreOptions {
            max_conditions: 2,
            ..StoreOptions::default()
        })
        .await;
    let job = split(&store, "j", 9).await;
    let common = Condition::common().key();
    let (a, b) = (key("a"), key("b"));
    // Some are known before, others come at once.
    assert_eq!(store.block(&[block(&job, "1", 1, "a")]).await, [Waits]);
    let of = [("2", "a"), ("3", "b"), ("4", "b")];
    let at_once = of.map(|(path, database)| block(&job, path, 1, database));
    assert_eq!(store.block(&at_once).await, [Waits; 3]);
    let random = [("5", "c"), ("6", "d")].map(|(path, database)| block(&job, path, 1, database));
    assert_eq!(store.block(&random).await, [Waits; 2]);
    assert_eq!(store.block(&random).await, [Known; 2]);
    let counted = [(a.clone(), 2, 0), (b.clone(), 2, 0), (common.clone(), 2, 0)];
    assert_eq!(store.counted().await, counted.into());
    // One that waits together with others may test for them, as for any condition.
    let canary = async || {
        let claimed = store.claim_key(&common).await;
        let canary = step(ConditionPhase::Canary, ConditionAct::Canary);
        assert_eq!(store.take(&claimed, canary).await.tasks, 1);
        store.sent().await
    };
    let heard = async || store.condition(&common).await.unwrap().unwrap().heard;
    assert_eq!(canary().await, ["5-1"]);
    assert!(store.counted().await.contains(&(common.clone(), 1, 1)));
    assert_eq!(store.block(&[block(&job, "5", 2, "c")]).await, [Waits]);
    assert_eq!(heard().await, Some(Heard::Again));
    let claimed = store.claim_key(&common).await;
    let rest = step(ConditionPhase::Testing, ConditionAct::Nothing);
    store.take(&claimed, rest).await;
    // When there is room, it waits for its own condition.
    store.release("b").await;
    store.complete(&job, &["3", "4"]).await;
    let claimed = store.claim("b").await;
    let forget = step(ConditionPhase::Idle, ConditionAct::Forget);
    store.take(&claimed, forget).await;
    store.sent().await;
    assert_eq!(canary().await, ["5-2"]);
    assert_eq!(store.block(&[block(&job, "5", 3, "c")]).await, [Waits]);
    assert_eq!(heard().await, Some(Heard::Elsewhere));
    let counted = [(a, 2, 0), (key("c"), 1, 0), (common.clone(), 1, 0)];
    assert_eq!(store.counted().await, counted.into());
}

async fn steps_of_a_condition_wake_those_who_watch_its_jobs(store: TestStore) {
    let job = split(&store, "j", 3).await;
    let other = store.in_another_process().await;
    store.block(&[block(&job, "1", 1, "db")]).await;
    let mut signal = other.job_signal(&job.partition, &job.job);
    assert!(signal.also_conditions([key("db").as_str()]));
    assert!(!signal.also_conditions([key("db").as_str()]));
    let claimed = store.claim("db").await;
    harness::in_time("the command to be seen", signal.changed()).await;
    let tested = step(ConditionPhase::Testing, ConditionAct::Nothing);
    store.take(&claimed, tested).await;
    harness::in_time("the test to be seen", signal.changed()).await;
}

async fn concurrent_blocks_releases_and_ends_leave_no_task_twice_or_nowhere(store: TestStore) {
    const TASKS: u32 = 40;
    let jobs = [
        split(&store, "a", TASKS).await,
        split(&store, "b", TASKS).await,
    ];
    let other = store.in_another_process().await;
    let paths = || (1..=TASKS).map(|n| n.to_string());
    let blocking = join_all(jobs.iter().map(|job| async {
        for path in paths() {
            let copies = [block(job, &path, 1, "db"), block(job, &path, 1, "db")];
            store.block(&copies).await;
        }
    }));
    let releasing = async {
        let mut sent = Vec::new();
        for _ in 0..60 {
            let phase = ConditionPhase::Releasing;
            other.command_condition(&key("db"), phase).await.unwrap();
            if let Some(claimed) = other.claim_condition(MINUTE).await.unwrap() {
                let release = step(phase, ConditionAct::Release(3));
                let stepped = other.step_condition(&claimed.row, &release);
                stepped.await.unwrap();
            }
            let claim = other.claim_outbox(100, u64::MAX, MINUTE).await.unwrap();
            let ids: Vec<i64> = claim.messages.iter().map(|message| message.id).collect();
            other.outbox_sent(&ids).await.unwrap();
            sent.extend(texts(claim.messages));
        }
        sent
    };
    let (_, mut sent) = tokio::join!(blocking, releasing);
    store.release("db").await;
    sent.extend(store.sent().await);
    sent.sort();
    let mut expected: Vec<String> = paths()
        .flat_map(|path| [format!("{path}-1"), format!("{path}-1")])
        .collect();
    expected.sort();
    assert_eq!(sent, expected);
}
