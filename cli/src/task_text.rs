//! What a person reads about a task and its failed attempts. Pure.

use contract::rest::{FailedAttempt, Failure, Task};

use crate::columns;
use crate::text::{Field, age, date, duration, escaped, or_empty, with_fields};

/// The columns of a list of failed attempts.
pub const COLUMNS: &[Field<FailedAttempt>] = columns!(|it, now| {
    number("ROUND") => it.round.to_string();
    number("ATTEMPT") => or_empty(it.attempt);
    number("AGE").narrow() => or_empty(it.failure.failure_time.map(|time| age(now - time)));
    text("FAILED").wide() => or_empty(it.failure.failure_time.map(date));
    number("RAN") => ran(&it.failure);
    text("NEXT").wide() => or_empty(it.next_attempt_time.map(date));
    text("WORKER").wide() => or_empty(it.failure.failure_source.as_deref());
    text("PROCESS").cut_to(12) => process(&it.failure);
    text("KIND").cut_to(8) => or_empty(it.failure.failure_id.as_deref());
    text("MESSAGE").cut_to(20) => or_empty(it.failure.failure_message.as_deref());
});

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
    with_fields(first, &fields)
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
    or_empty(times.map(|(end, start)| duration(end.saturating_sub(start))))
}

/// Returns the process in which the attempt ran that failed: its host and its number there.
pub fn process(failure: &Failure) -> String {
    match (&failure.host, failure.process) {
        (Some(host), Some(number)) => format!("{host}:{number}"),
        (host, number) => or_empty(host.clone().or_else(|| number.map(|it| it.to_string()))),
    }
}

fn failed(number: i32) -> String {
    format!("{number} failed")
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
        let attempts = &task.failed_attempts;
        assert_eq!(
            table(COLUMNS, attempts, Some(80), NOW),
            [
                "ROUND  ATTEMPT  AGE  RAN  PROCESS        KIND    MESSAGE",
                "    1        1   3m   1s  worker-7:4711  RETRY   attempt 1: the scanner\\nis asl…",
                "    1        -    -    -  -              BROKEN  -",
            ]
        );
        let wide = table(COLUMNS, attempts, None, NOW);
        assert!(wide[1].contains("2026-11-22 17:17:33 UTC  worker-pages"));
    }
}
