//! The tasks of jobs: how they are shown, and where those of paused jobs wait.

pub mod page;
pub mod parked_in;
pub mod parked_out;
pub mod routes;
