//! Tests of the lines of the log, as they are written.

use std::io;

use contract::{BatchTask, TaskMessage, Tracking};
use parking_lot::Mutex;

use super::*;
use crate::current::CurrentMessage;

/// What was written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.0.lock();
        written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that `work` logs in this form.
fn lines_of(format: LogFormat, work: impl FnOnce()) -> Vec<String> {
    static HELD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let written = Written::default();
    let floods = Arc::new(Floods::new(|line| {
        HELD.lock().push(line.to_owned());
    }));
    let writer = written.clone();
    let layer = lines(format, Arc::clone(&floods), move || {
        PrintableLines(writer.clone())
    });
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(subscriber, work);
    floods.flush();
    let text = String::from_utf8(written.0.lock().clone()).unwrap();
    text.lines()
        .map(str::to_owned)
        .chain(HELD.lock().drain(..))
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn message() -> Arc<CurrentMessage> {
    let tracking = Tracking {
        job_task_id: Some("acme:reindex!42.3.7*".to_owned()),
        ..Tracking::default()
    };
    let message = TaskMessage {
        tracking: Some(tracking),
        correlation_id: Some("corr-1".into()),
        ..TaskMessage::new("t.3.7*", "in", &BatchTask::default()).unwrap()
    };
    CurrentMessage::new("in".into(), message, 2, None, false)
}

fn handled(work: impl FnOnce()) {
    let handling = message().scope(async { work() });
    futures_util::FutureExt::now_or_never(handling).unwrap();
}

#[test]
fn no_text_from_outside_turns_or_hides_a_line() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let lines = lines_of(format, || {
            tracing::info!(job = "a\u{202e}b", "from \u{9b}2J outside");
        });
        assert!(!lines[0].contains(is_hidden), "{lines:?}");
        assert!(
            lines[0].contains("202e") && lines[0].contains("9b"),
            "{lines:?}"
        );
    }
}

#[test]
fn each_line_of_a_delivery_carries_its_ids() {
    let log = || {
        handled(|| {
            tracing::info!(size = 3, "split");
            let _span = tracing::info_span!("mine", file = "a b").entered();
            tracing::warn!(attempt = 9, "odd");
        });
        tracing::info!("outside");
    };
    let text = lines_of(LogFormat::Text, log);
    let shown: Vec<&str> = text.iter().map(|line| &line[28..]).collect();
    assert_eq!(
        shown,
        [
            " INFO batchwright_framework::log::tests: split size=3 job=acme:reindex!42 task=t.3.7* pipe=in attempt=2 correlation_id=corr-1",
            " WARN mine{file=\"a b\"}: batchwright_framework::log::tests: odd attempt=9 job=acme:reindex!42 task=t.3.7* pipe=in correlation_id=corr-1",
            " INFO batchwright_framework::log::tests: outside",
        ]
    );
    let json = lines_of(LogFormat::Json, log);
    let shown: Vec<&str> = json
        .iter()
        .map(|line| line.split_once(',').unwrap().1)
        .collect();
    assert_eq!(
        shown,
        [
            r#""level":"INFO","target":"batchwright_framework::log::tests","message":"split","attempt":2,"correlation_id":"corr-1","job":"acme:reindex!42","pipe":"in","size":3,"task":"t.3.7*"}"#,
            r#""level":"WARN","target":"batchwright_framework::log::tests","message":"odd","attempt":9,"correlation_id":"corr-1","file":"a b","job":"acme:reindex!42","pipe":"in","span":"mine","task":"t.3.7*"}"#,
            r#""level":"INFO","target":"batchwright_framework::log::tests","message":"outside"}"#,
        ]
    );
}

#[test]
fn flood_of_equal_failures_is_one_line_and_a_count() {
    let log = || {
        for number in 0..1000 {
            tracing::warn!(task = number, reason = %format!("part {number} is empty"), "a task has failed");
        }
        tracing::warn!(task = 1, reason = "something else", "a task has failed");
        for _ in 0..2 {
            tracing::info!("not a failure");
        }
    };
    let text = lines_of(LogFormat::Text, log);
    let shown: Vec<&str> = text.iter().map(|line| &line[63..]).collect();
    assert_eq!(
        shown,
        [
            "ests: a task has failed task=0 reason=part 0 is empty",
            "ests: a task has failed task=1 reason=\"something else\"",
            "ests: not a failure",
            "ests: not a failure",
            "ests: a task has failed task=1 reason=part 1 is empty repeated=999",
        ]
    );
    let json = lines_of(LogFormat::Json, log);
    assert!(
        json.len() == 5 && json[4].ends_with(r#""task":1,"repeated":999}"#),
        "{json:?}"
    );
}

#[test]
fn line_that_cannot_be_written_is_lost_without_a_panic() {
    #[derive(Clone)]
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let floods = Arc::new(Floods::new(|_| {}));
    let subscriber = tracing_subscriber::registry().with(lines(LogFormat::Text, floods, || Full));
    tracing::subscriber::with_default(subscriber, || tracing::warn!("no space"));
}

#[test]
fn filter_that_means_nothing_is_refused_with_what_is_expected() {
    for filter in ["", "info", "batchwright=debug,sqlx=off", "batchwright"] {
        assert_eq!(filter.parse::<LogFilter>().unwrap().as_str(), filter);
    }
    for filter in ["batchwright=loud", "info,batchwright=loud"] {
        let error = filter.parse::<LogFilter>().unwrap_err();
        let begin = format!("{filter:?} is not a filter of the log; expected a level");
        assert!(error.starts_with(&begin), "{error}");
    }
}
