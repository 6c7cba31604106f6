//! How long one attempt of a task may take, as a job says it of all its tasks.

use std::time::Duration;

use serde::Serialize;

use crate::whole_number::whole_number;

/// The time that a job allows one attempt at each of its tasks: whole seconds, from 1 to
/// [`Self::MOST`].
///
/// ```
/// use batchwright_contract::TaskTimeLimit;
///
/// let limit: TaskTimeLimit = "90".parse().unwrap();
/// assert_eq!(limit.span().as_secs(), 90);
/// assert!("0".parse::<TaskTimeLimit>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct TaskTimeLimit(u32);

/// A text or a number that is no [`TaskTimeLimit`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not a time limit for tasks; expected whole seconds from 1 to {most} (a week)",
    most = TaskTimeLimit::MOST
)]
pub struct InvalidTaskTimeLimit(String);

impl TaskTimeLimit {
    /// The most seconds: a week.
    pub const MOST: u32 = 7 * 24 * 60 * 60;

    /// Returns the limit of this many seconds, if there is one.
    pub fn of_seconds(seconds: u32) -> Option<Self> {
        (1..=Self::MOST).contains(&seconds).then_some(Self(seconds))
    }

    /// Returns the number of the seconds.
    pub const fn seconds(self) -> u32 {
        self.0
    }

    /// Returns the limit as a time.
    pub const fn span(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

whole_number!(
    TaskTimeLimit,
    InvalidTaskTimeLimit,
    Self::of_seconds,
    "taskTimeLimit"
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rest::NewJob;

    #[test]
    fn limit_outside_of_a_week_is_refused_by_name_with_what_is_expected() {
        let job = |limit: &str| {
            let job: Result<NewJob, _> =
                serde_json::from_str(&format!(r#"{{"taskTimeLimit":{limit}}}"#));
            job.map(|job| job.task_time_limit)
                .map_err(|error| error.to_string())
        };
        for limit in [1, 90, TaskTimeLimit::MOST] {
            assert_eq!(job(&limit.to_string()), Ok(Some(TaskTimeLimit(limit))));
        }
        assert_eq!(job("null"), Ok(None));
        for (limit, shown) in [
            ("0", "0"),
            ("-1", "-1"),
            ("604801", "604801"),
            ("99999999999999999999", "1e+20"),
            ("1.5", "1.5"),
            (r#""90""#, r#""90""#),
            ("[]", "it"),
        ] {
            let error = job(limit).unwrap_err();
            let expected = format!(
                "taskTimeLimit: {shown} is not a time limit for tasks; expected whole seconds from 1 to 604800 (a week)"
            );
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_limit_or_refused_with_a_short_error(text in ".*") {
            match text.parse::<TaskTimeLimit>() {
                Ok(limit) => prop_assert!(TaskTimeLimit::of_seconds(limit.0).is_some()),
                Err(error) => prop_assert!(error.to_string().len() < 1000),
            }
        }
    }
}
