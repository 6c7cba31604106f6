//! Splits that are made again: from what they were made, and which of their subtasks are done.

use contract::{Announced, JobStatus, SourceDigest, SplitState, SubtaskRange};
use store::{Asked, AskedJob, EventKind, Incarnation};

use crate::fixture::{TestStore, event, failed};

suite![
    later_round_knows_the_digest_of_a_split_and_which_of_its_subtasks_are_done,
    of_many_subtasks_the_done_ones_are_told_in_bounded_answers,
    split_that_was_announced_without_a_digest_tells_nothing,
    split_that_was_made_from_two_sources_fails_in_every_round,
    split_of_a_past_round_or_of_no_job_is_not_found,
];

const A: SourceDigest = SourceDigest([0xa; 32]);
const B: SourceDigest = SourceDigest([0xb; 32]);

const fn from(digest: Option<SourceDigest>) -> EventKind {
    EventKind::Announced {
        stated: Some(Announced {
            batches: 0,
            items: None,
        }),
        digest,
    }
}

fn ranges(ranges: &[(u32, u32)]) -> Vec<SubtaskRange> {
    let range = |(first, last): &(u32, u32)| SubtaskRange {
        first: *first,
        last: *last,
    };
    ranges.iter().map(range).collect()
}

fn found(asked: Asked<SplitState>) -> SplitState {
    match asked {
        Asked::Found(split) => split,
        other => panic!("{other:?}"),
    }
}

impl TestStore {
    async fn split_of(&self, job: &Incarnation, path: &[u32]) -> SplitState {
        found((**self).split(job.into(), path, 0).await.unwrap())
    }
}

async fn later_round_knows_the_digest_of_a_split_and_which_of_its_subtasks_are_done(
    store: TestStore,
) {
    let first = store.started("j").await;
    assert_eq!(store.split_of(&first, &[]).await, SplitState::default());
    store.report(&first, "4*", from(Some(A))).await;
    store.complete(&first, &["1", "2.1", "2.2", "2.4"]).await;
    // The announcement of a split may come late.
    store.report(&first, "2.6*", from(Some(B))).await;
    store.report(&first, "2.5", failed("BROKEN")).await;
    let job = store.retry(&first).await.job;
    let top = store.split_of(&job, &[]).await;
    assert_eq!(
        top,
        SplitState {
            known: true,
            digest: Some(A),
            round: Some(1),
            done: ranges(&[(1, 1)]),
            ..SplitState::default()
        }
    );
    let split = store.split_of(&job, &[2]).await;
    assert_eq!((split.digest, split.round), (Some(B), Some(1)));
    assert_eq!(split.done, ranges(&[(1, 2), (4, 4)]));
    assert_eq!(store.split_of(&job, &[3]).await, SplitState::default());

    // Both are stated again, and what the earlier round still does counts.
    store.report(&job, "4*", from(Some(A))).await;
    store.report(&job, "2.6*", from(Some(B))).await;
    store.complete(&first, &["2.3"]).await;
    assert_eq!(
        store.split_of(&job, &[2]).await.done,
        ranges(&[(1, 4)]),
        "with what the earlier round has done meanwhile"
    );
    store.complete(&job, &["2.5", "2.6*"]).await;
    let everything = ranges(&[(1, 2_147_483_647)]);
    for (path, known) in [(&[2][..], true), (&[2, 1], true)] {
        let split = store.split_of(&job, path).await;
        assert_eq!((split.known, split.completed), (known, true), "{path:?}");
        assert_eq!((split.digest, split.done), (None, everything.clone()));
    }
    store.complete(&job, &["3", "4*"]).await;
    assert_eq!(store.status(&job).await, JobStatus::Completed);
    assert!(store.split_of(&job, &[]).await.completed);
}

async fn of_many_subtasks_the_done_ones_are_told_in_bounded_answers(store: TestStore) {
    let job = store.started("j").await;
    let size = 150_001;
    store.report(&job, &format!("{size}*"), from(Some(A))).await;
    // Every second one of the first 3,000, and two runs over the borders of chunks.
    let done: Vec<u32> = (1..=3000)
        .step_by(2)
        .chain(4000..=9000)
        .chain([65_536, 65_537])
        .chain(140_000..=150_000)
        .collect();
    let events: Vec<_> = done
        .iter()
        .map(|number| event(&job, &number.to_string(), EventKind::Complete))
        .collect();
    store.record(&events).await.unwrap();
    let (mut told, mut after, mut answers) = (Vec::new(), 0, 0);
    loop {
        let split = found((*store).split((&job).into(), &[], after).await.unwrap());
        assert!(split.done.len() <= 1000);
        told.extend(split.done.iter().flat_map(|it| it.first..=it.last));
        answers += 1;
        let Some(up_to) = split.up_to else { break };
        assert!(up_to > after);
        after = up_to;
    }
    assert_eq!(told, done);
    assert_eq!(answers, 4);
    let beyond = (*store).split((&job).into(), &[], 2_147_483_647);
    let beyond = found(beyond.await.unwrap());
    assert_eq!((beyond.done, beyond.up_to), (vec![], None));
}

async fn split_that_was_announced_without_a_digest_tells_nothing(store: TestStore) {
    for (name, kinds) in [
        ("never", vec![from(None)]),
        ("before", vec![from(None), from(Some(A))]),
        ("after", vec![from(Some(A)), from(None)]),
        ("not at all", vec![EventKind::Progress(0)]),
    ] {
        let job = store.started(name).await;
        for kind in kinds {
            store.report(&job, "3*", kind).await;
        }
        store.complete(&job, &["1"]).await;
        let split = store.split_of(&job, &[]).await;
        let expected = SplitState {
            known: true,
            ..SplitState::default()
        };
        assert_eq!(split, expected, "{name}");
    }
}

async fn split_that_was_made_from_two_sources_fails_in_every_round(store: TestStore) {
    let first = store.started("j").await;
    store.report(&first, "2*", EventKind::Progress(0)).await;
    store.report(&first, "1.3*", from(Some(A))).await;
    store.complete(&first, &["1.1", "1.2"]).await;
    assert_eq!(store.status(&first).await, JobStatus::Active);
    store.report(&first, "1.3*", from(Some(A))).await;
    assert_eq!(store.status(&first).await, JobStatus::Active);
    store.report(&first, "1.3*", from(Some(B))).await;
    let now = store.job(&first).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Failed, 1));
    assert_eq!(now.failure_counts["SPLIT_SOURCE_CHANGED"], 1);

    let job = store.retry(&first).await.job;
    let split = store.split_of(&job, &[1]).await;
    assert!(split.contradictory && split.done.is_empty(), "{split:?}");
    // Its subtasks may be those of either source, so that it is not done when all of them are.
    store.complete(&first, &["1.3*"]).await;
    store.complete(&job, &["2*"]).await;
    assert_eq!(store.status(&job).await, JobStatus::Active);
    // A worker that asks nobody announces the split as it did.
    store.report(&job, "1.3*", from(None)).await;
    let now = store.job(&job).await;
    assert_eq!((now.status, now.failed_tasks), (JobStatus::Failed, 1));

    let own = store.started("own").await;
    store.report(&own, "3*", from(Some(A))).await;
    store.report(&own, "3*", from(Some(B))).await;
    assert_eq!(store.status(&own).await, JobStatus::Failed);
}

async fn split_of_a_past_round_or_of_no_job_is_not_found(store: TestStore) {
    let first = store.started("j").await;
    store.report(&first, "3*", from(Some(A))).await;
    store.cancel(&first).await;
    let job = store.retry(&first).await.job;
    let of = |incarnation, round| AskedJob {
        incarnation,
        round,
        ..AskedJob::from(&job)
    };
    for (number, round, is_found) in [
        (Some(job.number), Some(2), true),
        (Some(job.number), Some(1), false),
        (Some(job.number), Some(3), false),
        (Some(job.number + 1), Some(2), false),
        (None, None, true),
    ] {
        let split = (*store).split(of(number, round), &[], 0).await.unwrap();
        let is_gone = split == Asked::Gone;
        assert_eq!(is_gone, !is_found, "{number:?} {round:?}");
    }
    store.delete("j").await;
    let split = (*store).split(of(None, None), &[], 0).await.unwrap();
    assert_eq!(split, Asked::Gone);
}
