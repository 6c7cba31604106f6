//! What few authors need: the parts of the framework by themselves, for workers that handle many
//! messages at a time, talk to a broker directly or watch their own health, and the options of the
//! single roles of a [`Stack`](crate::Stack).

pub use batch_worker::Results as BatchResults;
#[cfg(feature = "stack")]
pub use contract::TrackingShards;
#[doc(inline)]
pub use framework::{
    Output, Payload, Room, RuntimeError, SettingsError, Source, announcement, broker, clock,
    config, handler, health, meters, outputs, pipe_message, queries, runtime, signs, supervision,
    tls, trace,
};
#[cfg(feature = "stack")]
pub use output_worker::Limits as OutputLimits;

#[cfg(feature = "stack")]
pub use crate::stack::{
    BATCH_PIPE, BatchOptions, COMMAND_OUT_PIPE, COMMAND_PIPE, CommandOptions, Drained,
    DrainedOutput, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, NOOP_PIPE, SIMULATION_PIPE, TRACKING_PIPE,
    WorkerOptions,
};
