//! Answers questions of job services about tasks that do not exist yet, such as what a batch would
//! be split into.
//!
//! What must stay true: a question costs a worker little of what it does besides. Few are answered
//! at the same time, one whose asker has gone is dropped, and a panic of the author's code ends the
//! answer and nothing else.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use contract::{ReservedPipe, ReservedPipes};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::queries::AT_ONCE;
use crate::broker::{Broker, Query};
use crate::health::Health;
use crate::supervision::run_or_tell;

/// How long to wait before questions are received again.
const PAUSE: Duration = Duration::from_secs(1);

/// An answer that is being made.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send + 'a>>;

/// Answers questions about tasks.
pub trait Answerer: Send + Sync + 'static {
    /// Answers a question; `None` means that there is no answer. The future is dropped when nobody
    /// waits for the answer any more.
    fn answer<'a>(&'a self, question: &'a [u8], about: Asked<'a>) -> Answering<'a>;
}

/// What is known of a question.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Until when somebody waits for the answer.
    pub until: Instant,
    reserved: &'a ReservedPipes,
}

impl Asked<'_> {
    /// Checks that a task may address subtasks to a pipe.
    ///
    /// # Errors
    /// Returns an error with the purpose of the pipe if it is reserved.
    pub fn check_pipe(&self, pipe: &str) -> Result<(), ReservedPipe> {
        self.reserved.check(pipe, None)
    }
}

/// The questions about the input pipe of a worker.
pub(crate) struct Questions {
    pub broker: Arc<dyn Broker>,
    pub input: String,
    pub answerer: Arc<dyn Answerer>,
    pub reserved: Arc<ReservedPipes>,
    pub health: Health,
    /// Names an answer that has panicked.
    pub name: Arc<str>,
}

impl Questions {
    /// Answers questions until `stop` is cancelled.
    pub async fn run(&self, stop: &CancellationToken) {
        let (tasks, slots) = (TaskTracker::new(), Semaphore::new(usize::from(AT_ONCE)));
        let slots = Arc::new(slots);
        while !stop.is_cancelled() {
            if let Ok(mut queries) = self.broker.queries(&self.input).await {
                while let Some(Some(query)) = stop.run_until_cancelled(queries.next()).await {
                    let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                        return;
                    };
                    let (answering, stop) = (self.answer(query), stop.clone());
                    tasks.spawn(async move {
                        stop.run_until_cancelled(answering).await;
                        drop(slot);
                    });
                }
            }
            stop.run_until_cancelled(sleep(PAUSE)).await;
        }
        tasks.close();
        tasks.wait().await;
    }

    fn answer(&self, mut query: Query) -> impl Future<Output = ()> + Send + use<> {
        let (answerer, reserved) = (Arc::clone(&self.answerer), Arc::clone(&self.reserved));
        let (health, name) = (self.health.clone(), Arc::clone(&self.name));
        async move {
            let body = query.body.clone();
            let about = Asked {
                until: query.until(),
                reserved: &reserved,
            };
            let answer = answerer.answer(&body, about);
            let made = tokio::select! {
                made = run_or_tell(&health, &name, answer) => made.flatten(),
                () = query.abandoned() => None,
            };
            if let Some(made) = made {
                query.answer(made.into());
            }
        }
    }
}
