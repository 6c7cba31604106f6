//! Which tasks have ended.

use contract::Step;

use super::{Ledger, extend};

impl Ledger {
    /// Returns whether a task is done or has failed, or belongs to one that is done. The nodes of
    /// the splits above it must be loaded.
    pub fn has_ended(&self, steps: &[Step]) -> bool {
        let Some((own, parents)) = steps.split_last() else {
            return false;
        };
        let mut path = String::new();
        for step in parents {
            let Some(at) = self.by_path.get(&path) else {
                return false;
            };
            if self.splits[*at].is_done(step.number) {
                return true;
            }
            extend(&mut path, step.number);
        }
        let split = self.by_path.get(&path).map(|at| &self.splits[*at]);
        split.is_some_and(|split| split.is_done(own.number) || split.is_failed(own.number))
    }
}
