//! What the creation of jobs writes, in as few statements as possible: many clients create small
//! jobs.
//!
//! A statement of PostgreSQL is a round trip, so one writes the rows of all jobs that are created
//! together. With SQLite it is none, and the statements run for each job.

use std::mem;
use std::sync::LazyLock;

use contract::{LifeKey, OnFailure};

use super::parking::write_headers;
use super::session::{Row, Session};
use super::statement::Dialect;
use super::{millis, number};
use crate::db::{JobRow, JobTexts, NewIncarnation, NewParts, Result};

/// The name of a column, and its type in PostgreSQL.
type Column = (&'static str, &'static str);

/// What a new row of `job` is made from.
const NEW_JOB: &[Column] = &[
    ("partition_id", "text"),
    ("job_id", "text"),
    ("name", "text"),
    ("description", "text"),
    ("external_data", "text"),
    ("content_hash", "bytea"),
    ("on_failure", "text"),
    ("status", "text"),
    ("create_time", "bigint"),
    ("expiry", "text"),
    ("delay", "bigint"),
    ("without_target", "boolean"),
    ("correlation_id", "text"),
    ("output_pipe", "text"),
    ("items_pipe", "text"),
    ("tolerance", "text"),
    ("retry_policy", "text"),
    ("task_time_limit", "bigint"),
    ("share", "bigint"),
    ("owner", "text"),
    ("life_key", "text"),
];

/// What the new rows that belong to a job are made from.
const NEW_PARTS: &[Column] = &[
    ("incarnation", "bigint"),
    ("time", "bigint"),
    ("to_status", "text"),
    ("actor", "text"),
    ("reason", "text"),
    ("round", "integer"),
    ("correlation_id", "text"),
    ("pipe", "text"),
    ("body", "bytea"),
    ("suspended", "boolean"),
    // In milliseconds from now.
    ("due_time", "bigint"),
    ("headers", "text"),
    ("request", "bytea"),
    ("start", "bytea"),
    ("prerequisites", "text"),
    ("partition_id", "text"),
    ("job_id", "text"),
];

/// The statements for one dialect. They read a table `new` with a row for each job; in SQLite there
/// is one.
struct Texts {
    jobs: String,
    /// Insert the parts. PostgreSQL does that in one statement with the following.
    parts: Vec<String>,
    /// Selects which jobs have had an earlier life.
    known: String,
}

static POSTGRES: LazyLock<Texts> = LazyLock::new(|| Texts::of(Dialect::Postgres));
static SQLITE: LazyLock<Texts> = LazyLock::new(|| Texts::of(Dialect::Sqlite));

impl Texts {
    fn of(dialect: Dialect) -> Self {
        let remembered = "exists (select 1 from past_life where past_life.partition_id = new.partition_id and past_life.job_id = new.job_id)";
        let (parts, known) = Self::parts(dialect, remembered);
        Self {
            jobs: Self::jobs(dialect, remembered),
            parts,
            known,
        }
    }

    fn jobs(dialect: Dialect, remembered: &str) -> String {
        let all = names(NEW_JOB);
        let (names, new) = (all.join(", "), new_rows(dialect, NEW_JOB, &all));
        let locked = match dialect {
            Dialect::Postgres => {
                "cross join (select count(pg_advisory_xact_lock_shared(hashtextextended(id, 2))) from \
                 (select distinct id from unnest($1::text[]) as id order by id) as partitions) as locked"
            }
            // The one writer has every lock.
            Dialect::Sqlite => "",
        };
        format!(
            "insert into job ({names}, first_life, last_update_time, percentage, completed_items, failed_tasks, failure_counts, task_table) \
             select {names}, not {remembered}, create_time, 0, 0, 0, '{{}}', false from {new} {locked} where true \
             on conflict (partition_id, job_id) do nothing returning incarnation, first_life, partition_id, job_id"
        )
    }

    fn parts(dialect: Dialect, remembered: &str) -> (Vec<String>, String) {
        let new = |columns: &[&str]| match dialect {
            Dialect::Postgres => "new".to_owned(),
            Dialect::Sqlite => new_rows(dialect, NEW_PARTS, columns),
        };
        let insert = |table, columns: &[&str]| {
            let (names, new) = (columns.join(", "), new(columns));
            format!("insert into {table} ({names}) select {names} from {new}")
        };
        let step = [
            "incarnation",
            "time",
            "to_status",
            "actor",
            "reason",
            "round",
            "correlation_id",
        ];
        let message = [
            "incarnation",
            "pipe",
            "body",
            "suspended",
            "due_time",
            "headers",
        ];
        let definition = [
            "incarnation",
            "request",
            "pipe",
            "start",
            "headers",
            "prerequisites",
            "suspended",
        ];
        let (steps, messages) = (insert("history", &step), insert("outbox", &message));
        let definitions = insert("definition", &definition);
        let known = new(&["incarnation", "partition_id", "job_id"]);
        let known = format!("select incarnation, {remembered} from {known}");
        match dialect {
            Dialect::Postgres => {
                let new = new_rows(dialect, NEW_PARTS, &names(NEW_PARTS));
                let known = format!(
                    "with new as (select * from {new}), steps as ({steps}), messages as ({messages}), definitions as ({definitions}) {known}"
                );
                (Vec::new(), known)
            }
            Dialect::Sqlite => (vec![steps, messages, definitions], known),
        }
    }

    fn get(dialect: Dialect) -> &'static Self {
        match dialect {
            Dialect::Postgres => &POSTGRES,
            Dialect::Sqlite => &SQLITE,
        }
    }
}

/// Returns the rows in the parameters as a table `new` with some of their columns.
fn new_rows(dialect: Dialect, columns: &[Column], selected: &[&str]) -> String {
    let now = dialect.now();
    let value = |name, given: &str| match name {
        "due_time" => format!("{now} + {given} as {name}"),
        _ => format!("{given} as {name}"),
    };
    let numbered = (1_usize..).zip(columns);
    match dialect {
        Dialect::Postgres => {
            let arrays = numbered.map(|(number, (_, kind))| format!("${number}::{kind}[]"));
            let arrays: Vec<String> = arrays.collect();
            let values: Vec<String> = selected.iter().map(|name| value(name, name)).collect();
            let few = columns
                .first()
                .map(|(name, kind)| dialect.of_few(name, kind));
            format!(
                "(select {} from unnest({}) as listed ({}) where {}) as new",
                values.join(", "),
                arrays.join(", "),
                names(columns).join(", "),
                few.unwrap_or_default(),
            )
        }
        Dialect::Sqlite => {
            let used = numbered.filter(|(_, (name, _))| selected.contains(name));
            let values = used.map(|(number, (name, _))| value(name, &format!("${number}")));
            format!("(select {}) as new", values.collect::<Vec<_>>().join(", "))
        }
    }
}

fn names(columns: &[Column]) -> Vec<&'static str> {
    columns.iter().map(|(name, _)| *name).collect()
}

/// Inserts jobs with different ids, in (partition, job) order. Returns for each the new
/// incarnation, or `None` if there is a job with its id. The statement and not the row tells
/// whether a job is the first one with its id. Takes the locks of creations of their partitions
/// first, shared.
pub async fn insert(
    db: &mut Session,
    jobs: &[(JobRow, JobTexts)],
) -> Result<Vec<Option<NewIncarnation>>> {
    let (mut expiries, mut tolerances) = (Vec::new(), Vec::new());
    for (job, _) in jobs {
        let expiry = (!job.expiry.is_empty()).then(|| serde_json::to_string(&job.expiry));
        expiries.push(expiry.transpose()?);
        tolerances.push(match &job.totals.on_failure {
            OnFailure::Stop | OnFailure::Continue => None,
            tolerating @ OnFailure::Tolerate(_) => Some(serde_json::to_string(tolerating)?),
        });
    }
    let statement = db
        .statement(&*Texts::get(db.dialect()).jobs)
        .bind_each(jobs.iter().map(|(job, _)| job.partition.as_str()))
        .bind_each(jobs.iter().map(|(job, _)| job.job.as_str()))
        .bind_each(jobs.iter().map(|(job, _)| job.name.as_deref()))
        .bind_each(jobs.iter().map(|(_, texts)| texts.description.as_deref()))
        .bind_each(jobs.iter().map(|(_, texts)| texts.external_data.as_deref()))
        .bind_each(jobs.iter().map(|(job, _)| &job.content_hash[..]))
        .bind_each(jobs.iter().map(|(job, _)| match job.totals.on_failure {
            OnFailure::Continue => "continue",
            // Versions that do not know the tolerance stop at the first failure.
            OnFailure::Stop | OnFailure::Tolerate(_) => "stop",
        }))
        .bind_each(jobs.iter().map(|(job, _)| job.status.name()))
        .bind_each(jobs.iter().map(|(job, _)| job.create_time))
        .bind_each(expiries.into_iter())
        .bind_each(jobs.iter().map(|(job, _)| job.delay))
        .bind_each(jobs.iter().map(|(job, _)| job.without_target))
        .bind_each(jobs.iter().map(|(job, _)| job.correlation_id.as_deref()))
        .bind_each(jobs.iter().map(|(job, _)| job.output_pipe.as_deref()))
        .bind_each(jobs.iter().map(|(job, _)| job.items_pipe.as_deref()))
        .bind_each(tolerances.into_iter())
        .bind_each(jobs.iter().map(|(job, _)| job.retry.as_deref()))
        .bind_each(
            jobs.iter()
                .map(|(job, _)| job.task_time_limit.map(|limit| i64::from(limit.seconds()))),
        )
        .bind_each(jobs.iter().map(|(job, _)| i64::from(job.share.weight())))
        .bind_each(jobs.iter().map(|(job, _)| job.owner.as_deref()))
        .bind_each(
            jobs.iter()
                .map(|(job, _)| job.life_key.as_ref().map(LifeKey::secret)),
        );
    let read = |row: Row<'_>| {
        let new = NewIncarnation {
            number: row.get(0)?,
            first_life: row.get(1)?,
        };
        Ok((row.get::<String, _>(2)?, row.get::<String, _>(3)?, new))
    };
    let mut new = db.fetch(statement, read).await?;
    let inserted = jobs.iter().map(|(job, _)| {
        let is_job = |(partition, id, _): &(String, String, _)| {
            *id == *job.job.as_str() && *partition == *job.partition.as_str()
        };
        let at = new.iter().position(is_job)?;
        Some(new.swap_remove(at).2)
    });
    Ok(inserted.collect())
}

/// Inserts the first rows of the histories of new jobs, their start messages and their definitions.
/// Returns for each whether the store remembers a deleted job with this id. Messages and
/// definitions may be large, and become parameters without being copied.
pub async fn insert_parts(db: &mut Session, mut parts: Vec<NewParts>) -> Result<Vec<bool>> {
    db.note_events();
    let texts = Texts::get(db.dialect());
    let (mut headers, mut prerequisites) = (Vec::new(), Vec::new());
    for NewParts { definition, .. } in &parts {
        headers.push(write_headers(&definition.headers)?);
        prerequisites.push(serde_json::to_string(&definition.prerequisites)?);
    }
    let statement = db
        .statement(&*texts.known)
        .after(&texts.parts)
        .bind_each(parts.iter().map(|it| it.job.incarnation))
        .bind_each(parts.iter().map(|it| it.step.time))
        .bind_each(parts.iter().map(|it| it.step.to.name()))
        .bind_each(parts.iter().map(|it| it.step.actor.as_str()))
        .bind_each(parts.iter().map(|it| it.step.reason.as_str()))
        .bind_each(parts.iter().map(|it| number(it.step.round)))
        .bind_each(parts.iter().map(|it| it.step.correlation_id.as_deref()))
        .bind_each(parts.iter().map(|it| it.definition.pipe.as_str()))
        .bind_each(parts.iter_mut().map(|it| mem::take(&mut it.start)))
        .bind_each(parts.iter().map(|it| it.definition.suspended))
        .bind_each(parts.iter().map(|it| it.due.after.map(millis)))
        .bind_each(headers.into_iter())
        .bind_each(
            parts
                .iter_mut()
                .map(|it| mem::take(&mut it.definition.request)),
        )
        .bind_each(
            parts
                .iter_mut()
                .map(|it| mem::take(&mut it.definition.start)),
        )
        .bind_each(prerequisites.into_iter())
        .bind_each(parts.iter().map(|it| it.job.partition.as_str()))
        .bind_each(parts.iter().map(|it| it.job.job.as_str()));
    let read = |row: Row<'_>| Ok((row.get::<i64, _>(0)?, row.get::<bool, _>(1)?));
    let known = db.fetch(statement, read).await?;
    let remembered = parts.iter().map(|it| {
        let mut known = known.iter();
        let known = known.find(|(number, _)| *number == it.job.incarnation);
        known.is_some_and(|(_, remembers)| *remembers)
    });
    Ok(remembered.collect())
}
