//! Dead letters of one job: a task that fails for ever, one whose result can have no pipe, and
//! noise among its items. Each is told, kept and replayed, and the job is complete in the end. What
//! each task does once is done once, in all attempts and rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use contract::rest::{DeadLetters, LetterCause, NewJob, OnFailure};
use contract::{JobStatus, RangeItem};
use framework::config::Route;
use framework::{Context, Reply, RetryPolicy, Settings, TaskError};
use harness::wait_for;

use crate::fixture::{Fixture, System};
use crate::workers::Each;

stories![dead_letters_of_a_job_are_kept_and_replayed_until_it_is_done,];

/// The item that fails in every attempt, and the one whose result can have no pipe, while their
/// worker is broken.
const FAILS: u64 = 7;
const UNROUTABLE: u64 = 8;

/// What the worker of the story shares with it.
#[derive(Clone, Default)]
struct Shop {
    /// Whether the worker is mended.
    mended: Arc<AtomicBool>,
    /// How often it has charged for an item.
    charged: Arc<AtomicU64>,
}

async fn system(fixture: &Fixture, shop: &Shop) -> System {
    let worker = Each(
        (shop.clone(), fixture.pipe("output")),
        async |(shop, output): (Shop, String), item: RangeItem, ctx: Context| {
            if [FAILS, UNROUTABLE].contains(&item.number) {
                let charge = async {
                    shop.charged.fetch_add(1, Ordering::Relaxed);
                    Ok(item.number)
                };
                assert_eq!(ctx.once("charge", charge).await?, item.number);
            }
            let broken = !shop.mended.load(Ordering::Relaxed);
            if broken && item.number == FAILS {
                return Err(TaskError::retry("there is no luck today"));
            }
            let is_lost = broken && item.number == UNROUTABLE;
            let pipe = if is_lost { "x".repeat(256) } else { output };
            Ok(Reply::send(item).to(pipe))
        },
    );
    let settings = Settings {
        retry: RetryPolicy::constant(Duration::from_millis(1)).attempts(2),
        ..fixture.settings("items")
    };
    let mut options = fixture.options();
    options.service.letters.pipes = ["items-reject", "items-invalid"]
        .map(|pipe| fixture.pipe(pipe))
        .into();
    let stack = batchwright::Stack::new(options).worker(settings, worker);
    fixture.start(stack).await
}

async fn letters(system: &System, number: usize) -> DeadLetters {
    wait_for("the dead letters", async || {
        let letters = system.client.dead_letters(&[]).await.unwrap();
        if letters.dead_letters.len() == number {
            Ok(letters)
        } else {
            Err(format!("{letters:?}"))
        }
    })
    .await
}

async fn dead_letters_of_a_job_are_kept_and_replayed_until_it_is_done(fixture: Fixture) {
    let shop = Shop::default();
    let system = system(&fixture, &shop).await;
    system
        .publish(&fixture.pipe("items"), b"{ noise".as_slice())
        .await;
    let request = NewJob {
        on_failure: serde_json::from_str::<OnFailure>(r#"{"continue": {"tolerate": 3}}"#).unwrap(),
        ..fixture.range(100)
    };
    system.client.put("j", &request).await.unwrap();
    let ended = system.ended("j").await;
    // Through the tracking worker, a result without a pipe is that worker's letter.
    let direct = fixture.route == Route::Direct;
    let failed = [FAILS, UNROUTABLE].len();
    assert_eq!(
        (ended.status, ended.completed_items, ended.failed_tasks),
        (JobStatus::Completed, 98, i64::try_from(failed).unwrap()),
        "{ended:?}"
    );
    let found = letters(&system, if direct { 3 } else { 2 }).await;
    let of_cause = |cause| {
        let mut letters = found.dead_letters.iter();
        letters.find(|letter| letter.cause == cause)
    };
    let given_up = of_cause(LetterCause::GivenUp).unwrap();
    assert_eq!(
        (given_up.reason.as_str(), given_up.attempts),
        (
            "there is no luck today (given up after 2 attempts)",
            Some(2)
        )
    );
    assert_eq!(given_up.origin, Some(fixture.pipe("items")));
    assert_eq!(given_up.job_id.as_deref(), Some("j"));
    let noise = of_cause(LetterCause::NotUnderstood).unwrap();
    assert_eq!((noise.job_id.as_ref(), noise.bytes), (None, 7));
    assert_eq!(of_cause(LetterCause::Unroutable).is_some(), direct);

    // The noise comes back as it was, for nobody understands it.
    shop.mended.store(true, Ordering::Relaxed);
    let all = system.client.replay_letters(&[]).await.unwrap();
    assert_eq!(
        (all.replayed, all.refused),
        (found.dead_letters.len() as u64, 0)
    );
    let done = wait_for("the second round to end", async || {
        let job = system.job("j").await;
        let is_over = job.status.is_finished() && job.round == Some(2);
        if is_over {
            Ok(job)
        } else {
            Err(format!("{job:?}"))
        }
    })
    .await;
    let left = i64::from(!direct);
    assert_eq!(
        (done.status, done.completed_items, done.failed_tasks),
        (JobStatus::Completed, 100 - left, left),
        "{done:?}"
    );
    assert_eq!(shop.charged.load(Ordering::Relaxed), 2);
    let again = letters(&system, 1).await;
    assert_eq!(again.dead_letters[0].cause, LetterCause::NotUnderstood);
    assert!(again.dead_letters[0].id > noise.id);
    system
        .drained(&["items", "items-reject", "items-invalid"].map(|pipe| fixture.pipe(pipe)))
        .await;
    system.stop().await;
}
