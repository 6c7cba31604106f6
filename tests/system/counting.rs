//! Every item is counted exactly once, whatever is reported how often and in which order.

use contract::JobStatus;
use framework::Reply;
use harness::wait_for;

use crate::place::Place;
use crate::workers::{Each, Gate, echo};

stories![a_job_of_many_items_is_counted_exactly, progress_never_falls_and_is_100_exactly_when_the_job_is_completed,];

async fn a_job_of_many_items_is_counted_exactly(place: Place) {
    let system = place.run(echo()).await;
    assert!(system.client.put("j", &place.range(5000)).await.unwrap());
    system.completed("j", 5000).await;
    system.has_outputs(&place.pipe("output"), 1..=5000).await;
    let expected = [(JobStatus::Waiting, "client"), (JobStatus::Active, "tracking"), (JobStatus::Completed, "tracking")];
    assert_eq!(system.history("j").await, expected.map(|(status, actor)| (status, actor.to_owned())));
    system.drained(&["batch", "items", "tracking"].map(|pipe| place.pipe(pipe))).await;
    wait_for("the task table to be swept away", async || {
        let size = system.running.store().unwrap().task_table_size().await.unwrap();
        if size.tables == 0 { Ok(()) } else { Err(format!("{size:?}")) }
    })
    .await;
    system.stop().await;
}

async fn progress_never_falls_and_is_100_exactly_when_the_job_is_completed(place: Place) {
    let gate = Gate::closed();
    let held = gate.clone();
    let worker = Each(move |item, ctx| {
        let gate = held.clone();
        async move {
            gate.pass(&ctx).await?;
            Ok(Reply::send(item))
        }
    });
    let system = place.run(worker).await;
    system.client.put("j", &place.range(2000)).await.unwrap();
    let (mut last, mut steps) = (0.0, 0);
    loop {
        let state = system.job("j").await;
        let percentage = state.percentage_complete;
        assert!((last..=100.0).contains(&percentage), "{percentage} after {last}");
        assert_eq!(percentage >= 100.0, state.status == JobStatus::Completed, "{state:?}");
        steps += u64::from(percentage > last);
        last = percentage;
        if state.status == JobStatus::Completed {
            break;
        }
        assert!(!state.status.is_finished(), "{state:?}");
        gate.admit(10);
    }
    assert!(steps >= 10, "only {steps} different percentages were seen");
    assert_eq!(system.job("j").await.completed_items, 2000);
    system.stop().await;
}
