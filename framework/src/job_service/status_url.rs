//! Decides which URL a status check may ask. Pure.
//!
//! The URL comes from a message, so a client that can publish messages can put any URL there. A
//! check therefore asks only for the status of the message's own job, and only the configured
//! origins.

use std::fmt;
use std::ops::{Deref, DerefMut};

use contract::{JobTaskId, without_key};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::config::StatusOrigins;

/// The longest URL, in bytes.
const LONGEST: usize = 4096;

/// A URL at a job service. It prints without the key of the job.
#[derive(Clone)]
pub(crate) struct JobUrl(Url);

impl Deref for JobUrl {
    type Target = Url;

    fn deref(&self) -> &Url {
        &self.0
    }
}

impl DerefMut for JobUrl {
    fn deref_mut(&mut self) -> &mut Url {
        &mut self.0
    }
}

impl fmt::Display for JobUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_key(self.as_str()))
    }
}

impl fmt::Debug for JobUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the URL to ask about the job of this job task id, or why it is not asked.
pub(crate) fn allowed_url(
    url: &str,
    job_task_id: Option<&str>,
    origins: &StatusOrigins,
) -> Result<JobUrl, String> {
    if url.len() > LONGEST {
        return Err(format!(
            "it has {} bytes; the limit is {LONGEST}",
            url.len()
        ));
    }
    let own = job_task_id
        .and_then(|id| JobTaskId::parse(id).ok())
        .ok_or("its message names no job")?;
    let url = Url::parse(url).map_err(|error| format!("it is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("it is {}, not http or https", url.scheme()));
    }
    let segments: Vec<&str> = url.path().split('/').collect();
    let [.., "partitions", partition, "jobs", job, "status"] = segments[..] else {
        return Err("its path does not end in /partitions/{id}/jobs/{id}/status".to_owned());
    };
    if !(names(partition, &own.partition) && names(job, &own.job)) {
        return Err(format!(
            "it asks about another job than {}:{}",
            own.partition, own.job
        ));
    }
    let origin = url.origin().ascii_serialization();
    if !origins.allow(&origin) {
        return Err(format!(
            "its origin {origin} is not among the configured ones ({origins}); add it to BATCHWRIGHT_STATUS_ORIGINS"
        ));
    }
    Ok(JobUrl(url))
}

/// Returns whether a segment of a path is this id, percent-encoded or not.
fn names(segment: &str, id: &str) -> bool {
    percent_decode_str(segment)
        .decode_utf8()
        .is_ok_and(|decoded| decoded == id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_asked(url: &str, id: &str) -> bool {
        allowed_url(url, Some(id), &StatusOrigins::default()).is_ok()
    }

    #[test]
    fn only_the_status_of_the_own_job_is_asked() {
        let long = format!(
            "http://h/{}/partitions/p/jobs/j/status",
            "x".repeat(LONGEST)
        );
        for (url, id, asked) in [
            ("http://h/partitions/p/jobs/j/status", "p:j", true),
            (
                "http://h:8080/job-service/v1/partitions/p/jobs/j/status?n=42",
                "p:j.1.2*",
                true,
            ),
            (
                "https://h/partitions/p/jobs/j/status#part",
                "p:j!42.1",
                true,
            ),
            ("http://h/partitions/default/jobs/j/status", "j.1", true),
            ("http://h/partitions/p/jobs/a%20b/status", "p:a b.1", true),
            ("http://h/partitions/p/jobs/a b/status", "p:a b", true),
            ("http://h/partitions/%c3%BC/jobs/%25/status", "ü:%", true),
            ("http://h/partitions/p/jobs/a%2Fb/status", "p:a/b", true),
            ("http://h/partitions/p/jobs/x/../j/status", "p:j", true),
            // Another job.
            ("http://h/partitions/p/jobs/other/status", "p:j", false),
            ("http://h/partitions/other/jobs/j/status", "p:j", false),
            ("http://h/partitions/p/jobs/J/status", "p:j", false),
            ("http://h/partitions/p/jobs/j+k/status", "p:j k", false),
            ("http://h/partitions/p/jobs/%FF/status", "p:\u{fffd}", false),
            // Another path.
            ("http://h/partitions/p/jobs/j", "p:j", false),
            ("http://h/partitions/p/jobs/j/status/", "p:j", false),
            ("http://h/partitions/p/jobs/j/status/..", "p:j", false),
            (
                "http://h/partitions/p/jobs/j/status/%2e%2e/cancel",
                "p:j",
                false,
            ),
            (
                "http://h/partitions/p/jobs/j/cancel?/partitions/p/jobs/j/status",
                "p:j",
                false,
            ),
            ("http://h/admin#/partitions/p/jobs/j/status", "p:j", false),
            ("http://h/partitions/p/jobs/j%2Fstatus", "p:j", false),
            ("http://h/jobs/j/isActive", "j", false),
            // No job, no URL, no HTTP.
            ("http://h/partitions/p/jobs/j/status", "p:", false),
            ("http://h/partitions/p/jobs//status", "p:", false),
            ("partitions/p/jobs/j/status", "p:j", false),
            ("file:///partitions/p/jobs/j/status", "p:j", false),
            ("", "p:j", false),
            (&long, "p:j", false),
        ] {
            assert_eq!(is_asked(url, id), asked, "{url} for {id}");
        }
        let url = "http://h/partitions/p/jobs/j/status";
        assert!(allowed_url(url, None, &StatusOrigins::default()).is_err());
    }

    #[test]
    fn with_configured_origins_no_other_is_asked() {
        let origins: StatusOrigins = "http://h:8080, https://safe".parse().unwrap();
        for (origin, allowed) in [
            ("http://h:8080", true),
            ("HTTP://H:8080", true),
            ("https://safe", true),
            ("https://safe:443", true),
            ("http://user@h:8080", true),
            ("http://h", false),
            ("http://h:8081", false),
            ("https://h:8080", false),
            ("http://safe", false),
            ("https://safe.example", false),
            ("http://h:8080@elsewhere", false),
        ] {
            let url = format!("{origin}/partitions/p/jobs/j/status");
            let decided = allowed_url(&url, Some("p:j"), &origins);
            assert_eq!(decided.is_ok(), allowed, "{origin}: {decided:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_url_is_no_other_path_is_asked(
            url in prop_oneof![
                any::<String>(),
                "(http|https|ftp|HTTP)?:?/{0,3}[a-z@:%]{0,6}(/|\\\\|\\.|%2e|%2F|[?#]|partitions|jobs|status|p|j|ü|\t){0,14}",
                "http://h/(p|\\.\\.|%2e%2e|/){0,5}/partitions/(p|%70|.)/jobs/(j|%6A|.)/status[/.?#]{0,2}",
            ],
            id in prop_oneof![Just("p:j.1".to_owned()), any::<String>()],
        ) {
            if let Ok(url) = allowed_url(&url, Some(&id), &StatusOrigins::default()) {
                let own = JobTaskId::parse(&id).unwrap();
                let decoded = |text: &str| {
                    percent_decode_str(text).decode_utf8().unwrap().into_owned()
                };
                let mut path = url.path().rsplit('/');
                prop_assert_eq!(path.next(), Some("status"));
                prop_assert_eq!(decoded(path.next().unwrap()), own.job);
                prop_assert_eq!(path.next(), Some("jobs"));
                prop_assert_eq!(decoded(path.next().unwrap()), own.partition);
                prop_assert_eq!(path.next(), Some("partitions"));
                prop_assert!(url.has_host());
            }
        }
    }
}
