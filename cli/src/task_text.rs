//! What a person reads about a task and its failed attempts. Pure.

use contract::rest::{FailedAttempt, Failure, Task};

use crate::text::{Column, MISSING, age, date, duration, escaped};

/// The columns of a list of failed attempts.
pub const COLUMNS: [Column; 7] = [
    Column::number("ROUND"),
    Column::number("ATTEMPT"),
    Column::number("AGE"),
    Column::number("RAN"),
    Column::cut_to("PROCESS", 12),
    Column::cut_to("KIND", 8),
    Column::cut_to("MESSAGE", 20),
];

/// The columns of a wide list of failed attempts.
pub const WIDE_COLUMNS: [Column; 9] = [
    Column::number("ROUND"),
    Column::number("ATTEMPT"),
    Column::text("FAILED"),
    Column::number("RAN"),
    Column::text("NEXT"),
    Column::text("WORKER"),
    Column::text("PROCESS"),
    Column::text("KIND"),
    Column::text("MESSAGE"),
];

/// Returns the lines about a task: its status, then each further thing that is known of it.
pub fn details(job: &str, task: &Task, now: i64) -> Vec<String> {
    let Task { id, status, .. } = task;
    let first = format!("task {} of {}: {status:?}", escaped(id), escaped(job));
    let mut fields: Vec<(&str, String)> = Vec::new();
    let since = |time: i64| format!("{} ({} ago)", date(time), age(now - time));
    fields.extend(task.since.map(|time| ("since", since(time))));
    fields.extend(task.attempts.map(|number| ("attempts", failed(number))));
    fields.extend(task.next_attempt_time.map(|time| ("next", due(time, now))));
    if let Some(done) = task.completed_subtasks {
        let all = task.subtasks.map(|all| format!(" of {all}"));
        let all = all.unwrap_or_default();
        fields.push(("subtasks", format!("{done}{all} done")));
    }
    let label = task.failure.as_ref().and_then(|it| it.label.as_ref());
    fields.extend(label.map(|label| ("item", escaped(label).into_owned())));
    let remark = task.remark.as_ref();
    fields.extend(remark.map(|remark| ("note", escaped(remark).into_owned())));
    let widest = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let fields = fields
        .into_iter()
        .map(|(name, value)| format!("  {name:widest$}  {value}"));
    std::iter::once(first).chain(fields).collect()
}

/// Returns the cells of a failed attempt in a list with [`COLUMNS`].
pub fn row(attempt: &FailedAttempt, now: i64) -> Vec<String> {
    let FailedAttempt { failure, .. } = attempt;
    let [round, number] = numbers(attempt);
    let ago = failure.failure_time.map(|time| age(now - time));
    vec![
        round,
        number,
        ago.unwrap_or_else(|| MISSING.to_owned()),
        ran(failure),
        process(failure),
        text(failure.failure_id.as_deref()),
        text(failure.failure_message.as_deref()),
    ]
}

/// Returns the cells of a failed attempt in a list with [`WIDE_COLUMNS`].
pub fn wide_row(attempt: &FailedAttempt) -> Vec<String> {
    let FailedAttempt { failure, .. } = attempt;
    let [round, number] = numbers(attempt);
    let time = |time: Option<i64>| time.map_or_else(|| MISSING.to_owned(), date);
    vec![
        round,
        number,
        time(failure.failure_time),
        ran(failure),
        time(attempt.next_attempt_time),
        text(failure.failure_source.as_deref()),
        process(failure),
        text(failure.failure_id.as_deref()),
        text(failure.failure_message.as_deref()),
    ]
}

/// Returns when something is due that waits.
pub fn due(time: i64, now: i64) -> String {
    if time > now {
        format!("{} (in {})", date(time), duration(time - now))
    } else {
        format!("{} (due)", date(time))
    }
}

/// Returns how long the attempt ran that failed.
pub fn ran(failure: &Failure) -> String {
    let times = failure.failure_time.zip(failure.start_time);
    times.map_or_else(
        || MISSING.to_owned(),
        |(end, start)| duration(end.saturating_sub(start)),
    )
}

/// Returns the process in which the attempt ran that failed: its host and its number there.
pub fn process(failure: &Failure) -> String {
    let host = failure.host.as_deref().map(escaped);
    match (host, failure.process) {
        (Some(host), Some(number)) => format!("{host}:{number}"),
        (Some(host), None) => host.into_owned(),
        (None, Some(number)) => number.to_string(),
        (None, None) => MISSING.to_owned(),
    }
}

fn failed(number: i32) -> String {
    format!("{number} failed")
}

fn numbers(attempt: &FailedAttempt) -> [String; 2] {
    let number = attempt.attempt.map(|number| number.to_string());
    [
        attempt.round.to_string(),
        number.unwrap_or_else(|| MISSING.to_owned()),
    ]
}

fn text(text: Option<&str>) -> String {
    text.map_or_else(|| MISSING.to_owned(), |text| escaped(text).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::table;

    const NOW: i64 = 1_795_368_003_000;

    #[test]
    fn task_shows_when_where_and_why_its_attempts_failed_within_eighty_columns() {
        let failure = |attempt: i64| {
            json!({
                "failureId": "RETRY", "failureTime": NOW - 100_000 * (3 - attempt), "failureSource": "worker-pages",
                "failureMessage": format!("attempt {attempt}: the scanner\nis asleep, and nobody knows for how long it will be"),
                "taskId": "3.17", "label": "page 17", "startTime": NOW - 100_000 * (3 - attempt) - 1500, "host": "worker-7", "process": 4711,
            })
        };
        let task: Task = serde_json::from_value(json!({
            "id": "3.17", "status": "Retrying", "since": NOW - 100_000, "attempts": 2, "nextAttemptTime": NOW + 45_000,
            "failure": failure(2), "failedAttempts": [
                {"round": 1, "attempt": 1, "failure": failure(1), "nextAttemptTime": NOW - 150_000},
                {"round": 1, "attempt": null, "failure": {"failureId": "BROKEN", "failureTime": null, "failureSource": null, "failureMessage": null}},
            ],
        }))
        .unwrap();
        assert_eq!(
            details("scan", &task, NOW),
            [
                "task 3.17 of scan: Retrying",
                "  since     2026-11-22 17:18:23 UTC (1m ago)",
                "  attempts  2 failed",
                "  next      2026-11-22 17:20:48 UTC (in 45s)",
                "  item      page 17",
            ]
        );
        let rows: Vec<_> = task.failed_attempts.iter().map(|it| row(it, NOW)).collect();
        assert_eq!(
            table(&COLUMNS, &rows, Some(80)),
            [
                "ROUND  ATTEMPT  AGE  RAN  PROCESS        KIND    MESSAGE",
                "    1        1   3m   1s  worker-7:4711  RETRY   attempt 1: the scanner\\nis asl…",
                "    1        -    -    -  -              BROKEN  -",
            ]
        );
        let rows: Vec<_> = task.failed_attempts.iter().map(wide_row).collect();
        assert!(
            table(&WIDE_COLUMNS, &rows, None)[1].contains("2026-11-22 17:17:33 UTC  worker-pages")
        );
    }
}
