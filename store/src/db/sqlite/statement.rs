//! A statement for SQLite, its parameters and the rows of its result.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::CachedStatement;
use rusqlite::types::{FromSql as _, FromSqlResult, Value, ValueRef};

use crate::db::{DbError, Result};

/// A statement with its parameters. It runs once for each of the rows that these are.
#[derive(Debug)]
pub struct SqliteStatement {
    /// Statements that run before this one, with the same parameters.
    before: &'static [String],
    text: Cow<'static, str>,
    parameters: Vec<Parameter>,
    rows: usize,
}

#[derive(Debug)]
enum Parameter {
    /// The same for all rows.
    One(Value),
    Each(Vec<Value>),
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
            parameters: values.into_iter().map(Parameter::One).collect(),
            rows: 1,
        }
    }

    /// Adds the next parameter.
    pub fn bind(mut self, value: Value) -> Self {
        self.parameters.push(Parameter::One(value));
        self
    }

    /// Adds the next parameter, one value for each row.
    pub fn bind_each(mut self, values: Vec<Value>) -> Self {
        self.rows = values.len();
        self.parameters.push(Parameter::Each(values));
        self
    }

    /// Runs these before, with the same parameters.
    pub fn after(self, before: &'static [String]) -> Self {
        Self { before, ..self }
    }

    /// Returns the rows of the result.
    pub fn fetch(self, connection: &rusqlite::Connection) -> rusqlite::Result<Vec<SqliteRow>> {
        let mut read = Vec::new();
        self.run(connection, |statement| {
            let columns: Arc<[String]> = statement
                .column_names()
                .into_iter()
                .map(Into::into)
                .collect();
            let mut rows = statement.raw_query();
            while let Some(row) = rows.next()? {
                let values = (0..columns.len()).map(|at| row.get(at));
                read.push(SqliteRow {
                    values: values.collect::<rusqlite::Result<_>>()?,
                    columns: Arc::clone(&columns),
                });
            }
            Ok(())
        })?;
        Ok(read)
    }

    /// Returns how many rows the statement has changed.
    pub fn execute(self, connection: &rusqlite::Connection) -> rusqlite::Result<u64> {
        let mut changes = 0;
        self.run(connection, |statement| {
            let mut rows = statement.raw_query();
            while rows.next()?.is_some() {}
            changes += connection.changes();
            Ok(())
        })?;
        Ok(changes)
    }

    fn run(
        &self,
        connection: &rusqlite::Connection,
        mut read: impl FnMut(&mut CachedStatement<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let prepared = |text: &str| connection.prepare_cached(text).map(PreparedStatement::new);
        let before = self.before.iter().map(|text| prepared(text));
        let mut before = before.collect::<rusqlite::Result<Vec<_>>>()?;
        let mut last = prepared(&self.text)?;
        for row in 0..self.rows {
            for earlier in &mut before {
                earlier.bind(&self.parameters, row)?;
                earlier.statement.raw_execute()?;
            }
            last.bind(&self.parameters, row)?;
            read(&mut last.statement)?;
        }
        Ok(())
    }
}

struct PreparedStatement<'c> {
    statement: CachedStatement<'c>,
    /// The number of the parameter behind each place, from 1.
    parameters: Vec<usize>,
}

impl<'c> PreparedStatement<'c> {
    /// To SQLite, `$2` is a name, and the first name in the text is the first parameter. The next
    /// of all is `?`.
    fn new(statement: CachedStatement<'c>) -> Self {
        let number = |place| {
            let named = statement.parameter_name(place);
            let number = named.and_then(|name| name.get(1..)?.parse().ok());
            number.unwrap_or(place)
        };
        Self {
            parameters: (1..=statement.parameter_count()).map(number).collect(),
            statement,
        }
    }

    /// Gives it the parameters of a row.
    fn bind(&mut self, values: &[Parameter], row: usize) -> rusqlite::Result<()> {
        for (place, number) in (1..).zip(&self.parameters) {
            let value = match values.get(number - 1) {
                Some(Parameter::One(value)) => Some(value),
                Some(Parameter::Each(values)) => values.get(row),
                None => None,
            };
            if let Some(value) = value {
                self.statement.raw_bind_parameter(place, value)?;
            }
        }
        Ok(())
    }
}

impl SqliteRow {
    /// Returns the value of a column, by its number or its name.
    pub fn get<'r, T: FromColumn<'r>>(&'r self, column: impl Column) -> Result<T> {
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
