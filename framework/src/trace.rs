//! Traces: which message caused which, as spans in the sense of OpenTelemetry.
//!
//! The trace of a job begins with the request that creates it. A message carries the context of the
//! span that sent it in the headers `traceparent` and `tracestate` (W3C Trace Context): the start
//! message, subtasks, outputs and reports. A process that exports spans begins one for each
//! delivery, or one for each batch of deliveries that are handled together, with links to all of
//! them. A process that does not export passes the headers on as they are. Whether a trace is
//! exported is decided where it begins, and its context says so.
//!
//! What must stay true:
//! - The names of the headers never change: they are in the queues.
//! - A context that is not valid is dropped, and the message is handled all the same.
//! - In a process that does not export, a message without a context costs a look at its headers.

#[cfg(feature = "otlp")]
mod otlp;

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "otlp")]
pub use self::otlp::{flush, set_up};
use crate::broker::{HeaderValue, Headers};
use crate::tls::Tls;

/// The header with the ids of the trace and of the span that sent the message.
pub const TRACEPARENT: &str = "traceparent";
/// The header with what tracing systems add to the ids.
pub const TRACESTATE: &str = "tracestate";
/// The longest state that is carried on, in bytes: what the specification demands at least.
const LONGEST_STATE: usize = 512;
/// The length of a context of the version that is known: `00-`, 32 digits, `-`, 16 digits, `-`, 2
/// digits.
const LENGTH: usize = 55;

/// The context of a span, as messages and requests carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// In the form of version 00.
    parent: String,
    state: Option<String>,
}

impl TraceContext {
    /// Reads the context of a request or a message. Returns `None` if it is not valid. A state that
    /// is too long or not visible ASCII is left out.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let bytes = parent.as_bytes();
        // A later version may add fields.
        let is_complete = match bytes.len() {
            LENGTH => true,
            more if more > LENGTH => !parent.starts_with("00") && bytes[LENGTH] == b'-',
            _ => false,
        };
        let is_hex = |range: std::ops::Range<usize>| {
            bytes[range]
                .iter()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_zero = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == b'0');
        let is_valid = is_complete
            && [2, 35, 52].iter().all(|at| bytes[*at] == b'-')
            && [0..2, 3..35, 36..52, 53..55].into_iter().all(is_hex)
            && !parent.starts_with("ff")
            && !is_zero(3..35)
            && !is_zero(36..52);
        let state = state.filter(|state| {
            (1..=LONGEST_STATE).contains(&state.len())
                && state.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        });
        is_valid.then(|| Self {
            parent: format!("00{}", &parent[2..LENGTH]),
            state: state.map(str::to_owned),
        })
    }

    /// Reads the context of a message.
    pub fn of(headers: &Headers) -> Option<Self> {
        let text = |name| match headers.get(name) {
            Some(HeaderValue::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        Self::parse(text(TRACEPARENT)?, text(TRACESTATE))
    }

    /// Returns the headers of a message with this context.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let state = self.state.as_deref().map(|state| (TRACESTATE, state));
        std::iter::once((TRACEPARENT, self.parent.as_str())).chain(state)
    }

    /// Sets the context of a message.
    pub(crate) fn set_on(&self, headers: &mut Headers) {
        headers.remove(TRACESTATE);
        for (name, value) in self.headers() {
            headers.set(name, HeaderValue::Text(value.into()));
        }
    }
}

/// What a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A request that the service responds to.
    Request,
    /// The handling of messages.
    Message,
}

/// A span that ends when it is dropped. In a process that does not export, it only carries the
/// context of its parent.
pub struct Span {
    context: Option<TraceContext>,
    #[cfg(feature = "otlp")]
    exported: Option<otlp::Exported>,
}

impl Span {
    /// Begins a span with this name and these attributes, as a child of `parent`.
    ///
    /// The name and the attributes are made only if the span is exported.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(
            unused_variables,
            reason = "a span that is not exported has no description"
        )
    )]
    pub fn begin(
        kind: SpanKind,
        parent: Option<TraceContext>,
        describe: impl FnOnce() -> (String, Attributes),
    ) -> Self {
        #[cfg(feature = "otlp")]
        if let Some(tracer) = otlp::tracer()
            && parent.as_ref().is_none_or(otlp::is_exported)
        {
            return tracer.begin(kind, parent.as_ref(), &[], describe());
        }
        Self::carry(parent)
    }

    /// Begins the span of messages with these contexts that are handled together: a child of the
    /// first that is exported, with links to the others.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(
            unused_variables,
            clippy::needless_pass_by_value,
            reason = "a span that is not exported has no description"
        )
    )]
    pub(crate) fn begin_batch<'c>(
        contexts: impl Iterator<Item = &'c TraceContext>,
        describe: impl FnOnce() -> (String, Attributes),
    ) -> Self {
        #[cfg(feature = "otlp")]
        if let Some(tracer) = otlp::tracer() {
            return tracer
                .begin_batch(contexts, describe)
                .unwrap_or(Self::carry(None));
        }
        Self::carry(None)
    }

    /// Returns a span that is not exported. It carries the context of its parent.
    pub(crate) const fn carry(context: Option<TraceContext>) -> Self {
        Self {
            context,
            #[cfg(feature = "otlp")]
            exported: None,
        }
    }

    /// Returns whether the span is exported. Then its context is its own.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(clippy::unused_self, reason = "nothing is exported")
    )]
    pub(crate) const fn is_exported(&self) -> bool {
        #[cfg(feature = "otlp")]
        return self.exported.is_some();
        #[cfg(not(feature = "otlp"))]
        return false;
    }

    /// Returns the context for the messages that the span sends.
    pub const fn context(&self) -> Option<&TraceContext> {
        self.context.as_ref()
    }

    /// Marks the span as failed.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(unused_variables, reason = "a span that is not exported has no status")
    )]
    pub fn fail(&self, reason: &str) {
        #[cfg(feature = "otlp")]
        if let Some(exported) = &self.exported {
            exported.fail(reason);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:?})", self.context)
    }
}

/// What is known about a span, by name.
pub type Attributes = Vec<(&'static str, String)>;

/// Where the spans of a process go.
#[derive(Debug, Clone, Copy)]
pub struct Export<'a> {
    /// The collector, for example `http://localhost:4318`.
    pub endpoint: &'a str,
    /// The name of the process there.
    pub service: &'a str,
    /// Which traces that begin in this process are exported.
    pub ratio: SampleRatio,
    /// Whom an encrypted connection to the collector trusts.
    pub tls: &'a Tls,
}

/// The share of the traces that begin in a process which is exported, from 0 to 1. Every other
/// process follows its decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRatio(f64);

impl Default for SampleRatio {
    fn default() -> Self {
        Self(1.0)
    }
}

impl FromStr for SampleRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Self(ratio)),
            _ => Err(format!(
                "{text:?} is not a share of all traces; expected a number from 0 to 1, for example 0.1"
            )),
        }
    }
}

impl fmt::Display for SampleRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Does nothing: this program is built without the feature `otlp`.
///
/// # Errors
///
/// Says so.
#[cfg(not(feature = "otlp"))]
pub fn set_up(_export: &Export<'_>) -> Result<(), String> {
    Err("this program is built without the feature otlp; build it with --features otlp".to_owned())
}

/// Does nothing: this program is built without the feature `otlp`.
#[cfg(not(feature = "otlp"))]
#[expect(clippy::unused_async, reason = "with the feature, it waits")]
pub async fn flush() {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn only_a_valid_context_is_carried_on() {
        for (parent, is_valid) in [
            (PARENT, true),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
                true,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
                false,
            ),
            (
                "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                false,
            ),
            (
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                false,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                false,
            ),
            (
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(
                TraceContext::parse(parent, None).is_some(),
                is_valid,
                "{parent}"
            );
        }
        // Version 00 is what we know of a later one.
        let later = format!("cc{}-what-the-future-brings", &PARENT[2..]);
        assert_eq!(
            TraceContext::parse(&later, None),
            TraceContext::parse(PARENT, None)
        );
    }

    #[test]
    fn ratio_is_a_number_from_0_to_1() {
        for (text, is_valid) in [
            ("0", true),
            ("0.25", true),
            ("1", true),
            ("1.1", false),
            ("-0.1", false),
            ("NaN", false),
            ("10%", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<SampleRatio>().is_ok(), is_valid, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_harm_and_what_is_valid_stays_as_it_is(
            parent in "\\PC{0,80}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,20})?",
            state in proptest::option::of("\\PC{0,600}"),
        ) {
            if let Some(context) = TraceContext::parse(&parent, state.as_deref()) {
                let mut headers = Headers::default();
                context.set_on(&mut headers);
                prop_assert_eq!(TraceContext::of(&headers), Some(context));
                let is_short = headers.iter().all(|(_, value)| match value {
                    HeaderValue::Text(text) => text.len() <= LONGEST_STATE && text.is_ascii(),
                    HeaderValue::Integer(_) => false,
                });
                prop_assert!(is_short);
            }
        }
    }
}
