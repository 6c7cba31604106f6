//! System stories: the whole product from outside, through HTTP and the pipes of the broker.
//!
//! Each story is a function of a [`Fixture`](fixture::Fixture) and runs four times: with outputs
//! that travel directly and with outputs that travel through the tracking worker, each without
//! servers and on `PostgreSQL` and `RabbitMQ`. `stories!` makes a test of each, e.g.
//! `counting::a_job_of_many_items_is_counted_exactly::reroute_servers`.
//!
//! A story shows that the parts work together. A rule that one part can show alone is tested in
//! that part.
//!
//! What must stay true:
//! - **A story shares nothing by name.** Each has its own pipes and partition, so all stories run
//!   side by side.
//! - **A story neither sleeps nor retries.** It waits for what it can see ([`harness::wait_for`]),
//!   and holds items back with a gate where it needs a job in the middle.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

/// Makes four tests of each story, named after the route and the servers.
macro_rules! stories {
    ($($story:ident),+ $(,)?) => {
        $(mod $story {
            use framework::config::Route;

            use crate::fixture::{Fixture, Servers};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn direct_embedded() {
                super::$story(Fixture::new(Route::Direct, Servers::None).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn reroute_embedded() {
                super::$story(Fixture::new(Route::Reroute, Servers::None).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn direct_servers() {
                super::$story(Fixture::new(Route::Direct, Servers::Real).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn reroute_servers() {
                super::$story(Fixture::new(Route::Reroute, Servers::Real).await).await;
            }
        })+
    };
}

mod batch_results;
mod blocking;
mod counting;
mod crashing;
mod endings;
mod examples;
mod files;
mod fixture;
mod flushes;
mod input;
mod letters;
mod nesting;
mod outputs;
mod panics;
mod pausing;
mod reading;
mod restarts;
mod results;
mod retrying;
mod shards;
mod workers;
