//! The turns of transactions at the one connection that writes, and the commit that several of them
//! share.
//!
//! A commit waits for the disk. Transactions that wait for their turn meanwhile would each wait for
//! the disk again, so a transaction that is over passes its turn on first, with its changes
//! uncommitted, and queues for another turn, in which it commits. Those that queue before it join:
//! what they change is committed with it. A transaction that is alone gets its second turn at once.
//!
//! What must stay true:
//! - A transaction is over for its caller only when the disk has what it has changed, and all that
//!   it has seen.
//! - If a connection is closed before its group is committed, nothing of the group remains, and
//!   each of its transactions runs again. If it is closed during the commit, because the caller of
//!   the transaction that commits has gone, nobody knows what the disk has: the others fail as
//!   those do that lose the connection to a server.
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
    end: oneshot::Sender<End>,
}

/// How a group has ended that was not rolled back.
#[derive(Debug, Clone, Copy)]
enum End {
    Committed,
    Unknown,
}

/// The turn of one transaction. If it is dropped before its end, its group is rolled back.
pub struct Turn {
    group: OwnedMutexGuard<Group>,
    queue: Arc<Mutex<Group>>,
    /// Whether others of the group were there before.
    has_joined: bool,
    is_committing: bool,
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
            is_committing: false,
            is_over: false,
        };
        turn.run(if has_joined {
            "savepoint turn"
        } else {
            // Takes the lock of the one writer now: a transaction that reads first could not get it
            // later.
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

    /// Returns once the transaction is committed. Returns the signals to send: those of all
    /// transactions that this one has committed.
    pub async fn commit(self, wakes: Wakes) -> Result<Vec<Wakes>, DbError> {
        self.end(wakes).await
    }

    /// Undoes what the transaction has changed. What it has seen may be of others that are not
    /// committed.
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
        let (end, mut ended) = oneshot::channel();
        self.group.members.push(Member { wakes, end });
        self.is_over = true;
        let queue = Arc::clone(&self.queue);
        drop(self);
        let mut waiting = Waiting(Some(&queue));
        let group = tokio::select! {
            biased;
            end = &mut ended => Err(end),
            group = Arc::clone(&queue).lock_owned() => Ok(group),
        };
        waiting.0 = None;
        let group = match group {
            Ok(group) => group,
            Err(end) => return ended_by_another(end.ok()),
        };
        // It may have ended in the moment before this turn.
        match ended.try_recv() {
            Ok(end) => return ended_by_another(Some(end)),
            Err(oneshot::error::TryRecvError::Closed) => return ended_by_another(None),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let mut turn = Self {
            group,
            queue: Arc::clone(&queue),
            has_joined: true,
            is_committing: true,
            is_over: false,
        };
        let committed = turn.run("commit").await;
        turn.is_committing = false;
        committed?;
        turn.is_over = true;
        turn.group.open = None;
        let members = std::mem::take(&mut turn.group.members);
        let wakes = members.into_iter().map(|member| {
            // Nobody waits if the caller has gone.
            let _ = member.end.send(End::Committed);
            member.wakes
        });
        Ok(wakes.collect())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_committing {
            for member in self.group.members.drain(..) {
                let _ = member.end.send(End::Unknown);
            }
        }
        if !self.is_over {
            self.group.roll_back();
        }
    }
}

impl Group {
    /// Closes the connection, so that the database rolls back. The members learn it because their
    /// senders are dropped.
    fn roll_back(&mut self) {
        if let Some(mut connection) = self.open.take() {
            connection.close_on_drop();
        }
        self.members.clear();
    }
}

/// A transaction that waits to be committed. If its caller goes and nobody else has a turn, nobody
/// would commit it.
struct Waiting<'q>(Option<&'q Mutex<Group>>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(Ok(mut group)) = self.0.map(Mutex::try_lock) {
            group.roll_back();
        }
    }
}

/// Returns the result of a transaction that another one of its group has ended; `None` if the group
/// was rolled back.
fn ended_by_another(end: Option<End>) -> Result<Vec<Wakes>, DbError> {
    match end {
        Some(End::Committed) => Ok(Vec::new()),
        Some(End::Unknown) => Err(DbError::Unavailable(
            "the connection was closed during the commit".into(),
        )),
        // The transaction runs again.
        None => Err(DbError::Contention(
            "the transactions that were to be committed with it were rolled back".into(),
        )),
    }
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
    async fn commit_that_is_broken_off_is_not_repeated_for_the_others() {
        let fixture = Fixture::new().await;
        let first = fixture.with(1).await;
        let mut second = pin!(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut first = pin!(first.commit(outbox()));
        assert!(poll!(&mut first).is_pending());
        let mut second = second.await;
        second.is_committing = true;
        drop(second);
        assert!(matches!(first.await, Err(DbError::Unavailable(_))));
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
