//! Remembers for which pipes the broker refuses messages at the moment, because they are full. The
//! health checks name them.
//!
//! The holder of a refused message keeps a [`FullPipe`] until the broker has taken the message, or
//! until it is given up.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

/// The number of refused messages of each pipe in this process.
static REFUSED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
/// How many pipes are named at most.
const NAMED: usize = 5;

/// A message that was refused, until this is dropped.
#[derive(Debug)]
pub(crate) struct FullPipe(String);

impl FullPipe {
    pub fn named(pipe: &str) -> Self {
        *refused().entry(pipe.to_owned()).or_default() += 1;
        Self(pipe.to_owned())
    }
}

impl Drop for FullPipe {
    fn drop(&mut self) {
        let mut refused = refused();
        if let Some(count) = refused.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                refused.remove(&self.0);
            }
        }
    }
}

/// Returns which pipes are full, for people; `None` if none is known to be.
pub(crate) fn full_pipes() -> Option<String> {
    let refused = refused();
    let names: Vec<_> = refused
        .iter()
        .take(NAMED)
        .map(|(pipe, count)| format!("{pipe} ({count} wait)"))
        .collect();
    (!names.is_empty()).then(|| {
        let more = if refused.len() > NAMED { ", …" } else { "" };
        format!(
            "the broker refuses messages for {}{more}; they are published again; let consumers empty the pipe, or raise its limit",
            names.join(", ")
        )
    })
}

fn refused() -> MutexGuard<'static, BTreeMap<String, usize>> {
    REFUSED.lock()
}
