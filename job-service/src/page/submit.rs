//! A new job: its form, the request that it makes, and what has become of that.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::{ErrorCode, JobTask, NewJob, OnFailure, Outputs};
use contract::{BatchTask, JobId, TaskData};
use page::{Entry, Field, Kind, Request, SubmitPage, url};
use serde_json::{Map, Value, json};

use super::form::Fields;
use crate::correlation::CorrelationId;
use crate::error::{ApiError, ApiResult};
use crate::extract::PartitionPath;
use crate::html::html;
use crate::notes::Unknown;
use crate::options::PagePipes;
use crate::request_body::RequestBody;
use crate::state::AppState;
use crate::submission::{Submission, made_id};

/// The batch plugins of the batch worker: name, what it does, an example of a definition.
const PLUGINS: [(&str, &str, &str); 4] = [
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
];
/// Begins the kind of a job type.
const TYPE: &str = "type:";
/// The kind of a request that is written as JSON.
const JSON: &str = "json";
/// Begins the field of a parameter of a job type.
const PARAMETER: &str = "parameter:";

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
    let page = SubmitPage::new(partition.as_str(), &kinds, kind, common, None, None);
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/submit`: creates the job, or shows the request. What is wrong with it stands above the form, which keeps what was entered.
pub async fn act(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    Extension(CorrelationId(correlation_id)): Extension<CorrelationId>,
    body: RequestBody,
) -> ApiResult<Response> {
    let fields = Fields::of_body(body).await?;
    let kinds = kinds(&state);
    let kind = chosen(&kinds, &fields)?;
    let made = made(&state, &kind, &fields);
    let only_asks = fields.get("do") == "show";
    let outcome = match &made {
        Ok(_) if only_asks => Ok(None),
        Ok((job, request)) => {
            let body = request.to_string().into_bytes();
            let submission = Submission {
                job: job.clone(),
                key: None,
                replaces: None,
                body,
                unknown: Unknown::default(),
                correlation_id,
                trace: None,
            };
            state.submit(&partition, submission).await.map(Some)
        }
        Err(error) => Err(invalid(error.message())),
    };
    let (status, problem) = match outcome {
        Ok(Some(_)) => {
            let (job, _) = made?;
            let job = url::job(partition.as_str(), job.as_str());
            return Ok(Redirect::to(&job).into_response());
        }
        Ok(None) => (StatusCode::OK, None),
        Err(error) if error.status().is_server_error() => return Err(error),
        Err(error) => (error.status(), Some(error.message())),
    };
    let request = made.ok().map(|(job, request)| {
        let api = &state.options.webservice_url;
        let shown = state
            .options
            .job_types
            .without_secrets(request.to_string().into_bytes());
        let shown: Value = serde_json::from_slice(&shown).unwrap_or_default();
        Request::new(api, partition.as_str(), job.as_str(), &shown)
    });
    let common = filled(common(&kind), &fields);
    let kind = Kind {
        fields: filled(kind.fields, &fields),
        ..kind
    };
    let page = SubmitPage::new(partition.as_str(), &kinds, kind, common, problem, request);
    Ok(html(status, &page))
}

/// Returns what a job can be made of: the batch plugins, the job types, and JSON.
fn kinds(state: &AppState) -> Vec<Kind> {
    let PagePipes {
        batch,
        items,
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
                .value(items),
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
        fields: parameters(schema),
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

/// Returns a field for each parameter in the schema of a job type: of a simple one a line or a choice, of others JSON.
fn parameters(schema: &Value) -> Vec<Field> {
    let Some(properties) = schema["properties"].as_object() else {
        let any = Field::new("parameters", "Parameters", "As JSON.");
        let takes_none = schema["type"] == "null";
        return if takes_none {
            Vec::new()
        } else {
            vec![any.entry(Entry::Text)]
        };
    };
    let required = |name: &str| {
        let required = schema["required"].as_array();
        required.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let field = |(name, property): (&String, &Value)| {
        let about = property["description"].as_str().unwrap_or_default();
        let title = property["title"].as_str().unwrap_or(name);
        let field = Field::new(&format!("{PARAMETER}{name}"), title, about);
        let value = match &property["default"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let choices = |choices: &[Value]| {
            let texts = choices.iter().map(|choice| match choice {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            let none = (!required(name)).then(String::new);
            Entry::Choice(none.into_iter().chain(texts).collect())
        };
        let entry = match (property["enum"].as_array(), property["type"].as_str()) {
            (Some(values), _) => choices(values),
            (None, Some("boolean")) => choices(&[json!(true), json!(false)]),
            (None, Some("integer" | "number")) => Entry::Number,
            (None, Some("string")) => Entry::Line,
            (None, _) => Entry::Text,
        };
        let entry = if property["writeOnly"] == true {
            Entry::Secret
        } else {
            entry
        };
        let field = field.value(&value).entry(entry);
        if required(name) {
            field
        } else {
            field.optional()
        }
    };
    properties.iter().map(field).collect()
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
    ]
}

/// Returns the fields with what was entered.
fn filled(fields: Vec<Field>, entered: &Fields) -> Vec<Field> {
    let fill = |field: Field| {
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

/// Returns the id of the job and the request that the fields make.
fn made(state: &AppState, kind: &Kind, fields: &Fields) -> ApiResult<(JobId, Value)> {
    let id = match fields.get("id") {
        "" => made_id()?,
        id => JobId::parse(id)?,
    };
    if kind.name == JSON {
        return Ok((id, parsed("request", fields.get("json"))?));
    }
    let labels = pairs("labels", fields.get("labels"))?;
    let labels = labels.into_iter().map(|(name, value)| (name, Some(value)));
    let labels: BTreeMap<String, Option<String>> = labels.collect();
    let job = NewJob {
        name: some(fields.get("name")),
        labels: (!labels.is_empty()).then_some(labels),
        on_failure: if fields.get("onFailure") == "continue" {
            OnFailure::Continue
        } else {
            OnFailure::Stop
        },
        ..NewJob::default()
    };
    let job = match kind.name.strip_prefix(TYPE) {
        Some(id) => NewJob {
            job_type: Some(id.to_owned()),
            parameters: Some(entered_parameters(state, id, fields)?),
            ..job
        },
        None => batch(kind, fields, job)?,
    };
    let request = serde_json::to_value(job).map_err(|error| ApiError::Bug(error.to_string()))?;
    Ok((id, request))
}

/// Returns a job of a batch plugin.
fn batch(kind: &Kind, fields: &Fields, job: NewJob) -> ApiResult<NewJob> {
    let params = pairs("params", fields.get("params"))?;
    let batch = BatchTask {
        batch_definition: some(fields.get("definition").trim()),
        batch_type: Some(kind.name.clone()),
        task_message_type: some(fields.get("itemType")),
        task_message_params: (!params.is_empty()).then_some(params),
        target_pipe: some(fields.get("itemPipe")),
    };
    let outputs = fields.get("outputs");
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

/// Returns the parameters of a job type. A text stays a text where the schema wants one; anything else is JSON.
fn entered_parameters(state: &AppState, id: &str, fields: &Fields) -> ApiResult<Value> {
    let found = state
        .options
        .job_types
        .schemas()
        .find(|(known, _)| *known == id);
    let schema = found.map_or(&Value::Null, |(_, schema)| schema);
    let Some(properties) = schema["properties"].as_object() else {
        return match fields.get("parameters") {
            "" => Ok(Value::Null),
            text => parsed("parameters", text),
        };
    };
    let mut parameters = Map::new();
    for (name, property) in properties {
        let text = fields.get(&format!("{PARAMETER}{name}")).to_owned();
        if text.is_empty() {
            continue;
        }
        let is_text = property["type"] == "string"
            || property["enum"]
                .as_array()
                .is_some_and(|values| values.contains(&json!(text)));
        let value = if is_text {
            json!(text)
        } else {
            parsed(name, &text)?
        };
        parameters.insert(name.clone(), value);
    }
    Ok(Value::Object(parameters))
}

fn parsed(what: &str, text: &str) -> ApiResult<Value> {
    serde_json::from_str(text)
        .map_err(|error| invalid(format!("The field '{what}' is not JSON: {error}.")))
}

/// Reads one `NAME=VALUE` from each line.
fn pairs(what: &str, text: &str) -> ApiResult<BTreeMap<String, String>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').ok_or_else(|| {
                invalid(format!(
                    "The field '{what}' has the line '{line}'; expected NAME=VALUE."
                ))
            })?;
            Ok((name.to_owned(), value.to_owned()))
        })
        .collect()
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn invalid(message: String) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidRequest, message)
}
