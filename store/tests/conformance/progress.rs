//! What a job tells of its items.

use contract::rest::Items;
use contract::{Announced, Condition, ConditionCode, JobStatus};
use store::{EventKind, JobRequest};

use crate::blocked::block_by;
use crate::fixture::{TestStore, acme, continuing, event, failed, id, retrying};

suite![
    total_is_that_of_the_announced_splits_and_final_once_all_are_announced,
    total_is_final_from_the_start_if_the_splitter_knows_it,
    splits_that_state_nothing_leave_the_total_open_until_the_end,
    job_that_is_cancelled_has_nothing_under_way,
    items_are_counted_by_what_has_become_of_them,
    job_tells_its_start_and_its_end,
    curve_has_points_a_second_apart_and_ends_with_the_present,
    items_that_wait_are_summed_over_unfinished_jobs_by_the_pipe_of_their_batches,
];

const fn announced(batches: u32, items: Option<u64>) -> EventKind {
    EventKind::Announced {
        stated: Some(Announced { batches, items }),
        digest: None,
    }
}

async fn total_is_that_of_the_announced_splits_and_final_once_all_are_announced(
    mut store: TestStore,
) {
    let job = store.create("splits").await;
    assert_eq!(store.job(&job).await.items, Items::default());
    store.report(&job, "3*", announced(2, None)).await;
    assert_eq!(total(&store, "splits").await, (Some(0), false));
    // Of the second sub-batch, an item is done before its split is announced.
    store.complete(&job, &["2.1"]).await;
    store.report(&job, "1.4*", announced(0, None)).await;
    assert_eq!(total(&store, "splits").await, (Some(4), false));
    store.reopen().await;
    store.report(&job, "2.5*", announced(0, None)).await;
    assert_eq!(total(&store, "splits").await, (Some(7), true));
    assert_eq!(store.job(&job).await.progress, Some(14.28));
    // Again, and late, nothing changes.
    store.report(&job, "1.4*", announced(0, None)).await;
    store.report(&job, "3*", announced(2, None)).await;
    assert_eq!(total(&store, "splits").await, (Some(7), true));
    store.complete(&job, &["1.1", "1.2", "1.3", "1.4*"]).await;
    assert_eq!(total(&store, "splits").await, (Some(7), true));
    store
        .complete(&job, &["2.2", "2.3", "2.4", "2.5*", "3*"])
        .await;
    let done = store.job(&job).await;
    assert_eq!(
        (done.status, done.progress),
        (JobStatus::Completed, Some(100.0))
    );
    let expected = Items {
        total: Some(7),
        total_is_final: true,
        done: 7,
        failed: 0,
        retrying: Some(0),
        running: Some(0),
        waiting: Some(0),
    };
    assert_eq!(done.items, expected);
}

async fn total_is_final_from_the_start_if_the_splitter_knows_it(store: TestStore) {
    let job = store.create("range").await;
    store.report(&job, "11*", announced(10, Some(10_000))).await;
    assert_eq!(total(&store, "range").await, (Some(10_000), true));
    store.report(&job, "1.1001*", announced(0, None)).await;
    store.complete(&job, &["1.1", "1.2"]).await;
    assert_eq!(total(&store, "range").await, (Some(10_000), true));
    assert_eq!(store.job(&job).await.progress, Some(0.02));
}

async fn splits_that_state_nothing_leave_the_total_open_until_the_end(store: TestStore) {
    let job = store.create("java").await;
    store.complete(&job, &["1", "2"]).await;
    assert_eq!(total(&store, "java").await, (Some(2), false));
    store.complete(&job, &["4*"]).await;
    assert_eq!(total(&store, "java").await, (Some(3), false));
    assert_eq!(store.job(&job).await.progress, None);
    store.complete(&job, &["3"]).await;
    assert_eq!(total(&store, "java").await, (Some(3), true));
    assert_eq!(store.job(&job).await.progress, Some(100.0));
    let failing = store.create_continuing("failing").await;
    store.complete(&failing, &["1", "3*"]).await;
    assert_eq!(total(&store, "failing").await, (Some(2), false));
    store.report(&failing, "2", failed("BROKEN")).await;
    assert_eq!(total(&store, "failing").await, (Some(2), true));
    assert_eq!(store.job(&failing).await.progress, Some(100.0));
}

async fn job_that_is_cancelled_has_nothing_under_way(store: TestStore) {
    let job = store.create_continuing("cancelled").await;
    store.report(&job, "3*", announced(0, None)).await;
    store.report(&job, "1", EventKind::Progress(50)).await;
    assert_eq!(store.job(&job).await.items.running, Some(1));
    store.cancel("cancelled").await;
    let items = store.job(&job).await.items;
    assert_eq!((items.running, items.retrying), (Some(0), Some(0)));
}

async fn items_that_wait_are_summed_over_unfinished_jobs_by_the_pipe_of_their_batches(
    store: TestStore,
) {
    let batch = async |job: &str, pipe: &str, announcement: &str| {
        let job = store
            .create_with(JobRequest {
                items_pipe: Some(pipe.to_owned()),
                ..continuing(job)
            })
            .await;
        store.report(&job, announcement, announced(0, None)).await;
        job
    };
    assert_eq!(store.waiting_items(10).await.unwrap(), []);
    let mixed = batch("mixed", "in", "20*").await;
    let events = [
        event(&mixed, "1", EventKind::Complete),
        event(&mixed, "2", failed("BROKEN")),
        event(&mixed, "3", retrying(1)),
        event(&mixed, "4", EventKind::Progress(10)),
    ];
    store.record(&events).await.unwrap();
    batch("new", "in", "5*").await;
    batch("paused", "in", "100*").await;
    store.pause("paused").await;
    batch("cancelled", "in", "100*").await;
    store.cancel("cancelled").await;
    let blocked = batch("blocked", "other", "3*").await;
    let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE);
    let block = block_by(&blocked, "1", 1, condition);
    store.block_tasks(&[block]).await.unwrap();
    let no_batch = store.create("no-batch").await;
    store.report(&no_batch, "9*", announced(0, None)).await;
    let all = [("in".to_owned(), 15 + 4), ("other".to_owned(), 1)];
    assert_eq!(store.waiting_items(10).await.unwrap(), all);
    assert_eq!(store.waiting_items(1).await.unwrap(), all[..1]);
}

async fn items_are_counted_by_what_has_become_of_them(store: TestStore) {
    let job = store.create_continuing("mixed").await;
    let retry = || retrying(1);
    let events = [
        event(&job, "21*", announced(0, None)),
        event(&job, "1", EventKind::Complete),
        event(&job, "2", EventKind::Complete),
        event(&job, "3", failed("BROKEN")),
        event(&job, "4", retry()),
        event(&job, "5", retry()),
        event(&job, "5", retry()),
        event(&job, "6", EventKind::Progress(50)),
        event(&job, "7", EventKind::Progress(50)),
        event(&job, "7", retry()),
    ];
    store.record(&events).await.unwrap();
    let items = |failed, retrying, running, done| Items {
        total: Some(20),
        total_is_final: true,
        done,
        failed,
        retrying: Some(retrying),
        running: Some(running),
        waiting: Some(20 - done - failed - retrying - running),
    };
    assert_eq!(store.job(&job).await.items, items(1, 3, 1, 2));
    let events = [
        event(&job, "4", EventKind::Complete),
        event(&job, "5", failed("BROKEN")),
        event(&job, "6", EventKind::Complete),
        event(&job, "3", EventKind::Complete),
    ];
    store.record(&events).await.unwrap();
    assert_eq!(store.job(&job).await.items, items(1, 1, 0, 5));
}

async fn job_tells_its_start_and_its_end(store: TestStore) {
    let job = store.create("times").await;
    let waiting = store.job(&job).await;
    assert_eq!((waiting.start_time, waiting.end_time), (None, None));
    store.complete(&job, &["1"]).await;
    let active = store.job(&job).await;
    assert!(active.start_time >= Some(active.create_time));
    assert_eq!(active.start_time, Some(active.last_update_time));
    assert_eq!(active.end_time, None);
    // One moment shows no rate, and nobody invents one.
    assert_eq!(
        (active.items_per_second, active.estimated_end_time),
        (None, None)
    );
    store.complete(&job, &["2*"]).await;
    let done = store.job(&job).await;
    assert_eq!(done.start_time, active.start_time);
    assert_eq!(done.end_time, Some(done.last_update_time));
}

async fn curve_has_points_a_second_apart_and_ends_with_the_present(mut store: TestStore) {
    let curve = async |store: &TestStore| {
        let curve = store.progress_curve(&acme(), &id("curve")).await;
        curve.unwrap().unwrap()
    };
    let job = store.create_continuing("curve").await;
    assert_eq!(curve(&store).await.points, []);
    store.report(&job, "1000*", announced(0, None)).await;
    store.complete(&job, &["1"]).await;
    let first = curve(&store).await.points;
    assert_eq!(first.last().map(|point| point.done), Some(1), "{first:?}");
    // A point is due by the clock of the store.
    let mut done = 1;
    harness::wait_for("a point to be stored", async || {
        done += 1;
        store.complete(&job, &[&done.to_string()]).await;
        let points = curve(&store).await.points;
        if points.len() > 2 {
            Ok(())
        } else {
            Err(format!("{points:?}"))
        }
    })
    .await;
    store.reopen().await;
    store.report(&job, "999", failed("BROKEN")).await;
    let present = curve(&store).await;
    assert_eq!((present.total, present.total_is_final), (Some(999), true));
    let points = present.points;
    assert!(points.is_sorted_by_key(|point| point.time), "{points:?}");
    assert_eq!(points[0].time, first[0].time);
    assert!(points[1].time - points[0].time >= 1000);
    let last = points[points.len() - 1];
    assert_eq!((last.done, last.failed), (done, 1));
    let unknown = store.progress_curve(&acme(), &id("unknown")).await;
    assert_eq!(unknown.unwrap(), None);
    store.delete("curve").await;
    store.create_continuing("curve").await;
    assert_eq!(curve(&store).await.points, []);
}

async fn total(store: &TestStore, job: &str) -> (Option<i64>, bool) {
    let items = store.job(job).await.items;
    (items.total, items.total_is_final)
}
