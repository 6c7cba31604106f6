//! What is known about jobs and their tasks, kept in PostgreSQL, SQLite or memory.
//!
//! The only crate that spells SQL. It hides which database there is, the tables of each job's tasks, locks, notifications
//! and the outbox behind operations of the domain. Each operation is written once (`jobs`, `record`, `outbox`, `sweep`)
//! over the small steps of a transaction (`db`), which three databases implement. What reports mean is pure: [`ledger`]
//! and `state`.
//!
//! What must stay true:
//! - Reads take no locks and write nothing.
//! - Whoever writes a job's ledger, cancels or deletes it, holds the lock of its row in `job`.
//! - Every change of a job's status is one function, one transaction, one row of history.
//! - What must reach the broker is written in the transaction that causes it.

mod db;
mod dependents;
mod error;
mod flush;
mod job_row;
mod jobs;
mod ledger;
mod model;
mod outbox;
mod parking;
mod prerequisites;
mod query;
mod retention;
mod store;
mod sweep;
mod transition;

pub use db::memory::FaultPoint;
pub use error::{Availability, StoreError};
pub use model::{
    Cancellation, CatalogueSize, Change, Creation, EventKind, Header, Headers, Incarnation,
    JobRequest, OutboxMessage, ParkOutcome, ParkedTask, Prerequisite, Recorded, Refusal,
    StartCondition, TaskTableSize, TrackingEvent, Transition,
};
pub use outbox::Claim;
pub use query::filter::{Comparison, Filter, Pattern, TextField, TextTest};
pub use query::{JobQuery, Sort, SortBy};
pub use retention::{KeptUntil, span};
pub use store::{Store, StoreOptions, masked};
pub use sweep::Swept;
