//! Sets up the log of a program: what is written to standard error, and in which form.
//!
//! What must stay true:
//! - A line that cannot be written is lost, and nothing else is.
//! - Each line that the handling of a delivery causes carries its ids ([`crate::current`]).
//! - A failure that repeats becomes one line with a count ([`flood`]).
//! - Escape codes are written to terminals only. No text from outside turns or hides a line.

mod flood;
mod line;
mod printable;

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use tracing_subscriber::fmt::format::{DefaultFields, JsonFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use self::flood::Floods;
use self::line::LineFormat;
pub use self::printable::{is_hidden, printable};

/// Filters for targets whose lines do not help an operator. The broker's library logs as errors
/// what we handle.
const QUIET: &str = "sqlx::postgres::notice=warn,lapin=off";

static FLOODS: OnceLock<Arc<Floods>> = OnceLock::new();

/// The form of the lines of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people: one line of text.
    #[default]
    Text,
    /// For programs: one JSON object in a line.
    Json,
}

impl LogFormat {
    /// Returns the name of the form in settings: `text` or `json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!(
                "{other:?} is not a format of the log; expected text or json"
            )),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is logged, as a setting says it: for example `info` or `batchwright=debug`.
#[derive(Debug, Clone)]
pub struct LogFilter(String);

impl LogFilter {
    /// Returns the text, for [`set_up`].
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match EnvFilter::builder().parse(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(_) => Err(format!(
                "{text:?} is not a filter of the log; expected a level (error, warn, info, debug, trace or off), or levels \
                 of targets such as batchwright=debug, separated by commas"
            )),
        }
    }
}

/// Sets up the log of this process, unless the program has set up one. `filter` selects what is
/// logged, for example `info` or `batchwright=debug`.
pub fn set_up(filter: &str, format: LogFormat) {
    let floods = Arc::clone(FLOODS.get_or_init(|| Arc::new(Floods::new(write_line))));
    let filter = EnvFilter::builder().parse_lossy(format!("{QUIET},{filter}"));
    // An error means that the program has set up logging itself.
    let _ = tracing_subscriber::registry()
        .with(lines(format, floods, || PrintableLines(std::io::stderr())).with_filter(filter))
        .try_init();
    if format == LogFormat::Json {
        log_panics();
    }
}

/// Logs each panic as one event, instead of as text on standard error, which is no line of a JSON
/// log. [`set_up`] does so for JSON. Call it in a program that sets up such a log itself.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let text = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(place, "panicked: {text}");
    }));
}

/// Writes the counts of repeated failures that are not written yet. Call it before the process
/// ends.
pub fn flush() {
    if let Some(floods) = FLOODS.get() {
        floods.flush();
    }
}

/// Returns the layer that writes lines in this form.
fn lines<W>(
    format: LogFormat,
    floods: Arc<Floods>,
    writer: W,
) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> tracing_subscriber::fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer()
        // Reporting that standard error cannot be written panics if standard error cannot be
        // written.
        .log_internal_errors(false)
        .with_writer(writer);
    // By default the layer colours its lines unless the variable NO_COLOR is set.
    let layer = if std::io::stderr().is_terminal() && format == LogFormat::Text {
        layer
    } else {
        layer.with_ansi(false)
    };
    match format {
        LogFormat::Text => layer
            .fmt_fields(DefaultFields::new())
            .event_format(LineFormat { format, floods })
            .boxed(),
        LogFormat::Json => layer
            .fmt_fields(JsonFields::new())
            .event_format(LineFormat { format, floods })
            .boxed(),
    }
}

fn write_line(line: &str) {
    // Nobody could be told about an error.
    let _ = PrintableLines(std::io::stderr()).write_all(line.as_bytes());
}

/// Writes lines in their printable form.
struct PrintableLines<W>(W);

impl<W: io::Write> io::Write for PrintableLines<W> {
    /// Writes whole lines: the layer and [`write_line`] do not cut them.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(lines);
        self.0.write_all(printable(&text).as_bytes())?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests;
