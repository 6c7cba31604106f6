//! The prerequisites of a new job: parses `prerequisiteJobIds` and builds the error texts for
//! refused jobs. Pure.
//!
//! An entry is a job id, optionally followed by a comma and options. The only option is `pc`
//! (*pre-created*): the new job waits only if that job exists.

use std::collections::BTreeMap;

use contract::JobId;
use store::{Prerequisite, Refusal};

use crate::http::{ApiError, ApiResult};
use contract::rest::ErrorCode;

/// The longest entry, in characters. CAF's limit.
const MAX_CHARS: usize = 128;
/// The maximum number of prerequisites of one job.
const MAX_ENTRIES: usize = 10_000;

/// Parses the entries. Ignores blank entries and unknown options. Merges entries for the same job;
/// `pc` in one of them counts. Returns the prerequisites sorted by id, so that equivalent requests
/// have the same content hash.
pub fn parse(entries: &[Option<String>]) -> ApiResult<Vec<Prerequisite>> {
    let mut found: BTreeMap<JobId, bool> = BTreeMap::new();
    for entry in entries
        .iter()
        .flatten()
        .filter(|entry| !entry.trim().is_empty())
    {
        if entry.chars().count() > MAX_CHARS {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidPrerequisite,
                format!("The prerequisite job id '{entry}' is longer than {MAX_CHARS} characters."),
            ));
        }
        let mut parts = entry.split(',');
        let id = parts.next().unwrap_or_default();
        let job = JobId::parse(id).map_err(|error| {
            ApiError::bad_request(
                ErrorCode::InvalidPrerequisite,
                format!("The prerequisite job id '{id}' is no job id: {error}"),
            )
        })?;
        *found.entry(job).or_default() |= parts.any(|option| option.trim() == "pc");
    }
    if found.len() > MAX_ENTRIES {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidPrerequisite,
            format!(
                "The job has {} prerequisites; at most {MAX_ENTRIES} are possible.",
                found.len()
            ),
        ));
    }
    Ok(found
        .into_iter()
        .map(|(job, pre_created)| Prerequisite { job, pre_created })
        .collect())
}

/// Returns the entries in canonical form. `None` if there are none.
pub fn format(prerequisites: &[Prerequisite]) -> Option<Vec<Option<String>>> {
    let entry = |prerequisite: &Prerequisite| {
        Some(format!(
            "{}{}",
            prerequisite.job,
            if prerequisite.pre_created { ",pc" } else { "" }
        ))
    };
    (!prerequisites.is_empty()).then(|| prerequisites.iter().map(entry).collect())
}

/// Returns the error text for a refused job: CAF's, or a similar one where CAF would let the job
/// wait forever.
pub fn refusal_message(refusal: &Refusal) -> String {
    let list = |ids: &[JobId], between: &str| {
        ids.iter()
            .map(JobId::as_str)
            .collect::<Vec<_>>()
            .join(between)
    };
    match refusal {
        Refusal::Failed(ids) => format!(
            "One or more prerequisite jobs have failed. Failed Job IDs: {}",
            list(ids, ", ")
        ),
        Refusal::Cancelled(ids) => {
            format!(
                "One or more prerequisite jobs have been cancelled. Cancelled Job IDs: {}",
                list(ids, ", ")
            )
        }
        Refusal::Cycle(ids) => format!("The job would wait for itself: {}", list(ids, " -> ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(texts: &[&str]) -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).collect()
    }

    fn canonical(texts: &[&str]) -> Vec<String> {
        format(&parse(&entries(texts)).unwrap())
            .into_iter()
            .flatten()
            .flatten()
            .collect()
    }

    #[test]
    fn entries_are_merged_by_job_and_unknown_options_are_ignored() {
        assert_eq!(
            canonical(&["b", "", " ", "a,x,pc", "b,pc", "a", "c,", "C,p c"]),
            ["C", "a,pc", "b,pc", "c"]
        );
        assert_eq!(canonical(&[" "]), [""; 0]);
        assert_eq!(parse(&[None]).unwrap(), []);
        assert_eq!(format(&[]), None);
    }

    #[test]
    fn an_invalid_prerequisite_is_rejected_with_its_text() {
        let error = |text: &str| parse(&entries(&[text])).unwrap_err().to_string();
        assert_eq!(
            error(",pc"),
            "The prerequisite job id '' is no job id: The job identifier has not been specified."
        );
        assert!(error("a:b").starts_with(
            "The prerequisite job id 'a:b' is no job id: The job identifier contains"
        ));
        assert!(error(&"x".repeat(49)).contains("longer than 48"));
        assert!(
            error(&format!("a,{}", "x".repeat(127))).ends_with("is longer than 128 characters.")
        );
        let many: Vec<_> = (0..=MAX_ENTRIES).map(|n| Some(n.to_string())).collect();
        assert!(
            parse(&many)
                .unwrap_err()
                .to_string()
                .contains("at most 10000")
        );
    }
}
