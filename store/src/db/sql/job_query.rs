//! How a query of jobs is spelled, for both databases: one text with parameters, whatever is asked.
//!
//! What must stay true: nothing that a client has said is ever part of the text. What is said is a parameter; what is part of
//! the text is chosen from the words in this file.
//!
//! The texts are as different as the questions, so they are not kept as prepared statements; and PostgreSQL plans each with its
//! parameters in sight, which decides whether it begins at the labels or walks through the jobs by time.

use sqlx::database::HasStatementCache;
use sqlx::query::Query;
use sqlx::{Database, Postgres, QueryBuilder, Sqlite};

use crate::db::DbError;
use crate::db::sql::job_columns;
use crate::query::filter::{Comparison, Filter, Pattern, TextField, TextTest};
use crate::query::{JobQuery, Sort, SortBy};

/// What the two databases spell differently.
pub trait Dialect: Database {
    fn text(select: &mut QueryBuilder<Self>, text: String);
    fn integer(select: &mut QueryBuilder<Self>, number: i64);
    fn real(select: &mut QueryBuilder<Self>, number: f64);
    /// ` = any(…)`, or its contrary.
    fn one_of(
        select: &mut QueryBuilder<Self>,
        values: Vec<String>,
        none: bool,
    ) -> Result<(), DbError>;
    fn like(select: &mut QueryBuilder<Self>, pattern: &Pattern, not: bool);
}

impl Dialect for Postgres {
    fn text(select: &mut QueryBuilder<Self>, text: String) {
        select.push_bind(text);
    }
    fn integer(select: &mut QueryBuilder<Self>, number: i64) {
        select.push_bind(number);
    }
    fn real(select: &mut QueryBuilder<Self>, number: f64) {
        select.push_bind(number);
    }
    fn one_of(
        select: &mut QueryBuilder<Self>,
        values: Vec<String>,
        none: bool,
    ) -> Result<(), DbError> {
        select
            .push(if none { " <> all(" } else { " = any(" })
            .push_bind(values)
            .push(")");
        Ok(())
    }
    fn like(select: &mut QueryBuilder<Self>, pattern: &Pattern, not: bool) {
        select
            .push(if not { " not like " } else { " like " })
            .push_bind(pattern.like());
    }
}

impl Dialect for Sqlite {
    fn text(select: &mut QueryBuilder<Self>, text: String) {
        select.push_bind(text);
    }
    fn integer(select: &mut QueryBuilder<Self>, number: i64) {
        select.push_bind(number);
    }
    fn real(select: &mut QueryBuilder<Self>, number: f64) {
        select.push_bind(number);
    }
    fn one_of(
        select: &mut QueryBuilder<Self>,
        values: Vec<String>,
        none: bool,
    ) -> Result<(), DbError> {
        let values = serde_json::to_string(&values)?;
        select
            .push(if none { " not in" } else { " in" })
            .push(" (select value from json_each(")
            .push_bind(values)
            .push("))");
        Ok(())
    }
    fn like(select: &mut QueryBuilder<Self>, pattern: &Pattern, not: bool) {
        // `like` does not tell upper from lower case here.
        select
            .push(if not { " not glob " } else { " glob " })
            .push_bind(pattern.glob());
    }
}

/// A label, by name and value, at which to begin.
pub type Start<'a> = Option<(&'a str, &'a str)>;

/// A page of jobs.
pub fn page<DB: Dialect>(
    partition: &str,
    query: &JobQuery,
    start: Start<'_>,
) -> Result<QueryBuilder<DB>, DbError>
where
    DB::Arguments: Default,
{
    let mut select = QueryBuilder::<DB>::new(concat!("select ", job_columns!()));
    push_jobs(&mut select, start);
    if let SortBy::Label(name) = &query.sort.by {
        push_sorted_label(&mut select, name);
    }
    push_conditions(&mut select, partition, query)?;
    push_order(&mut select, &query.sort);
    select.push(" limit ");
    DB::integer(&mut select, i64::from(query.limit));
    select.push(" offset ");
    DB::integer(&mut select, i64::try_from(query.offset).unwrap_or(i64::MAX));
    Ok(select)
}

/// How many jobs there are on all pages.
pub fn count<DB: Dialect>(
    partition: &str,
    query: &JobQuery,
    start: Start<'_>,
) -> Result<QueryBuilder<DB>, DbError>
where
    DB::Arguments: Default,
{
    let mut select = QueryBuilder::<DB>::new("select count(*)");
    push_jobs(&mut select, start);
    push_conditions(&mut select, partition, query)?;
    Ok(select)
}

/// The statement of a builder, not to be kept.
pub fn once<DB: Database + HasStatementCache>(
    select: &mut QueryBuilder<DB>,
) -> Query<'_, DB, DB::Arguments> {
    select.build().persistent(false)
}

/// All jobs, or those with a label; SQLite takes the tables of a cross join one after the other.
fn push_jobs<DB: Dialect>(select: &mut QueryBuilder<DB>, start: Start<'_>) {
    let Some((name, value)) = start else {
        select.push(" from job");
        return;
    };
    select.push(" from (select incarnation as start from label where name = ");
    DB::text(select, name.to_owned());
    select.push(" and value = ");
    DB::text(select, value.to_owned());
    select.push(") cross join job on incarnation = start");
}

fn push_conditions<DB: Dialect>(
    select: &mut QueryBuilder<DB>,
    partition: &str,
    query: &JobQuery,
) -> Result<(), DbError> {
    select.push(" where partition_id = ");
    DB::text(select, partition.to_owned());
    if let Some(prefix) = &query.id_prefix {
        select.push(" and job_id");
        DB::like(select, &Pattern::literal_prefix(prefix), false);
    }
    if !query.statuses.is_empty() {
        select.push(" and ");
        push_filter(select, &Filter::Status(query.statuses.clone()))?;
    }
    if !query.labels.is_empty() {
        select.push(
            " and exists (select 1 from label l where l.incarnation = job.incarnation and l.name",
        );
        push_one_of(select, &query.labels, false)?;
        select.push(")");
    }
    if let Some(filter) = &query.filter {
        select.push(" and ");
        push_filter(select, filter)?;
    }
    Ok(())
}

fn push_filter<DB: Dialect>(select: &mut QueryBuilder<DB>, filter: &Filter) -> Result<(), DbError> {
    match filter {
        Filter::All(filters) => push_joined(select, filters, " and ", "1 = 1"),
        Filter::Any(filters) => push_joined(select, filters, " or ", "1 = 0"),
        Filter::Text(field, test) => push_text(select, field, test),
        Filter::Percentage(comparison, number) => {
            // The number nearest to what is shown, which is in hundredths here.
            select
                .push("percentage / cast(100 as double precision) ")
                .push(comparison.operator())
                .push(" ");
            DB::real(select, *number);
            Ok(())
        }
        Filter::Status(statuses) => {
            let names: Vec<String> = statuses
                .iter()
                .map(|status| status.name().to_owned())
                .collect();
            select.push("status");
            push_one_of(select, &names, false)
        }
    }
}

/// Halves it, and the halves: a long list becomes no deep expression, of which databases bear only so much.
fn push_joined<DB: Dialect>(
    select: &mut QueryBuilder<DB>,
    filters: &[Filter],
    word: &str,
    none: &str,
) -> Result<(), DbError> {
    match filters {
        [] => {
            select.push(none);
        }
        [only] => push_filter(select, only)?,
        several => {
            let (first, second) = several.split_at(several.len() / 2);
            select.push("(");
            push_joined(select, first, word, none)?;
            select.push(word);
            push_joined(select, second, word, none)?;
            select.push(")");
        }
    }
    Ok(())
}

fn push_text<DB: Dialect>(
    select: &mut QueryBuilder<DB>,
    field: &TextField,
    test: &TextTest,
) -> Result<(), DbError> {
    match field {
        TextField::Id => select.push("job_id"),
        TextField::Name => select.push("name"),
        TextField::Label(name) => {
            select.push(
                "exists (select 1 from label l where l.incarnation = job.incarnation and l.name = ",
            );
            DB::text(select, name.clone());
            select.push(" and l.value")
        }
    };
    match test {
        TextTest::Is(comparison, value) => {
            push_comparison(select, *comparison);
            DB::text(select, value.clone());
        }
        TextTest::Like(pattern) => DB::like(select, pattern, false),
        TextTest::Unlike(pattern) => DB::like(select, pattern, true),
        TextTest::OneOf(values) => push_one_of(select, values, false)?,
        TextTest::NoneOf(values) => push_one_of(select, values, true)?,
    }
    if matches!(field, TextField::Label(_)) {
        select.push(")");
    }
    Ok(())
}

fn push_comparison<DB: Database>(select: &mut QueryBuilder<DB>, comparison: Comparison) {
    let collation = if comparison.is_equality() {
        ""
    } else {
        " collate linguistic"
    };
    select.push(format_args!("{collation} {} ", comparison.operator()));
}

fn push_one_of<DB: Dialect>(
    select: &mut QueryBuilder<DB>,
    values: &[String],
    none: bool,
) -> Result<(), DbError> {
    if let [only] = values {
        push_comparison(
            select,
            if none {
                Comparison::NotEqual
            } else {
                Comparison::Equal
            },
        );
        DB::text(select, only.clone());
        return Ok(());
    }
    DB::one_of(select, values.to_vec(), none)
}

/// The concatenation keeps the database from looking for the label of one job among all labels of that name: what is known of a
/// name may be old, and then that takes the square of their number. By the job it is one of a few.
fn push_sorted_label<DB: Dialect>(select: &mut QueryBuilder<DB>, name: &str) {
    select.push(" left join (select incarnation as sort_incarnation, value as sort_value from label where name || '' = ");
    DB::text(select, name.to_owned());
    select.push(") sorted on sort_incarnation = incarnation");
}

fn push_order<DB: Database>(select: &mut QueryBuilder<DB>, sort: &Sort) {
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
