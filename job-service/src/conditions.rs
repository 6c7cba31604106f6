//! Conditions that tasks wait for: how they are tested, and what happens to them next.
//!
//! The store keeps conditions and tasks, and takes each step in one transaction;
//! [`background`](crate::background) runs the loop.

mod course;
mod options;
mod shown;
mod testers;

pub use self::course::{ConditionPace, Course, Verdict, after_test, due, expires};
pub use self::options::{ConditionDatabase, ConditionOptions, ConditionTarget};
pub use self::shown::{show_conditions, shown, state_of};
pub use self::testers::Testers;
