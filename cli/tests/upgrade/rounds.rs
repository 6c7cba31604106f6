//! This build continues jobs in the middle of their second round.
//!
//! In each fixture two jobs were cancelled in the middle of their first round and taken up again: `mended`, and `rough`, of which
//! each hundredth item fails. Of both, items are done, some wait, and reports of the first round are on their way about items
//! that wait: two that they have failed, and one that it is done.

use contract::JobStatus;

use super::Installation;

const LINES: u32 = 1200;

async fn goes_on(fixture: &str) {
    let installation = Installation::of(fixture, 2).await;
    installation.take_the_place_of_the_earlier_build();
    let is_bad = |n: u32| n.is_multiple_of(100);
    installation.write("mended.txt", "g", LINES, |_| false);
    installation.write("rough.txt", "h", LINES, is_bad);
    let up = installation.start().await;
    let client = installation.client();

    let mended = installation.ended("mended").await;
    assert_eq!(
        (mended.status, mended.round, mended.completed_items),
        (JobStatus::Completed, Some(2), 1200),
        "{mended:?}"
    );
    assert_eq!((mended.failed_tasks, &*mended.failures), (0, &[][..]));
    // A round that the earlier build has begun, and one that this build begins.
    for round in 2..=3 {
        let rough = installation.ended("rough").await;
        assert_eq!(
            (rough.status, rough.round, rough.completed_items),
            (JobStatus::Failed, Some(round), 1188),
            "{rough:?}"
        );
        assert_eq!((rough.failed_tasks, rough.failures.len()), (12, 12));
        if round == 2 {
            client.retry("rough", false).await.unwrap();
        }
    }

    up.stop().await;
    let words = installation.words().await;
    let good = (1..=LINES).filter(|n| !is_bad(*n));
    let expected = (1..=LINES)
        .map(|n| format!("g{n}"))
        .chain(good.map(|n| format!("h{n}")));
    let missing: Vec<String> = expected.filter(|word| !words.contains(word)).collect();
    assert!(missing.is_empty(), "outputs of {missing:?} are missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_an_embedded_system_in_the_middle_of_a_second_round() {
    goes_on("rounds_sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_a_postgres_database_in_the_middle_of_a_second_round() {
    goes_on("rounds_postgres").await;
}
