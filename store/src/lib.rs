//! Stores jobs, their tasks and the messages about them, in PostgreSQL or SQLite.
//!
//! Only this crate and the embedded broker contain SQL. The rest of the system sees [`Store`],
//! whose operations hide the database, the table of each job's tasks, locks, notifications and the
//! outbox. Each operation is written once, over functions that run statements in a session of
//! either database (`db::sql`).
//!
//! Read first: `transition`, everything that a change of a job's status entails, and `ledger`, what
//! reports mean. Then:
//!
//! | module | content |
//! |---|---|
//! | `jobs/` | create, read, cancel, delete, pause, resume and retry a job; cancel, delete and retry many |
//! | `definition` | what a job was created from, packed |
//! | `prerequisites`, `dependents` | the jobs that a new job waits for; the jobs that wait for one that ends |
//! | `flush` | counts a batch of reports in one transaction |
//! | `locked` | the jobs that somebody keeps locked, which operations on many jobs leave out |
//! | `ledger/` | the state of a job's tasks; pure |
//! | `tree/`, `curve` | the tasks of a job as a person sees them; its progress over time |
//! | `round` | what happens to a job that is taken up again |
//! | `outbox`, `parking`, `sweep` | messages to publish; tasks of paused jobs; deletion of old data |
//! | `set_back` | what happens when the clock was set back |
//! | `blocked`, `conditions` | tasks that wait for conditions; what a job service does to a condition |
//! | `events` | what happens to all jobs, in one order |
//! | `memos` | the results of parts of tasks |
//! | `tokens` | the tokens of the service |
//! | `shards` | over how many tracking pipes jobs have been spread |
//! | `outputs` | the outputs that the service keeps, without their blobs |
//! | `query/`, `retention` | which jobs a query selects; when a job expires; both pure |
//! | `inspect` | measurements, and sample jobs for them (feature `measurements`) |
//! | `db/` | transactions, and the statements that they run; PostgreSQL, SQLite |
//!
//! What must stay true:
//! - Reads take no locks and write nothing.
//! - A transaction that changes a job, its ledger or what it waits for holds the lock of the job's
//!   row.
//! - Every change of a job's status goes through `transition`, in one transaction with one row of
//!   history.
//! - A message for the broker is written to the outbox in the transaction that causes it.

#![warn(missing_docs)]

mod blocked;
mod condition;
mod conditions;
mod curve;
mod db;
mod definition;
mod dependents;
mod error;
mod events;
mod flush;
#[cfg(feature = "measurements")]
mod inspect;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod job_row;
mod jobs;
mod ledger;
mod letter;
mod letters;
mod life;
mod locked;
mod memos;
mod model;
mod outbox;
mod outputs;
mod pace;
mod parking;
mod prerequisites;
mod query;
mod replay;
mod retention;
mod round;
mod set_back;
mod shards;
mod store;
mod sweep;
mod tokens;
mod transition;
mod tree;
mod upload;
mod uploads;
mod waits;

pub use condition::{
    Blocking, ClaimedCondition, ConditionAct, ConditionPhase, ConditionQuery, ConditionRow,
    ConditionStep, FullCondition, Heard, NewBlock, Stepped, WaitingJob,
};
#[cfg(any(test, feature = "internals"))]
pub use db::FaultPoint;
pub use db::JobSignal;
pub use db::postgres_answers;
pub use db::sqlite_file;
pub use db::{Connections, DatabaseLook};
pub use error::{Availability, Cause, Result, StoreError};
pub use events::SettledEvents;
#[cfg(feature = "measurements")]
#[doc(hidden)]
pub use inspect::{CatalogueSize, TaskTableSize};
pub use job_row::{JobPlace, LongText};
pub use jobs::failures::FailureCursor;
pub use jobs::{Detail, ListedJob, RetriedBatch, RetryCursor, TaskAnswer};
pub use letter::{Letter, LetterLimits, LetterQuery, LetterTask, NewLetter};
pub use letters::{Keep, LetterCounts};
pub use life::{Asked, AskedJob};
pub use memos::{MemoAnswer, MemoBound, MemoLimits, MemoPlace};
pub use model::{
    Announcement, Backlog, Begun, Cancellation, Change, Creation, Definition, EventKind, Events,
    Header, Headers, HeldMessage, Incarnation, JobEvent, JobForWorkers, JobOfPipe, JobRequest,
    KeyedRequest, LeftOut, OutboxMessage, ParkOutcome, ParkedTask, Prerequisite, Recorded, Refusal,
    RequestKey, Retry, Source, StartCondition, StuckJob, TrackingEvent, Transition,
};
pub use outbox::{Claim, ClaimedAnnouncements};
pub use outputs::{Keeping, KeptBlob, NewBlob, NewOutputs, OutputsOf};
pub use query::filter::{Comparison, Filter, Pattern, TextField, TextTest};
pub use query::{JobQuery, Sort, SortBy};
pub use replay::{NewMessage, NotReplayed, Replay};
pub use retention::{KeptUntil, span};
pub use store::{Store, StoreOptions, masked};
pub use sweep::Swept;
pub use tokens::TokenRow;
pub use tree::{CountsAnswer, TaskCursor, TaskQuery, TasksAnswer};
pub use upload::{
    Appended, Committed, DeletedUpload, Piece, Quota, Upload, UploadLimits, UploadRefusal,
    upload_room,
};
