//! The file: the only place of this crate with SQL.
//!
//! Three tables: the pipes with their watermarks and counts, the messages, and the delayed messages. A batch is one
//! transaction. What must stay true: when [`Disk::commit`] answers `Ok`, the batch survives a `kill -9` and a power cut;
//! when it answers an error, nothing of it has happened.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode,
    SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _, Sqlite};

use super::pipe::{Found, Id, Mark, Message, rows_of};
use crate::broker::{HeaderValue, Headers};

/// What one commit writes.
#[derive(Debug, Default)]
pub struct Batch {
    /// New pipes: number and name.
    pub pipes: Vec<(i64, Arc<str>)>,
    pub messages: Vec<Message>,
    pub delayed: Vec<Delayed>,
    /// Delayed messages that are among `messages` now.
    pub released: Vec<i64>,
    /// Messages to be forgotten.
    pub settled: Vec<Id>,
    /// Messages whose delivery count has changed.
    pub returned: Vec<Message>,
    pub marks: Vec<Mark>,
}

impl Batch {
    /// False when there are but acknowledgements, which can wait a little.
    pub fn is_urgent(&self) -> bool {
        !(self.pipes.is_empty()
            && self.messages.is_empty()
            && self.delayed.is_empty()
            && self.released.is_empty()
            && self.returned.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        !self.is_urgent() && self.settled.is_empty() && self.marks.is_empty()
    }
}

/// A message that waits for its time.
#[derive(Debug, Clone)]
pub struct Delayed {
    pub id: i64,
    /// Milliseconds since 1970.
    pub due: i64,
    pub pipe: i64,
    pub headers: Headers,
    pub body: Bytes,
}

/// What was on the disk.
#[derive(Debug)]
pub struct Recovered {
    pub pipes: Vec<Found>,
    /// The youngest delayed message, or 0.
    pub last_delayed: i64,
    pub next_due: Option<i64>,
}

type Error = sqlx::Error;

#[derive(Debug)]
pub struct Disk {
    connection: SqliteConnection,
    statements: Statements,
}

impl Disk {
    pub async fn open(file: &Path) -> Result<(Self, Recovered), Error> {
        let mut connection = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .locking_mode(SqliteLockingMode::Exclusive)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(false)
            // Hot pages are written to the file once for many commits.
            .pragma("wal_autocheckpoint", "8192")
            .pragma("journal_size_limit", "67108864")
            .pragma("cache_size", "-32768")
            .row_buffer_size(1024)
            .thread_name(|_| "broker-disk".into())
            .disable_statement_logging()
            .connect()
            .await?;
        connection.execute(SCHEMA).await?;
        let mut disk = Self {
            connection,
            statements: Statements::new(),
        };
        let recovered = disk.recover().await?;
        Ok((disk, recovered))
    }

    /// Writes all of the batch or nothing.
    pub async fn commit(&mut self, batch: &mut Batch) -> Result<(), Error> {
        self.connection.execute("BEGIN IMMEDIATE").await?;
        match self.write(batch).await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Some errors have rolled back already; then this one says only that.
                drop(self.connection.execute("ROLLBACK").await);
                Err(error)
            }
        }
    }

    async fn write(&mut self, batch: &mut Batch) -> Result<(), Error> {
        for (number, name) in &batch.pipes {
            let first = rows_of(*number).0;
            let insert = sqlx::query(
                "INSERT INTO pipe (number, name, handed_out, stored) VALUES (?, ?, ?, 0)",
            );
            insert
                .bind(number)
                .bind(&**name)
                .bind(first)
                .execute(&mut self.connection)
                .await?;
        }
        self.insert(&batch.messages).await?;
        for Delayed {
            id,
            due,
            pipe,
            headers,
            body,
        } in &batch.delayed
        {
            let insert = sqlx::query(
                "INSERT INTO delayed (id, due, pipe, headers, body) VALUES (?, ?, ?, ?, ?)",
            );
            let insert = insert
                .bind(id)
                .bind(due)
                .bind(pipe)
                .bind(encode(headers))
                .bind(&**body);
            insert.execute(&mut self.connection).await?;
        }
        for id in &batch.released {
            sqlx::query("DELETE FROM delayed WHERE id = ?")
                .bind(id)
                .execute(&mut self.connection)
                .await?;
        }
        for message in &batch.returned {
            let update = sqlx::query("UPDATE message SET delivery_count = ? WHERE id = ?");
            update
                .bind(message.delivery_count)
                .bind(message.id)
                .execute(&mut self.connection)
                .await?;
        }
        self.delete(&mut batch.settled).await?;
        for Mark {
            number,
            handed_out,
            stored,
        } in &batch.marks
        {
            let update = sqlx::query("UPDATE pipe SET handed_out = ?, stored = ? WHERE number = ?");
            update
                .bind(handed_out)
                .bind(stored.cast_signed())
                .bind(number)
                .execute(&mut self.connection)
                .await?;
        }
        self.connection.execute("COMMIT").await?;
        Ok(())
    }

    async fn insert(&mut self, mut messages: &[Message]) -> Result<(), Error> {
        for (rows, statement) in &self.statements.inserts {
            while messages.len() >= *rows {
                let (now, later) = messages.split_at(*rows);
                let mut insert = statement.query();
                for Message {
                    id, headers, body, ..
                } in now
                {
                    insert = insert.bind(id).bind(encode(headers)).bind(&**body);
                }
                insert.execute(&mut self.connection).await?;
                messages = later;
            }
        }
        Ok(())
    }

    /// Deletes runs as ranges and the rest in groups.
    async fn delete(&mut self, ids: &mut [Id]) -> Result<(), Error> {
        ids.sort_unstable();
        let mut alone = Vec::new();
        for run in ids.chunk_by(|one, next| one + 1 == *next) {
            if let ([first, .., last], true) = (run, run.len() > 2) {
                let delete = sqlx::query("DELETE FROM message WHERE id BETWEEN ? AND ?");
                delete
                    .bind(first)
                    .bind(last)
                    .execute(&mut self.connection)
                    .await?;
            } else {
                alone.extend_from_slice(run);
            }
        }
        let mut alone = alone.as_slice();
        for (rows, statement) in &self.statements.deletes {
            while alone.len() >= *rows {
                let (now, later) = alone.split_at(*rows);
                let delete = now.iter().fold(statement.query(), sqlx::query::Query::bind);
                delete.execute(&mut self.connection).await?;
                alone = later;
            }
        }
        Ok(())
    }

    /// The messages of a pipe after this one, up to a number and about a size.
    pub async fn page(
        &mut self,
        number: i64,
        after: Id,
        messages: usize,
        bytes: usize,
    ) -> Result<Vec<Message>, Error> {
        let select = "SELECT id, delivery_count, headers, body FROM message WHERE id > ? AND id <= ? ORDER BY id LIMIT ?";
        let select = sqlx::query(select)
            .bind(after)
            .bind(rows_of(number).1)
            .bind(i64::try_from(messages).unwrap_or(i64::MAX));
        let mut rows = select.fetch(&mut self.connection);
        let (mut page, mut read) = (Vec::new(), 0);
        while read < bytes
            && let Some(row) = rows.try_next().await?
        {
            let (id, delivery_count) = (row.try_get(0)?, row.try_get(1)?);
            let message = Message {
                id,
                delivery_count,
                headers: decode(&row, 2)?,
                body: body(&row, 3)?,
            };
            read += message.body.len();
            page.push(message);
        }
        Ok(page)
    }

    /// Delayed messages whose time has come, the oldest first, up to a number.
    pub async fn due(&mut self, now: i64, limit: i64) -> Result<Vec<Delayed>, Error> {
        let select = "SELECT id, due, pipe, headers, body FROM delayed WHERE due <= ? ORDER BY due, id LIMIT ?";
        let rows = sqlx::query(select)
            .bind(now)
            .bind(limit)
            .fetch_all(&mut self.connection)
            .await?;
        rows.iter()
            .map(|row| {
                let (id, due, pipe) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                Ok(Delayed {
                    id,
                    due,
                    pipe,
                    headers: decode(row, 3)?,
                    body: body(row, 4)?,
                })
            })
            .collect()
    }

    pub async fn next_due(&mut self) -> Result<Option<i64>, Error> {
        sqlx::query_scalar("SELECT min(due) FROM delayed")
            .fetch_one(&mut self.connection)
            .await
    }

    pub async fn close(self) {
        // What has been committed is safe without a checkpoint, too.
        drop(self.connection.close().await);
    }

    /// Counts what an earlier process had been handed, once, and tells what is there.
    async fn recover(&mut self) -> Result<Recovered, Error> {
        let mut transaction = self.connection.begin().await?;
        let rows = sqlx::query("SELECT number, name, handed_out, stored FROM pipe ORDER BY number")
            .fetch_all(&mut *transaction)
            .await?;
        let mut pipes = Vec::with_capacity(rows.len());
        for row in rows {
            let (number, name, handed_out): (i64, String, Id) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let stored: i64 = row.try_get(3)?;
            let (first, last) = rows_of(number);
            sqlx::query(
                "UPDATE message SET delivery_count = delivery_count + 1 WHERE id > ? AND id <= ?",
            )
            .bind(first)
            .bind(handed_out)
            .execute(&mut *transaction)
            .await?;
            let youngest: Option<Id> =
                sqlx::query_scalar("SELECT max(id) FROM message WHERE id > ? AND id <= ?")
                    .bind(first)
                    .bind(last)
                    .fetch_one(&mut *transaction)
                    .await?;
            let last = youngest.unwrap_or(first);
            pipes.push(Found {
                number,
                name,
                last,
                stored: stored.cast_unsigned(),
            });
        }
        // They are counted now, so they are not to be counted again. With the watermark at the beginning, ids may begin
        // anew after the youngest one, too.
        sqlx::query("UPDATE pipe SET handed_out = number << 40")
            .execute(&mut *transaction)
            .await?;
        let last_delayed: i64 = sqlx::query_scalar("SELECT coalesce(max(id), 0) FROM delayed")
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(Recovered {
            pipes,
            last_delayed,
            next_due: self.next_due().await?,
        })
    }

    /// A disk that is full.
    #[cfg(test)]
    pub async fn limit_pages(&mut self, pages: u32) {
        self.connection
            .execute(AssertSqlSafe(format!("PRAGMA max_page_count = {pages}")))
            .await
            .unwrap();
    }
}

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS pipe (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        -- The watermark: messages up to this id may have been handed to a consumer.
        handed_out INTEGER NOT NULL,
        stored INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS message (
        -- (pipe number << 40) + place in the pipe
        id INTEGER PRIMARY KEY,
        delivery_count INTEGER NOT NULL,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS delayed (
        id INTEGER PRIMARY KEY,
        -- Milliseconds since 1970.
        due INTEGER NOT NULL,
        pipe INTEGER NOT NULL,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS delayed_due ON delayed (due, id);
";

/// Statements over many rows, in few sizes, so that each is prepared once. The largest first; the last is of one row.
#[derive(Debug)]
struct Statements {
    inserts: [(usize, Statement); 4],
    deletes: [(usize, Statement); 3],
}

#[derive(Debug)]
struct Statement(Arc<str>);

impl Statements {
    fn new() -> Self {
        Self {
            inserts: [256, 64, 8, 1].map(|rows| {
                let rows_text = vec!["(?,0,?,?)"; rows].join(",");
                (rows, Statement(format!("INSERT INTO message (id, delivery_count, headers, body) VALUES {rows_text}").into()))
            }),
            deletes: [128, 16, 1].map(|rows| {
                let rows_text = vec!["?"; rows].join(",");
                (rows, Statement(format!("DELETE FROM message WHERE id IN ({rows_text})").into()))
            }),
        }
    }
}

impl Statement {
    fn query(&self) -> sqlx::query::Query<'_, Sqlite, SqliteArguments> {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.0)))
    }
}

/// Headers as JSON, `[["name", "text"], ["name", 1]]`, for people who look into the file.
fn encode(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    let values: Vec<_> = headers
        .iter()
        .map(|(name, value)| match value {
            HeaderValue::Text(text) => (name, Value::Text(text.clone())),
            HeaderValue::Integer(integer) => (name, Value::Integer(*integer)),
        })
        .collect();
    serde_json::to_string(&values).ok()
}

fn decode(row: &SqliteRow, column: usize) -> Result<Headers, Error> {
    let mut headers = Headers::default();
    if let Some(text) = row.try_get::<Option<&str>, _>(column)? {
        let values: Vec<(String, Value)> =
            serde_json::from_str(text).map_err(|error| Error::Decode(error.into()))?;
        for (name, value) in values {
            match value {
                Value::Text(text) => headers.set(&name, HeaderValue::Text(text)),
                Value::Integer(integer) => headers.set(&name, HeaderValue::Integer(integer)),
            }
        }
    }
    Ok(headers)
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Integer(i64),
}

fn body(row: &SqliteRow, column: usize) -> Result<Bytes, Error> {
    row.try_get::<&[u8], _>(column).map(Bytes::copy_from_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_takes_all_of_a_batch_later_and_nothing_of_it_before() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broker.db");
        let (mut disk, recovered) = Disk::open(&file).await.unwrap();
        assert!(recovered.pipes.is_empty());
        disk.limit_pages(20).await;
        let first = rows_of(1).0;
        let messages = (1..=100)
            .map(|place| Message {
                id: first + place,
                delivery_count: 0,
                headers: Headers::default(),
                body: vec![0; 4000].into(),
            })
            .collect();
        let marks = vec![Mark {
            number: 1,
            handed_out: first + 2,
            stored: 100,
        }];
        let mut batch = Batch {
            pipes: vec![(1, "p".into())],
            messages,
            marks,
            ..Batch::default()
        };
        for _ in 0..2 {
            disk.commit(&mut batch).await.unwrap_err();
            assert!(
                disk.page(1, first, 1000, usize::MAX)
                    .await
                    .unwrap()
                    .is_empty()
            );
        }
        disk.limit_pages(10_000).await;
        disk.commit(&mut batch).await.unwrap();
        disk.close().await;

        let (mut disk, recovered) = Disk::open(&file).await.unwrap();
        let [
            Found {
                stored: 100, last, ..
            },
        ] = recovered.pipes[..]
        else {
            panic!("{recovered:?}")
        };
        assert_eq!(last, first + 100);
        let counts: Vec<u32> = disk
            .page(1, first, 4, usize::MAX)
            .await
            .unwrap()
            .into_iter()
            .map(|message| message.delivery_count)
            .collect();
        assert_eq!(counts, [1, 1, 0, 0]);
    }
}
