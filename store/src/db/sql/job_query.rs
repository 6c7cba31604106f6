//! Lists of jobs: the statement for any [`JobQuery`].
//!
//! What must stay true: nothing that a client sent is ever part of the text. It goes into
//! parameters; the text is put together from the words in this file.
//!
//! The texts differ as much as the queries do, so they are not cached as prepared statements.
//! PostgreSQL then plans each with the values of its parameters. They decide whether it starts from
//! the labels or reads the jobs in the order of time.

use contract::JobStatus;

use super::jobs;
use super::session::Session;
use super::statement::{Dialect, Statement, StatementBuilder};
use crate::db::{JobRow, Result};
use crate::query::filter::{Comparison, Filter, Pattern, TextField, TextTest};
use crate::query::{JobQuery, Sort, SortBy};

/// A label that fewer jobs than this have is rare.
const RARE: i64 = 1000;
/// How many labels of a query are looked at to find a rare one.
const LOOKED_AT: usize = 8;
/// Begins the condition that a job has a label, up to the name; [`END_OF_LABEL`] follows the name
/// and value.
const HAS_LABEL: &str =
    "exists (select 1 from label l where l.incarnation = job.incarnation and l.name";
/// Ends the condition that a job has a label.
///
/// Without the limit, SQLite makes a join of `exists`, and SQLite 3.51.3 then counts each further
/// label of a job as one more job to skip for `offset`. `incarnation in (select …)` would be right,
/// too, but reads the labels of all jobs for each page.
const END_OF_LABEL: &str = " limit 1)";

/// The condition of `JobRow::can_go_on`, which is that of the index `job_that_can_go_on`, word for
/// word.
const CAN_GO_ON: &str = "case when status in ('Failed', 'Cancelled') then true when status = 'Completed' then failed_tasks > 0 else false end";

/// A label, by name and value. The jobs that have it are the only ones that a statement looks at.
type FirstLabel<'q> = Option<(&'q str, &'q str)>;

/// Returns a page of jobs.
pub async fn page(db: &mut Session, partition: &str, query: &JobQuery) -> Result<Vec<JobRow>> {
    let select = page_of(db, partition, query, jobs::COLUMNS).await?;
    db.fetch(select, jobs::read_job).await
}

/// Returns the incarnations of the jobs of a page, in its order.
pub async fn numbers(db: &mut Session, partition: &str, query: &JobQuery) -> Result<Vec<i64>> {
    let select = page_of(db, partition, query, "incarnation").await?;
    db.fetch(select, |row| row.get(0)).await
}

/// Returns the statement that selects columns of the jobs of a page.
async fn page_of(
    db: &mut Session,
    partition: &str,
    query: &JobQuery,
    columns: &str,
) -> Result<Statement> {
    let first_label = rare_label(db, query).await?;
    let mut select = StatementBuilder::new(db.dialect(), format!("select {columns}"));
    push_jobs(&mut select, first_label)?;
    if let SortBy::Label(name) = &query.sort.by {
        push_sorted_label(&mut select, name)?;
    }
    push_conditions(&mut select, partition, query)?;
    push_order(&mut select, &query.sort);
    select.push(" limit ").push_bind(i64::from(query.limit))?;
    let offset = i64::try_from(query.offset).unwrap_or(i64::MAX);
    select.push(" offset ").push_bind(offset)?;
    Ok(select.build().uncached())
}

/// Returns how many jobs there are on all pages.
pub async fn count(db: &mut Session, partition: &str, query: &JobQuery) -> Result<u64> {
    let first_label = rare_label(db, query).await?;
    let mut select = StatementBuilder::new(db.dialect(), "select count(*)");
    push_jobs(&mut select, first_label)?;
    push_conditions(&mut select, partition, query)?;
    db.fetch_count(select.build().uncached()).await
}

/// Returns how many jobs match a query, by the status that people are shown. A query without
/// conditions reads only the index of the statuses, and the jobs of which tasks wait.
pub async fn count_by_status(
    db: &mut Session,
    partition: &str,
    query: &JobQuery,
) -> Result<Vec<(JobStatus, u64)>> {
    let first_label = rare_label(db, query).await?;
    let mut select = StatementBuilder::new(db.dialect(), "select status, count(*)");
    push_jobs(&mut select, first_label)?;
    push_conditions(&mut select, partition, query)?;
    select.push(" group by status");
    let counts = db.fetch(select.build().uncached(), |row| {
        Ok((jobs::status(row.get(0)?)?, row.unsigned(1)?))
    });
    let mut counts = counts.await?;
    let mut active = counts.iter_mut();
    let Some((_, active)) = active.find(|(status, _)| *status == JobStatus::Active) else {
        return Ok(counts);
    };
    let blocked = count(db, partition, &query.clone().shown_as(JobStatus::Blocked)).await?;
    *active = active.saturating_sub(blocked);
    if blocked > 0 {
        counts.push((JobStatus::Blocked, blocked));
    }
    counts.retain(|(_, count)| *count > 0);
    Ok(counts)
}

/// Returns a label that the query demands and that only few jobs have.
///
/// SQLite plans without knowing how many jobs have a label, and would look at every job of the
/// partition for it. PostgreSQL knows.
async fn rare_label<'q>(db: &mut Session, query: &'q JobQuery) -> Result<FirstLabel<'q>> {
    let Some(filter) = query.filter.as_ref() else {
        return Ok(None);
    };
    if db.dialect() == Dialect::Postgres {
        return Ok(None);
    }
    for (name, value) in filter.required_labels().into_iter().take(LOOKED_AT) {
        let statement = db
            .statement(
                "select count(*) < $3 from (select 1 from label where name = $1 and value = $2 limit $3)",
            )
            .bind(name)
            .bind(value)
            .bind(RARE);
        if db.fetch_first(statement, |row| row.get(0)).await? == Some(true) {
            return Ok(Some((name, value)));
        }
    }
    Ok(None)
}

/// Adds all jobs, or those with a label. SQLite reads the tables of a cross join one after the
/// other.
fn push_jobs(select: &mut StatementBuilder, first_label: FirstLabel<'_>) -> Result<()> {
    let Some((name, value)) = first_label else {
        select.push(" from job");
        return Ok(());
    };
    select
        .push(" from (select incarnation as start from label where name = ")
        .push_bind(name)?
        .push(" and value = ")
        .push_bind(value)?
        .push(") cross join job on incarnation = start");
    Ok(())
}

fn push_conditions(select: &mut StatementBuilder, partition: &str, query: &JobQuery) -> Result<()> {
    select.push(" where partition_id = ").push_bind(partition)?;
    if let Some(prefix) = &query.id_prefix {
        select.push(" and job_id");
        push_like(select, &Pattern::literal_prefix(prefix), false)?;
    }
    if !query.statuses.is_empty() {
        select.push(" and ");
        // SQLite would take the index of the statuses, and read all jobs that are Completed.
        let column = if query.wants_those_that_can_go_on() {
            "status || ''"
        } else {
            "status"
        };
        push_statuses(select, column, &query.statuses)?;
    }
    if let Some(after) = query.after {
        select
            .push(" and (create_time, incarnation) > (")
            .push_bind(after.create_time)?
            .push(", ")
            .push_bind(after.incarnation)?
            .push(")");
    }
    if !query.labels.is_empty() {
        select.push(" and ").push(HAS_LABEL);
        push_one_of(select, &query.labels, false)?;
        select.push(END_OF_LABEL);
    }
    if let Some(filter) = &query.filter {
        select.push(" and ");
        push_filter(select, filter)?;
    }
    Ok(())
}

fn push_filter(select: &mut StatementBuilder, filter: &Filter) -> Result<()> {
    match filter {
        Filter::All(filters) => push_joined(select, filters, " and ", "1 = 1"),
        Filter::Any(filters) => push_joined(select, filters, " or ", "1 = 0"),
        Filter::Text(field, test) => push_text(select, field, test),
        Filter::Percentage(comparison, number) => {
            // The column has hundredths; the API shows the nearest number.
            select
                .push("percentage / cast(100 as double precision) ")
                .push(comparison.operator())
                .push(" ")
                .push_bind(*number)?;
            Ok(())
        }
        Filter::BlockedTasks(comparison, number) => {
            select
                .push("cast(blocked_tasks as double precision) ")
                .push(comparison.operator())
                .push(" ")
                .push_bind(*number)?;
            Ok(())
        }
        Filter::Status(statuses) => push_statuses(select, "status", statuses),
        Filter::ShownAsBlocked(shown) => {
            let not = if *shown { "" } else { "not " };
            let shown = jobs::shown_as_blocked(select.dialect());
            select.push(not).push(shown);
            Ok(())
        }
        Filter::CanGoOn => {
            select.push(CAN_GO_ON);
            Ok(())
        }
    }
}

fn push_statuses(
    select: &mut StatementBuilder,
    column: &str,
    statuses: &[JobStatus],
) -> Result<()> {
    let names: Vec<String> = statuses
        .iter()
        .map(|status| status.name().to_owned())
        .collect();
    select.push(column);
    push_one_of(select, &names, false)
}

/// Joins the filters as a balanced tree, because databases limit the depth of an expression.
fn push_joined(
    select: &mut StatementBuilder,
    filters: &[Filter],
    operator: &str,
    none: &str,
) -> Result<()> {
    match filters {
        [] => {
            select.push(none);
        }
        [only] => push_filter(select, only)?,
        several => {
            let (first, second) = several.split_at(several.len() / 2);
            select.push("(");
            push_joined(select, first, operator, none)?;
            select.push(operator);
            push_joined(select, second, operator, none)?;
            select.push(")");
        }
    }
    Ok(())
}

fn push_text(select: &mut StatementBuilder, field: &TextField, test: &TextTest) -> Result<()> {
    match field {
        TextField::Id => select.push("job_id"),
        TextField::Name => select.push("name"),
        TextField::CorrelationId => select.push("correlation_id"),
        TextField::Owner => select.push("owner"),
        TextField::Label(name) => select
            .push(HAS_LABEL)
            .push(" = ")
            .push_bind(name.as_str())?
            .push(" and l.value"),
    };
    match test {
        TextTest::Is(comparison, value) => {
            push_comparison(select, *comparison);
            select.push_bind(value.as_str())?;
        }
        TextTest::Like(pattern) => push_like(select, pattern, false)?,
        TextTest::Unlike(pattern) => push_like(select, pattern, true)?,
        TextTest::OneOf(values) => push_one_of(select, values, false)?,
        TextTest::NoneOf(values) => push_one_of(select, values, true)?,
    }
    if matches!(field, TextField::Label(_)) {
        select.push(END_OF_LABEL);
    }
    Ok(())
}

/// Adds a case-sensitive match. SQLite's `like` ignores case; its `glob` does not.
fn push_like(select: &mut StatementBuilder, pattern: &Pattern, negated: bool) -> Result<()> {
    select.push(if negated { " not" } else { "" });
    match select.dialect() {
        Dialect::Postgres => select.push(" like ").push_bind(pattern.like())?,
        Dialect::Sqlite => select.push(" glob ").push_bind(pattern.glob())?,
    };
    Ok(())
}

fn push_comparison(select: &mut StatementBuilder, comparison: Comparison) {
    let collation = if comparison.is_equality() {
        ""
    } else {
        " collate linguistic"
    };
    select.push(format_args!("{collation} {} ", comparison.operator()));
}

fn push_one_of(select: &mut StatementBuilder, values: &[String], none: bool) -> Result<()> {
    match values {
        [only] => {
            push_comparison(
                select,
                if none {
                    Comparison::NotEqual
                } else {
                    Comparison::Equal
                },
            );
            select.push_bind(only.as_str())?;
        }
        _ => {
            select.push_one_of(values, none)?;
        }
    }
    Ok(())
}

/// Adds the label that the jobs are sorted by.
///
/// The concatenation keeps the database from looking for the label of one job among all labels of
/// that name: its statistics of a name may be old, and then that takes the square of their number.
/// By the job it is one of a few.
fn push_sorted_label(select: &mut StatementBuilder, name: &str) -> Result<()> {
    select
        .push(" left join (select incarnation as sort_incarnation, value as sort_value from label where name || '' = ")
        .push_bind(name)?
        .push(") sorted on sort_incarnation = incarnation");
    Ok(())
}

fn push_order(select: &mut StatementBuilder, sort: &Sort) {
    let (way, nulls) = if sort.ascending {
        ("asc", "last")
    } else {
        ("desc", "first")
    };
    select.push(" order by ");
    let text = |name: &str| format!("{name} collate linguistic {way} nulls {nulls}, ");
    match &sort.by {
        SortBy::CreateTime => {}
        SortBy::LastUpdateTime => _ = select.push(format_args!("last_update_time {way}, ")),
        SortBy::Id => _ = select.push(format_args!("job_id collate linguistic {way}, ")),
        SortBy::Name => _ = select.push(text("name")),
        SortBy::Description => _ = select.push(text("description")),
        SortBy::ExternalData => _ = select.push(text("external_data")),
        SortBy::Status => _ = select.push(format_args!("status {way}, ")),
        SortBy::Percentage => _ = select.push(format_args!("percentage {way}, ")),
        SortBy::Label(_) => _ = select.push(text("sort_value")),
    }
    select.push(format_args!("create_time {way}, incarnation {way}"));
}

#[cfg(test)]
mod tests {
    use super::CAN_GO_ON;

    #[test]
    fn jobs_that_can_go_on_are_found_by_the_condition_of_their_index() {
        for migration in [
            include_str!("../../../migrations/postgres/0001_schema.sql"),
            include_str!("../../../migrations/sqlite/0001_schema.sql"),
        ] {
            assert!(
                migration.contains(&format!("where {CAN_GO_ON};")),
                "{migration}"
            );
        }
    }
}
