//! What a person reads about a job: one line, one line of progress, a row of a list, or all of it.
//! Pure.

use std::collections::BTreeMap;

use contract::rest::{AwaitedJob, BlockedTasks, BlockingCondition, ExpiryPolicy, Job, Tolerance};
use contract::{JobShare, JobStatus};

use crate::columns;
use crate::task_text::due;
use crate::text::{
    Field, age, cut, date, duration, escaped, numbered, or_empty, width_of, with_fields,
};

/// The shortest form to which the id of a job is cut in a line of progress.
const LEAST_ID: usize = 8;

/// The columns of a list of jobs. They fit 80 columns with an id of 36 characters.
pub const COLUMNS: &[Field<Job>] = columns!(|it, now| {
    text("ID").cut_to(12) => it.id.clone();
    text("NAME").cut_to(6) => or_empty(it.name.as_deref());
    text("STATUS") => it.shown_status().to_string();
    number("PROGRESS") => format!("{:.2} %", percentage(it));
    number("AGE") => age(now - it.create_time);
    number("ITEMS").wide() => items(it);
    number("FAILED").wide() => it.failed_tasks.to_string();
    number("CHANGED").wide() => age(now - it.last_update_time);
    text("LABELS").cut_to(6) => labels(&it.labels);
});

/// The columns of a page that shows what goes on. Of a job that has ended, it shows how long ago
/// that was.
pub const TOP_COLUMNS: &[Field<Job>] = columns!(|it, now| {
    text("ID").cut_to(12) => it.id.clone();
    text("STATUS") => it.shown_status().to_string();
    number("PROGRESS") => format!("{:.2} %", percentage(it));
    number("DONE") => short(it.completed_items);
    number("FAILED") => short(it.failed_tasks);
    number("RETRYING") => short(it.items.retrying.unwrap_or(0));
    number("ITEMS/S") => or_empty(pace(it).map(|(rate, _)| short_rate(rate)));
    number("LEFT") => {
        match (it.end_time, it.estimated_end_time) {
            (Some(end), _) => format!("{} ago", age(now - end)),
            (None, Some(end)) => duration((end - it.last_update_time).max(0)),
            (None, None) => String::new(),
        }
    };
});

/// Returns one line with the status and progress of a job.
pub fn line(job: &Job) -> String {
    let Job {
        id,
        completed_items,
        ..
    } = job;
    let status = job.shown_status();
    let (id, percentage, failed) = (escaped(id), percentage(job), failed(job));
    let items = numbered(completed_items.unsigned_abs(), "item");
    format!("{id}: {status}, {percentage:.2} %, {items}{failed}")
}

/// Returns one line with the progress of a job that is followed. With a width, the line is not
/// wider: large numbers become short, then the id is cut.
pub fn progress(job: &Job, width: Option<usize>) -> String {
    let (id, exact) = (escaped(&job.id), rest_of_progress(job));
    let Some(width) = width else {
        return format!("{id}{exact}");
    };
    let fits = width_of(&exact) + LEAST_ID.min(width_of(&id)) <= width;
    let rest = if fits {
        exact
    } else {
        short_rest_of_progress(job)
    };
    let for_id = width.saturating_sub(width_of(&rest)).max(LEAST_ID);
    cut(&format!("{}{rest}", cut(&id, for_id)), width)
}

fn rest_of_progress(job: &Job) -> String {
    let percentage = percentage(job);
    let (status, items, failed) = (job.shown_status(), items(job), failed(job));
    let pace = pace(job).map(|(rate, left)| {
        let rate = if rate < 9.95 {
            format!("{rate:.1}")
        } else {
            format!("{rate:.0}")
        };
        format!(" ({rate} items/s{left})")
    });
    format!(
        ": {status}, {percentage:.2} %, {items} items{failed}{}",
        pace.unwrap_or_default()
    )
}

/// Returns the same in fewer characters.
fn short_rest_of_progress(job: &Job) -> String {
    let percentage = percentage(job);
    let status = match job.shown_status() {
        JobStatus::Active => String::new(),
        status => format!(" {status},"),
    };
    let total = job.items.total.filter(|total| *total > job.completed_items);
    let more = if job.items.total_is_final { "" } else { "+" };
    let total = total.map(|total| format!(" of {}{more}", short(total)));
    let (done, total) = (short(job.completed_items), total.unwrap_or_default());
    let failed = match job.failed_tasks {
        0 => String::new(),
        failed => format!(", {} failed", short(failed)),
    };
    let pace = pace(job).map(|(rate, left)| format!(" ({}/s{left})", short_rate(rate)));
    format!(
        ":{status} {percentage:.2} %, {done}{total}{failed}{}",
        pace.unwrap_or_default()
    )
}

fn short_rate(rate: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "three digits are left")]
    short(rate.round() as i64)
}

/// Returns a number with three digits: `987`, `45.2k`, `4.52M`.
fn short(number: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are left")]
    let (mut value, mut unit) = (number as f64, "");
    for next in ["k", "M", "G", "T"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    let digits = match value {
        _ if unit.is_empty() => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

/// Returns the lines about a job: its first line, then each further thing that is known of it.
pub fn details(job: &Job, now: i64) -> Vec<String> {
    let ago = |time: i64| format!("{} ({} ago)", date(time), age(now - time));
    let mut fields: Vec<(&str, String)> = Vec::new();
    let mut text = |field, value: &Option<String>| {
        fields.extend(
            value
                .as_ref()
                .map(|value| (field, escaped(value).into_owned())),
        );
    };
    text("name", &job.name);
    text("description", &job.description);
    text("external data", &job.external_data);
    text("correlation id", &job.correlation_id);
    text("owner", &job.owner);
    if !job.labels.is_empty() {
        fields.push(("labels", labels(&job.labels)));
    }
    fields.push(("created", ago(job.create_time)));
    fields.push(("changed", ago(job.last_update_time)));
    fields.extend(job.due_time.map(|time| ("starts", date(time))));
    fields.extend(job.start_time.map(|time| ("started", ago(time))));
    fields.extend(job.end_time.map(|time| ("ended", ended(job, time))));
    fields.extend(
        job.estimated_end_time
            .map(|time| ("ends about", date(time))),
    );
    if let Some(parts) = parts(job) {
        fields.push(("items", parts));
    }
    if let Some(Tolerance { limit, above }) = job.on_failure.tolerance() {
        let tolerates = format!("{limit} failed items, then {}", above.name());
        fields.push(("tolerates", tolerates));
    }
    fields.extend(
        job.retry
            .as_deref()
            .map(|policy| ("retry", escaped(policy).into_owned())),
    );
    fields.extend(
        job.task_time_limit
            .map(|limit| i64::from(limit.seconds()) * 1000)
            .map(|millis| {
                (
                    "time limit",
                    format!("{} for each attempt of a task", duration(millis)),
                )
            }),
    );
    if job.share != JobShare::USUAL {
        fields.push(("share", job.share.to_string()));
    }
    if job.delay > 0 {
        fields.push(("delay", duration(job.delay.saturating_mul(1000))));
    }
    if job.suspended {
        fields.push(("suspended", "until its partition is dispatched".to_owned()));
    }
    fields.extend(
        job.waiting_for
            .iter()
            .map(|job| ("waits for", awaited(job))),
    );
    let mut expiry = job.expiry.clone();
    fields.extend(
        expiry
            .policies()
            .map(|(status, policy)| ("expiry", expires(status.name(), policy))),
    );
    if job.failed_attempts > 0 {
        fields.push(("retries", retries(job, now)));
    }
    if let Some(blocked) = &job.blocked {
        fields.push(("blocked", blocked_since(blocked, now)));
        let conditions = blocked.conditions.iter();
        fields.extend(conditions.map(|it| ("condition", condition(it, now))));
    }
    let failures = job.failure_counts.iter();
    fields
        .extend(failures.map(|(kind, count)| ("failures", format!("{count} x {}", escaped(kind)))));
    fields.extend(
        job.notes
            .iter()
            .map(|note| ("note", escaped(note).into_owned())),
    );
    with_fields(line(job), &fields)
}

/// Returns the progress over the items, if it is known. CAF's percentage counts the last message of
/// a split like an item.
fn percentage(job: &Job) -> f64 {
    job.progress.unwrap_or(job.percentage_complete)
}

fn failed(job: &Job) -> String {
    if job.failed_tasks == 0 {
        return String::new();
    }
    format!(", {} failed", job.failed_tasks)
}

fn items(job: &Job) -> String {
    let (done, items) = (job.completed_items, &job.items);
    match items.total {
        Some(total) if total > done && items.total_is_final => format!("{done} of {total}"),
        Some(total) if total > done => format!("{done} of {total} or more"),
        _ => done.to_string(),
    }
}

/// Returns the rate of an unfinished job, and the text of the time that is left, as far as the job
/// service tells them.
fn pace(job: &Job) -> Option<(f64, String)> {
    let rate = job.items_per_second.filter(|_| !job.status.is_finished())?;
    // Both times are the job service's, whose clock may differ from the one here.
    let left = job.estimated_end_time.map(|end| {
        let left = duration((end - job.last_update_time).max(0));
        format!(", {left} left")
    });
    Some((rate, left.unwrap_or_default()))
}

fn ended(job: &Job, end: i64) -> String {
    let took = job
        .start_time
        .map(|start| format!(" (took {})", duration(end - start)));
    format!("{}{}", date(end), took.unwrap_or_default())
}

/// Returns what has become of the items, and how fast, as far as it is known.
fn parts(job: &Job) -> Option<String> {
    let items = &job.items;
    let at_least = if items.total_is_final { "" } else { " or more" };
    let mut parts = vec![format!("{}{at_least}", items.total?)];
    let named = [
        ("done", Some(items.done)),
        ("failed", Some(items.failed)),
        ("retrying", items.retrying),
        ("running", items.running),
        ("waiting", items.waiting),
    ];
    let named = named
        .into_iter()
        .filter_map(|(name, number)| Some((name, number.filter(|number| *number > 0)?)));
    parts.extend(named.map(|(name, number)| format!("{number} {name}")));
    parts.extend(
        job.items_per_second
            .map(|rate| format!("{rate:.1} items/s")),
    );
    Some(parts.join(", "))
}

/// Returns how many attempts were followed by another one, and when the next one is due.
fn retries(job: &Job, now: i64) -> String {
    let next = job.next_attempt_time.map(|time| due(time, now));
    let next = next.map(|next| format!("; next {next}"));
    let attempts = numbered(job.failed_attempts.unsigned_abs(), "attempt");
    format!("after {attempts}{}", next.unwrap_or_default())
}

/// Returns how many tasks wait for conditions, and since when.
fn blocked_since(blocked: &BlockedTasks, now: i64) -> String {
    let tasks = numbered(blocked.tasks, "task");
    let rest = if blocked.nothing_else_under_way {
        "; nothing else is under way"
    } else {
        ""
    };
    format!("{tasks} for {}{rest}", age(now - blocked.since))
}

fn condition(condition: &BlockingCondition, now: i64) -> String {
    let BlockingCondition {
        key,
        code,
        reason,
        tasks,
        tests,
        next_test,
        ..
    } = condition;
    let next = next_test.map(|time| format!(", next test {}", due(time, now)));
    let (code, reason) = (escaped(code), escaped(reason));
    let (tasks, tests) = (numbered(*tasks, "task"), numbered((*tests).into(), "test"));
    format!(
        "{key} {code}: {reason} ({tasks}, {tests}{})",
        next.unwrap_or_default()
    )
}

fn labels(labels: &BTreeMap<String, Option<String>>) -> String {
    let label = |(key, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{}={}", escaped(key), escaped(value)),
        None => escaped(key).into_owned(),
    };
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

fn awaited(job: &AwaitedJob) -> String {
    let status = job.status.map_or("not created yet", |status| status.name());
    format!("{} ({status})", escaped(&job.job_id))
}

fn expires(status: &str, policy: &ExpiryPolicy) -> String {
    format!("if {status}: {}", escaped(&policy.expiry_time))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::text::table;

    const NOW: i64 = 1_795_368_003_000;
    const MINUTE: i64 = 60_000;

    fn job(fields: &Value) -> Job {
        let mut job = json!({
            "id": "words", "status": "Active", "createTime": NOW - 3 * MINUTE, "lastUpdateTime": NOW - 5000, "percentageComplete": 45.2,
            "failures": [], "labels": {}, "completedItems": 4520,
        });
        job.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        serde_json::from_value(job).unwrap()
    }

    fn jobs() -> [Job; 3] {
        [
            job(
                &json!({"name": "Words of the whole archive", "labels": {"team": "search", "year": "2026"}}),
            ),
            job(&json!({
                "id": "0197f3a2-7c1b-7c52-9e0d-0c6a1f2b3c4d", "status": "Completed", "percentageComplete": 100.0,
                "createTime": NOW - 50 * 60 * MINUTE, "failedTasks": 12,
            })),
            job(
                &json!({"id": "evil\u{1b}[2J", "name": "a\nb", "status": "Waiting", "percentageComplete": 0.0}),
            ),
        ]
    }

    #[test]
    fn list_fits_eighty_columns_and_a_wide_one_is_not_cut() {
        assert_eq!(
            table(COLUMNS, &jobs(), Some(80), NOW),
            [
                "ID                                    NAME      STATUS     PROGRESS  AGE  LABELS",
                "words                                 Words o…  Active      45.20 %   3m  team=…",
                "0197f3a2-7c1b-7c52-9e0d-0c6a1f2b3c4d  -         Completed  100.00 %   2d  -",
                "evil\\u{1b}[2J                         a\\nb      Waiting      0.00 %   3m  -",
            ]
        );
        assert_eq!(
            table(COLUMNS, &jobs()[..1], None, NOW),
            [
                "ID     NAME                        STATUS  PROGRESS  AGE  ITEMS  FAILED  CHANGED  LABELS",
                "words  Words of the whole archive  Active   45.20 %   3m   4520       0       5s  team=search,year=2026",
            ]
        );
    }

    #[test]
    fn line_of_progress_fits_and_cuts_the_id_first() {
        let [first, mut second, _] = jobs();
        assert_eq!(
            progress(&first, Some(79)),
            "words: Active, 45.20 %, 4520 items"
        );
        let counted = job(&json!({
            "items": {"total": 10_000, "totalIsFinal": true, "done": 4520, "failed": 0}, "progress": 45.2, "itemsPerSecond": 113.4,
            "estimatedEndTime": NOW + 75_000
        }));
        assert_eq!(
            progress(&counted, Some(79)),
            "words: Active, 45.20 %, 4520 of 10000 items (113 items/s, 1m20s left)"
        );
        let large = job(&json!({
            "items": {"total": 10_000_000_000_i64, "totalIsFinal": false, "done": 4_520_000_000_i64}, "progress": 45.2,
            "completedItems": 4_520_000_000_i64, "failedTasks": 31_415, "itemsPerSecond": 512_345.6, "estimatedEndTime": NOW + 4_000_000,
        }));
        assert_eq!(
            progress(&large, Some(79)),
            "words: 45.20 %, 4.52G of 10.0G+, 31.4k failed (512k/s, 1h06m left)"
        );
        second.status = JobStatus::Active;
        assert_eq!(
            progress(&second, Some(60)),
            "0197f3a2-7c1b-7c52…: Active, 100.00 %, 4520 items, 12 failed"
        );
        for width in 0..100 {
            let line = progress(&second, Some(width));
            assert!(width_of(&line) <= width, "{line}");
        }
    }

    #[test]
    fn page_of_jobs_fits_eighty_columns() {
        let [first, mut second, third] = jobs();
        second.end_time = Some(NOW - 7 * MINUTE);
        let fast = job(&json!({
            "items": {"total": 10_000_000, "totalIsFinal": true, "done": 4_520_000, "retrying": 12_345}, "progress": 45.2,
            "completedItems": 4_520_000, "failedTasks": 31_415, "itemsPerSecond": 51_234.5, "estimatedEndTime": NOW + 4_000_000,
        }));
        assert_eq!(
            table(TOP_COLUMNS, &[fast, first, second, third], Some(80), NOW),
            [
                "ID                 STATUS     PROGRESS   DONE  FAILED  RETRYING  ITEMS/S    LEFT",
                "words              Active      45.20 %  4.52M   31.4k     12.3k    51.2k   1h06m",
                "words              Active      45.20 %  4.52k       0         0        -       -",
                "0197f3a2-7c1b-7c…  Completed  100.00 %  4.52k      12         0        -  7m ago",
                "evil\\u{1b}[2J      Waiting      0.00 %  4.52k       0         0        -       -",
            ]
        );
    }

    #[test]
    fn short_numbers_have_three_digits() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.00k"),
            (9_995, "10.0k"),
            (45_249, "45.2k"),
            (999_499, "999k"),
            (999_500, "1.00M"),
            (i64::MAX, "9223372T"),
        ] {
            assert_eq!(short(number), expected);
        }
    }

    #[test]
    fn details_tell_what_is_known_and_nothing_else() {
        assert_eq!(
            details(&jobs()[2], NOW),
            [
                "evil\\u{1b}[2J: Waiting, 0.00 %, 4520 items",
                "  name     a\\nb",
                "  created  2026-11-22 17:17:03 UTC (3m ago)",
                "  changed  2026-11-22 17:19:58 UTC (5s ago)",
            ]
        );
        let ended = job(&json!({
            "status": "Failed", "startTime": NOW - 100_000, "endTime": NOW - 10_000, "itemsPerSecond": 50.04,
            "items": {"total": 4600, "totalIsFinal": true, "done": 4520, "failed": 3, "retrying": 0, "running": 7, "waiting": 70},
            "failedAttempts": 12, "nextAttemptTime": NOW + 5000,
        }));
        assert_eq!(
            details(&ended, NOW)[3..],
            [
                "  started  2026-11-22 17:18:23 UTC (1m ago)",
                "  ended    2026-11-22 17:19:53 UTC (took 1m30s)",
                "  items    4600, 4520 done, 3 failed, 7 running, 70 waiting, 50.0 items/s",
                "  retries  after 12 attempts; next 2026-11-22 17:20:08 UTC (in 5s)",
            ]
        );
        let job = job(&json!({
            "labels": {"team": "search", "urgent": null}, "correlationId": "c-1", "delay": 90, "suspended": true,
            "waitingFor": [{"jobId": "a", "status": "Active"}, {"jobId": "b", "status": null}],
            "expiry": {"Completed": {"expiryTime": "lastUpdateTime+P1D"}},
            "failureCounts": {"RESULT_EXCEPTION": 3}, "notes": ["There is no target pipe."],
            "onFailure": {"continue": {"tolerate": "2%", "above": "continue"}}, "taskTimeLimit": 5400,
        }));
        assert_eq!(
            details(&job, NOW)[1..],
            [
                "  correlation id  c-1",
                "  labels          team=search,urgent",
                "  created         2026-11-22 17:17:03 UTC (3m ago)",
                "  changed         2026-11-22 17:19:58 UTC (5s ago)",
                "  tolerates       2% failed items, then continue",
                "  time limit      1h30m for each attempt of a task",
                "  delay           1m30s",
                "  suspended       until its partition is dispatched",
                "  waits for       a (Active)",
                "  waits for       b (not created yet)",
                "  expiry          if Completed: lastUpdateTime+P1D",
                "  failures        3 x RESULT_EXCEPTION",
                "  note            There is no target pipe.",
            ]
        );
    }

    #[test]
    fn one_of_a_thing_is_told_in_the_singular() {
        let condition = json!({
            "key": "k", "code": "C", "reason": "it is away", "since": NOW - MINUTE, "tasks": 1, "tests": 1, "nextTest": NOW + 5000
        });
        let job = job(&json!({
            "completedItems": 1, "failedAttempts": 1, "blocked": {"tasks": 1, "since": NOW - MINUTE, "conditions": [condition]}
        }));
        let details = details(&job, NOW);
        assert_eq!(details[0], "words: Active, 45.20 %, 1 item");
        assert_eq!(
            details[3..],
            [
                "  retries    after 1 attempt",
                "  blocked    1 task for 1m",
                "  condition  k C: it is away (1 task, 1 test, next test 2026-11-22 17:20:08 UTC (in 5s))",
            ]
        );
    }

    #[test]
    fn percentage_is_that_of_the_items() {
        let job = job(&json!({"percentageComplete": 50.0, "progress": 0.0, "completedItems": 0}));
        assert_eq!(line(&job), "words: Active, 0.00 %, 0 items");
        assert!(table(COLUMNS, &[job], None, NOW)[1].contains("Active    0.00 %"));
    }
}
