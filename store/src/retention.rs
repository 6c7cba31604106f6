//! How long a job is kept after its end: parses the policies, and computes when a job expires.
//! Pure.
//!
//! A policy is a moment (`2027-01-31T00:00:00Z`), a span from the creation or the last change of
//! the job (`createTime+PT9H`, `lastUpdateTime+P1D`), or `none`.

use std::time::Duration;

use chrono::DateTime;
use contract::JobStatus;
use contract::rest::Expiry;

/// How long something is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptUntil {
    /// Never deleted.
    Forever,
    /// Until this moment, in milliseconds since 1970.
    Moment(i64),
    /// For this number of milliseconds after the creation.
    AfterCreation(i64),
    /// For this number of milliseconds after the last change.
    AfterLastUpdate(i64),
}

impl std::str::FromStr for KeptUntil {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Forever);
        }
        if let Some(span) = text.strip_prefix("lastUpdateTime+") {
            return Ok(Self::AfterLastUpdate(millis(span)?));
        }
        if let Some(span) = text.strip_prefix("createTime+") {
            return Ok(Self::AfterCreation(millis(span)?));
        }
        DateTime::parse_from_rfc3339(text)
            .map(|moment| Self::Moment(moment.timestamp_millis()))
            .map_err(|_| format!("'{text}' is not an expiry time; expected none, lastUpdateTime+P1D, createTime+PT9H or 2027-01-31T00:00:00Z"))
    }
}

/// Parses a span of time like `P30D`, `PT90M` or `P1DT12H` (ISO 8601). Months and years are
/// rejected, because their length varies.
pub fn span(text: &str) -> Result<Duration, String> {
    let invalid = || {
        format!(
            "'{text}' is not a time span; expected weeks, days, hours, minutes and seconds as in P2W, P1DT12H or PT90M"
        )
    };
    let rest = text.strip_prefix('P').ok_or_else(invalid)?;
    let (days, time) = match rest.split_once('T') {
        Some((days, time)) if !time.is_empty() => (days, time),
        Some(_) => return Err(invalid()),
        None => (rest, ""),
    };
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut seconds: u64 = 0;
    for (mut part, units) in [
        (days, &[('W', 604_800), ('D', 86_400)][..]),
        (time, &[('H', 3600), ('M', 60), ('S', 1)][..]),
    ] {
        for (unit, length) in units {
            if let Some((number, after)) = part.split_once(*unit) {
                let number: u64 = number.parse().map_err(|_| invalid())?;
                seconds = number
                    .checked_mul(*length)
                    .and_then(|more| seconds.checked_add(more))
                    .ok_or_else(invalid)?;
                part = after;
            }
        }
        if !part.is_empty() {
            return Err(invalid());
        }
    }
    // A limit that no policy needs to exceed, so that no sum of times overflows.
    if seconds > 1000 * 366 * 86_400 {
        Err(format!(
            "'{text}' is longer than a thousand years; use none instead"
        ))
    } else {
        Ok(Duration::from_secs(seconds))
    }
}

fn millis(text: &str) -> Result<i64, String> {
    i64::try_from(span(text)?.as_millis()).map_err(|error| error.to_string())
}

/// Returns when a job expires that has just ended with this status, or `None` if it is kept
/// forever. The policy was checked when the job was created.
pub(crate) fn due(
    expiry: &Expiry,
    status: JobStatus,
    create_time: i64,
    last_update_time: i64,
) -> Option<i64> {
    let policy = match status {
        JobStatus::Completed => expiry.completed.as_ref(),
        JobStatus::Failed => expiry.failed.as_ref(),
        JobStatus::Cancelled => expiry.cancelled.as_ref(),
        JobStatus::Active | JobStatus::Blocked | JobStatus::Paused | JobStatus::Waiting => None,
    };
    match policy?.expiry_time.parse().ok()? {
        KeptUntil::Forever => None,
        KeptUntil::Moment(moment) => Some(moment),
        KeptUntil::AfterCreation(span) => Some(create_time.saturating_add(span)),
        KeptUntil::AfterLastUpdate(span) => Some(last_update_time.saturating_add(span)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_a_moment_a_span_or_none() {
        const DAY: i64 = 86_400_000;
        for (text, expected) in [
            ("none", KeptUntil::Forever),
            ("lastUpdateTime+P1D", KeptUntil::AfterLastUpdate(DAY)),
            (
                "lastUpdateTime+P1W2DT3H4M5S",
                KeptUntil::AfterLastUpdate(9 * DAY + 11_045_000),
            ),
            ("createTime+PT9H", KeptUntil::AfterCreation(32_400_000)),
            ("createTime+PT0S", KeptUntil::AfterCreation(0)),
            ("1970-01-02T01:00:00.5+01:00", KeptUntil::Moment(DAY + 500)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "None",
            "soon",
            "P1D",
            "lastUpdateTime+",
            "lastUpdateTime+P",
            "lastUpdateTime+PT",
            "lastUpdateTime+P1M",
            "lastUpdateTime+P1Y",
            "lastUpdateTime+P1H",
            "lastUpdateTime+-P1D",
            "lastUpdateTime+P-1D",
            "lastUpdateTime+P1DT",
            "lastUpdateTime+PT1S1H",
            "lastUpdateTime+P99999999999999999999D",
            "createTime+P400000D",
            "2027-01-31",
            "lastUpdateDate+P1D",
        ] {
            assert!(text.parse::<KeptUntil>().is_err(), "{text}");
        }
    }

    #[test]
    fn job_expires_by_the_policy_of_its_outcome() {
        let policy = |text: &str| {
            Some(contract::rest::ExpiryPolicy {
                expiry_time: text.to_owned(),
                ..Default::default()
            })
        };
        let expiry = Expiry {
            completed: policy("lastUpdateTime+PT1S"),
            failed: policy("createTime+PT1S"),
            cancelled: policy("none"),
        };
        assert_eq!(due(&expiry, JobStatus::Completed, 10, 500), Some(1500));
        assert_eq!(due(&expiry, JobStatus::Failed, 10, 500), Some(1010));
        for never in [
            JobStatus::Cancelled,
            JobStatus::Active,
            JobStatus::Paused,
            JobStatus::Waiting,
            JobStatus::Blocked,
        ] {
            assert_eq!(due(&expiry, never, 10, 500), None);
        }
        assert_eq!(due(&Expiry::default(), JobStatus::Completed, 10, 500), None);
    }
}
