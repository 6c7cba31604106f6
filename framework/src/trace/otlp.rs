//! Exports spans by OTLP: as protobuf over HTTP, to a collector of OpenTelemetry, Jaeger, Tempo or any other.
//!
//! Spans wait in memory and are sent in batches, by a thread of the library. When the collector is away, they are dropped
//! with a line in the log; nothing waits for them.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt as _, TraceFlags,
    TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::{Attributes, Span, SpanKind, TraceContext};
use crate::tls::Tls;

/// The path of traces below the endpoint.
const PATH: &str = "/v1/traces";
/// How long the collector may take to accept a batch.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest number of spans that wait. Further ones are dropped.
const QUEUE: usize = 16 * 1024;
/// The largest number of links of a span: a batch of the tracking worker.
const LINKS: u32 = 1000;
/// How often spans are sent.
const INTERVAL: Duration = Duration::from_secs(1);

static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Exports the spans of this process from now on to the collector at `endpoint`, for example `http://localhost:4318`.
/// `service` is the name of the process there. Must be called within a tokio runtime; a later call changes nothing.
///
/// # Errors
///
/// Returns a text that says what is wrong with the endpoint.
pub fn set_up(endpoint: &str, service: &str, tls: &Tls) -> Result<(), String> {
    let url = reqwest::Url::parse(endpoint)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or("it is not the URL of a collector; expected one like http://localhost:4318")?;
    let client = reqwest::Client::builder()
        .timeout(LIMIT)
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls.client_config().map_err(|error| error.to_string())?)
        .build()
        .map_err(|error| error.to_string())?;
    let client = Client {
        http: client,
        runtime: Handle::current(),
        tasks: TaskTracker::new(),
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(format!("{}{PATH}", url.as_str().trim_end_matches('/')))
        .with_timeout(LIMIT)
        .build()
        .map_err(|error| error.to_string())?;
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_scheduled_delay(INTERVAL)
        .build();
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(config)
        .build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_max_links_per_span(LINKS)
        .with_resource(
            Resource::builder_empty()
                .with_service_name(service.to_owned())
                .build(),
        )
        .build();
    let tracer = provider.tracer("batchwright");
    // An error means that the process exports already.
    let _ = TRACER.set(Tracer { provider, tracer });
    Ok(())
}

/// Sends the spans that have ended, and none from then on.
pub async fn flush() {
    if let Some(tracer) = TRACER.get() {
        let provider = tracer.provider.clone();
        // It blocks its thread. A collector that is away has been logged.
        let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LIMIT)).await;
    }
}

pub(super) fn tracer() -> Option<&'static Tracer> {
    TRACER.get()
}

/// Begins spans that are exported.
pub(super) struct Tracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Tracer {
    pub fn begin(
        &self,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        links: &[&TraceContext],
        (name, attributes): (String, Attributes),
    ) -> Span {
        let kind = match kind {
            SpanKind::Request => opentelemetry::trace::SpanKind::Server,
            SpanKind::Message => opentelemetry::trace::SpanKind::Consumer,
        };
        let state = parent.and_then(|parent| parent.state.clone());
        let parent = match parent.and_then(remote) {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        let attributes = attributes
            .into_iter()
            .map(|(name, value)| KeyValue::new(name, value));
        let links = links
            .iter()
            .filter_map(|context| remote(context))
            .map(Link::with_context)
            .collect();
        let span = SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_attributes(attributes)
            .with_links(links)
            .start_with_context(&self.tracer, &parent);
        let own = span.span_context();
        let context = TraceContext {
            parent: format!(
                "00-{}-{}-{:02x}",
                own.trace_id(),
                own.span_id(),
                own.trace_flags().to_u8()
            ),
            state,
        };
        Span {
            context: Some(context),
            exported: Some(Exported(Mutex::new(span))),
        }
    }
}

/// Returns the context of a span of another process, or of another delivery.
fn remote(context: &TraceContext) -> Option<SpanContext> {
    let part = |from: usize, to: usize| context.parent.get(from..to);
    let flags = u8::from_str_radix(part(53, 55)?, 16).ok()?;
    Some(SpanContext::new(
        TraceId::from_hex(part(3, 35)?).ok()?,
        SpanId::from_hex(part(36, 52)?).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    ))
}

/// A span that is exported when it is dropped.
pub(super) struct Exported(Mutex<opentelemetry_sdk::trace::Span>);

impl Exported {
    pub fn fail(&self, reason: &str) {
        let mut span = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        span.set_status(Status::error(reason.to_owned()));
    }
}

/// Sends requests for the library's thread, which has no runtime.
struct Client {
    http: reqwest::Client,
    runtime: Handle,
    tasks: TaskTracker,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl HttpClient for Client {
    fn send_bytes<'s, 'f>(
        &'s self,
        request: Request<Bytes>,
    ) -> BoxFuture<'f, Result<Response<Bytes>, HttpError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request))
    }
}

impl Client {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.http.clone();
        let exchange = async move {
            let (parts, body) = request.into_parts();
            let response = client
                .request(parts.method, parts.uri.to_string())
                .headers(parts.headers)
                .body(body)
                .send()
                .await?
                .error_for_status()?;
            let (status, headers) = (response.status(), response.headers().clone());
            let mut made = Response::new(response.bytes().await?);
            *made.status_mut() = status;
            *made.headers_mut() = headers;
            Ok::<_, reqwest::Error>(made)
        };
        let sent = self.tasks.spawn_on(exchange, &self.runtime).await;
        let sent: Result<_, HttpError> = match sent {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(error.into()),
            Err(ended) => Err(ended.into()),
        };
        sent.inspect_err(|error| {
            let source = error.source().map(ToString::to_string);
            tracing::warn!(%error, source, "spans cannot be exported; they are dropped");
        })
    }
}
