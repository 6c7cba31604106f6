//! Rows of dead letters, conditions and tasks that wait, as the build that began to keep them wrote them: without the headers that came
//! later, which name the item and, in a letter, count its blocks. This build goes on with them.

use contract::rest::LetterCause;
use contract::{Condition, ConditionCode, JobStatus};
use store::{
    Blocking, ConditionAct, ConditionPhase, ConditionQuery, Heard, Incarnation, LetterQuery,
    NewMessage, Replay,
};

use crate::blocked::{block_by, split, step};
use crate::fixture::{MINUTE, TestStore, failed, failure};

// A store in memory has no rows of an earlier build.
suite!(@ sqlite, tasks_that_wait_are_counted_released_and_failed, dead_letters_are_listed_counted_replayed_and_deleted);
suite!(@ postgres, tasks_that_wait_are_counted_released_and_failed, dead_letters_are_listed_counted_replayed_and_deleted);

/// The keys that the earlier build made of these conditions.
const ORDERS: &str = "14221fc2bfce93563fd488e99eeba399";
const MAIL: &str = "73fa09433a2d0253f66ef5c230e20509";

fn condition(database: &str) -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
        .parameter("database", database)
        .unwrap()
}

impl TestStore {
    /// Writes a condition that was tested three times, and is not due.
    async fn write_condition(&self, key: &str, database: &str, phase: &str) {
        let json = format!(
            r#"{{"code":"DATABASE_NOT_AVAILABLE","parameters":{{"database":"{database}"}},"tester":{{"kind":"canary"}},"policy":"constant,delay=1m","reason":"it is away"}}"#
        );
        self.write(&format!(
            "insert into wait_condition (condition_key, condition, code, since, tests, tested_time, result, phase, pace, next_time, \
             heard, news, lease, leased_until) values ('{key}', '{json}', 'DATABASE_NOT_AVAILABLE', 1700000000000, 3, 1700000060000, \
             'it did not pass', '{phase}', 0, 4102444800000, null, 2, 5, 1700000130000)"
        ))
        .await;
    }

    /// Writes a task that was blocked so often, with its message if it waits.
    async fn write_block(
        &self,
        job: &Incarnation,
        (path, blocks): (&str, u32),
        (key, state): (&str, &str),
        headers: &str,
    ) {
        let (incarnation, identity) = (job.number, self.blob(path));
        let body = match state {
            "waiting" => self.blob(&format!("{path}-{blocks}")),
            _ => "null".to_owned(),
        };
        self.write(&format!(
            "insert into blocked_task (incarnation, path, identity, round, blocks, condition_key, state, time, pipe, body, headers) \
             values ({incarnation}, '{path}', {identity}, 1, {blocks}, '{key}', '{state}', 1700000000000, 'items', {body}, {headers})"
        ))
        .await;
        self.write(&format!(
            "update job set blocked_tasks = blocked_tasks + 1 where incarnation = {incarnation}"
        ))
        .await;
    }

    /// Writes a letter of 100 bytes, and adds it to the sums.
    async fn write_letter(&self, body: &str, task: Option<(&Incarnation, &str)>, rest: &str) {
        let (identity, blob) = (self.blob(&format!("identity of {body}")), self.blob(body));
        let (job, path) = task.unzip();
        let job = job.map_or(("null", "null".to_owned()), |job| {
            ("'acme'", format!("'{}'", job.job))
        });
        let path = path.map_or("null".to_owned(), |path| format!("'{path}'"));
        let (partition, job) = job;
        self.write(&format!(
            "insert into dead_letter (identity, time, cause, reason, pipe, origin, partition_id, job_id, path, body, body_bytes, bytes, \
             worker, attempts, label, headers) values ({identity}, 1700000000000, 'givenUp', 'no luck', 'w-reject', 'w-in', \
             {partition}, {job}, {path}, {blob}, {}, 100, {rest})",
            body.len()
        ))
        .await;
        let of_all = "update dead_letter_sum set letters = letters + 1, bytes = bytes + 100 where partition_id = ''";
        self.write(of_all).await;
        if task.is_some() {
            self.write(&format!(
                "insert into dead_letter_sum (partition_id, job_id, letters, bytes, overflowed, expired) values ({partition}, {job}, 1, \
                 100, 0, 0) on conflict (partition_id, job_id) do update set letters = dead_letter_sum.letters + 1, \
                 bytes = dead_letter_sum.bytes + 100"
            ))
            .await;
        }
    }

    async fn step(&self, database: &str, phase: ConditionPhase, act: ConditionAct) -> (u64, u64) {
        let key = condition(database).key();
        let found = self.command_condition(&key, ConditionPhase::Testing).await;
        assert!(found.unwrap());
        let claimed = self.claim_condition(MINUTE).await.unwrap().unwrap().row;
        assert_eq!(claimed.key, key);
        let stepped = self.step_condition(&claimed, &step(phase, act)).await;
        let stepped = stepped.unwrap().unwrap();
        (stepped.tasks, stepped.waiting)
    }
}

async fn tasks_that_wait_are_counted_released_and_failed(mut store: TestStore) {
    use Blocking::{Known, Waits};
    let job = split(&store, "j", 5).await;
    store.write_condition(ORDERS, "orders", "canary").await;
    store.write_condition(MAIL, "mail", "testing").await;
    let counted = r#"'{"x-batchwright-blocks":2,"x-note":"kept"}'"#;
    let rows = [
        (("1", 1), (ORDERS, "waiting"), "null"),
        (("2", 2), (ORDERS, "waiting"), counted),
        (("3", 1), (ORDERS, "released"), "null"),
        (("4", 1), (ORDERS, "canary"), "null"),
        (("5", 1), (MAIL, "waiting"), "null"),
    ];
    for (task, wait, headers) in rows {
        store.write_block(&job, task, wait, headers).await;
    }
    store.reopen().await;

    let all = ConditionQuery {
        limit: 9,
        ..ConditionQuery::default()
    };
    let listed = store.conditions(&all).await.unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|row| (row.key.as_str(), row.waiting, row.canaries, row.tests))
        .collect();
    assert_eq!(listed, [(ORDERS, 2, 1, 3), (MAIL, 1, 0, 3)]);
    let orders = store.condition(&condition("orders").key()).await.unwrap();
    let orders = orders.expect("its key is the same as that of the earlier build");
    assert_eq!(orders.condition.reason(), "it is away");
    assert_eq!(
        (orders.phase, orders.result.as_deref()),
        (ConditionPhase::Canary, Some("it did not pass"))
    );
    let blocked = store.job(&job).await.blocked.unwrap();
    assert_eq!((blocked.tasks, blocked.nothing_else_under_way), (3, false));

    // The numbers of the earlier build go on, whether or not a header says them.
    let of = |path, number| block_by(&job, path, number, condition("orders"));
    let copies = [of("1", 1), of("2", 2), of("3", 1), of("4", 1)];
    assert_eq!(store.block_tasks(&copies).await.unwrap(), [Known; 4]);
    let again = store.block_tasks(&[of("3", 2)]).await.unwrap();
    assert_eq!(again, [Waits]);
    assert_eq!(store.heard("orders").await, Some(Heard::Again));
    store.complete(&job, &["4"]).await;
    assert_eq!(store.heard("orders").await, Some(Heard::Ended));

    let release = ConditionAct::Release(9);
    let released = store.step("orders", ConditionPhase::Releasing, release);
    assert_eq!(released.await, (3, 0));
    let sent = store.outbox(9).await.unwrap();
    let headers: Vec<_> = sent.iter().map(|message| message.headers.len()).collect();
    assert_eq!(headers, [0, 2, 1], "those that each had");
    assert_eq!(store.sent().await, ["1-1", "2-2", "3-2"]);
    let fail = ConditionAct::Fail(9, Box::new(failure("DATABASE")));
    let given_up = store.step("mail", ConditionPhase::Failing, fail);
    assert_eq!(given_up.await, (1, 0));
    store.complete(&job, &["1", "2", "3"]).await;
    let ended = store.job(&job).await;
    assert_eq!((ended.status, ended.blocked), (JobStatus::Failed, None));
    assert_eq!((ended.completed_items, ended.failed_tasks), (4, 1));
    assert_eq!(ended.failures[0].label, None, "nobody has named the item");
}

async fn dead_letters_are_listed_counted_replayed_and_deleted(mut store: TestStore) {
    let job = split(&store, "j", 3).await;
    store.write_condition(ORDERS, "orders", "idle").await;
    let released = (ORDERS, "released");
    store.write_block(&job, ("2", 1), released, "null").await;
    store
        .write_letter("one", Some((&job, "1")), "null, null, null, null")
        .await;
    let headers = r#"'w', 3, 'a.tif', '{"traceparent":"00","x-batchwright-label":"a.tif"}'"#;
    store.write_letter("two", Some((&job, "2")), headers).await;
    store
        .write_letter("noise", None, "null, null, null, null")
        .await;
    let other = "null, null, null, null";
    store.write_letter("rest", Some((&job, "3")), other).await;
    store.reopen().await;

    let all = LetterQuery {
        limit: 9,
        ..LetterQuery::default()
    };
    let mut letters = store.letters(&all).await.unwrap();
    letters.reverse();
    let labels: Vec<_> = letters
        .iter()
        .map(|letter| letter.content.label.as_deref())
        .collect();
    assert_eq!(labels, [None, Some("a.tif"), None, None]);
    let known = letters
        .iter()
        .all(|letter| letter.content.cause == LetterCause::GivenUp && !letter.cut);
    assert!(known, "{letters:?}");
    let counts = store.count_letters().await.unwrap();
    assert_eq!((counts.letters, counts.bytes), (4, 400));
    let of_job = store.count_letters_of(&job.partition, &job.job).await;
    assert_eq!(of_job.unwrap().letters, 3);

    // They are given up, as their worker has said, before a person sends them again.
    for path in ["1", "2"] {
        store.report(&job, path, failed("GIVEN_UP")).await;
    }
    let ids: Vec<i64> = letters.iter().map(|letter| letter.id).collect();
    let again = |letter: &store::Letter, _: Option<&Incarnation>| {
        Ok(NewMessage {
            pipe: letter.content.origin.clone().unwrap(),
            body: letter.content.body.clone(),
            headers: letter.content.headers.clone(),
        })
    };
    for of_one in [&ids[..2], &ids[2..3]] {
        let replayed = store.replay_letters(of_one, again).await.unwrap();
        let is_sent = |(_, replay): &(i64, Replay)| matches!(replay, Replay::Sent { .. });
        assert!(replayed.iter().all(is_sent), "{replayed:?}");
    }
    assert_eq!(store.sent().await, ["one", "two", "noise"]);
    assert_eq!(store.job(&job).await.failed_tasks, 0);
    // The letter does not count the block before it, which is forgotten with the failure: this one is no copy of it.
    let blocked = [block_by(&job, "2", 1, condition("orders"))];
    assert_eq!(
        store.block_tasks(&blocked).await.unwrap(),
        [Blocking::Waits]
    );
    assert_eq!(store.delete_letters(&ids).await.unwrap(), 1, "the last one");
    let counts = store.count_letters().await.unwrap();
    assert_eq!((counts.letters, counts.bytes), (0, 0));
    let of_job = store.count_letters_of(&job.partition, &job.job).await;
    assert_eq!(of_job.unwrap().letters, 0);
}
