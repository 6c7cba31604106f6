//! The operations on jobs: create, read, list, cancel, delete, pause and resume.
//!
//! Those that change a job run a transaction under its lock; the status itself is changed in
//! [`transition`](crate::transition). Reads run without a transaction: they take no locks and write nothing.

mod bulk;
mod cancel;
mod create;
mod delete;
pub(crate) mod failures;
mod pause;
mod progress;
mod read;
mod task;

pub(crate) use delete::delete_locked;
pub use task::TaskAnswer;
