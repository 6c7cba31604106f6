//! The file, and the only SQL of this crate.
//!
//! There are three tables: the pipes with their watermarks and counts, the messages, and the delayed messages. A batch is
//! one transaction.
//!
//! What must stay true: if [`Disk::commit`] returns `Ok`, the batch survives a `kill -9` and a power cut. If it returns an
//! error, nothing of the batch is stored.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use futures_util::future::join;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode,
    SqliteLockingMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _, Sqlite};

use super::pipe::{Id, Mark, Message, StoredPipe, rows_of};
use super::stored_headers;
use super::wall_clock::Due;
use crate::broker::Headers;

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
    pub due: Due,
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
    /// How many bytes are free on the disk.
    pub free: u64,
}

/// The size of a page of a new file, in bytes. Files of older builds keep theirs, which is half as large: a commit of many
/// messages copies and checks each page that it changes, and with larger pages there are fewer of them.
const PAGE_SIZE: u32 = 8192;
/// How many bytes the log takes before it is copied to the file. With rare checkpoints, a page that changes often is
/// copied once for many commits.
const LOG_BYTES: i64 = 32 << 20;
/// How much of the file is kept in memory, in KiB. Measured: four times as much is no faster.
const CACHE_KIB: u32 = 2048;
/// How much of what one commit changes is kept in memory until it ends, in KiB: more than a usual batch changes.
const COMMIT_KIB: u32 = 32 << 10;
/// The log and the batches on their way may take this space without being counted.
const UNCOUNTED: u64 = 96 << 20;
/// How many bytes are given back at a time. Meanwhile no message is stored.
const GIVEN_BACK_BYTES: i64 = 4 << 20;
/// The largest content of a file, in bytes, that is rewritten.
const REWRITTEN_BYTES: i64 = 32 << 20;

type Error = sqlx::Error;

#[derive(Debug)]
pub struct Disk {
    connection: SqliteConnection,
    statements: Statements,
    probe: Probe,
    /// With so many free bytes, it does not matter how many more could be had.
    plenty: u64,
    /// The size of a page of this file, in bytes.
    page_size: i64,
    /// Whether unused pages can be cut off the file. Files of older builds cannot be cut until they are rewritten.
    can_shrink: bool,
    /// The size limits of the next commits, in pages.
    #[cfg(test)]
    pub page_limits: std::collections::VecDeque<u32>,
}

/// Returns how many bytes are free on the file system; `None` if that is not known.
pub struct Probe(Box<dyn Fn() -> Option<u64> + Send + Sync>);

impl Probe {
    /// Asks the file system that contains this file or folder.
    pub fn of(path: &Path) -> Self {
        let path = path.to_owned();
        Self::new(move || {
            let system = rustix::fs::statvfs(&path).ok()?;
            Some(system.f_bavail.saturating_mul(system.f_frsize))
        })
    }

    pub fn new(free: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(Box::new(free))
    }

    pub fn free(&self) -> Option<u64> {
        (self.0)()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl Disk {
    /// Opens or creates the file. `reserve` is the number of free bytes below which the free space must be known exactly,
    /// `now` the time in milliseconds since 1970.
    pub async fn open(
        file: &Path,
        probe: Probe,
        reserve: u64,
        now: i64,
    ) -> Result<(Self, Recovered), Error> {
        let mut connection = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .locking_mode(SqliteLockingMode::Exclusive)
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .page_size(PAGE_SIZE)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(false)
            .pragma("journal_size_limit", "67108864")
            .pragma("cache_size", format!("-{CACHE_KIB}"))
            // A commit that changes more than the cache holds writes some pages to the log twice, and then reads all of its log again to correct
            // the checksums. So the cache may hold more during a commit.
            .pragma("cache_spill", format!("-{COMMIT_KIB}"))
            .row_buffer_size(1024)
            .thread_name(|_| "broker-disk".into())
            .disable_statement_logging()
            .connect()
            .await?;
        connection.execute(SCHEMA).await?;
        add_column(&mut connection, "delayed", "delay").await?;
        add_column(&mut connection, "message", "sent").await?;
        add_delays(&mut connection, now).await?;
        let mut disk = Self {
            connection,
            statements: Statements::new(),
            probe,
            plenty: reserve.saturating_add(UNCOUNTED),
            page_size: PAGE_SIZE.into(),
            can_shrink: false,
            #[cfg(test)]
            page_limits: [].into(),
        };
        disk.page_size = disk.number("PRAGMA page_size").await?.max(512);
        let checkpoint = format!("PRAGMA wal_autocheckpoint = {}", LOG_BYTES / disk.page_size);
        disk.connection.execute(AssertSqlSafe(checkpoint)).await?;
        disk.can_shrink = disk.number("PRAGMA auto_vacuum").await? != 0;
        disk.bring_back(now).await?;
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
                "INSERT INTO delayed (id, due, delay, pipe, headers, body) VALUES (?, ?, ?, ?, ?, ?)",
            );
            let insert = insert
                .bind(id)
                .bind(due.at)
                .bind(due.delay)
                .bind(pipe)
                .bind(stored_headers::encode(headers))
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

    /// Inserts messages. While SQLite inserts some of them, this copies the next ones for it.
    async fn insert(&mut self, mut messages: &[Message]) -> Result<(), Error> {
        let Self {
            connection,
            statements,
            ..
        } = self;
        let mut next = statements.insert(&mut messages);
        while let Some(insert) = next {
            let copy = async { statements.insert(&mut messages) };
            let (inserted, following) = join(insert.execute(&mut *connection), copy).await;
            inserted?;
            next = following;
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
                let delete = now.iter().fold(statement.query(), Query::bind);
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
        let select = "SELECT id, delivery_count, sent, headers, body FROM message WHERE id > ? AND id <= ? ORDER BY id LIMIT ?";
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
                sent: row.try_get(2)?,
                headers: headers(&row, 3)?,
                body: body(&row, 4)?,
            };
            read += message.body.len();
            page.push(message);
        }
        Ok(page)
    }

    /// Returns the delayed messages that are due at `now` (milliseconds since 1970), the earliest first, at most `limit`.
    pub async fn due(&mut self, now: i64, limit: i64) -> Result<Vec<Delayed>, Error> {
        let select = "SELECT id, due, delay, pipe, headers, body FROM delayed WHERE due <= ? ORDER BY due, id LIMIT ?";
        let rows = sqlx::query(select)
            .bind(now)
            .bind(limit)
            .fetch_all(&mut self.connection)
            .await?;
        rows.iter()
            .map(|row| {
                let due = Due {
                    at: row.try_get(1)?,
                    delay: row.try_get(2)?,
                };
                Ok(Delayed {
                    id: row.try_get(0)?,
                    due,
                    pipe: row.try_get(3)?,
                    headers: headers(row, 4)?,
                    body: body(row, 5)?,
                })
            })
            .collect()
    }

    /// Brings back the due times that are further away than their delay, because the clock was set back.
    pub async fn bring_back(&mut self, now: i64) -> Result<(), Error> {
        let update = "UPDATE delayed SET due = ?1 + delay WHERE due - delay > ?1";
        let done = sqlx::query(update)
            .bind(now)
            .execute(&mut self.connection)
            .await?;
        let messages = done.rows_affected();
        if messages > 0 {
            tracing::warn!(
                messages,
                "the clock was set back; delayed messages wait for their delay from now on, not for the time it showed"
            );
        }
        Ok(())
    }

    /// Returns how many messages of each pipe are delayed; `None` if there are more than `most`.
    pub async fn count_delayed(&mut self, most: i64) -> Result<Option<HashMap<i64, u64>>, Error> {
        let counted: Vec<(i64, i64)> = sqlx::query_as(
            "SELECT pipe, count(*) FROM (SELECT pipe FROM delayed LIMIT ?) GROUP BY pipe",
        )
        .bind(most + 1)
        .fetch_all(&mut self.connection)
        .await?;
        let all: i64 = counted.iter().map(|(_, count)| count).sum();
        let counted = counted.into_iter();
        let counted = counted.map(|(pipe, count)| (pipe, count.unsigned_abs()));
        Ok((all <= most).then(|| counted.collect()))
    }

    /// Returns when the first delayed message is due, in milliseconds since 1970.
    pub async fn next_due(&mut self) -> Result<Option<i64>, Error> {
        sqlx::query_scalar("SELECT min(due) FROM delayed")
            .fetch_one(&mut self.connection)
            .await
    }

    /// Returns how many bytes are free for messages: on the file system, and in unused pages of the file. Unused pages
    /// count only as far as there is as much free space outside the file, because a commit writes to its log first.
    pub async fn free(&mut self) -> u64 {
        match (self.probe.0)() {
            None => return u64::MAX,
            Some(free) if free >= self.plenty => return free,
            Some(_) => {}
        }
        // The log takes space, and the file has yet to grow by what it contains. If the checkpoint fails, the space is
        // counted as it is.
        drop(
            self.connection
                .execute("PRAGMA wal_checkpoint(TRUNCATE)")
                .await,
        );
        let free = (self.probe.0)().unwrap_or(u64::MAX);
        let unused = self.number("PRAGMA freelist_count").await.unwrap_or(0);
        let unused = unused.saturating_mul(self.page_size).unsigned_abs();
        free.saturating_add(unused.min(free))
    }

    /// Gives some unused pages back to the file system, all but `kept` bytes. Returns whether there are more.
    pub async fn give_back(&mut self, kept: i64) -> Result<bool, Error> {
        let kept = kept / self.page_size;
        let unused = self.number("PRAGMA freelist_count").await?;
        if unused <= kept {
            return Ok(false);
        }
        if !self.can_shrink {
            return self.rewrite(unused).await;
        }
        let pages = (unused - kept).min(GIVEN_BACK_BYTES / self.page_size);
        let cut = format!("PRAGMA incremental_vacuum({pages})");
        self.connection.execute(AssertSqlSafe(cut)).await?;
        let more = unused - pages > kept;
        if !more {
            // The file is cut when the log is copied to it.
            self.connection
                .execute("PRAGMA wal_checkpoint(TRUNCATE)")
                .await?;
        }
        Ok(more)
    }

    /// Rewrites a file of an older build without its unused pages, so that they can be cut off from now on. Waits for a
    /// moment in which the file contains little, because this takes time and space. Older builds can read the new file.
    async fn rewrite(&mut self, unused: i64) -> Result<bool, Error> {
        let pages = self.number("PRAGMA page_count").await?;
        if pages - unused > REWRITTEN_BYTES / self.page_size {
            return Ok(false);
        }
        self.connection
            .execute(
                "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA temp_store = MEMORY; VACUUM; PRAGMA wal_checkpoint(TRUNCATE)",
            )
            .await?;
        self.can_shrink = true;
        Ok(false)
    }

    async fn number(&mut self, query: &'static str) -> Result<i64, Error> {
        sqlx::query_scalar(query)
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
            free: self.free().await,
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

/// Adds a column to a file of an older build. It may be null, so that such a build can still write to the table.
async fn add_column(
    connection: &mut SqliteConnection,
    table: &str,
    column: &str,
) -> Result<(), Error> {
    let known = "SELECT count(*) FROM pragma_table_info(?) WHERE name = ?";
    let known: i64 = sqlx::query_scalar(known)
        .bind(table)
        .bind(column)
        .fetch_one(&mut *connection)
        .await?;
    if known == 0 {
        let add = format!("ALTER TABLE {table} ADD COLUMN {column} INTEGER");
        connection.execute(AssertSqlSafe(add)).await?;
    }
    Ok(())
}

/// Adds the delays to the messages of an older build. They wait no longer than they would if they were delayed now.
async fn add_delays(connection: &mut SqliteConnection, now: i64) -> Result<(), Error> {
    sqlx::query("UPDATE delayed SET delay = max(due - ?, 0) WHERE delay IS NULL")
        .bind(now)
        .execute(connection)
        .await?;
    Ok(())
}

/// The schema of the first build; [`add_column`] adds to it.
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
///
/// An insertion that fails ends the transaction. Otherwise SQLite would copy each page that it changes to a file, to be able to
/// take back this statement alone.
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
                let rows_text = vec!["(?,0,?,?,?)"; rows].join(",");
                (rows, Statement(format!("INSERT OR ROLLBACK INTO message (id, delivery_count, sent, headers, body) VALUES {rows_text}").into()))
            }),
            deletes: [128, 16, 1].map(|rows| {
                let rows_text = vec!["?"; rows].join(",");
                (rows, Statement(format!("DELETE FROM message WHERE id IN ({rows_text})").into()))
            }),
        }
    }
}

impl Statements {
    /// Returns what inserts the first messages, as many as possible, and leaves the others.
    fn insert<'a>(
        &self,
        messages: &mut &'a [Message],
    ) -> Option<Query<'a, Sqlite, SqliteArguments>> {
        let mut sizes = self.inserts.iter();
        let (rows, statement) = sizes.find(|(rows, _)| *rows <= messages.len())?;
        let (now, later) = messages.split_at(*rows);
        *messages = later;
        let mut insert = statement.query();
        for message in now {
            insert = insert.bind(message.id).bind(message.sent);
            insert = insert
                .bind(stored_headers::encode(&message.headers))
                .bind(&*message.body);
        }
        Some(insert)
    }
}

impl Statement {
    fn query<'a>(&self) -> Query<'a, Sqlite, SqliteArguments> {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.0)))
    }
}

fn headers(row: &SqliteRow, column: usize) -> Result<Headers, Error> {
    let Some(text) = row.try_get::<Option<&str>, _>(column)? else {
        return Ok(Headers::default());
    };
    stored_headers::decode(text).map_err(|error| Error::Decode(error.into()))
}

fn body(row: &SqliteRow, column: usize) -> Result<Bytes, Error> {
    row.try_get::<&[u8], _>(column).map(Bytes::copy_from_slice)
}

#[cfg(test)]
mod tests;
