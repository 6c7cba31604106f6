//! What a person reads about a job: one line, one line of progress, a row of a list, or all of it. Pure.

use std::collections::BTreeMap;

use contract::rest::{AwaitedJob, ExpiryPolicy, Job};

use crate::text::{Column, MISSING, age, cut, date, duration, escaped, width_of};

/// The shortest form to which the id of a job is cut in a line of progress.
const LEAST_ID: usize = 8;

/// The columns of a list of jobs. They fit 80 columns with an id of 36 characters.
pub const COLUMNS: [Column; 6] = [
    Column::cut_to("ID", 12),
    Column::cut_to("NAME", 6),
    Column::text("STATUS"),
    Column::number("PROGRESS"),
    Column::number("AGE"),
    Column::cut_to("LABELS", 6),
];

/// The columns of a wide list of jobs.
pub const WIDE_COLUMNS: [Column; 9] = [
    Column::text("ID"),
    Column::text("NAME"),
    Column::text("STATUS"),
    Column::number("PROGRESS"),
    Column::number("AGE"),
    Column::number("ITEMS"),
    Column::number("FAILED"),
    Column::number("CHANGED"),
    Column::text("LABELS"),
];

/// Returns the cells of a job in a list with [`COLUMNS`].
pub fn row(job: &Job, now: i64) -> Vec<String> {
    vec![
        escaped(&job.id).into_owned(),
        or_missing(job.name.as_deref()),
        job.status.to_string(),
        format!("{:.2} %", job.percentage_complete),
        age(now - job.create_time),
        labels(&job.labels),
    ]
}

/// Returns the cells of a job in a list with [`WIDE_COLUMNS`].
pub fn wide_row(job: &Job, now: i64) -> Vec<String> {
    let mut row = row(job, now);
    let further = [
        items(job),
        job.failed_tasks.to_string(),
        age(now - job.last_update_time),
    ];
    row.splice(5..5, further);
    row
}

/// Returns one line with the status and progress of a job.
pub fn line(job: &Job) -> String {
    let Job {
        id,
        status,
        percentage_complete,
        completed_items,
        ..
    } = job;
    let (id, failed) = (escaped(id), failed(job));
    format!("{id}: {status}, {percentage_complete:.2} %, {completed_items} items{failed}")
}

/// Returns one line with the progress of a job that is followed. With a width, the line is not wider: the id is cut first.
pub fn progress(job: &Job, width: Option<usize>) -> String {
    let (id, items, failed) = (escaped(&job.id), items(job), failed(job));
    let percentage = job.progress.unwrap_or(job.percentage_complete);
    let rest = format!(
        ": {}, {percentage:.2} %, {items} items{failed}{}",
        job.status,
        pace(job)
    );
    let Some(width) = width else {
        return format!("{id}{rest}");
    };
    let for_id = width.saturating_sub(width_of(&rest)).max(LEAST_ID);
    cut(&format!("{}{rest}", cut(&id, for_id)), width)
}

/// Returns the lines about a job: its [`line`], then each further thing that is known of it.
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
    if !job.labels.is_empty() {
        fields.push(("labels", labels(&job.labels)));
    }
    fields.push(("created", ago(job.create_time)));
    fields.push(("changed", ago(job.last_update_time)));
    fields.extend(job.due_time.map(|time| ("starts", date(time))));
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
    let failures = job.failure_counts.iter();
    fields
        .extend(failures.map(|(kind, count)| ("failures", format!("{count} x {}", escaped(kind)))));
    fields.extend(
        job.notes
            .iter()
            .map(|note| ("note", escaped(note).into_owned())),
    );
    let widest = fields
        .iter()
        .map(|(field, _)| field.len())
        .max()
        .unwrap_or(0);
    let fields = fields
        .iter()
        .map(|(field, value)| format!("  {field:widest$}  {value}"));
    std::iter::once(line(job)).chain(fields).collect()
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

/// Returns the rate of an unfinished job and the time that is left, as far as the job service tells them.
fn pace(job: &Job) -> String {
    let Some(rate) = job.items_per_second.filter(|_| !job.status.is_finished()) else {
        return String::new();
    };
    // Both times are the job service's, whose clock may differ from the one here.
    let left = job
        .estimated_end_time
        .map(|end| (end - job.last_update_time).max(0));
    let left = left.map(|left| format!(", {} left", duration(left)));
    format!(" ({rate:.0} items/s{})", left.unwrap_or_default())
}

fn labels(labels: &BTreeMap<String, Option<String>>) -> String {
    if labels.is_empty() {
        return MISSING.to_owned();
    }
    let label = |(key, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{}={}", escaped(key), escaped(value)),
        None => escaped(key).into_owned(),
    };
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

fn or_missing(text: Option<&str>) -> String {
    text.map_or_else(|| MISSING.to_owned(), |text| escaped(text).into_owned())
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
    use contract::JobStatus;
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
        let rows = jobs().map(|job| row(&job, NOW));
        assert_eq!(
            table(&COLUMNS, &rows, Some(80)),
            [
                "ID                                    NAME      STATUS     PROGRESS  AGE  LABELS",
                "words                                 Words o…  Active      45.20 %   3m  team=…",
                "0197f3a2-7c1b-7c52-9e0d-0c6a1f2b3c4d  -         Completed  100.00 %   2d  -",
                "evil\\u{1b}[2J                         a\\nb      Waiting      0.00 %   3m  -",
            ]
        );
        let rows = jobs().map(|job| wide_row(&job, NOW));
        assert_eq!(
            table(&WIDE_COLUMNS, &rows[..1], None),
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
        let job = job(&json!({
            "labels": {"team": "search", "urgent": null}, "correlationId": "c-1", "delay": 90, "suspended": true,
            "waitingFor": [{"jobId": "a", "status": "Active"}, {"jobId": "b", "status": null}],
            "expiry": {"Completed": {"expiryTime": "lastUpdateTime+P1D"}},
            "failureCounts": {"RESULT_EXCEPTION": 3}, "notes": ["There is no target pipe."],
        }));
        assert_eq!(
            details(&job, NOW)[1..],
            [
                "  correlation id  c-1",
                "  labels          team=search,urgent",
                "  created         2026-11-22 17:17:03 UTC (3m ago)",
                "  changed         2026-11-22 17:19:58 UTC (5s ago)",
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
}
