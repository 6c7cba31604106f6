//! The calls of the step `HTTP_CALL`, which go only where the operator allows it
//! ([`confined`](framework::http::confined)).
//!
//! What must stay true: a call costs a bounded time and a bounded number of bytes.

use std::time::Duration;

use framework::TaskError;
use framework::http::confined::{AllowedOrigins, ConfinedClient, ConfinedError, Origin, shown};
use framework::http::{HeaderMap, HttpError};
use framework::tls::Tls;

/// The most bytes of a response that are read.
const MOST_BYTES: usize = 10 * 1024 * 1024;

/// Makes the calls of simulated tasks.
#[derive(Debug, Clone)]
pub struct Calls(ConfinedClient);

impl Calls {
    /// Allows calls to these origins; also to those whose addresses are private, of the link or of
    /// this machine, if `private`.
    pub fn to(origins: Vec<Origin>, private: bool) -> Self {
        let (public, private) = if private {
            (Vec::new(), origins)
        } else {
            (origins, Vec::new())
        };
        let allowed = AllowedOrigins {
            public,
            private,
            who: "the step HTTP_CALL",
            setting: "--simulation-http",
            private_setting: "--simulation-http-private",
        };
        Self(ConfinedClient::new(allowed, &Tls::default()))
    }

    /// Calls a URL and reads the response.
    pub(super) async fn call(&self, url: &str, time_limit: Duration) -> Result<(), TaskError> {
        let called = tokio::time::timeout(time_limit, self.get(url, time_limit)).await;
        called.unwrap_or_else(|_| {
            let (url, limit) = (shown(url), time_limit.as_millis());
            Err(TaskError::retry(format!(
                "{url} does not respond within {limit} ms"
            )))
        })
    }

    async fn get(&self, url: &str, time_limit: Duration) -> Result<(), TaskError> {
        // The caller ends it at its limit.
        let limit = time_limit.saturating_mul(2);
        let got = self.0.get(url, &HeaderMap::new(), limit).await;
        let mut response = got.map_err(|error| match error {
            // What is not allowed never will be, all else may go away.
            ConfinedError::Refused(refusal) => TaskError::failed(refusal),
            ConfinedError::Http(error) => TaskError::retry(error),
        })?;
        let (status, url) = (response.status(), shown(url));
        if status.is_client_error() {
            return Err(TaskError::failed(format!("{url} responds with {status}")));
        }
        if !status.is_success() {
            return Err(TaskError::retry(format!("{url} responds with {status}")));
        }
        match response.read(MOST_BYTES).await {
            Ok(_) => Ok(()),
            Err(error @ HttpError::TooLarge(_)) => {
                Err(TaskError::failed(format!("{url}: {error}")))
            }
            Err(error) => Err(TaskError::retry(error)),
        }
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self::to(Vec::new(), false)
    }
}

#[cfg(test)]
mod tests {
    use framework::testing::{self, Outcome};
    use serde_json::json;
    use wiremock::matchers::path;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::{Simulated, Simulator};

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

        // By default nothing is allowed; and an allowed origin may not lead into the network of the
        // worker.
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
