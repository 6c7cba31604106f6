//! A transaction of either database: each step is a function of the module for its tables.

mod conditions;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use contract::ReportFailure;

use super::session::Session;
use super::statement::Dialect;
use super::{
    attempts, creation, curve, events, failures, history, jobs, ledger, letters, memos, outbox,
    outputs, parking, prerequisites, request_keys, retention, rounds, shards, uploads,
};
use crate::db::letters::{GoneLetter, LetterSteps, LetterSums};
use crate::db::memos::{MemoKey, MemoSteps, MemoSums};
use crate::db::shards::ShardSteps;
use crate::db::uploads::{PieceRow, UploadRow, UploadSteps, UploadSum};
use crate::db::{
    DbFuture, Deletion, Dependency, DueTime, JobKey, JobRow, JobSteps, JobTexts, KeptBlobRow,
    KeptRow, KeptTaskRow, KeptTimes, KeyState, LedgerSteps, NewIncarnation, NewParts, OutboxSteps,
    OutputSteps, ParkingSteps, PrerequisiteSteps, RetentionSteps, RoundSteps, Signal, Signals,
    Transaction, Wakes,
};
use crate::definition::PackedDefinition;
use crate::ledger::{KeptAttempt, KeptFailure, NodeChanges, NodeKey, NodeRow};
use crate::letter::{Letter, NewLetter};
use crate::model::{Announcement, Headers, OutboxMessage, ParkedTask, RequestKey, Transition};

pub struct SqlTransaction {
    session: Session,
    signals: Arc<Signals>,
    wakes: Wakes,
}

impl SqlTransaction {
    /// Wraps a session that has begun a transaction.
    pub fn new(session: Session, signals: Arc<Signals>) -> Self {
        Self {
            session,
            signals,
            wakes: Wakes::default(),
        }
    }

    /// Wakes those who read events. PostgreSQL's triggers do that themselves.
    fn note_events(&mut self) {
        if self.session.dialect() == Dialect::Sqlite {
            self.wakes.add(Signal::Events);
        }
    }
}

impl Transaction for SqlTransaction {
    fn notify(&mut self, signal: Signal) {
        self.wakes.add(signal);
    }
    fn notify_job(&mut self, partition: &str, job: &str) {
        self.wakes.add_job(partition, job);
    }
    fn notify_any_job(&mut self) {
        self.wakes.add_any_job();
    }
    fn commit(self: Box<Self>) -> DbFuture<'static, ()> {
        Box::pin(async move {
            let ended = self.session.commit(self.wakes).await?;
            for wakes in &ended {
                self.signals.wake(wakes);
            }
            Ok(())
        })
    }
    fn rollback(self: Box<Self>) -> DbFuture<'static, ()> {
        Box::pin(async move {
            let ended = self.session.rollback().await?;
            for wakes in &ended {
                self.signals.wake(wakes);
            }
            Ok(())
        })
    }
}

impl JobSteps for SqlTransaction {
    fn lock_creations<'a>(&'a mut self, partition: &'a str, shared: bool) -> DbFuture<'a, ()> {
        Box::pin(prerequisites::lock_creations(
            &mut self.session,
            partition,
            shared,
        ))
    }
    fn lock_jobs<'a>(&'a mut self, keys: &'a [(String, String)]) -> DbFuture<'a, Vec<JobRow>> {
        Box::pin(jobs::lock(&mut self.session, keys))
    }
    fn lock_free_jobs<'a>(
        &'a mut self,
        keys: &'a [JobKey],
    ) -> DbFuture<'a, (Vec<JobRow>, Vec<JobKey>)> {
        Box::pin(jobs::lock_free(&mut self.session, keys))
    }
    fn insert_jobs<'a>(
        &'a mut self,
        jobs: &'a [(JobRow, JobTexts)],
    ) -> DbFuture<'a, Vec<Option<NewIncarnation>>> {
        Box::pin(creation::insert(&mut self.session, jobs))
    }
    fn insert_parts(&mut self, parts: Vec<NewParts>) -> DbFuture<'_, Vec<bool>> {
        self.note_events();
        Box::pin(creation::insert_parts(&mut self.session, parts))
    }
    fn save_jobs<'a>(&'a mut self, jobs: &'a [JobRow]) -> DbFuture<'a, ()> {
        Box::pin(jobs::save(&mut self.session, jobs))
    }
    fn delete_job<'a>(
        &'a mut self,
        key: &'a JobKey,
        incarnation: i64,
        why: Deletion<'a>,
    ) -> DbFuture<'a, ()> {
        self.note_events();
        Box::pin(async move {
            jobs::delete(&mut self.session, incarnation).await?;
            events::complete_deletion(&mut self.session, key, why).await
        })
    }
    fn insert_labels<'a>(
        &'a mut self,
        of: &'a [(i64, &'a BTreeMap<String, Option<String>>)],
    ) -> DbFuture<'a, ()> {
        Box::pin(jobs::insert_labels(&mut self.session, of))
    }
    fn append_history<'a>(
        &'a mut self,
        incarnation: i64,
        transition: &'a Transition,
    ) -> DbFuture<'a, ()> {
        self.note_events();
        Box::pin(history::append(&mut self.session, incarnation, transition))
    }
    fn shorten_history(&mut self, incarnation: i64, keep: u32) -> DbFuture<'_, ()> {
        Box::pin(history::shorten(&mut self.session, incarnation, keep))
    }
    fn append_histories<'a>(&'a mut self, steps: &'a [(i64, Transition)]) -> DbFuture<'a, ()> {
        self.note_events();
        Box::pin(history::append_all(&mut self.session, steps))
    }
    fn give_key<'a>(
        &'a mut self,
        partition: &'a str,
        key: &'a RequestKey,
        job: &'a str,
    ) -> DbFuture<'a, KeyState> {
        Box::pin(request_keys::give(&mut self.session, partition, key, job))
    }
    fn remember_incarnation<'a>(
        &'a mut self,
        partition: &'a str,
        job: &'a str,
        incarnation: i64,
    ) -> DbFuture<'a, ()> {
        Box::pin(jobs::remember_incarnation(
            &mut self.session,
            partition,
            job,
            incarnation,
        ))
    }
}

impl LedgerSteps for SqlTransaction {
    fn create_task_table(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        Box::pin(ledger::create_task_table(&mut self.session, incarnation))
    }
    fn load_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(ledger::load_nodes(&mut self.session, incarnation, keys))
    }
    fn change_nodes<'a>(
        &'a mut self,
        incarnation: i64,
        changes: &'a NodeChanges,
    ) -> DbFuture<'a, ()> {
        Box::pin(ledger::change_nodes(
            &mut self.session,
            incarnation,
            changes,
        ))
    }
    fn failure_kinds<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, HashMap<String, String>> {
        Box::pin(failures::kinds(&mut self.session, incarnation, paths))
    }
    fn first_failure(&mut self, incarnation: i64) -> DbFuture<'_, Option<ReportFailure>> {
        Box::pin(failures::first(&mut self.session, incarnation))
    }
    fn change_failures<'a>(
        &'a mut self,
        incarnation: i64,
        new: &'a [KeptFailure],
        gone: &'a [String],
    ) -> DbFuture<'a, ()> {
        Box::pin(failures::change(&mut self.session, incarnation, new, gone))
    }
    fn curve(&mut self, incarnation: i64) -> DbFuture<'_, Option<String>> {
        Box::pin(curve::find(&mut self.session, incarnation))
    }
    fn extend_curve<'a>(&'a mut self, incarnation: i64, points: &'a str) -> DbFuture<'a, ()> {
        Box::pin(curve::extend(&mut self.session, incarnation, points))
    }
    fn replace_curve<'a>(&'a mut self, incarnation: i64, points: &'a str) -> DbFuture<'a, ()> {
        Box::pin(curve::replace(&mut self.session, incarnation, points))
    }
    fn insert_failures<'a>(&'a mut self, failures: &'a [(i64, KeptFailure)]) -> DbFuture<'a, ()> {
        Box::pin(failures::insert(&mut self.session, failures))
    }
    fn insert_attempts<'a>(
        &'a mut self,
        incarnation: i64,
        round: u32,
        kept: &'a [KeptAttempt],
    ) -> DbFuture<'a, ()> {
        let round = number(round);
        Box::pin(attempts::insert(
            &mut self.session,
            incarnation,
            round,
            kept,
        ))
    }
}

impl OutboxSteps for SqlTransaction {
    fn push_outbox<'a>(
        &'a mut self,
        incarnation: Option<i64>,
        pipe: &'a str,
        body: &'a [u8],
        headers: &'a Headers,
        due: DueTime,
    ) -> DbFuture<'a, ()> {
        Box::pin(outbox::push(
            &mut self.session,
            incarnation,
            pipe,
            body,
            headers,
            due,
        ))
    }
    fn claim_outbox(
        &mut self,
        limit: u32,
        bytes: u64,
        lease: u64,
    ) -> DbFuture<'_, Vec<OutboxMessage>> {
        Box::pin(outbox::claim(&mut self.session, limit, bytes, lease))
    }
    fn outbox_due(&mut self) -> DbFuture<'_, Option<u64>> {
        Box::pin(outbox::next_claim(&mut self.session))
    }
    fn push_announcements<'a>(&'a mut self, jobs: &'a [String]) -> DbFuture<'a, ()> {
        Box::pin(outbox::push_announcements(&mut self.session, jobs))
    }
    fn claim_announcements(&mut self, limit: u32, lease: u64) -> DbFuture<'_, Vec<Announcement>> {
        Box::pin(outbox::claim_announcements(&mut self.session, limit, lease))
    }
    fn announcements_due(&mut self) -> DbFuture<'_, Option<u64>> {
        Box::pin(outbox::next_announcement(&mut self.session))
    }
    fn lease_outbox<'a>(&'a mut self, leases: &'a [(i64, u64)]) -> DbFuture<'a, ()> {
        Box::pin(outbox::lease(&mut self.session, leases))
    }
    fn bring_outbox_back(&mut self) -> DbFuture<'_, u64> {
        Box::pin(outbox::bring_back(&mut self.session))
    }
    fn outbox_sent<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, ()> {
        Box::pin(outbox::delete_sent(&mut self.session, ids))
    }
    fn pause_outbox_of(&mut self, incarnation: i64, paused: bool) -> DbFuture<'_, ()> {
        Box::pin(outbox::set_paused(&mut self.session, incarnation, paused))
    }
    fn dispatch_partition<'a>(&'a mut self, partition: &'a str) -> DbFuture<'a, u64> {
        Box::pin(outbox::dispatch_partition(&mut self.session, partition))
    }
}

impl PrerequisiteSteps for SqlTransaction {
    fn insert_prerequisites<'a>(
        &'a mut self,
        job: &'a JobRow,
        prerequisites: &'a [String],
    ) -> DbFuture<'a, ()> {
        Box::pin(prerequisites::insert(&mut self.session, job, prerequisites))
    }
    fn dependents<'a>(&'a mut self, of: &'a [JobKey], all: bool) -> DbFuture<'a, Vec<Dependency>> {
        Box::pin(prerequisites::dependents(&mut self.session, of, all))
    }
    fn prerequisite_edges<'a>(
        &'a mut self,
        partition: &'a str,
        jobs: &'a [String],
    ) -> DbFuture<'a, Vec<(String, String)>> {
        Box::pin(prerequisites::edges(&mut self.session, partition, jobs))
    }
    fn release<'a>(&'a mut self, completed: &'a [JobKey], waiting: &'a [i64]) -> DbFuture<'a, ()> {
        Box::pin(prerequisites::release(
            &mut self.session,
            completed,
            waiting,
        ))
    }
    fn forget_starts<'a>(&'a mut self, incarnations: &'a [i64]) -> DbFuture<'a, ()> {
        Box::pin(prerequisites::forget_starts(
            &mut self.session,
            incarnations,
        ))
    }
}

impl OutputSteps for SqlTransaction {
    fn lock_kept(&mut self, incarnation: i64) -> DbFuture<'_, Option<KeptRow>> {
        Box::pin(outputs::lock_kept(&mut self.session, incarnation))
    }
    fn save_kept<'a>(&'a mut self, kept: &'a KeptRow) -> DbFuture<'a, ()> {
        Box::pin(outputs::save_kept(&mut self.session, kept))
    }
    fn load_kept_tasks<'a>(
        &'a mut self,
        incarnation: i64,
        keys: &'a [NodeKey],
    ) -> DbFuture<'a, Vec<KeptTaskRow>> {
        Box::pin(outputs::tasks(&mut self.session, incarnation, keys, true))
    }
    fn save_kept_tasks<'a>(
        &'a mut self,
        incarnation: i64,
        rows: &'a [KeptTaskRow],
    ) -> DbFuture<'a, ()> {
        Box::pin(outputs::save_tasks(&mut self.session, incarnation, rows))
    }
    fn insert_kept_blobs<'a>(&'a mut self, blobs: &'a [KeptBlobRow]) -> DbFuture<'a, ()> {
        Box::pin(outputs::insert_blobs(&mut self.session, blobs))
    }
    fn take_kept_blobs(
        &mut self,
        incarnation: i64,
        lines: Range<i64>,
    ) -> DbFuture<'_, Vec<KeptBlobRow>> {
        Box::pin(outputs::take_blobs(&mut self.session, incarnation, lines))
    }
    fn expire_kept(&mut self, keep: u64) -> DbFuture<'_, u64> {
        Box::pin(outputs::expire(&mut self.session, keep))
    }
    fn forget_kept(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, bool> {
        Box::pin(outputs::forget(&mut self.session, incarnation, limit))
    }
}

impl ParkingSteps for SqlTransaction {
    fn park<'a>(&'a mut self, tasks: &'a [(i64, &'a ParkedTask)]) -> DbFuture<'a, ()> {
        Box::pin(parking::park(&mut self.session, tasks))
    }
    fn mark_for_unparking<'a>(
        &'a mut self,
        incarnations: &'a [i64],
        always: bool,
    ) -> DbFuture<'a, bool> {
        Box::pin(parking::mark(&mut self.session, incarnations, always))
    }
    fn unmark_for_unparking(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        Box::pin(parking::unmark(&mut self.session, incarnation))
    }
    fn next_for_unparking(&mut self) -> DbFuture<'_, Option<(String, String, i64)>> {
        Box::pin(parking::next_marked(&mut self.session))
    }
    fn unpark(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        Box::pin(parking::unpark(&mut self.session, incarnation, limit))
    }
    fn drop_parked(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        Box::pin(parking::delete_oldest(
            &mut self.session,
            incarnation,
            limit,
        ))
    }
}

impl RetentionSteps for SqlTransaction {
    fn retire_table(&mut self, incarnation: i64, delay: u64) -> DbFuture<'_, ()> {
        Box::pin(retention::retire_table(
            &mut self.session,
            incarnation,
            delay,
        ))
    }
    fn hold_retired_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        Box::pin(retention::hold_retired_table(
            &mut self.session,
            incarnation,
        ))
    }
    fn due_tables(&mut self, limit: u32, most: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(retention::due_tables(&mut self.session, limit, most))
    }
    fn drop_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        Box::pin(retention::drop_table(&mut self.session, incarnation))
    }
    fn due_jobs(&mut self, limit: u32) -> DbFuture<'_, Vec<(String, String, i64)>> {
        Box::pin(retention::due_jobs(&mut self.session, limit))
    }
    fn forget_incarnations(&mut self, older_than: u64) -> DbFuture<'_, ()> {
        Box::pin(jobs::forget_incarnations(&mut self.session, older_than))
    }
    fn forget_keys(&mut self, older_than: u64) -> DbFuture<'_, ()> {
        Box::pin(request_keys::forget(&mut self.session, older_than))
    }
    fn sweep_events(&mut self, older_than: u64, most: u64) -> DbFuture<'_, bool> {
        Box::pin(events::sweep(&mut self.session, older_than, most))
    }
    fn next_due(&mut self, kept: KeptTimes) -> DbFuture<'_, Option<u64>> {
        Box::pin(retention::next_due(&mut self.session, kept))
    }
}

impl RoundSteps for SqlTransaction {
    fn definition(&mut self, incarnation: i64) -> DbFuture<'_, PackedDefinition> {
        Box::pin(rounds::definition(&mut self.session, incarnation))
    }
    fn note_unstarted<'a>(
        &'a mut self,
        ended: &'a [i64],
        fell_with: &'a [(i64, i64)],
    ) -> DbFuture<'a, ()> {
        Box::pin(rounds::note_unstarted(&mut self.session, ended, fell_with))
    }
    fn is_unstarted(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        Box::pin(rounds::is_unstarted(&mut self.session, incarnation))
    }
    fn forget_unstarted(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        Box::pin(rounds::forget_unstarted(&mut self.session, incarnation))
    }
    fn fallen_with(&mut self, incarnation: i64) -> DbFuture<'_, Vec<(i64, JobKey)>> {
        Box::pin(rounds::fallen_with(&mut self.session, incarnation))
    }
    fn unretire_table(&mut self, incarnation: i64) -> DbFuture<'_, bool> {
        Box::pin(rounds::unretire_table(&mut self.session, incarnation))
    }
    fn end_active_tasks(&mut self, incarnation: i64) -> DbFuture<'_, ()> {
        Box::pin(rounds::end_active_tasks(&mut self.session, incarnation))
    }
    fn nodes_to_clear<'a>(
        &'a mut self,
        incarnation: i64,
        after: &'a NodeKey,
        limit: u32,
    ) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(rounds::nodes_to_clear(
            &mut self.session,
            incarnation,
            after,
            limit,
        ))
    }
    fn archive_failures(&mut self, incarnation: i64, round: u32, rounds: u32) -> DbFuture<'_, ()> {
        Box::pin(rounds::archive_failures(
            &mut self.session,
            incarnation,
            number(round),
            number(rounds),
        ))
    }
}

impl LetterSteps for SqlTransaction {
    fn add_to_letter_sums<'a>(
        &'a mut self,
        key: &'a JobKey,
        change: LetterSums,
    ) -> DbFuture<'a, LetterSums> {
        Box::pin(letters::add_to_sums(&mut self.session, key, change))
    }
    fn forget_letter_sums(&mut self) -> DbFuture<'_, ()> {
        Box::pin(letters::forget_sums(&mut self.session))
    }
    fn has_letter<'a>(&'a mut self, identity: &'a [u8]) -> DbFuture<'a, bool> {
        Box::pin(letters::exists(&mut self.session, identity))
    }
    fn insert_letter<'a>(&'a mut self, letter: &'a NewLetter, bytes: i64) -> DbFuture<'a, ()> {
        Box::pin(letters::insert(&mut self.session, letter, bytes))
    }
    fn letters_to_replay<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, Vec<Letter>> {
        Box::pin(letters::to_replay(&mut self.session, ids))
    }
    fn delete_letters<'a>(&'a mut self, ids: &'a [i64]) -> DbFuture<'a, Vec<GoneLetter>> {
        Box::pin(letters::delete(&mut self.session, ids))
    }
    fn old_letters(&mut self, older_than: u64, limit: u32) -> DbFuture<'_, Vec<i64>> {
        Box::pin(letters::old(&mut self.session, older_than, limit))
    }
    fn archive_failures_at<'a>(
        &'a mut self,
        incarnation: i64,
        round: u32,
        paths: &'a [String],
    ) -> DbFuture<'a, ()> {
        Box::pin(letters::archive_failures_at(
            &mut self.session,
            incarnation,
            number(round),
            paths,
        ))
    }
}

impl MemoSteps for SqlTransaction {
    fn memo<'a>(&'a mut self, key: &'a MemoKey) -> DbFuture<'a, Option<String>> {
        Box::pin(memos::find(&mut self.session, key))
    }
    fn memos_of_task<'a>(&'a mut self, key: &'a MemoKey) -> DbFuture<'a, u64> {
        Box::pin(memos::count(&mut self.session, key))
    }
    fn add_to_memo_sums(&mut self, incarnation: i64, change: MemoSums) -> DbFuture<'_, MemoSums> {
        Box::pin(memos::add_to_sums(&mut self.session, incarnation, change))
    }
    fn insert_memo<'a>(&'a mut self, key: &'a MemoKey, result: &'a str) -> DbFuture<'a, ()> {
        Box::pin(memos::insert(&mut self.session, key, result))
    }
    fn delete_memos(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, u64> {
        Box::pin(memos::delete(&mut self.session, incarnation, limit))
    }
}

impl ShardSteps for SqlTransaction {
    fn raise_tracking_shards<'a>(&'a mut self, pipe: &'a str, shards: i32) -> DbFuture<'a, bool> {
        Box::pin(shards::raise(&mut self.session, pipe, shards))
    }
}

impl UploadSteps for SqlTransaction {
    fn lock_upload<'a>(&'a mut self, id: &'a str) -> DbFuture<'a, Option<UploadRow>> {
        Box::pin(uploads::lock(&mut self.session, id))
    }
    fn insert_upload<'a>(&'a mut self, upload: &'a UploadRow) -> DbFuture<'a, ()> {
        Box::pin(uploads::insert(&mut self.session, upload))
    }
    fn save_upload<'a>(&'a mut self, upload: &'a UploadRow) -> DbFuture<'a, ()> {
        Box::pin(uploads::save(&mut self.session, upload))
    }
    fn insert_piece<'a>(&'a mut self, piece: &'a PieceRow) -> DbFuture<'a, ()> {
        Box::pin(uploads::insert_piece(&mut self.session, piece))
    }
    fn add_to_upload_sum<'a>(
        &'a mut self,
        partition: &'a str,
        change: UploadSum,
    ) -> DbFuture<'a, UploadSum> {
        Box::pin(uploads::add_to_sum(&mut self.session, partition, change))
    }
    fn insert_upload_use(&mut self, number: i64, incarnation: i64) -> DbFuture<'_, ()> {
        Box::pin(uploads::insert_use(&mut self.session, number, incarnation))
    }
    fn upload_users(&mut self, number: i64) -> DbFuture<'_, (bool, Option<String>)> {
        Box::pin(uploads::users(&mut self.session, number))
    }
    fn unneeded_uploads(&mut self, unused: u64, limit: u32) -> DbFuture<'_, Vec<String>> {
        Box::pin(uploads::unneeded(&mut self.session, unused, limit))
    }
    fn forget_upload(&mut self, number: i64, limit: u32) -> DbFuture<'_, bool> {
        Box::pin(uploads::forget(&mut self.session, number, limit))
    }
}

/// A round has the type `integer`.
fn number(round: u32) -> i32 {
    i32::try_from(round).unwrap_or(i32::MAX)
}
