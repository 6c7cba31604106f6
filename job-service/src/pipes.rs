//! Pipes and the workers that consume them: what is known of both, and the messages that clients
//! take and put.

mod known_pipes;
mod measured_pipes;
pub mod own_pipe;
pub mod page;
mod pipe_states;
pub mod routes;
pub mod seen_workers;
mod silent_pipes;
pub mod stored_message;
mod taken_messages;

use contract::ReservedPipes;
use framework::broker::Gauges;

use crate::pipes::known_pipes::KnownPipes;
use crate::pipes::measured_pipes::MeasuredPipes;
use crate::pipes::seen_workers::SeenWorkers;
use crate::pipes::taken_messages::TakenMessages;

/// What the service knows of pipes and workers.
#[derive(Debug)]
pub struct PipesState {
    /// The pipes that no job may name.
    pub reserved: ReservedPipes,
    pub known: KnownPipes,
    pub measured: MeasuredPipes,
    pub taken: TakenMessages,
    pub workers: SeenWorkers,
    /// How fast the pipes are to which the outbox is sent.
    pub gauges: Gauges,
}

impl PipesState {
    pub fn new(reserved: ReservedPipes) -> Self {
        Self {
            reserved,
            known: KnownPipes::default(),
            measured: MeasuredPipes::default(),
            taken: TakenMessages::new(),
            workers: SeenWorkers::default(),
            gauges: Gauges::default(),
        }
    }
}
