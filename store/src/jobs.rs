//! The operations on jobs: create, read, list, cancel, delete, pause, resume, adjust and
//! retry.
//!
//! Those that change a job run a transaction under its lock; the status itself is changed in
//! [`transition`](crate::transition). Reads run without a transaction: they take no locks and write
//! nothing.

mod adjust;
mod bulk;
mod cancel;
mod create;
mod delete;
pub(crate) mod failures;
mod history;
mod pause;
mod progress;
mod read;
mod retry;
mod split;
mod task;

pub(crate) use create::Creations;
pub(crate) use delete::{delete_locked, deletion};
pub(crate) use progress::Progress;
pub use read::{Detail, ListedJob};
pub use retry::{RetriedBatch, RetryCursor};
pub use task::TaskAnswer;
pub(crate) use task::remark_of_done;
