//! A connection whose socket we can shut down, and which is encrypted where the URL says so.
//!
//! The client library reads and writes on a thread of its own. The thread ends when the connection
//! is closed in order, or when the operating system reports that it is broken. A silent peer causes
//! neither: each attempt to connect to it, and each abandoned connection, would leave a thread and
//! a socket behind forever. So we keep a handle of each socket, and shut the socket down when the
//! connection is no longer used.
//!
//! What must stay true: with `amqps` nothing is written to the socket before the server's
//! certificate has been checked, except the greeting of TLS. The client library without a TLS
//! feature would ignore the scheme.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_util::io::{AsyncRead as FuturesRead, AsyncWrite as FuturesWrite};
use futures_util::{Stream, TryFutureExt as _};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// The sockets of one connection. Dropping this value shuts them down, which ends the connection
/// for both sides.
#[derive(Default)]
pub struct Sockets(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: Vec<StdTcpStream>,
    is_closed: bool,
}

impl Sockets {
    /// Connects. If the returned future is dropped halfway, dropping the `Sockets` still closes
    /// everything. `tls` is needed for the scheme `amqps`.
    pub async fn connect(
        &self,
        uri: AMQPUri,
        tls: Option<Arc<ClientConfig>>,
        properties: ConnectionProperties,
    ) -> lapin::Result<Connection> {
        let state = Arc::clone(&self.0);
        let tokio = Tokio::current();
        let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), TransportReactor(tokio)));
        let open = async move |uri: AMQPUri, _| {
            let transport = open(&state, &uri, tls.clone()).await?;
            Ok(AsyncTcpStream::Plain(transport.compat()))
        };
        Connection::connector(uri, runtime, open, properties).await
    }
}

/// Opens a socket and, for the scheme `amqps`, encrypts it.
async fn open(
    state: &Mutex<State>,
    uri: &AMQPUri,
    tls: Option<Arc<ClientConfig>>,
) -> io::Result<Transport> {
    let host = uri.authority.host.trim_matches(['[', ']']);
    let socket = TcpStream::connect((host, uri.authority.port)).await?;
    socket.set_nodelay(true)?;
    keep(state, socket.as_fd().try_clone_to_owned()?.into())?;
    match uri.scheme {
        AMQPScheme::AMQP => Ok(Transport::Plain(socket)),
        AMQPScheme::AMQPS => {
            let tls = tls.ok_or_else(|| io::Error::from(ErrorKind::Unsupported))?;
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(tls).connect(name, socket).await;
            let stream = stream.map_err(|error| unencrypted(&error, host))?;
            Ok(Transport::Tls(Box::new(stream), false))
        }
    }
}

/// Adds the remedy to the reason why a connection cannot be encrypted.
fn unencrypted(error: &io::Error, host: &str) -> io::Error {
    use rustls::{CertificateError as Certificate, Error as Tls};
    let remedy = match reason_of(error) {
        // The signature is bad if another authority has the same name.
        Some(Tls::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature)) => {
            format!(
                "its certificate authority is not trusted; name the file of the authority's certificate in {}",
                crate::tls::CA
            )
        }
        Some(Tls::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        )) => format!(
            "its certificate is for another name than {host}; use the name in the certificate in the URL"
        ),
        Some(Tls::InvalidCertificate(_)) => "its certificate is not valid".to_owned(),
        Some(Tls::AlertReceived(_)) => return refused(error),
        // What a server without TLS responds is not a message of TLS; most just close the
        // connection.
        Some(Tls::InvalidMessage(_)) => NO_TLS.to_owned(),
        None if error.kind() == ErrorKind::UnexpectedEof => NO_TLS.to_owned(),
        _ => "TLS failed".to_owned(),
    };
    let text = format!("the connection cannot be encrypted: {remedy} ({error})");
    io::Error::new(error.kind(), text)
}

/// Adds the remedy to the end of a connection that the server breaks off once it is encrypted.
fn refused(error: &io::Error) -> io::Error {
    let text = format!(
        "the server refuses the encrypted connection; if it demands a client certificate, set {} and {} ({error})",
        crate::tls::CERTIFICATE,
        crate::tls::KEY
    );
    io::Error::new(error.kind(), text)
}

fn reason_of(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

const NO_TLS: &str =
    "the server does not speak TLS on this port; use its port for TLS, which is most often 5671";

/// Keeps the handle of a socket. Fails if the `Sockets` were dropped meanwhile.
fn keep(state: &Mutex<State>, socket: StdTcpStream) -> io::Result<()> {
    let mut state = state.lock();
    if state.is_closed {
        return Err(ErrorKind::ConnectionAborted.into());
    }
    state.open.push(socket);
    Ok(())
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        for socket in state.open.drain(..) {
            // Fails for a socket that is closed already.
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

/// What the client library reads from and writes to.
enum Transport {
    Plain(TcpStream),
    /// With whether the server has sent anything.
    Tls(Box<TlsStream<TcpStream>>, bool),
}

/// Returns the error of an encrypted connection. From TLS 1.3 on, the server looks at the client's
/// certificate when the client is connected already. It then sends an alert, which may be lost with
/// the connection.
fn broken(error: io::Error, has_responded: bool) -> io::Error {
    if has_responded {
        error
    } else {
        refused(&error)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream, has_responded) => {
                let before = buffer.filled().len();
                let read = Pin::new(stream).poll_read(cx, buffer);
                *has_responded |= buffer.filled().len() > before;
                read.map_err(|error| broken(error, *has_responded))
            }
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream, has_responded) => Pin::new(stream)
                .poll_write(cx, bytes)
                .map_err(|error| broken(error, *has_responded)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream, has_responded) => Pin::new(stream)
                .poll_flush(cx)
                .map_err(|error| broken(error, *has_responded)),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream, _) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Tokio's reactor with [`Transport`] as the type of its streams.
///
/// The client library demands that its transport is the stream of its reactor. Its own TLS would
/// bring a second library for keys and some forty crates with it.
#[derive(Debug, Clone)]
struct TransportReactor(Tokio);

impl Reactor for TransportReactor {
    type TcpStream = Compat<Transport>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl FuturesRead + FuturesWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        TcpStream::connect(address).map_ok(|socket| Transport::Plain(socket).compat())
    }
}
