//! Refuses what a web page of somebody else could do to this service where callers need no token: a
//! browser on the same machine or network can reach it.
//!
//! What must stay true:
//! - A page of another origin changes nothing. A browser sends `POST` without asking first, so the
//!   service compares the `Origin` of every request that may change something. Programs that are
//!   not browsers send no `Origin`.
//! - The same is so of a browser that says nothing of the origin: then `Sec-Fetch-Site` decides.
//! - A page cannot pretend to be of this origin by pointing its own host name at this address (DNS
//!   rebinding): on a loopback address, or where hosts are configured, the `Host` of every request
//!   must be one of the server's. An IP address is never rebound, because no name was resolved.
//!
//! `docs/adr/0010-…` has the reasons for the defaults.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::error::ApiError;

/// The most characters of a refused header that an error repeats.
const QUOTED_CHARS: usize = 200;

/// Where a browser says whether a request comes from a page of the same origin.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What it says then.
const OWN: &str = "same-origin";
/// What it says of a page of another origin.
const FOREIGN: [&str; 2] = ["cross-site", "same-site"];

/// A host name under which clients may call the service: a name without a port, or `*` for every
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost(String);

/// An origin whose web pages may change jobs, such as `https://console.example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedOrigin(Origin);

/// The error of a text that is not an [`AllowedHost`] or an [`AllowedOrigin`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowError {
    /// The text is not a host name.
    #[error(
        "`{0}` is not a host name; expected e.g. `jobs.example.com` without a scheme and a port, or `*`"
    )]
    Host(String),
    /// The text is not an origin.
    #[error("`{0}` is not an origin; expected e.g. `https://console.example.com`, without a path")]
    Origin(String),
}

/// What a request must satisfy.
#[derive(Debug)]
pub struct AccessRules {
    /// The names of this server. `None` accepts every name.
    hosts: Option<Vec<AllowedHost>>,
    origins: Vec<Origin>,
}

/// The scheme, the host and the port of a URL, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

/// The layer that refuses requests.
pub async fn layer(
    State(rules): State<Arc<AccessRules>>,
    request: Request,
    next: Next,
) -> Response {
    match rules.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// The layer around the forms of the web page: a change must come from the page itself. The API
/// accepts programs, which a browser cannot be made to look like; a form needs no program, so what
/// does not show where it comes from is refused, too.
pub async fn only_from_own_page(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    // The origin was compared by the rules for all requests.
    let is_own = match headers.get(SITE) {
        Some(site) => site == OWN,
        None => headers.contains_key(header::ORIGIN),
    };
    if is_read || is_own {
        next.run(request).await
    } else {
        ApiError::NotOwnPage("/job-service-ui/").into_response()
    }
}

impl AccessRules {
    /// Returns the rules of a service that listens on `address`, if that is known, and that workers
    /// reach at `public_url`.
    pub fn new(
        public_url: &str,
        allowed_hosts: &[AllowedHost],
        allowed_origins: &[AllowedOrigin],
        address: Option<SocketAddr>,
    ) -> Self {
        let public = Origin::of_url(public_url);
        let on_loopback = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
        let hosts = (on_loopback || !allowed_hosts.is_empty()).then(|| {
            let public = public.iter().map(|origin| AllowedHost(origin.host.clone()));
            allowed_hosts.iter().cloned().chain(public).collect()
        });
        let allowed = allowed_origins.iter().map(|allowed| allowed.0.clone());
        Self {
            hosts,
            origins: allowed.chain(public).collect(),
        }
    }

    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let named = headers.get_all(header::HOST).iter().map(text);
        for host in uri
            .authority()
            .map(Authority::as_str)
            .into_iter()
            .chain(named)
        {
            if !self.is_own_host(host) {
                return Err(ApiError::ForeignHost(quoted(host)));
            }
        }
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(());
        }
        let mut named = false;
        for origin in headers.get_all(header::ORIGIN).iter().map(text) {
            if !self.is_own_origin(origin, uri, headers) {
                return Err(ApiError::ForeignOrigin(quoted(origin)));
            }
            named = true;
        }
        let site = headers.get(SITE).map_or("", text);
        if !named && FOREIGN.contains(&site) {
            return Err(ApiError::ForeignOrigin(site.to_owned()));
        }
        Ok(())
    }

    fn is_own_host(&self, host: &str) -> bool {
        let Some(own) = &self.hosts else { return true };
        let Some((name, _)) = host_and_port(host) else {
            return false;
        };
        is_ip_address(&name)
            || name == "localhost"
            || name.ends_with(".localhost")
            || own.iter().any(|own| own.0 == "*" || own.0 == name)
    }

    /// Returns whether an origin is allowed, or is the one to which the request itself was sent. A
    /// foreign page cannot set `X-Forwarded-Host`: a browser would ask first, and no response
    /// allows it.
    fn is_own_origin(&self, origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(origin) = Origin::of_url(origin) else {
            return false;
        };
        let forwarded = headers.get("x-forwarded-host").map(text);
        let forwarded = forwarded.and_then(|hosts| hosts.split(',').next().map(str::trim));
        let called = [
            uri.authority().map(Authority::as_str),
            headers.get(header::HOST).map(text),
            forwarded,
        ];
        self.origins.contains(&origin)
            || called.into_iter().flatten().any(|host| origin.is_at(host))
    }
}

impl Origin {
    /// Parses the origin of a URL. A port that is the default of the scheme counts as absent.
    fn of_url(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let (host, port) = host_and_port(uri.authority()?.as_str())?;
        let port = port.filter(|port| Some(*port) != default_port(&scheme));
        Some(Self { scheme, host, port })
    }

    /// Returns whether a `Host` header names this origin. The scheme is unknown there: a proxy may
    /// end TLS.
    fn is_at(&self, host: &str) -> bool {
        host_and_port(host).is_some_and(|(host, port)| {
            host == self.host
                && port.filter(|port| Some(*port) != default_port(&self.scheme)) == self.port
        })
    }
}

impl FromStr for AllowedHost {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Self, AllowError> {
        let refused = || AllowError::Host(text.to_owned());
        if text == "*" {
            return Ok(Self(text.to_owned()));
        }
        let (host, port) = host_and_port(text).ok_or_else(refused)?;
        if port.is_some() || host.is_empty() || text.contains(['/', '@', '*']) {
            return Err(refused());
        }
        Ok(Self(host))
    }
}

impl FromStr for AllowedOrigin {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Self, AllowError> {
        let refused = || AllowError::Origin(text.to_owned());
        let has_path = text
            .split_once("://")
            .is_none_or(|(_, rest)| rest.contains(['/', '?', '@', '*']));
        match Origin::of_url(text) {
            Some(origin) if !has_path => Ok(Self(origin)),
            _ => Err(refused()),
        }
    }
}

impl AllowedOrigin {
    /// Returns whether this is the origin in an `Origin` header.
    pub(crate) fn matches(&self, header: &HeaderValue) -> bool {
        Origin::of_url(text(header)).is_some_and(|origin| origin == self.0)
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits `host:port`. The host is returned in lower case, without a final dot.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let authority: Authority = text.parse().ok()?;
    let host = authority.host().to_ascii_lowercase();
    let port = match authority.port() {
        Some(port) => Some(port.as_str().parse().ok()?),
        None => None,
    };
    Some((host.strip_suffix('.').unwrap_or(&host).to_owned(), port))
}

fn is_ip_address(host: &str) -> bool {
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<IpAddr>().is_ok(),
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// Returns the text of a header, or an empty text, which no rule accepts.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(address: &str, hosts: &[&str]) -> AccessRules {
        let hosts: Vec<_> = hosts.iter().map(|host| host.parse().unwrap()).collect();
        let origins = ["https://Console.example:443".parse().unwrap()];
        let public = "https://public.example/job-service/v1";
        AccessRules::new(public, &hosts, &origins, address.parse().ok())
    }

    #[test]
    fn hosts_are_checked_on_a_loopback_address_and_where_some_are_configured() {
        let loopback = rules("127.0.0.1:80", &[]);
        let loopback_v6 = rules("[::1]:80", &[]);
        let everywhere = rules("0.0.0.0:80", &[]);
        let configured = rules("0.0.0.0:80", &["Jobs.example"]);
        let any = rules("127.0.0.1:80", &["*"]);
        let unknown = rules("", &[]);
        for (host, own, in_list) in [
            ("localhost:8080", true, true),
            ("a.localhost", true, true),
            ("127.9.9.9:1", true, true),
            ("192.168.0.7", true, true),
            ("[fd00::7]:8080", true, true),
            ("public.example:8443", true, true),
            ("PUBLIC.example.", true, true),
            ("jobs.example", false, true),
            ("jobs.example.evil.example", false, false),
            ("evillocalhost", false, false),
            ("localhost.evil.example", false, false),
            ("127.0.0.1.evil.example", false, false),
            ("0x7f000001", false, false),
            ("[evil]", false, false),
            ("", false, false),
            ("a b", false, false),
            ("host:99999", false, false),
        ] {
            assert_eq!(loopback.is_own_host(host), own, "{host}");
            assert_eq!(loopback_v6.is_own_host(host), own, "{host}");
            assert_eq!(configured.is_own_host(host), in_list, "{host}");
            assert!(
                everywhere.is_own_host(host) && unknown.is_own_host(host),
                "{host}"
            );
        }
        assert!(any.is_own_host("whatever.example"));
    }

    #[test]
    fn an_origin_is_own_if_the_request_was_sent_to_it_or_it_is_allowed() {
        let rules = rules("0.0.0.0:80", &[]);
        for (origin, host, forwarded, own) in [
            ("http://jobs.example:8080", "jobs.example:8080", None, true),
            ("https://jobs.example", "jobs.example", None, true),
            ("https://jobs.example", "JOBS.example:443", None, true),
            ("http://jobs.example", "jobs.example:8080", None, false),
            ("http://localhost:3000", "localhost:8080", None, false),
            (
                "https://jobs.example",
                "10.0.0.7:8080",
                Some("jobs.example, inner"),
                true,
            ),
            (
                "https://evil.example",
                "10.0.0.7:8080",
                Some("jobs.example"),
                false,
            ),
            ("https://public.example", "10.0.0.7:8080", None, true),
            ("http://public.example", "10.0.0.7:8080", None, false),
            ("https://console.example", "10.0.0.7:8080", None, true),
            ("https://console.example:444", "10.0.0.7:8080", None, false),
            ("http://[::1]:8080", "[::1]:8080", None, true),
            ("null", "null", None, false),
            ("", "", None, false),
            ("file://", "jobs.example", None, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(forwarded) = forwarded {
                headers.insert("x-forwarded-host", forwarded.parse().unwrap());
            }
            let is_own = rules.is_own_origin(origin, &Uri::from_static("/"), &headers);
            assert_eq!(is_own, own, "{origin} at {host}");
        }
    }

    #[test]
    fn a_setting_that_is_no_host_or_no_origin_is_refused() {
        for host in ["", "a:80", "http://a", "a/b", "a b", "*.a", "u@a"] {
            assert!(host.parse::<AllowedHost>().is_err(), "{host}");
        }
        for origin in [
            "",
            "a",
            "null",
            "*",
            "https://a/b",
            "https://a/",
            "https://",
            "https://*",
        ] {
            assert!(origin.parse::<AllowedOrigin>().is_err(), "{origin}");
        }
    }
}
