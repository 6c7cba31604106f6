//! Bounds the connections of the endpoint: at the bound, the oldest gives way to a new one, so
//! nobody keeps others out by doing nothing.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// The largest number of connections.
const CONNECTIONS: usize = 64;
/// How long to wait after an error of the listener that will not go away by itself.
const PAUSE: Duration = Duration::from_secs(1);

/// Accepts a bounded number of connections.
pub(super) struct Bounded {
    listener: Arc<TcpListener>,
    /// Each is cancelled when its connection gives way or has ended. The oldest is the first.
    open: VecDeque<CancellationToken>,
}

impl Bounded {
    pub fn new(listener: Arc<TcpListener>) -> Self {
        Self {
            listener,
            open: VecDeque::new(),
        }
    }

    fn admit(&mut self, socket: TcpStream) -> Connection {
        self.open.retain(|connection| !connection.is_cancelled());
        if self.open.len() >= CONNECTIONS {
            self.give_way();
        }
        let token = CancellationToken::new();
        self.open.push_back(token.clone());
        Connection {
            socket,
            gave_way: Box::pin(token.clone().cancelled_owned()),
            _ended: token.drop_guard(),
        }
    }

    fn give_way(&mut self) {
        if let Some(oldest) = self.open.pop_front() {
            oldest.cancel();
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((socket, address)) => return (self.admit(socket), address),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                    ) => {}
                Err(error) => {
                    tracing::warn!(%error, "the health endpoint cannot accept connections");
                    // The process may have no more file descriptors.
                    self.give_way();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that can be made to give way.
pub(super) struct Connection {
    socket: TcpStream,
    gave_way: Pin<Box<WaitForCancellationFutureOwned>>,
    _ended: DropGuard,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.gave_way.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.gave_way.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn connections_that_do_nothing_keep_nobody_out() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new().route("/", axum::routing::get(|| async { "here" }));
        let client = async {
            let mut idle = Vec::new();
            for _ in 0..=CONNECTIONS {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            let mut asking = TcpStream::connect(address).await.unwrap();
            let request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            asking.write_all(request).await.unwrap();
            let mut response = String::new();
            asking.read_to_string(&mut response).await.unwrap();
            assert!(response.ends_with("here"), "{response}");
            // The two oldest have given way.
            for gone in &mut idle[..2] {
                assert_eq!(gone.read(&mut [0]).await.unwrap(), 0);
            }
        };
        let served = async { axum::serve(Bounded::new(listener), router).await };
        let both = async {
            tokio::select! {
                _ = served => {}
                () = client => {}
            }
        };
        harness::in_time("the endpoint", both).await;
    }
}
