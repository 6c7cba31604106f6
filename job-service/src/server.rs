//! Accepts connections, and serves the requests that arrive on them.
//!
//! What must stay true:
//! - The number of connections is bounded, and nobody keeps others out by doing nothing: at the bound, a connection that waits
//!   for its client gives way to a new one, the longest wait first. It waits while it has sent no request or half of one, and
//!   while it does not read its response.
//! - A connection never gives way while the service works on its request.
//! - The health check and the metrics are answered even if every connection is at work. A few further connections exist
//!   for them; any other request on these gets 503.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use framework::health::Health;
use framework::supervision::supervise;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::error::ApiError;
use crate::options::Limits;

/// The number of further connections that serve the health check when all others are at work.
const SPARE: usize = 32;
/// A response that has not moved for so long waits for its client. An event stream moves every 15 s.
const STALLED: Duration = Duration::from_secs(30);
/// The size from which on the head of a request is refused, in bytes. One that arrives in one piece may be up to twice as large.
const MAX_HEAD: usize = 64 * 1024;
/// How long to wait after an error of the listener that will not go away by itself.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a connection that gives way takes to release its socket, at the most.
const RELEASE: Duration = Duration::from_millis(10);
/// The paths of the health check and of the metrics.
const OBSERVED: [&str; 2] = ["/health-check", "/metrics"];

/// Serves requests until `stop` is cancelled, and then until the open requests are done.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &Limits,
    health: &Health,
    stop: &CancellationToken,
) {
    let server = Server {
        connections: Connections::new(limits.connections),
        tracker: TaskTracker::new(),
        router,
        head_time: limits.head_time,
    };
    let accept = || server.accept(&listener, stop);
    supervise(health, "job-service: connections", stop, accept).await;
    drop(listener);
    server.tracker.close();
    server.tracker.wait().await;
}

struct Server {
    connections: Connections,
    tracker: TaskTracker,
    router: Router,
    head_time: Duration,
}

impl Server {
    /// Accepts connections until `stop` is cancelled.
    async fn accept(&self, listener: &TcpListener, stop: &CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    self.connections.recover_from(&error).await;
                    continue;
                }
            };
            send_at_once(&socket);
            // Without a free place the socket is closed.
            if let Some(connection) = self.connections.admit() {
                let (router, head_time) = (self.router.clone(), self.head_time);
                let stop = stop.clone();
                self.tracker.spawn(async move {
                    serve_connection(socket, &connection, router, head_time, &stop).await;
                });
            }
        }
    }
}

/// Lets the system send what is written without waiting for more. Otherwise the end of a response that is written in pieces waits until
/// the client has acknowledged its beginning, which takes clients 40 ms.
fn send_at_once(socket: &TcpStream) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "a connection stays slow");
    }
}

/// The layer that refuses everything but the health check and the metrics on a spare connection.
pub async fn refuse_on_spare_connections(request: Request, next: Next) -> Response {
    let spare = request.extensions().get::<Spare>().is_some();
    if spare && !OBSERVED.contains(&request.uri().path()) {
        return ApiError::Busy("as many connections as it may have").into_response();
    }
    next.run(request).await
}

async fn serve_connection(
    socket: TcpStream,
    connection: &Arc<Connection>,
    router: Router,
    head_time: Duration,
    stop: &CancellationToken,
) {
    let service = service_fn(|request| respond(request, Arc::clone(connection), router.clone()));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(socket), service);
    let mut serving = pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = connection.gave_way.cancelled() => return,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                served = serving => served,
                () = connection.gave_way.cancelled() => return,
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Handles one request of a connection.
async fn respond(
    request: Request<Incoming>,
    connection: Arc<Connection>,
    router: Router,
) -> Result<Response, GaveWay> {
    connection.begin()?;
    let body = |body| {
        let connection = Arc::clone(&connection);
        Body::new(Received { body, connection })
    };
    let mut request = request.map(body);
    if connection.spare {
        request.extensions_mut().insert(Spare);
    }
    let response = router.oneshot(request).await;
    let mut response = response.unwrap_or_else(|impossible: Infallible| match impossible {});
    if connection.spare {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    connection.sent_some();
    Ok(response.map(|body| Body::new(Sent { body, connection })))
}

/// Marks the requests of a spare connection.
#[derive(Debug, Clone, Copy)]
struct Spare;

/// The error of a request whose connection has given way. The client sees a closed connection and no effect.
#[derive(Debug, thiserror::Error)]
#[error("the connection gave way to a new one")]
struct GaveWay;

/// The open connections.
struct Connections {
    regular: Arc<Places>,
    spare: Arc<Places>,
}

/// When the server stops waiting for open requests, their connections are closed.
impl Drop for Connections {
    fn drop(&mut self) {
        for places in [&self.regular, &self.spare] {
            for state in locked(&places.open).connections.values() {
                state.gave_way.cancel();
            }
        }
    }
}

impl Connections {
    fn new(limit: usize) -> Self {
        let places = |limit, spare| {
            Arc::new(Places {
                limit,
                spare,
                open: Mutex::default(),
            })
        };
        Self {
            regular: places(limit, false),
            spare: places(SPARE, true),
        }
    }

    /// Returns a new connection, or `None` if all places are taken by connections at work.
    fn admit(&self) -> Option<Arc<Connection>> {
        self.regular.admit().or_else(|| self.spare.admit())
    }

    /// Handles an error of the listener. If the process has no more file descriptors, a waiting connection gives way.
    async fn recover_from(&self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if matches!(
            error.kind(),
            ConnectionAborted | ConnectionRefused | ConnectionReset
        ) {
            return;
        }
        if self.regular.give_way() {
            tokio::time::sleep(RELEASE).await;
        } else {
            tracing::error!(%error, "cannot accept connections");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// A bounded number of connections.
struct Places {
    limit: usize,
    spare: bool,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Arc<State>>,
}

impl Places {
    fn admit(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let full = locked(&self.open).connections.len() >= self.limit;
        if full && !self.give_way() {
            return None;
        }
        let state = Arc::new(State::default());
        let mut open = locked(&self.open);
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, Arc::clone(&state));
        Some(Arc::new(Connection {
            number,
            spare: self.spare,
            gave_way: state.gave_way.clone(),
            state,
            places: Arc::clone(self),
        }))
    }

    /// Closes the connection that has waited longest for its client. Returns false if none waits.
    fn give_way(&self) -> bool {
        let mut open = locked(&self.open);
        loop {
            let waiting = open.connections.iter();
            let longest = waiting
                .filter_map(|(number, state)| Some((state.waiting_since()?, *number)))
                .min();
            let Some((_, number)) = longest else {
                return false;
            };
            // Its request may have arrived in this moment.
            if open.connections[&number].close_if_waiting() {
                open.connections.remove(&number);
                return true;
            }
        }
    }
}

/// A connection. Its place is free once it is dropped.
struct Connection {
    number: u64,
    spare: bool,
    state: Arc<State>,
    gave_way: CancellationToken,
    places: Arc<Places>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        locked(&self.places.open).connections.remove(&self.number);
    }
}

impl Connection {
    /// Begins to work on a request.
    fn begin(&self) -> Result<(), GaveWay> {
        let mut phase = locked(&self.state.phase);
        if matches!(*phase, Phase::Closed) {
            return Err(GaveWay);
        }
        *phase = Phase::Working;
        Ok(())
    }

    /// Records whether the service waits for more of a body.
    fn reads_body(&self, waits: bool) {
        self.state.enter(if waits {
            Phase::Waiting(Instant::now())
        } else {
            Phase::Working
        });
    }

    fn sent_some(&self) {
        self.state.enter(Phase::Sending(Instant::now()));
    }

    fn sent_all(&self) {
        self.state.enter(Phase::Waiting(Instant::now()));
    }
}

/// What a connection is doing.
struct State {
    phase: Mutex<Phase>,
    gave_way: CancellationToken,
}

enum Phase {
    /// It waits for its client since that time.
    Waiting(Instant),
    /// The service works on a request.
    Working,
    /// It sends a response; its client took a part of it at that time.
    Sending(Instant),
    /// It has given way.
    Closed,
}

impl Default for State {
    fn default() -> Self {
        Self {
            phase: Mutex::new(Phase::Waiting(Instant::now())),
            gave_way: CancellationToken::new(),
        }
    }
}

impl State {
    fn enter(&self, next: Phase) {
        let mut phase = locked(&self.phase);
        if !matches!(*phase, Phase::Closed) {
            *phase = next;
        }
    }

    fn waiting_since(&self) -> Option<Instant> {
        locked(&self.phase).waiting_since()
    }

    fn close_if_waiting(&self) -> bool {
        let mut phase = locked(&self.phase);
        let waits = phase.waiting_since().is_some();
        if waits {
            *phase = Phase::Closed;
            self.gave_way.cancel();
        }
        waits
    }
}

impl Phase {
    fn waiting_since(&self) -> Option<Instant> {
        match self {
            Self::Waiting(since) => Some(*since),
            Self::Sending(since) if since.elapsed() >= STALLED => Some(*since),
            Self::Working | Self::Sending(_) | Self::Closed => None,
        }
    }
}

/// The body of a request. While the service waits for more of it, the connection waits for its client.
struct Received {
    body: Incoming,
    connection: Arc<Connection>,
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.connection.reads_body(frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response. The server asks for more of it whenever the client has taken some.
struct Sent {
    body: Body,
    connection: Arc<Connection>,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.connection.sent_some();
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.connection.sent_all();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
