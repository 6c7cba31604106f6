//! What every store must do about jobs whose time is over. Memory, a SQLite file, PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says so when something is not as it must be"
)]

#[macro_use]
mod place;

use std::collections::BTreeMap;

use contract::rest::{Expiry, ExpiryPolicy};
use contract::{JobId, JobStatus, JobTaskId, PartitionId, ReportFailure};
use futures_util::future::join_all;
use store::{Creation, EventKind, Incarnation, JobRequest, Store, Swept, TrackingEvent};

use place::Place;

/// A store of its own for each test.
struct World {
    store: Store,
    _place: Place,
}

impl World {
    async fn open(kind: &str) -> Self {
        let place = Place::of(kind).await;
        Self {
            store: Store::open(&place.url).await.unwrap(),
            _place: place,
        }
    }

    async fn create(&self, job: &str, expiry: Expiry) -> Incarnation {
        let request = JobRequest {
            labels: BTreeMap::from([("of".to_owned(), Some(job.to_owned()))]),
            expiry,
            content_hash: [7; 32],
            ..JobRequest::new(
                PartitionId::parse("acme").unwrap(),
                JobId::parse(job).unwrap(),
            )
        };
        match self
            .store
            .create_job(&request, |life| {
                ("start".to_owned(), life.job_task_id().into_bytes())
            })
            .await
            .unwrap()
        {
            Creation::Created(life) => life,
            other => panic!("{job}: {other:?}"),
        }
    }

    async fn report(&self, life: &Incarnation, steps: &str, kind: EventKind) {
        let task = JobTaskId::parse(&format!("{}{steps}", life.job_task_id())).unwrap();
        self.store
            .record(&[TrackingEvent { task, kind }])
            .await
            .unwrap();
    }

    async fn status(&self, life: &Incarnation) -> Option<JobStatus> {
        self.store
            .job_status(&life.partition, &life.job, None)
            .await
            .unwrap()
    }

    /// Ends three jobs with this policy, each in its way.
    async fn end_each(&self, expiry: &Expiry) -> [Incarnation; 3] {
        let [completed, failed, cancelled] = [
            self.create("done", expiry.clone()).await,
            self.create("failed", expiry.clone()).await,
            self.create("cancelled", expiry.clone()).await,
        ];
        self.report(&completed, "", EventKind::Complete).await;
        self.report(&failed, ".1", EventKind::Failed(ReportFailure::default()))
            .await;
        self.store
            .cancel_job(&cancelled.partition, &cancelled.job)
            .await
            .unwrap();
        [completed, failed, cancelled]
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what a member of an Expiry is")]
fn policy(text: &str) -> Option<ExpiryPolicy> {
    Some(ExpiryPolicy {
        expiry_time: text.to_owned(),
        ..ExpiryPolicy::default()
    })
}

/// The same for every outcome.
fn always(text: &str) -> Expiry {
    Expiry {
        completed: policy(text),
        failed: policy(text),
        cancelled: policy(text),
    }
}

async fn a_job_goes_by_the_policy_of_its_outcome(world: World) {
    let at_once = "lastUpdateTime+PT0S";
    for (expiry, gone) in [
        (
            Expiry {
                completed: policy(at_once),
                ..always("none")
            },
            [true, false, false],
        ),
        (
            Expiry {
                failed: policy(at_once),
                ..Expiry::default()
            },
            [false, true, false],
        ),
        (
            Expiry {
                cancelled: policy("2020-02-29T12:00:00+02:00"),
                ..always("lastUpdateTime+P1D")
            },
            [false, false, true],
        ),
        (Expiry::default(), [false, false, false]),
    ] {
        let lives = world.end_each(&expiry).await;
        let swept = world.store.sweep().await.unwrap();
        assert_eq!(
            swept.jobs,
            gone.iter().filter(|gone| **gone).count() as u64,
            "{expiry:?}"
        );
        for (life, gone) in lives.iter().zip(gone) {
            assert_eq!(
                world.status(life).await.is_none(),
                gone,
                "{expiry:?}: {life:?}"
            );
            world
                .store
                .delete_job(&life.partition, &life.job)
                .await
                .unwrap();
        }
    }
}

async fn a_job_that_has_not_ended_stays_whatever_its_policy_says(world: World) {
    let waiting = world
        .create("waiting", always("2020-01-01T00:00:00Z"))
        .await;
    let active = world.create("active", always("createTime+PT0S")).await;
    world.report(&active, ".1", EventKind::Complete).await;
    assert_eq!(world.store.sweep().await.unwrap(), Swept::default());
    assert_eq!(world.status(&waiting).await, Some(JobStatus::Waiting));
    assert_eq!(world.status(&active).await, Some(JobStatus::Active));
}

async fn the_sweeper_is_woken_and_told_when_the_time_comes(world: World) {
    let mut signal = world.store.sweep_signal();
    signal.mark_unchanged();
    let life = world.create("later", always("lastUpdateTime+PT10H")).await;
    world.report(&life, "", EventKind::Complete).await;
    harness::in_time("the end of the job to wake the sweeper", signal.changed())
        .await
        .unwrap();
    let swept = world.store.sweep().await.unwrap();
    let hours = 10 * 3_600_000;
    assert!(
        swept.jobs == 0
            && swept
                .next
                .is_some_and(|next| next > hours - 60_000 && next <= hours),
        "{swept:?}"
    );
    assert_eq!(world.status(&life).await, Some(JobStatus::Completed));
}

async fn an_expired_job_is_deleted_as_by_a_client(world: World) {
    let life = world.create("phoenix", always("createTime+PT0S")).await;
    world
        .report(&life, ".1", EventKind::Failed(ReportFailure::default()))
        .await;
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 1);
    let mut watching = world.store.job_signal();
    watching.mark_unchanged();
    // The table of a failed job is kept for a day, but not longer than the job.
    let swept = world.store.sweep().await.unwrap();
    assert_eq!((swept.jobs, swept.tables), (1, 1));
    assert_eq!(world.store.task_table_size().await.unwrap().tables, 0);
    harness::in_time("those who watch jobs to be woken", watching.changed())
        .await
        .unwrap();
    assert_eq!(
        world
            .store
            .history(&life.partition, &life.job)
            .await
            .unwrap(),
        []
    );
    // Its past life is remembered: what it has left behind counts for no other.
    let next = world.create("phoenix", Expiry::default()).await;
    assert!(!next.first);
    world.report(&life, ".1", EventKind::Complete).await;
    assert_eq!(world.status(&next).await, Some(JobStatus::Waiting));
}

async fn many_jobs_go_in_bounded_steps_also_with_two_sweepers(world: World) {
    for at in 0..120 {
        let life = world
            .create(&format!("j{at}"), always("createTime+PT0S"))
            .await;
        world.report(&life, "", EventKind::Complete).await;
    }
    let first = world.store.sweep().await.unwrap();
    assert_eq!((first.jobs, first.next), (50, Some(0)));
    let both = join_all([world.store.sweep(), world.store.sweep()]).await;
    let mut gone: u64 = both.into_iter().map(|swept| swept.unwrap().jobs).sum();
    while gone < 70 {
        let jobs = world.store.sweep().await.unwrap().jobs;
        assert_ne!(jobs, 0, "{gone} of 70 are gone");
        gone += jobs;
    }
    assert_eq!(gone, 70);
}

async fn the_policy_in_effect_is_shown(world: World) {
    let expiry = Expiry {
        failed: policy("createTime+PT9H"),
        ..Expiry::default()
    };
    let life = world.create("shown", expiry.clone()).await;
    assert_eq!(
        world
            .store
            .job(&life.partition, &life.job)
            .await
            .unwrap()
            .unwrap()
            .expiry,
        expiry
    );
    let bare = world.create("bare", Expiry::default()).await;
    assert!(
        world
            .store
            .job(&bare.partition, &bare.job)
            .await
            .unwrap()
            .unwrap()
            .expiry
            .is_empty()
    );
}

suite![
    a_job_goes_by_the_policy_of_its_outcome,
    a_job_that_has_not_ended_stays_whatever_its_policy_says,
    the_sweeper_is_woken_and_told_when_the_time_comes,
    an_expired_job_is_deleted_as_by_a_client,
    many_jobs_go_in_bounded_steps_also_with_two_sweepers,
    the_policy_in_effect_is_shown,
];
