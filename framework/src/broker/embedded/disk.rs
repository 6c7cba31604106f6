//! The file, and the only SQL of this crate.
//!
//! There are three tables: the pipes with their watermarks and counts, the messages, and the
//! delayed messages. A batch is one transaction.
//!
//! What must stay true: if [`Disk::commit`] returns `Ok`, the batch survives a `kill -9` and a
//! power cut. If it returns an error, nothing of the batch is stored.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use bytes::Bytes;
use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, OpenFlags, Params, Row, Transaction, TransactionBehavior, params};

use super::FolderLock;
use super::stored_headers;
use crate::broker::Headers;
use crate::broker::local::pipe::{Id, Mark, Message, StoredPipe, rows_of};
use crate::broker::local::storage::{Batch, Delayed, Recovered, Storage};
use crate::broker::local::wall_clock::Due;

/// The size of a page of a new file, in bytes. A commit of many messages copies and checks each
/// page that it changes; with larger pages there are fewer of them.
const PAGE_SIZE: u32 = 8192;
/// How many bytes the log takes before it is copied to the file. With rare checkpoints, a page that
/// changes often is copied once for many commits.
const LOG_BYTES: i64 = 32 << 20;
/// How much of the file is kept in memory, in KiB. Measured: four times as much is no faster.
const CACHE_KIB: u32 = 2048;
/// How much of what one commit changes is kept in memory until it ends, in KiB: more than a usual
/// batch changes.
const COMMIT_KIB: u32 = 32 << 10;
/// The log and the batches on their way may take this space without being counted.
const UNCOUNTED: u64 = 96 << 20;
/// How many bytes are given back at a time. Meanwhile no message is stored.
const GIVEN_BACK_BYTES: i64 = 4 << 20;

/// Why the file could not be read or written.
pub type Error = rusqlite::Error;

#[derive(Debug)]
pub struct Disk {
    connection: Connection,
    /// Held while the file is open, also while work goes on for which nobody waits any more.
    /// Dropped after the connection.
    lock: Option<FolderLock>,
    probe: Probe,
    /// With so many free bytes, it does not matter how many more could be had.
    plenty: u64,
    /// The size of a page of this file, in bytes.
    page_size: i64,
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
    /// Opens or creates the file. `reserve` is the number of free bytes below which the free space
    /// must be known exactly, `now` the time in milliseconds since 1970.
    pub fn open(
        file: &Path,
        probe: Probe,
        reserve: u64,
        now: i64,
    ) -> Result<(Self, Recovered), Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags)?;
        // The lock comes before anything that opens the log, whose index is a file otherwise, and
        // the format of a new file before its first table. A commit that changes more than the
        // cache holds writes some pages to the log twice, and then reads all of its log again to
        // correct the checksums. So the cache may hold more during a commit.
        connection.execute_batch(&format!(
            "PRAGMA locking_mode = EXCLUSIVE;
            PRAGMA page_size = {PAGE_SIZE};
            PRAGMA auto_vacuum = INCREMENTAL;
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = FULL;
            PRAGMA journal_size_limit = 67108864;
            PRAGMA cache_size = -{CACHE_KIB};
            PRAGMA cache_spill = -{COMMIT_KIB};
            {SCHEMA}"
        ))?;
        let mut disk = Self {
            connection,
            lock: None,
            probe,
            plenty: reserve.saturating_add(UNCOUNTED),
            page_size: PAGE_SIZE.into(),
            #[cfg(test)]
            page_limits: [].into(),
        };
        disk.page_size = disk.one::<i64>("PRAGMA page_size")?.max(512);
        let pages = LOG_BYTES / disk.page_size;
        disk.execute(&format!("PRAGMA wal_autocheckpoint = {pages}"))?;
        disk.bring_back(now)?;
        let recovered = disk.recover()?;
        Ok((disk, recovered))
    }

    /// Holds this lock until the file is closed.
    pub fn with_lock(self, lock: FolderLock) -> Self {
        let lock = Some(lock);
        Self { lock, ..self }
    }

    fn write(&self, batch: &mut Batch) -> Result<(), Error> {
        for (number, name) in &batch.pipes {
            let insert = "INSERT INTO pipe (number, name, handed_out, stored) VALUES (?, ?, ?, 0)";
            let first = rows_of(*number).0;
            self.change(insert, params![number, name, first])?;
        }
        self.insert(&batch.messages)?;
        for Delayed {
            id,
            due,
            pipe,
            headers,
            body,
        } in &batch.delayed
        {
            let insert = "INSERT INTO delayed (id, due, delay, pipe, headers, body) VALUES (?, ?, ?, ?, ?, ?)";
            let headers = stored_headers::encode(headers);
            let row = params![id, due.at, due.delay, pipe, headers, &**body];
            self.change(insert, row)?;
        }
        for id in &batch.released {
            self.change("DELETE FROM delayed WHERE id = ?", [id])?;
        }
        for message in &batch.returned {
            let update = "UPDATE message SET delivery_count = ? WHERE id = ?";
            self.change(update, params![message.delivery_count, message.id])?;
        }
        batch.settled.sort_unstable();
        for run in batch.settled.chunk_by(|one, next| one + 1 == *next) {
            let delete = "DELETE FROM message WHERE id BETWEEN ? AND ?";
            self.change(delete, params![run.first(), run.last()])?;
        }
        for Mark {
            number,
            handed_out,
            stored,
        } in &batch.marks
        {
            let update = "UPDATE pipe SET handed_out = ?, stored = ? WHERE number = ?";
            self.change(update, params![handed_out, stored.cast_signed(), number])?;
        }
        Ok(())
    }

    fn insert(&self, messages: &[Message]) -> Result<(), Error> {
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO message (id, delivery_count, sent, headers, body) VALUES (?, 0, ?, ?, ?)",
        )?;
        for message in messages {
            let headers = stored_headers::encode(&message.headers);
            insert.execute(params![message.id, message.sent, headers, &*message.body])?;
        }
        Ok(())
    }

    /// Executes statements up to the first row that each returns.
    fn execute(&self, statements: &str) -> Result<(), Error> {
        self.connection.execute_batch(statements)
    }

    /// Executes a statement that is used often. Returns how many rows it has changed.
    fn change(&self, statement: &'static str, values: impl Params) -> Result<usize, Error> {
        self.connection.prepare_cached(statement)?.execute(values)
    }

    /// Returns the only value that a query returns.
    fn one<T: FromSql>(&self, query: &'static str) -> Result<T, Error> {
        self.connection
            .prepare_cached(query)?
            .query_one([], |row| row.get(0))
    }

    /// Raises the delivery count of all messages up to the watermarks, because an earlier process
    /// may have received them. Resets the watermarks, and returns the content of the file.
    fn recover(&mut self) -> Result<Recovered, Error> {
        let transaction = self.connection.transaction()?;
        let pipes = recover_pipes(&transaction)?;
        // The messages are counted now and must not be counted again at the next start. Once the
        // watermark is reset, the ids of deleted messages may also be used again.
        transaction.execute("UPDATE pipe SET handed_out = number << 40", [])?;
        transaction.commit()?;
        Ok(Recovered {
            pipes,
            last_delayed: self.one("SELECT coalesce(max(id), 0) FROM delayed")?,
            next_due: self.next_due()?,
            free: self.free(),
        })
    }

    /// Limits the size of the file, to simulate a full disk.
    #[cfg(test)]
    pub fn limit_pages(&self, pages: u32) {
        self.execute(&format!("PRAGMA max_page_count = {pages}"))
            .unwrap();
    }
}

impl Storage for Disk {
    type Error = Error;

    fn commit(&mut self, batch: &mut Batch) -> Result<(), Error> {
        #[cfg(test)]
        if let Some(pages) = self.page_limits.pop_front() {
            self.limit_pages(pages);
        }
        let transaction =
            Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        // An error drops the transaction, which rolls it back.
        self.write(batch)?;
        transaction.commit()
    }

    fn page(
        &self,
        number: i64,
        after: Id,
        messages: usize,
        bytes: usize,
    ) -> Result<Vec<Message>, Error> {
        let mut select = self.connection.prepare_cached(
            "SELECT id, delivery_count, sent, headers, body FROM message WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
        )?;
        let limit = i64::try_from(messages).unwrap_or(i64::MAX);
        let mut rows = select.query(params![after, rows_of(number).1, limit])?;
        let (mut page, mut read) = (Vec::new(), 0);
        while read < bytes
            && let Some(row) = rows.next()?
        {
            let message = Message {
                id: row.get(0)?,
                delivery_count: row.get(1)?,
                sent: row.get(2)?,
                headers: headers(row, 3)?,
                body: body(row, 4)?,
            };
            read += message.body.len();
            page.push(message);
        }
        Ok(page)
    }

    fn due(&self, now: i64, limit: usize, bytes: usize) -> Result<Vec<Delayed>, Error> {
        let mut select = self.connection.prepare_cached(
            "SELECT id, due, delay, pipe, headers, body FROM delayed WHERE due <= ? ORDER BY due, id LIMIT ?",
        )?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = select.query([now, limit])?;
        let (mut due, mut read) = (Vec::new(), 0);
        while read < bytes
            && let Some(row) = rows.next()?
        {
            let delayed = Delayed {
                id: row.get(0)?,
                due: Due {
                    at: row.get(1)?,
                    delay: row.get(2)?,
                },
                pipe: row.get(3)?,
                headers: headers(row, 4)?,
                body: body(row, 5)?,
            };
            read += delayed.body.len();
            due.push(delayed);
        }
        Ok(due)
    }

    fn bring_back(&self, now: i64) -> Result<(), Error> {
        let update = "UPDATE delayed SET due = ?1 + delay WHERE due - delay > ?1";
        let messages = self.change(update, [now])?;
        if messages > 0 {
            tracing::warn!(
                messages,
                "the clock was set back; delayed messages wait for their delay from now on, not for the time it showed"
            );
        }
        Ok(())
    }

    fn count_delayed(&self, most: i64) -> Result<Option<HashMap<i64, u64>>, Error> {
        let mut select = self.connection.prepare(
            "SELECT pipe, count(*) FROM (SELECT pipe FROM delayed LIMIT ?) GROUP BY pipe",
        )?;
        let counted = select.query_map([most + 1], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let counted: Vec<(i64, i64)> = counted.collect::<Result<_, _>>()?;
        let all: i64 = counted.iter().map(|(_, count)| count).sum();
        let counted = counted.into_iter();
        let counted = counted.map(|(pipe, count)| (pipe, count.unsigned_abs()));
        Ok((all <= most).then(|| counted.collect()))
    }

    fn next_due(&self) -> Result<Option<i64>, Error> {
        self.one("SELECT min(due) FROM delayed")
    }

    /// They are free on the file system, and in unused pages of the file. Unused pages count only
    /// as far as there is as much free space outside the file, because a commit writes to its log
    /// first.
    fn free(&self) -> u64 {
        match (self.probe.0)() {
            None => return u64::MAX,
            Some(free) if free >= self.plenty => return free,
            Some(_) => {}
        }
        // The log takes space, and the file has yet to grow by what it contains. If the checkpoint
        // fails, the space is counted as it is.
        drop(self.execute("PRAGMA wal_checkpoint(TRUNCATE)"));
        let free = (self.probe.0)().unwrap_or(u64::MAX);
        let unused: i64 = self.one("PRAGMA freelist_count").unwrap_or(0);
        let unused = unused.saturating_mul(self.page_size).unsigned_abs();
        free.saturating_add(unused.min(free))
    }

    fn give_back(&self, kept: i64) -> Result<bool, Error> {
        let kept = kept / self.page_size;
        let unused: i64 = self.one("PRAGMA freelist_count")?;
        if unused <= kept {
            return Ok(false);
        }
        let pages = (unused - kept).min(GIVEN_BACK_BYTES / self.page_size);
        let cut = format!("PRAGMA incremental_vacuum({pages})");
        let mut cut = self.connection.prepare(&cut)?;
        let mut cut = cut.query([])?;
        // Each step cuts one page off.
        while cut.next()?.is_some() {}
        let more = unused - pages > kept;
        if !more {
            // The file is cut when the log is copied to it.
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")?;
        }
        Ok(more)
    }

    fn close(self) {
        // If the final checkpoint fails, the committed data is still safe in the write-ahead log.
        drop(self.connection.close());
        drop(self.lock);
    }

    /// SQLite's code tells more than its text.
    fn reason(error: &Error) -> String {
        match error.sqlite_error() {
            Some(code) => format!("{error} (SQLite's code {})", code.extended_code),
            None => error.to_string(),
        }
    }
}

/// Raises the delivery count of all messages up to the watermarks. Returns the pipes.
fn recover_pipes(connection: &Connection) -> Result<Vec<StoredPipe>, Error> {
    let mut pipes =
        connection.prepare("SELECT number, name, handed_out, stored FROM pipe ORDER BY number")?;
    let mut count = connection.prepare(
        "UPDATE message SET delivery_count = delivery_count + 1 WHERE id > ? AND id <= ?",
    )?;
    let mut youngest =
        connection.prepare("SELECT max(id) FROM message WHERE id > ? AND id <= ?")?;
    let pipes = pipes.query_map([], |row| {
        let (number, handed_out): (i64, Id) = (row.get(0)?, row.get(2)?);
        let (first, last) = rows_of(number);
        count.execute([first, handed_out])?;
        let youngest: Option<Id> = youngest.query_one([first, last], |row| row.get(0))?;
        Ok(StoredPipe {
            number,
            name: row.get(1)?,
            last: youngest.unwrap_or(first),
            stored: row.get::<_, i64>(3)?.cast_unsigned(),
        })
    })?;
    pipes.collect()
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
        -- Seconds since 1970.
        sent INTEGER NOT NULL,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS delayed (
        id INTEGER PRIMARY KEY,
        -- Milliseconds since 1970.
        due INTEGER NOT NULL,
        -- In milliseconds. If the clock is set back, the message waits no longer than this.
        delay INTEGER NOT NULL,
        pipe INTEGER NOT NULL,
        headers TEXT,
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS delayed_due ON delayed (due, id);
";

fn headers(row: &Row<'_>, column: usize) -> Result<Headers, Error> {
    let Some(text) = row.get_ref(column)?.as_str_or_null()? else {
        return Ok(Headers::default());
    };
    stored_headers::decode(text)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, error.into()))
}

fn body(row: &Row<'_>, column: usize) -> Result<Bytes, Error> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}

#[cfg(test)]
mod tests;
