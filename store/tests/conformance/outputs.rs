//! The outputs that are kept: each once, for the living incarnation, until the job or their time is
//! gone.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::rest::{KeptOutputs, OutputStatus};
use contract::{JobStatus, OnFailure};
use store::{Incarnation, JobRequest, Keeping, NewBlob, NewOutputs, OutputsOf};

use crate::fixture::{TestStore, failed, request};

suite![
    an_output_is_kept_once_and_a_blob_with_one_that_is_there_is_refused,
    failure_is_superseded_by_a_result_and_never_follows_one,
    failure_is_not_counted_once_its_task_is_done,
    blobs_are_found_by_their_lines,
    merged_blob_has_the_lines_of_those_that_it_replaces_or_replaces_none,
    outputs_over_a_limit_are_counted_once,
    a_reason_to_wait_is_noted_until_outputs_are_kept_again,
    a_damaged_blob_is_noted_until_it_is_as_it_was_written,
    rows_of_a_deleted_job_stay_until_its_blobs_are_deleted,
    outputs_of_ended_jobs_are_removed_after_their_time,
];

async fn keeping(store: &TestStore, job: &str) -> Incarnation {
    let request = JobRequest {
        output_pipe: Some("kept-in".to_owned()),
        ..request(job)
    };
    store.create_with(request).await
}

fn blob(name: &str, status: OutputStatus, tasks: &[&[u32]]) -> NewBlob {
    NewBlob {
        name: name.to_owned(),
        bytes: 10,
        crc32: checksum(name),
        status,
        tasks: tasks.iter().map(|task| task.to_vec()).collect(),
    }
}

/// Returns a checksum of its own for each name.
fn checksum(name: &str) -> u32 {
    u32::MAX - u32::from(name.as_bytes()[0])
}

fn new(job: &Incarnation, blobs: Vec<NewBlob>) -> NewOutputs {
    NewOutputs {
        job: job.clone(),
        blobs,
        left_out: Vec::new(),
        reason: None,
    }
}

async fn keep(store: &TestStore, job: &Incarnation, blobs: Vec<NewBlob>) -> Keeping {
    let kept = store.keep_outputs(&[new(job, blobs)]).await.unwrap();
    let [kept] = &kept[..] else {
        panic!("{kept:?}")
    };
    kept.clone()
}

async fn kept(store: &TestStore, job: &Incarnation) -> KeptOutputs {
    store.job(job).await.outputs.unwrap()
}

async fn an_output_is_kept_once_and_a_blob_with_one_that_is_there_is_refused(store: TestStore) {
    use OutputStatus::Done;
    let job = keeping(&store, "once").await;
    let first = blob("a", Done, &[&[1], &[2, 4097], &[]]);
    assert_eq!(keep(&store, &job, vec![first.clone()]).await, Keeping::Kept);
    // A second process had the same outputs, and one more.
    let second = vec![
        blob("b", Done, &[&[3]]),
        blob("c", Done, &[&[2, 4097], &[5]]),
    ];
    let repeated = Keeping::Repeated(BTreeSet::from([(1, 0)]));
    assert_eq!(keep(&store, &job, second).await, repeated);
    assert_eq!(kept(&store, &job).await.done, 3);
    // A transaction that seemed to fail is repeated.
    let all = Keeping::Repeated(BTreeSet::from([(0, 0), (0, 1), (0, 2)]));
    assert_eq!(keep(&store, &job, vec![first]).await, all);
    let rest = vec![blob("d", Done, &[&[3]]), blob("e", Done, &[&[5]])];
    assert_eq!(keep(&store, &job, rest).await, Keeping::Kept);
    let expected = KeptOutputs {
        done: 5,
        bytes: 30,
        ..KeptOutputs::default()
    };
    assert_eq!(kept(&store, &job).await, expected);
    assert_eq!(store.kept_bytes().await.unwrap(), 30);

    // Another incarnation has outputs of its own.
    store.delete(&job).await;
    let gone = keep(&store, &job, vec![blob("f", Done, &[&[9]])]).await;
    assert_eq!(gone, Keeping::Changed);
    let again = keeping(&store, "once").await;
    let task = vec![blob("g", Done, &[&[1]])];
    assert_eq!(keep(&store, &again, task).await, Keeping::Kept);
    let plain = store.create("plain").await;
    let of =
        async |job: &Incarnation, n| store.outputs_of(&job.partition, &job.job, n).await.unwrap();
    assert_eq!(of(&again, None).await, OutputsOf::Gone);
    assert_eq!(of(&again, Some(job.number)).await, OutputsOf::Gone);
    assert_eq!(of(&plain, None).await, OutputsOf::NotKept);
    let found = of(&again, Some(again.number)).await;
    assert!(
        matches!(&found, OutputsOf::Kept(job, kept) if **job == again && kept.done == 1),
        "{found:?}"
    );
}

async fn failure_is_superseded_by_a_result_and_never_follows_one(store: TestStore) {
    use OutputStatus::{Done, Failed};
    let job = keeping(&store, "failing").await;
    let failed = vec![blob("a", Failed, &[&[1], &[2]])];
    assert_eq!(keep(&store, &job, failed).await, Keeping::Kept);
    let done = vec![blob("b", Done, &[&[2]])];
    assert_eq!(keep(&store, &job, done).await, Keeping::Kept);
    let late = vec![blob("c", Failed, &[&[2], &[3]])];
    let repeated = Keeping::Repeated(BTreeSet::from([(0, 0)]));
    assert_eq!(keep(&store, &job, late).await, repeated);
    let tasks = [vec![1], vec![2], vec![3]];
    let done = store.have_results(job.number, &tasks).await.unwrap();
    assert_eq!(done, [false, true, false]);
    let kept = kept(&store, &job).await;
    assert_eq!((kept.done, kept.failed), (1, 1));
}

async fn failure_is_not_counted_once_its_task_is_done(store: TestStore) {
    use OutputStatus::{Done, Failed};
    let request = JobRequest {
        output_pipe: Some("kept-in".to_owned()),
        on_failure: OnFailure::Continue,
        ..request("again")
    };
    let first = store.create_with(request).await;
    let failures = NewOutputs {
        // It is over a limit.
        left_out: vec![(vec![5], Failed)],
        ..new(&first, vec![blob("a", Failed, &[&[2], &[3], &[4]])])
    };
    store.keep_outputs(&[failures]).await.unwrap();
    for path in ["2", "3", "4", "5"] {
        store.report(&first, path, failed("BROKEN")).await;
    }
    store.complete(&first, &["1", "6*"]).await;
    assert_eq!(store.status(&first).await, JobStatus::Failed);
    assert_eq!(kept(&store, &first).await.failed, 3);

    let job = store.retry(&first).await.job;
    assert_eq!(kept(&store, &job).await.failed, 3);
    let results = vec![blob("b", Done, &[&[2], &[5]])];
    assert_eq!(keep(&store, &job, results).await, Keeping::Kept);
    assert_eq!(kept(&store, &job).await.failed, 2);
    // It has no output now, and its task is reported twice.
    for _ in 0..2 {
        store.complete(&job, &["1", "2", "3", "6*"]).await;
    }
    let counted = kept(&store, &job).await;
    assert_eq!((counted.done, counted.failed), (2, 1));
    let tasks = [vec![2], vec![3], vec![4]];
    let done = store.have_results(job.number, &tasks).await.unwrap();
    assert_eq!(done, [true, true, false]);
    // An export of the outputs as they were is another one.
    let (kept, lines) = store.kept_with_lines(job.number).await.unwrap();
    assert_eq!((kept.done, kept.failed, lines), (2, 1, 5));
}

async fn blobs_are_found_by_their_lines(store: TestStore) {
    use OutputStatus::{Done, Failed};
    let job = keeping(&store, "lines").await;
    for blobs in [
        vec![blob("a", Done, &[&[1], &[2], &[3]])],
        vec![blob("b", Failed, &[&[4]]), blob("c", Done, &[&[5], &[6]])],
    ] {
        assert_eq!(keep(&store, &job, blobs).await, Keeping::Kept);
    }
    for (line, status, limit, expected) in [
        (0, None, 10, &[("a", 0), ("b", 3), ("c", 4)][..]),
        (0, None, 2, &[("a", 0), ("b", 3)]),
        (2, None, 10, &[("a", 0), ("b", 3), ("c", 4)]),
        (3, None, 10, &[("b", 3), ("c", 4)]),
        (5, None, 10, &[("c", 4)]),
        (6, None, 10, &[]),
        (u64::MAX, None, 10, &[]),
        (0, Some(Failed), 10, &[("b", 3)]),
        (1, Some(Done), 10, &[("a", 0), ("c", 4)]),
        (3, Some(Done), 10, &[("c", 4)]),
    ] {
        let found = store.kept_blobs(job.number, line, status, limit).await;
        let found = found.unwrap();
        let found: Vec<(&str, u64)> = found
            .iter()
            .map(|blob| (blob.name.as_str(), blob.first_line))
            .collect();
        assert_eq!(found, expected, "{line} {status:?} {limit}");
    }
}

async fn merged_blob_has_the_lines_of_those_that_it_replaces_or_replaces_none(store: TestStore) {
    use OutputStatus::{Done, Failed};
    let job = keeping(&store, "merging").await;
    for blobs in [
        vec![blob("a", Done, &[&[1], &[2]]), blob("b", Done, &[&[3]])],
        vec![blob("c", Done, &[&[4]]), blob("d", Done, &[&[5]])],
        vec![blob("e", Failed, &[&[6]])],
    ] {
        assert_eq!(keep(&store, &job, blobs).await, Keeping::Kept);
    }
    let last = async |limit| store.last_kept_blobs(job.number, limit).await.unwrap();
    let before = last(10).await;
    assert_eq!(before.len(), 5);
    assert_eq!(last(2).await, before[3..]);
    let merge = async |of: &[&store::KeptBlob], name: &str| {
        let of: Vec<_> = of.iter().map(|blob| (*blob).clone()).collect();
        let merged = (name, checksum(name));
        store.merge_kept_blobs(&job, &of, merged).await.unwrap()
    };
    let other = store::KeptBlob {
        crc32: 1,
        ..before[2].clone()
    };
    let middle = [&before[1], &before[2], &before[3]];
    // One is left out, another kind is among them, or one has another checksum.
    for refused in [
        &[&before[0], &before[2]][..],
        &[&before[3], &before[4]],
        &[&before[1], &other],
        &[],
    ] {
        assert!(!merge(refused, "x").await, "{refused:?}");
    }
    let sums = kept(&store, &job).await;
    assert!(merge(&middle, "m").await);
    // Another process has done the same.
    assert!(!merge(&middle, "n").await);
    assert_eq!(kept(&store, &job).await, sums);
    let merged = store::KeptBlob {
        name: "m".to_owned(),
        lines: 3,
        bytes: 30,
        crc32: checksum("m"),
        ..before[1].clone()
    };
    assert_eq!(
        last(10).await,
        [before[0].clone(), merged.clone(), before[4].clone()]
    );
    let found = store.kept_blobs(job.number, 4, None, 1).await.unwrap();
    assert_eq!(found, [merged]);
    store.delete(&job).await;
    assert!(!merge(&[&before[0]], "y").await);
}

async fn outputs_over_a_limit_are_counted_once(store: TestStore) {
    let job = keeping(&store, "limited").await;
    let over = NewOutputs {
        left_out: vec![(vec![1], OutputStatus::Done), (vec![2], OutputStatus::Done)],
        reason: Some("it is enough".to_owned()),
        ..new(&job, Vec::new())
    };
    for _ in 0..2 {
        let kept = store.keep_outputs(std::slice::from_ref(&over)).await;
        assert_eq!(kept.unwrap(), [Keeping::Kept]);
    }
    let kept = kept(&store, &job).await;
    assert_eq!((kept.not_kept, kept.done), (2, 0));
    assert_eq!(kept.reason.as_deref(), Some("it is enough"));
}

async fn a_reason_to_wait_is_noted_until_outputs_are_kept_again(store: TestStore) {
    let job = keeping(&store, "waiting").await;
    let jobs = [job.clone()];
    store
        .note_waiting_outputs(&jobs, "the disk is full")
        .await
        .unwrap();
    let waiting = store.job(&job).await;
    let note = "Outputs wait to be kept: the disk is full.";
    assert!(waiting.notes.iter().any(|it| it == note), "{waiting:?}");
    let blobs = vec![blob("a", OutputStatus::Done, &[&[1]])];
    assert_eq!(keep(&store, &job, blobs).await, Keeping::Kept);
    assert_eq!(kept(&store, &job).await.waiting, None);
}

async fn a_damaged_blob_is_noted_until_it_is_as_it_was_written(store: TestStore) {
    let job = keeping(&store, "damaged").await;
    let note = async |blob: Option<&str>| {
        let noted = store.note_damaged_outputs(job.number, blob);
        noted.await.unwrap();
        store.job(&job).await
    };
    assert_eq!(note(Some("a")).await.outputs.unwrap().damaged, None);
    let blobs = vec![
        blob("a", OutputStatus::Done, &[&[1]]),
        blob("b", OutputStatus::Done, &[&[2]]),
    ];
    assert_eq!(keep(&store, &job, blobs).await, Keeping::Kept);
    let damaged = note(Some("a")).await;
    let said = "Outputs are damaged: their blob a is not as it was written.";
    assert!(
        damaged.notes.iter().any(|it| it.starts_with(said)),
        "{damaged:?}"
    );
    let more = vec![blob("c", OutputStatus::Done, &[&[3]])];
    assert_eq!(keep(&store, &job, more).await, Keeping::Kept);
    assert_eq!(kept(&store, &job).await.damaged.as_deref(), Some("a"));
    assert_eq!(note(None).await.outputs.unwrap().damaged, None);
    note(Some("b")).await;
    let all = store.last_kept_blobs(job.number, 10).await.unwrap();
    for (merged, left) in [(&all[2..], Some("b")), (&all[..2], None)] {
        assert!(
            store
                .merge_kept_blobs(&job, merged, ("m", 0))
                .await
                .unwrap()
        );
        assert_eq!(kept(&store, &job).await.damaged.as_deref(), left);
    }
}

async fn rows_of_a_deleted_job_stay_until_its_blobs_are_deleted(store: TestStore) {
    let (job, other) = (keeping(&store, "a").await, keeping(&store, "b").await);
    for job in [&job, &other] {
        let blobs = vec![blob("x", OutputStatus::Done, &[&[1]])];
        assert_eq!(keep(&store, job, blobs).await, Keeping::Kept);
    }
    assert!(store.doomed_outputs(None).await.unwrap().is_empty());
    store.delete(&job).await;
    for _ in 0..2 {
        assert_eq!(store.doomed_outputs(None).await.unwrap(), [job.number]);
    }
    store.forget_outputs(job.number).await.unwrap();
    assert!(store.doomed_outputs(None).await.unwrap().is_empty());
    let left = store.kept_blobs(job.number, 0, None, 10).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(store.kept_bytes().await.unwrap(), 10);
}

async fn outputs_of_ended_jobs_are_removed_after_their_time(store: TestStore) {
    let (ended, running) = (keeping(&store, "a").await, keeping(&store, "b").await);
    for job in [&ended, &running] {
        let blobs = vec![blob("x", OutputStatus::Done, &[&[1]])];
        assert_eq!(keep(&store, job, blobs).await, Keeping::Kept);
    }
    store.complete(&ended, &[""]).await;
    let day = Duration::from_hours(24);
    assert!(store.doomed_outputs(Some(day)).await.unwrap().is_empty());
    let doomed = store.doomed_outputs(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(doomed, [ended.number]);
    store.forget_outputs(ended.number).await.unwrap();
    let doomed = store.doomed_outputs(Some(Duration::ZERO)).await.unwrap();
    assert!(doomed.is_empty(), "{doomed:?}");
    let removed = kept(&store, &ended).await;
    assert!(removed.removed_time.is_some(), "{removed:?}");
    assert_eq!((removed.done, removed.bytes), (1, 0));
    // What arrives now is not kept.
    let late = vec![blob("y", OutputStatus::Done, &[&[2]])];
    assert_eq!(keep(&store, &ended, late).await, Keeping::Changed);
    assert_eq!(kept(&store, &running).await.removed_time, None);
}
