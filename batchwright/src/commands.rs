//! The larger commands of the command line: their arguments, and what they call.

pub mod bench;
pub mod serve;
