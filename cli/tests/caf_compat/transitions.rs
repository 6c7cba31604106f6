//! The transitions between job statuses, and the requests and reports that cause them.
//!
//! The tests cover each of CAF's transitions except `Failed → Completed`, which Batchwright
//! refuses: the first final status stays. Clients act over REST, workers by reports in the tracking
//! pipe. The module `prerequisites` covers in full how a failed job fails its dependents.

use reqwest::Method;
use serde_json::json;

use crate::service::{Service, Store};

on_both_stores![
    job_waits_until_the_first_progress_or_completed_subtask,
    only_resume_makes_a_paused_job_active,
    job_task_or_all_subtasks_complete_a_job_of_any_status,
    failed_job_task_or_subtask_fails_a_job_of_any_status,
    unfinished_job_can_be_cancelled,
    failed_job_fails_its_dependents_but_not_a_cancelled_one,
    job_of_any_status_can_be_deleted,
    reports_do_not_change_the_outcome_of_an_ended_job,
    reports_of_unknown_or_deleted_jobs_are_ignored,
    paused_job_stays_paused_while_it_progresses,
];

/// The statuses of unfinished jobs, each with the percentage that `create_as` gives it.
const OPEN: [(&str, f64); 3] = [("Waiting", 0.0), ("Active", 10.0), ("Paused", 10.0)];

async fn job_waits_until_the_first_progress_or_completed_subtask(store: Store) {
    let service = Service::start(store).await;
    for job in ["progress", "task-progress", "subtask", "complete", "failed"] {
        service.create(job, &service.new_job("in")).await;
        let created = service.job(job).await;
        assert_eq!(created["status"], "Waiting", "{created}");
        assert_eq!(
            created["createTime"], created["lastUpdateTime"],
            "{created}"
        );
        service.progress(job, "", 0).await;
        service.progress(job, ".1", 0).await;
        service.all_is_counted().await;
        assert_eq!(
            service.job(job).await,
            created,
            "zero progress changes nothing"
        );
    }
    service.progress("progress", "", 1).await;
    service.becomes("progress", "Active", 1.0).await;
    service.progress("task-progress", ".1", 50).await;
    service.becomes("task-progress", "Active", 25.0).await;
    service.complete("subtask", ".1").await;
    service.becomes("subtask", "Active", 50.0).await;
    service.complete("complete", "").await;
    service.becomes("complete", "Completed", 100.0).await;
    service.fail("failed", "", "at once").await;
    service.becomes("failed", "Failed", 0.0).await;
}

async fn only_resume_makes_a_paused_job_active(store: Store) {
    let service = Service::start(store).await;
    for (from, percentage) in [("Waiting", 0.0), ("Active", 10.0)] {
        service.create_as(from, from).await;
        service
            .post(&format!("/jobs/{from}/pause"), &[])
            .await
            .is(204);
        assert_eq!(
            service.state(from).await,
            ("Paused".to_owned(), percentage),
            "{from}"
        );
        service.progress(from, "", 20).await;
        service.becomes(from, "Paused", 20.0).await;
        service
            .post(&format!("/jobs/{from}/resume"), &[])
            .await
            .is(204);
        // A job that was waiting before the pause also becomes active.
        assert_eq!(
            service.state(from).await,
            ("Active".to_owned(), 20.0),
            "{from}"
        );
    }
    service.create_as("untouched", "Waiting").await;
    service.post("/jobs/untouched/pause", &[]).await.is(204);
    service.post("/jobs/untouched/resume", &[]).await.is(204);
    assert_eq!(service.state("untouched").await, ("Active".to_owned(), 0.0));
}

async fn job_task_or_all_subtasks_complete_a_job_of_any_status(store: Store) {
    let service = Service::start(store).await;
    for (from, _) in OPEN {
        let (by_task, by_subtasks) = (format!("{from}-task"), format!("{from}-subtasks"));
        service.create_as(&by_task, from).await;
        service.complete(&by_task, "").await;
        service.becomes(&by_task, "Completed", 100.0).await;
        service.create_as(&by_subtasks, from).await;
        // Only the last report reveals the number of subtasks.
        let done = |steps: &str| json!({"jobTaskId": service.task(&by_subtasks, steps), "status": "Complete"});
        service.report(&[done(".2"), done(".1"), done(".3*")]).await;
        service.becomes(&by_subtasks, "Completed", 100.0).await;
        for job in [by_task, by_subtasks] {
            assert_eq!(service.job(&job).await["failures"], json!([]), "{job}");
        }
    }
}

async fn failed_job_task_or_subtask_fails_a_job_of_any_status(store: Store) {
    let service = Service::start(store).await;
    for (from, percentage) in OPEN {
        for (by, steps) in [("task", ""), ("subtask", ".2"), ("deep", ".1.3*.7")] {
            let job = format!("{from}-{by}");
            service.create_as(&job, from).await;
            service.fail(&job, steps, "boom").await;
            service.becomes(&job, "Failed", percentage).await;
            assert_eq!(
                service.job(&job).await["failures"][0]["failureMessage"],
                "boom",
                "{job}"
            );
        }
    }
}

async fn unfinished_job_can_be_cancelled(store: Store) {
    let service = Service::start(store).await;
    for (from, percentage) in OPEN {
        service.create_as(from, from).await;
        service
            .post(&format!("/jobs/{from}/cancel"), &[])
            .await
            .is(204);
        assert_eq!(
            service.state(from).await,
            ("Cancelled".to_owned(), percentage),
            "{from}"
        );
    }
}

async fn failed_job_fails_its_dependents_but_not_a_cancelled_one(store: Store) {
    let service = Service::start(store).await;
    service.create_as("root", "Active").await;
    let mut waiting = service.new_job("in");
    waiting["prerequisiteJobIds"] = json!(["root"]);
    for job in ["waiting", "paused", "cancelled"] {
        service.create(job, &waiting).await;
    }
    service.post("/jobs/paused/pause", &[]).await.is(204);
    service.post("/jobs/cancelled/cancel", &[]).await.is(204);
    service.fail("root", ".1", "boom").await;
    service.becomes("waiting", "Failed", 0.0).await;
    assert_eq!(service.state("paused").await, ("Failed".to_owned(), 0.0));
    assert_eq!(
        service.state("cancelled").await,
        ("Cancelled".to_owned(), 0.0)
    );
    assert_eq!(service.job("cancelled").await["failures"], json!([]));
}

async fn job_of_any_status_can_be_deleted(store: Store) {
    let service = Service::start(store).await;
    for status in [
        "Waiting",
        "Active",
        "Paused",
        "Completed",
        "Failed",
        "Cancelled",
    ] {
        service.create_as(status, status).await;
        assert_eq!(service.delete(status).await.is(204).body, "", "{status}");
        service
            .get(&format!("/jobs/{status}"))
            .await
            .refuses(404, &format!("ERROR: job_id {{{status}}} not found"));
    }
}

async fn reports_do_not_change_the_outcome_of_an_ended_job(store: Store) {
    let service = Service::start(store).await;
    let all = ["Completed", "Cancelled", "Failed", "Failed-by-subtask"];
    for job in &all[..3] {
        service.create_as(job, job).await;
    }
    service.create(all[3], &service.new_job("in")).await;
    service.complete(all[3], ".1").await;
    service.becomes(all[3], "Active", 50.0).await;
    service.fail(all[3], ".2", "boom").await;
    service.becomes(all[3], "Failed", 50.0).await;
    for job in all {
        let before = service.job(job).await;
        for (kind, percentage, steps) in [
            ("Progress", 0, ""),
            ("Progress", 77, ""),
            ("Progress", 77, ".5"),
            ("Retry", 0, ".5"),
            ("Failed", 0, ".5"),
            ("Complete", 100, ".2"),
            // All subtasks are now reported: CAF would set the failed job to Completed.
            ("Complete", 100, ".3*"),
            ("Complete", 100, ""),
            ("Failed", 0, ""),
        ] {
            let id = service.task(job, steps);
            service.report(&[json!({"jobTaskId": id, "status": kind, "estimatedPercentageCompleted": percentage})]).await;
        }
        service.all_is_counted().await;
        let after = service.job(job).await;
        if job != all[3] {
            assert_eq!(after, before, "{job}");
            continue;
        }
        // Its task table is kept, so that failures are listed, as in CAF, and the one that ended
        // the job stays.
        for kept in ["status", "percentageComplete"] {
            assert_eq!(after[kept], before[kept]);
        }
        let tasks = after["failures"].as_array().unwrap().iter();
        let mut tasks: Vec<_> = tasks
            .map(|failure| failure["taskId"].as_str().unwrap())
            .collect();
        tasks.sort_unstable();
        assert_eq!(tasks, ["", "2", "5"]);
    }
}

async fn reports_of_unknown_or_deleted_jobs_are_ignored(store: Store) {
    let service = Service::start_own(store).await;
    service.create_as("deleted", "Active").await;
    service.delete("deleted").await.is(204);
    service.create("known", &service.new_job("in")).await;
    for job in ["unknown", "deleted"] {
        service.progress(job, "", 50).await;
        service.fail(job, ".1", "boom").await;
        service.complete(job, "").await;
    }
    let done = |job: &str| json!({"jobTaskId": service.task(job, ""), "status": "Complete"});
    // One message has a valid report between two for missing jobs.
    service
        .report(&[done("unknown"), done("known"), done("deleted")])
        .await;
    service.becomes("known", "Completed", 100.0).await;
    for job in ["unknown", "deleted"] {
        service.get(&format!("/jobs/{job}")).await.is(404);
        let path = service.path(&format!("/jobs/{job}/isActive"));
        assert_eq!(
            service
                .call(Method::GET, &path, None, &[])
                .await
                .is(200)
                .json(),
            json!(false)
        );
    }
    assert!(
        !service.log().contains("could not be understood"),
        "{}",
        service.log()
    );
}

async fn paused_job_stays_paused_while_it_progresses(store: Store) {
    let service = Service::start(store).await;
    for job in ["completes", "fails"] {
        service.create_as(job, "Paused").await;
        service.complete(job, ".1").await;
        service.becomes(job, "Paused", 50.0).await;
        service.progress(job, ".2", 80).await;
        service.becomes(job, "Paused", 60.0).await;
    }
    service.complete("completes", ".2*").await;
    service.becomes("completes", "Completed", 100.0).await;
    service.fail("fails", ".2*", "boom").await;
    service.becomes("fails", "Failed", 60.0).await;
}
