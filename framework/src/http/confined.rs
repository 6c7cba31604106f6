//! Requests whose URLs come from a job, which go only where the operator allows it.
//!
//! What must stay true: a request, and each of its redirects, goes to an allowed origin. The
//! address is one of the public internet, unless the operator allows others for that origin,
//! however the name of the host resolves. No proxy is asked: it would resolve the name itself.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, Method};
use url::Url;

use super::{HttpClient, HttpError, HttpResponse, Way, request};
use crate::tls::Tls;

/// The most redirects that are followed.
const MOST_REDIRECTS: usize = 5;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// The origin of a URL, e.g. `https://example.com`, in its normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

/// Where requests may go, and how their refusals speak of that.
#[derive(Debug, Clone)]
pub struct AllowedOrigins {
    /// Origins at addresses of the public internet.
    pub public: Vec<Origin>,
    /// Origins at any address, also at private ones, those of the link, and those of this machine.
    pub private: Vec<Origin>,
    /// Who makes the requests, e.g. `a batch`.
    pub who: &'static str,
    /// The setting of `public`.
    pub setting: &'static str,
    /// The setting that allows private addresses.
    pub private_setting: &'static str,
}

/// Sends GET requests where the operator allows it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConfinedClient {
    allowed: AllowedOrigins,
    public: HttpClient,
    any: HttpClient,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ConfinedError {
    /// The operator does not allow it, or it is no URL. It never will be different.
    #[error("{0}")]
    Refused(String),
    /// The request has failed.
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// An address that is not one of the public internet.
#[derive(Debug, thiserror::Error)]
#[error("{host}: {address} is not an address of the public internet")]
pub struct NotPublic {
    host: String,
    address: IpAddr,
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let refused = || {
            format!(
                "{text:?} is not an origin; expected one like https://example.com, without a path"
            )
        };
        let url = Url::parse(text).map_err(|_| refused())?;
        let is_origin = matches!(url.scheme(), "http" | "https")
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        is_origin.then(|| Self::of(&url)).ok_or_else(refused)
    }
}

impl Origin {
    /// Returns the origin of a URL.
    pub fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AllowedOrigins {
    /// Checks the origin of a URL, and its host if that is an address. Returns whether its address
    /// may be private.
    fn check(&self, url: &Url) -> Result<bool, String> {
        let origin = Origin::of(url);
        if self.private.contains(&origin) {
            return Ok(true);
        }
        if !self.public.contains(&origin) {
            let all = self.public.iter().chain(&self.private);
            let all: Vec<&str> = all.map(|it| it.0.as_str()).collect();
            let allowed = match &all[..] {
                [] => "none".to_owned(),
                all => all.join(", "),
            };
            return Err(format!(
                "{} may not call {origin}; the operator of the worker allows {allowed} ({})",
                self.who, self.setting
            ));
        }
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        address.map_or(Ok(false), |address| {
            check_public(host, address).map_err(|error| self.refusal(&error))?;
            Ok(false)
        })
    }

    fn refusal(&self, error: &NotPublic) -> String {
        let (who, setting) = (self.who, self.private_setting);
        format!("{who} may not call {error} ({setting} allows it)")
    }
}

impl ConfinedClient {
    /// Returns a client that trusts these authorities.
    pub fn new(allowed: AllowedOrigins, tls: &Tls) -> Self {
        Self {
            allowed,
            public: HttpClient::by(Way::direct(CONNECT, true), tls),
            any: HttpClient::by(Way::direct(CONNECT, false), tls),
        }
    }

    /// Returns whether there is an origin that it may call.
    pub const fn is_allowed_any(&self) -> bool {
        !(self.allowed.public.is_empty() && self.allowed.private.is_empty())
    }

    /// Gets a URL, or what it redirects to. Each response must begin within `limit`; its rest may
    /// take longer.
    ///
    /// # Errors
    /// [`ConfinedError::Refused`] if that is not allowed, or there are too many redirects.
    pub async fn get(
        &self,
        url: &str,
        headers: &HeaderMap,
        limit: Duration,
    ) -> Result<HttpResponse, ConfinedError> {
        let refused = ConfinedError::Refused;
        let mut at = Url::parse(url)
            .map_err(|error| refused(format!("{:?} is not a URL: {error}", shown(url))))?;
        let first = Origin::of(&at);
        for redirects in 0..=MOST_REDIRECTS {
            // What a server redirects to is in its normal form, and what a job names may have
            // mistakes.
            let name = if redirects == 0 {
                shown(url)
            } else {
                format!("{} redirects to {}", shown(url), shown(at.as_str()))
            };
            let response = self.send(&name, &at, headers, Origin::of(&at) == first, limit);
            let response = response.await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let to = response.headers().get(LOCATION);
            let to = to.and_then(|to| to.to_str().ok()).unwrap_or_default();
            at = at
                .join(to)
                .map_err(|_| refused(format!("{} redirects to no URL", shown(url))))?;
        }
        Err(refused(format!(
            "{}: it redirects more than {MOST_REDIRECTS} times",
            shown(url)
        )))
    }

    async fn send(
        &self,
        name: &str,
        url: &Url,
        headers: &HeaderMap,
        is_first: bool,
        limit: Duration,
    ) -> Result<HttpResponse, ConfinedError> {
        let named = |why: String| ConfinedError::Refused(format!("{name}: {why}"));
        let is_any = self.allowed.check(url).map_err(named)?;
        let client = if is_any { &self.any } else { &self.public };
        let mut request: http::Request<Bytes> = request(Method::GET, url.as_str())?;
        for (name, value) in headers {
            // What is for one server is not for another.
            if is_first || !value.is_sensitive() {
                request.headers_mut().append(name, value.clone());
            }
        }
        let sent = client.send(request, None);
        let sent = tokio::time::timeout(limit, sent)
            .await
            .map_err(|_| HttpError::Late(limit))?;
        sent.map_err(|error| match not_public(&error) {
            Some(error) => named(self.allowed.refusal(error)),
            None => error.into(),
        })
    }
}

/// Returns a URL without what may be secret in it: name and password, and the query.
pub fn shown(url: &str) -> String {
    contract::shown_url(url)
}

fn not_public(error: &HttpError) -> Option<&NotPublic> {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = source {
        // An error of the system hides what is in it from those who ask for its source.
        let inner = cause
            .downcast_ref::<std::io::Error>()
            .and_then(|error| error.get_ref()?.downcast_ref::<NotPublic>());
        if let Some(found) = inner.or_else(|| cause.downcast_ref()) {
            return Some(found);
        }
        source = cause.source();
    }
    None
}

/// Refuses an address that is not one of the public internet.
pub fn check_public(host: &str, address: IpAddr) -> Result<(), NotPublic> {
    if is_public(address) {
        return Ok(());
    }
    Err(NotPublic {
        host: host.to_owned(),
        address,
    })
}

/// Returns whether an address is one of the public internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b));
    !(is_special
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let [.., high, low] = parts;
    let low_v4 = Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match parts {
        // What leads to an address of IPv4 is as public as that: mapped, translated (NAT64), 6to4.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(low_v4),
        [0x2002, high, low, ..] => {
            is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
        }
        // Of the rest, only 2000::/3 is given out, without its special parts: protocols and Teredo,
        // documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        for address in [
            "1.1.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "::7f00:1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    fn allowed(public: &[&str], private: &[&str]) -> AllowedOrigins {
        let parsed = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        AllowedOrigins {
            public: parsed(public),
            private: parsed(private),
            who: "a batch",
            setting: "--source-origin",
            private_setting: "--source-private-origin",
        }
    }

    #[test]
    fn query_and_password_of_a_url_are_not_shown() {
        for (url, expected) in [
            ("https://a.example/b.csv", "https://a.example/b.csv"),
            ("https://u:p@a.example/b?key=1", "https://a.example/b?…"),
            (
                "https://u:p@a.example:99999/b?key=1",
                "https://a.example:99999/b?…",
            ),
            ("no url", "no url"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    proptest! {
        #[test]
        fn url_that_only_looks_like_an_allowed_one_is_refused(
            before in "[a-z@.:/?#\\\\%0-9]{0,12}", after in "[a-z@.:/?#\\\\%0-9]{0,12}",
        ) {
            let allowed = allowed(&["https://a.example"], &["http://127.0.0.1:8080"]);
            for text in [
                format!("https://{before}a.example{after}"),
                format!("http://{before}127.0.0.1:8080{after}"),
            ] {
                let Ok(url) = Url::parse(&text) else { continue };
                let there = (url.scheme(), url.host_str(), url.port());
                match allowed.check(&url) {
                    Ok(true) => prop_assert_eq!(there, ("http", Some("127.0.0.1"), Some(8080))),
                    Ok(false) => prop_assert_eq!(there, ("https", Some("a.example"), None)),
                    Err(_) => {}
                }
            }
        }
    }
}
