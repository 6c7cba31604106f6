//! What every store must do with paused jobs and their stowed tasks. Memory, a SQLite file, PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says so when something is not as it must be"
)]

#[macro_use]
mod place;

use std::collections::BTreeSet;

use contract::{JobId, JobStatus, JobTaskId, PartitionId, ReportFailure};
use futures_util::future::join_all;
use store::{
    Change, Creation, EventKind, Header, Headers, Incarnation, JobRequest, OutboxMessage,
    ParkOutcome, ParkedTask, Store, TrackingEvent,
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
        Self {
            store: Store::open(&place.url).await.unwrap(),
            place,
        }
    }

    /// Another process takes over; in memory there is none.
    async fn reopen(&mut self) {
        if self.store.kind() != "memory" {
            self.store.close().await;
            self.store = Store::open(&self.place.url).await.unwrap();
        }
    }

    /// A job whose start message has been sent.
    async fn started(&self, job: &str) -> Incarnation {
        let request = JobRequest {
            content_hash: [7; 32],
            ..JobRequest::new(
                PartitionId::parse("acme").unwrap(),
                JobId::parse(job).unwrap(),
            )
        };
        let life = match self
            .store
            .create_job(&request, |_| ("start".to_owned(), Vec::new()))
            .await
            .unwrap()
        {
            Creation::Created(life) => life,
            other => panic!("{job}: {other:?}"),
        };
        self.sent().await;
        life
    }

    async fn paused(&self, job: &str) -> Incarnation {
        let life = self.started(job).await;
        assert_eq!(self.pause(&life).await, Change::Made);
        life
    }

    async fn pause(&self, life: &Incarnation) -> Change {
        self.store
            .pause_job(&life.partition, &life.job)
            .await
            .unwrap()
    }

    async fn resume(&self, life: &Incarnation) -> Change {
        self.store
            .resume_job(&life.partition, &life.job)
            .await
            .unwrap()
    }

    async fn status(&self, life: &Incarnation) -> JobStatus {
        self.store
            .job_status(&life.partition, &life.job, None)
            .await
            .unwrap()
            .unwrap()
    }

    async fn report(&self, life: &Incarnation, path: &str, kind: EventKind) {
        self.store
            .record(&[TrackingEvent {
                task: id(life, path),
                kind,
            }])
            .await
            .unwrap();
    }

    /// Stows the tasks with these numbers.
    async fn stow(
        &self,
        life: &Incarnation,
        numbers: std::ops::RangeInclusive<u32>,
    ) -> Vec<ParkOutcome> {
        let tasks: Vec<_> = numbers
            .map(|n| (id(life, &n.to_string()), task(n)))
            .collect();
        self.store.park_tasks(&tasks).await.unwrap()
    }

    async fn stowed(&self, life: &Incarnation) -> u64 {
        self.store
            .count_parked_tasks(&life.partition, &life.job)
            .await
            .unwrap()
    }

    /// What is in the outbox; it is empty then.
    async fn sent(&self) -> Vec<OutboxMessage> {
        let messages = self.store.outbox(10_000).await.unwrap();
        self.store
            .outbox_sent(
                &messages
                    .iter()
                    .map(|message| message.id)
                    .collect::<Vec<_>>(),
            )
            .await
            .unwrap();
        messages
    }

    /// Has all go that is to go.
    async fn unstow_all(&self) {
        while self.store.unpark_tasks(500).await.unwrap() {}
    }
}

fn id(life: &Incarnation, path: &str) -> JobTaskId {
    let dot = if path.is_empty() { "" } else { "." };
    JobTaskId::parse(&format!("{}{dot}{path}", life.job_task_id())).unwrap()
}

fn task(number: u32) -> ParkedTask {
    ParkedTask {
        pipe: format!("pipe-{}", number % 2),
        body: number.to_string().into_bytes(),
        headers: Headers::new(),
    }
}

fn numbers(messages: &[OutboxMessage]) -> Vec<u32> {
    messages
        .iter()
        .map(|message| String::from_utf8_lossy(&message.body).parse().unwrap())
        .collect()
}

fn failure() -> EventKind {
    EventKind::Failed(ReportFailure::default())
}

async fn a_job_is_paused_and_resumed_by_its_client_and_its_history_says_so(world: World) {
    let life = world.started("j").await;
    assert_eq!(
        world.resume(&life).await,
        Change::Impossible(JobStatus::Waiting)
    );
    assert_eq!(
        (world.pause(&life).await, world.status(&life).await),
        (Change::Made, JobStatus::Paused)
    );
    assert_eq!(
        (world.pause(&life).await, world.status(&life).await),
        (Change::NotNeeded, JobStatus::Paused)
    );
    // Also where it was Waiting before.
    assert_eq!(
        (world.resume(&life).await, world.status(&life).await),
        (Change::Made, JobStatus::Active)
    );
    assert_eq!(
        (world.resume(&life).await, world.status(&life).await),
        (Change::NotNeeded, JobStatus::Active)
    );
    world.report(&life, "1", EventKind::Complete).await;
    assert_eq!(world.pause(&life).await, Change::Made);
    let history = world
        .store
        .history(&life.partition, &life.job)
        .await
        .unwrap();
    let steps: Vec<_> = history
        .iter()
        .map(|step| (step.to, step.actor.as_str(), step.reason.as_str()))
        .collect();
    assert_eq!(
        steps,
        [
            (JobStatus::Waiting, "client", "created"),
            (JobStatus::Paused, "client", "paused"),
            (JobStatus::Active, "client", "resumed"),
            (JobStatus::Paused, "client", "paused"),
        ]
    );
    let unknown = JobId::parse("unknown").unwrap();
    assert_eq!(
        world
            .store
            .pause_job(&life.partition, &unknown)
            .await
            .unwrap(),
        Change::NotFound
    );
    assert_eq!(
        world
            .store
            .resume_job(&life.partition, &unknown)
            .await
            .unwrap(),
        Change::NotFound
    );
    assert_eq!(
        world
            .store
            .count_parked_tasks(&life.partition, &unknown)
            .await
            .unwrap(),
        0
    );
}

async fn a_job_that_is_over_is_neither_paused_nor_resumed(world: World) {
    for (job, status) in [
        ("done", JobStatus::Completed),
        ("failed", JobStatus::Failed),
        ("cancelled", JobStatus::Cancelled),
    ] {
        let life = world.started(job).await;
        match status {
            JobStatus::Completed => world.report(&life, "", EventKind::Complete).await,
            JobStatus::Failed => world.report(&life, "", failure()).await,
            _ => drop(
                world
                    .store
                    .cancel_job(&life.partition, &life.job)
                    .await
                    .unwrap(),
            ),
        }
        assert_eq!(
            (world.pause(&life).await, world.resume(&life).await),
            (Change::Impossible(status), Change::Impossible(status))
        );
    }
}

async fn a_paused_job_counts_what_is_reported_and_comes_to_its_end(world: World) {
    let life = world.paused("j").await;
    world.report(&life, "1", EventKind::Complete).await;
    assert_eq!(
        world.status(&life).await,
        JobStatus::Paused,
        "a report does not resume a job"
    );
    world.report(&life, "2*", EventKind::Complete).await;
    assert_eq!(world.status(&life).await, JobStatus::Completed);
    let life = world.paused("k").await;
    world.report(&life, "1", failure()).await;
    assert_eq!(world.status(&life).await, JobStatus::Failed);
}

async fn a_task_is_stowed_only_while_its_own_life_of_the_job_is_paused(world: World) {
    use ParkOutcome::{Discard, Parked, SendBack};

    let [waiting, paused, cancelled] = [
        world.started("waiting").await,
        world.paused("paused").await,
        world.paused("cancelled").await,
    ];
    world
        .store
        .cancel_job(&cancelled.partition, &cancelled.job)
        .await
        .unwrap();
    let first = world.paused("reborn").await;
    world
        .store
        .delete_job(&first.partition, &first.job)
        .await
        .unwrap();
    let second = world.paused("reborn").await;
    let unknown = Incarnation {
        job: JobId::parse("unknown").unwrap(),
        ..first.clone()
    };
    let lives = [
        &waiting, &paused, &cancelled, &first, &second, &unknown, &paused,
    ];
    let tasks: Vec<_> = lives
        .iter()
        .zip(1..)
        .map(|(life, n)| (id(life, "1"), task(n)))
        .collect();
    assert_eq!(
        world.store.park_tasks(&tasks).await.unwrap(),
        [SendBack, Parked, Discard, Discard, Parked, Discard, Parked]
    );
    assert_eq!(
        (
            world.stowed(&paused).await,
            world.stowed(&second).await,
            world.stowed(&waiting).await
        ),
        (2, 1, 0)
    );
    assert_eq!(world.store.park_tasks(&[]).await.unwrap(), []);
}

async fn stowed_tasks_go_to_the_outbox_when_their_job_is_resumed_in_their_order_and_unchanged(
    mut world: World,
) {
    let [life, other] = [world.paused("j").await, world.paused("other").await];
    let headers = Headers::from([
        ("x-batchwright-attempts".to_owned(), Header::Integer(2)),
        (
            "x-note".to_owned(),
            Header::Text("ünusual\0 \"text\"".to_owned()),
        ),
    ]);
    let odd = ParkedTask {
        pipe: "pipe".to_owned(),
        body: vec![0, 0xff, b'{'],
        headers,
    };
    world
        .store
        .park_tasks(&[(id(&life, "1"), odd.clone())])
        .await
        .unwrap();
    world.stow(&life, 1..=1200).await;
    world.stow(&other, 1..=3).await;
    assert!(
        !world.store.unpark_tasks(500).await.unwrap(),
        "nothing goes while the jobs are paused"
    );
    world.reopen().await;
    assert_eq!(world.resume(&life).await, Change::Made);
    world.unstow_all().await;
    let sent = world.sent().await;
    let first = &sent[0];
    assert_eq!(
        (&first.pipe, &first.body, &first.headers),
        (&odd.pipe, &odd.body, &odd.headers)
    );
    assert_eq!(numbers(&sent[1..]), (1..=1200).collect::<Vec<_>>());
    assert_eq!(
        (sent[1].pipe.as_str(), sent[2].pipe.as_str()),
        ("pipe-1", "pipe-0")
    );
    assert_eq!(
        (world.stowed(&life).await, world.stowed(&other).await),
        (0, 3)
    );
}

async fn a_resume_that_is_stopped_in_the_middle_goes_on_in_the_next_process(mut world: World) {
    let life = world.paused("j").await;
    world.stow(&life, 1..=25).await;
    world.resume(&life).await;
    assert!(world.store.unpark_tasks(10).await.unwrap());
    assert_eq!(world.stowed(&life).await, 15);
    world.reopen().await;
    assert!(
        world.store.unpark_signal().has_changed().unwrap(),
        "who starts looks for what is left"
    );
    world.unstow_all().await;
    assert_eq!(numbers(&world.sent().await), (1..=25).collect::<Vec<_>>());
}

async fn a_job_that_is_paused_again_in_the_middle_of_its_resume_keeps_what_is_left(world: World) {
    let life = world.paused("j").await;
    world.stow(&life, 1..=25).await;
    world.resume(&life).await;
    assert!(world.store.unpark_tasks(10).await.unwrap());
    world.pause(&life).await;
    world.unstow_all().await;
    assert_eq!(world.stowed(&life).await, 15);
    world.stow(&life, 26..=30).await;
    assert_eq!(world.stowed(&life).await, 20);
    world.resume(&life).await;
    world.unstow_all().await;
    assert_eq!(world.stowed(&life).await, 0);
    let sent: BTreeSet<u32> = numbers(&world.sent().await).into_iter().collect();
    assert_eq!(sent, (1..=30).collect());
}

async fn what_is_stowed_of_a_job_that_is_over_is_dropped(world: World) {
    let lives = [
        world.paused("cancelled").await,
        world.paused("failed").await,
        world.paused("deleted").await,
    ];
    for life in &lives {
        world.stow(life, 1..=30).await;
    }
    let mut signal = world.store.unpark_signal();
    signal.mark_unchanged();
    world
        .store
        .cancel_job(&lives[0].partition, &lives[0].job)
        .await
        .unwrap();
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    world.report(&lives[1], "1", failure()).await;
    world
        .store
        .delete_job(&lives[2].partition, &lives[2].job)
        .await
        .unwrap();
    while world.store.unpark_tasks(20).await.unwrap() {}
    for life in &lives {
        assert_eq!(world.stowed(life).await, 0, "{life:?}");
    }
    assert_eq!(world.sent().await, []);
    // The next life has nothing of it.
    assert_eq!(world.stowed(&world.started("deleted").await).await, 0);
}

async fn whoever_unstows_and_whoever_relays_is_woken_by_a_resume(world: World) {
    // With PostgreSQL, it may be somebody in another process.
    let waiting = if world.store.kind() == "postgres" {
        Store::open(&world.place.url).await.unwrap()
    } else {
        world.store.clone()
    };
    let life = world.paused("j").await;
    world.stow(&life, 1..=1).await;
    let (mut unstow, mut outbox) = (waiting.unpark_signal(), waiting.outbox_signal());
    unstow.mark_unchanged();
    outbox.mark_unchanged();
    world.resume(&life).await;
    harness::in_time("a wake-up", unstow.changed())
        .await
        .unwrap();
    harness::in_time("a wake-up", outbox.changed())
        .await
        .unwrap();
    outbox.mark_unchanged();
    world.unstow_all().await;
    harness::in_time("a wake-up", outbox.changed())
        .await
        .unwrap();
}

/// Tasks are handed over, and their job is paused and resumed, by many at once: each task is stowed and comes back, or was wanted.
async fn no_order_of_stowing_pausing_and_resuming_leaves_a_task_behind(world: World) {
    const TASKS: u32 = 200;
    let life = world.paused("j").await;
    let stowers = join_all((0..4).map(|stower| {
        let (world, life) = (&world, &life);
        async move {
            let mut wanted = Vec::new();
            for n in (1..=TASKS).filter(|n| n % 4 == stower) {
                if world.stow(life, n..=n).await == [ParkOutcome::SendBack] {
                    wanted.push(n);
                }
            }
            wanted
        }
    }));
    let clients = async {
        for turn in 0..30 {
            if turn % 2 == 0 {
                world.resume(&life).await
            } else {
                world.pause(&life).await
            };
            tokio::task::yield_now().await;
        }
        world.resume(&life).await;
    };
    let unstowers = join_all((0..2).map(async |_| {
        for _ in 0..60 {
            world.store.unpark_tasks(7).await.unwrap();
        }
    }));
    let (wanted, ()) = tokio::join!(stowers, async {
        tokio::join!(clients, unstowers);
    });
    world.unstow_all().await;
    assert_eq!(world.stowed(&life).await, 0);
    let mut all: Vec<u32> = wanted
        .into_iter()
        .flatten()
        .chain(numbers(&world.sent().await))
        .collect();
    all.sort_unstable();
    assert_eq!(all, (1..=TASKS).collect::<Vec<_>>());
}

suite! {
    a_job_is_paused_and_resumed_by_its_client_and_its_history_says_so,
    a_job_that_is_over_is_neither_paused_nor_resumed,
    a_paused_job_counts_what_is_reported_and_comes_to_its_end,
    a_task_is_stowed_only_while_its_own_life_of_the_job_is_paused,
    stowed_tasks_go_to_the_outbox_when_their_job_is_resumed_in_their_order_and_unchanged,
    a_resume_that_is_stopped_in_the_middle_goes_on_in_the_next_process,
    a_job_that_is_paused_again_in_the_middle_of_its_resume_keeps_what_is_left,
    what_is_stowed_of_a_job_that_is_over_is_dropped,
    whoever_unstows_and_whoever_relays_is_woken_by_a_resume,
    no_order_of_stowing_pausing_and_resuming_leaves_a_task_behind,
}
