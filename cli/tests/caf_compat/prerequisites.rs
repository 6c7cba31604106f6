//! Jobs that wait for prerequisites, for a delay, or for the dispatch of their suspended partition.
//!
//! CAF lets a job wait forever if its prerequisites are already completed, cancelled, deleted, or
//! form a cycle. These tests check Batchwright's corrected behaviour. To show that a job has not
//! started, a test creates a later job for the same pipe and checks that the later job's message
//! arrives first.

use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, Pipe, Service, Store, now};

on_both_stores![
    job_starts_once_when_its_last_prerequisite_completes,
    job_whose_prerequisites_are_completed_starts_at_once,
    prerequisite_options_are_read_as_caf_reads_them,
    prerequisite_may_be_created_later,
    job_that_could_never_start_is_refused,
    delay_counts_from_creation_or_from_the_last_prerequisite,
    failure_fails_all_dependents_and_names_the_failed_job,
    jobs_of_a_suspended_partition_start_on_dispatch,
    cancelled_or_deleted_prerequisite_cancels_its_dependents,
    completed_prerequisite_may_be_deleted_and_its_id_reused,
    cycle_of_prerequisites_is_refused,
    invalid_prerequisite_id_is_refused,
    prerequisites_do_not_cross_partitions,
];

/// Returns a job for the pipe `in` that waits for these prerequisites.
fn waiting_for(service: &Service, entries: &Value) -> Value {
    let mut job = service.new_job("in");
    job["prerequisiteJobIds"] = entries.clone();
    job
}

/// Checks that exactly the expected jobs have started since the last check, in any order. It
/// creates one more job, whose message arrives after theirs.
async fn started(service: &Service, pipe: &mut Pipe, expected: &[&str]) {
    let later = harness::unique("later");
    service.create(&later, &service.new_job("in")).await;
    let mut jobs = pipe.next_jobs(expected.len() + 1).await;
    assert_eq!(
        jobs.pop(),
        Some(later),
        "started: {jobs:?}, expected only: {expected:?}"
    );
    jobs.sort();
    assert_eq!(jobs, expected);
}

async fn put_in(service: &Service, partition: &str, job: &str, body: &Value) -> Answer {
    let path = format!("/job-service/v1/partitions/{partition}/jobs/{job}");
    service
        .call(Method::PUT, &path, Some(&body.to_string()), &[])
        .await
}

fn time(job: &Value, field: &str) -> u128 {
    job[field].as_u64().unwrap().into()
}

async fn job_starts_once_when_its_last_prerequisite_completes(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for job in ["a", "b"] {
        service.create(job, &service.new_job("not-consumed")).await;
    }
    service
        .create("j", &waiting_for(&service, &json!(["a", "b"])))
        .await;
    service
        .create("k", &waiting_for(&service, &json!(["j"])))
        .await;
    started(&service, &mut pipe, &[]).await;
    service.complete("b", "").await;
    service.becomes("b", "Completed", 100.0).await;
    started(&service, &mut pipe, &[]).await;
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
    // Its subtasks complete it, and it is then reported complete again.
    for steps in [".2*", ".1", ".1", ".2*", ""] {
        service.complete("a", steps).await;
    }
    service.all_is_counted().await;
    started(&service, &mut pipe, &["j"]).await;
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
    service.complete("j", "").await;
    service.all_is_counted().await;
    started(&service, &mut pipe, &["k"]).await;
}

async fn job_whose_prerequisites_are_completed_starts_at_once(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for job in ["a", "b"] {
        service.create_as(job, "Completed").await;
    }
    service
        .create("complete", &waiting_for(&service, &json!(["a", "b,pc"])))
        .await;
    service
        .create("absent", &waiting_for(&service, &json!(["never,pc"])))
        .await;
    service
        .create("both", &waiting_for(&service, &json!(["a", "never,pc"])))
        .await;
    started(&service, &mut pipe, &["absent", "both", "complete"]).await;
}

async fn prerequisite_options_are_read_as_caf_reads_them(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    service
        .create("there", &service.new_job("not-consumed"))
        .await;
    let at_once = [
        ("absent-pc", json!(["absent,pc"])),
        ("absent-pc-and-more", json!(["absent,x,pc,y"])),
        ("absent-twice", json!(["absent", "absent,pc"])),
        ("absent-twice-pc-first", json!(["absent,pc", "absent"])),
        ("blanks", json!([null, "", "  "])),
        ("none", json!([])),
    ];
    let when_there_is = [
        ("blanks-beside", json!([null, "there", ""])),
        ("there-pc", json!(["there,pc"])),
        ("there-thrice", json!(["there", "there", "there,x"])),
        ("unknown-options", json!(["there,x,y"])),
    ];
    let when_both_are = [("absent-unknown-option", json!(["absent,PC", "there"]))];
    for (job, entries) in at_once.iter().chain(&when_there_is).chain(&when_both_are) {
        service.create(job, &waiting_for(&service, entries)).await;
    }
    let names =
        |jobs: &[(&'static str, Value)]| jobs.iter().map(|(job, _)| *job).collect::<Vec<_>>();
    started(&service, &mut pipe, &names(&at_once)).await;
    service.complete("there", "").await;
    service.becomes("there", "Completed", 100.0).await;
    started(&service, &mut pipe, &names(&when_there_is)).await;
    service
        .create("absent", &service.new_job("not-consumed"))
        .await;
    service.complete("absent", "").await;
    service.becomes("absent", "Completed", 100.0).await;
    started(&service, &mut pipe, &names(&when_both_are)).await;
}

async fn prerequisite_may_be_created_later(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    service
        .create("j", &waiting_for(&service, &json!(["later"])))
        .await;
    started(&service, &mut pipe, &[]).await;
    // A report about an unknown job completes no job.
    service.complete("later", "").await;
    service.all_is_counted().await;
    started(&service, &mut pipe, &[]).await;
    service
        .create("later", &service.new_job("not-consumed"))
        .await;
    started(&service, &mut pipe, &[]).await;
    service.complete("later", "").await;
    service.becomes("later", "Completed", 100.0).await;
    started(&service, &mut pipe, &["j"]).await;
}

async fn job_that_could_never_start_is_refused(store: Store) {
    let service = Service::start(store).await;
    for (job, status) in [
        ("b", "Failed"),
        ("a", "Failed"),
        ("c", "Cancelled"),
        ("d", "Cancelled"),
        ("good", "Completed"),
    ] {
        service.create_as(job, status).await;
    }
    for (entries, text) in [
        (
            json!(["b", "good", "a"]),
            "One or more prerequisite jobs have failed. Failed Job IDs: a, b",
        ),
        (
            json!(["a,pc", "absent"]),
            "One or more prerequisite jobs have failed. Failed Job IDs: a",
        ),
        (
            json!(["a", "c"]),
            "One or more prerequisite jobs have failed. Failed Job IDs: a",
        ),
        // CAF lets such a job wait forever.
        (
            json!(["d", "good", "c"]),
            "One or more prerequisite jobs have been cancelled. Cancelled Job IDs: c, d",
        ),
    ] {
        let mut body = waiting_for(&service, &entries);
        body["labels"] = json!({"k": "v"});
        service.put("j", &body).await.refuses(400, text);
        service.get("/jobs/j").await.is(404);
        // A repeated request is refused for the same reason: the first one created no job.
        service.put("j", &body).await.refuses(400, text);
    }
    assert_eq!(
        service
            .ask("/jobStats/count", &[("filter", "id==j")])
            .await
            .is(200)
            .json(),
        json!(0)
    );
    service
        .create("j", &waiting_for(&service, &json!(["good"])))
        .await;
}

async fn delay_counts_from_creation_or_from_the_last_prerequisite(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    let delayed = |mut job: Value, delay: i32| {
        job["delay"] = json!(delay);
        job
    };
    service
        .create("from-creation", &delayed(service.new_job("in"), 2))
        .await;
    assert_eq!(pipe.next_jobs(1).await, ["from-creation"]);
    assert!(now() >= time(&service.job("from-creation").await, "createTime") + 2000);
    service
        .create("none", &delayed(service.new_job("in"), -5))
        .await;
    assert_eq!(pipe.next_jobs(1).await, ["none"]);
    service.create_as("done", "Completed").await;
    service
        .create("last", &service.new_job("not-consumed"))
        .await;
    service
        .create(
            "from-completion",
            &delayed(waiting_for(&service, &json!(["done", "last"])), 2),
        )
        .await;
    service
        .create(
            "all-done",
            &delayed(waiting_for(&service, &json!(["done"])), 1),
        )
        .await;
    // `as-long` was created after `from-completion` with the same delay. It starts first, so the
    // delay of `from-completion` does not count from its creation.
    service
        .create("as-long", &delayed(service.new_job("in"), 2))
        .await;
    assert_eq!(pipe.next_jobs(2).await, ["all-done", "as-long"]);
    assert!(now() >= time(&service.job("all-done").await, "createTime") + 1000);
    service.complete("last", "").await;
    service.becomes("last", "Completed", 100.0).await;
    assert_eq!(pipe.next_jobs(1).await, ["from-completion"]);
    assert!(now() >= time(&service.job("last").await, "lastUpdateTime") + 2000);
}

async fn failure_fails_all_dependents_and_names_the_failed_job(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for job in ["root", "other"] {
        service.create(job, &service.new_job("not-consumed")).await;
    }
    for (job, entries) in [
        ("child", json!(["root"])),
        ("grandchild", json!(["child", "other"])),
        (
            "great-grandchild",
            json!(["grandchild,pc", "root", "absent"]),
        ),
        ("bystander", json!(["other"])),
    ] {
        service.create(job, &waiting_for(&service, &entries)).await;
    }
    service.fail("root", ".1", "the disk is full").await;
    service.becomes("root", "Failed", 0.0).await;
    for job in ["child", "grandchild", "great-grandchild"] {
        assert_eq!(
            service.state(job).await,
            ("Failed".to_owned(), 0.0),
            "{job}"
        );
        let failures = service.job(job).await["failures"].clone();
        assert_eq!(failures.as_array().unwrap().len(), 1, "{failures}");
        let expected = [
            ("failureId", json!("RESULT_EXCEPTION")),
            ("failureTime", json!(1_700_000_000_000_i64)),
            (
                "failureSource",
                json!(format!("{}:worker-x", service.task("root", ""))),
            ),
            ("failureMessage", json!("the disk is full")),
        ];
        for (field, value) in expected {
            assert_eq!(failures[0][field], value, "{field} of {job}");
        }
    }
    service.complete("other", "").await;
    service.becomes("other", "Completed", 100.0).await;
    started(&service, &mut pipe, &["bystander"]).await;
}

async fn jobs_of_a_suspended_partition_start_on_dispatch(store: Store) {
    let variables = [(
        "CAF_JOB_SERVICE_SUSPENDED_PARTITIONS_REGEX",
        "tenant-[0-9]|other",
    )];
    let service = Service::start_with(store, &variables).await;
    let mut pipe = service.consume("in").await;
    // The expression must match the whole id.
    for partition in ["tenant-1", "tenant-12", "my-tenant-1", "other"] {
        put_in(&service, partition, partition, &service.new_job("in"))
            .await
            .is(201);
    }
    put_in(
        &service,
        "tenant-1",
        "done-soon",
        &service.new_job("not-consumed"),
    )
    .await
    .is(201);
    put_in(
        &service,
        "tenant-1",
        "waits",
        &waiting_for(&service, &json!(["done-soon"])),
    )
    .await
    .is(201);
    started(&service, &mut pipe, &["my-tenant-1", "tenant-12"]).await;
    // The completion of its prerequisite does not start a suspended job.
    service
        .report(&[json!({"jobTaskId": "tenant-1:done-soon", "status": "Complete"})])
        .await;
    service.all_is_counted().await;
    started(&service, &mut pipe, &[]).await;
    let dispatch = "/job-service/v1/partitions/tenant-1/dispatch";
    let answer = service
        .call(Method::POST, dispatch, None, &[])
        .await
        .is(200);
    assert_eq!(answer.json(), json!({"jobsReleased": 2}));
    started(&service, &mut pipe, &["tenant-1", "waits"]).await;
    assert_eq!(
        service
            .call(Method::POST, dispatch, None, &[])
            .await
            .is(200)
            .json(),
        json!({"jobsReleased": 0})
    );
    // A job created after the dispatch is suspended again.
    put_in(&service, "tenant-1", "later", &service.new_job("in"))
        .await
        .is(201);
    started(&service, &mut pipe, &[]).await;
}

async fn cancelled_or_deleted_prerequisite_cancels_its_dependents(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for how in ["cancel", "delete"] {
        let root = format!("{how}-root");
        service
            .create(&root, &service.new_job("not-consumed"))
            .await;
        let (child, grandchild) = (format!("{how}-child"), format!("{how}-grandchild"));
        service
            .create(&child, &waiting_for(&service, &json!([root, "absent"])))
            .await;
        service
            .create(&grandchild, &waiting_for(&service, &json!([child])))
            .await;
        match how {
            "cancel" => drop(
                service
                    .post(&format!("/jobs/{root}/cancel"), &[])
                    .await
                    .is(204),
            ),
            _ => drop(service.delete(&root).await.is(204)),
        }
        for job in [&child, &grandchild] {
            assert_eq!(
                service.state(job).await,
                ("Cancelled".to_owned(), 0.0),
                "{job}"
            );
        }
    }
    // A new job with the deleted prerequisite's id completes. The cancelled dependents stay
    // cancelled.
    service
        .create("delete-root", &service.new_job("not-consumed"))
        .await;
    let again = service.job("delete-root").await["incarnation"].clone();
    service.report(&[json!({"jobTaskId": format!("{}!{again}", service.task("delete-root", "")), "status": "Complete"})]).await;
    service.becomes("delete-root", "Completed", 100.0).await;
    assert_eq!(
        service.state("delete-child").await,
        ("Cancelled".to_owned(), 0.0)
    );
    started(&service, &mut pipe, &[]).await;
}

async fn completed_prerequisite_may_be_deleted_and_its_id_reused(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    for job in ["a", "b"] {
        service.create(job, &service.new_job("not-consumed")).await;
    }
    service
        .create("j", &waiting_for(&service, &json!(["a", "b"])))
        .await;
    service.complete("a", "").await;
    service.becomes("a", "Completed", 100.0).await;
    service.delete("a").await.is(204);
    service.create("a", &service.new_job("not-consumed")).await;
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
    service.complete("b", "").await;
    service.becomes("b", "Completed", 100.0).await;
    started(&service, &mut pipe, &["j"]).await;
}

async fn cycle_of_prerequisites_is_refused(store: Store) {
    let service = Service::start(store).await;
    service
        .put("a", &waiting_for(&service, &json!(["a"])))
        .await
        .refuses(400, "The job would wait for itself: a -> a");
    service
        .create("a", &waiting_for(&service, &json!(["b"])))
        .await;
    service
        .create("b", &waiting_for(&service, &json!(["c"])))
        .await;
    service
        .put("c", &waiting_for(&service, &json!(["a"])))
        .await
        .refuses(400, "The job would wait for itself: c -> a -> b -> c");
    service
        .put("c", &waiting_for(&service, &json!(["c,pc"])))
        .await
        .refuses(400, "The job would wait for itself: c -> c");
    service.get("/jobs/c").await.is(404);
    service.create("c", &service.new_job("in")).await;
}

async fn invalid_prerequisite_id_is_refused(store: Store) {
    let service = Service::start(store).await;
    let (long_id, long_entry) = ("x".repeat(49), format!("a,{}", "x".repeat(127)));
    for (entry, text) in [
        (long_id.as_str(), format!("The prerequisite job id '{long_id}' is no job id: The job identifier is longer than 48 characters.")),
        (&long_entry, format!("The prerequisite job id '{long_entry}' is longer than 128 characters.")),
        (",pc", "The prerequisite job id '' is no job id: The job identifier has not been specified.".to_owned()),
        ("a:b", "The prerequisite job id 'a:b' is no job id: The job identifier contains one or more invalid characters.".to_owned()),
    ] {
        service.put("j", &waiting_for(&service, &json!(["a", entry]))).await.refuses(400, &text);
    }
    service.get("/jobs/j").await.is(404);
    let longest = format!("{},{}", "x".repeat(48), "y".repeat(79));
    service
        .create("j", &waiting_for(&service, &json!([longest])))
        .await;
}

async fn prerequisites_do_not_cross_partitions(store: Store) {
    let service = Service::start(store).await;
    let mut pipe = service.consume("in").await;
    service.create("a", &service.new_job("not-consumed")).await;
    put_in(&service, "elsewhere", "a", &service.new_job("not-consumed"))
        .await
        .is(201);
    service
        .create("j", &waiting_for(&service, &json!(["a"])))
        .await;
    service
        .report(&[json!({"jobTaskId": "elsewhere:a", "status": "Complete"})])
        .await;
    service.all_is_counted().await;
    started(&service, &mut pipe, &[]).await;
    service.complete("a", "").await;
    service.becomes("a", "Completed", 100.0).await;
    started(&service, &mut pipe, &["j"]).await;
}
