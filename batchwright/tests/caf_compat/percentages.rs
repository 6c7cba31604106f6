//! How far a job is, by what its tasks report.
//!
//! CAF's formula, caps and rounding, with its worked examples; one thing is different on purpose: what is told never falls, where
//! CAF's percentage falls as soon as another subtask is heard of.

use serde_json::{Value, json};

use crate::service::{Service, Store};

on_both_stores![
    direct_progress_is_capped_at_99_9_and_never_falls,
    percentages_match_the_worked_examples,
    subtasks_of_an_unknown_number_reach_99_7_at_most,
    nested_subtasks_share_the_weight_of_their_parent,
    percentage_is_rounded_to_two_decimals,
    subtasks_may_be_reported_in_any_order_and_twice,
    final_subtask_is_the_same_with_and_without_its_star,
    reports_below_a_completed_task_change_nothing,
    failed_job_keeps_its_percentage,
];

fn done(service: &Service, job: &str, steps: &str) -> Value {
    json!({"jobTaskId": service.task(job, steps), "status": "Complete", "estimatedPercentageCompleted": 0})
}

fn progress(service: &Service, job: &str, steps: &str, percentage: u8) -> Value {
    json!({"jobTaskId": service.task(job, steps), "status": "Progress", "estimatedPercentageCompleted": percentage})
}

async fn direct_progress_is_capped_at_99_9_and_never_falls(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    for (reported, told) in [
        (1, 1.0),
        (40, 40.0),
        (30, 40.0),
        (99, 99.0),
        (100, 99.9),
        (50, 99.9),
    ] {
        service.progress("j", "", reported).await;
        service.all_is_counted().await;
        assert_eq!(
            service.state("j").await,
            ("Active".to_owned(), told),
            "{reported} reported"
        );
    }
    service.complete("j", "").await;
    service.becomes("j", "Completed", 100.0).await;
}

async fn percentages_match_the_worked_examples(store: Store) {
    let service = Service::start(store).await;
    for job in ["one-by-one", "together"] {
        service.create(job, &service.new_job("in")).await;
    }
    // After one subtask the total is unknown: one more is assumed.
    service.complete("one-by-one", ".1").await;
    service.becomes("one-by-one", "Active", 50.0).await;
    service.progress("one-by-one", ".2", 40).await;
    service.all_is_counted().await;
    // It is 46.67 now, but 50 has been told.
    assert_eq!(
        service.state("one-by-one").await,
        ("Active".to_owned(), 50.0)
    );
    service.complete("one-by-one", ".3*").await;
    service.becomes("one-by-one", "Active", 80.0).await;
    // Where it was not told, the same is 46.67.
    service
        .report(&[
            done(&service, "together", ".1"),
            progress(&service, "together", ".2", 40),
        ])
        .await;
    service.becomes("together", "Active", 46.67).await;
    service.complete("together", ".3*").await;
    service.becomes("together", "Active", 80.0).await;
    for job in ["one-by-one", "together"] {
        service.complete(job, ".2").await;
        service.becomes(job, "Completed", 100.0).await;
    }
}

async fn subtasks_of_an_unknown_number_reach_99_7_at_most(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    let all: Vec<Value> = (1..=6000)
        .map(|number| done(&service, "j", &format!(".{number}")))
        .collect();
    for some in all.chunks(500) {
        service.report(some).await;
    }
    service.all_is_counted().await;
    assert_eq!(service.state("j").await, ("Active".to_owned(), 99.7));
    // All but the last of a known number: no nearer to the end than that.
    service.progress("j", ".6001*", 100).await;
    service.all_is_counted().await;
    assert_eq!(service.state("j").await, ("Active".to_owned(), 99.7));
    service.complete("j", ".6001*").await;
    service.becomes("j", "Completed", 100.0).await;
}

async fn nested_subtasks_share_the_weight_of_their_parent(store: Store) {
    let service = Service::start(store).await;
    for job in ["nested", "capped"] {
        service.create(job, &service.new_job("in")).await;
    }
    for (steps, told) in [
        (".2*", 50.0),
        (".1.1", 75.0),
        (".1.3*", 83.33),
        (".1.2.1", 91.67),
    ] {
        service.complete("nested", steps).await;
        service.becomes("nested", "Active", told).await;
    }
    service.complete("nested", ".1.2.2*").await;
    service.becomes("nested", "Completed", 100.0).await;
    // A subtask that says 100 without being done is worth 99.9.
    service.progress("capped", ".1", 100).await;
    service.becomes("capped", "Active", 49.95).await;
    // One of two, as it seems, below another subtask makes that half as much.
    service
        .report(&[
            progress(&service, "capped", ".2.1", 100),
            done(&service, "capped", ".3*"),
        ])
        .await;
    service.becomes("capped", "Active", 83.28).await;
}

async fn percentage_is_rounded_to_two_decimals(store: Store) {
    let service = Service::start(store).await;
    for (size, told) in [
        (3, 33.33),
        (6, 16.67),
        (7, 14.29),
        (1000, 0.1),
        (100_000, 0.0),
    ] {
        let job = format!("of-{size}");
        service.create(&job, &service.new_job("in")).await;
        service.complete(&job, &format!(".{size}*")).await;
        service.becomes(&job, "Active", told).await;
    }
    service.complete("of-3", ".1").await;
    service.becomes("of-3", "Active", 66.67).await;
}

async fn subtasks_may_be_reported_in_any_order_and_twice(store: Store) {
    let service = Service::start(store).await;
    let orders = [
        [".1", ".2", ".3", ".4*"],
        [".4*", ".3", ".2", ".1"],
        [".3", ".4*", ".1", ".2"],
        [".2", ".1", ".4*", ".3"],
        [".4*", ".1", ".3", ".2"],
    ];
    for (number, order) in orders.iter().enumerate() {
        let job = format!("j{number}");
        service.create(&job, &service.new_job("in")).await;
        for steps in &order[..3] {
            service.complete(&job, steps).await;
            service
                .report(&[done(&service, &job, steps), done(&service, &job, steps)])
                .await;
        }
        service.becomes(&job, "Active", 75.0).await;
        // Once more what is done is no fourth one.
        for steps in &order[..3] {
            service.complete(&job, steps).await;
        }
        service.all_is_counted().await;
        assert_eq!(
            service.state(&job).await,
            ("Active".to_owned(), 75.0),
            "{order:?}"
        );
        service.complete(&job, order[3]).await;
        service.becomes(&job, "Completed", 100.0).await;
    }
    // The same below a subtask, with the final one of the job first.
    service.create("deep", &service.new_job("in")).await;
    for steps in [".2*", ".1.3*", ".1.1", ".1.1", ".1.2"] {
        service.complete("deep", steps).await;
    }
    service.becomes("deep", "Completed", 100.0).await;
}

async fn final_subtask_is_the_same_with_and_without_its_star(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    service.progress("j", ".2", 40).await;
    service.all_is_counted().await;
    service
        .report(&[
            done(&service, "j", ".2"),
            done(&service, "j", ".2*"),
            done(&service, "j", ".2*"),
        ])
        .await;
    service.becomes("j", "Active", 50.0).await;
    service.complete("j", ".1").await;
    service.becomes("j", "Completed", 100.0).await;
}

async fn reports_below_a_completed_task_change_nothing(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    service.complete("j", ".1").await;
    service.becomes("j", "Active", 50.0).await;
    service.progress("j", ".1.5", 10).await;
    service.fail("j", ".1.6", "too late").await;
    service.progress("j", ".1", 20).await;
    service.all_is_counted().await;
    assert_eq!(service.state("j").await, ("Active".to_owned(), 50.0));
    service.complete("j", ".2*").await;
    service.becomes("j", "Completed", 100.0).await;
}

async fn failed_job_keeps_its_percentage(store: Store) {
    let service = Service::start(store).await;
    for (job, steps, percentage) in [("task", "", 40.0), ("subtask", ".1", 20.0)] {
        service.create(job, &service.new_job("in")).await;
        service.progress(job, steps, 40).await;
        service.becomes(job, "Active", percentage).await;
        service.fail(job, steps, "boom").await;
        service.becomes(job, "Failed", percentage).await;
    }
}
