//! A job service that a test starts on its own port, and a client for it.

pub use harness::Backend;
use harness::Database;
use std::sync::Arc;
use std::sync::OnceLock;

use contract::JobTaskId;
use contract::rest::ERROR_HEADER;
use framework::broker::Broker;
use framework::broker::memory::Memory;
use job_service::{BASE_PATH, JobService, ServiceOptions};
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::{EventKind, Store, StoreOptions, TrackingEvent};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A served job service.
pub struct Service {
    pub store: Store,
    pub broker: Memory,
    pub root: String,
    /// The test's own partition.
    pub partition: String,
    client: reqwest::Client,
    /// `None`: the store is a temporary one.
    database: Option<Database>,
    tracker: TaskTracker,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Service {
    /// Serves on a temporary store.
    pub async fn start() -> Self {
        Self::start_configured(|_| {}).await
    }

    pub async fn start_on(backend: Backend) -> Self {
        Self::start_with(backend, |_| {}).await
    }

    /// Serves on a temporary store with changed options.
    pub async fn start_configured(change: impl FnOnce(&mut ServiceOptions)) -> Self {
        let store = Store::temporary(StoreOptions::default());
        Self::start_configured_over(store, change).await
    }

    pub async fn start_with(backend: Backend, change: impl FnOnce(&mut ServiceOptions)) -> Self {
        let broker = Memory::new();
        let database = Database::create(backend).await;
        let store = Store::open(&database.url).await.unwrap();
        Self::start_all(
            Some(database),
            store,
            broker.clone(),
            Arc::new(broker),
            change,
        )
        .await
    }

    /// Serves on this store.
    pub async fn start_over(store: Store) -> Self {
        Self::start_configured_over(store, |_| {}).await
    }

    /// Serves on this store with changed options.
    pub async fn start_configured_over(
        store: Store,
        change: impl FnOnce(&mut ServiceOptions),
    ) -> Self {
        let broker = Memory::new();
        Self::start_all(None, store, broker.clone(), Arc::new(broker), change).await
    }

    /// Serves on a temporary store, with a broker of another kind.
    pub async fn start_beside(broker: Arc<dyn Broker>) -> Self {
        let store = Store::temporary(StoreOptions::default());
        Self::start_all(None, store, Memory::new(), broker, |_| {}).await
    }

    async fn start_all(
        database: Option<Database>,
        store: Store,
        memory: Memory,
        broker: Arc<dyn Broker>,
        change: impl FnOnce(&mut ServiceOptions),
    ) -> Self {
        let address = "127.0.0.1:0".to_owned();
        Self::start_at(&address, database, store, memory, broker, change).await
    }

    /// Serves what this service has served, at the same address. That one must have stopped.
    pub async fn start_again(self) -> Self {
        let address = self.root.trim_start_matches("http://").to_owned();
        let (store, broker) = (self.store.clone(), self.broker.clone());
        let partition = self.partition.clone();
        let served: Arc<dyn Broker> = Arc::new(broker.clone());
        let again = Self::start_at(&address, self.database, store, broker, served, |_| {});
        Self {
            partition,
            ..again.await
        }
    }

    async fn start_at(
        address: &str,
        database: Option<Database>,
        store: Store,
        memory: Memory,
        broker: Arc<dyn Broker>,
        change: impl FnOnce(&mut ServiceOptions),
    ) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let root = format!("http://{}", listener.local_addr().unwrap());
        let mut options = options(&root);
        change(&mut options);
        let service = JobService::new(store.clone(), broker, options);
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let token = stop.clone();
        tracker.spawn(async move { service.serve(listener, token).await.unwrap() });
        tracker.close();
        let partition = harness::unique("p");
        Self {
            store,
            broker: memory,
            root,
            partition,
            client: client(),
            database,
            tracker,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        }
    }

    pub fn database_url(&self) -> &str {
        &self.database.as_ref().unwrap().url
    }

    /// Stops the service and waits until it has ended.
    pub async fn stop(&self) {
        self.stop.cancel();
        harness::in_time("the service to end", self.tracker.wait()).await;
    }

    /// Sends a request to any URL of the server.
    pub async fn call(&self, method: Method, path: &str, body: Option<String>) -> Answer {
        let request = self.client.request(method, format!("{}{path}", self.root));
        let request = match body {
            Some(body) => request
                .header("Content-Type", "application/json")
                .body(body),
            None => request,
        };
        Answer::of(request).await
    }

    /// Returns the full URL of a path in the test's partition.
    pub fn url(&self, path: &str) -> String {
        format!("{}{}", self.root, self.path(path))
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.root))
    }

    /// Sends a `GET` request to a path in the test's partition.
    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, &self.path(path), None).await
    }

    pub async fn put(&self, job: &str, body: &Value) -> Answer {
        let path = self.path(&format!("/jobs/{job}"));
        self.call(Method::PUT, &path, Some(body.to_string())).await
    }

    /// Sends a `POST` request without a body to a path in the test's partition.
    pub async fn post(&self, path: &str) -> Answer {
        self.call(Method::POST, &self.path(path), None).await
    }

    pub async fn cancel(&self, job: &str) -> Answer {
        self.post(&format!("/jobs/{job}/cancel")).await
    }

    pub async fn pause(&self, job: &str) -> Answer {
        self.post(&format!("/jobs/{job}/pause")).await
    }

    pub async fn resume(&self, job: &str) -> Answer {
        self.post(&format!("/jobs/{job}/resume")).await
    }

    pub async fn delete(&self, job: &str) -> Answer {
        self.call(Method::DELETE, &self.path(&format!("/jobs/{job}")), None)
            .await
    }

    /// Returns the path of a resource in the test's partition.
    pub fn path(&self, path: &str) -> String {
        format!("{BASE_PATH}/partitions/{}{path}", self.partition)
    }

    /// Reports an event of the job (`steps` empty) or of a task of its first incarnation.
    pub async fn report(&self, job: &str, steps: &str, kind: EventKind) {
        let task = JobTaskId::parse(&format!("{}:{job}{steps}", self.partition)).unwrap();
        self.store
            .record(&[TrackingEvent { task, kind }])
            .await
            .unwrap();
    }
}

impl Answer {
    pub async fn of(request: reqwest::RequestBuilder) -> Self {
        Self::or_none(request).await.unwrap()
    }

    /// Returns an error if the connection ends before the answer.
    pub async fn or_none(request: reqwest::RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(Self {
            status,
            headers,
            body: response.text().await?,
        })
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// Checks that this is an error with exactly this text, in the common form.
    #[track_caller]
    pub fn refuses(&self, status: u16, message: &str) {
        assert_eq!(
            (self.status.as_u16(), self.error().as_str()),
            (status, message)
        );
    }

    /// Checks that the body contains a text.
    #[track_caller]
    pub fn contains(&self, text: &str) {
        assert!(self.body.contains(text), "{self:?}");
    }

    /// Returns the text of an error.
    #[track_caller]
    pub fn error(&self) -> String {
        assert!(!self.status.is_success(), "{self:?}");
        assert_eq!(self.header("content-type"), "application/json", "{self:?}");
        assert!(!self.header(ERROR_HEADER).is_empty());
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["message"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no {name}: {self:?}"))
            .to_str()
            .unwrap()
    }

    /// Returns the ids in a list of jobs.
    #[track_caller]
    pub fn job_ids(&self) -> Vec<String> {
        self.json()
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Returns the options of a service at this address.
pub fn options(root: &str) -> ServiceOptions {
    ServiceOptions {
        webservice_url: format!("{root}{BASE_PATH}"),
        tracking_pipe: "tracking-in".into(),
        ..ServiceOptions::default()
    }
}

/// Returns a request for a job whose task is for a batch worker.
pub fn new_job() -> Value {
    json!({
        "name": "Reindex",
        "description": "All of them",
        "externalData": "ticket 7",
        "labels": {"team": "search", "empty": null},
        "task": {
            "taskClassifier": "BatchWorker",
            "taskApiVersion": 1,
            "taskData": {"batchDefinition": "[1-100]", "batchType": "RangePlugin"},
            "taskPipe": "batch-in",
            "targetPipe": "orders-out"
        }
    })
}

fn client() -> reqwest::Client {
    static PROVIDER: OnceLock<()> = OnceLock::new();
    PROVIDER.get_or_init(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(harness::PATIENCE)
        .build()
        .unwrap()
}
