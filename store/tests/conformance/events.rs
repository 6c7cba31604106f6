//! What happens to all jobs, in one order.

use std::time::Duration;

use contract::PartitionId;
use sqlx::{Connection as _, Executor as _, PgConnection};
use store::{JobEvent, JobQuery, JobRequest, SettledEvents, StoreOptions};

use crate::fixture::{TestStore, acme, after, create, failed, id, request};

suite![
    every_change_of_a_job_is_one_event_in_the_order_of_its_history,
    events_of_a_partition_are_those_of_its_jobs,
    deletion_says_who_and_why,
    what_is_rolled_back_is_no_event,
    events_are_bounded_by_their_number_and_their_age,
];

/// Reads as a reader of the job service does: no further than what is settled.
#[derive(Default)]
struct Reader {
    settled: SettledEvents,
    last: i64,
}

impl Reader {
    async fn new_events(&mut self, store: &TestStore) -> Vec<JobEvent> {
        let Some(up_to) = self.settled.look(store).await.unwrap() else {
            return Vec::new();
        };
        let page = store.events(None, self.last, up_to, 1000).await.unwrap();
        self.last = up_to;
        page.events
    }

    async fn lines(&mut self, store: &TestStore) -> Vec<String> {
        let events = self.new_events(store).await;
        let status =
            |status: Option<contract::JobStatus>| status.map_or("-", contract::JobStatus::name);
        let line = |it: &JobEvent| format!("{} {} {}", it.job, status(it.from), status(it.to));
        events.iter().map(line).collect()
    }
}

async fn every_change_of_a_job_is_one_event_in_the_order_of_its_history(store: TestStore) {
    let mut reader = Reader::default();
    let first = store.create("first").await;
    store.create_scheduled("second", after(&["first"])).await;
    assert_eq!(
        reader.lines(&store).await,
        ["first - Waiting", "second - Waiting"]
    );
    assert_eq!(reader.lines(&store).await, [""; 0]);
    store.complete(&first, &["2"]).await;
    store.report(&first, "1", failed("BROKEN")).await;
    let asked = store.for_request(Some("delete-it"));
    assert!(asked.delete_job(&acme(), &id("second")).await.unwrap());
    store.create("second").await;
    let events = reader.new_events(&store).await;
    let history = store.history("first").await;
    let of_first: Vec<_> = events.iter().filter(|it| it.job == "first").collect();
    assert_eq!(of_first.len(), 2);
    for (event, step) in of_first.into_iter().zip(&history[1..]) {
        assert_eq!(
            (event.time, event.from, event.to, event.round),
            (step.time, step.from, Some(step.to), step.round)
        );
        assert_eq!(event.actor.as_deref(), Some(&*step.actor));
        assert_eq!(event.reason.as_deref(), Some(&*step.reason));
    }
    let of_second = events.iter().filter(|it| it.job == "second");
    let steps: Vec<_> = of_second
        .map(|it| (it.from.is_some(), it.to.is_some()))
        .collect();
    assert_eq!(steps, [(true, true), (true, false), (false, true)]);
    let fell = events.iter().find(|it| it.prerequisite.is_some()).unwrap();
    assert_eq!(
        (&*fell.job, fell.prerequisite.as_deref()),
        ("second", Some("first"))
    );
    assert!(events.is_sorted_by(|a, b| a.id < b.id));
}

async fn events_of_a_partition_are_those_of_its_jobs(store: TestStore) {
    store.create("here").await;
    let partition = PartitionId::parse("there").unwrap();
    let there = JobRequest {
        partition,
        ..request("elsewhere")
    };
    create(&store, &there).await;
    let last = store.last_event().await.unwrap();
    for (partition, jobs) in [
        ("acme", &["here"][..]),
        ("there", &["elsewhere"]),
        ("no", &[]),
    ] {
        let page = store.events(Some(partition), 0, last, 10).await.unwrap();
        let found: Vec<&str> = page.events.iter().map(|it| &*it.job).collect();
        assert_eq!(found, jobs, "{partition}");
    }
    let first = store.events(None, 0, last, 1).await.unwrap().events;
    assert_eq!(first[0].job, "here");
    let recent = store.first_event_within(Duration::from_hours(1)).await;
    assert_eq!(recent.unwrap(), Some(first[0].id));
}

async fn deletion_says_who_and_why(store: TestStore) {
    let expiring = JobRequest {
        expiry: contract::rest::Expiry {
            cancelled: Some(contract::rest::ExpiryPolicy {
                expiry_time: "lastUpdateTime+PT0S".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..request("expired")
    };
    store.create_with(expiring).await;
    for job in ["one", "many", "replaced"] {
        store.create(job).await;
    }
    let asked = store.for_request(Some("the-request"));
    assert!(asked.delete_job(&acme(), &id("one")).await.unwrap());
    let many = JobQuery {
        id_prefix: Some("many".to_owned()),
        ..JobQuery::default()
    };
    asked.delete_some_jobs(&acme(), &many, 10).await.unwrap();
    store.cancel("expired").await;
    assert_eq!(store.sweep().await.unwrap().jobs, 1);
    store.cancel("replaced").await;
    let replaces = Some(store.job("replaced").await.incarnation);
    let again = JobRequest {
        replaces,
        correlation_id: Some("the-new-one".to_owned()),
        ..request("replaced")
    };
    create(&store, &again).await;
    let events = Reader::default().new_events(&store).await;
    let deletions = events.iter().filter(|it| it.to.is_none());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let said: Vec<_> = deletions
        .map(|it| [&it.actor, &it.reason, &it.correlation_id].map(text))
        .collect();
    assert_eq!(
        said,
        [
            ["client", "deleted", "the-request"],
            ["client", "deleted with all that match", "the-request"],
            ["service", "its time was over", ""],
            ["client", "replaced by a new job", "the-new-one"],
        ]
    );
}

async fn what_is_rolled_back_is_no_event(store: TestStore) {
    store.create("j").await;
    let mut reader = Reader::default();
    reader.new_events(&store).await;
    create(&store, &request("j")).await;
    assert_eq!(reader.lines(&store).await, [""; 0]);
}

async fn events_are_bounded_by_their_number_and_their_age(mut store: TestStore) {
    let three = StoreOptions {
        most_events: 3,
        ..StoreOptions::default()
    };
    store.reopen_with(three).await;
    for job in ["a", "b", "c", "d", "e"] {
        store.create(job).await;
    }
    let last = store.last_event().await.unwrap();
    assert_eq!(store.events(None, 0, last, 10).await.unwrap().swept, 0);
    store.sweep().await.unwrap();
    let kept = store.events(None, 0, last, 10).await.unwrap();
    assert_eq!((kept.events.len(), kept.swept), (3, last - 3));
    let none = StoreOptions {
        events_kept: Duration::ZERO,
        ..StoreOptions::default()
    };
    store.reopen_with(none).await;
    store.sweep().await.unwrap();
    let kept = store.events(None, 0, last, 10).await.unwrap();
    assert_eq!((kept.events.len(), kept.swept), (0, last));
    // Ids are not given again, although no event is left.
    assert_eq!(store.last_event().await.unwrap(), last);
    store.create("f").await;
    assert_eq!(store.last_event().await.unwrap(), last + 1);
}

/// Begins a transaction that changes the status of a job, as a service of another version may.
async fn begin(store: &TestStore, job: &str) -> PgConnection {
    let mut session = PgConnection::connect(store.url()).await.unwrap();
    let insert = format!(
        "begin; insert into batchwright.history (incarnation, time, from_status, to_status, round, actor, reason) \
         select incarnation, 1, 'Waiting', 'Active', 1, 'tracking', 'test' from batchwright.job where job_id = '{job}'"
    );
    session
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(insert)))
        .await
        .unwrap();
    session
}

async fn end(mut session: PgConnection, how: &'static str) {
    session.execute(how).await.unwrap();
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_skips_no_event_of_transactions_that_commit_in_the_other_order() {
    let store = TestStore::open("postgres").await;
    let test = async {
        for job in ["a", "b", "c"] {
            store.create(job).await;
        }
        let mut reader = Reader::default();
        assert_eq!(reader.lines(&store).await.len(), 3);
        let mut signal = store.event_signal();
        signal.mark_unchanged();
        let (a, b) = (begin(&store, "a").await, begin(&store, "b").await);
        end(b, "commit").await;
        signal.changed().await.unwrap();
        assert_eq!(reader.lines(&store).await, [""; 0], "a is open");
        assert!(reader.settled.waits());
        let c = begin(&store, "c").await;
        end(a, "commit").await;
        // `c` got its id after the others, so they need not wait for it.
        assert_eq!(
            reader.lines(&store).await,
            ["a Waiting Active", "b Waiting Active"]
        );
        end(c, "rollback").await;
        assert_eq!(reader.lines(&store).await, [""; 0]);
        let (a, b) = (begin(&store, "a").await, begin(&store, "b").await);
        end(b, "commit").await;
        let mut late = Reader::default();
        assert_eq!(
            late.lines(&store).await,
            [""; 0],
            "it does not know what is settled"
        );
        end(a, "rollback").await;
        assert_eq!(reader.lines(&store).await, ["b Waiting Active"]);
        assert_eq!(late.lines(&store).await.len(), 6);
    };
    harness::in_time("the test to end", test).await;
}
