//! The calls of the step `HTTP_CALL`, which go only where the operator allows it.
//!
//! What must stay true: a call, and each of its redirects, goes to an allowed origin. The address is one of the public internet, unless the
//! operator allows others, however the name of the host resolves. A call costs a bounded time and a bounded number of bytes.

#[cfg(feature = "http-calls")]
mod caller;
#[cfg(not(feature = "http-calls"))]
#[path = "http/no_caller.rs"]
mod caller;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use framework::TaskError;
use url::Url;

use self::caller::Caller;

/// Makes the calls of simulated tasks.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    allowed: Arc<Allowed>,
    caller: Caller,
}

/// Where calls may go.
#[derive(Debug, Clone, Default)]
struct Allowed {
    origins: Vec<CallOrigin>,
    private: bool,
}

/// An origin that simulated tasks may call, e.g. `https://example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOrigin(String);

/// A call that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

impl FromStr for CallOrigin {
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
        is_origin
            .then(|| Self(url.origin().ascii_serialization()))
            .ok_or_else(refused)
    }
}

impl fmt::Display for CallOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Calls {
    /// Allows calls to these origins; also to those whose addresses are private, of the link or of this machine, if `private`.
    pub fn to(origins: Vec<CallOrigin>, private: bool) -> Self {
        Self {
            allowed: Arc::new(Allowed { origins, private }),
            caller: Caller::default(),
        }
    }

    /// Calls a URL and reads the response.
    pub(super) async fn call(&self, url: &str, time_limit: Duration) -> Result<(), TaskError> {
        let call = async {
            let url = Url::parse(url)
                .map_err(|error| TaskError::failed(format!("{url:?} is not a URL: {error}")))?;
            self.allowed.check(&url).map_err(TaskError::failed)?;
            self.caller.get(&self.allowed, &url).await
        };
        let called = tokio::time::timeout(time_limit, call).await;
        called.unwrap_or_else(|_| {
            let limit = time_limit.as_millis();
            Err(TaskError::retry(format!(
                "{url} does not respond within {limit} ms"
            )))
        })
    }
}

impl Allowed {
    /// Checks the origin of a URL, and its host if that is an address.
    fn check(&self, url: &Url) -> Result<(), Refused> {
        let origin = url.origin().ascii_serialization();
        if !self.origins.iter().any(|allowed| allowed.0 == origin) {
            let allowed = match &self.origins[..] {
                [] => "none".to_owned(),
                all => all
                    .iter()
                    .map(|it| it.0.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            return Err(Refused(format!(
                "the step HTTP_CALL may not call {origin}; the operator of the worker allows {allowed} (--simulation-http)"
            )));
        }
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        match address {
            Ok(address) if !self.private && !is_public(address) => Err(private(host, address)),
            _ => Ok(()),
        }
    }
}

fn private(host: &str, address: IpAddr) -> Refused {
    Refused(format!(
        "the step HTTP_CALL may not call {host}: {address} is not an address of the public internet (--simulation-http-private allows it)"
    ))
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
        // Of the rest, only 2000::/3 is given out, without its special parts: protocols and Teredo, documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use framework::testing::{self, Outcome};
    use serde_json::json;
    use wiremock::matchers::path;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::simulation::{Simulated, Simulator};

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

    async fn called(url: &str, origins: &[&str], private: bool) -> Outcome<'static, Simulated> {
        let origins = origins.iter().map(|origin| origin.parse().unwrap());
        let worker = Simulator::calling(Calls::to(origins.collect(), private));
        let steps = json!([{"action": "HTTP_CALL", "url": url, "timeLimitMs": 2000}]);
        let task = serde_json::from_value(json!({ "steps": steps })).unwrap();
        match testing::run(&worker, task).await.outcome() {
            Outcome::Done => Outcome::Done,
            Outcome::Retried(reason) => Outcome::Retried(reason),
            Outcome::Failed(reason) => Outcome::Failed(reason),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn call_goes_only_where_the_operator_allows_it_also_when_it_is_redirected() {
        let (server, other) = (MockServer::start().await, MockServer::start().await);
        let ports = [server.address().port(), other.address().port()];
        let answers = [
            ("/ok", ResponseTemplate::new(200)),
            ("/gone", ResponseTemplate::new(404)),
            ("/busy", ResponseTemplate::new(503)),
            (
                "/slow",
                ResponseTemplate::new(200).set_delay(Duration::from_mins(1)),
            ),
            (
                "/large",
                ResponseTemplate::new(200).set_body_bytes(vec![0; 11 << 20]),
            ),
            (
                "/here",
                ResponseTemplate::new(302).insert_header("location", "/ok"),
            ),
            (
                "/away",
                ResponseTemplate::new(302).insert_header("location", format!("{}/ok", other.uri())),
            ),
            (
                "/round",
                ResponseTemplate::new(302).insert_header("location", "/round"),
            ),
        ];
        for (at, answer) in answers {
            Mock::given(path(at))
                .respond_with(answer)
                .mount(&server)
                .await;
        }
        let base = server.uri();
        for (at, expected) in [
            ("/ok", Ok(())),
            ("/here", Ok(())),
            ("/gone", Err((false, "responds with 404".to_owned()))),
            ("/busy", Err((true, "responds with 503".to_owned()))),
            (
                "/slow",
                Err((true, "does not respond within 2000 ms".to_owned())),
            ),
            (
                "/large",
                Err((false, "has more than 10485760 bytes".to_owned())),
            ),
            (
                "/away",
                Err((
                    false,
                    format!(
                        "may not call {}; the operator of the worker allows {base}",
                        other.uri()
                    ),
                )),
            ),
            (
                "/round",
                Err((false, "it redirects more than 5 times".to_owned())),
            ),
        ] {
            match (
                called(&format!("{base}{at}"), &[&base], true).await,
                expected,
            ) {
                (Outcome::Done, Ok(())) => {}
                (Outcome::Retried(reason), Err((true, text)))
                | (Outcome::Failed(reason), Err((false, text))) => {
                    assert!(reason.contains(&text), "{at}: {reason}");
                }
                (outcome, expected) => panic!("{at}: {outcome:?}, not {expected:?}"),
            }
        }
        assert_eq!(other.received_requests().await.unwrap().len(), 0);

        // By default nothing is allowed; and an allowed origin may not lead into the network of the worker.
        let before = server.received_requests().await.unwrap().len();
        let named = format!("http://localhost:{}", ports[0]);
        for (url, origins, problem) in [
            (&base, &[][..], "allows none (--simulation-http)"),
            (
                &base,
                &[base.as_str()],
                "127.0.0.1 is not an address of the public internet",
            ),
            (&named, &[named.as_str()], "localhost: "),
            (&"file:///etc/passwd".to_owned(), &[], "may not call null"),
            (&"no url".to_owned(), &[], "is not a URL"),
        ] {
            let outcome = called(url, origins, false).await;
            let Outcome::Failed(reason) = &outcome else {
                panic!("{url}: {outcome:?}")
            };
            assert!(reason.contains(problem), "{url}: {reason}");
        }
        assert_eq!(server.received_requests().await.unwrap().len(), before);
    }
}
