//! The way to a server: directly, or through a proxy that the environment names.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use super::confined::check_public;

/// How long a connection is silent before TCP asks whether the other side is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type Failure = Box<dyn Error + Send + Sync>;

/// Opens connections to servers.
#[derive(Clone)]
pub(super) struct Way {
    direct: HttpConnector<Resolver>,
    proxies: Arc<Matcher>,
    limit: Duration,
}

impl Way {
    /// Returns the way through the proxies that the environment names.
    pub fn new(limit: Duration) -> Self {
        Self::through(Matcher::from_env(), limit)
    }

    /// Returns the way through these proxies.
    pub fn through(proxies: Matcher, limit: Duration) -> Self {
        Self::by(Resolver::new(false), proxies, limit)
    }

    /// Returns the way without a proxy; only to addresses of the public internet if `is_public`. A
    /// host that is an address is not looked at here.
    pub fn direct(limit: Duration, is_public: bool) -> Self {
        Self::by(Resolver::new(is_public), Matcher::builder().build(), limit)
    }

    fn by(resolver: Resolver, proxies: Matcher, limit: Duration) -> Self {
        let mut direct = HttpConnector::new_with_resolver(resolver);
        direct.enforce_http(false);
        direct.set_nodelay(true);
        direct.set_keepalive(Some(KEEP_ALIVE));
        Self {
            direct,
            proxies: Arc::new(proxies),
            limit,
        }
    }

    /// Returns what a request must show to the proxy that reads it; `None` if there is none.
    pub fn credentials(&self, target: &Uri) -> Option<HeaderValue> {
        let proxy = self.proxies.intercept(target)?;
        let reads = target.scheme_str() == Some("http");
        proxy.basic_auth().filter(|_| reads).cloned()
    }
}

impl Service<Uri> for Way {
    type Response = Stream;
    type Error = Failure;
    type Future = BoxFuture<'static, Result<Stream, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        // The connector of hyper is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let Self {
            direct,
            proxies,
            limit,
        } = self.clone();
        let open = async move {
            let Some(proxy) = proxies.intercept(&target) else {
                return Stream::opened(direct, target, false).await;
            };
            let address = proxy.uri().clone();
            if address.scheme_str() != Some("http") {
                return Err(
                    format!("the proxy {address} has no URL that begins with http://").into(),
                );
            }
            if target.scheme_str() != Some("https") {
                return Stream::opened(direct, address, true).await;
            }
            let mut tunnel = Tunnel::new(address, direct);
            if let Some(credentials) = proxy.basic_auth() {
                tunnel = tunnel.with_auth(credentials.clone());
            }
            let io = tunnel.call(target).await?;
            Ok(Stream {
                io,
                by_proxy: false,
            })
        };
        async move {
            timeout(limit, open)
                .await
                .map_err(|_| format!("no connection within {limit:?}"))?
        }
        .boxed()
    }
}

/// Resolves the names of hosts.
#[derive(Clone)]
struct Resolver {
    system: GaiResolver,
    is_public: bool,
}

impl Resolver {
    fn new(is_public: bool) -> Self {
        let system = GaiResolver::new();
        Self { system, is_public }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (found, is_public) = (self.system.call(name.clone()), self.is_public);
        async move {
            let found: Vec<SocketAddr> = found.await?.collect();
            // One private address refuses all: who controls the name must not choose among them.
            for address in found.iter().filter(|_| is_public) {
                check_public(name.as_str(), address.ip()).map_err(io::Error::other)?;
            }
            Ok(found.into_iter())
        }
        .boxed()
    }
}

/// A connection to a server or a proxy.
pub(super) struct Stream {
    io: TokioIo<TcpStream>,
    /// Whether a proxy reads the requests. It must see whole URLs.
    by_proxy: bool,
}

impl Stream {
    async fn opened(
        mut connector: HttpConnector<Resolver>,
        address: Uri,
        by_proxy: bool,
    ) -> Result<Self, Failure> {
        let io = connector.call(address).await?;
        Ok(Self { io, by_proxy })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.by_proxy)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }
}
