//! The outputs that the service keeps: how they are read, exported and deleted.

mod export;
mod kept_outputs;
pub mod page;
pub mod routes;
pub mod sweeper;

use std::sync::Arc;

use crate::http::places::Places;
use crate::options::Limits;
use crate::outputs::export::UsedPlaces;

/// What the requests for outputs share.
#[derive(Debug)]
pub struct OutputsState {
    /// The number of further streams of outputs. They take at most a quarter of the connections.
    pub streams: Arc<Places>,
    pub exports: UsedPlaces,
}

impl OutputsState {
    pub fn new(limits: &Limits) -> Self {
        Self {
            streams: Places::new(limits.connections.div_ceil(4), limits.patience()),
            exports: UsedPlaces::default(),
        }
    }
}
