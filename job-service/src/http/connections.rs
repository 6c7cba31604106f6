//! Accepts connections, and serves the requests that arrive on them.
//!
//! What must stay true:
//! - The number of connections is bounded ([`Places`]): at the bound, one that waits for its client
//!   gives way to a new one. It waits while it has sent no request or half of one, and while it
//!   does not read its response.
//! - Before a response is sent, the body of its request is read to the end, or the response says
//!   that the connection closes. Otherwise the client sends its next request into nothing.
//! - The health check and the metrics are answered even if every connection is at work. A few
//!   further connections exist for them; any other request on these gets 503.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
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
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::http::error::ApiError;
use crate::http::places::{Client, GaveWay, Patience, Place, Places};
use crate::options::Limits;

/// The number of further connections that serve the health check when all others are at work.
const SPARE: usize = 32;
/// How long connections may keep the service waiting when there is none left. A response may be
/// slow for a while.
const PATIENCE: Patience = Patience {
    receiving: Duration::ZERO,
    sending: Duration::from_secs(30),
};
/// The size from which on the head of a request is refused, in bytes. One that arrives in one piece
/// may be up to twice as large.
const MAX_HEAD: usize = 64 * 1024;
/// How long to wait after an error of the listener that will not go away by itself.
const PAUSE: Duration = Duration::from_secs(1);
/// The most bytes that are read of the body of a request that needs none of it, and how long that
/// may take.
const MAX_LEFT: u64 = 256 * 1024;
const LEFT_TIME: Duration = Duration::from_secs(1);
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
            let (socket, peer) = match accepted {
                Ok((socket, address)) => (socket, Peer(address.ip().to_canonical())),
                Err(error) => {
                    self.connections.recover_from(&error).await;
                    continue;
                }
            };
            send_at_once(&socket);
            // Without a free place the socket is closed.
            if let Some(connection) = self.connections.admit(peer) {
                let (router, head_time) = (self.router.clone(), self.head_time);
                let stop = stop.clone();
                self.tracker.spawn(async move {
                    serve_connection(socket, &connection, router, head_time, &stop).await;
                });
            }
        }
    }
}

/// Lets the system send what is written without waiting for more. Otherwise the end of a response
/// that is written in pieces waits until the client has acknowledged its beginning, which takes
/// clients 40 ms.
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
        () = connection.client.gave_way() => return,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                served = serving => served,
                () = connection.client.gave_way() => return,
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
    connection.client.begin()?;
    let left = Left::default();
    let body = |body| {
        let (connection, left) = (Arc::clone(&connection), Arc::clone(&left));
        let body = Some(body);
        Body::new(Received {
            body,
            connection,
            left,
        })
    };
    let mut request = request.map(body);
    request.extensions_mut().insert(connection.client.clone());
    request.extensions_mut().insert(connection.peer);
    if connection.spare {
        request.extensions_mut().insert(Spare);
    }
    let response = router.oneshot(request).await;
    let mut response = response.unwrap_or_else(|impossible: Infallible| match impossible {});
    let left = left.lock().take();
    let is_read = match left {
        Some(left) => read_rest(left, &connection).await,
        None => true,
    };
    if connection.spare || !is_read {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    connection.client.sends(0);
    Ok(response.map(|body| Body::new(Sent { body, connection })))
}

/// Reads what is left of the body of a request, if that is short. Returns whether it was read.
async fn read_rest(body: Incoming, connection: &Arc<Connection>) -> bool {
    if body.size_hint().lower() > MAX_LEFT {
        return false;
    }
    let mut rest = Limited::new(
        Received {
            body: Some(body),
            connection: Arc::clone(connection),
            left: Left::default(),
        },
        usize::try_from(MAX_LEFT).unwrap_or(usize::MAX),
    );
    let read = async {
        while let Some(frame) = rest.frame().await {
            frame?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    matches!(timeout(LEFT_TIME, read).await, Ok(Ok(())))
}

/// Whence a request comes: from a client, or from the proxy in front of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// Marks the requests of a spare connection.
#[derive(Debug, Clone, Copy)]
struct Spare;

/// The open connections.
struct Connections {
    regular: Arc<Places>,
    spare: Arc<Places>,
}

/// When the server stops waiting for open requests, their connections are closed.
impl Drop for Connections {
    fn drop(&mut self) {
        self.regular.close();
        self.spare.close();
    }
}

impl Connections {
    fn new(limit: usize) -> Self {
        Self {
            regular: Places::new(limit, PATIENCE),
            spare: Places::new(SPARE, PATIENCE),
        }
    }

    /// Returns a new connection, or `None` if all places are taken by connections at work.
    fn admit(&self, peer: Peer) -> Option<Arc<Connection>> {
        let client = Client::default();
        let regular = self.regular.take(&client).map(|place| (place, false));
        let taken = regular.or_else(|| Some((self.spare.take(&client)?, true)));
        taken.map(|(place, spare)| {
            Arc::new(Connection {
                peer,
                spare,
                client,
                _place: place,
            })
        })
    }

    /// Handles an error of the listener. If the process has no more file descriptors, a waiting
    /// connection gives way.
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

/// A connection. Its place is free once it is dropped.
struct Connection {
    peer: Peer,
    spare: bool,
    client: Client,
    _place: Place,
}

/// The body of a request. While the service waits for more of it, the connection waits for its
/// client.
struct Received {
    body: Option<Incoming>,
    connection: Arc<Connection>,
    left: Left,
}

/// The body of a request, once it was dropped before its end.
type Left = Arc<Mutex<Option<Incoming>>>;

impl Drop for Received {
    fn drop(&mut self) {
        let body = self.body.take();
        *self.left.lock() = body.filter(|body| !body.is_end_stream());
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(context);
        match &frame {
            Poll::Pending => self.connection.client.receives(),
            Poll::Ready(frame) => self.connection.client.received(length_of(frame.as_ref())),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, HttpBody::size_hint)
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
        self.connection.client.sent();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(frame) = &frame {
            self.connection.client.sends(length_of(frame.as_ref()));
        }
        frame
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
        self.connection.client.ends();
    }
}

fn length_of<E>(frame: Option<&Result<Frame<Bytes>, E>>) -> usize {
    let data = frame.and_then(|frame| frame.as_ref().ok()?.data_ref());
    data.map_or(0, Bytes::len)
}
