//! Every item is counted exactly once, whatever is reported how often and in which order.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use batchwright::Stack;
use contract::{
    JobStatus, RangeItem, ReportFailure, ReportStatus, TaskMessage, Tracking, TrackingReport,
    subtask_id,
};
use framework::config::Route;
use harness::wait_for;

use crate::place::Place;
use crate::workers::{Gate, echo, gated};

stories![
    a_job_of_many_items_is_counted_exactly,
    progress_never_falls_and_is_100_exactly_when_the_job_is_completed,
    reports_that_come_thrice_and_in_any_order_count_once,
    a_batch_waits_as_one_message_while_its_pipe_is_full,
];

async fn a_job_of_many_items_is_counted_exactly(place: Place) {
    let system = place.run(echo()).await;
    assert!(system.client.put("j", &place.range(5000)).await.unwrap());
    system.completed("j", 5000).await;
    system.has_outputs(&place.pipe("output"), 1..=5000).await;
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
        .drained(&["batch", "items", "tracking"].map(|pipe| place.pipe(pipe)))
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

async fn progress_never_falls_and_is_100_exactly_when_the_job_is_completed(place: Place) {
    let gate = Gate::closed();
    let system = place.run(gated(&gate)).await;
    system.client.put("j", &place.range(2000)).await.unwrap();
    let (state, steps) = system.follow("j", |_| gate.admit(10)).await;
    assert!(steps >= 10, "only {steps} different percentages were seen");
    assert_eq!(
        (state.status, state.completed_items),
        (JobStatus::Completed, 2000)
    );
    system.stop().await;
}

async fn a_batch_waits_as_one_message_while_its_pipe_is_full(place: Place) {
    // Splits do not see what is still on its way, so a few more may get through than fill the pipe, but by far not all.
    let (max_depth, bound) = (30, 250);
    let system = place
        .start(Stack::new(place.options_with_depth(max_depth)))
        .await;
    let items = place.pipe("items");
    system.client.put("j", &place.range(500)).await.unwrap();
    let depth = async || system.running.broker().depth(&items).await.unwrap();
    wait_for("the pipe to be full", async || match depth().await {
        full if full > max_depth => Ok(()),
        depth => Err(format!("{depth} items")),
    })
    .await;
    // With nobody to take the items, it is the batches that wait: in a delay, which is no depth.
    wait_for("the batches to be put off", async || {
        match system
            .running
            .broker()
            .depth(&place.pipe("batch"))
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

    let options = place.options_with_depth(max_depth);
    let system = place
        .start(Stack::new(options).worker(place.settings("items"), echo()))
        .await;
    system.completed("j", 500).await;
    system.stop().await;
}

async fn reports_that_come_thrice_and_in_any_order_count_once(place: Place) {
    const SPLITS: u32 = 8;
    const ITEMS: u32 = 50;
    let system = place.start(place.stack()).await;
    system
        .client
        .put(
            "j",
            &place.job(
                "nobody",
                &RangeItem {
                    number: 0,
                    params: BTreeMap::new(),
                },
            ),
        )
        .await
        .unwrap();
    let (start, _) = system.take_one(&place.pipe("nobody")).await;
    let tracking = start.tracking.clone().unwrap();
    let job = tracking.job_task_id.clone().unwrap();

    // What the workers of a tree of splits would report; by reroute the items come along themselves.
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
    let rerouted = if place.route == Route::Reroute {
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
            ..TaskMessage::new(id, place.pipe("output"), &item).unwrap()
        };
        bodies.extend(std::iter::repeat_n(message.encode(), 3));
    }
    let mut thrice = [reports.clone(), reports.clone(), reports].concat();
    let told = thrice.len() + bodies.len();
    shuffle(&mut thrice);
    bodies.extend(thrice.chunks(7).map(|some| place.reports(some.to_vec())));
    shuffle(&mut bodies);
    for body in bodies {
        system.publish(&place.pipe("tracking"), body).await;
    }
    let (state, _) = system.follow("j", |_| {}).await;
    let counted = (JobStatus::Completed, i64::from(SPLITS * ITEMS), 0);
    assert_eq!(
        (state.status, state.completed_items, state.failed_tasks),
        counted
    );

    // A failure that comes too late changes nothing either.
    let late = TrackingReport::failed(subtask_id(&job, 1, false), ReportFailure::default());
    system
        .publish(&place.pipe("tracking"), place.reports(vec![late]))
        .await;
    wait_for("all reports to be counted in", async || {
        let counted = system.running.reports().load(Ordering::Relaxed);
        if counted == told as u64 + 1 {
            Ok(())
        } else {
            Err(format!("{counted} of {}", told + 1))
        }
    })
    .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items, state.failed_tasks),
        counted
    );
    if place.route == Route::Reroute {
        system
            .has_outputs(&place.pipe("output"), 1..=u64::from(SPLITS * ITEMS))
            .await;
    }
    system.stop().await;
}

/// Another order, the same in every run.
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
