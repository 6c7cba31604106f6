//! Job types: what makes the first task of a job from a few parameters. Definitions of the administrator, read once at start.
//!
//! Hides the language of the definitions (YAML), of the checks (JSON Schema) and of the scripts ([`script`]).
//!
//! What must stay true:
//! - A definition with any flaw stops the start, by its file and the reason: nobody meets it later.
//! - A client is told what is wrong with its parameters, and nothing that a definition got from the environment.
//! - A script that does not end keeps at most [`RUNS`] threads, and nobody waits for it longer than the limit.

mod script;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use contract::rest::JobTask;
use contract::{JobId, PartitionId};
use jsonschema::{Draft, Validator};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::script::{Script, ScriptError};
use crate::error::{ApiError, ApiResult};

/// How long a request waits for the script of its job type.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// How many requests run the script of one job type at the same time.
const RUNS: usize = 4;
/// How many flaws of its parameters a client is told at once, and how much of each.
const MAX_FLAWS: usize = 50;
const MAX_FLAW_CHARS: usize = 500;

/// The job types of a service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobTypes {
    types: Arc<BTreeMap<String, Arc<JobType>>>,
    time_limit: Duration,
}

/// Why the job types cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JobTypesError {
    #[error("the folder {folder} of job type definitions cannot be read: {reason}")]
    Folder {
        folder: PathBuf,
        reason: std::io::Error,
    },
    #[error("the job type definition {file} is not valid: {reason}")]
    Invalid { file: PathBuf, reason: String },
}

struct JobType {
    /// The members of the script's input that are the same for every job.
    configuration: Value,
    constants: Value,
    parameters: Validator,
    script: Script,
    runs: Arc<Semaphore>,
}

/// A task that a job type has made.
#[derive(Debug)]
pub struct MadeTask {
    pub task: JobTask,
    /// The task data as the script wrote it.
    pub data_text: String,
}

/// A definition as it is written.
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
    /// For people.
    #[serde(rename = "description")]
    _description: Option<String>,
}

impl Default for JobTypes {
    fn default() -> Self {
        Self {
            types: Arc::default(),
            time_limit: TIME_LIMIT,
        }
    }
}

impl JobTypes {
    /// Reads every `*.yaml` directly in a folder; the name of the file, less `.yaml`, is the id of the type. `lookup` answers
    /// configuration properties, which are named in upper case.
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

    /// With another limit to how long a request waits for a script (10 s when not given).
    #[must_use]
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// The ids of the types, in order.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(String::as_str)
    }

    /// Makes the first task of a job of this type.
    pub(crate) async fn make_task(
        &self,
        id: &str,
        partition: &PartitionId,
        job: &JobId,
        parameters: &RawValue,
    ) -> ApiResult<MadeTask> {
        let job_type = self
            .types
            .get(id)
            .ok_or_else(|| ApiError::bad_request(format!("Unknown job type ID: {id}")))?;
        let failed = |reason: String| ApiError::JobType {
            id: id.to_owned(),
            reason,
        };
        job_type.check(parameters)?;
        let input = job_type
            .input(partition, job, parameters)
            .map_err(|error| failed(error.to_string()))?;
        let run = tokio::time::timeout(self.time_limit, Arc::clone(job_type).run(input));
        let outcome = run
            .await
            .map_err(|_| failed(format!("its script took longer than {:?}", self.time_limit)))?;
        match outcome {
            Ok(output) => made_task(&output)
                .map_err(|reason| failed(format!("its script made no task: {reason}"))),
            Err(ScriptError::Refused(reason)) => {
                Err(ApiError::bad_request(format!("{id}: error: {reason}")))
            }
            Err(ScriptError::Failed(reason)) => {
                Err(failed(format!("its script has failed: {reason}")))
            }
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
            .map_err(|flaw| format!("taskScript:{flaw}"))?;
        Ok(Self {
            configuration: json!(configuration),
            constants: json!(definition.constants.unwrap_or_default()),
            parameters: validator(&schema)
                .map_err(|flaw| format!("jobParametersSchema: {flaw}"))?,
            script,
            runs: Arc::new(Semaphore::new(RUNS)),
        })
    }

    fn check(&self, parameters: &RawValue) -> ApiResult<()> {
        let parameters: Value = serde_json::from_str(parameters.get())
            .map_err(|error| ApiError::bad_request(format!("Invalid job parameters:\n{error}")))?;
        // Bounded, because each flaw quotes what is wrong.
        let line = |flaw: jsonschema::ValidationError<'_>| {
            let text = format!(
                "${}: {flaw}",
                flaw.instance_path().as_str().replace('/', ".")
            );
            text.chars().take(MAX_FLAW_CHARS).collect::<String>()
        };
        let flaws: Vec<String> = self
            .parameters
            .iter_errors(&parameters)
            .take(MAX_FLAWS)
            .map(line)
            .collect();
        if flaws.is_empty() {
            Ok(())
        } else {
            Err(ApiError::bad_request(format!(
                "Invalid job parameters:\n{}",
                flaws.join("\n")
            )))
        }
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

    /// Runs the script on a thread that it may keep for as long as it likes.
    async fn run(self: Arc<Self>, input: Vec<u8>) -> Result<String, ScriptError> {
        let stopped = |what: &str| ScriptError::Failed(what.to_owned());
        let run = Arc::clone(&self.runs)
            .acquire_owned()
            .await
            .map_err(|_| stopped("it is not run any more"))?;
        let running = tokio::task::spawn_blocking(move || {
            let _run = run;
            self.script.run(&input)
        });
        running
            .await
            .unwrap_or_else(|_| Err(stopped("it has panicked")))
    }
}

impl fmt::Debug for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the configuration: there may be passwords in it.
        f.debug_struct("JobType").finish_non_exhaustive()
    }
}

/// Draft 4 where the schema does not say otherwise, as CAF has it.
fn validator(schema: &Value) -> Result<Validator, String> {
    let named = schema.get("$schema").is_some();
    let options = jsonschema::options();
    let options = if named {
        options
    } else {
        options.with_draft(Draft::Draft4)
    };
    options
        .build(schema)
        .map_err(|flaw| format!("{flaw} (at #{})", flaw.instance_path()))
}

/// The task in the output of a script, which must be complete and have nothing else.
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
    for (flawed, flaw) in [
        (made.task_classifier.is_empty(), "taskClassifier is empty"),
        (made.task_api_version < 1, "taskApiVersion is less than 1"),
        (!data.starts_with('{'), "taskData is not an object"),
        (made.task_pipe.is_empty(), "taskPipe is empty"),
        (
            made.target_pipe.as_deref() == Some(""),
            "targetPipe is empty",
        ),
    ] {
        if flawed {
            return Err(flaw.to_owned());
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
        data_text: data.to_owned(),
    })
}
