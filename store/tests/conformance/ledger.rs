//! The ledger: how reports about tasks determine the state of their job.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::rest::TaskState;
use contract::{JobStatus, JobTaskId};
use futures_util::future::join_all;
use store::{EventKind, Incarnation, StoreOptions, TaskAnswer, TrackingEvent};

use crate::fixture::{TestStore, event, failed, failure, page_of, retrying};

suite![
    job_completes_when_all_tasks_are_reported_in_any_order_and_repeatedly,
    first_failure_fails_a_job_with_on_failure_stop,
    failed_job_counts_what_is_reported_later_and_keeps_its_outcome,
    on_failure_continue_decides_the_job_last_and_shows_100_failures,
    retried_task_is_retrying_until_it_completes,
    completed_split_drops_the_rows_below_it,
    contradictory_split_sizes_fail_the_job,
    job_with_more_items_than_the_limit_fails,
    concurrent_reports_are_counted_exactly,
    tasks_on_the_deepest_level_are_counted,
    reports_of_unknown_jobs_are_ignored,
    task_that_runs_is_active_and_so_is_its_job,
    task_that_never_existed_is_not_found_in_an_ended_job,
];

async fn job_completes_when_all_tasks_are_reported_in_any_order_and_repeatedly(
    mut store: TestStore,
) {
    let incarnation = store.create("tree").await;
    store
        .report(&incarnation, "2", EventKind::Progress(0))
        .await;
    assert_eq!(store.job(&incarnation).await.status, JobStatus::Waiting);
    store
        .report(&incarnation, "4*", EventKind::Progress(0))
        .await;
    assert_eq!(store.job(&incarnation).await.status, JobStatus::Waiting);
    assert_eq!(
        store.task_status(&incarnation, &[2]).await,
        Some(TaskState::Waiting)
    );
    assert_eq!(store.task_status(&incarnation, &[5]).await, None);

    store
        .complete(&incarnation, &["4*", "1", "1", "2.3*", "2.1"])
        .await;
    store.reopen().await;
    store.complete(&incarnation, &["2.1", "1", "4"]).await;
    let job = store.job(&incarnation).await;
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
        assert_eq!(
            store.task_status(&incarnation, path).await,
            state,
            "{path:?}"
        );
    }
    let split = store.task(&incarnation, &[2]).await;
    assert_eq!(
        (split.subtasks, split.completed_subtasks),
        (Some(2), Some(1))
    );

    store
        .report(&incarnation, "3", EventKind::Progress(50))
        .await;
    let task = store.task(&incarnation, &[3]).await;
    assert_eq!(
        (task.status, task.since.is_some()),
        (TaskState::Active, true)
    );
    store.complete(&incarnation, &["2.2"]).await;
    assert_eq!(
        store
            .job(&incarnation)
            .await
            .percentage_complete
            .to_string(),
        "87.5"
    );
    let recorded = store
        .record(&[
            event(&incarnation, "3", EventKind::Complete),
            event(&incarnation, "3", EventKind::Complete),
        ])
        .await
        .unwrap();
    assert_eq!(
        recorded.finished,
        [(incarnation.clone(), JobStatus::Completed)]
    );
    assert_eq!(recorded.ignored, 1);
    let job = store.job(&incarnation).await;
    assert_eq!(
        (job.status, job.completed_items, job.percentage_complete),
        (JobStatus::Completed, 4, 100.0)
    );
    assert_eq!(
        store.task_status(&incarnation, &[2, 2]).await,
        Some(TaskState::Completed)
    );
}

async fn first_failure_fails_a_job_with_on_failure_stop(store: TestStore) {
    let incarnation = store.create("stop").await;
    let events = [
        event(&incarnation, "1", EventKind::Complete),
        event(&incarnation, "2", retrying(3)),
        event(&incarnation, "2", failed("BROKEN")),
        event(&incarnation, "3", EventKind::Complete),
    ];
    let recorded = store.record(&events).await.unwrap();
    assert_eq!(
        (recorded.ignored, &recorded.finished[..]),
        (0, &[(incarnation.clone(), JobStatus::Failed)][..])
    );
    let job = store.job(&incarnation).await;
    assert_eq!(
        (job.status, job.completed_items, job.failed_tasks),
        (JobStatus::Failed, 2, 1)
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
    let task = store.task(&incarnation, &[2]).await;
    assert_eq!((task.status, task.attempts), (TaskState::Failed, Some(4)));
    assert_eq!(
        store.task_status(&incarnation, &[1]).await,
        Some(TaskState::Completed)
    );
    let listed = store.jobs(&incarnation.partition, &page_of(9)).await;
    assert_eq!(listed.unwrap(), [job]);
}

async fn failed_job_counts_what_is_reported_later_and_keeps_its_outcome(mut store: TestStore) {
    let incarnation = store.create("late").await;
    store.complete(&incarnation, &["5*"]).await;
    // Two failures in one message.
    let two = [
        event(&incarnation, "1", failed("FIRST")),
        event(&incarnation, "2.1", failed("SECOND")),
    ];
    store.record(&two).await.unwrap();
    let decided = store.job(&incarnation).await;
    assert_eq!(decided.percentage_complete.to_string(), "20");
    store.reopen().await;
    let late = [
        event(&incarnation, "3", EventKind::Complete),
        event(&incarnation, "4", failed("THIRD")),
        event(&incarnation, "2.2*", EventKind::Complete),
        event(&incarnation, "", failed("OWN")),
        // It is done after all; the failure that ended the job stays.
        event(&incarnation, "1", EventKind::Complete),
        event(&incarnation, "", EventKind::Complete),
    ];
    for _ in 0..2 {
        let recorded = store.record(&late).await.unwrap();
        assert_eq!((recorded.ignored, recorded.finished), (0, Vec::new()));
        store.record(&two).await.unwrap();
    }
    let job = store.job(&incarnation).await;
    assert_eq!(
        (job.status, job.percentage_complete),
        (JobStatus::Failed, decided.percentage_complete)
    );
    assert_eq!((job.completed_items, job.failed_tasks), (2, 4));
    let mut failures: Vec<_> = job
        .failures
        .iter()
        .map(|failure| (&*failure.task_id, failure.failure_id.as_deref().unwrap()))
        .collect();
    failures.sort_unstable();
    let all = [
        ("", "OWN"),
        ("1", "FIRST"),
        ("2.1", "SECOND"),
        ("4", "THIRD"),
    ];
    assert_eq!(failures, all);
    assert!(job.failure_counts.values().eq([1, 1, 1, 1].iter()));
    for (path, state) in [
        (&[1][..], TaskState::Completed),
        (&[2], TaskState::Failed),
        (&[2, 1], TaskState::Failed),
        (&[2, 2], TaskState::Completed),
        (&[3], TaskState::Completed),
        (&[4], TaskState::Failed),
    ] {
        assert_eq!(
            store.task_status(&incarnation, path).await,
            Some(state),
            "{path:?}"
        );
    }
    let many: Vec<_> = (1..=150)
        .map(|n| event(&incarnation, &format!("4.{n}"), failed("MANY")))
        .collect();
    store.record(&many).await.unwrap();
    let job = store.job(&incarnation).await;
    assert_eq!((job.failures.len(), job.failed_tasks), (100, 154));
    assert_eq!(job.failure_counts["MANY"], 150);
}

async fn on_failure_continue_decides_the_job_last_and_shows_100_failures(mut store: TestStore) {
    let incarnation = store.create_continuing("continue").await;
    let fail = |number: u32| {
        event(
            &incarnation,
            &format!("1.{number}"),
            failed(if number.is_multiple_of(2) {
                "EVEN"
            } else {
                "ODD"
            }),
        )
    };
    for batch in (1..=150).map(fail).collect::<Vec<_>>().chunks(40) {
        store.record(batch).await.unwrap();
        store.record(batch).await.unwrap();
    }
    store.reopen().await;
    store.complete(&incarnation, &["1.151*", "1.1", "2*"]).await;
    let job = store.job(&incarnation).await;
    assert_eq!(
        (
            job.status,
            job.failed_tasks,
            job.completed_items,
            job.failures.len()
        ),
        (JobStatus::Failed, 149, 1, 100)
    );
    assert_eq!(
        job.failure_counts,
        BTreeMap::from([("EVEN".to_owned(), 75), ("ODD".to_owned(), 74)])
    );
    assert!(job.percentage_complete < 100.0);
    assert_eq!(
        store.task_status(&incarnation, &[1]).await,
        Some(TaskState::Failed)
    );
    assert_eq!(
        store.task_status(&incarnation, &[1, 150]).await,
        Some(TaskState::Failed)
    );
    assert_eq!(
        store.task_status(&incarnation, &[1, 1]).await,
        Some(TaskState::Completed)
    );
}

async fn retried_task_is_retrying_until_it_completes(store: TestStore) {
    let incarnation = store.create("retry").await;
    let retry = |path: &str, attempts| event(&incarnation, path, retrying(attempts));
    store.record(&[retry("", 1)]).await.unwrap();
    // Nothing has been done yet.
    assert_eq!(store.job(&incarnation).await.status, JobStatus::Waiting);
    assert_eq!(
        store.task_status(&incarnation, &[]).await,
        Some(TaskState::Retrying)
    );
    assert_eq!(store.task_table_size().await.unwrap().tables, 0);

    store.record(&[retry("2", 2), retry("2", 1)]).await.unwrap();
    assert_eq!(store.job(&incarnation).await.status, JobStatus::Waiting);
    store
        .report(&incarnation, "2", EventKind::Progress(30))
        .await;
    assert_eq!(store.job(&incarnation).await.status, JobStatus::Active);
    let task = store.task(&incarnation, &[2]).await;
    assert_eq!((task.status, task.attempts), (TaskState::Retrying, Some(2)));
    assert_eq!(task.failure.unwrap().failure_id.as_deref(), Some("SLOW"));
    assert_eq!(store.task_table_size().await.unwrap().rows, 2);
    store.complete(&incarnation, &["2"]).await;
    assert_eq!(
        store.task_status(&incarnation, &[2]).await,
        Some(TaskState::Completed)
    );
    assert_eq!(store.task_table_size().await.unwrap().rows, 1);
}

async fn completed_split_drops_the_rows_below_it(store: TestStore) {
    let incarnation = store.create("prune").await;
    store
        .complete(&incarnation, &["1.1.1", "1.2.1", "10.1", "1.3"])
        .await;
    store
        .report(&incarnation, "1.4", EventKind::Progress(5))
        .await;
    assert_eq!(store.task_table_size().await.unwrap().rows, 6);
    store.complete(&incarnation, &["1", "1.2.2", "1.1"]).await;
    assert_eq!(store.task_table_size().await.unwrap().rows, 2);
    assert_eq!(store.job(&incarnation).await.completed_items, 2);
    assert_eq!(
        store.task_status(&incarnation, &[1, 1]).await,
        Some(TaskState::Completed)
    );
    assert_eq!(
        store.task_status(&incarnation, &[10, 1]).await,
        Some(TaskState::Completed)
    );
}

async fn contradictory_split_sizes_fail_the_job(store: TestStore) {
    let incarnation = store.create_continuing("conflict").await;
    store.complete(&incarnation, &["1.3*", "1.1", "1.5*"]).await;
    store
        .complete(&incarnation, &["1.2", "1.4", "1.3", "2*"])
        .await;
    let job = store.job(&incarnation).await;
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

async fn job_with_more_items_than_the_limit_fails(mut store: TestStore) {
    let limited = StoreOptions {
        max_items: 2,
        ..StoreOptions::default()
    };
    store.reopen_with(limited).await;
    let fitting = store.create("fitting").await;
    store.complete(&fitting, &["1", "2", "3*"]).await;
    assert_eq!(store.job(&fitting).await.status, JobStatus::Completed);

    let large = store.create_continuing("large").await;
    store.complete(&large, &["1", "2"]).await;
    assert_eq!(store.job(&large).await.status, JobStatus::Active);
    store.complete(&large, &["3"]).await;
    let job = store.job(&large).await;
    assert_eq!(job.status, JobStatus::Failed);
    let message = job.failures[0].failure_message.as_deref();
    let expected = "3 items are done; a job has at most 2 (--max-items)";
    assert_eq!(message, Some(expected));
}

async fn concurrent_reports_are_counted_exactly(store: TestStore) {
    let incarnations = join_all(["x", "y", "z"].map(|job| store.create(job))).await;
    // Four writers. Each sends every event of every job, in its own order.
    let all: Vec<TrackingEvent> = incarnations
        .iter()
        .flat_map(|incarnation| {
            (1..=40u32).flat_map(move |i| (1..=10u32).map(move |j| (incarnation, i, j)))
        })
        .map(|(incarnation, i, j)| {
            event(
                incarnation,
                &format!("{i}.{j}{}", if j == 10 { "*" } else { "" }),
                EventKind::Complete,
            )
        })
        .collect();
    let writers = [7usize, 11, 13, 17].map(|stride| {
        let (store, all) = (store.clone(), all.clone());
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
    for incarnation in &incarnations {
        let job = store.job(incarnation).await;
        assert_eq!(
            (job.status, job.completed_items),
            (JobStatus::Active, 40 * 9),
            "{}",
            incarnation.job
        );
    }
    let finals: Vec<_> = incarnations
        .iter()
        .map(|incarnation| event(incarnation, "41*", EventKind::Complete))
        .collect();
    let results = join_all((0..4).map(|_| store.record(&finals))).await;
    let finished: usize = results
        .into_iter()
        .map(|result| result.unwrap().finished.len())
        .sum();
    assert_eq!(finished, 3);
}

async fn tasks_on_the_deepest_level_are_counted(store: TestStore) {
    let path = |number: &str, steps: usize| [number; JobTaskId::MAX_DEPTH][..steps].join(".");
    // The longest id.
    let incarnation = store.create("deep").await;
    let deepest = path(&i32::MAX.to_string(), JobTaskId::MAX_DEPTH);
    store.complete(&incarnation, &[&deepest]).await;
    assert_eq!(store.job(&incarnation).await.completed_items, 1);

    // A chain of splits, each into one subtask.
    let chain = store.create("chain").await;
    store
        .complete(&chain, &[&path("1", JobTaskId::MAX_DEPTH)])
        .await;
    for steps in (1..JobTaskId::MAX_DEPTH).rev() {
        let last = format!("{}.2*", path("1", steps));
        store.complete(&chain, &[&last]).await;
    }
    store.complete(&chain, &["2*"]).await;
    let job = store.job(&chain).await;
    assert_eq!((job.status, job.completed_items), (JobStatus::Completed, 1));
}

async fn reports_of_unknown_jobs_are_ignored(store: TestStore) {
    let complete = |text: &str| TrackingEvent {
        task: JobTaskId::parse(text).unwrap(),
        kind: EventKind::Complete,
    };
    let incarnation = store.create("known").await;
    let events = [
        complete("acme:unknown.1"),
        complete("acme:known!999999.1"),
        complete("else:known.1"),
        // PostgreSQL keeps no text with U+0000, and does not search for one.
        complete("acme:known\0.1"),
        complete("acme\0:known.1"),
        complete("acme:known.1"),
    ];
    assert_eq!(store.record(&events).await.unwrap().ignored, 5);
    assert_eq!(store.record(&[]).await.unwrap(), store::Recorded::default());
    assert_eq!(store.job(&incarnation).await.completed_items, 1);
    assert!(!store.exists("unknown").await);
    assert_eq!(store.task_status("unknown", &[1]).await, None);
    assert_eq!(store.history("unknown").await, []);
}

async fn task_that_runs_is_active_and_so_is_its_job(store: TestStore) {
    let started = |attempts| EventKind::Started { attempts };
    let failed_once = || retrying(1);
    // The job's own task, and a subtask.
    for (job, path, numbers) in [("own", "", &[][..]), ("sub", "2", &[2])] {
        let incarnation = store.started(job).await;
        let state = async || {
            let task = store.task(&incarnation, numbers).await;
            (task.status, task.attempts, task.failure.is_some())
        };
        store.report(&incarnation, path, started(0)).await;
        let now = store.job(&incarnation).await;
        assert_eq!(
            (now.status, now.percentage_complete),
            (JobStatus::Active, 0.0)
        );
        assert_eq!(state().await, (TaskState::Active, None, false));
        assert!(store.task(&incarnation, numbers).await.since > Some(0));
        store.report(&incarnation, path, failed_once()).await;
        // Repeated and late.
        store.report(&incarnation, path, started(0)).await;
        assert_eq!(state().await, (TaskState::Retrying, Some(1), true));
        store.report(&incarnation, path, started(1)).await;
        store.report(&incarnation, path, failed_once()).await;
        assert_eq!(state().await, (TaskState::Active, Some(1), true));
        store.report(&incarnation, path, failed("BROKEN")).await;
        store.report(&incarnation, path, started(2)).await;
        assert_eq!(state().await, (TaskState::Failed, Some(2), true));
    }
    let incarnation = store.started("done").await;
    store.complete(&incarnation, &["2"]).await;
    let before = store.job(&incarnation).await;
    store.report(&incarnation, "2", started(0)).await;
    assert_eq!(store.job(&incarnation).await, before);
    let state = store.task_status(&incarnation, &[2]).await;
    assert_eq!(state, Some(TaskState::Completed));
}

async fn task_that_never_existed_is_not_found_in_an_ended_job(mut store: TestStore) {
    store
        .reopen_with(StoreOptions {
            failed_tables_kept: Duration::ZERO,
            ..StoreOptions::default()
        })
        .await;
    let whole = store.create("whole").await;
    store.complete(&whole, &[""]).await;
    let at_once = store.create("at-once").await;
    store.complete(&at_once, &["1", "2", "3*"]).await;
    let split = store.create("split").await;
    store.complete(&split, &["1"]).await;
    store.complete(&split, &["2", "3*"]).await;
    let broken = store.create("broken").await;
    store.complete(&broken, &["1", "3*"]).await;
    store.report(&broken, "2", failed("BROKEN")).await;
    let cancelled = store.create("cancelled").await;
    store.complete(&cancelled, &["1"]).await;
    store.cancel(&cancelled).await;
    while store.sweep().await.unwrap().tables > 0 {}

    let told = async |incarnation: &Incarnation, path: &[u32]| match store
        .task_answer(incarnation, path)
        .await
    {
        TaskAnswer::Task(task) if task.remark.is_some() => format!("{:?}?", task.status),
        TaskAnswer::Task(task) => format!("{:?}", task.status),
        other => format!("{other:?}"),
    };
    for (incarnation, path, expected) in [
        (&whole, &[1][..], "NoTask"),
        (&at_once, &[3], "Completed"),
        (&at_once, &[4], "NoTask"),
        (&split, &[], "Completed"),
        (&split, &[3], "Completed"),
        (&split, &[4], "NoTask"),
        (&split, &[4, 1], "NoTask"),
        (&split, &[1, 7], "Completed?"),
        (&broken, &[], "Failed"),
        (&broken, &[2], "Failed"),
        (&broken, &[1], "NotKnown"),
        (&broken, &[4], "NoTask"),
        (&cancelled, &[1], "NotKnown"),
    ] {
        let (job, told) = (&incarnation.job, told(incarnation, path).await);
        assert_eq!(told, expected, "{job} {path:?}");
    }
}
