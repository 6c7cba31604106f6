//! Parts of a job's tree, in memory.

use std::collections::BTreeMap;

use super::{Memory, State};
use crate::db::DbFuture;
use crate::db::views::{FailedBelow, Siblings, TreeReads, child_of};
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
