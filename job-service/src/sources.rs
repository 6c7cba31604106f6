//! Large inputs, which clients upload before the jobs that read them.

pub mod page;
pub mod questions;
pub mod routes;
pub mod sweeper;
mod uploading;
mod uploads;

use std::sync::Arc;

use crate::http::places::Places;
use crate::options::Limits;

/// How many requests add to uploads at the same time.
const WRITERS: usize = 16;

/// What the requests for uploads share.
#[derive(Debug)]
pub struct SourcesState {
    /// The number of further requests that may add to uploads. Each holds a piece in memory.
    pub writers: Arc<Places>,
    /// The number of further readers of uploads. They take at most a quarter of the connections.
    pub readers: Arc<Places>,
}

impl SourcesState {
    pub fn new(limits: &Limits) -> Self {
        let quarter = limits.connections.div_ceil(4);
        Self {
            writers: Places::new(WRITERS.min(quarter), limits.patience()),
            readers: Places::new(quarter, limits.patience()),
        }
    }
}
