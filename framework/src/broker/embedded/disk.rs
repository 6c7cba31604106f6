//! The file, and the only SQL of this crate.
//!
//! There are three tables: the pipes with their watermarks and counts, the messages, and the delayed messages. A batch is
//! one transaction.
//!
//! What must stay true: if [`Disk::commit`] returns `Ok`, the batch survives a `kill -9` and a power cut. If it returns an
//! error, nothing of the batch is stored.

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

use super::pipe::{Id, Mark, Message, StoredPipe, rows_of};
use crate::broker::{HeaderValue, Headers};

/// The changes of one commit.
#[derive(Debug, Default)]
pub struct Batch {
    /// New pipes: number and name.
    pub pipes: Vec<(i64, Arc<str>)>,
    /// New messages.
    pub messages: Vec<Message>,
    /// New delayed messages.
    pub delayed: Vec<Delayed>,
    /// Delayed messages to delete, because they are among `messages` now.
    pub released: Vec<i64>,
    /// Messages to delete.
    pub settled: Vec<Id>,
    /// Messages whose delivery count has changed.
    pub returned: Vec<Message>,
    /// Pipes whose row has changed.
    pub marks: Vec<Mark>,
}

impl Batch {
    /// Returns whether the batch must be committed now. Acknowledgements and pipe rows can wait a little.
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

/// A message that becomes visible in its pipe later.
#[derive(Debug, Clone)]
pub struct Delayed {
    pub id: i64,
    /// Milliseconds since 1970.
    pub due: i64,
    pub pipe: i64,
    pub headers: Headers,
    pub body: Bytes,
}

/// The content of the file when it was opened.
#[derive(Debug)]
pub struct Recovered {
    pub pipes: Vec<StoredPipe>,
    /// The highest id of a delayed message, or 0.
    pub last_delayed: i64,
    /// When the first delayed message is due, in milliseconds since 1970.
    pub next_due: Option<i64>,
}

type Error = sqlx::Error;

#[derive(Debug)]
pub struct Disk {
    connection: SqliteConnection,
    statements: Statements,
    /// The size limits of the next commits, in pages.
    #[cfg(test)]
    pub page_limits: std::collections::VecDeque<u32>,
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
            // With rare checkpoints, a page that changes often is copied to the file once for many commits.
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
            #[cfg(test)]
            page_limits: [].into(),
        };
        let recovered = disk.recover().await?;
        Ok((disk, recovered))
    }

    /// Writes the whole batch or nothing.
    pub async fn commit(&mut self, batch: &mut Batch) -> Result<(), Error> {
        #[cfg(test)]
        if let Some(pages) = self.page_limits.pop_front() {
            self.limit_pages(pages).await;
        }
        self.connection.execute("BEGIN IMMEDIATE").await?;
        match self.write(batch).await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Fails if SQLite has already rolled back because of the error.
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

    /// Deletes runs of consecutive ids as ranges, and the others in groups.
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

    /// Returns the next messages of a pipe after the id `after`: at most `messages`, and none after the one whose body
    /// reaches a total of `bytes`.
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

    /// Returns the delayed messages that are due at `now` (milliseconds since 1970), the earliest first, at most `limit`.
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

    /// Returns when the first delayed message is due, in milliseconds since 1970.
    pub async fn next_due(&mut self) -> Result<Option<i64>, Error> {
        sqlx::query_scalar("SELECT min(due) FROM delayed")
            .fetch_one(&mut self.connection)
            .await
    }

    pub async fn close(self) {
        // If the final checkpoint fails, the committed data is still safe in the write-ahead log.
        drop(self.connection.close().await);
    }

    /// Raises the delivery count of all messages up to the watermarks, because an earlier process may have received them.
    /// Resets the watermarks, and returns the content of the file.
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
            pipes.push(StoredPipe {
                number,
                name,
                last,
                stored: stored.cast_unsigned(),
            });
        }
        // The messages are counted now and must not be counted again at the next start. Once the watermark is reset, the
        // ids of deleted messages may also be used again.
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

    /// Limits the size of the file, to simulate a full disk.
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
        -- The watermark: messages up to this id may have been delivered to a consumer.
        handed_out INTEGER NOT NULL,
        stored INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS message (
        -- (pipe number << 40) + position in the pipe
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

/// Statements for several rows at a time. There are few sizes, so that each statement is prepared once. They are ordered
/// from the largest to the smallest, which is for one row.
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

/// Encodes headers as JSON, e.g. `[["name", "text"], ["name", 1]]`, which is readable in the file.
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
    async fn batch_refused_by_a_full_disk_is_committed_whole_later() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broker.db");
        let (mut disk, recovered) = Disk::open(&file).await.unwrap();
        assert!(recovered.pipes.is_empty());
        disk.limit_pages(20).await;
        let first = rows_of(1).0;
        let messages = (1..=100)
            .map(|position| Message {
                id: first + position,
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
            StoredPipe {
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
