//! The URLs of the pages. An id may contain nearly every character, so each is encoded.

use contract::JobTaskId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What is encoded in a segment of a path, and in a value of a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Encodes a text for a segment of a path, or for a value of a query.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Returns the path of the list of jobs of a partition.
pub fn jobs(partition: &str) -> String {
    format!("/partitions/{}/jobs", encode(partition))
}

/// Returns the path of the event stream of the jobs of a partition.
pub fn live_jobs(partition: &str) -> String {
    format!("/partitions/{}/live", encode(partition))
}

/// Returns the path of the list of sources of a partition.
pub fn sources(partition: &str) -> String {
    format!("/partitions/{}/sources", encode(partition))
}

/// Returns the path of a job.
pub fn job(partition: &str, job: &str) -> String {
    format!("{}/{}", jobs(partition), encode(job))
}

/// Returns the path of a task of a job.
pub fn task(partition: &str, job: &str, task: &str) -> String {
    format!("{}/tasks/{}", self::job(partition, job), encode(task))
}

/// Returns the path of the form for a new job.
pub fn submit(partition: &str) -> String {
    format!("/partitions/{}/submit", encode(partition))
}

/// Returns the path of what is done with several jobs.
pub fn bulk(partition: &str) -> String {
    format!("/partitions/{}/bulk", encode(partition))
}

/// Returns the path of a source of a partition.
pub fn source(partition: &str, source: &str) -> String {
    format!("{}/{}", sources(partition), encode(source))
}

/// Returns the path of a condition.
pub fn condition(key: &str) -> String {
    format!("/conditions/{}", encode(key))
}

/// Returns the URL of the page of a list that begins after an entry.
pub fn after(path: &str, after: &str) -> String {
    format!("{path}{}", query([("after", after)]))
}

/// Returns the URL of the dead letters that came from a pipe, or were found in it.
pub fn letters_of(pipe: &str) -> String {
    format!("/dead-letters{}", query([("pipe", pipe)]))
}

/// Returns the path of a pipe.
pub fn pipe(name: &str) -> String {
    format!("/pipes/{}", encode(name))
}

/// Returns the job and the path of the page of the task with this job task id; `None` if no job
/// tracks it.
pub fn of_task(job_task_id: &str) -> Option<(String, String)> {
    let task = JobTaskId::parse(job_task_id).ok()?;
    let steps: Vec<String> = task.steps.iter().map(|it| it.number.to_string()).collect();
    let steps = match steps.join(".") {
        own if own.is_empty() => "0".to_owned(),
        steps => steps,
    };
    let path = self::task(&task.partition, &task.job, &steps);
    Some((task.job, path))
}

/// Returns a query, with `?`, of those parameters that have a value; an empty text if none has.
pub fn query<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut query = String::new();
    for (name, value) in parameters {
        if !value.is_empty() {
            query.push(if query.is_empty() { '?' } else { '&' });
            query.push_str(name);
            query.push('=');
            query.push_str(&encode(value));
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_of_a_job_has_a_page() {
        let path = "/partitions/acme/jobs/reindex%207/tasks";
        for (id, task) in [
            ("acme:reindex 7!42r2.3.17*", "3.17"),
            ("acme:reindex 7", "0"),
        ] {
            assert_eq!(
                of_task(id),
                Some(("reindex 7".to_owned(), format!("{path}/{task}")))
            );
        }
        assert_eq!(of_task("acme:"), None);
    }

    #[test]
    fn ids_are_encoded_and_empty_parameters_left_out() {
        assert_eq!(
            job("a/b", "<ä> #1"),
            "/partitions/a%2Fb/jobs/%3C%C3%A4%3E%20%231"
        );
        let parameters = [("filter", "id==a&b"), ("sort", ""), ("offset", "25")];
        assert_eq!(query(parameters), "?filter=id%3D%3Da%26b&offset=25");
        assert_eq!(query([("a", "")]), "");
    }
}
