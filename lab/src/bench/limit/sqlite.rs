//! The chain in a file of SQLite, with the table and the settings of the embedded broker: each
//! message is inserted, read and deleted.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use tokio::task::spawn_blocking;

use super::super::ending::unless_stopped;
use super::super::system::temporary_folder;
use super::super::usage::CpuPerItem;
use super::{Chain, measured};

/// The size of a page in bytes.
const PAGE_SIZE: u32 = 8192;
/// How many bytes the log takes before it is copied to the file.
const LOG_BYTES: u32 = 32 << 20;
/// How many messages are in one transaction.
const BATCH: u64 = 1000;
/// The first id of a queue follows that of the queue before it at this distance.
const QUEUE: u32 = 40;

/// Lets all messages pass.
pub async fn run(options: &Chain) -> anyhow::Result<(f64, CpuPerItem)> {
    let temporary = temporary_folder()?;
    let folder = options.data.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}-limit.db", options.name));
    let connection = Connection::open(&file)?;
    connection.execute_batch(&format!(
        "PRAGMA locking_mode = EXCLUSIVE;
        PRAGMA page_size = {PAGE_SIZE};
        PRAGMA auto_vacuum = INCREMENTAL;
        PRAGMA journal_mode = WAL;
        PRAGMA synchronous = FULL;
        PRAGMA journal_size_limit = 67108864;
        PRAGMA wal_autocheckpoint = {};
        PRAGMA cache_size = -2048;
        PRAGMA cache_spill = -32768;
        DROP TABLE IF EXISTS message;
        CREATE TABLE message (
            id INTEGER PRIMARY KEY, delivery_count INTEGER NOT NULL, headers TEXT, body BLOB NOT NULL, sent INTEGER
        ) STRICT",
        LOG_BYTES / PAGE_SIZE
    ))?;
    let connection = Arc::new(Mutex::new(connection));
    let passed = unless_stopped(measured(options, pass(options, &connection))).await;
    drop(connection);
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        // The last two are gone if the file was closed in order.
        drop(std::fs::remove_file(name));
    }
    passed
}

async fn pass(options: &Chain, connection: &Arc<Mutex<Connection>>) -> anyhow::Result<()> {
    let (hops, taken) = (options.hops, options.taken());
    let bodies: Vec<_> = (1..=hops + 1).map(|queue| options.body(queue)).collect();
    let bodies = Arc::new(bodies);
    let (mut first, mut left) = (1, options.messages());
    while left > 0 {
        let batch = left.min(BATCH);
        let (bodies, connection) = (Arc::clone(&bodies), Arc::clone(connection));
        let passing = spawn_blocking(move || {
            let mut connection = connection.lock();
            insert(&mut connection, (first, batch), 1, &bodies[0], None)?;
            for (queue, next_body) in (1..=taken).zip(&bodies[1..]) {
                let ids = ids(queue, first, batch);
                read(&connection, ids)?;
                let next = if queue < hops { batch } else { 0 };
                insert(
                    &mut connection,
                    (first, next),
                    queue + 1,
                    next_body,
                    Some(ids),
                )?;
            }
            rusqlite::Result::<()>::Ok(())
        });
        passing.await??;
        first += batch;
        left -= batch;
    }
    Ok(())
}

/// Reads the bodies of messages.
fn read(connection: &Connection, (first, last): (i64, i64)) -> rusqlite::Result<Vec<Vec<u8>>> {
    let mut select = connection.prepare_cached(
        "SELECT id, delivery_count, sent, headers, body FROM message WHERE id BETWEEN ? AND ? ORDER BY id",
    )?;
    let bodies = select.query_map([first, last], |row| row.get(4))?;
    bodies.collect()
}

/// Inserts messages into a queue, and deletes those of another one, in one transaction.
fn insert(
    connection: &mut Connection,
    (first, messages): (u64, u64),
    queue: u32,
    body: &[u8],
    deleted: Option<(i64, i64)>,
) -> rusqlite::Result<()> {
    let sent = framework::clock::Clock::system().now_millis() / 1000;
    let transaction = connection.transaction()?;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO message (id, delivery_count, sent, headers, body) VALUES (?, 0, ?, NULL, ?)",
    )?;
    for message in first..first + messages {
        let (id, _) = ids(queue, message, 1);
        insert.execute(params![id, sent, body])?;
    }
    drop(insert);
    if let Some((first, last)) = deleted {
        let delete = "DELETE FROM message WHERE id BETWEEN ? AND ?";
        transaction.prepare_cached(delete)?.execute([first, last])?;
    }
    transaction.commit()
}

/// Returns the first and the last id of messages of a queue.
fn ids(queue: u32, first: u64, messages: u64) -> (i64, i64) {
    let base = i64::from(queue) << QUEUE;
    let first = base + first.cast_signed();
    (first, first + messages.cast_signed() - 1)
}
