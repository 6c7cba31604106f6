//! Sends the requests of the client over HTTP, and returns what went wrong as a [`ClientError`].

use std::time::Duration;

use contract::rest::ErrorBody;
use framework::http::{
    self, HeaderMap, HttpClient, HttpError, HttpResponse, Method, Request, StatusCode,
};
use framework::tls::Tls;
use tokio::time::timeout;

use super::{BearerToken, Client, ClientError};

/// What a response may be.
const ACCEPTED: &str = "application/json, application/problem+json";
/// What a response may be that streams lines or events.
const ACCEPTED_BY_STREAMS: &str = "*/*, application/problem+json";
/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a request may take, if it says nothing else.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a stream may take to begin.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// A request that is not sent yet.
pub(super) struct Call<'a> {
    url: &'a str,
    request: Result<Request<bytes::Bytes>, HttpError>,
    limit: Duration,
}

impl<'a> Call<'a> {
    pub fn new(method: Method, url: &'a str) -> Self {
        Self {
            url,
            request: http::request(method, url),
            limit: LIMIT,
        }
        .header("accept", ACCEPTED)
    }

    /// Sets a header. A value that cannot be sent fails the call.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(request) = &mut self.request {
            if let Ok(value) = value.parse() {
                request.headers_mut().insert(name, value);
            } else {
                let shown = if name == "authorization" {
                    "the token"
                } else {
                    value
                };
                let reason = format!("{shown:?} cannot be the value of the header {name}");
                self.request = Err(HttpError::Invalid(reason));
            }
        }
        self
    }

    /// Sets the body, which is JSON.
    pub fn json(mut self, body: Vec<u8>) -> Self {
        if let Ok(request) = &mut self.request {
            *request.body_mut() = body.into();
        }
        self.header("content-type", "application/json")
    }

    /// Sets the body, which is any bytes.
    pub fn bytes(mut self, body: bytes::Bytes) -> Self {
        if let Ok(request) = &mut self.request {
            *request.body_mut() = body;
        }
        self.header("content-type", "application/octet-stream")
    }

    /// Sets how long it may take.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
}

/// Returns what sends the requests.
pub(super) fn http_client(tls: &Tls) -> HttpClient {
    HttpClient::new(tls, CONNECT_LIMIT)
}

impl Client {
    /// Sends a request and reads the whole response, which must be a success.
    pub(super) async fn exchange(
        &self,
        call: Call<'_>,
    ) -> Result<(StatusCode, String), ClientError> {
        let url = call.url;
        let (status, headers, body) = self.ask(call).await?;
        if status.is_success() {
            return Ok((status, body));
        }
        Err(refused(status, &headers, &body, url))
    }

    /// Sends a request and reads the whole response, whatever it is.
    pub(super) async fn ask(
        &self,
        call: Call<'_>,
    ) -> Result<(StatusCode, HeaderMap, String), ClientError> {
        let limit = Some(call.limit);
        let call = self.with_own_token(call);
        let answered = async {
            let mut response = self.http.send(call.request?, limit).await?;
            let body = response.read(usize::MAX).await?;
            let body = String::from_utf8_lossy(&body).into_owned();
            Ok((response.status(), response.headers().clone(), body))
        };
        answered.await.map_err(|error| self.unreachable(&error))
    }

    /// Begins to read a response that may last for long.
    pub(super) async fn begin(&self, call: Call<'_>) -> Result<HttpResponse, ClientError> {
        let call = self
            .with_own_token(call)
            .header("accept", ACCEPTED_BY_STREAMS);
        let url = call.url;
        let answered = async { self.http.send(call.request?, None).await };
        let mut response = timeout(BEGIN_LIMIT, answered)
            .await
            .unwrap_or(Err(HttpError::Late(BEGIN_LIMIT)))
            .map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = timeout(BEGIN_LIMIT, response.read(usize::MAX))
            .await
            .unwrap_or(Err(HttpError::Late(BEGIN_LIMIT)))
            .map_err(|error| self.unreachable(&error))?;
        let body = String::from_utf8_lossy(&body);
        Err(refused(status, response.headers(), &body, url))
    }

    fn with_own_token<'a>(&self, call: Call<'a>) -> Call<'a> {
        match &self.token {
            Some(BearerToken(token)) => call.header("authorization", &format!("Bearer {token}")),
            None => call,
        }
    }

    fn unreachable(&self, error: &HttpError) -> ClientError {
        ClientError::Unreachable {
            url: self.base.clone(),
            reason: error.innermost(),
        }
    }
}

/// Returns the error of a response that is no success.
pub(super) fn refused(
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    url: &str,
) -> ClientError {
    let elsewhere = headers.get("location").filter(|_| status.is_redirection());
    let message = match elsewhere.and_then(|location| location.to_str().ok()) {
        Some(location) => {
            format!("{url} redirects to {location}; use the URL of the job service itself")
        }
        None => format!("unexpected response of {url}"),
    };
    let body = serde_json::from_str(body).unwrap_or_else(|_| ErrorBody::of_message(message));
    ClientError::Refused {
        status: status.as_u16(),
        body: Box::new(body),
    }
}
