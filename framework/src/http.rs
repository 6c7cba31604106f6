//! The client of HTTP that this project's parts share: status checks, the export of spans, the
//! client of the REST API.
//!
//! It hides hyper, with TLS and proxies. It is not built on a client library that workers use for
//! themselves: cargo compiles a library once for a whole program, with the features that any of its
//! users asks for. Ours would change how a worker's own requests are encrypted, and could make its
//! client panic.
//!
//! What must stay true:
//! - `https` is never spoken in plaintext, and the server's certificate is always checked
//!   ([`Tls`]).
//! - No redirect is followed. A request goes where its URL says.
//! - The proxies of the usual variables (`HTTPS_PROXY`, `NO_PROXY`, …) are used, but never for this
//!   machine or for the process's own server.
//! - A client that sends nothing costs nothing: it reads the authorities of the system, which are a
//!   hundred files, at its first request.
//!
//! [`confined`] is for URLs that come from a job: other rules hold there.

pub mod confined;
mod connect;

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, PROXY_AUTHORIZATION};
pub use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
pub use url::Url;

use self::connect::Way;
use crate::tls::Tls;

/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(90);

/// Sends requests. Keeps connections for the next ones. Cheap to clone.
#[derive(Clone)]
pub struct HttpClient(Arc<Connections>);

struct Connections {
    client: OnceCell<legacy::Client<HttpsConnector<Way>, Full<Bytes>>>,
    way: Way,
    tls: Tls,
}

/// Why there is no response, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The request cannot be sent as it is.
    #[error("the request is not valid: {0}")]
    Invalid(String),
    /// There is no connection, or it broke before there was a response.
    #[error("the request has failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
    /// The connection broke in the middle of the response.
    #[error("the response broke off")]
    Broken(#[source] Box<dyn Error + Send + Sync>),
    /// The response, or the rest of it, did not come in time.
    #[error("no response within {0:?}")]
    Late(Duration),
    /// The response is larger than its reader takes.
    #[error("the response has more than {0} bytes")]
    TooLarge(usize),
}

impl HttpError {
    /// Returns the innermost cause.
    pub fn innermost(&self) -> String {
        let mut innermost: &dyn Error = self;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        innermost.to_string()
    }
}

/// A response, whose body comes in pieces.
#[derive(Debug)]
pub struct HttpResponse {
    head: http::response::Parts,
    body: Incoming,
    limit: Option<(Duration, Instant)>,
}

impl HttpClient {
    /// Returns a client that trusts these authorities and shows this certificate. `connect_limit`
    /// is how long a connection may take.
    pub fn new(tls: &Tls, connect_limit: Duration) -> Self {
        Self::by(Way::new(connect_limit, None), tls)
    }

    /// Returns a client that asks no proxy for the server at this URL, which is in this process.
    pub fn beside(own: Option<&str>, tls: &Tls, connect_limit: Duration) -> Self {
        Self::by(Way::new(connect_limit, own), tls)
    }

    /// Returns the proxy through which a request goes, for people.
    pub fn proxy_of(&self, target: &Url) -> Option<String> {
        self.0.way.proxy_of(&target.as_str().parse().ok()?)
    }

    fn by(way: Way, tls: &Tls) -> Self {
        Self(Arc::new(Connections {
            client: OnceCell::new(),
            way,
            tls: tls.clone(),
        }))
    }

    /// Sends a request and returns its response. All of it must come within `limit`.
    ///
    /// # Errors
    /// [`HttpError::Failed`] without a response, whatever its status code is; [`HttpError::Late`]
    /// if it is late; [`HttpError::Invalid`] if the certificates cannot be used.
    pub async fn send(
        &self,
        mut request: Request<Bytes>,
        limit: Option<Duration>,
    ) -> Result<HttpResponse, HttpError> {
        let limit = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        let headers = request.headers_mut();
        headers
            .entry(ACCEPT)
            .or_insert(HeaderValue::from_static("*/*"));
        if let Some(credentials) = self.0.way.credentials(request.uri()) {
            request
                .headers_mut()
                .insert(PROXY_AUTHORIZATION, credentials);
        }
        let client = self.0.client.get_or_try_init(|| self.0.connect()).await?;
        let sent = client.request(request.map(Full::new));
        let response = in_time(limit, sent)
            .await?
            .map_err(|error| HttpError::Failed(error.into()))?;
        let (head, body) = response.into_parts();
        Ok(HttpResponse { head, body, limit })
    }
}

impl Connections {
    #[expect(clippy::unused_async, reason = "the cell takes a future")]
    async fn connect(&self) -> Result<legacy::Client<HttpsConnector<Way>, Full<Bytes>>, HttpError> {
        let invalid = |error: rustls::Error| HttpError::Invalid(error.to_string());
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(self.tls.client_config().map_err(invalid)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(self.way.clone());
        Ok(legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector))
    }
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpResponse {
    /// Returns the status code.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Returns the headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Returns the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// If the connection breaks, or the response is late.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
            match in_time(self.limit, frame).await? {
                None => return Ok(None),
                Some(Err(error)) => return Err(HttpError::Broken(error.into())),
                // What is no data are trailers, which nobody reads.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Reads the rest of the body, if it has at most this many bytes.
    ///
    /// # Errors
    /// Those of [`chunk`](Self::chunk); [`HttpError::TooLarge`] if there are more bytes.
    pub async fn read(&mut self, most: usize) -> Result<Vec<u8>, HttpError> {
        let mut read = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if read.len() + chunk.len() > most {
                return Err(HttpError::TooLarge(most));
            }
            read.extend_from_slice(&chunk);
        }
        Ok(read)
    }
}

/// Returns a request. Name and password in the URL become a header.
///
/// # Errors
/// [`HttpError::Invalid`] if it is no URL of HTTP.
pub fn request(method: Method, url: &str) -> Result<Request<Bytes>, HttpError> {
    let invalid = |reason: &str| {
        let url = confined::shown(url);
        HttpError::Invalid(format!("{url:?} is not a URL of HTTP: {reason}"))
    };
    let mut parsed = Url::parse(url).map_err(|error| invalid(&error.to_string()))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(invalid("it does not begin with http:// or https://"));
    }
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = method;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        let credentials = basic(parsed.username(), parsed.password().unwrap_or_default());
        request.headers_mut().insert(AUTHORIZATION, credentials);
        // They fail only for URLs without a host.
        let _ = parsed.set_username("");
        let _ = parsed.set_password(None);
    }
    parsed.set_fragment(None);
    *request.uri_mut() = parsed
        .as_str()
        .parse()
        .map_err(|error: http::uri::InvalidUri| invalid(&error.to_string()))?;
    Ok(request)
}

/// Returns the header of a name and a password, which are percent-encoded.
fn basic(name: &str, password: &str) -> HeaderValue {
    let decoded = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    let pair = format!("{}:{}", decoded(name), decoded(password));
    let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
    let mut value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("Basic"));
    value.set_sensitive(true);
    value
}

async fn in_time<T>(
    limit: Option<(Duration, Instant)>,
    work: impl Future<Output = T>,
) -> Result<T, HttpError> {
    match limit {
        None => Ok(work.await),
        Some((limit, until)) => timeout_at(until, work)
            .await
            .map_err(|_| HttpError::Late(limit)),
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::client::proxy::matcher::Matcher;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::connect::Proxies;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn name_and_password_of_a_url_become_a_header() {
        let request = request(Method::GET, "https://j%40x:s@example.org/a?b=%2F#c").unwrap();
        assert_eq!(request.uri(), "https://example.org/a?b=%2F");
        assert_eq!(request.headers()[AUTHORIZATION], "Basic akB4OnM=");
        for wrong in ["example.org", "ftp://example.org", "http://", ""] {
            let error = super::request(Method::GET, wrong).unwrap_err().to_string();
            assert!(error.contains("is not a URL of HTTP"), "{error}");
        }
    }

    /// Sends a request through a proxy that responds so, and returns what the proxy has read, and
    /// the response.
    async fn through_proxy(url: &str, answer: &str) -> (String, Result<Vec<u8>, HttpError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://user:secret@{}", listener.local_addr().unwrap());
        let way = Way::through(
            Proxies::new(Matcher::builder().all(proxy).build(), ""),
            LIMIT,
        );
        let client = HttpClient::by(way, &Tls::default());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(char::from(stream.read_u8().await.unwrap()));
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            head
        };
        let exchange = async {
            let request = request(Method::GET, url).unwrap();
            client.send(request, Some(LIMIT)).await?.read(2).await
        };
        tokio::join!(serve, exchange)
    }

    #[tokio::test]
    async fn a_proxy_reads_requests_in_plaintext_and_opens_a_tunnel_for_others() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let (head, response) = through_proxy("http://service.invalid/a?b=c", ok).await;
        assert!(
            head.starts_with("GET http://service.invalid/a?b=c HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("proxy-authorization: Basic dXNlcjpzZWNyZXQ=\r\n"),
            "{head}"
        );
        assert_eq!(response.unwrap(), b"ok");

        let no = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
        let (head, response) = through_proxy("https://service.invalid/secret", no).await;
        assert!(
            head.starts_with("CONNECT service.invalid:443 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(!head.contains("/secret"), "{head}");
        assert!(
            matches!(response, Err(HttpError::Failed(_))),
            "{response:?}"
        );
    }

    #[test]
    fn this_machine_the_own_server_and_what_no_proxy_names_are_asked_directly() {
        let matcher = Matcher::builder()
            .all("http://user:secret@proxy:3128")
            .no("inside.example")
            .build();
        let proxies = Proxies::new(
            matcher,
            "inside.example, .b.example:8080,*.c.example:81,[::2]:9",
        );
        let way = Way::through(proxies.without("http://jobs.example:9410/api"), LIMIT);
        for (url, proxy) in [
            ("http://outside.example/a", true),
            ("https://outside.example/a", true),
            ("http://localhost:9410/a", false),
            ("http://LOCALHOST./a", true),
            ("http://a.localhost/a", false),
            ("http://notlocalhost/a", true),
            ("http://127.0.0.1:9410/a", false),
            ("http://127.9.9.9/a", false),
            ("https://[::1]:9410/a", false),
            ("http://[::3]/a", true),
            ("http://[::2]:9/a", false),
            ("http://jobs.example:9410/job", false),
            ("http://jobs.example/job", true),
            ("http://inside.example/a", false),
            ("http://b.example:8080/a", false),
            ("http://a.b.example:8080/a", false),
            ("http://a.b.example/a", true),
            ("http://a.c.example:81/a", false),
        ] {
            let found = way.proxy_of(&url.parse().unwrap());
            assert_eq!(
                found,
                proxy.then(|| "http://proxy:3128/".to_owned()),
                "{url}"
            );
        }
        let all = Matcher::builder().all("http://proxy:3128").no("*").build();
        let way = Way::through(Proxies::new(all, "*"), LIMIT);
        assert_eq!(
            way.proxy_of(&"http://outside.example/".parse().unwrap()),
            None
        );
    }

    #[tokio::test]
    async fn a_response_that_is_too_large_is_not_read() {
        let large = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        let (_, response) = through_proxy("http://service.invalid/", large).await;
        assert!(
            matches!(response, Err(HttpError::TooLarge(2))),
            "{response:?}"
        );
    }
}
