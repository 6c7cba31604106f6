//! An HTTP client for tests: every request has a time limit, and a failed check of a response shows
//! its body.

use std::sync::Once;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::wait::in_time;

/// A client of one service. Redirects are not followed.
#[derive(Debug, Clone)]
pub struct HttpClient {
    root: String,
    client: reqwest::Client,
}

/// A response whose body has been read.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: String,
}

impl HttpClient {
    /// Creates a client for the service at `root`, e.g. `http://127.0.0.1:8080`.
    ///
    /// # Panics
    /// If the client cannot be built.
    pub fn new(root: impl Into<String>) -> Self {
        static PROVIDER: Once = Once::new();
        // Another part of the process may have installed it already.
        PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        #[expect(clippy::expect_used, reason = "this is how a test fails")]
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("an HTTP client");
        Self {
            root: root.into(),
            client,
        }
    }

    /// Returns the URL of the service, without a path.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Starts a request to a path of the service, for callers that need more than
    /// [`call`](Self::call).
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.root))
    }

    /// Sends a `GET` request to a path of the service.
    ///
    /// # Panics
    /// If there is no response.
    pub async fn get(&self, path: &str) -> HttpResponse {
        self.call(Method::GET, path, None, &[]).await
    }

    /// Sends a request to a path of the service. A body is sent as JSON unless `headers` say
    /// otherwise.
    ///
    /// # Panics
    /// If there is no response.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
        headers: &[(&str, &str)],
    ) -> HttpResponse {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.body(body.to_owned());
            if !headers
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
            {
                request = request.header("Content-Type", "application/json");
            }
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        HttpResponse::of(request).await
    }
}

impl HttpResponse {
    /// Sends a request and reads its response.
    ///
    /// # Panics
    /// If there is no response in time, or its body cannot be read.
    pub async fn of(request: RequestBuilder) -> Self {
        let exchange = async {
            let response = request.send().await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let body = response.text().await?;
            Ok::<_, reqwest::Error>(Self {
                status,
                headers,
                body,
            })
        };
        #[expect(clippy::panic, reason = "this is how a test fails")]
        in_time("an HTTP response", exchange)
            .await
            .unwrap_or_else(|error| panic!("no HTTP response: {error:?}"))
    }

    /// Checks the status code and returns the response.
    ///
    /// # Panics
    /// If the code is another one; the message shows the body.
    #[track_caller]
    #[expect(
        clippy::return_self_not_must_use,
        reason = "most callers want nothing but the check"
    )]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// Checks that this is an error response with exactly this text: `{"message": TEXT}`.
    ///
    /// # Panics
    /// If it is anything else.
    #[track_caller]
    pub fn refuses(&self, status: u16, text: &str) {
        let expected = json!({ "message": text });
        assert_eq!((self.status, self.json()), (status, expected));
        assert_eq!(self.header("content-type"), Some("application/json"));
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns a header, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the `id` of each object in a JSON array, e.g. the ids of a list of jobs.
    ///
    /// # Panics
    /// If the status is not 200 or the body is something else.
    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub fn ids(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        let Value::Array(list) = self.json() else {
            panic!("not a list: {self:?}")
        };
        list.iter()
            .map(|entry| match &entry["id"] {
                Value::String(id) => id.clone(),
                _ => panic!("an entry without an id: {entry}"),
            })
            .collect()
    }
}
