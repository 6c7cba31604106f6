//! CAF's known defects, by number, and the tests that show that Batchwright does not have them.
//!
//! | defect | test |
//! |---|---|
//! | 1 prerequisites that are all complete | `prerequisites::job_whose_prerequisites_are_completed_starts_at_once` |
//! | 2 a suspended job with a prerequisite | `prerequisites::jobs_of_a_suspended_partition_start_on_dispatch` |
//! | 3 cancelled jobs that are dispatched, released or failed | `control::job_ended_before_its_dispatch_is_never_dispatched`, `control::paused_or_cancelled_dependent_is_not_started_by_its_prerequisite`, `transitions::failed_job_fails_its_dependents_but_not_a_cancelled_one` |
//! | 4 stranded dependents, cycles | `prerequisites::cancelled_or_deleted_prerequisite_cancels_its_dependents`, `prerequisites::cycle_of_prerequisites_is_refused` |
//! | 5 a bulk cancel that one unread job blocks forever, 6 filters on stale statuses, 7 a deep task id that breaks every read | here |
//! | 8 progress of a failed job, Failed to Completed | `transitions::reports_do_not_change_an_ended_job` |
//! | 9 delete of a job with parked tasks | `control::parked_tasks_are_deleted_when_their_job_ends` |
//! | 10 database faults that lose reports | `lab/tests/chaos` |
//! | 11 a dispatch that loses or duplicates start messages | `lab/tests/chaos`, `job-service/tests/api/relay.rs` |
//! | 12 binary task data, correlation id | `start_messages::task_data_is_sent_as_given`, `start_messages::start_message_has_exactly_cafs_fields`; the hash of a request: here |
//! | 13 pause | `control::job_paused_before_its_dispatch_is_dispatched_on_resume`, `control::tasks_of_a_paused_job_survive_a_restart` |
//! | 14 status 500 for bad input, errors that reveal internals | here |
//! | 15 issues that CAF has fixed (SCMOD-…, CAF-…) | here; prerequisites created later and delays: `prerequisites` |

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Service, Store};

on_both_stores![
    bulk_cancel_passes_over_a_job_that_has_just_finished,
    filters_see_the_current_status_of_unread_jobs,
    equal_ids_in_two_partitions_are_two_jobs,
    very_deep_task_ids_break_no_other_request,
    request_identity_survives_a_restart_and_hash_collisions,
    bad_input_is_a_client_error_and_secrets_stay_out_of_errors_and_logs,
    equal_concurrent_requests_create_one_job,
    concurrent_creations_and_completions_start_every_job_once,
    job_without_own_subtasks_completes_with_its_final_result,
    job_with_many_splits_is_cancelled_and_deleted_normally,
    equal_jobs_are_listed_in_a_stable_order,
];

// Defect 5
async fn bulk_cancel_passes_over_a_job_that_has_just_finished(store: Store) {
    let service = Service::start(store).await;
    for job in ["finished", "failed", "open", "paused"] {
        service.create(job, &service.new_job("in")).await;
    }
    service.post("/jobs/paused/pause", &[]).await.is(204);
    service.complete("finished", ".1").await;
    service.complete("finished", ".2*").await;
    service.fail("failed", ".1", "boom").await;
    service.all_is_counted().await;
    assert_eq!(
        service.post("/jobs:cancel", &[]).await.is(200).json(),
        json!({"jobsCanceled": 2})
    );
    assert_eq!(
        service.post("/jobs:cancel", &[]).await.is(200).json(),
        json!({"jobsCanceled": 0})
    );
    for (job, status) in [
        ("finished", "Completed"),
        ("failed", "Failed"),
        ("open", "Cancelled"),
        ("paused", "Cancelled"),
    ] {
        assert_eq!(service.state(job).await.0, status, "{job}");
    }
}

// Defect 6
async fn filters_see_the_current_status_of_unread_jobs(store: Store) {
    let service = Service::start(store).await;
    for job in ["completed", "failed", "half", "waiting"] {
        service.create(job, &service.new_job("in")).await;
    }
    service.complete("completed", ".1*").await;
    service.complete("half", ".1").await;
    service.complete("failed", ".1").await;
    service.all_is_counted().await;
    service.fail("failed", ".2", "boom").await;
    service.all_is_counted().await;
    let mine = "id=in=(completed,failed,half,waiting)";
    for (parameter, value, expected) in [
        ("statusType", "Completed", vec!["completed"]),
        ("statusType", "NotFinished", vec!["half", "waiting"]),
        ("statusType", "Inactive", vec!["completed", "failed"]),
        ("filter", "status==Failed", vec!["failed"]),
        (
            "filter",
            "percentageComplete=ge=50",
            vec!["completed", "failed", "half"],
        ),
    ] {
        let filter = if parameter == "filter" {
            format!("{mine};{value}")
        } else {
            mine.to_owned()
        };
        let mut parameters = vec![("filter", filter.as_str())];
        if parameter != "filter" {
            parameters.push((parameter, value));
        }
        let count = service
            .ask("/jobStats/count", &parameters)
            .await
            .is(200)
            .json();
        assert_eq!(count, json!(expected.len()), "{parameter}={value}");
        parameters.push(("sort", "jobId:asc"));
        assert_eq!(
            service.ask("/jobs", &parameters).await.ids(),
            expected,
            "{parameter}={value}"
        );
    }
    // A list shows each job completely, including its failures and times.
    let listed = service
        .ask("/jobs", &[("filter", "id==failed")])
        .await
        .is(200)
        .json();
    assert_eq!(listed, json!([service.job("failed").await]));
    assert_eq!(listed[0]["failures"][0]["failureMessage"], "boom");
}

// Defect 6
async fn equal_ids_in_two_partitions_are_two_jobs(store: Store) {
    let service = Service::start(store).await;
    let elsewhere = |path: &str| format!("/job-service/v1/partitions/elsewhere{path}");
    service.create("j", &service.new_job("in")).await;
    service
        .call(
            Method::PUT,
            &elsewhere("/jobs/j"),
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    service.fail("j", "", "a secret of this tenant").await;
    service.becomes("j", "Failed", 0.0).await;
    let listed = service
        .call(Method::GET, &elsewhere("/jobs"), None, &[])
        .await
        .is(200)
        .json();
    assert_eq!(
        (
            &listed[0]["status"],
            &listed[0]["failures"],
            listed.as_array().unwrap().len()
        ),
        (&json!("Waiting"), &json!([]), 1)
    );
    let cancel = elsewhere("/jobs:cancel");
    assert_eq!(
        service
            .call(Method::POST, &cancel, None, &[])
            .await
            .is(200)
            .json(),
        json!({"jobsCanceled": 1})
    );
    assert_eq!(service.state("j").await, ("Failed".to_owned(), 0.0));
}

// Defect 7
async fn very_deep_task_ids_break_no_other_request(store: Store) {
    let service = Service::start(store).await;
    let id = "j".repeat(48);
    service.create(&id, &service.new_job("in")).await;
    service.create("other", &service.new_job("in")).await;
    // Parents of 59 and more characters, ids of more than 70, and invalid ids that no worker
    // creates.
    for depth in [200, 64, 30, 11, 6] {
        service.complete(&id, &".1".repeat(depth)).await;
        service
            .fail("other", &format!("{}.x", ".7".repeat(depth)), "no id")
            .await;
        service.all_is_counted().await;
        service.job(&id).await;
        assert!(service.get("/jobs").await.ids().contains(&id), "{depth}");
    }
    assert_eq!(service.state(&id).await.0, "Active");
    assert_eq!(service.state("other").await, ("Waiting".to_owned(), 0.0));
    service.complete(&id, ".1*").await;
    service.becomes(&id, "Completed", 100.0).await;
}

// Defect 12
async fn request_identity_survives_a_restart_and_hash_collisions(store: Store) {
    let service = Service::start_own(store).await;
    let named = |name: &str| {
        let mut job = service.new_job("in");
        job["name"] = json!(name);
        job["task"]["taskData"] = json!("aGVsbG8=");
        job["task"]["taskDataEncoding"] = json!("base64");
        job["labels"] = json!({"a": "1", "b": "2"});
        job
    };
    // Java gives both names the same hash code, 2112.
    let (first, other) = (named("Aa"), named("BB"));
    service.create("j", &first).await;
    service.restart().await;
    let before = service.job("j").await;
    service.put("j", &first).await.is(204);
    service
        .put("j", &other)
        .await
        .refuses(403, "Job already exists");
    assert_eq!(service.job("j").await, before);
}

// Defect 14
async fn bad_input_is_a_client_error_and_secrets_stay_out_of_errors_and_logs(store: Store) {
    let service = Service::start_with(store, &[("CAF_LOG_LEVEL", "DEBUG")]).await;
    let good = service.new_job("in");
    let with = |field: &str, value: Value| {
        let mut job = good.clone();
        match field.strip_prefix("task.") {
            Some(field) => job["task"][field] = value,
            None => job[field] = value,
        }
        job.to_string()
    };
    let long = "x".repeat(49);
    let jobs = |parameters: &str| service.path(&format!("/jobs?{parameters}"));
    for (what, method, path, body) in [
        (
            "no body",
            Method::PUT,
            service.path("/jobs/j"),
            Some(String::new()),
        ),
        (
            "no object",
            Method::PUT,
            service.path("/jobs/j"),
            Some("null".to_owned()),
        ),
        (
            "neither task nor type",
            Method::PUT,
            service.path("/jobs/j"),
            Some("{}".to_owned()),
        ),
        (
            "no api version",
            Method::PUT,
            service.path("/jobs/j"),
            Some(with("task.taskApiVersion", json!(null))),
        ),
        (
            "a long id",
            Method::PUT,
            service.path(&format!("/jobs/{long}")),
            Some(good.to_string()),
        ),
        (
            "a long name",
            Method::PUT,
            service.path("/jobs/j"),
            Some(with("name", json!("x".repeat(256)))),
        ),
        (
            "a long label",
            Method::PUT,
            service.path("/jobs/j"),
            Some(with("labels", json!({"k": "x".repeat(256)}))),
        ),
        (
            "a zero character",
            Method::PUT,
            service.path("/jobs/j"),
            Some(with("description", json!("\0"))),
        ),
        (
            "an unknown status",
            Method::GET,
            jobs("filter=status%3D%3DReady"),
            None,
        ),
        (
            "a wildcard for a status",
            Method::GET,
            jobs("filter=status%3D%3DAct%2A"),
            None,
        ),
        (
            "a percentage that is not a number",
            Method::GET,
            jobs("filter=percentageComplete%3D%3Dhalf"),
            None,
        ),
        (
            "a limit that is not a number",
            Method::GET,
            jobs("limit=many"),
            None,
        ),
        (
            "an apostrophe",
            Method::GET,
            jobs("sort=%27%20or%201%3D1"),
            None,
        ),
    ] {
        let answer = service.call(method, &path, body.as_deref(), &[]).await;
        assert_eq!(answer.status, 400, "{what}: {}", answer.body);
        let error = answer.json();
        let text = error["message"].as_str().unwrap();
        assert_eq!(error.as_object().unwrap().len(), 1, "{what}: {error}");
        for leak in [
            "SQL", "Where:", "select", "sqlx", "relation", "panicked", ".rs",
        ] {
            assert!(!text.contains(leak), "{what}: {text}");
        }
    }
    // An explicit null is valid: it is the same as a missing field.
    for (job, field) in [
        ("no-labels", "labels"),
        ("no-delay", "delay"),
        ("no-prerequisites", "prerequisiteJobIds"),
    ] {
        service
            .call(
                Method::PUT,
                &service.path(&format!("/jobs/{job}")),
                Some(&with(field, json!(null))),
                &[],
            )
            .await
            .is(201);
    }
    let logged = service.log();
    for password in service.passwords() {
        for leak in [
            format!(":{password}@"),
            format!("password={password}"),
            format!("PASSWORD={password}"),
        ] {
            assert!(!logged.contains(&leak), "{leak} is in the log");
        }
    }
}

// Defect 15: SCMOD-7065
async fn equal_concurrent_requests_create_one_job(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for job in ["a", "b", "c"] {
        let body = service.new_job("in");
        let mut codes: Vec<u16> = join_all((0..12).map(|_| service.put(job, &body)))
            .await
            .into_iter()
            .map(|answer| answer.status)
            .collect();
        codes.sort_unstable();
        assert_eq!((codes[0], &codes[1..]), (201, &[204; 11][..]), "{job}");
    }
    service.create("last", &service.new_job("in")).await;
    assert_eq!(pipe.next_jobs(4).await, ["a", "b", "c", "last"]);
}

// Defect 15: SCMOD-6620, SCMOD-4348, SCMOD-6216
async fn concurrent_creations_and_completions_start_every_job_once(store: Store) {
    const JOBS: usize = 12;
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    // Each job waits for three others, listed in different orders, while those are created and
    // completed.
    let root = |n: usize| format!("root-{}", n % JOBS);
    let roots = (0..JOBS).map(|n| {
        let service = &service;
        async move {
            service
                .create(&root(n), &service.new_job("not-consumed"))
                .await;
            service.complete(&root(n), ".2*").await;
            service.complete(&root(n), ".1").await;
        }
    });
    let waiting = (0..JOBS).map(|n| {
        let service = &service;
        async move {
            let mut body = service.new_job("in");
            body["prerequisiteJobIds"] = json!([root(n + 5), root(n), root(n + 11)]);
            service.create(&format!("waiting-{n:02}"), &body).await;
        }
    });
    tokio::join!(join_all(roots), join_all(waiting));
    let mut started = pipe.next_jobs(JOBS).await;
    started.sort();
    let expected: Vec<String> = (0..JOBS).map(|n| format!("waiting-{n:02}")).collect();
    assert_eq!(started, expected);
    service.create("last", &service.new_job("in")).await;
    assert_eq!(pipe.next_jobs(1).await, ["last"]);
}

// Defect 15: CAF-2670
async fn job_without_own_subtasks_completes_with_its_final_result(store: Store) {
    let service = Service::start(store).await;
    service.create("empty", &service.new_job("in")).await;
    service.complete("empty", ".1*").await;
    service.becomes("empty", "Completed", 100.0).await;
    service.create("nested", &service.new_job("in")).await;
    service.complete("nested", ".2*").await;
    service.complete("nested", ".1.1*").await;
    service.becomes("nested", "Completed", 100.0).await;
}

// Defect 15: SCMOD-10825, SCMOD-15074
async fn job_with_many_splits_is_cancelled_and_deleted_normally(store: Store) {
    let service = Service::start(store).await;
    for job in ["cancelled", "deleted", "completed"] {
        service.create(job, &service.new_job("in")).await;
        // CAF creates a table for each split.
        let done =
            |steps: String| json!({"jobTaskId": service.task(job, &steps), "status": "Complete"});
        let splits: Vec<Value> = (1..=1500).map(|n| done(format!(".{n}.1.{n}"))).collect();
        for some in splits.chunks(500) {
            service.report(some).await;
        }
    }
    service.all_is_counted().await;
    for job in ["cancelled", "deleted", "completed"] {
        assert_eq!(service.state(job).await.0, "Active", "{job}");
    }
    service.post("/jobs/cancelled/cancel", &[]).await.is(204);
    service.delete("deleted").await.is(204);
    service.complete("completed", "").await;
    service.becomes("completed", "Completed", 100.0).await;
    assert_eq!(service.state("cancelled").await.0, "Cancelled");
    service.delete("cancelled").await.is(204);
    service.create("deleted", &service.new_job("in")).await;
    assert_eq!(service.state("deleted").await, ("Waiting".to_owned(), 0.0));
}

// Defect 15: SCMOD-9529
async fn equal_jobs_are_listed_in_a_stable_order(store: Store) {
    let service = Service::start(store).await;
    let mut body = service.new_job("in");
    body["name"] = json!("the same");
    let ids: Vec<String> = (0..9).map(|n| format!("j{}", n * 5 % 9)).collect();
    for id in &ids {
        service.create(id, &body).await;
    }
    // By default the newest job is first.
    let newest: Vec<&String> = ids.iter().rev().collect();
    assert_eq!(
        service.get("/jobs").await.ids().iter().collect::<Vec<_>>(),
        newest
    );
    for sort in ["name:asc", "status:desc", "percentageComplete:asc"] {
        let all = service.ask("/jobs", &[("sort", sort)]).await.ids();
        let mut paged = Vec::new();
        for offset in ["0", "4", "8"] {
            paged.extend(
                service
                    .ask(
                        "/jobs",
                        &[("sort", sort), ("limit", "4"), ("offset", offset)],
                    )
                    .await
                    .ids(),
            );
        }
        assert_eq!(paged, all, "{sort}");
    }
}
