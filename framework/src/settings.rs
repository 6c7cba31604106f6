//! How a worker process is set up. Read from the environment once, in [`crate::Runtime::from_env`].

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use crate::variables::{Caf, Found, Variables};
use crate::{RetryPolicy, Route};

/// Tasks of a worker that run at the same time, when nothing is said.
const CONCURRENCY: u32 = 8;

/// Everything about a worker that is not its code.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the worker in messages, logs and metrics, e.g. `worker-example`.
    pub name: String,
    /// Its version in messages.
    pub version: String,
    /// The key of this service's notes in the context of a message.
    pub service_path: String,
    /// The pipe that the worker serves.
    pub input: String,
    /// The pipe for its results, failures included. A worker without output needs none.
    pub output: Option<String>,
    /// The pipe for bodies that cannot be understood.
    pub invalid: String,
    /// The pipe for copies of tasks that were given up.
    pub reject: String,
    /// The pipe for tasks of paused jobs, where the job service takes them; without one they are executed.
    pub paused: Option<String>,
    /// How tracked outputs travel.
    pub route: Route,
    /// Whether an output that goes straight to its pipe, and is not the end of its task there, is reported with 0 %. CAF's workers do
    /// that unless told otherwise; our tracking worker learns nothing from it.
    pub zero_progress: bool,
    /// Tasks that run at the same time.
    pub concurrency: usize,
    /// Deliveries that are taken and not settled, at most.
    pub prefetch: u32,
    pub retry: RetryPolicy,
    /// Where health and metrics are served.
    pub listen: Option<SocketAddr>,
    /// The time limit of a status check.
    pub status_check_limit: Duration,
    /// How long running tasks may go on when the process is asked to stop.
    pub drain: Duration,
    /// How long they have, after that, to notice that they were cancelled.
    pub abort: Duration,
    /// The largest body that is understood, in bytes.
    pub max_body: usize,
}

impl Settings {
    /// The defaults of a worker with this name, which serves `<name>-in`.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            version: "UNKNOWN".to_owned(),
            service_path: format!("batchwright/{name}"),
            input: format!("{name}-in"),
            output: None,
            invalid: format!("{name}-invalid"),
            reject: format!("{name}-reject"),
            paused: Some(contract::PAUSED_PIPE.to_owned()),
            route: Route::Direct,
            zero_progress: false,
            concurrency: CONCURRENCY as usize,
            prefetch: 1000,
            retry: RetryPolicy::default(),
            listen: None,
            status_check_limit: Duration::from_secs(5),
            drain: Duration::from_secs(20),
            abort: Duration::from_secs(5),
            max_body: 32 * 1024 * 1024,
            name,
        }
    }

    /// Reads the settings of a worker from variables that begin with `BATCHWRIGHT_`, or are CAF's; see [`VARIABLES`].
    pub fn from_variables(variables: &Variables) -> Result<Self, SettingsError> {
        let known: Vec<String> = VARIABLES.iter().flat_map(Variable::own_names).collect();
        variables.refuse_unknown(&known, "a worker")?;
        let read = Read(variables);
        let mut settings = Self::new(
            read.found("NAME")?
                .map_or_else(|| "worker".to_owned(), |found| found.value),
        );
        read.set("INPUT_PIPE", &mut settings.input)?;
        read.set("INVALID_PIPE", &mut settings.invalid)?;
        read.set("REJECT_PIPE", &mut settings.reject)?;
        read.set("ROUTE", &mut settings.route)?;
        read.set("CONCURRENCY", &mut settings.concurrency)?;
        read.set("PREFETCH", &mut settings.prefetch)?;
        read.set("SERVICE_PATH", &mut settings.service_path)?;
        settings.output = read.found("OUTPUT_PIPE")?.map(|found| found.value);
        read.set("VERSION", &mut settings.version)?;
        read.set("ZERO_PROGRESS", &mut settings.zero_progress)?;
        if let Some(found) = read.found("PAUSED_PIPE")? {
            settings.paused = Some(found.value).filter(|pipe| !pipe.is_empty() && pipe != "none");
        }
        settings.listen = read
            .found("LISTEN")?
            .map(|found| parse(&found))
            .transpose()?;
        if let Some(found) = read.found("ATTEMPTS")? {
            settings.retry = settings.retry.attempts(parse(&found)?);
        }
        if settings.concurrency == 0 || settings.prefetch == 0 {
            return Err(SettingsError {
                name: format!("{PREFIX}CONCURRENCY and {PREFIX}PREFETCH"),
                flaw: "must be at least 1".to_owned(),
            });
        }
        Ok(settings)
    }

    /// A setting of a worker as it is given by its variable, by a file or by CAF's variables; `name` is without the prefix.
    pub fn found(variables: &Variables, name: &str) -> Result<Option<Found>, SettingsError> {
        Read(variables).found(name)
    }
}

/// A variable of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Without `BATCHWRIGHT_`.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    pub meaning: &'static str,
    /// CAF's names for it, the first that is set counts; with what is made of the value.
    pub caf: &'static [(&'static str, Caf)],
    /// It may be in a file that `<name>_FILE` names.
    pub secret: bool,
}

impl Variable {
    /// The variable itself and, for a secret, the one that names its file.
    pub fn own_names(&self) -> impl Iterator<Item = String> {
        let own = format!("{PREFIX}{}", self.name);
        let file = self.secret.then(|| format!("{own}_FILE"));
        std::iter::once(own).chain(file)
    }
}

const fn variable(
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
    caf: &'static [(&'static str, Caf)],
) -> Variable {
    Variable {
        name,
        default,
        meaning,
        caf,
        secret: false,
    }
}

/// Every variable of a worker.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "BROKER",
        default: "amqp://guest:guest@127.0.0.1:5672/%2f",
        meaning: "where RabbitMQ is",
        caf: &[
            ("CAF_RABBITMQ_PROTOCOL", Caf::Part),
            ("CAF_RABBITMQ_HOST", Caf::Part),
            ("CAF_RABBITMQ_PORT", Caf::Part),
            ("CAF_RABBITMQ_USERNAME", Caf::Part),
            ("CAF_RABBITMQ_PASSWORD", Caf::Part),
        ],
        secret: true,
    },
    variable(
        "NAME",
        "worker",
        "the name in messages, logs and metrics",
        &[("CAF_WORKER_NAME", Caf::Same)],
    ),
    variable(
        "INPUT_PIPE",
        "<name>-in",
        "the pipe it serves",
        &[
            ("CAF_WORKER_INPUT_QUEUE", Caf::Same),
            ("CAF_WORKER_BASE_QUEUE_NAME", Caf::In),
        ],
    ),
    variable(
        "OUTPUT_PIPE",
        "none",
        "the pipe for results, failures included",
        &[
            ("CAF_WORKER_OUTPUT_QUEUE", Caf::Same),
            ("CAF_WORKER_ERROR_QUEUE", Caf::Same),
        ],
    ),
    variable(
        "INVALID_PIPE",
        "<name>-invalid",
        "bodies that are no task messages",
        &[],
    ),
    variable(
        "REJECT_PIPE",
        "<name>-reject",
        "copies of tasks that were given up",
        &[("CAF_WORKER_REJECT_QUEUE", Caf::Same)],
    ),
    variable(
        "PAUSED_PIPE",
        "worker-paused-in",
        "tasks of paused jobs, which the job service keeps; none: they are executed",
        &[("CAF_WORKER_PAUSED_QUEUE", Caf::Same)],
    ),
    variable(
        "ROUTE",
        "direct",
        "how tracked outputs travel: direct or reroute",
        &[],
    ),
    variable(
        "CONCURRENCY",
        "8",
        "tasks at the same time",
        &[("CAF_WORKER_THREADS", Caf::Same)],
    ),
    variable(
        "PREFETCH",
        "1000",
        "deliveries taken and not settled",
        &[("CAF_RABBITMQ_PREFETCH_BUFFER", Caf::PlusConcurrency)],
    ),
    variable(
        "ATTEMPTS",
        "10",
        "how often a task is tried",
        &[("CAF_WORKER_RETRY_LIMIT", Caf::PlusOne)],
    ),
    variable(
        "SERVICE_PATH",
        "batchwright/<name>",
        "the key of the worker's notes in the context of a message",
        &[("CAF_APPNAME", Caf::NoSlash)],
    ),
    variable(
        "VERSION",
        "UNKNOWN",
        "the version of the worker in messages",
        &[],
    ),
    variable(
        "ZERO_PROGRESS",
        "false",
        "true: what is not the end of its task is reported with 0 %, as CAF's workers do",
        &[("CAF_WORKER_DISABLE_ZERO_PROGRESS_REPORTING", Caf::Not)],
    ),
    variable(
        "MAX_PRIORITY",
        "0",
        "x-max-priority of classic queues, where others declare them with it",
        &[("CAF_RABBITMQ_MAX_PRIORITY", Caf::Same)],
    ),
    variable(
        "QUEUE_TYPE",
        "quorum",
        "or classic; all who share a broker must agree",
        &[("CAF_RABBITMQ_QUEUE_TYPE", Caf::Same)],
    ),
    variable(
        "LISTEN",
        "none",
        "where health and metrics are served, as in 127.0.0.1:8081",
        &[],
    ),
    variable(
        "LOG",
        "info",
        "what is logged to standard error",
        &[("CAF_LOG_LEVEL", Caf::Lowercase)],
    ),
];

/// Reads by the table.
struct Read<'a>(&'a Variables);

impl Read<'_> {
    fn found(&self, name: &str) -> Result<Option<Found>, SettingsError> {
        let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) else {
            return Ok(None);
        };
        let own = format!("{PREFIX}{name}");
        let found = if variable.secret {
            self.0.secret(&own)?
        } else {
            self.0.first(&[&own])
        };
        if found.is_some() {
            return Ok(found);
        }
        if variable.caf.iter().any(|(_, made)| *made == Caf::Part) {
            return self.0.caf_broker("rabbitmq");
        }
        // Asked for only where it is needed: this is how it is asked for.
        let adds = variable
            .caf
            .iter()
            .any(|(_, made)| *made == Caf::PlusConcurrency);
        let concurrency = if adds {
            self.found("CONCURRENCY")?
                .map(|found| parse(&found))
                .transpose()?
        } else {
            None
        };
        self.0.caf(variable.caf, concurrency.unwrap_or(CONCURRENCY))
    }

    fn set<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
        field: &mut T,
    ) -> Result<(), SettingsError> {
        if let Some(found) = self.found(name)? {
            *field = parse(&found)?;
        }
        Ok(())
    }
}

/// A variable that stops start-up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the variable {name} {flaw}")]
pub struct SettingsError {
    name: String,
    flaw: String,
}

impl SettingsError {
    /// A flaw of the variable with this name.
    pub fn of(name: &str, flaw: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            flaw: flaw.into(),
        }
    }
}

/// What the variables of ours begin with.
pub const PREFIX: &str = "BATCHWRIGHT_";

fn parse<T: FromStr<Err: std::fmt::Display>>(found: &Found) -> Result<T, SettingsError> {
    found
        .value
        .parse()
        .map_err(|error| SettingsError::of(&found.from, format!("is {:?}: {error}", found.value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let owned = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::from_variables(&Variables::new(owned)).map_err(|error| error.to_string())
    }

    #[test]
    fn pipes_follow_from_the_name_unless_they_are_named() {
        let settings = read(&[
            ("BATCHWRIGHT_NAME", "worker-x"),
            ("BATCHWRIGHT_OUTPUT_PIPE", "out"),
            ("HOME", "/"),
        ])
        .unwrap();
        assert_eq!(
            (settings.input.as_str(), settings.reject.as_str()),
            ("worker-x-in", "worker-x-reject")
        );
        assert_eq!(settings.output.as_deref(), Some("out"));
    }

    #[test]
    fn the_paused_pipe_is_shared_by_all_unless_one_is_told_another_or_none() {
        let paused = |variables: &[(&str, &str)]| read(variables).unwrap().paused;
        assert_eq!(paused(&[]).as_deref(), Some("worker-paused-in"));
        assert_eq!(
            paused(&[("CAF_WORKER_PAUSED_QUEUE", "caf")]).as_deref(),
            Some("caf")
        );
        assert_eq!(
            paused(&[
                ("CAF_WORKER_PAUSED_QUEUE", "caf"),
                ("BATCHWRIGHT_PAUSED_PIPE", "own")
            ])
            .as_deref(),
            Some("own")
        );
        assert_eq!(paused(&[("BATCHWRIGHT_PAUSED_PIPE", "none")]), None);
    }

    #[test]
    fn zero_percent_is_not_reported_unless_that_is_asked_for_in_our_words_or_in_cafs() {
        const CAF: &str = "CAF_WORKER_DISABLE_ZERO_PROGRESS_REPORTING";
        for (variables, expected) in [
            (&[][..], false),
            (&[("BATCHWRIGHT_ZERO_PROGRESS", "true")], true),
            (&[(CAF, "true")], false),
            (&[(CAF, "false")], true),
            (
                &[(CAF, "false"), ("BATCHWRIGHT_ZERO_PROGRESS", "false")],
                false,
            ),
        ] {
            assert_eq!(
                read(variables).unwrap().zero_progress,
                expected,
                "{variables:?}"
            );
        }
    }

    #[test]
    fn a_bad_or_unknown_variable_stops_start_up_by_its_name() {
        for (name, value, text) in [
            (
                "BATCHWRIGHT_PREFETCH",
                "many",
                "the variable BATCHWRIGHT_PREFETCH is \"many\": invalid digit found in string",
            ),
            (
                "BATCHWRIGHT_ROUTE",
                "up",
                "the variable BATCHWRIGHT_ROUTE is \"up\": \"up\" is no route; write direct or reroute",
            ),
            (
                "CAF_WORKER_THREADS",
                "-1",
                "the variable CAF_WORKER_THREADS is \"-1\": invalid digit found in string",
            ),
            (
                "CAF_WORKER_RETRY_LIMIT",
                "x",
                "the variable CAF_WORKER_RETRY_LIMIT is \"x\": invalid digit found in string",
            ),
            (
                "BATCHWRIGHT_PREFECHT",
                "1",
                "the variable BATCHWRIGHT_PREFECHT is no setting of a worker; did you mean BATCHWRIGHT_PREFETCH?",
            ),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err(), text);
        }
        assert!(
            read(&[("BATCHWRIGHT_CONCURRENCY", "0")])
                .unwrap_err()
                .contains("at least 1")
        );
    }

    #[test]
    fn the_variables_of_caf_count_where_ours_are_not_set() {
        let caf = [
            ("CAF_WORKER_NAME", "worker-x"),
            ("CAF_WORKER_BASE_QUEUE_NAME", "x"),
            ("CAF_WORKER_ERROR_QUEUE", "x-err"),
            ("CAF_WORKER_REJECT_QUEUE", "x-reject"),
            ("CAF_WORKER_PAUSED_QUEUE", "x-paused"),
            ("CAF_WORKER_THREADS", "3"),
            ("CAF_RABBITMQ_PREFETCH_BUFFER", "7"),
            ("CAF_WORKER_RETRY_LIMIT", "2"),
            ("CAF_APPNAME", "/caf/worker"),
        ];
        let settings = read(&caf).unwrap();
        assert_eq!(
            (settings.name.as_str(), settings.input.as_str()),
            ("worker-x", "x-in")
        );
        assert_eq!(
            (
                settings.output.as_deref(),
                settings.reject.as_str(),
                settings.paused.as_deref()
            ),
            (Some("x-err"), "x-reject", Some("x-paused"))
        );
        assert_eq!(
            (
                settings.concurrency,
                settings.prefetch,
                settings.service_path.as_str()
            ),
            (3, 10, "caf/worker")
        );
        assert!(
            settings.retry.delay_after(2, Duration::ZERO).is_some()
                && settings.retry.delay_after(3, Duration::ZERO).is_none()
        );
        let ours = [
            ("BATCHWRIGHT_NAME", "mine"),
            ("BATCHWRIGHT_INPUT_PIPE", "mine-in"),
            ("BATCHWRIGHT_CONCURRENCY", "5"),
        ];
        let settings = read(&[&caf[..], &ours].concat()).unwrap();
        assert_eq!(
            (settings.name.as_str(), settings.input.as_str()),
            ("mine", "mine-in")
        );
        assert_eq!((settings.concurrency, settings.prefetch), (5, 12));
    }
}
