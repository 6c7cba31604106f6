//! System stories: the whole product, seen from outside, through HTTP and the pipes of the broker.
//!
//! Each story is a function of a [`Place`] and takes place four times: with outputs that travel directly and with outputs that
//! travel through the tracking worker, without servers and on `PostgreSQL` and `RabbitMQ`. `stories!` makes a test of each, e.g.
//! `counting::a_job_of_many_items_is_counted_exactly::reroute_servers`.
//!
//! What must stay true:
//! - **A story shares nothing by name**: every pipe and partition is its own, so that all run beside each other.
//! - **Nothing sleeps and nothing is tried again.** A story waits for what it can see ([`harness::wait_for`]), and holds items
//!   back by a gate where it needs a job in the middle.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

/// Makes four tests of each story, named after where and by which route it takes place.
macro_rules! stories {
    ($($story:ident),+ $(,)?) => {
        $(mod $story {
            use framework::config::Route;

            use crate::place::{Place, Servers};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn direct_embedded() {
                super::$story(Place::new(Route::Direct, Servers::None).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn reroute_embedded() {
                super::$story(Place::new(Route::Reroute, Servers::None).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn direct_servers() {
                super::$story(Place::new(Route::Direct, Servers::Real).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn reroute_servers() {
                super::$story(Place::new(Route::Reroute, Servers::Real).await).await;
            }
        })+
    };
}

mod chains;
mod counting;
mod dependents;
mod endings;
mod files;
mod flushes;
mod input;
mod pausing;
mod place;
mod restarts;
mod suspects;
mod tasks;
mod wire_parity;
mod workers;
