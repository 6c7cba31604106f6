//! A statement for SQLite, its parameters and the rows of its result.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::CachedStatement;
use rusqlite::types::{FromSql as _, FromSqlResult, Value, ValueRef};

use crate::db::DbError;

/// A statement with its parameters.
#[derive(Debug)]
pub struct SqliteStatement {
    /// Statements that run before this one, with the same parameters.
    before: &'static [String],
    text: Cow<'static, str>,
    values: Vec<Value>,
}

/// A row of a result.
#[derive(Debug)]
pub struct SqliteRow {
    columns: Arc<[String]>,
    values: Vec<Value>,
}

impl SqliteStatement {
    pub fn new(text: Cow<'static, str>, values: Vec<Value>) -> Self {
        Self {
            before: &[],
            text,
            values,
        }
    }

    /// Adds the next parameter.
    pub fn bind(mut self, value: Value) -> Self {
        self.values.push(value);
        self
    }

    /// Runs these before, with the same parameters.
    pub fn after(self, before: &'static [String]) -> Self {
        Self { before, ..self }
    }

    /// Returns the rows of the result.
    pub fn fetch(self, connection: &rusqlite::Connection) -> rusqlite::Result<Vec<SqliteRow>> {
        self.run_before(connection)?;
        let mut statement = connection.prepare_cached(&self.text)?;
        bind(&mut statement, &self.values)?;
        let columns: Arc<[String]> = statement
            .column_names()
            .into_iter()
            .map(Into::into)
            .collect();
        let mut rows = statement.raw_query();
        let mut read = Vec::new();
        while let Some(row) = rows.next()? {
            let values = (0..columns.len()).map(|at| row.get(at));
            read.push(SqliteRow {
                values: values.collect::<rusqlite::Result<_>>()?,
                columns: Arc::clone(&columns),
            });
        }
        Ok(read)
    }

    /// Returns how many rows the statement has changed.
    pub fn execute(self, connection: &rusqlite::Connection) -> rusqlite::Result<u64> {
        self.run_before(connection)?;
        let mut statement = connection.prepare_cached(&self.text)?;
        bind(&mut statement, &self.values)?;
        let mut rows = statement.raw_query();
        while rows.next()?.is_some() {}
        Ok(connection.changes())
    }

    fn run_before(&self, connection: &rusqlite::Connection) -> rusqlite::Result<()> {
        for text in self.before {
            let mut statement = connection.prepare_cached(text)?;
            bind(&mut statement, &self.values)?;
            statement.raw_execute()?;
        }
        Ok(())
    }
}

/// Gives a statement its parameters. To SQLite, `$2` is a name, and the first name in the text is
/// the first parameter. The next of all is `?`.
fn bind(statement: &mut CachedStatement<'_>, values: &[Value]) -> rusqlite::Result<()> {
    for parameter in 1..=statement.parameter_count() {
        let named = statement.parameter_name(parameter);
        let number = named.and_then(|name| name.get(1..)?.parse().ok());
        if let Some(value) = values.get(number.unwrap_or(parameter) - 1) {
            statement.raw_bind_parameter(parameter, value)?;
        }
    }
    Ok(())
}

impl SqliteRow {
    /// Returns the value of a column, by its number or its name.
    pub fn get<'r, T: FromColumn<'r>>(&'r self, column: impl Column) -> Result<T, DbError> {
        let at = column.position(&self.columns);
        let value = at.and_then(|at| self.values.get(at));
        let value = value.ok_or_else(|| DbError::Refused("a column is not there".into()))?;
        T::read(value.into()).map_err(|error| {
            let name = at.and_then(|at| self.columns.get(at));
            let name = name.map_or("?", String::as_str);
            DbError::Refused(format!("the column {name} cannot be read: {error}").into())
        })
    }
}

/// A column, by its number or its name.
pub trait Column {
    fn position(self, columns: &[String]) -> Option<usize>;
}

impl Column for usize {
    fn position(self, _: &[String]) -> Option<usize> {
        Some(self)
    }
}

impl Column for &str {
    fn position(self, columns: &[String]) -> Option<usize> {
        columns.iter().position(|name| name == self)
    }
}

/// What a column can be read as.
pub trait FromColumn<'r>: Sized {
    fn read(value: ValueRef<'r>) -> FromSqlResult<Self>;
}

impl<'r> FromColumn<'r> for &'r str {
    fn read(value: ValueRef<'r>) -> FromSqlResult<Self> {
        value.as_str()
    }
}

impl<'r, T: FromColumn<'r>> FromColumn<'r> for Option<T> {
    fn read(value: ValueRef<'r>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Null => Ok(None),
            value => T::read(value).map(Some),
        }
    }
}

macro_rules! from_column {
    ($($kind:ty),*) => {$(
        impl FromColumn<'_> for $kind {
            fn read(value: ValueRef<'_>) -> FromSqlResult<Self> {
                Self::column_result(value)
            }
        }
    )*};
}

from_column!(bool, i32, i64, String, Vec<u8>);
