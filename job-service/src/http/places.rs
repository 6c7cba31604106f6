//! Bounded numbers of places: for connections, and for requests of a kind, such as uploads.
//!
//! What must stay true:
//! - Nobody keeps others out by doing nothing, or by being slow: when all places are taken, the
//!   client that keeps the service waiting longest gives way to a new one. Its connection is
//!   closed.
//! - A client never gives way while the service works on its request.
//!
//! How long a client keeps the service waiting counts from the last byte, less what it has sent or
//! taken faster than [`LEAST_SPEED`] before. So a client that sends a byte a second waits longer
//! and longer, and one whose network stands still for a moment does not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A client that sends or takes so many bytes in a second does not keep the service waiting.
const LEAST_SPEED: u32 = 16 * 1024;

/// A bounded number of places.
#[derive(Debug)]
pub struct Places {
    limit: usize,
    patience: Patience,
    taken: Mutex<Taken>,
}

/// How long clients may keep the service waiting before they give way.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For more of a request.
    pub receiving: Duration,
    /// Until they take more of a response.
    pub sending: Duration,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    clients: HashMap<u64, Client>,
}

/// A place that is taken. It is free once this is dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    all: Arc<Places>,
}

impl Places {
    pub fn new(limit: usize, patience: Patience) -> Arc<Self> {
        Arc::new(Self {
            limit,
            patience,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for a client. Returns `None` if all places are taken by clients that do not
    /// keep the service waiting.
    pub fn take(self: &Arc<Self>, client: &Client) -> Option<Place> {
        let full = self.locked().clients.len() >= self.limit;
        if full && !self.give_way() {
            return None;
        }
        let mut taken = self.locked();
        let number = taken.next;
        taken.next += 1;
        taken.clients.insert(number, client.clone());
        let all = Arc::clone(self);
        Some(Place { number, all })
    }

    /// Returns how many places are taken.
    pub fn taken(&self) -> usize {
        self.locked().clients.len()
    }

    /// Closes the connection of the client that keeps the service waiting longest. Returns false if
    /// none does.
    pub fn give_way(&self) -> bool {
        let mut taken = self.locked();
        loop {
            let waiting = taken.clients.iter();
            let longest = waiting
                .filter_map(|(number, client)| Some((client.slow_since(self.patience)?, *number)))
                .min();
            let Some((_, number)) = longest else {
                return false;
            };
            // Its bytes may have arrived in this moment.
            if taken.clients[&number].close_if_slow(self.patience) {
                taken.clients.remove(&number);
                return true;
            }
        }
    }

    /// Closes the connections of all clients.
    pub fn close(&self) {
        for client in self.locked().clients.values() {
            client.0.gave_way.cancel();
        }
    }

    fn locked(&self) -> MutexGuard<'_, Taken> {
        locked(&self.taken)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.locked().clients.remove(&self.number);
    }
}

/// The client of a connection. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Client(Arc<State>);

#[derive(Debug)]
struct State {
    course: Mutex<Course>,
    gave_way: CancellationToken,
}

/// How far a client is with its request.
#[derive(Debug)]
struct Course {
    phase: Phase,
    /// How long it has kept the service waiting in this request, before this phase.
    behind: Duration,
}

#[derive(Debug)]
enum Phase {
    /// The service waits for more of the request since that time.
    Receiving(Instant),
    /// The service works on the request.
    Working,
    /// The service waits since that time until the client takes so many bytes of the response.
    Sending(Instant, usize),
    /// The client has given way.
    Closed,
}

/// The error of a request whose client has given way. The client sees a closed connection and no
/// effect.
#[derive(Debug, thiserror::Error)]
#[error("the connection gave way to a new one")]
pub struct GaveWay;

impl Default for State {
    fn default() -> Self {
        Self {
            course: Mutex::new(Course {
                phase: Phase::Receiving(Instant::now()),
                behind: Duration::ZERO,
            }),
            gave_way: CancellationToken::new(),
        }
    }
}

impl Client {
    /// Returns the client of a request that the service makes itself, which it never waits for.
    pub fn of_service() -> Self {
        let client = Self::default();
        locked(&client.0.course).phase = Phase::Working;
        client
    }

    /// Waits until the client has given way.
    pub async fn gave_way(&self) {
        self.0.gave_way.cancelled().await;
    }

    /// Begins to work on a request.
    pub fn begin(&self) -> Result<(), GaveWay> {
        let mut course = locked(&self.0.course);
        if matches!(course.phase, Phase::Closed) {
            return Err(GaveWay);
        }
        *course = Course {
            phase: Phase::Working,
            behind: Duration::ZERO,
        };
        Ok(())
    }

    /// Records that the service waits for more of a request.
    pub fn receives(&self) {
        let mut course = locked(&self.0.course);
        // One that is asked again waits since it was asked first.
        if !matches!(course.phase, Phase::Receiving(_)) {
            let since = course.behind_now();
            course.enter(Phase::Receiving(since));
        }
    }

    /// Records that so many bytes of a request have arrived.
    pub fn received(&self, bytes: usize) {
        let mut course = locked(&self.0.course);
        if let Phase::Receiving(since) = course.phase {
            course.behind = since.elapsed();
        }
        course.catch_up(bytes);
        course.enter(Phase::Working);
    }

    /// Records that the service waits until the client takes so many bytes of a response.
    pub fn sends(&self, bytes: usize) {
        let mut course = locked(&self.0.course);
        let since = course.behind_now();
        course.enter(Phase::Sending(since, bytes));
    }

    /// Records that the client has taken what was sent.
    pub fn sent(&self) {
        let mut course = locked(&self.0.course);
        if let Phase::Sending(since, bytes) = course.phase {
            course.behind = since.elapsed();
            course.catch_up(bytes);
        }
        course.enter(Phase::Working);
    }

    /// Records that the service waits for the next request.
    pub fn ends(&self) {
        let mut course = locked(&self.0.course);
        course.behind = Duration::ZERO;
        course.enter(Phase::Receiving(Instant::now()));
    }

    fn slow_since(&self, patience: Patience) -> Option<Instant> {
        locked(&self.0.course).slow_since(patience)
    }

    fn close_if_slow(&self, patience: Patience) -> bool {
        let mut course = locked(&self.0.course);
        let is_slow = course.slow_since(patience).is_some();
        if is_slow {
            course.phase = Phase::Closed;
            self.0.gave_way.cancel();
        }
        is_slow
    }
}

impl Course {
    fn enter(&mut self, next: Phase) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = next;
        }
    }

    /// Counts bytes that have moved: at the least speed, they make up for this much waiting.
    fn catch_up(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let made_up = Duration::from_secs(1) * bytes / LEAST_SPEED;
        self.behind = self.behind.saturating_sub(made_up);
    }

    /// Returns since when a client that is so far behind keeps the service waiting.
    fn behind_now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.behind).unwrap_or(now)
    }

    fn slow_since(&self, patience: Patience) -> Option<Instant> {
        let (since, patience) = match self.phase {
            Phase::Receiving(since) => (since, patience.receiving),
            Phase::Sending(since, _) => (since, patience.sending),
            Phase::Working | Phase::Closed => return None,
        };
        (since.elapsed() >= patience).then_some(since)
    }
}

/// The client of the connection on which a request has arrived.
impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let client = parts.extensions.get::<Self>().cloned();
        Ok(client.unwrap_or_else(Self::of_service))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Patience = Patience {
        receiving: Duration::from_secs(10),
        sending: Duration::from_secs(10),
    };

    /// Returns clients that have sent, or taken, so many bytes a second for two minutes, and go on.
    async fn clients(receives: bool, speeds: [usize; 3]) -> [Client; 3] {
        let clients = [(); 3].map(|()| Client::default());
        let begin = || {
            for (client, bytes) in clients.iter().zip(speeds) {
                if receives {
                    client.receives();
                } else {
                    client.sends(bytes);
                }
            }
        };
        for client in &clients {
            client.begin().unwrap();
        }
        for _ in 0..120 {
            begin();
            advance(Duration::from_secs(1)).await;
            for (client, bytes) in clients.iter().zip(speeds) {
                if receives {
                    client.received(bytes);
                } else {
                    client.sent();
                }
            }
        }
        begin();
        clients
    }

    #[tokio::test(start_paused = true)]
    async fn slowest_client_gives_way_and_one_of_the_least_speed_does_not() {
        let least = LEAST_SPEED as usize;
        for receives in [true, false] {
            let places = Places::new(3, PATIENCE);
            let clients = clients(receives, [least, 1, least / 2]).await;
            let _taken: Vec<Place> = clients
                .iter()
                .map(|client| places.take(client).unwrap())
                .collect();
            let is_closed = |at: usize| clients[at].begin().is_err();
            let mut new = Vec::new();
            for slow in [1, 2] {
                new.push(places.take(&Client::default()).unwrap());
                assert!(clients[slow].0.gave_way.is_cancelled(), "{slow}");
            }
            assert!(places.take(&Client::default()).is_none());
            assert!(is_closed(1) && is_closed(2) && !is_closed(0));
            // A place is free once it is dropped.
            new.pop();
            assert!(places.take(&Client::default()).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_does_not_give_way_for_a_short_wait_or_while_the_service_works() {
        let places = Places::new(1, PATIENCE);
        let client = Client::default();
        client.begin().unwrap();
        let _place = places.take(&client).unwrap();
        let is_free = || places.take(&Client::default()).is_some();
        advance(Duration::from_mins(1)).await;
        assert!(!is_free(), "the service works");
        client.receives();
        advance(Duration::from_secs(9)).await;
        assert!(!is_free(), "the wait is short");
        // It has waited twice as long by now; between both, much has arrived.
        client.received(1 << 20);
        client.receives();
        advance(Duration::from_secs(9)).await;
        assert!(!is_free(), "the wait is short again");
        advance(Duration::from_secs(1)).await;
        assert!(is_free());
    }
}
