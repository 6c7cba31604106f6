//! When jobs start, in the three databases: due times, leases, prerequisites, suspended partitions.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says so when something is not as it must be"
)]

#[macro_use]
mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use contract::rest::{AwaitedJob, Job};
use contract::{JobId, JobStatus, JobTaskId, PartitionId, ReportFailure};
use futures_util::future::join_all;
use harness::wait_for;
use store::{
    Cancellation, Creation, EventKind, Incarnation, JobQuery, JobRequest, Prerequisite, Refusal,
    StartCondition, Store, TrackingEvent,
};

use place::Place;

const MINUTE: Duration = Duration::from_mins(1);

struct World {
    store: Store,
    place: Place,
}

impl World {
    async fn open(kind: &str) -> Self {
        let place = Place::of(kind).await;
        let store = Store::open(&place.url).await.unwrap();
        Self { store, place }
    }

    /// The store as another process has it, where there can be one.
    async fn another(&self) -> Store {
        if self.store.kind() == "postgres" {
            Store::open(&self.place.url).await.unwrap()
        } else {
            self.store.clone()
        }
    }

    async fn try_create(&self, job: &str, start: StartCondition) -> Creation {
        create(&self.store, job, start).await
    }

    async fn create(&self, job: &str, start: StartCondition) -> Incarnation {
        match self.try_create(job, start).await {
            Creation::Created(life) => life,
            other => panic!("{job}: {other:?}"),
        }
    }

    async fn job(&self, job: &str) -> Job {
        self.store
            .job(&partition(), &id(job))
            .await
            .unwrap()
            .unwrap()
    }

    async fn status(&self, job: &str) -> JobStatus {
        self.job(job).await.status
    }

    async fn report(&self, job: &str, kind: EventKind) -> store::Recorded {
        self.store.record(&[event(job, kind)]).await.unwrap()
    }

    async fn complete(&self, jobs: &[&str]) {
        let events: Vec<_> = jobs
            .iter()
            .map(|job| event(job, EventKind::Complete))
            .collect();
        self.store.record(&events).await.unwrap();
    }

    async fn cancel(&self, job: &str) -> Vec<String> {
        match self.store.cancel_job(&partition(), &id(job)).await.unwrap() {
            Cancellation::Cancelled(lives) => {
                lives.into_iter().map(|life| life.job.to_string()).collect()
            }
            other => panic!("{job}: {other:?}"),
        }
    }

    async fn delete(&self, job: &str) {
        assert!(self.store.delete_job(&partition(), &id(job)).await.unwrap());
    }

    /// The jobs whose start messages are due, in order.
    async fn due(&self) -> Vec<String> {
        texts(self.store.outbox(10_000).await.unwrap())
    }

    /// Takes what is due, as a relay that has sent it.
    async fn sent(&self) -> Vec<String> {
        let claim = self.store.claim_outbox(10_000, MINUTE).await.unwrap();
        let ids: Vec<i64> = claim.messages.iter().map(|message| message.id).collect();
        self.store.outbox_sent(&ids).await.unwrap();
        texts(claim.messages)
    }

    async fn last_step(&self, job: &str) -> (String, String) {
        let step = self
            .store
            .history(&partition(), &id(job))
            .await
            .unwrap()
            .pop()
            .unwrap();
        (step.actor, step.reason)
    }
}

async fn create(store: &Store, job: &str, start: StartCondition) -> Creation {
    let request = JobRequest {
        start,
        content_hash: [7; 32],
        ..JobRequest::new(partition(), id(job))
    };
    store
        .create_job(&request, |life| {
            ("start".to_owned(), life.job.as_str().into())
        })
        .await
        .unwrap()
}

fn texts(messages: Vec<store::OutboxMessage>) -> Vec<String> {
    messages
        .into_iter()
        .map(|message| String::from_utf8(message.body).unwrap())
        .collect()
}

fn partition() -> PartitionId {
    PartitionId::parse("acme").unwrap()
}

fn id(job: &str) -> JobId {
    JobId::parse(job).unwrap()
}

fn ids(jobs: &[&str]) -> Vec<JobId> {
    jobs.iter().map(|job| id(job)).collect()
}

fn event(job: &str, kind: EventKind) -> TrackingEvent {
    TrackingEvent {
        task: JobTaskId::parse(&format!("acme:{job}")).unwrap(),
        kind,
    }
}

fn failed() -> EventKind {
    EventKind::Failed(ReportFailure {
        failure_id: Some("TORN".to_owned()),
        failure_time: Some(7),
        failure_source: Some("worker-pages".to_owned()),
        failure_message: Some("the page is torn\0".to_owned()),
    })
}

fn now() -> StartCondition {
    StartCondition::default()
}

/// After these; `,pc` as in a request.
fn after(jobs: &[&str]) -> StartCondition {
    let parse = |text: &&str| {
        let (job, option) = text.split_once(',').unwrap_or((text, ""));
        Prerequisite {
            job: id(job),
            pre_created: option == "pc",
        }
    };
    StartCondition {
        prerequisites: jobs.iter().map(parse).collect(),
        ..StartCondition::default()
    }
}

fn in_seconds(delay: u32) -> StartCondition {
    StartCondition {
        delay,
        ..StartCondition::default()
    }
}

fn suspended() -> StartCondition {
    StartCondition {
        suspended: true,
        ..StartCondition::default()
    }
}

async fn a_message_is_claimed_once_until_its_lease_ends(world: World) {
    let other = world.another().await;
    world.create("a", now()).await;
    world.create("b", now()).await;
    let first = world.store.claim_outbox(1, MINUTE).await.unwrap();
    let second = other.claim_outbox(10, MINUTE).await.unwrap();
    assert_eq!(
        (
            texts(first.messages.clone()),
            texts(second.messages.clone())
        ),
        (vec!["a".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(first.next_due, Some(Duration::ZERO));
    let none = world.store.claim_outbox(10, MINUTE).await.unwrap();
    assert_eq!(none.messages, []);
    // There is something to look for when the leases end.
    assert!(
        none.next_due
            .is_some_and(|due| due > MINUTE / 2 && due <= MINUTE),
        "{none:?}"
    );
    // Who looks sees them all the same.
    assert_eq!(world.due().await, ["a", "b"]);

    // Given back, it is anybody's, and whoever waits is told.
    let mut signal = other.outbox_signal();
    signal.mark_unchanged();
    world
        .store
        .lease_outbox(&[(first.messages[0].id, Duration::ZERO)])
        .await
        .unwrap();
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert_eq!(
        texts(
            other
                .claim_outbox(10, Duration::from_millis(30))
                .await
                .unwrap()
                .messages
        ),
        ["a"]
    );
    // Its relay has died.
    let again = wait_for("the lease to end", async || {
        let claim = world.store.claim_outbox(10, MINUTE).await.unwrap();
        if claim.messages.is_empty() {
            Err(format!("{claim:?}"))
        } else {
            Ok(claim)
        }
    })
    .await;
    assert_eq!(texts(again.messages.clone()), ["a"]);
    world
        .store
        .outbox_sent(&[again.messages[0].id, second.messages[0].id])
        .await
        .unwrap();
    assert_eq!(world.due().await, [""; 0]);
    assert_eq!(
        world.store.claim_outbox(10, MINUTE).await.unwrap(),
        store::Claim::default()
    );
}

async fn of_many_relays_at_once_each_message_is_claimed_by_one(world: World) {
    join_all((0..60).map(|n| {
        let world = &world;
        async move { world.create(&format!("j{n}"), now()).await }
    }))
    .await;
    let stores = [
        world.another().await,
        world.another().await,
        world.store.clone(),
        world.store.clone(),
    ];
    let relays = stores.iter().map(|store| async move {
        let mut mine = Vec::new();
        loop {
            let claim = store.claim_outbox(7, MINUTE).await.unwrap();
            if claim.messages.is_empty() {
                return mine;
            }
            let ids: Vec<i64> = claim.messages.iter().map(|message| message.id).collect();
            mine.extend(texts(claim.messages));
            store.outbox_sent(&ids).await.unwrap();
        }
    });
    let all: Vec<String> = join_all(relays)
        .await
        .into_iter()
        .flatten()
        .chain(world.sent().await)
        .collect();
    assert_eq!(
        (all.len(), all.iter().collect::<BTreeSet<_>>().len()),
        (60, 60)
    );
}

async fn a_delayed_job_is_due_when_its_delay_is_over_and_says_so(world: World) {
    world.create("late", in_seconds(3600)).await;
    world.create("soon", in_seconds(1)).await;
    let (late, soon) = (world.job("late").await, world.job("soon").await);
    assert_eq!((late.delay, late.status), (3600, JobStatus::Waiting));
    let due = late.due_time.unwrap() - late.create_time;
    assert!((3_599_000..=3_601_000).contains(&due), "{due}");
    assert!(soon.due_time.is_some());
    let claim = world.store.claim_outbox(10, MINUTE).await.unwrap();
    assert!(
        claim.messages.is_empty()
            && claim
                .next_due
                .is_some_and(|due| due <= Duration::from_secs(1)),
        "{claim:?}"
    );
    assert_eq!(world.due().await, [""; 0]);
    wait_for("the delay to be over", async || match world.due().await {
        due if due == ["soon"] => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(world.sent().await, ["soon"]);
    assert_eq!(world.job("soon").await.due_time, None);
}

async fn messages_of_a_cancelled_deleted_or_finished_job_are_never_handed_out(world: World) {
    for job in ["cancelled", "deleted", "failed", "completed"] {
        world.create(job, now()).await;
    }
    world.cancel("cancelled").await;
    world.delete("deleted").await;
    world.report("failed", failed()).await;
    world.complete(&["completed"]).await;
    assert_eq!(world.sent().await, [""; 0]);
    world.create("in-vain", in_seconds(3600)).await;
    world.cancel("in-vain").await;
    assert_eq!(
        world.store.claim_outbox(10, MINUTE).await.unwrap().next_due,
        None
    );
}

async fn a_job_waits_for_all_its_prerequisites_and_says_for_which(world: World) {
    for job in ["done", "a", "b"] {
        world.create(job, now()).await;
    }
    world.complete(&["done"]).await;
    world.sent().await;
    world
        .create("j", after(&["done", "a", "b,pc", "nobody,pc", "later"]))
        .await;
    let waiting_for = async || world.job("j").await.waiting_for;
    let awaited = |job: &str, status| AwaitedJob {
        job_id: job.to_owned(),
        status,
    };
    assert_eq!(
        waiting_for().await,
        [
            awaited("a", Some(JobStatus::Waiting)),
            awaited("b", Some(JobStatus::Waiting)),
            awaited("later", None)
        ]
    );
    assert_eq!(world.sent().await, [""; 0]);
    world.complete(&["a"]).await;
    world.report("b", EventKind::Progress(50)).await;
    assert_eq!(
        waiting_for().await,
        [
            awaited("b", Some(JobStatus::Active)),
            awaited("later", None)
        ]
    );
    world.create("later", now()).await;
    assert_eq!(world.sent().await, ["later"]);
    world.complete(&["b"]).await;
    assert_eq!(
        waiting_for().await,
        [awaited("later", Some(JobStatus::Waiting))]
    );
    let mut signal = world.store.outbox_signal();
    signal.mark_unchanged();
    let recorded = world.report("later", EventKind::Complete).await;
    assert_eq!(recorded.finished.len(), 1);
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert_eq!(waiting_for().await, []);
    assert_eq!(world.status("j").await, JobStatus::Waiting);
    assert_eq!(world.sent().await, ["j"]);
    // And once is enough.
    world.complete(&["later", "a"]).await;
    assert_eq!(world.sent().await, [""; 0]);
    let listed = world
        .store
        .jobs(
            &partition(),
            &JobQuery {
                limit: 9,
                ..JobQuery::default()
            },
        )
        .await
        .unwrap();
    assert!(
        listed
            .iter()
            .all(|job| job.waiting_for.is_empty() && job.due_time.is_none())
    );
}

async fn a_job_whose_prerequisites_are_all_complete_starts_at_once(world: World) {
    world.create("a", now()).await;
    world.complete(&["a"]).await;
    world.create("j", after(&["a", "nobody,pc"])).await;
    assert_eq!(world.sent().await, ["j"]);
}

async fn a_delay_counts_from_the_completion_of_the_last_prerequisite(world: World) {
    world.create("a", now()).await;
    world.create("b", now()).await;
    world.sent().await;
    world
        .create(
            "j",
            StartCondition {
                delay: 3600,
                ..after(&["a", "b"])
            },
        )
        .await;
    assert_eq!(world.job("j").await.due_time, None);
    assert_eq!(
        world.store.claim_outbox(10, MINUTE).await.unwrap().next_due,
        None
    );
    world.complete(&["a"]).await;
    assert_eq!(world.job("j").await.due_time, None);
    world.complete(&["b"]).await;
    let (due, completed) = (
        world.job("j").await.due_time.unwrap(),
        world.job("b").await.last_update_time,
    );
    assert!(
        (3_599_000..=3_601_000).contains(&(due - completed)),
        "{}",
        due - completed
    );
    assert_eq!(world.sent().await, [""; 0]);
}

async fn a_job_that_would_wait_in_vain_is_not_created(world: World) {
    for job in ["good", "bad", "worse", "gone"] {
        world.create(job, now()).await;
    }
    world.report("worse", failed()).await;
    world.report("bad", failed()).await;
    world.cancel("gone").await;
    world.sent().await;
    let refused = Creation::Refused;
    assert_eq!(
        world
            .try_create("j", after(&["worse", "good", "bad", "gone"]))
            .await,
        refused(Refusal::Failed(ids(&["bad", "worse"])))
    );
    assert_eq!(
        world.try_create("j", after(&["good", "gone,pc"])).await,
        refused(Refusal::Cancelled(ids(&["gone"])))
    );
    assert_eq!(world.store.job(&partition(), &id("j")).await.unwrap(), None);
    assert_eq!(world.sent().await, [""; 0]);
    // What is there is there, whatever has become of what it waited for.
    world.create("j", after(&["good"])).await;
    world.report("good", failed()).await;
    assert_eq!(
        world.try_create("j", after(&["good"])).await,
        Creation::AlreadyThere
    );
}

async fn a_job_that_would_wait_for_itself_is_not_created(world: World) {
    let cycle = |jobs: &[&str]| Creation::Refused(Refusal::Cycle(ids(jobs)));
    assert_eq!(
        world.try_create("a", after(&["a"])).await,
        cycle(&["a", "a"])
    );
    assert_eq!(
        world.try_create("a", after(&["a,pc"])).await,
        cycle(&["a", "a"])
    );
    world.create("b", after(&["a"])).await;
    world.create("c", after(&["b", "x"])).await;
    assert_eq!(
        world.try_create("a", after(&["c"])).await,
        cycle(&["a", "c", "b", "a"])
    );
    assert_eq!(
        world.try_create("x", after(&["c"])).await,
        cycle(&["x", "c", "x"])
    );
    world.create("a", after(&["x"])).await;
    world.create("x", now()).await;
    for (job, next) in [("x", "a"), ("a", "b"), ("b", "c")] {
        assert_eq!(world.sent().await, [job]);
        world.complete(&[job]).await;
        assert_eq!(world.due().await, [next]);
    }
}

async fn no_circle_is_closed_by_creations_at_the_same_time(world: World) {
    for round in 0..10 {
        let name = |n: usize| format!("r{round}-{}", n % 4);
        // Each waits for the next one; if all four were created, nobody would ever start.
        let answers = join_all((0..4).map(|n| {
            let world = &world;
            async move { world.try_create(&name(n), after(&[&name(n + 1)])).await }
        }))
        .await;
        let refused = answers
            .iter()
            .filter(|answer| matches!(answer, Creation::Refused(Refusal::Cycle(_))))
            .count();
        let created = answers
            .iter()
            .filter(|answer| matches!(answer, Creation::Created(_)))
            .count();
        assert_eq!((refused, created), (1, 3), "{answers:?}");
    }
}

async fn nobody_is_forgotten_who_is_created_while_the_prerequisite_completes(world: World) {
    for round in 0..10 {
        let prerequisite = format!("p{round}");
        // Every other time it does not exist yet either.
        if round % 2 == 0 {
            world.create(&prerequisite, now()).await;
        }
        let created = join_all((0..6).map(|n| {
            let (world, prerequisite) = (&world, &prerequisite);
            async move {
                match n {
                    0 if round % 2 == 0 => world.complete(&[prerequisite]).await,
                    0 => {
                        world.create(prerequisite, now()).await;
                        world.complete(&[prerequisite]).await;
                    }
                    n => drop(
                        world
                            .create(&format!("r{round}-{n}"), after(&[prerequisite]))
                            .await,
                    ),
                }
            }
        }));
        created.await;
        let sent: BTreeSet<String> = world
            .sent()
            .await
            .into_iter()
            .filter(|job| *job != prerequisite)
            .collect();
        assert_eq!(sent.len(), 5, "{sent:?}");
    }
}

async fn a_job_whose_prerequisites_complete_at_the_same_time_starts_once(world: World) {
    let mut sent = Vec::new();
    for round in 0..10 {
        // Names that come before and after the one that waits.
        let prerequisites: Vec<String> = ["a", "b", "y", "z"]
            .iter()
            .map(|name| format!("{name}{round}"))
            .collect();
        for job in &prerequisites {
            world.create(job, now()).await;
        }
        let list: Vec<&str> = prerequisites.iter().map(String::as_str).collect();
        world.create(&format!("m{round}"), after(&list)).await;
        join_all(prerequisites.iter().map(|job| {
            let world = &world;
            async move { world.complete(&[job]).await }
        }))
        .await;
        sent.extend(world.sent().await);
    }
    let started: Vec<&String> = sent.iter().filter(|job| job.starts_with('m')).collect();
    assert_eq!(started.len(), 10, "{started:?}");
}

async fn a_failed_job_fails_all_that_wait_for_it_and_they_name_it(world: World) {
    world.create("root", now()).await;
    world.create("other", now()).await;
    // Names that come before the root, so that locks are missing.
    world.create("b", after(&["root", "other"])).await;
    world.create("a", after(&["b", "root"])).await;
    world.create("z", after(&["a", "later"])).await;
    world.create("beside", after(&["other"])).await;
    let recorded = world.report("root", failed()).await;
    let mut finished: Vec<_> = recorded
        .finished
        .iter()
        .map(|(life, status)| (life.job.as_str(), *status))
        .collect();
    finished.sort_unstable();
    assert_eq!(
        finished,
        ["a", "b", "root", "z"].map(|job| (job, JobStatus::Failed))
    );
    for job in ["a", "b", "z"] {
        let state = world.job(job).await;
        assert_eq!(
            (state.status, state.percentage_complete, state.failed_tasks),
            (JobStatus::Failed, 0.0, 1),
            "{job}"
        );
        assert_eq!(
            state.failure_counts,
            BTreeMap::from([("TORN".to_owned(), 1)])
        );
        let failure = &state.failures[0];
        assert_eq!(
            failure.failure_source.as_deref(),
            Some("acme:root:worker-pages")
        );
        assert_eq!(
            (failure.failure_id.as_deref(), failure.failure_time),
            (Some("TORN"), Some(7))
        );
        assert_eq!(
            failure.failure_message.as_deref(),
            Some("the page is torn\0")
        );
        assert!(state.waiting_for.is_empty());
    }
    assert_eq!(
        world.last_step("z").await,
        (
            "tracking".to_owned(),
            "its prerequisite a has failed".to_owned()
        )
    );
    assert_eq!(
        world.job("root").await.failures[0]
            .failure_source
            .as_deref(),
        Some("worker-pages")
    );
    assert_eq!(world.status("beside").await, JobStatus::Waiting);
    world.complete(&["other"]).await;
    assert_eq!(world.sent().await, ["beside"]);
}

async fn a_cancelled_job_cancels_all_that_wait_for_it(world: World) {
    world.create("m", now()).await;
    world.create("c", after(&["m"])).await;
    world.create("b", after(&["c"])).await;
    world.create("z", after(&["c", "b"])).await;
    let cancelled: BTreeSet<String> = world.cancel("m").await.into_iter().collect();
    assert_eq!(cancelled, ["b", "c", "m", "z"].map(str::to_owned).into());
    for job in ["m", "c", "b", "z"] {
        assert_eq!(world.status(job).await, JobStatus::Cancelled, "{job}");
    }
    assert_eq!(
        world.last_step("c").await,
        (
            "client".to_owned(),
            "its prerequisite m was cancelled".to_owned()
        )
    );
    assert_eq!(world.sent().await, [""; 0]);
}

async fn a_cancelled_job_is_not_released_and_does_not_fail_with_its_prerequisite(world: World) {
    for prerequisite in ["good", "bad"] {
        world.create(prerequisite, now()).await;
        world
            .create(&format!("after-{prerequisite}"), after(&[prerequisite]))
            .await;
        world.cancel(&format!("after-{prerequisite}")).await;
    }
    world.sent().await;
    world.complete(&["good"]).await;
    world.report("bad", failed()).await;
    assert_eq!(world.sent().await, [""; 0]);
    for job in ["after-good", "after-bad"] {
        let state = world.job(job).await;
        assert_eq!(
            (state.status, state.failures.len()),
            (JobStatus::Cancelled, 0)
        );
    }
}

async fn nobody_waits_for_a_job_that_was_deleted(world: World) {
    world.create("m", now()).await;
    world.create("a", after(&["m"])).await;
    world.create("z", after(&["a"])).await;
    world.delete("m").await;
    assert_eq!(
        (world.status("a").await, world.status("z").await),
        (JobStatus::Cancelled, JobStatus::Cancelled)
    );
    assert_eq!(
        world.last_step("a").await.1,
        "its prerequisite m was deleted"
    );
    // The next life of the id has nothing to do with them; a finished one has nobody who waits.
    world.create("m", now()).await;
    world.create("b", after(&["m"])).await;
    let m = world.job("m").await.incarnation;
    let event = TrackingEvent {
        task: JobTaskId::parse(&format!("acme:m!{m}")).unwrap(),
        kind: EventKind::Complete,
    };
    world.store.record(&[event]).await.unwrap();
    world.delete("m").await;
    assert_eq!(world.status("b").await, JobStatus::Waiting);
    assert_eq!(world.sent().await, ["b"]);
    // One that waits for a deleted one that never was, waits.
    world.create("c", after(&["never"])).await;
    world.delete("c").await;
    world.create("never", now()).await;
    world.complete(&["never"]).await;
    assert_eq!(world.sent().await, [""; 0]);
}

async fn jobs_that_are_cancelled_together_take_with_them_who_waits(world: World) {
    world.create("x-1", now()).await;
    world.create("x-2", after(&["x-1"])).await;
    world.create("a", after(&["x-2"])).await;
    world.create("b", now()).await;
    let query = JobQuery {
        id_prefix: Some("x-".to_owned()),
        limit: 1,
        ..JobQuery::default()
    };
    let lives = world
        .store
        .cancel_some_jobs(&partition(), &query, 1)
        .await
        .unwrap();
    assert_eq!(
        lives
            .iter()
            .map(|life| life.job.as_str())
            .collect::<BTreeSet<_>>(),
        ["a", "x-1", "x-2"].into()
    );
    assert_eq!(
        world
            .store
            .cancel_some_jobs(&partition(), &query, 1)
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        (world.status("a").await, world.status("b").await),
        (JobStatus::Cancelled, JobStatus::Waiting)
    );
    world.create("c", after(&["b"])).await;
    let all = JobQuery {
        id_prefix: Some("b".to_owned()),
        limit: 9,
        ..JobQuery::default()
    };
    assert_eq!(
        world
            .store
            .delete_some_jobs(&partition(), &all, 9)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(world.status("c").await, JobStatus::Cancelled);
    let everybody = JobQuery {
        limit: 9,
        ..JobQuery::default()
    };
    assert_eq!(
        world
            .store
            .delete_some_jobs(&partition(), &everybody, 9)
            .await
            .unwrap()
            .len(),
        4
    );
}

async fn a_suspended_job_starts_when_its_partition_is_dispatched_and_not_before(world: World) {
    world.create("a", now()).await;
    world.create("j", suspended()).await;
    world
        .create(
            "waits",
            StartCondition {
                suspended: true,
                ..after(&["a"])
            },
        )
        .await;
    world
        .create(
            "both",
            StartCondition {
                suspended: true,
                ..after(&["a"])
            },
        )
        .await;
    world
        .create(
            "late",
            StartCondition {
                delay: 3600,
                ..suspended()
            },
        )
        .await;
    assert_eq!(world.sent().await, ["a"]);
    assert!(world.job("j").await.suspended && !world.job("a").await.suspended);
    world.complete(&["a"]).await;
    assert_eq!(world.sent().await, [""; 0]);
    assert_eq!(
        world.store.claim_outbox(10, MINUTE).await.unwrap().next_due,
        None
    );
    world.cancel("both").await;
    let other = PartitionId::parse("other").unwrap();
    assert_eq!(world.store.dispatch_partition(&other).await.unwrap(), 0);
    let mut signal = world.store.outbox_signal();
    signal.mark_unchanged();
    assert_eq!(
        world.store.dispatch_partition(&partition()).await.unwrap(),
        3
    );
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    assert!(!world.job("j").await.suspended);
    assert_eq!(
        world.sent().await.into_iter().collect::<BTreeSet<_>>(),
        ["j", "waits"].map(str::to_owned).into()
    );
    assert_eq!(
        world.store.dispatch_partition(&partition()).await.unwrap(),
        0
    );
    // A suspended one that still waits goes on waiting.
    world.create("b", now()).await;
    world
        .create(
            "k",
            StartCondition {
                suspended: true,
                ..after(&["b"])
            },
        )
        .await;
    world.store.dispatch_partition(&partition()).await.unwrap();
    assert_eq!(world.sent().await, ["b"]);
    world.complete(&["b"]).await;
    assert_eq!(world.sent().await, ["k"]);
}

async fn a_chain_and_a_fan_of_a_thousand_end_in_one_transaction(world: World) {
    const N: usize = 1000;
    let name = |n: usize| format!("c{:04}", N - n);
    for (first, kind) in [("fails", failed()), ("falls", EventKind::Progress(1))] {
        world.create(first, now()).await;
        // A chain in one half, a fan in the other.
        for n in 0..N {
            let waits_for = if n == 0 || n >= N / 2 {
                first.to_owned()
            } else {
                format!("{first}-{}", name(n - 1))
            };
            world
                .create(&format!("{first}-{}", name(n)), after(&[&waits_for]))
                .await;
        }
        world.report(first, kind).await;
    }
    assert_eq!(world.cancel("falls").await.len(), N + 1);
    world.sent().await;
    let count = async |prefix: &str, status| {
        let query = JobQuery {
            id_prefix: Some(prefix.to_owned()),
            statuses: vec![status],
            ..JobQuery::default()
        };
        world.store.count_jobs(&partition(), &query).await.unwrap()
    };
    assert_eq!(count("fails", JobStatus::Failed).await, 1001);
    assert_eq!(count("falls", JobStatus::Cancelled).await, 1001);
    assert_eq!(
        world.job("fails-c0501").await.failures[0]
            .failure_source
            .as_deref(),
        Some("acme:fails:worker-pages")
    );
}

async fn a_thousand_requests_for_one_job_at_once_create_it_once(world: World) {
    let partition = partition();
    let request = |n: usize| {
        let (name, content_hash) = (
            Some((n % 2).to_string()),
            [u8::try_from(n % 2).unwrap(); 32],
        );
        let (labels, start) = (BTreeMap::new(), now());
        JobRequest {
            name,
            labels,
            start,
            content_hash,
            ..JobRequest::new(partition.clone(), id("one"))
        }
    };
    let answers = join_all((0..1000).map(|n| {
        let (store, request) = (&world.store, request(n));
        async move {
            (
                n % 2,
                store
                    .create_job(&request, |_| ("start".to_owned(), vec![]))
                    .await
                    .unwrap(),
            )
        }
    }))
    .await;
    let winner = answers
        .iter()
        .find(|(_, answer)| matches!(answer, Creation::Created(_)))
        .unwrap()
        .0;
    let count = |which: fn(&Creation) -> bool, kind| {
        answers
            .iter()
            .filter(|(of, answer)| *of == kind && which(answer))
            .count()
    };
    assert_eq!(
        count(|answer| matches!(answer, Creation::Created(_)), winner),
        1
    );
    assert_eq!(
        count(|answer| *answer == Creation::AlreadyThere, winner),
        499
    );
    assert_eq!(
        count(|answer| *answer == Creation::Conflict, 1 - winner),
        500
    );
    assert_eq!(world.due().await.len(), 1);
}

suite! {
    a_message_is_claimed_once_until_its_lease_ends,
    of_many_relays_at_once_each_message_is_claimed_by_one,
    a_delayed_job_is_due_when_its_delay_is_over_and_says_so,
    messages_of_a_cancelled_deleted_or_finished_job_are_never_handed_out,
    a_job_waits_for_all_its_prerequisites_and_says_for_which,
    a_job_whose_prerequisites_are_all_complete_starts_at_once,
    a_delay_counts_from_the_completion_of_the_last_prerequisite,
    a_job_that_would_wait_in_vain_is_not_created,
    a_job_that_would_wait_for_itself_is_not_created,
    no_circle_is_closed_by_creations_at_the_same_time,
    nobody_is_forgotten_who_is_created_while_the_prerequisite_completes,
    a_job_whose_prerequisites_complete_at_the_same_time_starts_once,
    a_failed_job_fails_all_that_wait_for_it_and_they_name_it,
    a_cancelled_job_cancels_all_that_wait_for_it,
    a_cancelled_job_is_not_released_and_does_not_fail_with_its_prerequisite,
    nobody_waits_for_a_job_that_was_deleted,
    jobs_that_are_cancelled_together_take_with_them_who_waits,
    a_suspended_job_starts_when_its_partition_is_dispatched_and_not_before,
    a_chain_and_a_fan_of_a_thousand_end_in_one_transaction,
    a_thousand_requests_for_one_job_at_once_create_it_once,
}
