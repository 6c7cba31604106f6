//! The digest of the source of a split, as its splitter states it. A later round passes over the
//! subtasks that are done only if the split is made from the same: otherwise the same numbers name
//! other subtasks.
//!
//! What must stay true:
//! - What is known depends on the statements that have arrived, and not on their order.
//! - A split of which different digests were stated is never done: nobody knows which of its
//!   subtasks are.
//! - Of a split that anybody has announced without a digest, nothing is passed over.

use contract::SourceDigest;

use super::counts::SplitSource;
use super::node::{CONFLICT, NodeRow};
use super::{Ledger, SplitCounts};

/// The kind of the failure of a split that was made from different sources.
pub const SOURCE_CHANGED: &str = "SPLIT_SOURCE_CHANGED";

impl SplitCounts {
    /// Keeps from what the split was made, as an announcement states it or not. `was_announced` is
    /// whether there was an announcement before.
    fn see_source(&mut self, stated: Option<SplitSource>, was_announced: bool) {
        self.source = match (self.source, stated) {
            (None, stated) => stated.map(|stated| SplitSource {
                unstated: was_announced,
                ..stated
            }),
            (Some(known), None) => Some(SplitSource {
                unstated: true,
                ..known
            }),
            (Some(known), Some(stated)) => Some(known.and(stated)),
        };
    }

    /// Returns whether the split was made from different sources.
    pub fn is_contradictory(&self) -> bool {
        self.source.is_some_and(|source| source.contradictory)
    }
}

impl NodeRow {
    /// Returns the digests that were stated of this split.
    pub fn source(&self) -> Option<SplitSource> {
        let counts: SplitCounts = serde_json::from_str(self.detail.as_deref()?).ok()?;
        counts.source
    }
}

impl Ledger {
    /// Keeps from what a split was made. Fails the split, once in every round, if it was made from
    /// different sources.
    pub(super) fn see_source(
        &mut self,
        at: usize,
        digest: Option<SourceDigest>,
        was_announced: bool,
    ) {
        let stated = digest.map(|digest| SplitSource {
            digest,
            round: self.round,
            contradictory: false,
            unstated: false,
        });
        let split = &mut self.splits[at];
        if split.closed {
            return;
        }
        let before = split.counts.source;
        split.counts.see_source(stated, was_announced);
        split.dirty |= split.counts.source != before;
        if split.is_contradictory() && split.flags & CONFLICT == 0 {
            let message = "the split was made again, and from something else: its source has changed meanwhile, or a setting of its \
                           worker has. Nobody knows any more what the numbers of its subtasks stand for; create the job again";
            self.contradict(at, SOURCE_CHANGED, message.to_owned());
        }
    }
}
