//! Job types: definitions that build the first task of a job from a few parameters. An
//! administrator writes them; the service reads them once at start-up.
//!
//! Hides the languages of the definitions (YAML), of the parameter schemas (JSON Schema) and of the
//! scripts (jq, in [`script`]).
//!
//! What must stay true:
//! - An invalid definition fails the start-up. The error contains the file and the reason.
//! - An error response describes the client's parameters. It never reveals the configuration of a
//!   job type.
//! - No request waits for a script longer than the time limit. In processes ([`ScriptProcess`]), no
//!   script uses more memory than it may; on threads, scripts that do not end occupy at most
//!   [`MAX_RUNS`] for each job type.

mod script;
mod script_process;
mod secrets;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use contract::rest::{ErrorCode, JobTask};
use contract::{JobId, PartitionId};
use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, ValidationError, Validator};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::script::{Script, ScriptError};

pub use self::script_process::{ScriptProcess, limit_script, run_script};
use crate::http::error::{ApiError, ApiResult};

/// How long a request waits for the script of its job type, by default.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// How many requests may run the script of one job type concurrently.
const MAX_RUNS: usize = 4;
/// The maximum number of schema violations in one error response.
const MAX_VIOLATIONS: usize = 50;
/// The longest description of a schema violation, in characters.
const MAX_VIOLATION_CHARS: usize = 500;

/// The job types of a service, by id. The default has none. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobTypes {
    types: Arc<BTreeMap<String, Arc<JobType>>>,
    time_limit: Duration,
    process: Option<ScriptProcess>,
}

/// An error while loading the job types.
#[derive(Debug, thiserror::Error)]
pub enum JobTypesError {
    /// The folder of the definitions, or an entry of it, cannot be read.
    #[error("the folder {folder} of job type definitions cannot be read: {reason}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the file system.
        reason: std::io::Error,
    },
    /// A definition is invalid.
    #[error("the job type definition {file} is not valid: {reason}")]
    Invalid {
        /// The file of the definition.
        file: PathBuf,
        /// The error in the definition, with its position if known.
        reason: String,
    },
}

struct JobType {
    /// `configuration` in the input of the script.
    configuration: Value,
    /// `constants` in the input of the script.
    constants: Value,
    parameters: Validator,
    /// The schema of the parameters.
    schema: Value,
    script: Script,
    /// The text of the script.
    source: String,
    /// Limits the concurrent runs of the script.
    run_permits: Arc<Semaphore>,
}

/// A task that a job type built.
#[derive(Debug)]
pub struct MadeTask {
    pub task: JobTask,
    /// The task data as the script wrote it, a JSON object.
    pub data_json: String,
}

/// The YAML of a definition.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Definition {
    configuration_properties: Option<Vec<Property>>,
    job_parameters_schema: Option<Value>,
    constants: Option<BTreeMap<String, String>>,
    task_script: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Property {
    name: String,
    /// Accepted for readers of the definition; not used.
    #[serde(rename = "description")]
    _description: Option<String>,
}

impl Default for JobTypes {
    fn default() -> Self {
        Self {
            types: Arc::default(),
            time_limit: TIME_LIMIT,
            process: None,
        }
    }
}

impl JobTypes {
    /// Loads every `*.yaml` file directly in a folder. The file name without `.yaml` is the id of
    /// the job type. `lookup` returns the value of a configuration property, by its name in upper
    /// case.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be read or if any definition is invalid, for example
    /// because a configuration property has no value.
    pub fn load(
        folder: &Path,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, JobTypesError> {
        let unreadable = |reason| JobTypesError::Folder {
            folder: folder.to_owned(),
            reason,
        };
        let mut types = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            if file.extension().is_none_or(|extension| extension != "yaml") || !file.is_file() {
                continue;
            }
            let invalid = |reason: String| JobTypesError::Invalid {
                file: file.clone(),
                reason,
            };
            let id = file
                .file_stem()
                .and_then(|stem| stem.to_str())
                .ok_or_else(|| invalid("its name is not UTF-8".to_owned()))?;
            let text =
                std::fs::read_to_string(&file).map_err(|error| invalid(error.to_string()))?;
            types.insert(
                id.to_owned(),
                Arc::new(JobType::parse(&text, &lookup).map_err(invalid)?),
            );
        }
        Ok(Self {
            types: Arc::new(types),
            ..Self::default()
        })
    }

    /// Sets how long a request waits for a script. Default: 10 s.
    #[must_use]
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Runs each script in a process of its own, which limits its memory and ends with its request.
    /// By default scripts run in this process.
    #[must_use]
    pub fn in_processes(self, process: ScriptProcess) -> Self {
        Self {
            process: Some(process),
            ..self
        }
    }

    /// Returns the ids of the job types in alphabetical order.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(String::as_str)
    }

    /// Returns the JSON Schemas of the parameters, each with the id of its job type, in
    /// alphabetical order.
    pub(crate) fn schemas(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.types
            .iter()
            .map(|(id, job_type)| (id.as_str(), &job_type.schema))
    }

    /// Returns a request to create a job without the parameters that its job type marks as secret.
    /// If the job type is unknown, all of them are hidden.
    pub(crate) fn without_secrets(&self, request: Vec<u8>) -> Vec<u8> {
        let Ok(mut json) = serde_json::from_slice::<Value>(&request) else {
            return request;
        };
        let Some(id) = json.get("type").and_then(Value::as_str).map(str::to_owned) else {
            return request;
        };
        let Some(parameters) = json.get_mut("parameters") else {
            return request;
        };
        match self.types.get(&id) {
            Some(job_type) => secrets::hide(parameters, &job_type.schema),
            None => secrets::hide_all(parameters),
        }
        serde_json::to_vec(&json).unwrap_or_default()
    }

    /// Returns what the schema of a job type refuses of these parameters: the JSON pointer of each,
    /// and what is wrong with it.
    pub(crate) fn violations(&self, id: &str, parameters: &Value) -> Vec<(String, String)> {
        let describe = |violation: &ValidationError<'_>, text: &str| {
            let pointer = violation.instance_path().as_str().to_owned();
            match violation.kind() {
                ValidationErrorKind::Required {
                    property: Value::String(name),
                } => {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    (format!("{pointer}/{name}"), "This is required.".to_owned())
                }
                _ => (pointer, format!("{}.", cut(text))),
            }
        };
        let job_type = self.types.get(id);
        job_type.map_or_else(Vec::new, |it| it.violations(parameters, describe))
    }

    /// Builds the first task of a job.
    ///
    /// # Errors
    ///
    /// Returns 400 if the job type is unknown or the parameters are invalid, and 500 if the
    /// definition fails or is too slow.
    pub(crate) async fn make_task(
        &self,
        id: &str,
        partition: &PartitionId,
        job: &JobId,
        parameters: &RawValue,
    ) -> ApiResult<MadeTask> {
        let job_type = self.types.get(id).ok_or_else(|| {
            ApiError::bad_request(
                ErrorCode::UnknownJobType,
                format!("Unknown job type ID: {id}"),
            )
        })?;
        let failed = |reason: String| ApiError::JobType {
            id: id.to_owned(),
            reason,
        };
        job_type.check(parameters)?;
        let input = job_type
            .input(partition, job, parameters)
            .map_err(|error| failed(error.to_string()))?;
        let run = Arc::clone(job_type).run(input, self.process.as_ref());
        let run = tokio::time::timeout(self.time_limit, run);
        let outcome = run
            .await
            .map_err(|_| failed(format!("its script took longer than {:?}", self.time_limit)))?;
        match outcome {
            Ok(output) => made_task(&output)
                .map_err(|reason| failed(format!("its script built no valid task: {reason}"))),
            Err(ScriptError::Refused(reason)) => Err(ApiError::bad_request(
                ErrorCode::InvalidJobParameters,
                format!("{id}: error: {reason}"),
            )),
            Err(ScriptError::Failed(reason)) => Err(failed(format!("its script failed: {reason}"))),
        }
    }
}

impl JobType {
    fn parse(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        let definition: Definition = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| error.to_string())?;
        let mut configuration = BTreeMap::new();
        for Property { name, .. } in definition.configuration_properties.unwrap_or_default() {
            let variable = name.to_uppercase();
            let value = lookup(&variable)
                .ok_or_else(|| format!("the configuration property {name} has no value: the variable {variable} is not set"))?;
            configuration.insert(name, value);
        }
        let schema = definition
            .job_parameters_schema
            .unwrap_or_else(|| json!({"type": "null"}));
        let script = Script::compile(&definition.task_script)
            .map_err(|error| format!("taskScript:{error}"))?;
        Ok(Self {
            configuration: json!(configuration),
            constants: json!(definition.constants.unwrap_or_default()),
            parameters: validator(&schema)
                .map_err(|error| format!("jobParametersSchema: {error}"))?,
            schema,
            script,
            source: definition.task_script,
            run_permits: Arc::new(Semaphore::new(MAX_RUNS)),
        })
    }

    fn check(&self, parameters: &RawValue) -> ApiResult<()> {
        let parameters: Value = serde_json::from_str(parameters.get()).map_err(|error| {
            ApiError::bad_request(
                ErrorCode::InvalidJobParameters,
                format!("Invalid job parameters:\n{error}"),
            )
        })?;
        // Truncated because a violation quotes the invalid value.
        let line = |violation: &ValidationError<'_>, text: &str| {
            let path = violation.instance_path().as_str().replace('/', ".");
            cut(&format!("${path}: {text}"))
        };
        let violations = self.violations(&parameters, line);
        if violations.is_empty() {
            Ok(())
        } else {
            Err(ApiError::bad_request(
                ErrorCode::InvalidJobParameters,
                format!("Invalid job parameters:\n{}", violations.join("\n")),
            ))
        }
    }

    /// Describes what the schema refuses of these parameters. The text of a violation quotes the
    /// invalid value, unless there is a secret in it.
    fn violations<T>(
        &self,
        parameters: &Value,
        describe: impl Fn(&ValidationError<'_>, &str) -> T,
    ) -> Vec<T> {
        let found = self.parameters.iter_errors(parameters);
        let found: Vec<ValidationError<'_>> = found.take(MAX_VIOLATIONS).collect();
        if found.is_empty() {
            return Vec::new();
        }
        let mut shown = parameters.clone();
        secrets::hide(&mut shown, &self.schema);
        let described = found.iter().map(|violation| {
            let at = violation.instance_path().as_str();
            let text = if shown.pointer(at) == parameters.pointer(at) {
                violation.to_string()
            } else {
                violation.masked_with(secrets::HIDDEN).to_string()
            };
            describe(violation, &text)
        });
        described.collect()
    }

    fn input(
        &self,
        partition: &PartitionId,
        job: &JobId,
        parameters: &RawValue,
    ) -> serde_json::Result<Vec<u8>> {
        #[derive(serde::Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Input<'a> {
            configuration: &'a Value,
            constants: &'a Value,
            partition_id: &'a str,
            job_id: &'a str,
            parameters: &'a RawValue,
        }
        let (partition_id, job_id) = (partition.as_str(), job.as_str());
        serde_json::to_vec(&Input {
            configuration: &self.configuration,
            constants: &self.constants,
            partition_id,
            job_id,
            parameters,
        })
    }

    /// Runs the script, in a process if there is one, or else on a blocking thread. There, a script
    /// that does not end keeps its thread and its permit, even after the request has timed out.
    async fn run(
        self: Arc<Self>,
        input: Vec<u8>,
        process: Option<&ScriptProcess>,
    ) -> Result<String, ScriptError> {
        let stopped = |what: &str| ScriptError::Failed(what.to_owned());
        let permit = Arc::clone(&self.run_permits)
            .acquire_owned()
            .await
            .map_err(|_| stopped("it can no longer run"))?;
        if let Some(process) = process {
            return process.run(&self.source, &input).await;
        }
        let running = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            self.script.run(&input)
        });
        running
            .await
            .unwrap_or_else(|_| Err(stopped("it panicked")))
    }
}

/// Returns the beginning of a description.
fn cut(text: &str) -> String {
    text.chars().take(MAX_VIOLATION_CHARS).collect()
}

impl fmt::Debug for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration is left out because it may contain passwords.
        f.debug_struct("JobType").finish_non_exhaustive()
    }
}

/// Compiles a schema. Without `$schema` it is draft 4, as in CAF.
fn validator(schema: &Value) -> Result<Validator, String> {
    let has_draft = schema.get("$schema").is_some();
    let options = jsonschema::options();
    let options = if has_draft {
        options
    } else {
        options.with_draft(Draft::Draft4)
    };
    options
        .build(schema)
        .map_err(|error| format!("{error} (at #{})", error.instance_path()))
}

/// Parses the output of a script. It must have every required field of a task and no unknown
/// fields.
fn made_task(output: &str) -> Result<MadeTask, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Output<'a> {
        task_classifier: String,
        task_api_version: i32,
        #[serde(borrow)]
        task_data: &'a RawValue,
        task_pipe: String,
        target_pipe: Option<String>,
    }
    if !output.starts_with('{') {
        return Err("it is not an object".to_owned());
    }
    let made: Output<'_> = serde_json::from_str(output).map_err(|error| error.to_string())?;
    let data = made.task_data.get();
    for (invalid, reason) in [
        (made.task_classifier.is_empty(), "taskClassifier is empty"),
        (made.task_api_version < 1, "taskApiVersion is less than 1"),
        (!data.starts_with('{'), "taskData is not an object"),
        (made.task_pipe.is_empty(), "taskPipe is empty"),
        (
            made.target_pipe.as_deref() == Some(""),
            "targetPipe is empty",
        ),
    ] {
        if invalid {
            return Err(reason.to_owned());
        }
    }
    Ok(MadeTask {
        task: JobTask {
            task_classifier: Some(made.task_classifier),
            task_api_version: Some(made.task_api_version),
            task_data: Some(serde_json::from_str(data).map_err(|error| error.to_string())?),
            task_data_encoding: None,
            task_pipe: Some(made.task_pipe),
            target_pipe: made.target_pipe,
        },
        data_json: data.to_owned(),
    })
}
