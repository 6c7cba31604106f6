//! The way to a server: directly, or through a proxy that the environment names.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
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
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;
use url::Url;

use super::confined::check_public;

/// How long a connection is silent before TCP asks whether the other side is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type Failure = Box<dyn Error + Send + Sync>;

/// Opens connections to servers.
#[derive(Clone)]
pub(super) struct Way {
    direct: HttpConnector<Resolver>,
    proxies: Arc<Proxies>,
    limit: Duration,
}

/// Which requests go through a proxy.
pub(super) struct Proxies {
    matcher: Matcher,
    /// Hosts, each with a port, that are asked directly.
    direct: Vec<(String, u16)>,
}

impl Proxies {
    /// Returns those that the environment names.
    #[expect(
        clippy::disallowed_methods,
        reason = "the matcher reads these variables by itself, too"
    )]
    fn of_environment() -> Self {
        let names = ["NO_PROXY", "no_proxy"];
        let list = names.into_iter().find_map(|name| std::env::var(name).ok());
        Self::new(Matcher::from_env(), &list.unwrap_or_default())
    }

    /// Returns these, but for the hosts with ports of a list. The matcher knows the other hosts.
    pub fn new(matcher: Matcher, without: &str) -> Self {
        let host_and_port = |entry: &str| {
            let (host, port) = entry.trim().rsplit_once(':')?;
            let host = host.trim_start_matches("*.").trim_start_matches('.');
            Some((host.to_ascii_lowercase(), port.parse().ok()?))
        };
        let direct = without.split(',').filter_map(host_and_port).collect();
        Self { matcher, direct }
    }

    /// Adds the host of a URL to those that are asked directly.
    pub fn without(mut self, url: &str) -> Self {
        let url = Url::parse(url).ok();
        let own = url.and_then(|it| Some((it.host_str()?.to_owned(), it.port_or_known_default()?)));
        self.direct.extend(own);
        self
    }

    /// Returns the proxy of a request, if it has one. This machine is always asked directly: a
    /// proxy would ask its own.
    fn of(&self, target: &Uri) -> Option<Intercept> {
        let host = target.host()?.to_ascii_lowercase();
        let default_port = if target.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let port = target.port_u16().unwrap_or(default_port);
        let is_below = |domain: &str| {
            let rest = host.strip_suffix(domain);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let is_direct = is_below("localhost")
            || address.is_ok_and(|address| address.is_loopback())
            || self
                .direct
                .iter()
                .any(|(domain, of)| *of == port && is_below(domain));
        if is_direct {
            return None;
        }
        self.matcher.intercept(target)
    }
}

impl Way {
    /// Returns the way through the proxies that the environment names, but not to this server.
    pub fn new(limit: Duration, own: Option<&str>) -> Self {
        let proxies = Proxies::of_environment();
        Self::through(proxies.without(own.unwrap_or_default()), limit)
    }

    /// Returns the way through these proxies.
    pub fn through(proxies: Proxies, limit: Duration) -> Self {
        Self::by(Resolver::new(false), proxies, limit)
    }

    /// Returns the way without a proxy; only to addresses of the public internet if `is_public`. A
    /// host that is an address is not looked at here.
    pub fn direct(limit: Duration, is_public: bool) -> Self {
        let none = Proxies::new(Matcher::builder().build(), "");
        Self::by(Resolver::new(is_public), none, limit)
    }

    fn by(resolver: Resolver, proxies: Proxies, limit: Duration) -> Self {
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
        let proxy = self.proxies.of(target)?;
        let reads = target.scheme_str() == Some("http");
        proxy.basic_auth().filter(|_| reads).cloned()
    }

    /// Returns the proxy through which a request goes, for people.
    pub fn proxy_of(&self, target: &Uri) -> Option<String> {
        Some(self.proxies.of(target)?.uri().to_string())
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
            let Some(proxy) = proxies.of(&target) else {
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
