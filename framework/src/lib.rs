//! Placeholder: the lead has the real one.
pub mod broker;
mod settle;
