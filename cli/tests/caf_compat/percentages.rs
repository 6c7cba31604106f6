//! The percentage of a job, calculated from the reports about its tasks.
//!
//! The tests cover CAF's formula, caps and rounding, with CAF's worked examples. One difference is
//! intended: Batchwright's percentage never falls, while CAF's falls as soon as a report reveals
//! another subtask.

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
    for (reported, expected) in [
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
            ("Active".to_owned(), expected),
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
    // The total is unknown after one subtask; the formula assumes one more.
    service.complete("one-by-one", ".1").await;
    service.becomes("one-by-one", "Active", 50.0).await;
    service.progress("one-by-one", ".2", 40).await;
    service.all_is_counted().await;
    // The formula gives 46.67 now, but the job has already shown 50.
    assert_eq!(
        service.state("one-by-one").await,
        ("Active".to_owned(), 50.0)
    );
    service.complete("one-by-one", ".3*").await;
    service.becomes("one-by-one", "Active", 80.0).await;
    // The same reports in one message give 46.67, because the job has not shown 50.
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
    // The cap also applies when the number is known and only the last subtask is missing.
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
    for (steps, expected) in [
        (".2*", 50.0),
        (".1.1", 75.0),
        (".1.3*", 83.33),
        (".1.2.1", 91.67),
    ] {
        service.complete("nested", steps).await;
        service.becomes("nested", "Active", expected).await;
    }
    service.complete("nested", ".1.2.2*").await;
    service.becomes("nested", "Completed", 100.0).await;
    // A progress report of 100 counts as 99.9 until the subtask is complete.
    service.progress("capped", ".1", 100).await;
    service.becomes("capped", "Active", 49.95).await;
    // Subtask 2 is split, and its number of parts is unknown: one reported part counts as half of
    // it.
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
    for (size, expected) in [
        (3, 33.33),
        (6, 16.67),
        (7, 14.29),
        (1000, 0.1),
        (100_000, 0.0),
    ] {
        let job = format!("of-{size}");
        service.create(&job, &service.new_job("in")).await;
        service.complete(&job, &format!(".{size}*")).await;
        service.becomes(&job, "Active", expected).await;
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
        // A repeated report is not counted as a fourth subtask.
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
    // The same holds for subtasks of a subtask, with the final subtask of the job reported first.
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
