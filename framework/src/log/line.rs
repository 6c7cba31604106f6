//! The form of a line: time, level, target, message, fields, and the ids of the delivery, as text
//! or as JSON.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::{LookupSpan, Scope};

use super::LogFormat;
use super::flood::{Floods, HeldLine, Verdict};
use crate::current::{self, Id};

/// The field with the number of equal lines that a line stands for.
const REPEATED: &str = "repeated";

/// Formats events, and holds those that repeat.
pub(super) struct LineFormat {
    pub format: LogFormat,
    pub floods: Arc<Floods>,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let verdict = |key| self.floods.judge(key, Instant::now());
        let key = Floods::key(event);
        match (key, key.map_or(Verdict::Write, verdict)) {
            (_, Verdict::Counted) => Ok(()),
            (Some(key), Verdict::Hold) => {
                let mut before = String::new();
                let after = self.write(ctx, &mut Writer::new(&mut before), event, true)?;
                self.floods.hold(key, HeldLine { before, after });
                Ok(())
            }
            _ => {
                let end = self.write(ctx, &mut writer, event, false)?;
                writer.write_str(end)
            }
        }
    }
}

impl LineFormat {
    /// Writes the line without its end, which it returns. If it is `counted`, a count must come
    /// before the end.
    fn write<S, N>(
        &self,
        ctx: &FmtContext<'_, S, N>,
        writer: &mut Writer<'_>,
        event: &Event<'_>,
        counted: bool,
    ) -> Result<&'static str, fmt::Error>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
        N: for<'a> FormatFields<'a> + 'static,
    {
        match self.format {
            LogFormat::Text => {
                write_text(ctx, writer, event)?;
                if counted {
                    write!(writer, " {REPEATED}=")?;
                }
                Ok("\n")
            }
            LogFormat::Json => {
                write_json(ctx, writer, event)?;
                if counted {
                    write!(writer, ",\"{REPEATED}\":")?;
                }
                Ok("}\n")
            }
        }
    }
}

fn write_text<S, N>(
    ctx: &FmtContext<'_, S, N>,
    writer: &mut Writer<'_>,
    event: &Event<'_>,
) -> fmt::Result
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let meta = event.metadata();
    let coloured = writer.has_ansi_escapes();
    let (dim, end) = if coloured {
        ("\x1b[2m", "\x1b[0m")
    } else {
        ("", "")
    };
    let colour = match *meta.level() {
        _ if !coloured => "",
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    };
    writer.write_str(dim)?;
    SystemTime.format_time(writer)?;
    write!(writer, "{end} {colour}{:>5}{end} ", meta.level().as_str())?;
    for span in ctx.event_scope().into_iter().flat_map(Scope::from_root) {
        writer.write_str(span.name())?;
        if let Some(fields) = span.extensions().get::<FormattedFields<N>>()
            && !fields.is_empty()
        {
            write!(writer, "{{{fields}}}")?;
        }
        write!(writer, "{dim}:{end} ")?;
    }
    write!(writer, "{dim}{}:{end} ", meta.target())?;
    ctx.format_fields(writer.by_ref(), event)?;
    for (name, id) in ids_not_in(meta) {
        match id {
            Id::Text(text) => write!(writer, " {name}={}", text.escape_debug())?,
            Id::Number(number) => write!(writer, " {name}={number}")?,
        }
    }
    Ok(())
}

/// Writes the line as a JSON object without its closing brace.
fn write_json<S, N>(
    ctx: &FmtContext<'_, S, N>,
    writer: &mut Writer<'_>,
    event: &Event<'_>,
) -> fmt::Result
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let meta = event.metadata();
    let mut fields = Map::new();
    for span in ctx.event_scope().into_iter().flat_map(Scope::from_root) {
        if let Some(formatted) = span.extensions().get::<FormattedFields<N>>() {
            fields.extend(parsed(formatted));
        }
        // The innermost.
        fields.insert("span".to_owned(), span.name().into());
    }
    for (name, id) in ids_not_in(meta) {
        let value = match id {
            Id::Text(text) => Value::from(text),
            Id::Number(number) => Value::from(number),
        };
        fields.insert(name.to_owned(), value);
    }
    let mut own = String::new();
    ctx.format_fields(Writer::new(&mut own), event)?;
    fields.extend(parsed(&own));
    let message = fields.remove("message").unwrap_or_default();
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    write!(
        writer,
        "{{\"timestamp\":\"{time}\",\"level\":\"{}\",\"target\":{},\"message\":{message}",
        meta.level(),
        Value::from(meta.target())
    )?;
    for (name, value) in fields {
        write!(writer, ",{}:{value}", Value::from(name))?;
    }
    Ok(())
}

/// Parses fields that the JSON formatter has written.
fn parsed(fields: &str) -> Map<String, Value> {
    serde_json::from_str(fields).unwrap_or_default()
}

/// Returns the ids of the current delivery that the event itself does not name.
fn ids_not_in(meta: &Metadata<'_>) -> impl Iterator<Item = (&'static str, Id)> {
    let fields = meta.fields();
    current::ids()
        .into_iter()
        .filter(move |(name, _)| fields.field(name).is_none())
}
