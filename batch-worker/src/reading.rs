//! Reads what is outside of a definition: files, folders and servers, each of which may be slow or
//! hang.
//!
//! What must stay true:
//! - What reads has slots of its own. What does not read never waits for one.
//! - A slot is free again when the last thread that reads in it has ended, whether or not anybody
//!   still waits for it. So a read that cannot be interrupted keeps its own slot, and that of
//!   nobody else.
//! - A thread that reads looks again and again whether somebody still waits for it, and waits for a
//!   server only meanwhile.
//! - A server that is too slow, or breaks off too often, fails the split ([`Flow`]).

mod flow;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) use self::flow::Flow;
pub use self::flow::SourceLimits;
use crate::SplitError;

/// How long a question waits for a slot. The job service that asks waits for five seconds or more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The slots of what reads. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Readers {
    slots: Arc<Semaphore>,
    limits: SourceLimits,
}

/// Reads for one split, check or explanation. Clones belong to the same, and keep its slot.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Cancelled when nobody waits any more.
    end: CancellationToken,
    _slot: Option<Arc<OwnedSemaphorePermit>>,
    limits: SourceLimits,
}

impl Readers {
    pub fn new(slots: usize, limits: SourceLimits) -> Self {
        let slots = Arc::new(Semaphore::new(slots));
        Self { slots, limits }
    }

    /// Returns other slots, so many, with the same limits.
    pub fn beside(&self, slots: usize) -> Self {
        Self::new(slots, self.limits)
    }

    /// Returns a reading in a slot; `None` if all are taken.
    pub fn begin(&self) -> Option<Reading> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(self.reading(Some(slot)))
    }

    /// Does the same for a question, which waits for a slot, but not for long.
    pub async fn begin_soon(&self) -> Result<Reading, SplitError> {
        let slot = Arc::clone(&self.slots).acquire_owned();
        match timeout(PATIENCE, slot).await {
            Ok(slot) => Ok(self.reading(Some(slot?))),
            Err(_) => Err(SplitError::Temporary(
                "the batch worker reads for other questions now".into(),
            )),
        }
    }

    /// Returns a reading for what needs no slot.
    pub fn without_slot(&self) -> Reading {
        self.reading(None)
    }

    fn reading(&self, slot: Option<OwnedSemaphorePermit>) -> Reading {
        Reading {
            end: CancellationToken::new(),
            _slot: slot.map(Arc::new),
            limits: self.limits,
        }
    }
}

impl Reading {
    /// Fails if nobody waits any more.
    ///
    /// # Errors
    /// Returns an error for nobody.
    pub fn check(&self) -> Result<(), SplitError> {
        if self.end.is_cancelled() {
            return Err(nobody_waits());
        }
        Ok(())
    }

    /// Runs work that blocks on a thread of its own, which keeps the slot until it ends. If the
    /// future is dropped, [`check`](Self::check) of the reading that the work is given fails from
    /// then on.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, SplitError> + Send + 'static,
    ) -> Result<T, SplitError> {
        let reading = Self {
            end: self.end.child_token(),
            ..self.clone()
        };
        let _ends_with_this = reading.end.clone().drop_guard();
        spawn_blocking(move || work(&reading)).await?
    }

    /// Blocks the thread until the work is done, or nobody waits any more.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, SplitError> {
        let done = Handle::current().block_on(self.end.run_until_cancelled(work));
        done.ok_or_else(nobody_waits)
    }
}

fn nobody_waits() -> SplitError {
    SplitError::Temporary("nobody waits for it".into())
}

/// An error in a reader that is no trouble of the moment: reading again would find the same.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Returns an error of a split as one of a reader. [`error_of`] gives it back.
pub(crate) fn error_for_reader(error: SplitError) -> io::Error {
    match error {
        SplitError::Definition(text) | SplitError::Missing(text) => io::Error::other(Refused(text)),
        SplitError::Temporary(error) => io::Error::other(error),
    }
}

/// Returns what an error of a reader means for the split.
pub(crate) fn error_of(error: io::Error) -> SplitError {
    match error.get_ref().and_then(|it| it.downcast_ref::<Refused>()) {
        Some(refused) => SplitError::Definition(refused.0.clone()),
        None => SplitError::Temporary(error.into()),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
impl Reading {
    pub(crate) fn with(limits: SourceLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    pub(crate) fn end(&self) {
        self.end.cancel();
    }
}
