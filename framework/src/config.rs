//! The settings of a worker, and how they are read from the environment.
//!
//! A setting has a variable of our own (`BATCHWRIGHT_…`). If CAF has a variable for the same
//! setting, a worker reads that, too ([`caf`]); ours takes precedence. A secret may be in a file
//! that `<variable>_FILE` names.

pub mod caf;
pub mod env;
mod other_programs;
mod status_origins;
mod variables;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use contract::{PipePurpose, ReservedPipes, blocked_pipe};

use crate::RetryPolicy;
use crate::clock::Clock;
use crate::health::Health;
use crate::tls::{Tls, TlsError, TlsFiles};
use caf::Conversion;
use env::{EnvValue, Variables};

pub use other_programs::names as names_of_other_programs;
pub use status_origins::StatusOrigins;
pub use variables::{VARIABLES, Variable};

/// The prefix of our variables.
pub const PREFIX: &str = "BATCHWRIGHT_";
/// The default number of tasks that run at the same time.
pub const DEFAULT_CONCURRENCY: u32 = 8;
/// The default of [`Settings::bundle`].
pub const DEFAULT_BUNDLE: u32 = 100;
/// The largest [`Settings::bundle`] that has an effect.
pub const MAX_BUNDLE: u32 = 1000;
/// The default of [`Settings::old_delivery`]: five minutes before RabbitMQ takes a delivery back by
/// default.
pub const DEFAULT_OLD_DELIVERY: Duration = Duration::from_mins(25);

/// The default of [`Settings::stuck_task`].
pub const DEFAULT_STUCK_TASK: Duration = Duration::from_mins(5);

/// Everything about a worker that is not its code.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the worker in messages, logs and metrics, for example `worker-example`.
    pub name: String,
    /// The version of the worker in messages.
    pub version: String,
    /// The key of this service's notes in the context of a message.
    pub service_path: String,
    /// The pipe that the worker takes tasks from.
    pub input: String,
    /// The pipe for results, failures included. A worker without output needs none.
    pub output: Option<String>,
    /// The pipe for bodies that are not task messages, and for messages that can never reach their
    /// pipe.
    pub invalid: String,
    /// The pipe for copies of tasks that were given up.
    pub reject: String,
    /// The pipe for tasks of paused jobs, which the job service takes from there. Without one, such
    /// tasks run.
    pub paused: Option<String>,
    /// The pipes that no task may be addressed to, and the exceptions. The worker's own invalid,
    /// reject and paused pipes and the tracking pipe of each message are reserved in addition.
    pub reserved_pipes: ReservedPipes,
    /// How tracked outputs travel.
    pub route: Route,
    /// Whether an output that goes directly to its pipe, and does not end its task, is reported
    /// with 0 %. CAF's workers do so by default. Our tracking worker does not need it.
    pub zero_progress: bool,
    /// The number of tasks that run at the same time.
    pub concurrency: usize,
    /// The largest number of messages of the input pipe that are received and not settled. `None`
    /// adapts it to the time that tasks take: from the concurrency, for tasks of 200 ms and longer,
    /// to 1000, for short ones, and to fewer if messages are large: about 16 MiB in addition to one
    /// for each task that runs. In addition, as many bundles are received as hold that many tasks,
    /// and two more.
    pub prefetch: Option<u32>,
    /// The largest number of subtasks that a split sends in one message, to workers that read such
    /// bundles. With 1, each subtask is a message of its own, and the worker reads no bundles
    /// itself.
    pub bundle: u32,
    /// When failed tasks run again, and refused outputs are published again.
    pub retry: RetryPolicy,
    /// After how many attempts in a row that fail in the same way, of tasks of at least two jobs,
    /// the worker takes no more until one of them ends in another way. `None` never stops it.
    pub circuit_breaker: Option<NonZeroU32>,
    /// How long one attempt of a task may take. An attempt that exceeds it is dropped at its next
    /// `.await` and has failed; the task runs again, as after any error. If its job sets a limit,
    /// too, the smaller one counts.
    pub time_limit: Option<Duration>,
    /// The address that serves health checks and metrics.
    pub listen: Option<SocketAddr>,
    /// Whom status checks at `https://` trust, and the certificate that they show.
    pub tls: Tls,
    /// The URL of the job service of this process, if it has one. No proxy is asked for it.
    pub own_service: Option<String>,
    /// The time limit of a status check.
    pub status_check_limit: Duration,
    /// The origins that status checks may ask.
    pub status_origins: StatusOrigins,
    /// How old the oldest open delivery may be before the worker is degraded (`old-delivery`).
    pub old_delivery: Duration,
    /// How long a task may run before the log names it, and the metrics count it.
    pub stuck_task: Duration,
    /// How long running tasks may continue after the runtime is asked to stop.
    pub drain: Duration,
    /// How long tasks then have to notice that they are cancelled.
    pub abort: Duration,
    /// The largest body that is accepted, in bytes.
    pub max_body: usize,
    /// The clock for time stamps. Only tests choose another one than the system's.
    pub clock: Clock,
    /// What the process can do. Everything in a process shares one.
    pub health: Health,
}

impl Settings {
    /// Returns the defaults of a worker with this name, which takes tasks from `<name>-in`.
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
            reserved_pipes: ReservedPipes::default(),
            route: Route::Direct,
            zero_progress: false,
            concurrency: DEFAULT_CONCURRENCY as usize,
            prefetch: None,
            bundle: DEFAULT_BUNDLE,
            retry: RetryPolicy::default(),
            circuit_breaker: None,
            time_limit: None,
            listen: None,
            tls: Tls::default(),
            own_service: None,
            status_check_limit: Duration::from_secs(5),
            status_origins: StatusOrigins::default(),
            old_delivery: DEFAULT_OLD_DELIVERY,
            stuck_task: DEFAULT_STUCK_TASK,
            drain: Duration::from_secs(20),
            abort: Duration::from_secs(5),
            max_body: 32 * 1024 * 1024,
            clock: Clock::system(),
            health: Health::default(),
            name,
        }
    }

    /// Reads the settings of a worker from our variables and CAF's; see [`VARIABLES`].
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable if one has a bad value, or begins with our prefix
    /// and is unknown.
    pub fn from_variables(variables: &Variables) -> Result<Self, SettingsError> {
        let own = VARIABLES.iter().flat_map(Variable::own_names);
        let known: Vec<String> = own.chain(other_programs::names()).collect();
        variables.refuse_unknown(&known, "a worker")?;
        let read = SettingsReader(variables);
        let mut settings = Self::new(
            read.find("NAME")?
                .map_or_else(|| "worker".to_owned(), |found| found.value),
        );
        read.set("INPUT_PIPE", &mut settings.input)?;
        read.set("INVALID_PIPE", &mut settings.invalid)?;
        read.set("REJECT_PIPE", &mut settings.reject)?;
        read.set("ROUTE", &mut settings.route)?;
        read.set("CONCURRENCY", &mut settings.concurrency)?;
        settings.prefetch = read.parsed("PREFETCH")?;
        if let Some(most) = read.parsed::<NonZeroU32>("BUNDLE")? {
            settings.bundle = most.get();
        }
        if let Some(seconds) = read.parsed("OLD_DELIVERY")? {
            settings.old_delivery = Duration::from_secs(seconds);
        }
        if let Some(seconds) = read.parsed::<NonZeroU64>("STUCK_TASK")? {
            settings.stuck_task = Duration::from_secs(seconds.get());
        }
        read.set("SERVICE_PATH", &mut settings.service_path)?;
        read.set("STATUS_ORIGINS", &mut settings.status_origins)?;
        settings.output = read.find("OUTPUT_PIPE")?.map(|found| found.value);
        read.set("VERSION", &mut settings.version)?;
        read.set("ZERO_PROGRESS", &mut settings.zero_progress)?;
        if let Some(found) = read.find("PAUSED_PIPE")? {
            settings.paused = Some(found.value).filter(|pipe| !pipe.is_empty() && pipe != "none");
        }
        if let Some(found) = read.find("ALLOWED_PIPE")? {
            settings.reserved_pipes = settings.reserved_pipes.allow(pipe_names(&found.value));
        }
        settings.listen = read.parsed("LISTEN")?;
        let file = |name| Ok::<_, SettingsError>(read.find(name)?.map(|found| found.value.into()));
        settings.tls = Tls::load(&TlsFiles {
            ca: file("TLS_CA")?,
            certificate: file("TLS_CERTIFICATE")?,
            key: file("TLS_KEY")?,
        })?;
        if let Some(found) = read
            .find("TIME_LIMIT")?
            .filter(|found| found.value != "none")
        {
            let seconds: NonZeroU64 = parse("TIME_LIMIT", &found)?;
            settings.time_limit = Some(Duration::from_secs(seconds.get()));
        }
        if let Some(found) = read
            .find("CIRCUIT_BREAKER")?
            .filter(|found| found.value != "none")
        {
            settings.circuit_breaker = Some(parse("CIRCUIT_BREAKER", &found)?);
        }
        read.set("RETRY", &mut settings.retry)?;
        if let Some(attempts) = read.parsed("ATTEMPTS")? {
            settings.retry = settings.retry.attempts(attempts);
        }
        if settings.concurrency == 0 || settings.prefetch == Some(0) {
            return Err(SettingsError {
                name: format!("{PREFIX}CONCURRENCY and {PREFIX}PREFETCH"),
                problem: "must be at least 1".to_owned(),
            });
        }
        Ok(settings)
    }

    /// Returns all pipes that no task of this worker may be addressed to. Its own input is allowed,
    /// and so is its output: some CAF installations have one queue for all results of a worker,
    /// given up or not.
    pub(crate) fn all_reserved_pipes(&self) -> ReservedPipes {
        let paused = self.paused.as_deref().unwrap_or_default();
        self.reserved_pipes
            .clone()
            .reserve(PipePurpose::Invalid, &self.invalid)
            .reserve(PipePurpose::Reject, &self.reject)
            .reserve(PipePurpose::Paused, paused)
            .reserve(PipePurpose::Blocked, blocked_pipe(paused))
            .allow([&self.input])
            .allow(&self.output)
    }

    /// Lists the settings that differ from the defaults, each with its origin, on one line.
    /// Passwords are masked.
    ///
    /// # Errors
    ///
    /// As [`Self::find`].
    pub fn changed(variables: &Variables) -> Result<String, SettingsError> {
        let mut changed = Vec::new();
        for variable in VARIABLES {
            let found = Self::find(variables, variable.name)?;
            if let Some(found) = found.filter(|found| found.value != variable.default) {
                let value = env::masked(&found.value);
                changed.push(format!("{}={value} ({})", variable.name, found.from));
            }
        }
        Ok(env::listed(&changed))
    }

    /// Lists the variables that are set and that only other programs read.
    pub fn without_effect(variables: &Variables) -> Vec<String> {
        other_programs::names()
            .filter(|name| variables.get(name).is_some())
            .collect()
    }

    /// Finds one setting of a worker, by its name in [`VARIABLES`]: its own variable, its file, or
    /// CAF's variables.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or CAF's value cannot be converted.
    pub fn find(variables: &Variables, name: &str) -> Result<Option<EnvValue>, SettingsError> {
        SettingsReader(variables).find(name)
    }
}

/// How a tracked output travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Route {
    /// Directly to its pipe. A report goes to the tracking pipe.
    #[default]
    Direct,
    /// Through the tracking pipe. The tracking worker records it and forwards it.
    Reroute,
}

impl Route {
    /// Returns the name of the route in settings: `direct` or `reroute`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Reroute => "reroute",
        }
    }
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "direct" => Ok(Self::Direct),
            "reroute" => Ok(Self::Reroute),
            other => Err(format!(
                "{other:?} is not a route; expected direct or reroute"
            )),
        }
    }
}

/// A variable with a bad value or an unknown name.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the variable {name} {problem}")]
pub struct SettingsError {
    name: String,
    problem: String,
}

impl SettingsError {
    /// Returns the error for a variable. `problem` continues the sentence "the variable X …".
    pub fn of(name: &str, problem: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            problem: problem.into(),
        }
    }
}

impl SettingsError {
    /// Returns the error for the value of a setting, by its name in [`VARIABLES`], with the value
    /// to set instead.
    pub(crate) fn invalid(name: &str, from: &str, value: &str, error: &str) -> Self {
        let value = env::masked(value);
        let meaning = VARIABLES
            .iter()
            .find(|variable| variable.name == name)
            .filter(|_| !error.contains("expected"))
            .map_or_else(String::new, |variable| {
                format!("; set it to {}", variable.meaning)
            });
        Self::of(from, format!("is {value:?}: {error}{meaning}"))
    }
}

// `main` prints this when it returns the error.
impl std::fmt::Debug for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<TlsError> for SettingsError {
    fn from(error: TlsError) -> Self {
        Self::of(error.setting, error.problem)
    }
}

/// Reads settings by [`VARIABLES`].
struct SettingsReader<'a>(&'a Variables);

impl SettingsReader<'_> {
    fn find(&self, name: &str) -> Result<Option<EnvValue>, SettingsError> {
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
        if name == "BROKER" {
            return caf::broker_url(self.0, "rabbitmq");
        }
        let caf = variable.caf();
        // Finding the concurrency calls this function, so it may only do so for a conversion that
        // needs it.
        let adds = caf
            .iter()
            .any(|(_, conversion)| *conversion == Conversion::AddConcurrency);
        let concurrency = if adds {
            self.parsed("CONCURRENCY")?
        } else {
            None
        };
        caf::value(self.0, caf, concurrency.unwrap_or(DEFAULT_CONCURRENCY))
    }

    fn set<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
        field: &mut T,
    ) -> Result<(), SettingsError> {
        if let Some(value) = self.parsed(name)? {
            *field = value;
        }
        Ok(())
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, SettingsError> {
        let found = self.find(name)?;
        found.map(|found| parse(name, &found)).transpose()
    }
}

/// Returns the names in a list that is separated by commas.
fn pipe_names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && *name != "none")
}

/// Parses the value of a setting.
fn parse<T: FromStr<Err: std::fmt::Display>>(
    name: &str,
    found: &EnvValue,
) -> Result<T, SettingsError> {
    let EnvValue { value, from } = found;
    value
        .parse()
        .map_err(|error: T::Err| SettingsError::invalid(name, from, value, &error.to_string()))
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
    fn pipes_follow_from_the_name_unless_they_are_set() {
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
    fn paused_pipe_has_a_default_and_can_be_changed_or_disabled() {
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
    fn own_dead_ends_are_reserved_unless_they_are_the_output_or_allowed() {
        let reserved = |variables: &[(&str, &str)]| {
            let reserved = read(variables).unwrap().all_reserved_pipes();
            [
                "w-invalid",
                "w-reject",
                "worker-paused-in",
                "w-in.suspects",
                "w-in",
            ]
            .map(|pipe| reserved.check(pipe, None).is_err())
        };
        let name = ("BATCHWRIGHT_NAME", "w");
        assert_eq!(reserved(&[name]), [true, true, true, true, false]);
        assert_eq!(
            reserved(&[name, ("BATCHWRIGHT_OUTPUT_PIPE", "w-reject")]),
            [true, false, true, true, false]
        );
        assert_eq!(
            reserved(&[
                name,
                ("BATCHWRIGHT_ALLOWED_PIPE", "w-invalid, w-in.suspects")
            ]),
            [false, true, true, false, false]
        );
    }

    #[test]
    fn zero_progress_is_set_by_our_variable_or_by_cafs() {
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
    fn bad_or_unknown_variable_is_refused_by_name() {
        for (name, value, text) in [
            (
                "BATCHWRIGHT_PREFETCH",
                "many",
                "the variable BATCHWRIGHT_PREFETCH is \"many\": invalid digit found in string; set it to the largest number of deliveries \
                 received and not settled; with none, it follows the time that tasks take and their size",
            ),
            (
                "BATCHWRIGHT_ROUTE",
                "up",
                "the variable BATCHWRIGHT_ROUTE is \"up\": \"up\" is not a route; expected direct or reroute",
            ),
            (
                "CAF_WORKER_THREADS",
                "-1",
                "the variable CAF_WORKER_THREADS is \"-1\": invalid digit found in string; set it to the number of tasks that run at the same time",
            ),
            (
                "CAF_WORKER_RETRY_LIMIT",
                "x",
                "the variable CAF_WORKER_RETRY_LIMIT is \"x\": invalid digit found in string",
            ),
            (
                "BATCHWRIGHT_PREFECHT",
                "1",
                "the variable BATCHWRIGHT_PREFECHT is not a setting of a worker; did you mean BATCHWRIGHT_PREFETCH?",
            ),
            (
                "BATCHWRIGHT_DATABSE",
                "postgres://db/jobs",
                "the variable BATCHWRIGHT_DATABSE is not a setting of a worker; did you mean BATCHWRIGHT_DATABASE?",
            ),
            (
                "BATCHWRIGHT_LISTEN",
                "8081",
                "the variable BATCHWRIGHT_LISTEN is \"8081\": invalid socket address syntax; set it to the address that serves health \
                 checks and metrics, for example 127.0.0.1:8081",
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
    fn variables_of_other_programs_are_no_error_and_are_told() {
        let all = [
            ("BATCHWRIGHT_DATABASE_FILE", "/run/secrets/db"),
            ("BATCHWRIGHT_MAX_PARTS", "500"),
            ("BATCHWRIGHT_NAME", "worker-x"),
        ];
        assert_eq!(read(&all).unwrap().name, "worker-x");
        let owned = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let without_effect = Settings::without_effect(&Variables::new(owned));
        assert_eq!(
            without_effect,
            ["BATCHWRIGHT_DATABASE_FILE", "BATCHWRIGHT_MAX_PARTS"]
        );
    }

    #[test]
    fn caf_variables_count_where_ours_are_not_set() {
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
            (3, Some(10), "caf/worker")
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
        assert_eq!((settings.concurrency, settings.prefetch), (5, Some(12)));
    }
}
