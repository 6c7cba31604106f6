//! Every item is counted exactly once, however often and in whichever order it is reported.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use batchwright::Stack;
use contract::rest::{Items, Job};
use contract::{
    JobStatus, RangeItem, ReportFailure, ReportStatus, TaskMessage, Tracking, TrackingReport,
    subtask_id,
};
use framework::config::Route;
use harness::wait_for;

use crate::fixture::Fixture;
use crate::workers::{Gate, echo, gated};

stories![
    a_job_of_many_items_is_counted_exactly,
    progress_never_falls_and_is_100_only_when_completed,
    repeated_and_reordered_reports_count_once,
    a_batch_waits_as_one_message_while_its_pipe_is_full,
];

async fn a_job_of_many_items_is_counted_exactly(fixture: Fixture) {
    let system = fixture.run(echo()).await;
    assert!(system.client.put("j", &fixture.range(1200)).await.unwrap());
    system.completed("j", 1200).await;
    system.has_outputs(&fixture.pipe("output"), 1..=1200).await;
    let expected = [
        (JobStatus::Waiting, "client"),
        (JobStatus::Active, "tracking"),
        (JobStatus::Completed, "tracking"),
    ];
    assert_eq!(
        system.history("j").await,
        expected.map(|(status, actor)| (status, actor.to_owned()))
    );
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    wait_for("the task table to be swept away", async || {
        let size = system
            .running
            .store()
            .unwrap()
            .task_table_size()
            .await
            .unwrap();
        if size.tables == 0 {
            Ok(())
        } else {
            Err(format!("{size:?}"))
        }
    })
    .await;
    system.stop().await;
}

async fn progress_never_falls_and_is_100_only_when_completed(fixture: Fixture) {
    let gate = Gate::closed();
    let system = fixture.run(gated(&gate)).await;
    system.client.put("j", &fixture.range(600)).await.unwrap();
    let mut known_before_the_end = false;
    let seen = |state: &Job| {
        gate.admit(10);
        let Items {
            total,
            total_is_final,
            ..
        } = state.items;
        assert!(total <= Some(600), "{state:?}");
        if total_is_final {
            assert_eq!(total, Some(600), "{state:?}");
            known_before_the_end |= !state.status.is_finished() && state.progress.is_some();
        }
    };
    let (state, steps) = system.follow("j", seen).await;
    assert!(
        known_before_the_end,
        "the number of items was known only at the end"
    );
    assert!(steps >= 10, "only {steps} different percentages were seen");
    assert_eq!(
        (state.status, state.completed_items),
        (JobStatus::Completed, 600)
    );
    system.stop().await;
}

async fn a_batch_waits_as_one_message_while_its_pipe_is_full(fixture: Fixture) {
    // A split does not see messages that are still in flight, so a few more items than `max_depth`
    // may get through.
    let (max_depth, bound) = (30, 250);
    let system = fixture
        .start(Stack::new(fixture.options_with_depth(max_depth)))
        .await;
    let items = fixture.pipe("items");
    system.client.put("j", &fixture.range(500)).await.unwrap();
    let depth = async || system.running.broker().depth(&items).await.unwrap();
    wait_for("the pipe to be full", async || match depth().await {
        full if full > max_depth => Ok(()),
        depth => Err(format!("{depth} items")),
    })
    .await;
    // No worker takes the items, so the batches wait. They wait in a delay queue, which does not
    // count as depth.
    wait_for("the batches to be delayed", async || {
        match system
            .running
            .broker()
            .depth(&fixture.pipe("batch"))
            .await
            .unwrap()
        {
            0 => Ok(()),
            depth => Err(format!("{depth} batches")),
        }
    })
    .await;
    assert!(depth().await <= bound, "{} items wait", depth().await);
    system.stop().await;

    let options = fixture.options_with_depth(max_depth);
    let system = fixture
        .start(Stack::new(options).worker(fixture.settings("items"), echo()))
        .await;
    system.completed("j", 500).await;
    system.stop().await;
}

async fn repeated_and_reordered_reports_count_once(fixture: Fixture) {
    const SPLITS: u32 = 8;
    const ITEMS: u32 = 50;
    let system = fixture.start(fixture.stack()).await;
    system
        .client
        .put(
            "j",
            &fixture.job(
                "nobody",
                &RangeItem {
                    number: 0,
                    params: BTreeMap::new(),
                },
            ),
        )
        .await
        .unwrap();
    let (start, _) = system.take_one(&fixture.pipe("nobody")).await;
    let tracking = start.tracking.clone().unwrap();
    let job = tracking.job_task_id.clone().unwrap();

    // The reports of a tree of splits. With the route `reroute`, the items themselves travel
    // through the tracking pipe.
    let report = |id: String, status| TrackingReport::new(id, status);
    let (mut reports, mut items) = (Vec::new(), Vec::new());
    for split in 1..=SPLITS {
        let id = subtask_id(&job, split, false);
        let last = subtask_id(&id, ITEMS + 1, true);
        items.extend((1..=ITEMS).map(|item| subtask_id(&id, item, false)));
        reports.extend([
            report(last.clone(), ReportStatus::Progress),
            report(last, ReportStatus::Complete),
        ]);
    }
    let last = subtask_id(&job, SPLITS + 1, true);
    reports.extend([
        report(last.clone(), ReportStatus::Progress),
        report(last, ReportStatus::Complete),
    ]);
    let rerouted = if fixture.route == Route::Reroute {
        std::mem::take(&mut items)
    } else {
        Vec::new()
    };
    reports.extend(
        items
            .into_iter()
            .map(|id| report(id, ReportStatus::Complete)),
    );

    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for (number, id) in (1..).zip(rerouted) {
        let item = RangeItem {
            number,
            params: BTreeMap::new(),
        };
        let message = TaskMessage {
            tracking: Some(Tracking {
                job_task_id: Some(id.clone()),
                status_check_url: None,
                ..tracking.clone()
            }),
            ..TaskMessage::new(id, fixture.pipe("output"), &item).unwrap()
        };
        bodies.extend(std::iter::repeat_n(message.encode(), 3));
    }
    let mut thrice = [reports.clone(), reports.clone(), reports].concat();
    let sent = thrice.len() + bodies.len();
    shuffle(&mut thrice);
    bodies.extend(thrice.chunks(7).map(|some| fixture.reports(some.to_vec())));
    shuffle(&mut bodies);
    for body in bodies {
        system.publish(&fixture.pipe("tracking"), body).await;
    }
    let (state, _) = system.follow("j", |_| {}).await;
    let counted = (JobStatus::Completed, i64::from(SPLITS * ITEMS), 0);
    assert_eq!(
        (state.status, state.completed_items, state.failed_tasks),
        counted
    );

    // A failure that is reported after the end of the job changes nothing either.
    let late = TrackingReport::failed(subtask_id(&job, 1, false), ReportFailure::default());
    system
        .publish(&fixture.pipe("tracking"), fixture.reports(vec![late]))
        .await;
    wait_for("all reports to be counted in", async || {
        let counted = system.running.reports().load(Ordering::Relaxed);
        if counted == sent as u64 + 1 {
            Ok(())
        } else {
            Err(format!("{counted} of {}", sent + 1))
        }
    })
    .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items, state.failed_tasks),
        counted
    );
    if fixture.route == Route::Reroute {
        system
            .has_outputs(&fixture.pipe("output"), 1..=u64::from(SPLITS * ITEMS))
            .await;
    }
    system.stop().await;
}

/// Shuffles a list, in the same way in every run.
fn shuffle<T>(list: &mut [T]) {
    let mut random: u64 = 0x5eed;
    for end in (1..list.len()).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        list.swap(
            end,
            usize::try_from((random >> 33) % (end as u64 + 1)).unwrap(),
        );
    }
}
