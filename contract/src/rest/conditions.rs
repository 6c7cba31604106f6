//! Conditions that keep tasks from running, and the tasks that wait for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Tester;

/// What happens with a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum ConditionState {
    /// All tasks wait until the next test.
    Waiting,
    /// One of the tasks runs again; the others wait for its end.
    Canary,
    /// The condition has passed; its tasks are sent again, a few more each second.
    Releasing,
    /// The condition has not passed in time; its tasks fail.
    Failing,
}

impl ConditionState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Canary, Self::Releasing, Self::Failing];

    /// Returns the name as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Canary => "canary",
            Self::Releasing => "releasing",
            Self::Failing => "failing",
        }
    }

    /// Returns the state with exactly this name. `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A condition for which tasks wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitedCondition {
    /// The key of the condition: of code, tester and parameters. Tasks with the same key wait
    /// together.
    pub key: String,
    /// The code of the condition.
    pub code: String,
    /// The parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// What tests the condition.
    pub tester: Tester,
    /// When it is tested, and when its tasks fail: a retry policy as text.
    pub policy: String,
    /// Why the first of the tasks could not run.
    pub reason: String,
    /// Since when tasks wait, in milliseconds since 1970, UTC.
    pub since: i64,
    /// What happens with it.
    pub state: ConditionState,
    /// The number of tests so far, canaries included.
    pub tests: u32,
    /// The time of the next test, in milliseconds since 1970. Absent while it is not tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_test: Option<i64>,
    /// The time at which its tasks fail if it has not passed by then, in milliseconds since 1970.
    /// Absent if its policy has no limit of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// What the last test has found. Absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_result: Option<String>,
    /// The number of tasks that wait.
    pub tasks: u64,
    /// The jobs of most of these tasks, `partition:job` with the number of tasks, at most 20.
    /// Absent in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<BTreeMap<String, u64>>,
}

/// A page of conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct WaitedConditions {
    /// The conditions, in the order of their keys.
    pub conditions: Vec<WaitedCondition>,
    /// The parameter `after` of the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What blocks a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BlockedTasks {
    /// The number of tasks that wait for conditions.
    pub tasks: u64,
    /// Since when the first of them waits, in milliseconds since 1970, UTC.
    pub since: i64,
    /// Whether nothing else of the job is under way. People are shown such a job as Blocked.
    pub nothing_else_under_way: bool,
    /// The conditions, the one with the most tasks first; at most 10. Absent in lists of jobs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<BlockingCondition>,
}

/// A condition that blocks a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockingCondition {
    /// The key of the condition.
    pub key: String,
    /// The code of the condition.
    pub code: String,
    /// Why the first of the tasks could not run.
    pub reason: String,
    /// Since when tasks of any job wait for it, in milliseconds since 1970, UTC.
    pub since: i64,
    /// The number of tasks of the job that wait for it.
    pub tasks: u64,
    /// The number of tests so far.
    pub tests: u32,
    /// The time of the next test, in milliseconds since 1970. Absent while it is not tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_test: Option<i64>,
}
