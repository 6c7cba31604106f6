//! The actions of a client on a job: cancel, pause, resume and delete.
//!
//! The tests also cover jobs that have not been dispatched yet, and tasks that a worker sends to
//! the paused pipe. Batchwright has neither CAF's `poke` and `resume` messages nor CAF's workers
//! that stow tasks. A Java worker sends the tasks of paused jobs to `CAF_WORKER_PAUSED_QUEUE`, as
//! it does with CAF.

use serde_json::{Value, json};

use crate::service::{Pipe, Service, Store, message};

on_both_stores![
    cancel_ends_an_unfinished_job_and_is_idempotent,
    pause_needs_a_waiting_or_active_job_and_is_idempotent,
    resume_needs_a_paused_job_and_ignores_an_active_one,
    job_of_any_status_can_be_deleted_once,
    unknown_job_cannot_be_changed,
    job_ended_before_its_dispatch_is_never_dispatched,
    job_paused_before_its_dispatch_is_dispatched_on_resume,
    paused_or_cancelled_dependent_is_not_started_by_its_prerequisite,
    tasks_of_a_paused_job_return_unchanged_on_resume,
    tasks_of_a_paused_job_survive_a_restart,
    parked_tasks_are_deleted_when_their_job_ends,
];

/// Runs an action on a job of each status and checks the response: 204 (`None`), or 400 with the
/// given text.
async fn each_status(
    service: &Service,
    action: &str,
    after: &str,
    refusals: [(&str, Option<String>); 6],
) {
    for (status, refusal) in refusals {
        service.create_as(status, status).await;
        let before = service.job(status).await;
        let answer = service.post(&format!("/jobs/{status}/{action}"), &[]).await;
        match refusal {
            Some(text) => answer.refuses(400, &text),
            None => assert_eq!(answer.is(204).body, "", "{action} of {status}"),
        }
        let now = service.job(status).await;
        let expected = if action_changes(status, action) {
            after
        } else {
            status
        };
        assert_eq!(now["status"], expected, "{action} of {status}");
        if expected == status {
            assert_eq!(
                now, before,
                "{action} of {status} changes nothing, not even lastUpdateTime"
            );
        } else {
            assert!(
                now["lastUpdateTime"].as_i64() >= before["lastUpdateTime"].as_i64(),
                "{action} of {status}"
            );
            assert_eq!(
                now["percentageComplete"], before["percentageComplete"],
                "{action} of {status}"
            );
        }
    }
}

fn action_changes(status: &str, action: &str) -> bool {
    match action {
        "cancel" => ["Waiting", "Active", "Paused"].contains(&status),
        "pause" => ["Waiting", "Active"].contains(&status),
        _ => status == "Paused",
    }
}

async fn cancel_ends_an_unfinished_job_and_is_idempotent(store: Store) {
    let service = Service::start(store).await;
    let refusal = |status: &str| {
        Some(format!(
            "ERROR: job_id {{{status}}} cannot be cancelled as it has a status of {status}."
        ))
    };
    let refusals = [
        ("Waiting", None),
        ("Active", None),
        ("Paused", None),
        ("Cancelled", None),
        ("Completed", refusal("Completed")),
        ("Failed", refusal("Failed")),
    ];
    each_status(&service, "cancel", "Cancelled", refusals).await;
}

async fn pause_needs_a_waiting_or_active_job_and_is_idempotent(store: Store) {
    let service = Service::start(store).await;
    let refusal = |status: &str| {
        Some(format!(
            "ERROR: job_id {{{status}}} cannot be paused as it has a status of {{{status}}}. \
             Only jobs with a status of Active or Waiting can be paused."
        ))
    };
    let refusals = [
        ("Waiting", None),
        ("Active", None),
        ("Paused", None),
        ("Cancelled", refusal("Cancelled")),
        ("Completed", refusal("Completed")),
        ("Failed", refusal("Failed")),
    ];
    each_status(&service, "pause", "Paused", refusals).await;
}

async fn resume_needs_a_paused_job_and_ignores_an_active_one(store: Store) {
    let service = Service::start(store).await;
    let refusal = |status: &str| {
        Some(format!(
            "job_id {{{status}}} cannot be resumed as it has a status of {{{status}}}. Only jobs with a status of Paused can be resumed."
        ))
    };
    let refusals = [
        ("Waiting", refusal("Waiting")),
        ("Active", None),
        ("Paused", None),
        ("Cancelled", refusal("Cancelled")),
        ("Completed", refusal("Completed")),
        ("Failed", refusal("Failed")),
    ];
    each_status(&service, "resume", "Active", refusals).await;
}

async fn job_of_any_status_can_be_deleted_once(store: Store) {
    let service = Service::start(store).await;
    for status in [
        "Waiting",
        "Active",
        "Paused",
        "Cancelled",
        "Completed",
        "Failed",
    ] {
        service.create_as(status, status).await;
        service.complete(status, ".1").await;
        service.all_is_counted().await;
        service.delete(status).await.is(204);
        let text = format!("ERROR: job_id {{{status}}} not found");
        service.delete(status).await.refuses(404, &text);
        service
            .get(&format!("/jobs/{status}/status"))
            .await
            .refuses(404, &text);
        // Its id can be used again.
        service.create(status, &service.new_job("in")).await;
        assert_eq!(service.state(status).await, ("Waiting".to_owned(), 0.0));
    }
}

async fn unknown_job_cannot_be_changed(store: Store) {
    let service = Service::start(store).await;
    for action in ["cancel", "pause", "resume"] {
        service
            .post(&format!("/jobs/nobody/{action}"), &[])
            .await
            .refuses(404, "ERROR: job_id {nobody} not found");
    }
    service
        .delete("nobody")
        .await
        .refuses(404, "ERROR: job_id {nobody} not found");
}

async fn job_ended_before_its_dispatch_is_never_dispatched(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    let mut delayed = service.new_job("in");
    delayed["delay"] = json!(8);
    for job in ["cancelled", "deleted", "failed", "completed", "unfinished"] {
        service.create(job, &delayed).await;
    }
    service.post("/jobs/cancelled/cancel", &[]).await.is(204);
    service.delete("deleted").await.is(204);
    service.fail("failed", "", "boom").await;
    service.complete("completed", "").await;
    service.all_is_counted().await;
    // The unfinished job is due last, so no message of the others can follow.
    assert_eq!(pipe.next_jobs(1).await, ["unfinished"]);
    assert_eq!(service.depth("in").await, 0);
}

async fn job_paused_before_its_dispatch_is_dispatched_on_resume(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    let mut delayed = service.new_job("in");
    delayed["delay"] = json!(8);
    for job in ["paused", "unfinished"] {
        service.create(job, &delayed).await;
        if job == "paused" {
            service.post("/jobs/paused/pause", &[]).await.is(204);
        }
    }
    assert_eq!(pipe.next_jobs(1).await, ["unfinished"]);
    assert_eq!(service.state("paused").await, ("Paused".to_owned(), 0.0));
    service.post("/jobs/paused/resume", &[]).await.is(204);
    assert_eq!(pipe.next_jobs(1).await, ["paused"]);
}

async fn paused_or_cancelled_dependent_is_not_started_by_its_prerequisite(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    service
        .create("root", &service.new_job("not-consumed"))
        .await;
    let mut waiting = service.new_job("in");
    waiting["prerequisiteJobIds"] = json!(["root"]);
    for job in ["cancelled", "paused", "unfinished"] {
        service.create(job, &waiting).await;
    }
    service.post("/jobs/cancelled/cancel", &[]).await.is(204);
    service.post("/jobs/paused/pause", &[]).await.is(204);
    service.complete("root", "").await;
    assert_eq!(pipe.next_jobs(1).await, ["unfinished"]);
    assert_eq!(
        service.state("cancelled").await,
        ("Cancelled".to_owned(), 0.0)
    );
    service.create("marker", &service.new_job("in")).await;
    assert_eq!(pipe.next_jobs(1).await, ["marker"]);
    service.post("/jobs/paused/resume", &[]).await.is(204);
    service.create("last", &service.new_job("in")).await;
    assert_eq!(pipe.next_jobs(2).await, ["paused", "last"]);
}

/// Returns a task of the job for the pipe `work`, as a CAF worker sends it to the paused pipe, with
/// an unknown field.
fn task_of(service: &Service, job: &str, steps: &str) -> Value {
    let tracking = json!({
        "jobTaskId": service.task(job, steps), "lastStatusCheckTime": 1_700_000_000_000_i64, "statusCheckIntervalMillis": 5000,
        "statusCheckUrl": format!("{}{}", service.root, service.path(&format!("/jobs/{job}/status"))),
        "trackingPipe": service.tracking_pipe, "trackTo": service.pipe("target")
    });
    let mut task = message(
        "OrderWorker",
        &json!({"orderId": 51}),
        "NEW_TASK",
        Some(&service.pipe("work")),
        &tracking,
    );
    task["correlationId"] = json!("corr-42");
    task["sourceInfo"] = json!({"name": "worker-batch", "version": "3.7.0"});
    task["context"] = json!({"caf/worker": "b3BhcXVl"});
    task["new"] = json!({"deep": [1]});
    task
}

/// Sends these tasks to the paused pipe, then one of an active job. Once that one is back, the
/// service has processed all of them.
async fn hand_over(service: &Service, work: &mut Pipe, tasks: &[&Value]) {
    for task in tasks {
        service.publish(&service.paused_pipe, task).await;
    }
    let active = harness::unique("active");
    service
        .create(&active, &service.new_job("not-consumed"))
        .await;
    service
        .publish(&service.paused_pipe, &task_of(service, &active, ".1"))
        .await;
    // If the process was killed meanwhile, an active task of an earlier call may return a second
    // time.
    while let [back] = &*work.next_jobs(1).await
        && *back != format!("{active}.1")
    {
        assert!(back.starts_with("active-"), "{back}");
    }
}

async fn tasks_of_a_paused_job_return_unchanged_on_resume(store: Store) {
    let service = Service::start(store).await;
    let mut work = service.consume("work").await;
    service.create_as("j", "Paused").await;
    let tasks = [".1", ".2.1", ".3*"].map(|steps| task_of(&service, "j", steps));
    hand_over(&service, &mut work, &tasks.each_ref()).await;
    service.post("/jobs/j/resume", &[]).await.is(204);
    let mut back = Vec::new();
    for _ in &tasks {
        back.push(work.next().await.0);
    }
    back.sort_by_key(|task| task["tracking"]["jobTaskId"].to_string());
    assert_eq!(back, tasks);
    // A second pause works in the same way, and the tasks of the first one do not return again.
    service.post("/jobs/j/pause", &[]).await.is(204);
    hand_over(&service, &mut work, &[&tasks[1]]).await;
    service.post("/jobs/j/resume", &[]).await.is(204);
    assert_eq!(work.next_jobs(1).await, ["j.2.1"]);
    hand_over(&service, &mut work, &[]).await;
}

async fn tasks_of_a_paused_job_survive_a_restart(store: Store) {
    let service = Service::start_own(store).await;
    let mut work = service.consume("work").await;
    service.create_as("j", "Paused").await;
    let task = task_of(&service, "j", ".1");
    hand_over(&service, &mut work, &[&task]).await;
    service.restart().await;
    assert_eq!(service.state("j").await, ("Paused".to_owned(), 10.0));
    hand_over(&service, &mut work, &[]).await;
    service.post("/jobs/j/resume", &[]).await.is(204);
    assert_eq!(work.next().await.0, task);
}

async fn parked_tasks_are_deleted_when_their_job_ends(store: Store) {
    let service = Service::start(store).await;
    let mut work = service.consume("work").await;
    let jobs = ["deleted", "cancelled", "completed", "failed"];
    for job in jobs {
        service.create_as(job, "Paused").await;
        hand_over(
            &service,
            &mut work,
            &[&task_of(&service, job, ".1"), &task_of(&service, job, ".2")],
        )
        .await;
    }
    // CAF returns 500 because the job has parked tasks.
    service.delete("deleted").await.is(204);
    service.post("/jobs/cancelled/cancel", &[]).await.is(204);
    service.complete("completed", "").await;
    service.fail("failed", "", "boom").await;
    service.becomes("completed", "Completed", 100.0).await;
    service.becomes("failed", "Failed", 10.0).await;
    // Tasks that arrive after the end of their job are not parked either.
    let late = jobs.map(|job| task_of(&service, job, ".3"));
    hand_over(&service, &mut work, &late.each_ref()).await;
    service.post("/jobs:delete", &[]).await.is(200);
    service
        .create("deleted", &service.new_job("not-consumed"))
        .await;
    // A task that returns later is the first to arrive, so no other task returns.
    service.create_as("last", "Paused").await;
    hand_over(&service, &mut work, &[&task_of(&service, "last", ".1")]).await;
    service.post("/jobs/last/resume", &[]).await.is(204);
    assert_eq!(work.next_jobs(1).await, ["last.1"]);
}
