//! How long the data of finished jobs is kept.

use std::time::Duration;

use contract::JobStatus;
use contract::rest::TaskState;
use store::{StoreOptions, Swept, TaskAnswer};

use crate::fixture::{TestStore, event, failed};

suite![
    sweep_drops_the_task_tables_of_finished_jobs,
    sweep_removes_failed_tables_and_past_incarnations_after_their_retention,
];

async fn sweep_drops_the_task_tables_of_finished_jobs(store: TestStore) {
    let mut incarnations = Vec::new();
    for at in 0..12 {
        let incarnation = store.create(&format!("sweep-{at}")).await;
        store.complete(&incarnation, &["1", "2"]).await;
        incarnations.push(incarnation);
    }
    let untouched = store.create("no-subtasks").await;
    store.complete(&untouched, &[""]).await;
    assert_eq!(store.task_table_size().await.unwrap().tables, 12);
    assert_eq!(store.sweep().await.unwrap().tables, 0);
    for incarnation in &incarnations[..10] {
        store.complete(incarnation, &["3*"]).await;
    }
    store.cancel(&incarnations[10]).await;
    store.report(&incarnations[11], "3", failed("BROKEN")).await;
    assert_eq!(store.task_table_size().await.unwrap().tables, 12);
    assert_eq!(
        store.sweep().await.unwrap(),
        Swept {
            jobs: 0,
            tables: 8,
            letters: 0,
            memos: 0,
            next: Some(0)
        }
    );
    let Swept {
        tables: dropped,
        next,
        ..
    } = store.sweep().await.unwrap();
    assert_eq!(dropped, 2);
    // The tables of the failed and of the cancelled job stay for a day.
    let day = 24 * 60 * 60 * 1000;
    assert!(
        next.is_some_and(|next| next > day - 60_000 && next <= day),
        "{next:?}"
    );
    assert_eq!(store.task_table_size().await.unwrap().tables, 2);
    for incarnation in &incarnations[10..] {
        assert_eq!(
            store.task_status(incarnation, &[1]).await,
            Some(TaskState::Completed)
        );
        store.delete(incarnation).await;
    }
    assert_eq!(store.sweep().await.unwrap().tables, 2);
    assert_eq!(
        store.task_status(&incarnations[0], &[1]).await,
        Some(TaskState::Completed)
    );
}

async fn sweep_removes_failed_tables_and_past_incarnations_after_their_retention(
    mut store: TestStore,
) {
    let short = StoreOptions {
        failed_tables_kept: Duration::ZERO,
        past_incarnations_kept: Duration::ZERO,
        events_kept: Duration::ZERO,
        ..StoreOptions::default()
    };
    store.reopen_with(short).await;
    let incarnation = store.create("short").await;
    store.report(&incarnation, "2", failed("BROKEN")).await;
    assert_eq!(
        store.sweep().await.unwrap(),
        Swept {
            jobs: 0,
            tables: 1,
            letters: 0,
            memos: 0,
            next: None
        }
    );
    let job = store.job(&incarnation).await;
    assert_eq!((job.status, job.failures.len()), (JobStatus::Failed, 1));
    assert_eq!(
        store.task_status(&incarnation, &[2]).await,
        Some(TaskState::Failed)
    );
    let answer = store.task_answer(&incarnation, &[1]).await;
    assert_eq!(answer, TaskAnswer::NotKnown);
    let late = [event(&incarnation, "3", failed("LATE"))];
    assert_eq!(store.record(&late).await.unwrap().ignored, 1);
    assert_eq!(store.job(&incarnation).await, job);
    store.delete(&incarnation).await;
    store.sweep().await.unwrap();
    assert!(store.create("short").await.first);
}
