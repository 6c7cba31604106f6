//! Conditions that tasks wait for: how they are tested, and what happens to them next.
//!
//! The store keeps conditions and tasks, and takes each step in one transaction; [`keeper`] decides
//! when.

pub mod blocked_in;
mod course;
mod full_conditions;
pub mod keeper;
mod options;
pub mod page;
pub mod routes;
mod shown;
mod testers;
mod unstored;

use std::sync::Arc;

pub use self::course::{ConditionPace, Course, Verdict, after_test, due, expires};
pub use self::full_conditions::FullConditions;
pub use self::options::{ConditionDatabase, ConditionOptions, ConditionTarget};
pub use self::shown::{show_conditions, shown, state_of};
pub use self::testers::Testers;

/// What the requests for conditions, and the loops that test them, share.
#[derive(Debug)]
pub struct ConditionsState {
    /// The conditions for which as many tasks wait as may.
    pub full: Arc<FullConditions>,
    pub testers: Testers,
}
