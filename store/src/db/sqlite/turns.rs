//! The turns of transactions at the one connection that writes, and the commit that several of them share.
//!
//! A commit waits for the disk. Transactions that wait for their turn meanwhile would each wait for the disk again, so a transaction
//! that is over passes its turn on first, with its changes uncommitted, and queues for another turn, in which it commits. Those that
//! queue before it join: what they change is committed with it. A transaction that is alone gets its second turn at once.
//!
//! What must stay true:
//! - A transaction is over for its caller only when the disk has what it has changed, and all that it has seen.
//! - If a connection is closed before its group is committed, nothing of the group remains, and each of its transactions runs again.
//! - The signals of a transaction that is committed are sent, also if its caller has gone.

use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{Sqlite, SqlitePool};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use crate::db::{DbError, Wakes};

/// Undoes what a transaction that has joined others has changed.
const UNDO: &str = "rollback to turn";

/// Gives turns, in the order in which they are asked for.
#[derive(Debug)]
pub struct Turns {
    writer: SqlitePool,
    group: Arc<Mutex<Group>>,
}

/// Transactions that are committed together.
#[derive(Debug, Default)]
struct Group {
    /// The connection, if a transaction of the database is open.
    open: Option<PoolConnection<Sqlite>>,
    /// The transactions that are over.
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    wakes: Wakes,
    committed: oneshot::Sender<()>,
}

/// The turn of one transaction. If it is dropped before its end, its group is rolled back.
pub struct Turn {
    group: OwnedMutexGuard<Group>,
    queue: Arc<Mutex<Group>>,
    /// Whether others of the group were there before.
    has_joined: bool,
    is_over: bool,
}

impl Turns {
    pub fn new(writer: SqlitePool) -> Self {
        let group = Arc::default();
        Self { writer, group }
    }

    /// Waits for a turn and begins a transaction.
    pub async fn begin(&self) -> Result<Turn, DbError> {
        let mut group = Arc::clone(&self.group).lock_owned().await;
        let has_joined = group.open.is_some();
        if !has_joined {
            group.open = Some(self.writer.acquire().await?);
        }
        let mut turn = Turn {
            group,
            queue: Arc::clone(&self.group),
            has_joined,
            is_over: false,
        };
        turn.run(if has_joined {
            "savepoint turn"
        } else {
            // Takes the lock of the one writer now: a transaction that reads first could not get it later.
            "begin immediate"
        })
        .await?;
        Ok(turn)
    }
}

impl Turn {
    /// Returns the connection.
    pub fn connection(&mut self) -> Result<&mut PoolConnection<Sqlite>, DbError> {
        let closed = || DbError::Unavailable("the connection was closed".into());
        self.group.open.as_mut().ok_or_else(closed)
    }

    async fn run(&mut self, text: &'static str) -> Result<(), DbError> {
        let done = sqlx::query(text).execute(&mut **self.connection()?).await;
        Ok(done.map(drop)?)
    }

    /// Returns once the transaction is committed. Returns the signals to send: those of all transactions that this one has committed.
    pub async fn commit(self, wakes: Wakes) -> Result<Vec<Wakes>, DbError> {
        self.end(wakes).await
    }

    /// Undoes what the transaction has changed. What it has seen may be of others that are not committed.
    pub async fn rollback(mut self) -> Result<Vec<Wakes>, DbError> {
        if self.has_joined {
            self.run(UNDO).await?;
            return self.end(Wakes::default()).await;
        }
        self.run("rollback").await?;
        self.is_over = true;
        self.group.open = None;
        Ok(Vec::new())
    }

    async fn end(mut self, wakes: Wakes) -> Result<Vec<Wakes>, DbError> {
        let (committed, mut done) = oneshot::channel();
        self.group.members.push(Member { wakes, committed });
        self.is_over = true;
        let queue = Arc::clone(&self.queue);
        drop(self);
        let mut waiting = Waiting(Some(&queue));
        let group = tokio::select! {
            biased;
            committed = &mut done => Err(committed),
            group = Arc::clone(&queue).lock_owned() => Ok(group),
        };
        waiting.0 = None;
        let group = match group {
            Ok(group) => group,
            Err(committed) => return committed.map(|()| Vec::new()).map_err(|_| undone()),
        };
        // It may have been committed in the moment before this turn.
        match done.try_recv() {
            Ok(()) => return Ok(Vec::new()),
            Err(oneshot::error::TryRecvError::Closed) => return Err(undone()),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let mut turn = Self {
            group,
            queue: Arc::clone(&queue),
            has_joined: true,
            is_over: false,
        };
        turn.run("commit").await?;
        turn.is_over = true;
        turn.group.open = None;
        let members = std::mem::take(&mut turn.group.members);
        let wakes = members.into_iter().map(|member| {
            // Nobody waits if the caller has gone.
            let _ = member.committed.send(());
            member.wakes
        });
        Ok(wakes.collect())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.group.roll_back();
        }
    }
}

impl Group {
    /// Closes the connection, so that the database rolls back. The members learn it because their senders are dropped.
    fn roll_back(&mut self) {
        if let Some(mut connection) = self.open.take() {
            connection.close_on_drop();
        }
        self.members.clear();
    }
}

/// A transaction that waits to be committed. If its caller goes and nobody else has a turn, nobody would commit it.
struct Waiting<'q>(Option<&'q Mutex<Group>>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(Ok(mut group)) = self.0.map(Mutex::try_lock) {
            group.roll_back();
        }
    }
}

/// The transaction runs again.
fn undone() -> DbError {
    DbError::Contention(
        "the transactions that were to be committed with it were rolled back".into(),
    )
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use futures_util::poll;
    use sqlx::Row as _;
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

    use super::*;
    use crate::db::Signal;

    /// A file with a table of numbers.
    struct Fixture {
        turns: Turns,
        readers: SqlitePool,
        _folder: tempfile::TempDir,
    }

    impl Fixture {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let options = SqliteConnectOptions::new()
                .filename(folder.path().join("numbers.db"))
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal);
            let pool = || SqlitePoolOptions::new().max_connections(1);
            let writer = pool().connect_with(options.clone()).await.unwrap();
            let create = sqlx::query("create table number (number integer)");
            create.execute(&writer).await.unwrap();
            Self {
                turns: Turns::new(writer),
                readers: pool().connect_lazy_with(options),
                _folder: folder,
            }
        }

        /// Begins a transaction that has inserted a number.
        async fn with(&self, number: i64) -> Turn {
            let mut turn = self.turns.begin().await.unwrap();
            let insert = sqlx::query("insert into number values ($1)").bind(number);
            let connection = turn.connection().unwrap();
            insert.execute(&mut **connection).await.unwrap();
            turn
        }

        /// Returns the numbers that are committed.
        async fn committed(&self) -> Vec<i64> {
            let select = sqlx::query("select number from number order by number");
            let rows = select.fetch_all(&self.readers).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }

    fn outbox() -> Wakes {
        let mut wakes = Wakes::default();
        wakes.add(Signal::Outbox);
        wakes
    }

    #[tokio::test]
    async fn transactions_that_queue_are_committed_together_by_the_first() {
        let fixture = Fixture::new().await;
        let first = fixture.with(1).await;
        let mut second = pin!(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut first = pin!(first.commit(outbox()));
        assert!(poll!(&mut first).is_pending(), "another one has its turn");
        let mut second = pin!(second.await.commit(Wakes::default()));
        assert!(poll!(&mut second).is_pending());
        assert!(fixture.committed().await.is_empty());
        assert_eq!(first.await.unwrap(), [outbox(), Wakes::default()]);
        assert_eq!(second.await.unwrap(), []);
        assert_eq!(fixture.committed().await, [1, 2]);
    }

    #[tokio::test]
    async fn rollback_undoes_one_transaction_and_ends_with_the_commit_of_the_others() {
        let fixture = Fixture::new().await;
        let first = fixture.with(1).await;
        let mut second = pin!(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut first = pin!(first.commit(Wakes::default()));
        assert!(poll!(&mut first).is_pending());
        let second = second.await;
        let (first, second) = tokio::join!(first, second.rollback());
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(fixture.committed().await, [1]);
        fixture.with(3).await.rollback().await.unwrap();
        assert_eq!(fixture.committed().await, [1]);
    }

    #[tokio::test]
    async fn dropped_turn_takes_its_group_along_which_runs_again() {
        let fixture = Fixture::new().await;
        let first = fixture.with(1).await;
        let mut second = pin!(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut first = pin!(first.commit(outbox()));
        assert!(poll!(&mut first).is_pending());
        drop(second.await);
        assert!(matches!(first.await, Err(DbError::Contention(_))));
        assert!(fixture.committed().await.is_empty());
        fixture.with(3).await.commit(outbox()).await.unwrap();
        assert_eq!(fixture.committed().await, [3]);
    }

    #[tokio::test]
    async fn what_an_abandoned_commit_has_changed_is_committed_by_others_or_undone() {
        let fixture = Fixture::new().await;
        let first = fixture.with(1).await;
        let mut second = Box::pin(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut abandoned = Box::pin(first.commit(outbox()));
        assert!(poll!(&mut abandoned).is_pending());
        drop(abandoned);
        let wakes = second.await.commit(Wakes::default()).await.unwrap();
        assert_eq!(wakes, [outbox(), Wakes::default()], "its signals, too");
        assert_eq!(fixture.committed().await, [1, 2]);

        let third = fixture.with(3).await;
        let mut fourth = Box::pin(fixture.with(4));
        assert!(poll!(&mut fourth).is_pending());
        let mut abandoned = Box::pin(third.commit(outbox()));
        assert_eq!(poll!(&mut abandoned).map(|_| ()), Poll::Pending);
        // Nobody is left.
        drop((fourth, abandoned));
        fixture.with(5).await.commit(outbox()).await.unwrap();
        assert_eq!(fixture.committed().await, [1, 2, 5]);
    }
}
