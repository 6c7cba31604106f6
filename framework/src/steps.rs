//! The steps that the pipeline composes, each by itself. None of them knows the pipeline, the
//! handler or the context of a task.
//!
//! Pure: [`routing`] (whether a message is handled here, and where an output goes), [`output`] (the
//! messages and reports that a task causes), [`attempts`], [`resumption`] and [`quarantine`] (what
//! their headers say about earlier runs), [`explanation`] (why a message is put aside),
//! [`time_limit`], [`task_data`], [`open_deliveries`]. With the broker: [`publish`] and
//! [`report_buffer`]. For people: [`discards`].

pub(crate) mod attempts;
pub(crate) mod bundles;
pub(crate) mod discards;
pub(crate) mod explanation;
pub(crate) mod full_pipe;
pub(crate) mod open_deliveries;
pub(crate) mod output;
pub(crate) mod publish;
pub(crate) mod quarantine;
pub(crate) mod report_buffer;
pub(crate) mod resumption;
pub(crate) mod routing;
pub(crate) mod task_data;
pub(crate) mod time_limit;
