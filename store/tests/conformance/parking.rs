//! Tasks of paused jobs: parked in the store, and sent again after a resume.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use contract::{JobId, JobTaskId, ReportFailure};
use futures_util::future::join_all;
use harness::wait_for;
use store::{
    Backlog, Change, EventKind, Header, Headers, Incarnation, OutboxMessage, ParkOutcome,
    ParkedTask,
};

use crate::fixture::{MINUTE, TestStore, in_seconds, task_id};

suite![
    only_tasks_of_the_paused_incarnation_are_parked,
    resume_moves_parked_tasks_to_the_outbox_unchanged_and_in_order,
    interrupted_resume_continues_in_the_next_process,
    job_paused_again_during_its_resume_keeps_the_remaining_tasks,
    parked_tasks_of_an_ended_job_are_dropped,
    resume_wakes_unparking_and_the_relay,
    concurrent_parking_pausing_and_resuming_lose_no_task,
    backlog_counts_jobs_by_status_parked_tasks_and_due_messages,
];

async fn backlog_counts_jobs_by_status_parked_tasks_and_due_messages(store: TestStore) {
    assert_eq!(store.backlog().await.unwrap(), Backlog::default());
    let (paused, cancelled) = (
        store.paused("paused").await,
        store.started("cancelled").await,
    );
    store.cancel(&cancelled).await;
    let tasks = [1, 2].map(|n| (task_id(&paused, "1"), task(n)));
    store.park_tasks(&tasks).await.unwrap();
    store.create("due").await;
    store.create_scheduled("later", in_seconds(60)).await;
    let backlog = wait_for("the message to be due for some time", async || {
        let backlog = store.backlog().await.unwrap();
        let is_old = !backlog.oldest_due.is_zero();
        is_old
            .then_some(backlog.clone())
            .ok_or(format!("{backlog:?}"))
    })
    .await;
    let jobs = [("Cancelled", 1), ("Paused", 1), ("Waiting", 2)];
    assert_eq!(backlog.jobs, jobs.into());
    // The start message, and the announcements of the pause and of the cancellation.
    assert_eq!((backlog.parked_tasks, backlog.due_messages), (2, 3));
    assert!(backlog.oldest_due < MINUTE, "{backlog:?}");
}

async fn only_tasks_of_the_paused_incarnation_are_parked(store: TestStore) {
    use ParkOutcome::{Discard, Parked, SendBack};

    let [waiting, paused, cancelled] = [
        store.started("waiting").await,
        store.paused("paused").await,
        store.paused("cancelled").await,
    ];
    store.cancel(&cancelled).await;
    let first = store.paused("reborn").await;
    store.delete(&first).await;
    let second = store.paused("reborn").await;
    let unknown = Incarnation {
        job: JobId::parse("unknown").unwrap(),
        ..first.clone()
    };
    let incarnations = [
        &waiting, &paused, &cancelled, &first, &second, &unknown, &paused,
    ];
    let tasks: Vec<_> = incarnations
        .iter()
        .zip(1..)
        .map(|(incarnation, n)| (task_id(*incarnation, "1"), task(n)))
        .collect();
    let zero = (JobTaskId::parse("acme:paused\0.1").unwrap(), task(8));
    let tasks: Vec<_> = [zero].into_iter().chain(tasks).collect();
    assert_eq!(
        store.park_tasks(&tasks).await.unwrap(),
        [
            Discard, SendBack, Parked, Discard, Discard, Parked, Discard, Parked
        ]
    );
    assert_eq!(
        (
            store.parked(&paused).await,
            store.parked(&second).await,
            store.parked(&waiting).await
        ),
        (2, 1, 0)
    );
    assert_eq!(store.park_tasks(&[]).await.unwrap(), []);
}

async fn resume_moves_parked_tasks_to_the_outbox_unchanged_and_in_order(mut store: TestStore) {
    let [incarnation, other] = [store.paused("j").await, store.paused("other").await];
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
    store
        .park_tasks(&[(task_id(&incarnation, "1"), odd.clone())])
        .await
        .unwrap();
    store.park(&incarnation, 1..=1200).await;
    store.park(&other, 1..=3).await;
    assert!(
        !store.unpark_tasks(500).await.unwrap(),
        "no task moves to the outbox while the jobs are paused"
    );
    store.reopen().await;
    assert_eq!(store.resume(&incarnation).await, Change::Made);
    store.unpark_all().await;
    let sent = store.take_outbox().await;
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
        (store.parked(&incarnation).await, store.parked(&other).await),
        (0, 3)
    );
}

async fn interrupted_resume_continues_in_the_next_process(mut store: TestStore) {
    let incarnation = store.paused("j").await;
    store.park(&incarnation, 1..=25).await;
    store.resume(&incarnation).await;
    assert!(store.unpark_tasks(10).await.unwrap());
    assert_eq!(store.parked(&incarnation).await, 15);
    store.reopen().await;
    assert!(
        store.unpark_signal().has_changed().unwrap(),
        "a new process looks for remaining tasks"
    );
    store.unpark_all().await;
    assert_eq!(
        numbers(&store.take_outbox().await),
        (1..=25).collect::<Vec<_>>()
    );
}

async fn job_paused_again_during_its_resume_keeps_the_remaining_tasks(store: TestStore) {
    let incarnation = store.paused("j").await;
    store.park(&incarnation, 1..=25).await;
    store.resume(&incarnation).await;
    assert!(store.unpark_tasks(10).await.unwrap());
    store.pause(&incarnation).await;
    store.unpark_all().await;
    assert_eq!(store.parked(&incarnation).await, 15);
    store.park(&incarnation, 26..=30).await;
    assert_eq!(store.parked(&incarnation).await, 20);
    store.resume(&incarnation).await;
    store.unpark_all().await;
    assert_eq!(store.parked(&incarnation).await, 0);
    let sent: BTreeSet<u32> = numbers(&store.take_outbox().await).into_iter().collect();
    assert_eq!(sent, (1..=30).collect());
}

async fn parked_tasks_of_an_ended_job_are_dropped(store: TestStore) {
    let incarnations = [
        store.paused("cancelled").await,
        store.paused("failed").await,
        store.paused("deleted").await,
    ];
    for incarnation in &incarnations {
        store.park(incarnation, 1..=30).await;
    }
    let mut signal = store.unpark_signal();
    signal.mark_unchanged();
    store.cancel(&incarnations[0]).await;
    harness::in_time("a wake-up", signal.changed())
        .await
        .unwrap();
    store
        .report(
            &incarnations[1],
            "1",
            EventKind::Failed(ReportFailure::default()),
        )
        .await;
    store.delete(&incarnations[2]).await;
    while store.unpark_tasks(20).await.unwrap() {}
    for incarnation in &incarnations {
        assert_eq!(store.parked(incarnation).await, 0, "{incarnation:?}");
    }
    assert_eq!(store.take_outbox().await, []);
    // The next incarnation does not inherit the parked tasks.
    assert_eq!(store.parked(&store.started("deleted").await).await, 0);
}

async fn resume_wakes_unparking_and_the_relay(store: TestStore) {
    let waiting = store.in_another_process().await;
    let incarnation = store.paused("j").await;
    store.park(&incarnation, 1..=1).await;
    let (mut unstow, mut outbox) = (waiting.unpark_signal(), waiting.outbox_signal());
    unstow.mark_unchanged();
    outbox.mark_unchanged();
    store.resume(&incarnation).await;
    harness::in_time("a wake-up", unstow.changed())
        .await
        .unwrap();
    harness::in_time("a wake-up", outbox.changed())
        .await
        .unwrap();
    outbox.mark_unchanged();
    store.unpark_all().await;
    harness::in_time("a wake-up", outbox.changed())
        .await
        .unwrap();
}

/// Several writers park tasks while clients pause and resume their job. Each task is either parked
/// and sent again after a resume, or sent back at once.
async fn concurrent_parking_pausing_and_resuming_lose_no_task(store: TestStore) {
    const TASKS: u32 = 200;
    let incarnation = store.paused("j").await;
    let parkers = join_all((0..4).map(|parker| {
        let (store, incarnation) = (&store, &incarnation);
        async move {
            let mut sent_back = Vec::new();
            for n in (1..=TASKS).filter(|n| n % 4 == parker) {
                if store.park(incarnation, n..=n).await == [ParkOutcome::SendBack] {
                    sent_back.push(n);
                }
            }
            sent_back
        }
    }));
    let clients = async {
        for turn in 0..30 {
            if turn % 2 == 0 {
                store.resume(&incarnation).await
            } else {
                store.pause(&incarnation).await
            };
            tokio::task::yield_now().await;
        }
        store.resume(&incarnation).await;
    };
    let unparkers = join_all((0..2).map(async |_| {
        for _ in 0..60 {
            store.unpark_tasks(7).await.unwrap();
        }
    }));
    let (sent_back, ()) = tokio::join!(parkers, async {
        tokio::join!(clients, unparkers);
    });
    store.unpark_all().await;
    assert_eq!(store.parked(&incarnation).await, 0);
    let mut all: Vec<u32> = sent_back
        .into_iter()
        .flatten()
        .chain(numbers(&store.take_outbox().await))
        .collect();
    all.sort_unstable();
    assert_eq!(all, (1..=TASKS).collect::<Vec<_>>());
}

impl TestStore {
    /// Parks the tasks with these numbers.
    async fn park(
        &self,
        incarnation: &Incarnation,
        numbers: RangeInclusive<u32>,
    ) -> Vec<ParkOutcome> {
        let tasks: Vec<_> = numbers
            .map(|n| (task_id(incarnation, &n.to_string()), task(n)))
            .collect();
        self.park_tasks(&tasks).await.unwrap()
    }

    /// Returns how many tasks of the job are parked.
    async fn parked(&self, incarnation: &Incarnation) -> u64 {
        let parked = self.count_parked_tasks(&incarnation.partition, &incarnation.job);
        parked.await.unwrap()
    }

    /// Empties the outbox and returns its messages.
    async fn take_outbox(&self) -> Vec<OutboxMessage> {
        let messages = self.outbox(10_000).await.unwrap();
        self.confirm(&messages).await;
        messages
    }

    /// Moves all tasks of resumed jobs to the outbox.
    async fn unpark_all(&self) {
        while self.unpark_tasks(500).await.unwrap() {}
    }
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
