//! One suite for the three databases: what every store must do. Memory, a SQLite file, PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says so when something is not as it must be"
)]

#[macro_use]
mod place;

use std::collections::BTreeMap;
use std::time::Duration;

use contract::rest::TaskState;
use contract::{JobId, JobStatus, JobTaskId, OnFailure, PartitionId, ReportFailure};
use futures_util::future::join_all;
use store::{
    Cancellation, Creation, EventKind, Incarnation, JobQuery, JobRequest, Store, StoreOptions,
    Swept, TrackingEvent,
};

use place::Place;

/// A store of its own for each test.
struct World {
    store: Store,
    place: Place,
}

impl World {
    async fn open(kind: &str) -> Self {
        let place = Place::of(kind).await;
        let store = Store::open(&place.url).await.unwrap();
        assert_eq!(store.kind(), kind);
        Self { store, place }
    }

    /// Another process takes over; in memory there is none.
    async fn reopen(&mut self) {
        if self.store.kind() != "memory" {
            self.store.close().await;
            self.store = Store::open(&self.place.url).await.unwrap();
        }
    }

    async fn create(&self, partition: &str, job: &str, on_failure: OnFailure) -> Incarnation {
        match create(&self.store, &request(partition, job, on_failure)).await {
            Creation::Created(life) => life,
            other => panic!("{job}: {other:?}"),
        }
    }

    async fn job(&self, life: &Incarnation) -> contract::rest::Job {
        self.store
            .job(&life.partition, &life.job)
            .await
            .unwrap()
            .unwrap()
    }

    async fn task(&self, life: &Incarnation, path: &[u32]) -> Option<TaskState> {
        self.store
            .task(&life.partition, &life.job, path)
            .await
            .unwrap()
            .map(|task| task.status)
    }

    async fn complete(&self, life: &Incarnation, paths: &[&str]) {
        let events: Vec<_> = paths
            .iter()
            .map(|path| event(life, path, EventKind::Complete))
            .collect();
        self.store.record(&events).await.unwrap();
    }
}

fn request(partition: &str, job: &str, on_failure: OnFailure) -> JobRequest {
    JobRequest {
        name: Some(format!("the job {job}")),
        on_failure,
        content_hash: [7; 32],
        ..JobRequest::new(
            PartitionId::parse(partition).unwrap(),
            JobId::parse(job).unwrap(),
        )
    }
}

async fn create(store: &Store, request: &JobRequest) -> Creation {
    store
        .create_job(request, |life| {
            ("start".to_owned(), life.job_task_id().into_bytes())
        })
        .await
        .unwrap()
}

fn event(life: &Incarnation, path: &str, kind: EventKind) -> TrackingEvent {
    let dot = if path.is_empty() { "" } else { "." };
    TrackingEvent {
        task: JobTaskId::parse(&format!("{}{dot}{path}", life.job_task_id())).unwrap(),
        kind,
    }
}

fn failed(kind: &str) -> EventKind {
    EventKind::Failed(failure(kind))
}

fn failure(kind: &str) -> ReportFailure {
    let message = Some(format!("a {kind} of a failure\0, 'quoted' and ünusual"));
    ReportFailure {
        failure_id: Some(kind.to_owned()),
        failure_time: Some(7),
        failure_source: None,
        failure_message: message,
    }
}

async fn a_new_job_waits_and_its_start_message_is_in_the_outbox(world: World) {
    let mut asked = request("acme", "new", OnFailure::Continue);
    asked.labels = BTreeMap::from([
        ("tag:colour".to_owned(), Some("blue".to_owned())),
        ("bare".to_owned(), None),
    ]);
    let Creation::Created(life) = create(&world.store, &asked).await else {
        panic!("not created")
    };
    assert!(life.first);
    assert_eq!(life.job_task_id(), "acme:new");
    let job = world.job(&life).await;
    assert_eq!(
        (job.id.as_str(), job.status, job.percentage_complete),
        ("new", JobStatus::Waiting, 0.0)
    );
    assert_eq!(
        (job.name.as_deref(), job.on_failure, job.incarnation),
        (Some("the job new"), OnFailure::Continue, life.number)
    );
    assert_eq!(job.create_time, job.last_update_time);
    assert_eq!(job.labels, asked.labels);
    let messages = world.store.outbox(10).await.unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(
        (messages[0].pipe.as_str(), &messages[0].body[..]),
        ("start", &b"acme:new"[..])
    );
    world.store.outbox_sent(&[messages[0].id]).await.unwrap();
    world.store.outbox_sent(&[]).await.unwrap();
    assert_eq!(world.store.outbox(10).await.unwrap(), []);
    world.store.ping().await.unwrap();
}

async fn a_request_that_is_sent_again_changes_nothing_and_another_one_is_a_conflict(world: World) {
    let asked = request("acme", "again", OnFailure::Stop);
    let life = world.create("acme", "again", OnFailure::Stop).await;
    assert_eq!(create(&world.store, &asked).await, Creation::AlreadyThere);
    assert_eq!(
        create(
            &world.store,
            &JobRequest {
                content_hash: [8; 32],
                ..asked.clone()
            }
        )
        .await,
        Creation::Conflict
    );
    assert_eq!(world.store.outbox(10).await.unwrap().len(), 1);
    world.complete(&life, &[""]).await;
    let done = world.job(&life).await;
    assert_eq!(create(&world.store, &asked).await, Creation::AlreadyThere);
    assert_eq!(world.job(&life).await, done);
    // And what is done is not started.
    assert_eq!(world.store.outbox(10).await.unwrap(), []);
}

async fn of_identical_requests_at_once_one_creates_the_job(world: World) {
    for round in 0..10 {
        let asked = request("acme", &format!("race-{round}"), OnFailure::Stop);
        let answers = join_all((0..4).map(|_| create(&world.store, &asked))).await;
        let created = answers
            .iter()
            .filter(|answer| matches!(answer, Creation::Created(_)))
            .count();
        let there = answers
            .iter()
            .filter(|answer| **answer == Creation::AlreadyThere)
            .count();
        assert_eq!((created, there), (1, 3), "{answers:?}");
    }
    assert_eq!(world.store.outbox(100).await.unwrap().len(), 10);
}

async fn jobs_are_listed_by_time_and_filtered_by_prefix_and_status(world: World) {
    let names = ["a_1", "a_2", "A_3", "ax4", "b%5"];
    for name in names {
        world.create("list", name, OnFailure::Stop).await;
    }
    world.create("other", "a_1", OnFailure::Stop).await;
    let list = PartitionId::parse("list").unwrap();
    world
        .store
        .cancel_job(&list, &JobId::parse("a_2").unwrap())
        .await
        .unwrap();
    let ids = async |query: JobQuery| -> Vec<String> {
        let jobs = world.store.jobs(&list, &query).await.unwrap();
        let all = JobQuery {
            limit: 100,
            offset: 0,
            ..query.clone()
        };
        assert_eq!(
            world.store.count_jobs(&list, &query).await.unwrap(),
            world.store.jobs(&list, &all).await.unwrap().len() as u64
        );
        jobs.into_iter().map(|job| job.id).collect()
    };
    let all = JobQuery {
        limit: 100,
        ..JobQuery::default()
    };
    let oldest_first = store::Sort {
        ascending: true,
        ..store::Sort::default()
    };
    assert_eq!(ids(all.clone()).await, ["b%5", "ax4", "A_3", "a_2", "a_1"]);
    assert_eq!(
        ids(JobQuery {
            sort: oldest_first.clone(),
            ..all.clone()
        })
        .await,
        names
    );
    assert_eq!(
        ids(JobQuery {
            id_prefix: Some("a_".to_owned()),
            ..all.clone()
        })
        .await,
        ["a_2", "a_1"]
    );
    assert_eq!(
        ids(JobQuery {
            id_prefix: Some("b%".to_owned()),
            ..all.clone()
        })
        .await,
        ["b%5"]
    );
    assert_eq!(
        ids(JobQuery {
            statuses: vec![JobStatus::Cancelled, JobStatus::Failed],
            ..all.clone()
        })
        .await,
        ["a_2"]
    );
    assert_eq!(
        ids(JobQuery {
            limit: 2,
            offset: 1,
            sort: oldest_first,
            ..all.clone()
        })
        .await,
        ["a_2", "A_3"]
    );
    assert_eq!(
        ids(JobQuery {
            limit: 5,
            offset: 9,
            ..all
        })
        .await,
        [""; 0]
    );
}

async fn a_job_is_cancelled_once_and_its_unsent_message_is_not_sent(world: World) {
    let life = world.create("acme", "cancel", OnFailure::Stop).await;
    let cancel = async || {
        world
            .store
            .cancel_job(&life.partition, &life.job)
            .await
            .unwrap()
    };
    assert_eq!(cancel().await, Cancellation::Cancelled(vec![life.clone()]));
    assert_eq!(world.store.outbox(10).await.unwrap(), []);
    let before = world.job(&life).await;
    assert_eq!(
        (before.status, before.percentage_complete),
        (JobStatus::Cancelled, 0.0)
    );
    assert_eq!(cancel().await, Cancellation::AlreadyCancelled);
    let recorded = world
        .store
        .record(&[
            event(&life, "1*", EventKind::Complete),
            event(&life, "", EventKind::Complete),
        ])
        .await
        .unwrap();
    assert_eq!(recorded.ignored, 2);
    assert_eq!(world.job(&life).await, before);
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 0);

    let done = world.create("acme", "done", OnFailure::Stop).await;
    world.complete(&done, &["1*"]).await;
    let answer = world
        .store
        .cancel_job(&done.partition, &done.job)
        .await
        .unwrap();
    assert_eq!(answer, Cancellation::Finished(JobStatus::Completed));
    let nobody = JobId::parse("nobody").unwrap();
    assert_eq!(
        world
            .store
            .cancel_job(&done.partition, &nobody)
            .await
            .unwrap(),
        Cancellation::NotFound
    );
}

async fn only_reports_of_the_living_incarnation_count(world: World) {
    let mut past: Vec<Incarnation> = Vec::new();
    for round in 0..10 {
        let life = world.create("acme", "phoenix", OnFailure::Stop).await;
        assert_eq!(life.first, round == 0);
        assert!(past.iter().all(|earlier| earlier.number < life.number));
        // What earlier lives have left behind, and what a tracker would say to a plain id.
        let mut events: Vec<_> = past
            .iter()
            .map(|earlier| event(earlier, "1", EventKind::Complete))
            .collect();
        events.push(event(&life, "3", EventKind::Complete));
        let recorded = world.store.record(&events).await.unwrap();
        assert_eq!(recorded.ignored, round);
        assert_eq!(world.job(&life).await.completed_items, 1);
        let status = async |n| {
            world
                .store
                .job_status(&life.partition, &life.job, n)
                .await
                .unwrap()
        };
        assert_eq!(status(None).await, Some(JobStatus::Active));
        assert_eq!(status(Some(life.number)).await, Some(JobStatus::Active));
        for earlier in &past {
            assert_eq!(status(Some(earlier.number)).await, None);
        }
        assert!(
            world
                .store
                .delete_job(&life.partition, &life.job)
                .await
                .unwrap()
        );
        assert!(
            !world
                .store
                .delete_job(&life.partition, &life.job)
                .await
                .unwrap()
        );
        assert_eq!(status(None).await, None);
        assert_eq!(world.store.outbox(10).await.unwrap(), []);
        past.push(life);
    }
    // With the memory of past lives, the number in the id goes too.
    assert_eq!(world.store.sweep().await.unwrap().tables, 8);
    assert_eq!(world.store.sweep().await.unwrap().tables, 2);
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 0);
}

async fn a_job_is_done_when_all_its_tasks_are_in_whatever_order_and_however_often(
    mut world: World,
) {
    let life = world.create("acme", "tree", OnFailure::Stop).await;
    world
        .store
        .record(&[event(&life, "2", EventKind::Progress(0))])
        .await
        .unwrap();
    assert_eq!(world.job(&life).await.status, JobStatus::Waiting);
    world
        .store
        .record(&[event(&life, "4*", EventKind::Progress(0))])
        .await
        .unwrap();
    assert_eq!(world.job(&life).await.status, JobStatus::Waiting);
    assert_eq!(world.task(&life, &[2]).await, Some(TaskState::Waiting));
    assert_eq!(world.task(&life, &[5]).await, None);

    world
        .complete(&life, &["4*", "1", "1", "2.3*", "2.1"])
        .await;
    world.reopen().await;
    world.complete(&life, &["2.1", "1", "4"]).await;
    let job = world.job(&life).await;
    assert_eq!(
        (job.status, job.completed_items, job.percentage_complete),
        (JobStatus::Active, 2, 66.67)
    );
    for (path, state) in [
        (&[][..], Some(TaskState::Active)),
        (&[1], Some(TaskState::Completed)),
        (&[1, 9], Some(TaskState::Completed)),
        (&[2], Some(TaskState::Active)),
        (&[2, 1], Some(TaskState::Completed)),
        (&[2, 2], Some(TaskState::Waiting)),
        (&[2, 4], None),
        (&[3], Some(TaskState::Waiting)),
        (&[3, 1], None),
    ] {
        assert_eq!(world.task(&life, path).await, state, "{path:?}");
    }
    let split = world
        .store
        .task(&life.partition, &life.job, &[2])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (split.subtasks, split.completed_subtasks),
        (Some(3), Some(2))
    );

    world
        .store
        .record(&[event(&life, "3", EventKind::Progress(50))])
        .await
        .unwrap();
    let task = world
        .store
        .task(&life.partition, &life.job, &[3])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (task.status, task.since.is_some()),
        (TaskState::Active, true)
    );
    world.complete(&life, &["2.2"]).await;
    assert_eq!(
        world.job(&life).await.percentage_complete.to_string(),
        "87.5"
    );
    let recorded = world
        .store
        .record(&[
            event(&life, "3", EventKind::Complete),
            event(&life, "3", EventKind::Complete),
        ])
        .await
        .unwrap();
    assert_eq!(recorded.finished, [(life.clone(), JobStatus::Completed)]);
    assert_eq!(recorded.ignored, 1);
    let job = world.job(&life).await;
    assert_eq!(
        (job.status, job.completed_items, job.percentage_complete),
        (JobStatus::Completed, 4, 100.0)
    );
    assert_eq!(world.task(&life, &[2, 2]).await, Some(TaskState::Completed));
}

async fn the_first_failure_stops_a_job_that_says_so(world: World) {
    let life = world.create("acme", "stop", OnFailure::Stop).await;
    let events = [
        event(&life, "1", EventKind::Complete),
        event(
            &life,
            "2",
            EventKind::Retry {
                attempts: Some(3),
                failure: Some(failure("SLOW")),
            },
        ),
        event(&life, "2", failed("BROKEN")),
        event(&life, "3", EventKind::Complete),
    ];
    let recorded = world.store.record(&events).await.unwrap();
    assert_eq!(
        (recorded.ignored, &recorded.finished[..]),
        (1, &[(life.clone(), JobStatus::Failed)][..])
    );
    let job = world.job(&life).await;
    assert_eq!(
        (job.status, job.completed_items, job.failed_tasks),
        (JobStatus::Failed, 1, 1)
    );
    assert_eq!(job.failures.len(), 1);
    assert_eq!(
        (
            job.failures[0].task_id.as_str(),
            job.failures[0].failure_id.as_deref()
        ),
        ("2", Some("BROKEN"))
    );
    assert_eq!(
        job.failures[0].failure_message,
        failure("BROKEN").failure_message
    );
    let task = world
        .store
        .task(&life.partition, &life.job, &[2])
        .await
        .unwrap()
        .unwrap();
    assert_eq!((task.status, task.attempts), (TaskState::Failed, Some(3)));
    assert_eq!(world.task(&life, &[1]).await, Some(TaskState::Completed));
    let listed = world
        .store
        .jobs(
            &life.partition,
            &JobQuery {
                limit: 9,
                ..JobQuery::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(listed, [job]);
}

async fn a_job_that_continues_is_decided_when_nothing_is_left_and_keeps_a_hundred_failures(
    mut world: World,
) {
    let life = world.create("acme", "continue", OnFailure::Continue).await;
    let fail = |number: u32| {
        event(
            &life,
            &format!("1.{number}"),
            failed(if number.is_multiple_of(2) {
                "EVEN"
            } else {
                "ODD"
            }),
        )
    };
    for batch in (1..=150).map(fail).collect::<Vec<_>>().chunks(40) {
        world.store.record(batch).await.unwrap();
        world.store.record(batch).await.unwrap();
    }
    world.reopen().await;
    world.complete(&life, &["1.151*", "1.1", "2*"]).await;
    let job = world.job(&life).await;
    assert_eq!(
        (
            job.status,
            job.failed_tasks,
            job.completed_items,
            job.failures.len()
        ),
        (JobStatus::Failed, 149, 1, 99)
    );
    assert_eq!(
        job.failure_counts,
        BTreeMap::from([("EVEN".to_owned(), 75), ("ODD".to_owned(), 74)])
    );
    assert!(job.percentage_complete < 100.0);
    assert_eq!(world.task(&life, &[1]).await, Some(TaskState::Failed));
    assert_eq!(world.task(&life, &[1, 150]).await, Some(TaskState::Failed));
    assert_eq!(world.task(&life, &[1, 1]).await, Some(TaskState::Completed));
}

async fn a_task_that_is_tried_again_says_so_until_it_is_done(world: World) {
    let life = world.create("acme", "retry", OnFailure::Stop).await;
    let retry = |path: &str, attempts| {
        event(
            &life,
            path,
            EventKind::Retry {
                attempts: Some(attempts),
                failure: Some(failure("SLOW")),
            },
        )
    };
    world.store.record(&[retry("", 1)]).await.unwrap();
    assert_eq!(world.job(&life).await.status, JobStatus::Active);
    assert_eq!(world.task(&life, &[]).await, Some(TaskState::Retrying));
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 0);

    world
        .store
        .record(&[
            retry("2", 2),
            retry("2", 1),
            event(&life, "2", EventKind::Progress(30)),
        ])
        .await
        .unwrap();
    let task = world
        .store
        .task(&life.partition, &life.job, &[2])
        .await
        .unwrap()
        .unwrap();
    assert_eq!((task.status, task.attempts), (TaskState::Retrying, Some(2)));
    assert_eq!(task.failure.unwrap().failure_id.as_deref(), Some("SLOW"));
    assert_eq!(world.store.task_table_size().await.unwrap().rows, 2);
    world.complete(&life, &["2"]).await;
    assert_eq!(world.task(&life, &[2]).await, Some(TaskState::Completed));
    assert_eq!(world.store.task_table_size().await.unwrap().rows, 1);
}

async fn a_split_that_is_reported_done_gives_up_everything_below_it(world: World) {
    let life = world.create("acme", "prune", OnFailure::Stop).await;
    world
        .complete(&life, &["1.1.1", "1.2.1", "10.1", "1.3"])
        .await;
    world
        .store
        .record(&[event(&life, "1.4", EventKind::Progress(5))])
        .await
        .unwrap();
    assert_eq!(world.store.task_table_size().await.unwrap().rows, 6);
    world.complete(&life, &["1", "1.2.2", "1.1"]).await;
    assert_eq!(world.store.task_table_size().await.unwrap().rows, 2);
    assert_eq!(world.job(&life).await.completed_items, 2);
    assert_eq!(world.task(&life, &[1, 1]).await, Some(TaskState::Completed));
    assert_eq!(
        world.task(&life, &[10, 1]).await,
        Some(TaskState::Completed)
    );
}

async fn sizes_that_contradict_each_other_fail_the_job_and_say_so(world: World) {
    let life = world.create("acme", "conflict", OnFailure::Continue).await;
    world.complete(&life, &["1.3*", "1.1", "1.5*"]).await;
    world.complete(&life, &["1.2", "1.4", "1.3", "2*"]).await;
    let job = world.job(&life).await;
    assert_eq!((job.status, job.failed_tasks), (JobStatus::Failed, 1));
    assert_eq!(job.failures[0].task_id, "1");
    assert!(
        job.failures[0]
            .failure_message
            .as_deref()
            .unwrap()
            .contains("different numbers of subtasks")
    );
}

async fn reports_from_many_sides_at_once_are_counted_exactly(world: World) {
    let lives =
        join_all(["x", "y", "z"].map(|job| world.create("acme", job, OnFailure::Stop))).await;
    // Four writers; each has every event of every job, in an order of its own.
    let all: Vec<TrackingEvent> = lives
        .iter()
        .flat_map(|life| (1..=40u32).flat_map(move |i| (1..=10u32).map(move |j| (life, i, j))))
        .map(|(life, i, j)| {
            event(
                life,
                &format!("{i}.{j}{}", if j == 10 { "*" } else { "" }),
                EventKind::Complete,
            )
        })
        .collect();
    let writers = [7usize, 11, 13, 17].map(|stride| {
        let (store, all) = (world.store.clone(), all.clone());
        async move {
            let order: Vec<TrackingEvent> = (0..all.len())
                .map(|at| all[(at * stride) % all.len()].clone())
                .collect();
            for batch in order.chunks(97) {
                store.record(batch).await.unwrap();
            }
        }
    });
    join_all(writers).await;
    for life in &lives {
        let job = world.job(life).await;
        assert_eq!(
            (job.status, job.completed_items),
            (JobStatus::Active, 40 * 9),
            "{}",
            life.job
        );
    }
    let finals: Vec<_> = lives
        .iter()
        .map(|life| event(life, "41*", EventKind::Complete))
        .collect();
    let results = join_all((0..4).map(|_| world.store.record(&finals))).await;
    let finished: usize = results
        .into_iter()
        .map(|result| result.unwrap().finished.len())
        .sum();
    assert_eq!(finished, 3);
}

async fn a_split_of_ten_thousand_is_kept_in_a_few_rows(mut world: World) {
    let life = world.create("acme", "wide", OnFailure::Stop).await;
    let numbers: Vec<u32> = (0..10_000u32).map(|at| (at * 7919) % 10_000 + 1).collect();
    for (round, batch) in numbers.chunks(2_000).enumerate() {
        if round == 2 {
            world.reopen().await;
        }
        let events: Vec<_> = batch
            .iter()
            .map(|n| event(&life, &n.to_string(), EventKind::Complete))
            .collect();
        world.store.record(&events).await.unwrap();
        world.store.record(&events[..100]).await.unwrap();
        let size = world.store.task_table_size().await.unwrap();
        assert!(size.rows <= 3 && size.tables == 1, "{size:?}");
    }
    let job = world.job(&life).await;
    assert_eq!(
        (job.status, job.completed_items, job.percentage_complete),
        (JobStatus::Active, 10_000, 99.7)
    );
    world.complete(&life, &["10001*"]).await;
    assert_eq!(world.job(&life).await.status, JobStatus::Completed);
}

async fn the_history_of_a_job_has_a_row_for_every_transition(world: World) {
    let life = world.create("acme", "history", OnFailure::Stop).await;
    world.complete(&life, &["1", "3*"]).await;
    world.complete(&life, &["1", "2"]).await;
    let history = world
        .store
        .history(&life.partition, &life.job)
        .await
        .unwrap();
    let steps: Vec<_> = history
        .iter()
        .map(|step| (step.from, step.to, step.actor.as_str()))
        .collect();
    assert_eq!(
        steps,
        [
            (None, JobStatus::Waiting, "client"),
            (Some(JobStatus::Waiting), JobStatus::Active, "tracking"),
            (Some(JobStatus::Active), JobStatus::Completed, "tracking"),
        ]
    );
    assert!(history.is_sorted_by_key(|step| step.time));
    assert_eq!(history[2].reason, "every task is done");
}

async fn the_sweeper_drops_the_tables_of_jobs_that_are_over(world: World) {
    let mut lives = Vec::new();
    for at in 0..12 {
        let life = world
            .create("acme", &format!("sweep-{at}"), OnFailure::Stop)
            .await;
        world.complete(&life, &["1", "2"]).await;
        lives.push(life);
    }
    let untouched = world.create("acme", "no-subtasks", OnFailure::Stop).await;
    world.complete(&untouched, &[""]).await;
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 12);
    assert_eq!(world.store.sweep().await.unwrap().tables, 0);
    for life in &lives[..10] {
        world.complete(life, &["3*"]).await;
    }
    world
        .store
        .cancel_job(&lives[10].partition, &lives[10].job)
        .await
        .unwrap();
    world
        .store
        .record(&[event(&lives[11], "3", failed("BROKEN"))])
        .await
        .unwrap();
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 12);
    assert_eq!(
        world.store.sweep().await.unwrap(),
        Swept {
            jobs: 0,
            tables: 8,
            next: Some(0)
        }
    );
    let Swept {
        tables: dropped,
        next,
        ..
    } = world.store.sweep().await.unwrap();
    assert_eq!(dropped, 3);
    // The table of the failed job stays for a day.
    let day = 24 * 60 * 60 * 1000;
    assert!(
        next.is_some_and(|next| next > day - 60_000 && next <= day),
        "{next:?}"
    );
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 1);
    assert_eq!(
        world.task(&lives[11], &[1]).await,
        Some(TaskState::Completed)
    );
    assert!(
        world
            .store
            .delete_job(&lives[11].partition, &lives[11].job)
            .await
            .unwrap()
    );
    assert_eq!(world.store.sweep().await.unwrap().tables, 1);
    assert_eq!(
        world.task(&lives[0], &[1]).await,
        Some(TaskState::Completed)
    );
}

async fn what_was_kept_for_a_time_goes_when_the_time_is_over(mut world: World) {
    let short = StoreOptions {
        failed_tables_kept: Duration::ZERO,
        past_incarnations_kept: Duration::ZERO,
    };
    world.store.close().await;
    world.store = Store::open_with(&world.place.url, short).await.unwrap();
    let life = world.create("acme", "short", OnFailure::Stop).await;
    world
        .store
        .record(&[event(&life, "2", failed("BROKEN"))])
        .await
        .unwrap();
    assert_eq!(
        world.store.sweep().await.unwrap(),
        Swept {
            jobs: 0,
            tables: 1,
            next: None
        }
    );
    let job = world.job(&life).await;
    assert_eq!((job.status, job.failures.len()), (JobStatus::Failed, 1));
    assert_eq!(world.task(&life, &[2]).await, Some(TaskState::Failed));
    assert_eq!(world.task(&life, &[1]).await, None);
    world
        .store
        .delete_job(&life.partition, &life.job)
        .await
        .unwrap();
    world.store.sweep().await.unwrap();
    assert!(world.create("acme", "short", OnFailure::Stop).await.first);
}

async fn whoever_waits_is_woken_by_a_commit(world: World) {
    // With PostgreSQL, it may be somebody in another process.
    let waiting = if world.store.kind() == "postgres" {
        Store::open(&world.place.url).await.unwrap()
    } else {
        world.store.clone()
    };
    let mut outbox = waiting.outbox_signal();
    let mut sweep = waiting.sweep_signal();
    assert!(
        outbox.has_changed().unwrap() && sweep.has_changed().unwrap(),
        "a new receiver counts as woken"
    );
    outbox.mark_unchanged();
    sweep.mark_unchanged();
    let life = world.create("acme", "wake", OnFailure::Stop).await;
    harness::in_time("a wake-up", outbox.changed())
        .await
        .unwrap();
    world.complete(&life, &["1"]).await;
    assert!(!sweep.has_changed().unwrap());
    world.complete(&life, &["2*"]).await;
    harness::in_time("a wake-up", sweep.changed())
        .await
        .unwrap();
}

async fn whoever_watches_jobs_is_woken_by_a_deletion(world: World) {
    let life = world.create("acme", "gone", OnFailure::Stop).await;
    let mut jobs = world.store.job_signal();
    jobs.mark_unchanged();
    assert!(
        world
            .store
            .delete_job(&life.partition, &life.job)
            .await
            .unwrap()
    );
    harness::in_time("a wake-up", jobs.changed()).await.unwrap();
}

async fn reports_of_nobody_are_ignored(world: World) {
    let nobody = |text: &str| TrackingEvent {
        task: JobTaskId::parse(text).unwrap(),
        kind: EventKind::Complete,
    };
    let life = world.create("acme", "somebody", OnFailure::Stop).await;
    let events = [
        nobody("acme:nobody.1"),
        nobody("acme:somebody!999999.1"),
        nobody("else:somebody.1"),
        nobody("acme:somebody.1"),
    ];
    assert_eq!(world.store.record(&events).await.unwrap().ignored, 3);
    assert_eq!(
        world.store.record(&[]).await.unwrap(),
        store::Recorded::default()
    );
    assert_eq!(world.job(&life).await.completed_items, 1);
    let unknown = JobId::parse("nobody").unwrap();
    assert_eq!(
        world.store.job(&life.partition, &unknown).await.unwrap(),
        None
    );
    assert_eq!(
        world
            .store
            .task(&life.partition, &unknown, &[1])
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        world
            .store
            .history(&life.partition, &unknown)
            .await
            .unwrap(),
        []
    );
}

suite! {
    a_new_job_waits_and_its_start_message_is_in_the_outbox,
    a_request_that_is_sent_again_changes_nothing_and_another_one_is_a_conflict,
    of_identical_requests_at_once_one_creates_the_job,
    jobs_are_listed_by_time_and_filtered_by_prefix_and_status,
    a_job_is_cancelled_once_and_its_unsent_message_is_not_sent,
    only_reports_of_the_living_incarnation_count,
    a_job_is_done_when_all_its_tasks_are_in_whatever_order_and_however_often,
    the_first_failure_stops_a_job_that_says_so,
    a_job_that_continues_is_decided_when_nothing_is_left_and_keeps_a_hundred_failures,
    a_task_that_is_tried_again_says_so_until_it_is_done,
    a_split_that_is_reported_done_gives_up_everything_below_it,
    sizes_that_contradict_each_other_fail_the_job_and_say_so,
    reports_from_many_sides_at_once_are_counted_exactly,
    a_split_of_ten_thousand_is_kept_in_a_few_rows,
    the_history_of_a_job_has_a_row_for_every_transition,
    the_sweeper_drops_the_tables_of_jobs_that_are_over,
    what_was_kept_for_a_time_goes_when_the_time_is_over,
    whoever_waits_is_woken_by_a_commit,
    whoever_watches_jobs_is_woken_by_a_deletion,
    reports_of_nobody_are_ignored,
}

#[tokio::test]
async fn a_url_that_cannot_be_used_is_named_with_the_reason() {
    let error = async |url: &str| Store::open(url).await.unwrap_err();
    let unknown = error("mysql://ann:secret@db/jobs").await;
    assert!(matches!(unknown, store::StoreError::Unusable { .. }));
    let text = unknown.to_string();
    assert!(
        text.contains("mysql://ann:***@db/jobs")
            && text.contains("postgres://")
            && text.contains("sqlite:"),
        "{text}"
    );
    let nobody = error("postgres://ann:secret@127.0.0.1:1/jobs").await;
    assert!(
        matches!(nobody, store::StoreError::Unavailable(_)),
        "{nobody:?}"
    );
    let text = nobody.to_string();
    assert!(
        text.contains("postgres://ann:***@127.0.0.1:1/jobs") && text.contains("refused"),
        "{text}"
    );
    assert!(matches!(
        error("sqlite:/no/such/folder/x.db").await,
        store::StoreError::Unusable { .. }
    ));
    assert!(matches!(
        error("sqlite:").await,
        store::StoreError::Unusable { .. }
    ));
    assert!(matches!(
        error("postgres://ann@db:port/jobs").await,
        store::StoreError::Unusable { .. }
    ));
}

#[tokio::test]
async fn sessions_have_the_name_that_the_url_gives_them_or_ours() {
    let database = harness::postgres().await.unwrap();
    let url = &database.url;
    for (given, name) in [
        (url.clone(), "batchwright"),
        (
            format!("{url}?application_name=the+importer"),
            "the importer",
        ),
    ] {
        let store = Store::open(&given).await.unwrap();
        let named = format!(
            "select count(*) > 0 from pg_stat_activity where datname = current_database() and application_name = '{name}'"
        );
        assert_eq!(harness::psql(url, &[&named]).await.unwrap(), "t", "{name}");
        store.close().await;
    }
}

/// Whoever moves from the CAF Job Service may keep its database.
#[tokio::test]
async fn a_database_with_tables_of_the_same_names_is_shared_and_they_are_left_alone() {
    let database = harness::postgres().await.unwrap();
    let url = &database.url;
    let theirs = "create table job (job_id varchar(48)); insert into job values ('theirs'); create table task_1 (subtask_id int); \
                  create table label (label varchar(255))";
    harness::psql(url, &[theirs]).await.unwrap();
    // All at once, as the processes of a new system start.
    let stores = futures_util::future::join_all((0..4).map(|_| Store::open(url))).await;
    let store = stores.into_iter().map(Result::unwrap).next_back().unwrap();
    let Creation::Created(life) = create(&store, &request("acme", "ours", OnFailure::Stop)).await
    else {
        panic!("it is new")
    };
    store
        .record(&[event(&life, "1", EventKind::Complete)])
        .await
        .unwrap();
    assert_eq!(store.task_table_size().await.unwrap().tables, 1);
    assert_eq!(
        harness::psql(url, &["select job_id from public.job"])
            .await
            .unwrap(),
        "theirs"
    );
}

/// The address of a server, as its URL tells it.
async fn address_of(url: &str) -> std::net::SocketAddr {
    let authority = url.split("//").nth(1).unwrap().split('/').next().unwrap();
    let host = authority.split('@').next_back().unwrap();
    tokio::net::lookup_host(host).await.unwrap().next().unwrap()
}

#[tokio::test]
async fn a_database_that_is_not_there_is_waited_for_and_tells_how_it_is() {
    let url = harness::postgres().await.unwrap().url;
    let server = address_of(&url).await;
    let proxy = harness::Proxy::start(server).await.unwrap();
    proxy.refuse();
    let authority = url.split("//").nth(1).unwrap().split('/').next().unwrap();
    let through = authority
        .rsplit_once('@')
        .map_or(proxy.address().to_string(), |(user, _)| {
            format!("{user}@{}", proxy.address())
        });
    let store =
        Store::open_when_possible(&url.replace(authority, &through), StoreOptions::default())
            .await
            .unwrap();
    let unavailable = store.ping().await.unwrap_err();
    assert!(
        matches!(unavailable, store::StoreError::Unavailable(_)),
        "{unavailable:?}"
    );
    assert!(matches!(
        &*store.availability().borrow(),
        store::Availability::Unavailable(_)
    ));
    let mut woken = store.outbox_signal();
    woken.mark_unchanged();
    proxy.pass();
    let mut availability = store.availability();
    availability
        .wait_for(|availability| *availability == store::Availability::Available)
        .await
        .unwrap();
    store.ping().await.unwrap();
    woken.changed().await.unwrap();

    // Once it is open, a loss is noticed, and told as well.
    proxy.refuse();
    availability
        .wait_for(|availability| matches!(availability, store::Availability::Unavailable(_)))
        .await
        .unwrap();
    proxy.pass();
    availability
        .wait_for(|availability| *availability == store::Availability::Available)
        .await
        .unwrap();
    store.ping().await.unwrap();
    store.close().await;

    let never = Store::open_when_possible("postgres://ann@db:port/jobs", StoreOptions::default())
        .await
        .unwrap_err();
    assert!(
        matches!(never, store::StoreError::Unusable { .. }),
        "{never:?}"
    );
}
