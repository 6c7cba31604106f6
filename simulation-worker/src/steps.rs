//! The data of simulated tasks: what they do, read from untrusted JSON and bounded. Pure.

use std::collections::BTreeMap;

use contract::{
    Condition, ConditionCode, InvalidCondition, ListItem, RangeItem, RetryPolicy, Tester,
};
use framework::TaskData;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most steps of a task.
pub const MOST_STEPS: usize = 100;
/// The longest sleep, in milliseconds: an hour.
const LONGEST_SLEEP: u64 = 3_600_000;
/// The longest computation, in milliseconds: ten minutes.
const LONGEST_COMPUTATION: u64 = 600_000;
/// The time that a call may take, if it does not say so itself, and at most, in milliseconds.
const CALL: u64 = 10_000;
const LONGEST_CALL: u64 = 60_000;
/// The most bytes of a URL.
const LONGEST_URL: usize = 2000;
/// The most bytes of a message.
const MOST_BYTES: usize = 1000;
/// The most letters of a result.
const LONGEST_OUTPUT: usize = 1024 * 1024;
/// The highest number of an attempt or a round that a step can name.
const HIGHEST: u32 = 1000;

/// A task of the simulation worker, as a client sends it or as a batch plugin makes it of an item.
///
/// The steps are in `steps`; or in the value of a `list` (`{"name": …, "steps": […]}`); or else in
/// the parameter `steps` of the batch, as JSON.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Simulation {
    /// What the item is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Value>,
    /// The number of an item of the plugin `range`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The value of an item of the plugin `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// The parameters of the batch.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

/// What a simulated task does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "action",
    rename_all = "SCREAMING_SNAKE_CASE",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Step {
    /// Sleeps for this time, or for a random one from there to `upToMs`.
    Sleep {
        /// The time in milliseconds; the shortest one, if it is random.
        duration_ms: u64,
        /// The longest time in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        up_to_ms: Option<u64>,
    },
    /// Writes a line to the log of the worker.
    Log {
        /// What it says.
        message: String,
    },
    /// Keeps a processor busy.
    Compute {
        /// For so many milliseconds.
        duration_ms: u64,
    },
    /// Calls a URL that the operator of the worker allows, and reads the response. One of 400 to
    /// 499 fails the task, and any other that is no success fails the attempt.
    HttpCall {
        /// The URL.
        url: String,
        /// How long the call may take, in milliseconds.
        #[serde(default = "default_call")]
        time_limit_ms: u64,
    },
    /// Lets the task send a result when it is done. A task without this step sends none, and needs
    /// no pipe for it.
    Output {
        /// The number of letters in it, beside what the task has done.
        #[serde(default)]
        bytes: usize,
    },
    /// Lets the task wait for a condition.
    Block(Box<Block>),
    /// Fails the attempt, or the task.
    Fail(Fail),
}

/// For what a task waits, and when. Of several conditions, all must hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Block {
    /// The code of the condition; `SYSTEM_NOT_AVAILABLE` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ConditionCode>,
    /// Why; `{item}` stands for the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the condition is tested; that of the code by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<RetryPolicy>,
    /// What tests it; a canary by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tester: Option<Tester>,
    /// Waits before this time, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// Waits if the task was blocked less often than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_block: Option<u32>,
    /// Waits with this probability, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
}

/// When and how a task fails. Of several conditions, all must hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fail {
    /// Why; `{item}` stands for the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Fails with this probability, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Fails in the attempts before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_attempt: Option<u32>,
    /// Fails in the rounds of the job before this one, so that a job that is retried completes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_round: Option<u32>,
    /// Fails the task, and not only the attempt.
    #[serde(default)]
    pub permanent: bool,
}

/// What is wrong with the data of a simulated task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSimulation(String);

impl TaskData for Simulation {
    const CLASSIFIER: &'static str = "Simulation";
    const API_VERSION: i32 = 1;

    fn reads(classifier: &str) -> bool {
        [
            Self::CLASSIFIER,
            RangeItem::CLASSIFIER,
            ListItem::CLASSIFIER,
        ]
        .contains(&classifier)
    }

    fn label(&self) -> Option<String> {
        Some(self.item())
    }
}

impl Simulation {
    /// Returns a task with these steps.
    pub fn new(name: impl Into<String>, steps: &[Step]) -> Self {
        Self {
            name: Some(name.into()),
            steps: serde_json::to_value(steps).ok(),
            ..Self::default()
        }
    }

    /// Returns what the item is, in a few words.
    pub fn item(&self) -> String {
        let of_value = || match self.value.as_ref()? {
            Value::Object(fields) => fields.get("name")?.as_str().map(str::to_owned),
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let of_number = || self.number.map(|number| format!("number {number}"));
        let name = self.name.clone().or_else(of_value).or_else(of_number);
        let name = name.unwrap_or_else(|| "the task".to_owned());
        cut(&name, MOST_BYTES).to_owned()
    }

    /// Returns the steps, if each is understood and within its limits.
    pub fn steps(&self) -> Result<Vec<Step>, InvalidSimulation> {
        let of_value = self.value.as_ref().and_then(|value| value.get("steps"));
        let steps = match (self.steps.as_ref().or(of_value), self.params.get("steps")) {
            (Some(steps), _) => steps.clone(),
            (None, Some(text)) => serde_json::from_str(text).map_err(|error| {
                InvalidSimulation(format!("the parameter `steps` is not JSON: {error}"))
            })?,
            (None, None) => {
                return Err(InvalidSimulation(
                    "the task has no steps; name them in `steps`, in `steps` of the value in the list, or in the parameter `steps` of the \
                     batch"
                        .to_owned(),
                ));
            }
        };
        let Value::Array(steps) = steps else {
            let text = "`steps` is not an array of steps such as {\"action\": \"SLEEP\", \"durationMs\": 100}";
            return Err(InvalidSimulation(text.to_owned()));
        };
        if steps.len() > MOST_STEPS {
            let count = steps.len();
            return Err(InvalidSimulation(format!(
                "the task has {count} steps; at most {MOST_STEPS} are possible"
            )));
        }
        let numbered = (1..).zip(steps);
        numbered
            .map(|(at, step)| {
                Step::parse(step).map_err(|what| InvalidSimulation(format!("step {at}: {what}")))
            })
            .collect()
    }
}

impl Step {
    fn parse(step: Value) -> Result<Self, String> {
        let step: Self = serde_json::from_value(step).map_err(|error| error.to_string())?;
        step.check()?;
        Ok(step)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Sleep {
                duration_ms,
                up_to_ms,
            } => {
                at_most("durationMs", *duration_ms, LONGEST_SLEEP)?;
                let Some(longest) = *up_to_ms else {
                    return Ok(());
                };
                at_most("upToMs", longest, LONGEST_SLEEP)?;
                if longest < *duration_ms {
                    return Err(format!(
                        "upToMs is {longest}, and less than durationMs, {duration_ms}"
                    ));
                }
                Ok(())
            }
            Self::Log { message } => short("message", message),
            Self::Compute { duration_ms } => {
                at_most("durationMs", *duration_ms, LONGEST_COMPUTATION)
            }
            Self::HttpCall { url, time_limit_ms } => {
                if url.len() > LONGEST_URL {
                    let bytes = url.len();
                    return Err(format!(
                        "url has {bytes} bytes; at most {LONGEST_URL} are possible"
                    ));
                }
                at_most("timeLimitMs", *time_limit_ms, LONGEST_CALL)
            }
            Self::Output { bytes } if *bytes > LONGEST_OUTPUT => Err(format!(
                "bytes is {bytes}; at most {LONGEST_OUTPUT} is possible"
            )),
            Self::Output { .. } => Ok(()),
            Self::Block(block) => {
                short("reason", block.reason.as_deref().unwrap_or_default())?;
                at_most(
                    "untilBlock",
                    block.until_block.unwrap_or(0).into(),
                    HIGHEST.into(),
                )?;
                is_share(block.probability)?;
                let condition = block.condition("");
                condition.map(drop).map_err(|error| error.to_string())
            }
            Self::Fail(fail) => {
                short("message", fail.message.as_deref().unwrap_or_default())?;
                for (name, number) in [
                    ("untilAttempt", fail.until_attempt),
                    ("untilRound", fail.until_round),
                ] {
                    at_most(name, number.unwrap_or(0).into(), HIGHEST.into())?;
                }
                is_share(fail.probability)
            }
        }
    }
}

impl Block {
    /// Returns whether a task waits that was blocked so often, at this time, by a random number
    /// below 1.
    pub fn blocks(&self, blocks: u32, now: i64, random: f64) -> bool {
        self.until.is_none_or(|until| now < until)
            && self.until_block.is_none_or(|until| blocks < until)
            && random < self.probability.unwrap_or(1.0)
    }

    /// Returns the condition that an item waits for.
    ///
    /// # Errors
    /// If there can be no such condition.
    pub fn condition(&self, item: &str) -> Result<Condition, InvalidCondition> {
        let code = self.code.clone();
        let reason = self.reason.as_deref();
        let reason = reason.unwrap_or("the simulation waits, as its step BLOCK says");
        let condition = Condition::new(code.unwrap_or(ConditionCode::SYSTEM_NOT_AVAILABLE))
            .because(reason.replace("{item}", item))
            .tested_by(self.tester.clone().unwrap_or(Tester::Canary))?;
        match &self.policy {
            Some(policy) => condition.policy(policy.clone()),
            None => Ok(condition),
        }
    }
}

impl Fail {
    /// Returns whether the task fails in this attempt and round, by a random number below 1.
    pub fn fails(&self, attempt: u32, round: u32, random: f64) -> bool {
        self.until_attempt.is_none_or(|until| attempt < until)
            && self.until_round.is_none_or(|until| round < until)
            && random < self.probability.unwrap_or(1.0)
    }

    /// Returns why it fails.
    pub fn message_for(&self, item: &str) -> String {
        let message = self.message.as_deref();
        let message = message.unwrap_or("the simulation fails, as its step FAIL says");
        let message = message.replace("{item}", item);
        cut(&message, MOST_BYTES).to_owned()
    }
}

const fn default_call() -> u64 {
    CALL
}

fn at_most(name: &str, number: u64, limit: u64) -> Result<(), String> {
    if number > limit {
        return Err(format!("{name} is {number}; at most {limit} is possible"));
    }
    Ok(())
}

fn is_share(probability: Option<f64>) -> Result<(), String> {
    match probability {
        Some(probability) if !(0.0..=1.0).contains(&probability) => {
            Err(format!("probability is {probability}, and not from 0 to 1"))
        }
        _ => Ok(()),
    }
}

fn short(name: &str, text: &str) -> Result<(), String> {
    let length = text.len();
    if length > MOST_BYTES {
        return Err(format!(
            "{name} has {length} bytes; at most {MOST_BYTES} are possible"
        ));
    }
    Ok(())
}

/// Returns the beginning of a text with at most this many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn problem(steps: &Value) -> String {
        let task = json!({ "steps": steps });
        let task: Simulation = serde_json::from_value(task).unwrap();
        task.steps().unwrap_err().to_string()
    }

    #[test]
    fn steps_come_with_the_task_with_the_value_of_a_list_or_with_the_batch() {
        let steps = json!([{"action": "COMPUTE", "durationMs": 5}]);
        let text = steps.to_string();
        for (task, item) in [
            (json!({"name": "a", "steps": steps}), "a"),
            (
                json!({"value": {"name": "b", "steps": steps}, "params": {"steps": "[]"}}),
                "b",
            ),
            (json!({"value": "c", "params": {"steps": text}}), "c"),
            (json!({"number": 4, "params": {"steps": text}}), "number 4"),
            (json!({"steps": steps}), "the task"),
        ] {
            let task: Simulation = serde_json::from_value(task).unwrap();
            assert_eq!(task.steps(), Ok(vec![Step::Compute { duration_ms: 5 }]));
            assert_eq!(task.label().as_deref(), Some(item));
        }
    }

    #[test]
    fn invalid_steps_are_refused_with_the_number_of_the_step_and_the_limit() {
        for (steps, text) in [
            (json!({}), "`steps` is not an array"),
            (
                json!([{"action": "JUMP"}]),
                "step 1: unknown variant `JUMP`, expected one of `SLEEP`, `LOG`, `COMPUTE`, `HTTP_CALL`, `OUTPUT`, `BLOCK`, `FAIL`",
            ),
            (
                json!([{"action": "BLOCK", "policy": "none"}]),
                "step 1: the policy none of the condition allows no test",
            ),
            (
                json!([{"action": "BLOCK", "code": "away"}]),
                "step 1: \"away\" is not the code of a condition",
            ),
            (json!([{"durationMs": 1}]), "step 1: missing field `action`"),
            (
                json!([{"action": "LOG", "message": "a"}, {"action": "SLEEP"}]),
                "step 2: missing field `durationMs`",
            ),
            (
                json!([{"action": "SLEEP", "durationMs": 3_600_001}]),
                "step 1: durationMs is 3600001; at most 3600000 is possible",
            ),
            (
                json!([{"action": "SLEEP", "durationMs": -1}]),
                "step 1: invalid value: integer `-1`, expected u64",
            ),
            (
                json!([{"action": "SLEEP", "durationMs": 9, "upToMs": 8}]),
                "upToMs is 8, and less than durationMs, 9",
            ),
            (
                json!([{"action": "SLEEP", "duration": 9, "durationMs": 9}]),
                "unknown field `duration`",
            ),
            (
                json!([{"action": "COMPUTE", "durationMs": 600_001}]),
                "at most 600000 is possible",
            ),
            (
                json!([{"action": "OUTPUT", "bytes": 1_048_577}]),
                "bytes is 1048577; at most 1048576 is possible",
            ),
            (
                json!([{"action": "FAIL", "probability": 1.5}]),
                "step 1: probability is 1.5, and not from 0 to 1",
            ),
            (
                json!([{"action": "FAIL", "untilAttempt": 1001}]),
                "untilAttempt is 1001; at most 1000 is possible",
            ),
            (
                json!([{"action": "FAIL", "mesage": "a"}]),
                "unknown field `mesage`",
            ),
            (
                json!([{"action": "LOG", "message": "x".repeat(1001)}]),
                "message has 1001 bytes; at most 1000 are possible",
            ),
            (
                json!(vec![json!({"action": "LOG", "message": ""}); 101]),
                "the task has 101 steps; at most 100 are possible",
            ),
        ] {
            let problem = problem(&steps);
            assert!(problem.contains(text), "{problem}");
        }
        let task = Simulation {
            params: [("steps".to_owned(), "[{]".to_owned())].into(),
            ..Simulation::default()
        };
        let problem = task.steps().unwrap_err().to_string();
        assert!(
            problem.starts_with("the parameter `steps` is not JSON: "),
            "{problem}"
        );
    }

    #[test]
    fn task_fails_until_the_attempt_and_the_round_that_it_names() {
        let fail = Fail {
            until_attempt: Some(3),
            until_round: Some(2),
            ..Fail::default()
        };
        assert!(fail.fails(1, 1, 0.99) && fail.fails(2, 1, 0.0));
        assert!(!fail.fails(3, 1, 0.0) && !fail.fails(1, 2, 0.0));
        let sometimes = Fail {
            probability: Some(0.25),
            ..Fail::default()
        };
        assert!(sometimes.fails(1, 1, 0.24) && !sometimes.fails(1, 1, 0.25));
    }

    fn number() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            (0_u64..4_000_000).prop_map(Value::from),
            (0_u64..=3).prop_map(Value::from),
        ]
    }

    /// Values that look like steps, with anything in their fields.
    fn step() -> impl Strategy<Value = Value> {
        let known = [
            "SLEEP",
            "LOG",
            "COMPUTE",
            "HTTP_CALL",
            "OUTPUT",
            "FAIL",
            "BLOCK",
        ];
        let known = proptest::sample::select(known.to_vec()).prop_map(Value::from);
        let action = prop_oneof![9 => known, 1 => number()];
        let names = [
            "durationMs",
            "upToMs",
            "message",
            "bytes",
            "probability",
            "untilAttempt",
            "untilRound",
            "permanent",
            "url",
            "timeLimitMs",
        ];
        let name = proptest::sample::select(names.to_vec());
        let value = prop_oneof![
            4 => number(),
            1 => ".{0,20}".prop_map(Value::from),
            1 => any::<bool>().prop_map(Value::from),
            1 => Just(Value::Null),
        ];
        let fields = prop::collection::vec((name, value), 0..3);
        (action, fields).prop_map(|(action, fields)| {
            let mut step = json!({ "action": action });
            for (name, value) in fields {
                step[name] = value;
            }
            step
        })
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_is_within_the_limits(steps in prop::collection::vec(step(), 0..3), name in ".{0,3000}") {
            let task = Simulation { name: Some(name), steps: Some(Value::from(steps.clone())), ..Simulation::default() };
            prop_assert!(task.item().len() <= MOST_BYTES);
            let in_params = Simulation {
                params: [("steps".to_owned(), Value::from(steps).to_string())].into(),
                ..Simulation::default()
            };
            let Ok(steps) = task.steps() else {
                prop_assert!(in_params.steps().is_err());
                return Ok(());
            };
            for step in &steps {
                let is_within = match step {
                    Step::Sleep { duration_ms, up_to_ms } => {
                        up_to_ms.unwrap_or(*duration_ms) <= LONGEST_SLEEP && up_to_ms.is_none_or(|it| it >= *duration_ms)
                    }
                    Step::Log { message } => message.len() <= MOST_BYTES,
                    Step::Compute { duration_ms } => *duration_ms <= LONGEST_COMPUTATION,
                    Step::HttpCall { url, time_limit_ms } => url.len() <= LONGEST_URL && *time_limit_ms <= LONGEST_CALL,
                    Step::Output { bytes } => *bytes <= LONGEST_OUTPUT,
                    Step::Block(block) => block.condition(&task.item()).is_ok(),
                    Step::Fail(fail) => {
                        let _ = fail.fails(1, 1, 0.5);
                        fail.message_for(&task.item()).len() <= MOST_BYTES && fail.probability.is_none_or(|it| (0.0..=1.0).contains(&it))
                    }
                };
                prop_assert!(is_within, "{step:?}");
            }
        }
    }
}
