//! A new job: a form for each batch plugin, for each job type, and for a request as JSON.

use askama::Template;
use contract::Explanation;
use serde_json::Value;

use crate::layout::{Layout, Place};
use crate::{filters, url};

/// What a job is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// The name in URLs, such as `range` or `type:thumbnails`.
    pub name: String,
    /// The name that a viewer reads.
    pub title: String,
    /// What it does, in a sentence.
    pub about: String,
    /// What is asked for, beside what all jobs have.
    pub fields: Vec<Field>,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The name in the form.
    pub name: String,
    /// What the viewer reads.
    pub title: String,
    /// What to write there.
    pub about: String,
    /// The value at the beginning.
    pub value: String,
    /// An example of a value.
    pub example: String,
    /// How it is entered.
    pub entry: Entry,
    /// Whether a value must be there.
    pub required: bool,
    /// What is wrong with what was entered.
    pub problem: Option<String>,
}

/// How a value is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A line.
    Line,
    /// A number.
    Number,
    /// A whole number.
    Integer,
    /// A line that is not shown.
    Secret,
    /// Several lines.
    Text,
    /// One of these; an empty one where none needs to be chosen.
    Choice(Vec<String>),
}

impl Field {
    /// A field for a line of text that must be there.
    pub fn new(name: &str, title: &str, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            about: about.to_owned(),
            value: String::new(),
            example: String::new(),
            entry: Entry::Line,
            required: true,
            problem: None,
        }
    }

    /// The same for a field that may be empty.
    #[must_use]
    pub fn optional(self) -> Self {
        Self {
            required: false,
            ..self
        }
    }

    /// The same with an example.
    #[must_use]
    pub fn example(self, example: &str) -> Self {
        Self {
            example: example.to_owned(),
            ..self
        }
    }

    /// The same with a value.
    #[must_use]
    pub fn value(self, value: &str) -> Self {
        Self {
            value: value.to_owned(),
            ..self
        }
    }

    /// The same with another entry.
    #[must_use]
    pub fn entry(self, entry: Entry) -> Self {
        Self { entry, ..self }
    }

    fn is_text(&self) -> bool {
        self.entry == Entry::Text
    }

    /// Returns the id of the problem in the page. A name may contain spaces.
    fn problem_id(&self) -> String {
        format!("problem-{}", url::encode(&self.name))
    }

    fn step(&self) -> &'static str {
        match self.entry {
            Entry::Integer => "1",
            _ => "any",
        }
    }

    fn input_type(&self) -> &'static str {
        match self.entry {
            Entry::Number | Entry::Integer => "number",
            Entry::Secret => "password",
            Entry::Line | Entry::Text | Entry::Choice(_) => "text",
        }
    }

    fn choices(&self) -> Option<&[String]> {
        match &self.entry {
            Entry::Choice(choices) => Some(choices),
            _ => None,
        }
    }
}

/// The form for a new job.
#[derive(Debug, Template)]
#[template(path = "submit.html")]
pub struct SubmitPage<'a> {
    layout: Layout,
    partition: &'a str,
    kinds: &'a [Kind],
    kind: Kind,
    common: Vec<Field>,
    problem: Option<String>,
    request: Option<Request>,
    /// What a batch would be split into.
    explained: Option<Explanation>,
    key: String,
}

/// A request, as it can be sent by other means.
#[derive(Debug)]
pub struct Request {
    json: String,
    curl: String,
    command: String,
}

impl Request {
    /// The request that creates this job. `api` is the URL of the API.
    pub fn new(api: &str, partition: &str, job: &str, body: &Value) -> Self {
        let json = serde_json::to_string_pretty(body).unwrap_or_default();
        let target = format!("{api}{}", url::job(partition, job));
        Self {
            curl: format!(
                "curl -X PUT {} -H 'Content-Type: application/json' -d {}",
                quoted(&target),
                quoted(&body.to_string())
            ),
            command: format!(
                "batchwright submit {} --url {} --partition {} --file - <<'END'\n{json}\nEND",
                quoted(job),
                quoted(api),
                quoted(partition)
            ),
            json,
        }
    }
}

impl<'a> SubmitPage<'a> {
    /// The form of one of these kinds, with the fields that all jobs have, and the request that it
    /// makes. `problem` is what is wrong with what was entered, beside what the fields say; `key`
    /// makes that two requests of the form create one job.
    pub fn new(
        partition: &'a str,
        kinds: &'a [Kind],
        kind: Kind,
        common: Vec<Field>,
        problem: Option<String>,
        request: Option<Request>,
        key: String,
    ) -> Self {
        let fields = kind.fields.iter().chain(&common);
        let wrong: Vec<&str> = fields
            .filter(|field| field.problem.is_some())
            .map(|field| field.title.as_str())
            .collect();
        let correct = || {
            format!(
                "Nothing was created. Correct what you entered: {}.",
                wrong.join(", ")
            )
        };
        let problem = problem.or_else(|| (!wrong.is_empty()).then(correct));
        Self {
            layout: Layout {
                place: Place::Submit,
                ..Layout::of_jobs(format!("New job in {partition}"), partition)
            },
            partition,
            kinds,
            kind,
            common,
            problem,
            request,
            explained: None,
            key,
        }
    }

    /// The same with what the batch would be split into.
    #[must_use]
    pub fn with_explained(self, explained: Option<Explanation>) -> Self {
        Self { explained, ..self }
    }

    /// Returns the URL of the form of a kind.
    fn link(&self, kind: &Kind) -> String {
        let query = url::query([("kind", kind.name.as_str())]);
        format!("{}{query}", url::submit(self.partition))
    }
}

/// Returns what stands before the numbers of an explanation.
const fn at_least(explained: &Explanation) -> &'static str {
    if explained.exact { "" } else { "at least " }
}

/// Returns a text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_is_shown_as_curl_and_as_a_command_that_a_shell_reads_as_one() {
        let body = json!({"name": "it's"});
        let request = Request::new("http://h:1/job-service/v1", "a b", "j'1", &body);
        assert_eq!(
            request.curl,
            r#"curl -X PUT http://h:1/job-service/v1/partitions/a%20b/jobs/j%271 -H 'Content-Type: application/json' -d '{"name":"it'\''s"}'"#
        );
        assert_eq!(
            request.command,
            "batchwright submit 'j'\\''1' --url http://h:1/job-service/v1 --partition 'a b' --file - <<'END'\n{\n  \"name\": \"it's\"\n}\nEND"
        );
        assert_eq!(quoted(""), "''");
    }
}
