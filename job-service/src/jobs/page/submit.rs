//! A new job: its form, the request that it makes, and what has become of that.
//!
//! What must stay true: a form that is sent twice creates one job.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::{ErrorCode, JobTask, NewJob, OnFailure, Outputs};
use contract::{
    BatchTask, Explanation, InvalidPolicy, JobId, JobShare, PartitionId, TaskData, TaskTimeLimit,
};
use serde_json::Value;

use crate::html::fields::{Entry, Field, Kind};
use crate::html::{Layout, Place, filters, html, url};
use crate::http::correlation::CorrelationId;
use crate::http::form::{Fields, Problems, form_key, new_key, taken_key};
use crate::http::{ApiError, ApiResult, PartitionPath, RequestBody, Unknown};
use crate::jobs::page::parameters::{entered_parameters, field_of, parameter_fields};
use crate::jobs::submission::{Submission, Submitted, made_id};
use crate::options::PagePipes;
use crate::state::AppState;

/// The batch plugins of the batch worker: name, what it does, an example of a definition.
const PLUGINS: [(&str, &str, &str); 5] = [
    (
        "range",
        "An item for each number from the first to the last one, both included.",
        "1-1000",
    ),
    (
        "list",
        "An item for each value of a JSON array.",
        r#"["a", {"b": 1}]"#,
    ),
    (
        "glob",
        "An item for each file below the batch worker's root folder whose path matches.",
        r#"{"folder": "scans", "pattern": "**/*.tif"}"#,
    ),
    (
        "lines",
        "An item for every so many lines of text files below the batch worker's root folder.",
        r#"{"files": ["logs/a.txt"], "linesPerItem": 100}"#,
    ),
    (
        "records",
        "An item for each record of files: CSV, TSV, JSON lines, a JSON array, or lines.",
        r#"{"files": ["customers.csv"], "recordsPerItem": 1}"#,
    ),
];
/// Begins the kind of a job type.
const TYPE: &str = "type:";
/// The kind of a request that is written as JSON.
const JSON: &str = "json";

/// The form for a new job.
#[derive(Debug, Template)]
#[template(path = "submit.html")]
struct SubmitPage<'a> {
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
struct Request {
    json: String,
    curl: String,
    command: String,
}

impl Request {
    /// The request that creates this job. `api` is the URL of the API.
    fn new(api: &str, partition: &str, job: &str, body: &Value) -> Self {
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

/// `GET …/submit?kind=…`: the form.
pub async fn form(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let kinds = kinds(&state);
    let kind = chosen(&kinds, &fields)?;
    let common = common(&kind);
    let partition = partition.as_str();
    let page = SubmitPage::new(partition, &kinds, kind, common, None, None, new_key());
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/submit`: creates the job, or shows the request, or says what its batch would be split
/// into. What is wrong stands beside its field, or above the form, which keeps what was entered.
/// Two requests of one form create one job.
pub async fn act(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    body: RequestBody,
) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let kinds = kinds(&state);
    let kind = chosen(&kinds, &fields)?;
    let mut problems = Problems::default();
    let made = made(&state, &kind, &fields, &mut problems)?;
    let mut form = Form {
        key: fields.get("key").to_owned(),
        status: StatusCode::OK,
        problem: None,
    };
    let mut explained = None;
    let asks_for = format!("form {}", fields.get("id"));
    match &made {
        None => form.status = StatusCode::BAD_REQUEST,
        Some(_) if fields.get("do") == "show" => {}
        Some((_, request)) if fields.get("do") == "explain" => {
            let asked = request.to_string();
            let asked = state.explain(&partition, asked.as_bytes(), Unknown::default());
            match asked.await {
                Ok(explanation) => explained = Some(explanation),
                Err(error) => {
                    form.status = error.status();
                    form.problem = Some(error.message());
                }
            }
        }
        Some((job, request)) => {
            let submission = Submission {
                job: job.clone(),
                key: form_key(&fields, asks_for)?,
                replaces: None,
                body: request.to_string().into_bytes(),
                unknown: Unknown::default(),
                correlation_id,
                trace: None,
            };
            match state.submit(&partition, submission).await {
                Ok(submitted) => {
                    let job = match submitted {
                        Submitted::Created { job, .. } => job.job,
                        Submitted::Repeated(job) => job,
                        Submitted::AlreadyThere => job.clone(),
                    };
                    let job = url::job(partition.as_str(), job.as_str());
                    return Ok(Redirect::to(&job).into_response());
                }
                Err(error) if error.status().is_server_error() => return Err(error),
                Err(error) => {
                    let (key, problem) = taken_key(&fields, &error);
                    form = Form {
                        key,
                        status: error.status(),
                        problem: Some(problem),
                    };
                }
            }
        }
    }
    let is_explained = fields.get("do") == "explain";
    let request = made
        .filter(|_| !is_explained)
        .map(|(job, request)| shown(&state, &partition, &job, &request));
    let common = filled(common(&kind), &fields, &problems);
    let kind = Kind {
        fields: filled(kind.fields, &fields, &problems),
        ..kind
    };
    let problem = form
        .problem
        .or_else(|| problems.of_no_field(&kind.fields, &common));
    let partition = partition.as_str();
    let page = SubmitPage::new(partition, &kinds, kind, common, problem, request, form.key);
    Ok(html(form.status, &page.with_explained(explained)))
}

/// What a form is shown again with.
struct Form {
    key: String,
    status: StatusCode,
    problem: Option<String>,
}

/// Returns a request as it can be sent by other means.
fn shown(state: &AppState, partition: &PartitionId, job: &JobId, request: &Value) -> Request {
    let options = &state.options;
    let shown = options
        .job_types
        .without_secrets(request.to_string().into_bytes());
    let shown: Value = serde_json::from_slice(&shown).unwrap_or_default();
    let api = &options.webservice_url;
    Request::new(api, partition.as_str(), job.as_str(), &shown)
}

/// Returns what a job can be made of: the batch plugins, the job types, and JSON.
fn kinds(state: &AppState) -> Vec<Kind> {
    let PagePipes {
        batch,
        items,
        any_items,
        target,
    } = &state.options.page_pipes;
    let plugins = PLUGINS.iter().map(|(name, about, example)| Kind {
        name: (*name).to_owned(),
        title: (*name).to_owned(),
        about: (*about).to_owned(),
        fields: vec![
            Field::new("definition", "Definition", "What the plugin splits.")
                .example(example)
                .entry(Entry::Text),
            Field::new("itemPipe", "Pipe of the items", "The input of the worker that handles them.")
                .value(if *name == "lines" { items } else { any_items }),
            Field::new("itemType", "Type of the items", "The classifier that their worker expects; by default the plugin's own.")
                .optional(),
            Field::new("params", "Parameters of every item", "One NAME=VALUE on each line.")
                .optional()
                .entry(Entry::Text),
            Field::new("outputs", "Outputs", "Where the worker's outputs go: to a pipe, or kept by the service; `none` if it sends none.")
                .entry(Entry::Choice(["pipe", "keep", "none"].map(str::to_owned).into()))
                .value("pipe"),
            Field::new("targetPipe", "Pipe of the outputs", "Where an item counts as done, if its output goes to a pipe.")
                .value(target)
                .optional(),
            Field::new("taskPipe", "Pipe of the batch worker", "").value(batch),
        ],
    });
    let types = &state.options.job_types;
    let types = types.schemas().map(|(id, schema)| Kind {
        name: format!("{TYPE}{id}"),
        title: id.to_owned(),
        about: schema["description"]
            .as_str()
            .unwrap_or("A job type of this service.")
            .to_owned(),
        fields: parameter_fields(schema),
    });
    let raw = Kind {
        name: JSON.to_owned(),
        title: "JSON".to_owned(),
        about: "The request as the API takes it.".to_owned(),
        fields: vec![
            Field::new("json", "Request", "The body of `PUT …/jobs/{id}`; the API describes it.")
                .entry(Entry::Text)
                .example(r#"{"task": {"taskClassifier": "…", "taskApiVersion": 1, "taskData": {}, "taskPipe": "…"}}"#),
        ],
    };
    plugins.chain(types).chain([raw]).collect()
}

/// Returns the fields that all jobs have.
fn common(kind: &Kind) -> Vec<Field> {
    let id = Field::new("id", "Id of the job", "By default a new one is made.").optional();
    if kind.name == JSON {
        return vec![id];
    }
    vec![
        id,
        Field::new("name", "Name", "What a viewer reads beside the id.").optional(),
        Field::new("labels", "Labels", "One NAME=VALUE on each line.")
            .optional()
            .entry(Entry::Text)
            .example("team=search"),
        Field::new(
            "onFailure",
            "After a failure",
            "`stop` fails the job at the first task that fails; `continue` goes on with the others.",
        )
        .entry(Entry::Choice(
            ["stop", "continue"].map(str::to_owned).into(),
        ))
        .value("stop"),
        Field::new(
            "taskTimeLimit",
            "Seconds for a task",
            "An attempt at a task that takes longer has failed, and the task runs again. By default only the worker's own limit holds.",
        )
        .optional(),
        Field::new(
            "retry",
            "Retries",
            "When failed tasks run again: a preset or a policy. By default as their workers are set.",
        )
        .optional()
        .example("jobweaver,attempts=5"),
        Field::new(
            "share",
            "Share",
            "The weight beside the other jobs of the partition, from 1 to 1000. By default 100.",
        )
        .optional(),
    ]
}

/// Returns the fields with what was entered, and with what is wrong with it.
fn filled(fields: Vec<Field>, entered: &Fields, problems: &Problems) -> Vec<Field> {
    let fill = |field: Field| {
        let problem = problems.of(&field.name);
        let field = Field { problem, ..field };
        if field.entry == Entry::Secret {
            return field;
        }
        let value = entered.get(&field.name).to_owned();
        field.value(&value)
    };
    fields.into_iter().map(fill).collect()
}

fn chosen(kinds: &[Kind], fields: &Fields) -> ApiResult<Kind> {
    let name = fields.get("kind");
    let found = kinds
        .iter()
        .find(|kind| name.is_empty() || kind.name == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
        invalid(format!(
            "There is no kind of job '{name}'; there are {}.",
            names.join(", ")
        ))
    })
}

/// Returns the id of the job and the request that the fields make. If something is wrong with them,
/// it is in `problems`, and there is no request.
fn made(
    state: &AppState,
    kind: &Kind,
    fields: &Fields,
    problems: &mut Problems,
) -> ApiResult<Option<(JobId, Value)>> {
    let id = match fields.get("id") {
        "" => Some(made_id()?),
        id => problems.take("id", JobId::parse(id).map_err(|error| error.to_string())),
    };
    let job_type = kind.name.strip_prefix(TYPE);
    // The schema of a job type says itself what is required.
    for field in kind.fields.iter().filter(|_| job_type.is_none()) {
        if field.required && fields.get(&field.name).trim().is_empty() {
            problems.add(&field.name, "This is required.".to_owned());
        }
    }
    let request = if kind.name == JSON {
        let json = fields.get("json");
        let parsed = || {
            let error = |error| format!("This is not JSON: {error}.");
            serde_json::from_str::<Value>(json).map_err(error)
        };
        if json.trim().is_empty() {
            None
        } else {
            problems.take("json", parsed())
        }
    } else {
        let labels = pairs("labels", fields, problems);
        let labels = labels.into_iter().map(|(name, value)| (name, Some(value)));
        let labels: BTreeMap<String, Option<String>> = labels.collect();
        let limit = some(fields.get("taskTimeLimit")).and_then(|limit| {
            let parsed = limit.trim().parse::<TaskTimeLimit>();
            problems.take("taskTimeLimit", parsed.map_err(|error| format!("{error}.")))
        });
        let retry = Some(fields.get("retry").trim()).filter(|text| !text.is_empty());
        let retry = retry.map(|text| {
            text.parse()
                .map_err(|error: InvalidPolicy| error.to_string())
        });
        let share = some(fields.get("share")).and_then(|share| {
            let parsed = share.trim().parse::<JobShare>();
            problems.take("share", parsed.map_err(|error| format!("{error}.")))
        });
        let job = NewJob {
            share,
            task_time_limit: limit,
            retry: retry.and_then(|policy| problems.take("retry", policy)),
            name: some(fields.get("name")),
            labels: (!labels.is_empty()).then_some(labels),
            on_failure: if fields.get("onFailure") == "continue" {
                OnFailure::Continue
            } else {
                OnFailure::Stop
            },
            ..NewJob::default()
        };
        let job = match job_type {
            Some(id) => NewJob {
                job_type: Some(id.to_owned()),
                parameters: Some(checked_parameters(state, id, fields, problems)),
                ..job
            },
            None => batch(kind, fields, job, problems)?,
        };
        Some(serde_json::to_value(job).map_err(|error| ApiError::Bug(error.to_string()))?)
    };
    Ok(id.zip(request).filter(|_| problems.is_empty()))
}

/// Returns the parameters of a job type, and notes what its schema refuses.
fn checked_parameters(
    state: &AppState,
    id: &str,
    fields: &Fields,
    problems: &mut Problems,
) -> Value {
    let types = &state.options.job_types;
    let schema = types.schemas().find(|(known, _)| *known == id);
    let schema = schema.map_or(&Value::Null, |(_, schema)| schema);
    let parameters = entered_parameters(schema, fields, problems);
    for (pointer, problem) in types.violations(id, &parameters) {
        let field = field_of(schema, &pointer).unwrap_or_default();
        // What cannot be read is missing, too.
        if field.is_empty() || problems.of(&field).is_none() {
            problems.add(&field, problem);
        }
    }
    parameters
}

/// Returns a job of a batch plugin.
fn batch(kind: &Kind, fields: &Fields, job: NewJob, problems: &mut Problems) -> ApiResult<NewJob> {
    let params = pairs("params", fields, problems);
    let batch = BatchTask {
        batch_definition: some(fields.get("definition").trim()),
        batch_type: Some(kind.name.clone()),
        task_message_type: some(fields.get("itemType")),
        task_message_params: (!params.is_empty()).then_some(params),
        target_pipe: some(fields.get("itemPipe")),
    };
    let outputs = fields.get("outputs");
    if outputs == "pipe" && fields.get("targetPipe").is_empty() {
        let problem = "Name the pipe, or choose another place for the outputs.";
        problems.add("targetPipe", problem.to_owned());
    }
    let mut data = serde_json::to_value(batch).map_err(|error| ApiError::Bug(error.to_string()))?;
    if let Some(data) = data.as_object_mut() {
        data.retain(|_, value| !value.is_null());
    }
    Ok(NewJob {
        task: Some(JobTask {
            task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
            task_api_version: Some(BatchTask::API_VERSION),
            task_data: Some(data),
            task_data_encoding: None,
            task_pipe: some(fields.get("taskPipe")),
            target_pipe: some(fields.get("targetPipe")).filter(|_| outputs == "pipe"),
        }),
        outputs: (outputs == "keep").then_some(Outputs::Keep),
        ..job
    })
}

/// Reads one `NAME=VALUE` from each line.
fn pairs(name: &str, fields: &Fields, problems: &mut Problems) -> BTreeMap<String, String> {
    let lines = fields.get(name).lines().map(str::trim);
    let mut pairs = BTreeMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        if let Some((key, value)) = line.split_once('=') {
            pairs.insert(key.to_owned(), value.to_owned());
        } else {
            problems.add(name, format!("The line '{line}' is not NAME=VALUE."));
        }
    }
    pairs
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn invalid(message: String) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidRequest, message)
}

impl<'a> SubmitPage<'a> {
    /// The form of one of these kinds, with the fields that all jobs have, and the request that it
    /// makes. `problem` is what is wrong with what was entered, beside what the fields say; `key`
    /// makes that two requests of the form create one job.
    fn new(
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
    fn with_explained(self, explained: Option<Explanation>) -> Self {
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
