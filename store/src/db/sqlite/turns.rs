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
//! - If a caller goes before its group is committed, nothing of the group remains, and each of the
//!   other transactions runs again. If the caller of the transaction that commits goes during the
//!   commit, nobody is told how it ends: the others fail as those do that lose the connection to a
//!   server.
//! - The signals of a transaction that is committed are sent, also if its caller has gone.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use super::connection::{self, Connection, ConnectionOptions};
use crate::db::{DbError, Result, Wakes};

/// Undoes what a transaction that has joined others has changed.
const UNDO: &str = "rollback to turn";

/// Gives turns, in the order in which they are asked for.
#[derive(Debug)]
pub struct Turns {
    options: ConnectionOptions,
    group: Arc<Mutex<Group>>,
}

/// Transactions that are committed together.
#[derive(Debug, Default)]
struct Group {
    /// `None` before the first turn.
    connection: Option<Connection>,
    is_closed: bool,
    /// Whether a transaction of the database is open.
    is_open: bool,
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
    pub fn new(options: ConnectionOptions) -> Self {
        let group = Arc::default();
        Self { options, group }
    }

    /// Waits for a turn and begins a transaction.
    pub async fn begin(&self) -> Result<Turn> {
        let mut group = Arc::clone(&self.group).lock_owned().await;
        if group.is_closed {
            return Err(DbError::Unavailable("the store is closed".into()));
        }
        if group.connection.as_ref().is_none_or(Connection::is_lost) {
            group.roll_back();
            group.connection = Some(Connection::open(&self.options).await?);
        }
        let has_joined = group.is_open;
        group.is_open = true;
        let mut turn = Turn {
            group,
            queue: Arc::clone(&self.group),
            has_joined,
            is_committing: false,
            is_over: false,
        };
        if has_joined {
            turn.execute("savepoint turn").await?;
        } else {
            turn.run(|sqlite| {
                connection::roll_back(sqlite)?;
                // Takes the lock of the one writer now: a transaction that reads first could not
                // get it later.
                sqlite.prepare_cached("begin immediate")?.raw_execute()
            })
            .await?;
        }
        Ok(turn)
    }

    /// Closes the connection after the present turn.
    pub async fn close(&self) {
        let mut group = self.group.lock().await;
        group.is_closed = true;
        let connection = group.connection.take();
        if let Some(connection) = connection {
            connection.close().await;
        }
    }
}

impl Turn {
    /// Runs this at the connection.
    pub async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let closed = || DbError::Unavailable("the connection was closed".into());
        let connection = self.group.connection.as_mut().ok_or_else(closed)?;
        Ok(connection.run(|sqlite| work(sqlite)).await??)
    }

    async fn execute(&mut self, text: &'static str) -> Result<()> {
        self.run(|sqlite| sqlite.prepare_cached(text)?.raw_execute().map(drop))
            .await
    }

    /// Returns once the transaction is committed. Returns the signals to send: those of all
    /// transactions that this one has committed.
    pub async fn commit(self, wakes: Wakes) -> Result<Vec<Wakes>> {
        self.end(wakes).await
    }

    /// Undoes what the transaction has changed. What it has seen may be of others that are not
    /// committed.
    pub async fn rollback(mut self) -> Result<Vec<Wakes>> {
        if self.has_joined {
            self.execute(UNDO).await?;
            return self.end(Wakes::default()).await;
        }
        self.execute("rollback").await?;
        self.is_over = true;
        self.group.is_open = false;
        Ok(Vec::new())
    }

    async fn end(mut self, wakes: Wakes) -> Result<Vec<Wakes>> {
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
        let committed = turn.execute("commit").await;
        turn.is_committing = false;
        committed?;
        turn.is_over = true;
        turn.group.is_open = false;
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
    /// Undoes what its transactions have changed. The members learn it because their senders are
    /// dropped.
    fn roll_back(&mut self) {
        if let Some(connection) = self.connection.as_mut().filter(|_| self.is_open) {
            connection.roll_back();
        }
        self.is_open = false;
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
fn ended_by_another(end: Option<End>) -> Result<Vec<Wakes>> {
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
    use std::path::PathBuf;
    use std::pin::pin;
    use std::task::Poll;

    use futures_util::poll;

    use super::*;
    use crate::db::{Clock, Signal};

    /// A file with a table of numbers.
    struct Fixture {
        turns: Turns,
        reader: rusqlite::Connection,
        _folder: tempfile::TempDir,
    }

    impl Fixture {
        /// Statements run within the caller, so that each is over after one poll.
        fn new() -> Self {
            Self::opened(|path| ConnectionOptions::simulated(path, Clock::system().into()))
        }

        fn opened(options: impl FnOnce(PathBuf) -> ConnectionOptions) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("numbers.db");
            let reader = rusqlite::Connection::open(&path).unwrap();
            let create = "pragma journal_mode = wal; create table number (number integer)";
            reader.execute_batch(create).unwrap();
            Self {
                turns: Turns::new(options(path)),
                reader,
                _folder: folder,
            }
        }

        /// Begins a transaction that has inserted a number.
        async fn with(&self, number: i64) -> Turn {
            let mut turn = self.turns.begin().await.unwrap();
            let insert = "insert into number values ($1)";
            let inserted = turn.run(move |sqlite| sqlite.execute(insert, [number]));
            inserted.await.unwrap();
            turn
        }

        /// Begins to commit 1 while a transaction that has inserted 2 has its turn.
        async fn group(
            &self,
        ) -> (
            impl Future<Output = Result<Vec<Wakes>, DbError>> + Unpin,
            Turn,
        ) {
            let first = self.with(1).await;
            let mut second = pin!(self.with(2));
            assert!(poll!(&mut second).is_pending());
            let mut first = Box::pin(first.commit(outbox()));
            assert!(poll!(&mut first).is_pending());
            (first, second.await)
        }

        /// Returns the numbers that are committed.
        fn committed(&self) -> Vec<i64> {
            let select = "select number from number order by number";
            let mut select = self.reader.prepare(select).unwrap();
            let rows = select.query_map([], |row| row.get(0)).unwrap();
            rows.map(Result::unwrap).collect()
        }
    }

    fn outbox() -> Wakes {
        let mut wakes = Wakes::default();
        wakes.add(Signal::Outbox);
        wakes
    }

    #[tokio::test]
    async fn transactions_that_queue_are_committed_together_by_the_first() {
        let fixture = Fixture::new();
        let first = fixture.with(1).await;
        let mut second = pin!(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut first = pin!(first.commit(outbox()));
        assert!(poll!(&mut first).is_pending(), "another one has its turn");
        let mut second = pin!(second.await.commit(Wakes::default()));
        assert!(poll!(&mut second).is_pending());
        assert!(fixture.committed().is_empty());
        assert_eq!(first.await.unwrap(), [outbox(), Wakes::default()]);
        assert_eq!(second.await.unwrap(), []);
        assert_eq!(fixture.committed(), [1, 2]);
    }

    #[tokio::test]
    async fn rollback_undoes_one_transaction_and_ends_with_the_commit_of_the_others() {
        let fixture = Fixture::new();
        let (first, second) = fixture.group().await;
        let (first, second) = tokio::join!(first, second.rollback());
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(fixture.committed(), [1]);
        fixture.with(3).await.rollback().await.unwrap();
        assert_eq!(fixture.committed(), [1]);
    }

    #[tokio::test]
    async fn dropped_turn_takes_its_group_along_which_runs_again() {
        let fixture = Fixture::new();
        let (first, second) = fixture.group().await;
        drop(second);
        assert!(matches!(first.await, Err(DbError::Contention(_))));
        assert!(fixture.committed().is_empty());
        fixture.with(3).await.commit(outbox()).await.unwrap();
        assert_eq!(fixture.committed(), [3]);
    }

    #[tokio::test]
    async fn statement_whose_caller_has_gone_is_undone_before_anything_else_runs() {
        let fixture = Fixture::opened(ConnectionOptions::of);
        let mut turn = fixture.turns.begin().await.unwrap();
        let mut insert = Box::pin(turn.run(|sqlite| {
            sqlite.execute_batch(
                "with recursive n (x) as (select 1 union all select x + 1 from n limit 300000) \
                 insert into number select x from n",
            )
        }));
        assert!(poll!(&mut insert).is_pending());
        drop(insert);
        drop(turn);
        // Another process waits for the lock of the one writer, and gets it.
        fixture
            .reader
            .execute_batch("begin immediate; rollback")
            .unwrap();
        fixture.with(3).await.commit(outbox()).await.unwrap();
        assert_eq!(fixture.committed(), [3]);
    }

    #[tokio::test]
    async fn connection_whose_thread_has_ended_is_replaced() {
        let fixture = Fixture::opened(ConnectionOptions::of);
        let mut turn = fixture.with(1).await;
        let lost = turn.run(|_| -> rusqlite::Result<()> { panic!("a planned panic") });
        assert!(matches!(lost.await, Err(DbError::Unavailable(_))));
        drop(turn);
        fixture.with(2).await.commit(outbox()).await.unwrap();
        assert_eq!(fixture.committed(), [2]);
        fixture.turns.close().await;
    }

    #[tokio::test]
    async fn commit_that_is_broken_off_is_not_repeated_for_the_others() {
        let fixture = Fixture::new();
        let (first, mut second) = fixture.group().await;
        second.is_committing = true;
        drop(second);
        assert!(matches!(first.await, Err(DbError::Unavailable(_))));
    }

    #[tokio::test]
    async fn what_an_abandoned_commit_has_changed_is_committed_by_others_or_undone() {
        let fixture = Fixture::new();
        let first = fixture.with(1).await;
        let mut second = Box::pin(fixture.with(2));
        assert!(poll!(&mut second).is_pending());
        let mut abandoned = Box::pin(first.commit(outbox()));
        assert!(poll!(&mut abandoned).is_pending());
        drop(abandoned);
        let wakes = second.await.commit(Wakes::default()).await.unwrap();
        assert_eq!(wakes, [outbox(), Wakes::default()], "its signals, too");
        assert_eq!(fixture.committed(), [1, 2]);

        let third = fixture.with(3).await;
        let mut fourth = Box::pin(fixture.with(4));
        assert!(poll!(&mut fourth).is_pending());
        let mut abandoned = Box::pin(third.commit(outbox()));
        assert_eq!(poll!(&mut abandoned).map(|_| ()), Poll::Pending);
        // Nobody is left.
        drop((fourth, abandoned));
        fixture.with(5).await.commit(outbox()).await.unwrap();
        assert_eq!(fixture.committed(), [1, 2, 5]);
    }
}
