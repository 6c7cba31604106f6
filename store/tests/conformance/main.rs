//! What every store must do: one suite for `SQLite` and for `PostgreSQL`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

/// Makes two tests of each function, one per store.
macro_rules! suite {
    [$($test:ident),* $(,)?] => {
        suite!(@ sqlite, $($test),*);
        suite!(@ postgres, $($test),*);
    };
    (@ $kind:ident, $($test:ident),*) => {
        mod $kind {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let store = crate::fixture::TestStore::open(stringify!($kind)).await;
                    harness::in_time("the test to end", super::$test(store)).await;
                }
            )*
        }
    };
}

extern crate batchwright_store as store;

mod fixture;
mod queries;

mod agreement;
mod announcements;
mod attempts;
mod blocked;
mod bulk;
mod dependents;
mod events;
mod expiry;
mod failures;
mod filter;
mod history;
mod jobs;
mod ledger;
mod letters;
mod life;
mod list;
mod locked;
mod memos;
mod opening;
mod outbox;
mod outputs;
mod parking;
mod pause;
mod prerequisites;
mod progress;
mod resubmit;
mod retention;
mod rounds;
mod scheduling;
mod shards;
mod splits;
mod tokens;
mod tolerance;
mod tree;
mod uploads;
