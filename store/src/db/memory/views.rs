//! Parts of a job's tree, in memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use contract::JobStatus;

use super::{Memory, State, rounds};
use crate::db::DbFuture;
use crate::db::views::{FailedBelow, GROUPED_BYTES, KeptGroup, Siblings, TreeReads, child_of};
use crate::ledger::{KeptFailure, NodeRow};

impl TreeReads for Memory {
    fn child_nodes<'a>(&'a self, of: Siblings<'a>, limit: u32) -> DbFuture<'a, Vec<NodeRow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let first = (of.incarnation, String::new(), i32::MIN);
            let rows = state.nodes.range(first..);
            let rows = rows.take_while(|((incarnation, ..), _)| *incarnation == of.incarnation);
            let mut found: Vec<(u32, NodeRow)> = rows
                .filter(|((.., chunk), _)| *chunk <= 0)
                .filter_map(|(_, row)| {
                    let (number, false) = child_of(of.parent, &row.path)? else {
                        return None;
                    };
                    let bare = NodeRow {
                        done: Vec::new(),
                        failed: None,
                        ..row.clone()
                    };
                    (of.first..=of.last)
                        .contains(&number)
                        .then_some((number, bare))
                })
                .collect();
            found.sort_by_key(|(number, _)| *number);
            found.truncate(limit as usize);
            Ok(found.into_iter().map(|(_, row)| row).collect())
        })
    }
    fn waiting_items(&self, limit: u32) -> DbFuture<'_, Vec<(String, u64)>> {
        Box::pin(async move { Ok(rounds::waiting_items(&*self.read().await?, limit)) })
    }
    fn failed_below<'a>(&'a self, of: Siblings<'a>, limit: u32) -> DbFuture<'a, Vec<FailedBelow>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut found: BTreeMap<u32, FailedBelow> = BTreeMap::new();
            for path in state.failed_paths(of.incarnation) {
                let Some((number, is_below)) = child_of(of.parent, path) else {
                    continue;
                };
                if !(of.first..=of.last).contains(&number) {
                    continue;
                }
                let entry = found.entry(number).or_insert(FailedBelow {
                    number,
                    own: false,
                    below: 0,
                });
                entry.own |= !is_below;
                entry.below += i64::from(is_below);
            }
            Ok(found.into_values().take(limit as usize).collect())
        })
    }
    fn failures_at<'a>(
        &'a self,
        incarnation: i64,
        paths: &'a [String],
    ) -> DbFuture<'a, Vec<KeptFailure>> {
        Box::pin(async move {
            let state = self.read().await?;
            let find = |path: &String| state.failures.get(&(incarnation, path.clone()));
            Ok(paths.iter().filter_map(find).cloned().collect())
        })
    }
    fn failure_groups(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<KeptGroup>> {
        Box::pin(async move {
            let state = self.read().await?;
            let mut groups: Vec<KeptGroup> = Vec::new();
            let mut by_key = HashMap::new();
            for kept in state.failures_of(incarnation) {
                let message = kept.failure.failure_message.as_deref().map(str::as_bytes);
                let message = message.map(|text| &text[..text.len().min(GROUPED_BYTES)]);
                let key = (&kept.failure.failure_id, message);
                let at = *by_key.entry(key).or_insert(groups.len());
                if let Some(group) = groups.get_mut(at) {
                    group.count += 1;
                    group.last = kept.since;
                } else {
                    groups.push(KeptGroup {
                        first: kept.clone(),
                        count: 1,
                        last: kept.since,
                    });
                }
            }
            // Stable: they are in the order of their first failures.
            groups.sort_by_key(|group| Reverse(group.count));
            groups.truncate(limit as usize);
            Ok(groups)
        })
    }
    fn fallen_jobs(&self, incarnation: i64, limit: u32) -> DbFuture<'_, Vec<(String, JobStatus)>> {
        Box::pin(async move {
            let state = self.read().await?;
            let fallen = state.unstarted.iter();
            let fallen = fallen.filter(|(_, root)| **root == Some(incarnation));
            let found = fallen.filter_map(|(number, _)| {
                let key = state.ids.get(number)?;
                Some((key.1.clone(), state.jobs.get(key)?.status))
            });
            Ok(found.take(limit as usize).collect())
        })
    }
    fn curve_of(&self, incarnation: i64) -> DbFuture<'_, Option<String>> {
        Box::pin(async move { Ok(self.read().await?.curves.get(&incarnation).cloned()) })
    }
    fn count_failures_under<'a>(&'a self, incarnation: i64, path: &'a str) -> DbFuture<'a, i64> {
        Box::pin(async move {
            let state = self.read().await?;
            let paths = state.failed_paths(incarnation);
            let under = paths.filter(|other| *other == path || child_of(path, other).is_some());
            Ok(i64::try_from(under.count()).unwrap_or(i64::MAX))
        })
    }
}

impl State {
    fn failed_paths(&self, incarnation: i64) -> impl Iterator<Item = &str> {
        let range = (incarnation, String::new())..(incarnation + 1, String::new());
        self.failures
            .range(range)
            .map(|((_, path), _)| path.as_str())
    }
}
