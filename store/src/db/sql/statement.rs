//! Statements for either database: a text, its parameters, and the dialect it is written in.
//!
//! Parameters are `$1`, `$2`, … in both dialects. Prepared statements are cached by their text, so
//! the texts of frequent statements must not vary.

use std::borrow::Cow;
use std::fmt::Display;

use rusqlite::types::Value;
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Encode, Type};

use crate::db::Result;
use crate::db::sqlite::statement::SqliteStatement;

/// The SQL dialect of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// Returns the expression for the time of the database's clock, in milliseconds since 1970.
    pub const fn now(self) -> &'static str {
        match self {
            Self::Postgres => "(extract(epoch from clock_timestamp()) * 1000)::bigint",
            Self::Sqlite => "cast(unixepoch('subsec') * 1000 as integer)",
        }
    }

    /// Returns the table `k` with one row for each element of the JSON array in `$1`. A statement
    /// reads the columns of an element that is an array as `k.value ->> 0`, `k.value ->> 1`, …
    pub const fn each(self) -> &'static str {
        match self {
            // The condition: see `of_few`.
            Self::Postgres => {
                "(select value from jsonb_array_elements($1::jsonb) as element(value) \
                 where pg_typeof(value) = 'jsonb'::regtype) as k(value)"
            }
            Self::Sqlite => "json_each($1) as k",
        }
    }

    /// Returns the rows that [`Statement::bind_each`] gives to a statement, with the types of their
    /// columns in PostgreSQL. They are all of its parameters.
    pub fn rows(self, kinds: &[&str]) -> String {
        let numbered = (1_usize..).zip(kinds);
        match self {
            Self::Postgres => {
                let arrays = numbered.map(|(number, kind)| format!("${number}::{kind}[]"));
                format!("unnest({}) as row", arrays.collect::<Vec<_>>().join(", "))
            }
            Self::Sqlite => {
                let values = numbered.map(|(number, _)| format!("${number}"));
                format!("(select {})", values.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Returns the end of a statement that locks rows. The one writer of SQLite has every lock.
    pub const fn lock(self, lock: &'static str) -> &'static str {
        match self {
            Self::Postgres => lock,
            Self::Sqlite => "",
        }
    }

    /// Returns a condition on a column of a list in a parameter, with the type of its values in
    /// PostgreSQL. It is always true.
    ///
    /// PostgreSQL does not know that, and expects one row of any list. So it looks each element up
    /// by an index, where it would read the whole of a table for the hundred elements that it
    /// expects otherwise. Since it expects the same of every list, it plans the statement once.
    pub fn of_few(self, column: &str, kind: &str) -> String {
        match self {
            Self::Postgres => format!("pg_typeof({column}) = '{kind}'::regtype"),
            Self::Sqlite => "true".to_owned(),
        }
    }

    /// Returns a statement without parameters; [`Statement::bind`] adds them.
    ///
    /// The text must never contain anything that a client sent: that goes into parameters.
    pub fn statement(self, text: impl Into<Cow<'static, str>>) -> Statement {
        match self {
            Self::Postgres => Statement::Postgres(sqlx::query(AssertSqlSafe(text.into()))),
            Self::Sqlite => Statement::Sqlite(SqliteStatement::new(text.into(), Vec::new())),
        }
    }

    /// Returns `select` for these jobs, in this order; the rows must have a column `incarnation`.
    pub fn select_of_jobs(
        self,
        select: &str,
        incarnations: &[i64],
        order: &str,
    ) -> Result<Statement> {
        Ok(match self {
            Self::Postgres => {
                let text = format!("{select} where incarnation = any($1) {order}");
                Statement::Postgres(sqlx::query(AssertSqlSafe(text)).bind(incarnations))
            }
            Self::Sqlite => {
                let list = "(select value from json_each($1))";
                self.statement(format!("{select} where incarnation in {list} {order}"))
                    .bind(json(incarnations)?)
            }
        })
    }
}

/// A value that both databases accept as a parameter.
pub trait Parameter<'v>: Encode<'v, Postgres> + Type<Postgres> {
    /// Returns it for SQLite.
    fn into_value(self) -> Value;
}

macro_rules! parameters {
    ($($kind:ty => $value:expr),* $(,)?) => {$(
        impl<'v> Parameter<'v> for $kind {
            fn into_value(self) -> Value {
                $value(self)
            }
        }
    )*};
}

parameters! {
    bool => Value::from,
    f64 => Value::from,
    i32 => Value::from,
    i64 => Value::from,
    String => Value::from,
    Vec<u8> => Value::from,
    &'v str => |text: Self| Value::Text(text.to_owned()),
    &'v [u8] => |bytes: Self| Value::Blob(bytes.to_owned()),
}

impl<'v, T: Parameter<'v> + 'v> Parameter<'v> for Option<T>
where
    Self: Encode<'v, Postgres> + Type<Postgres>,
{
    fn into_value(self) -> Value {
        self.map_or(Value::Null, T::into_value)
    }
}

/// A statement with its parameters.
pub enum Statement {
    Postgres(Query<'static, Postgres, PgArguments>),
    Sqlite(SqliteStatement),
}

impl Statement {
    /// Adds the next parameter.
    pub fn bind<'v>(self, value: impl Parameter<'v>) -> Self {
        match self {
            Self::Postgres(query) => Self::Postgres(query.bind(value)),
            Self::Sqlite(statement) => Self::Sqlite(statement.bind(value.into_value())),
        }
    }

    /// Adds the next parameter, one value for each row: an array in PostgreSQL. SQLite runs the
    /// statement once for each row.
    pub fn bind_each<'v, T>(self, values: impl Iterator<Item = T>) -> Self
    where
        T: Parameter<'v> + 'v,
        Vec<T>: Encode<'v, Postgres> + Type<Postgres>,
    {
        match self {
            Self::Postgres(query) => Self::Postgres(query.bind(values.collect::<Vec<T>>())),
            Self::Sqlite(statement) => {
                Self::Sqlite(statement.bind_each(values.map(T::into_value).collect()))
            }
        }
    }

    /// Lets SQLite run these statements before it for each row, with the same parameters.
    pub fn after(self, before: &'static [String]) -> Self {
        match self {
            Self::Postgres(_) => self,
            Self::Sqlite(statement) => Self::Sqlite(statement.after(before)),
        }
    }

    /// Keeps the statement out of PostgreSQL's cache of prepared statements. It is then planned
    /// with the values of its parameters.
    pub fn uncached(self) -> Self {
        match self {
            Self::Postgres(query) => Self::Postgres(query.persistent(false)),
            Self::Sqlite(_) => self,
        }
    }
}

impl From<Query<'static, Postgres, PgArguments>> for Statement {
    fn from(query: Query<'static, Postgres, PgArguments>) -> Self {
        Self::Postgres(query)
    }
}

/// A statement whose text is put together piece by piece.
pub struct StatementBuilder {
    dialect: Dialect,
    text: String,
    arguments: Arguments,
    count: usize,
}

enum Arguments {
    Postgres(PgArguments),
    Sqlite(Vec<Value>),
}

impl StatementBuilder {
    pub fn new(dialect: Dialect, text: impl Into<String>) -> Self {
        let arguments = match dialect {
            Dialect::Postgres => Arguments::Postgres(PgArguments::default()),
            Dialect::Sqlite => Arguments::Sqlite(Vec::new()),
        };
        Self {
            dialect,
            text: text.into(),
            arguments,
            count: 0,
        }
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Adds to the text, which must never contain anything that a client sent.
    pub fn push(&mut self, text: impl Display) -> &mut Self {
        use std::fmt::Write as _;
        // Writing to a string does not fail.
        _ = write!(self.text, "{text}");
        self
    }

    /// Adds a parameter to the statement and its placeholder to the text.
    pub fn push_bind<'v>(&mut self, value: impl Parameter<'v>) -> Result<&mut Self> {
        use sqlx::Arguments as _;
        match &mut self.arguments {
            Arguments::Postgres(arguments) => {
                arguments.add(value).map_err(sqlx::Error::Encode)?;
            }
            Arguments::Sqlite(values) => values.push(value.into_value()),
        }
        self.count += 1;
        let number = self.count;
        match self.dialect {
            Dialect::Postgres => self.push(format_args!("${number}")),
            // SQLite looks up a numbered parameter among all others; the next one costs nothing.
            Dialect::Sqlite => self.push("?"),
        };
        Ok(self)
    }

    /// Adds the condition that the text before it is one of these values, or none of them.
    pub fn push_one_of(&mut self, values: &[String], none: bool) -> Result<&mut Self> {
        use sqlx::Arguments as _;
        match &mut self.arguments {
            Arguments::Postgres(arguments) => {
                arguments.add(values).map_err(sqlx::Error::Encode)?;
                self.count += 1;
                let compare = if none { "<> all" } else { "= any" };
                let number = self.count;
                Ok(self.push(format_args!(" {compare}(${number})")))
            }
            Arguments::Sqlite(_) => {
                self.push(if none { " not in" } else { " in" });
                self.push(" (select value from json_each(");
                self.push_bind(json(values)?)?;
                Ok(self.push("))"))
            }
        }
    }

    pub fn build(self) -> Statement {
        match self.arguments {
            Arguments::Postgres(arguments) => {
                sqlx::query_with(AssertSqlSafe(self.text), arguments).into()
            }
            Arguments::Sqlite(values) => {
                Statement::Sqlite(SqliteStatement::new(self.text.into(), values))
            }
        }
    }
}

/// Returns a list as rows of one column, for [`Dialect::each`].
pub fn singles(values: &[impl serde::Serialize]) -> Result<String> {
    json(&values.iter().map(|value| (value,)).collect::<Vec<_>>())
}

/// Returns a list as the JSON text that [`Dialect::each`] expands into rows.
pub fn json(values: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    Ok(serde_json::to_string(values)?)
}
