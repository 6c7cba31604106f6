//! How much of a pipe a job gets that shares it with others.

use serde::Serialize;

use crate::whole_number::whole_number;

/// On the answer to a status check: the share of the job. Absent if it is [`JobShare::USUAL`].
pub const SHARE_HEADER: &str = "x-batchwright-share";

/// The weight of a job beside the other jobs of its partition, from 1 to [`Self::MOST`]: one of 300
/// gets three items through a pipe that they share for each item of one of 100.
///
/// ```
/// use batchwright_contract::JobShare;
///
/// assert_eq!("300".parse(), Ok(JobShare::of(300).unwrap()));
/// assert_eq!(JobShare::default(), JobShare::USUAL);
/// assert!("0".parse::<JobShare>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct JobShare(u32);

/// A text or a number that is no [`JobShare`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a share; expected a whole number from 1 to {most}", most = JobShare::MOST)]
pub struct InvalidJobShare(String);

impl JobShare {
    /// That of a job that says nothing else.
    pub const USUAL: Self = Self(100);
    /// The largest one.
    pub const MOST: u32 = 1000;

    /// Returns the share with this weight, if there is one.
    pub fn of(weight: u32) -> Option<Self> {
        (1..=Self::MOST).contains(&weight).then_some(Self(weight))
    }

    /// Returns the weight.
    pub const fn weight(self) -> u32 {
        self.0
    }
}

impl Default for JobShare {
    fn default() -> Self {
        Self::USUAL
    }
}

whole_number!(JobShare, InvalidJobShare, Self::of, "share");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_outside_of_its_range_is_refused_with_the_range() {
        for weight in [1, 100, JobShare::MOST] {
            assert_eq!(
                serde_json::from_str::<JobShare>(&weight.to_string()).unwrap(),
                JobShare(weight)
            );
        }
        for weight in ["0", "1001", "-1", "1.5"] {
            let error = serde_json::from_str::<JobShare>(weight)
                .unwrap_err()
                .to_string();
            let expected =
                format!("share: {weight} is not a share; expected a whole number from 1 to 1000");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
