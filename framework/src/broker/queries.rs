//! Questions to those who take messages from a pipe, and their answers. Neither is stored: who asks
//! gets an answer within a time, or none.
//!
//! Questions never travel in the pipe itself, because a worker of another version, or of another
//! make, would take one for a message that it does not understand. Only those receive any who say
//! that they answer some ([`Broker::queries`](super::Broker::queries)).

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// The most questions that one who answers holds at the same time.
pub(crate) const AT_ONCE: u16 = 16;

/// A question. Dropping it says that there is no answer, so that nobody waits for one.
#[derive(Debug)]
pub struct Query {
    /// The question.
    pub body: Bytes,
    until: Instant,
    reply: oneshot::Sender<Bytes>,
}

/// The questions about a pipe, as one of those receives them who answer. Ends when the broker is
/// closed.
#[derive(Debug)]
pub struct Queries(mpsc::Receiver<Query>);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Nobody receives questions about the pipe.
    #[error("no running worker of the pipe '{0}' answers questions")]
    Nobody(String),
    /// The time was over.
    #[error("no worker of the pipe '{0}' answered within {1:.1?}")]
    InTime(String, Duration),
    /// Who was asked has no answer, or ended meanwhile.
    #[error("a worker of the pipe '{0}' was asked and gave no answer")]
    NoAnswer(String),
    /// The broker cannot be asked now.
    #[error("the broker does not pass questions on: {0}")]
    Broker(String),
}

impl Query {
    /// Returns a question to which somebody waits for an answer for this time, and the answer.
    pub(crate) fn new(body: Bytes, limit: Duration) -> (Self, oneshot::Receiver<Bytes>) {
        let (reply, answer) = oneshot::channel();
        let until = Instant::now() + limit;
        (Self { body, until, reply }, answer)
    }

    /// Answers.
    pub fn answer(self, body: Bytes) {
        // The one who asked may have gone.
        let _ = self.reply.send(body);
    }

    /// Returns until when somebody waits for the answer.
    pub const fn until(&self) -> Instant {
        self.until
    }

    /// Waits until nobody waits for the answer any more.
    pub async fn abandoned(&mut self) {
        let until = self.until;
        tokio::select! {
            () = self.reply.closed() => {}
            () = sleep_until(until) => {}
        }
    }
}

impl Queries {
    pub(crate) const fn new(queries: mpsc::Receiver<Query>) -> Self {
        Self(queries)
    }

    /// Returns the next question.
    pub async fn next(&mut self) -> Option<Query> {
        self.0.recv().await
    }
}

/// Questions within one process: all, if the broker has no server, else those that need not travel.
/// Clones share those who answer.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalQueries(Arc<Mutex<Answerers>>);

/// Those who answer, by pipe. Whose turn is next comes first.
pub(super) type Answerers = BTreeMap<String, VecDeque<mpsc::Sender<Query>>>;

impl LocalQueries {
    pub fn listen(&self, pipe: &str) -> Queries {
        let (queries, received) = mpsc::channel(usize::from(AT_ONCE));
        self.add(pipe, queries);
        Queries::new(received)
    }

    pub(super) fn add(&self, pipe: &str, answerer: mpsc::Sender<Query>) {
        let mut answerers = self.lock();
        let of_pipe = answerers.entry(pipe.to_owned()).or_default();
        of_pipe.push_back(answerer);
    }

    pub async fn ask(&self, pipe: &str, body: Bytes, limit: Duration) -> Result<Bytes, Unanswered> {
        let (query, answer) = Query::new(body, limit);
        let until = query.until();
        let asked = async {
            let turn = self.turn(pipe)?;
            // Waits while who is asked has as many questions as it takes.
            let sent = turn.send(query).await;
            drop(turn);
            sent.map_err(|_| Unanswered::NoAnswer(pipe.to_owned()))?;
            answer
                .await
                .map_err(|_| Unanswered::NoAnswer(pipe.to_owned()))
        };
        match timeout(limit, asked).await {
            // Who was asked has given up because nobody waits any more.
            Ok(Err(_)) | Err(_) if Instant::now() >= until => {
                Err(Unanswered::InTime(pipe.to_owned(), limit))
            }
            Ok(answered) => answered,
            Err(_) => Err(Unanswered::InTime(pipe.to_owned(), limit)),
        }
    }

    /// Returns whom to ask.
    pub(super) fn turn(&self, pipe: &str) -> Result<mpsc::Sender<Query>, Unanswered> {
        let mut all = self.lock();
        if let Some(answerers) = all.get_mut(pipe) {
            answerers.retain(|answerer| !answerer.is_closed());
            if let Some(next) = answerers.pop_front() {
                answerers.push_back(next.clone());
                return Ok(next);
            }
            all.remove(pipe);
        }
        Err(Unanswered::Nobody(pipe.to_owned()))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Answerers> {
        self.0.lock()
    }
}
