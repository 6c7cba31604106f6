//! The thread of a disk: what blocks runs there, one after the other.
//!
//! It is always the same thread. The allocator keeps for each thread some of what it has freed, and
//! tokio's threads for what blocks take turns.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;

use tokio::sync::oneshot;

/// A thread, which ends when all of these are dropped and its work is done.
#[derive(Debug, Clone)]
pub struct Thread(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Thread {
    pub fn start() -> io::Result<Self> {
        let (sender, work) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::Builder::new().name("broker-disk".to_owned());
        thread.spawn(move || work.iter().for_each(|run| run()))?;
        Ok(Self(sender))
    }

    /// Runs this on the thread, also if nobody waits for it. It begins at once if the thread does
    /// nothing else.
    pub fn run<T, F>(&self, run: F) -> impl Future<Output = T> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (reply, done) = oneshot::channel();
        let run = move || drop(reply.send(catch_unwind(AssertUnwindSafe(run))));
        drop(self.0.send(Box::new(run)));
        async move {
            match done.await {
                Ok(Ok(done)) => done,
                Ok(Err(panic)) => resume_unwind(panic),
                // It catches panics, and there was a sender.
                Err(_) => unreachable!("the thread of the disk has ended"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn all_runs_on_one_thread_also_after_a_panic() {
        let thread = Thread::start().unwrap();
        let first = thread.run(|| current().id()).await;
        let panics = thread.run(|| panic!("no room"));
        assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
        drop(thread.run(|| ()));
        let second: ThreadId = thread.clone().run(|| current().id()).await;
        assert_eq!(first, second);
        assert_ne!(first, current().id());
    }
}
