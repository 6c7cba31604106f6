//! What a request says of the jobs that the new one waits for, and what it is told when it would wait in vain. Pure.
//!
//! An entry is a job id, and after a comma its options. The only one is `pc`, *pre-created*: if there is no such job, it is not
//! waited for.

use std::collections::BTreeMap;

use contract::JobId;
use store::{Prerequisite, Refusal};

use crate::error::{ApiError, ApiResult};

/// The longest entry, in characters: CAF's.
const MAX_CHARS: usize = 128;
/// The most prerequisites of one job.
const MAX_ENTRIES: usize = 10_000;

/// Blank entries mean nothing; of entries for the same job, one that says `pc` wins. In the order of their ids, so that equal
/// requests are equal.
pub fn parse(entries: &[Option<String>]) -> ApiResult<Vec<Prerequisite>> {
    let mut found: BTreeMap<JobId, bool> = BTreeMap::new();
    for entry in entries
        .iter()
        .flatten()
        .filter(|entry| !entry.trim().is_empty())
    {
        if entry.chars().count() > MAX_CHARS {
            return Err(ApiError::bad_request(format!(
                "The prerequisite job id '{entry}' is longer than {MAX_CHARS} characters."
            )));
        }
        let mut parts = entry.split(',');
        let id = parts.next().unwrap_or_default();
        let job = JobId::parse(id).map_err(|error| {
            ApiError::bad_request(format!(
                "The prerequisite job id '{id}' is no job id: {error}"
            ))
        })?;
        *found.entry(job).or_default() |= parts.any(|option| option.trim() == "pc");
    }
    if found.len() > MAX_ENTRIES {
        return Err(ApiError::bad_request(format!(
            "The job has {} prerequisites; at most {MAX_ENTRIES} are possible.",
            found.len()
        )));
    }
    Ok(found
        .into_iter()
        .map(|(job, pre_created)| Prerequisite { job, pre_created })
        .collect())
}

/// The same entries, as short as they can be said. `None` when there are none.
pub fn format(prerequisites: &[Prerequisite]) -> Option<Vec<Option<String>>> {
    let spell = |wanted: &Prerequisite| {
        Some(format!(
            "{}{}",
            wanted.job,
            if wanted.pre_created { ",pc" } else { "" }
        ))
    };
    (!prerequisites.is_empty()).then(|| prerequisites.iter().map(spell).collect())
}

/// CAF's text, and ones like it where CAF lets a job wait for ever.
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

    fn spelled(texts: &[&str]) -> Vec<String> {
        format(&parse(&entries(texts)).unwrap())
            .into_iter()
            .flatten()
            .flatten()
            .collect()
    }

    #[test]
    fn entries_are_merged_by_job_and_options_nobody_knows_mean_nothing() {
        assert_eq!(
            spelled(&["b", "", " ", "a,x,pc", "b,pc", "a", "c,", "C,p c"]),
            ["C", "a,pc", "b,pc", "c"]
        );
        assert_eq!(spelled(&[" "]), [""; 0]);
        assert_eq!(parse(&[None]).unwrap(), []);
        assert_eq!(format(&[]), None);
    }

    #[test]
    fn what_is_no_job_id_is_refused_by_name() {
        let refusal = |text: &str| parse(&entries(&[text])).unwrap_err().to_string();
        assert_eq!(
            refusal(",pc"),
            "The prerequisite job id '' is no job id: The job identifier has not been specified."
        );
        assert!(refusal("a:b").starts_with(
            "The prerequisite job id 'a:b' is no job id: The job identifier contains"
        ));
        assert!(refusal(&"x".repeat(49)).contains("longer than 48"));
        assert!(
            refusal(&format!("a,{}", "x".repeat(127))).ends_with("is longer than 128 characters.")
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
