//! The chain in a file of SQLite, with the table and the settings of the embedded broker: each message is inserted, read and deleted.

use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use super::super::ending::unless_stopped;
use super::super::system::temporary_folder;
use super::super::usage::CpuPerItem;
use super::{LimitOptions, measured};

/// The size of a page in bytes.
const PAGE_SIZE: u32 = 8192;
/// How many bytes the log takes before it is copied to the file.
const LOG_BYTES: u32 = 32 << 20;
/// How many messages are in one transaction.
const BATCH: u64 = 1000;
/// How many rows are in one statement.
const ROWS: u64 = 250;
/// The first id of a queue follows that of the queue before it at this distance.
const QUEUE: u32 = 40;

/// Lets all messages pass.
pub async fn run(options: &LimitOptions) -> anyhow::Result<(f64, CpuPerItem)> {
    let temporary = temporary_folder()?;
    let folder = options.data.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}-limit.db", options.name));
    let mut connection = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .locking_mode(SqliteLockingMode::Exclusive)
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .page_size(PAGE_SIZE)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(false)
        .pragma("journal_size_limit", "67108864")
        .pragma("wal_autocheckpoint", (LOG_BYTES / PAGE_SIZE).to_string())
        .pragma("cache_size", "-8192")
        .row_buffer_size(1024)
        .disable_statement_logging()
        .connect()
        .await?;
    connection
        .execute(
            "DROP TABLE IF EXISTS message;
             CREATE TABLE message (
                id INTEGER PRIMARY KEY, delivery_count INTEGER NOT NULL, headers TEXT, body BLOB NOT NULL, sent INTEGER
             ) STRICT",
        )
        .await?;
    let passed = unless_stopped(measured(options, pass(options, &mut connection))).await;
    connection.close().await?;
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        // The last two are gone if the file was closed in order.
        drop(std::fs::remove_file(name));
    }
    passed
}

async fn pass(options: &LimitOptions, connection: &mut SqliteConnection) -> anyhow::Result<()> {
    let bodies: Vec<_> = (1..=options.hops + 1)
        .map(|queue| options.body(queue))
        .collect();
    let (mut first, mut left) = (1, options.messages());
    while left > 0 {
        let batch = left.min(BATCH);
        insert(connection, (first, batch), 1, &bodies[0], None).await?;
        for (queue, next_body) in (1..=options.taken()).zip(&bodies[1..]) {
            let ids = ids(queue, first, batch);
            let select = "SELECT id, delivery_count, sent, headers, body FROM message WHERE id BETWEEN ? AND ? ORDER BY id";
            let read = sqlx::query(select).bind(ids.0).bind(ids.1);
            read.fetch_all(&mut *connection).await?;
            let next = if queue < options.hops { batch } else { 0 };
            insert(connection, (first, next), queue + 1, next_body, Some(ids)).await?;
        }
        first += batch;
        left -= batch;
    }
    Ok(())
}

/// Inserts messages into a queue, and deletes those of another one, in one transaction.
async fn insert(
    connection: &mut SqliteConnection,
    (first, messages): (u64, u64),
    queue: u32,
    body: &[u8],
    deleted: Option<(i64, i64)>,
) -> anyhow::Result<()> {
    let sent = framework::clock::Clock::system().now_millis() / 1000;
    let mut transaction = connection.begin().await?;
    for begin in (0..messages).step_by(usize::try_from(ROWS)?) {
        let rows = ROWS.min(messages - begin);
        let values = vec!["(?,0,?,NULL,?)"; usize::try_from(rows)?].join(",");
        let text = format!(
            "INSERT INTO message (id, delivery_count, sent, headers, body) VALUES {values}"
        );
        let mut statement = sqlx::query(sqlx::AssertSqlSafe(text));
        for row in 0..rows {
            let (id, _) = ids(queue, first + begin + row, 1);
            statement = statement.bind(id).bind(sent).bind(body);
        }
        statement.execute(&mut *transaction).await?;
    }
    if let Some((first, last)) = deleted {
        let delete = sqlx::query("DELETE FROM message WHERE id BETWEEN ? AND ?");
        delete
            .bind(first)
            .bind(last)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Returns the first and the last id of messages of a queue.
fn ids(queue: u32, first: u64, messages: u64) -> (i64, i64) {
    let base = i64::from(queue) << QUEUE;
    let first = base + first.cast_signed();
    (first, first + messages.cast_signed() - 1)
}
