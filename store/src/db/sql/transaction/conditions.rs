//! The steps on conditions and on the tasks that wait for them.

use std::collections::BTreeMap;

use contract::{Condition, ConditionKey};

use super::SqlTransaction;
use crate::condition::{ClaimedCondition, ConditionPhase, ConditionRow, Heard};
use crate::db::DbFuture;
use crate::db::conditions::{BlockRow, BlockState, ConditionChange, ConditionSteps, WaitingTask};
use crate::db::sql::conditions;
use crate::model::{Headers, ParkedTask};

impl ConditionSteps for SqlTransaction {
    fn meet_condition<'a>(
        &'a mut self,
        key: &'a ConditionKey,
        condition: &'a Condition,
        next: u64,
    ) -> DbFuture<'a, ()> {
        Box::pin(conditions::meet(&mut self.session, key, condition, next))
    }
    fn known_conditions<'a>(&'a mut self, keys: &'a [String]) -> DbFuture<'a, Vec<String>> {
        Box::pin(conditions::known(&mut self.session, keys))
    }
    fn count_conditions<'a>(&'a mut self, besides: &'a ConditionKey) -> DbFuture<'a, u64> {
        Box::pin(conditions::count(&mut self.session, besides.as_str()))
    }
    fn hear_of_condition<'a>(&'a mut self, key: &'a str, heard: Heard) -> DbFuture<'a, ()> {
        Box::pin(conditions::hear(&mut self.session, key, heard))
    }
    fn blocks<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<BlockRow>> {
        Box::pin(conditions::blocks(&mut self.session, incarnation, paths))
    }
    fn block<'a>(
        &'a mut self,
        incarnation: i64,
        tasks: &'a [(BlockRow, &'a ParkedTask)],
    ) -> DbFuture<'a, ()> {
        Box::pin(conditions::block(&mut self.session, incarnation, tasks))
    }
    fn forget_blocks<'a>(
        &'a mut self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<BlockRow>> {
        Box::pin(conditions::forget_blocks(
            &mut self.session,
            incarnation,
            paths,
        ))
    }
    fn drop_blocks(&mut self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<BlockRow>> {
        Box::pin(conditions::drop_blocks(
            &mut self.session,
            incarnation,
            limit,
        ))
    }
    fn wake_canaries(&mut self, incarnation: i64) -> DbFuture<'_, u64> {
        Box::pin(conditions::wake_canaries(&mut self.session, incarnation))
    }
    fn tested_by(&mut self, incarnation: i64) -> DbFuture<'_, Vec<String>> {
        Box::pin(conditions::tested_by(&mut self.session, incarnation))
    }
    fn claim_condition(&mut self, lease: u64) -> DbFuture<'_, Option<ClaimedCondition>> {
        Box::pin(conditions::claim(&mut self.session, lease))
    }
    fn bring_conditions_back(&mut self) -> DbFuture<'_, u64> {
        Box::pin(conditions::bring_back(&mut self.session))
    }
    fn next_condition(&mut self) -> DbFuture<'_, Option<u64>> {
        Box::pin(conditions::next(&mut self.session))
    }
    fn waiting_tasks<'a>(
        &'a mut self,
        key: &'a str,
        active: bool,
        limit: u32,
    ) -> DbFuture<'a, Vec<WaitingTask>> {
        Box::pin(conditions::waiting_tasks(
            &mut self.session,
            key,
            active,
            limit,
        ))
    }
    fn hold_condition<'a>(&'a mut self, key: &'a str, lease: i64) -> DbFuture<'a, bool> {
        Box::pin(conditions::hold(&mut self.session, key, lease))
    }
    fn let_go<'a>(
        &'a mut self,
        incarnation: i64,
        key: &'a str,
        tasks: &'a [i64],
        to: BlockState,
        paused: bool,
    ) -> DbFuture<'a, u64> {
        Box::pin(conditions::let_go(
            &mut self.session,
            incarnation,
            key,
            tasks,
            to,
            paused,
        ))
    }
    fn still_waiting<'a>(
        &'a mut self,
        incarnation: i64,
        key: &'a str,
        tasks: &'a [i64],
    ) -> DbFuture<'a, BTreeMap<String, Headers>> {
        Box::pin(conditions::still_waiting(
            &mut self.session,
            incarnation,
            key,
            tasks,
        ))
    }
    fn change_condition<'a>(
        &'a mut self,
        row: &'a ConditionRow,
        change: ConditionChange<'a>,
    ) -> DbFuture<'a, ()> {
        Box::pin(conditions::change(&mut self.session, row, change))
    }
    fn forget_condition<'a>(&'a mut self, key: &'a str) -> DbFuture<'a, bool> {
        Box::pin(conditions::forget(&mut self.session, key))
    }
    fn count_waiting<'a>(&'a mut self, key: &'a str) -> DbFuture<'a, u64> {
        Box::pin(conditions::count_waiting(&mut self.session, key))
    }
    fn command_condition<'a>(
        &'a mut self,
        key: &'a str,
        phase: ConditionPhase,
    ) -> DbFuture<'a, bool> {
        Box::pin(conditions::command(&mut self.session, key, phase))
    }
}
