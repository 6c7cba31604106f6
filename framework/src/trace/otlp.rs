//! Exports spans by OTLP: as protobuf over HTTP, to a collector of OpenTelemetry, Jaeger, Tempo or
//! any other.
//!
//! Spans wait in memory and are sent in batches, by a thread of the library. When the collector is
//! away, they are dropped with a line in the log; nothing waits for them.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt as _, TraceFlags,
    TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient as SendsSpans, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanProcessor,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use url::Url;

use super::{Attributes, Export, SampleRatio, Span, SpanKind, TraceContext};
use crate::http::HttpClient;

/// The path of traces below the endpoint.
const PATH: &str = "/v1/traces";
/// How long the collector may take to accept a batch.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest response that is read, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// The largest number of spans that wait. Further ones are dropped.
const QUEUE: usize = 16 * 1024;
/// The largest number of links of a span: a batch of the tracking worker.
const LINKS: u32 = 1000;
/// How often spans are sent.
const INTERVAL: Duration = Duration::from_secs(1);

static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Exports the spans of this process from now on. Must be called within a tokio runtime; a later
/// call changes nothing.
///
/// # Errors
///
/// Returns a text that says what is wrong with the endpoint.
pub fn set_up(export: &Export<'_>) -> Result<(), String> {
    let Export {
        endpoint,
        service,
        ratio,
        tls,
    } = *export;
    let url = Url::parse(endpoint)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or("it is not the URL of a collector; expected one like http://localhost:4318")?;
    let client = Client {
        http: HttpClient::new(tls, LIMIT),
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
    // An error means that the process exports already.
    let _ = TRACER.set(Tracer::new(processor, service, ratio));
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
    fn new(processor: impl SpanProcessor + 'static, service: &str, ratio: SampleRatio) -> Self {
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            // Set, because by default the library reads a variable of its own and hides its
            // mistakes.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
                ratio.0,
            ))))
            .with_max_links_per_span(LINKS)
            .with_resource(
                Resource::builder_empty()
                    .with_service_name(service.to_owned())
                    .build(),
            )
            .build();
        let tracer = provider.tracer("batchwright");
        Self { provider, tracer }
    }

    /// Begins the span of messages with these contexts: a child of the first, with links to the
    /// others. Returns `None` if none of them is exported.
    pub fn begin_batch<'c>(
        &self,
        contexts: impl Iterator<Item = &'c TraceContext>,
        describe: impl FnOnce() -> (String, Attributes),
    ) -> Option<Span> {
        let mut exported: Vec<&TraceContext> = Vec::new();
        let mut is_traced = false;
        for context in contexts {
            is_traced = true;
            // Neighbours often come from the same span.
            if is_exported(context) && exported.last().is_none_or(|last| *last != context) {
                exported.push(context);
            }
        }
        match exported.split_first() {
            Some((first, others)) => {
                Some(self.begin(SpanKind::Message, Some(first), others, describe()))
            }
            None if is_traced => None,
            None => Some(self.begin(SpanKind::Message, None, &[], describe())),
        }
    }

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

/// Returns whether the spans of this trace are exported. That is decided where it begins.
pub(super) fn is_exported(context: &TraceContext) -> bool {
    // The lowest bit of the flags, which are the last two digits.
    let last = context.parent.bytes().last().map(char::from);
    last.and_then(|digit| digit.to_digit(16))
        .is_some_and(|flags| flags & 1 == 1)
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
        let mut span = self.0.lock();
        span.set_status(Status::error(reason.to_owned()));
    }
}

/// Sends requests for the library's thread, which has no runtime.
struct Client {
    http: HttpClient,
    runtime: Handle,
    tasks: TaskTracker,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl SendsSpans for Client {
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
            let described =
                |error: crate::http::HttpError| format!("{error}: {}", error.innermost());
            let mut response = client.send(request, Some(LIMIT)).await.map_err(described)?;
            let body = response.read(MAX_RESPONSE).await.map_err(described)?;
            let status = response.status();
            if !status.is_success() {
                return Err(format!("the collector responds {status}"));
            }
            let mut made = Response::new(Bytes::from(body));
            *made.status_mut() = status;
            *made.headers_mut() = response.headers().clone();
            Ok(made)
        };
        let sent = self.tasks.spawn_on(exchange, &self.runtime).await;
        let sent: Result<_, HttpError> = match sent {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(reason)) => Err(reason.into()),
            Err(ended) => Err(ended.into()),
        };
        sent.inspect_err(
            |error| tracing::warn!(%error, "spans cannot be exported; they are dropped"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SimpleSpanProcessor, SpanData, SpanExporter};

    use super::*;

    /// The spans that a tracer has exported.
    #[derive(Debug, Clone, Default)]
    struct Exports(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Exports {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().extend(batch);
            Ok(())
        }
    }

    /// Returns the spans that `work` exports, of which this ratio begins traces.
    fn exported(ratio: f64, work: impl FnOnce(&Tracer)) -> Vec<SpanData> {
        let exports = Exports::default();
        let processor = SimpleSpanProcessor::new(exports.clone());
        work(&Tracer::new(processor, "test", SampleRatio(ratio)));
        exports.0.lock().clone()
    }

    fn context(trace: u32, span: u32, flags: &str) -> TraceContext {
        TraceContext::parse(&format!("00-{trace:032x}-{span:016x}-{flags}"), None).unwrap()
    }

    fn batch(tracer: &Tracer, contexts: &[TraceContext]) -> Option<Span> {
        tracer.begin_batch(contexts.iter(), || ("batch".to_owned(), Vec::new()))
    }

    #[test]
    fn batch_is_a_child_of_the_first_exported_span_with_links_to_the_others() {
        let contexts = [
            context(1, 1, "00"),
            context(2, 2, "01"),
            context(2, 2, "01"),
            context(3, 3, "00"),
            context(4, 4, "03"),
        ];
        let spans = exported(0.0, |tracer| {
            drop(batch(tracer, &contexts));
            assert!(batch(tracer, &contexts[..1]).is_none(), "nobody wants it");
        });
        let [span] = &spans[..] else {
            panic!("{spans:?}");
        };
        assert_eq!(span.span_context.trace_id(), TraceId::from(2));
        assert_eq!(span.parent_span_id, SpanId::from(2));
        let links: Vec<TraceId> = span
            .links
            .iter()
            .map(|link| link.span_context.trace_id())
            .collect();
        assert_eq!(links, [TraceId::from(4)]);
    }

    #[test]
    fn links_of_a_batch_are_bounded_and_counted() {
        let contexts: Vec<TraceContext> =
            (1..=2500).map(|number| context(number, 1, "01")).collect();
        let spans = exported(1.0, |tracer| drop(batch(tracer, &contexts)));
        assert_eq!(
            (spans[0].links.len(), spans[0].links.dropped_count),
            (1000, 1499)
        );
    }

    #[test]
    fn ratio_decides_about_traces_that_begin_here_only() {
        let begin = |tracer: &Tracer| {
            let begin = |parent| {
                let about = ("one".to_owned(), Vec::new());
                tracer.begin(SpanKind::Message, parent, &[], about)
            };
            // What it sends tells the next process not to export either.
            let own = begin(None);
            drop(begin(own.context()));
            drop(begin(Some(&context(1, 1, "01"))));
            is_exported(own.context().unwrap())
        };
        let mut decisions = Vec::new();
        for (ratio, spans) in [(0.0, 1), (1.0, 3)] {
            let made = exported(ratio, |tracer| decisions.push(begin(tracer)));
            assert_eq!(made.len(), spans, "{made:?}");
        }
        assert_eq!(decisions, [false, true]);
    }
}
