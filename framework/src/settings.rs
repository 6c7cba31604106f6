//! How a worker process is set up. Read from the environment once, in [`crate::Runtime::from_env`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use crate::{RetryPolicy, Route};

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
            concurrency: 8,
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

    /// Reads the settings of a worker from variables that begin with `BATCHWRIGHT_`; see the guide "write a worker".
    /// CAF's `CAF_WORKER_PAUSED_QUEUE` and `CAF_WORKER_DISABLE_ZERO_PROGRESS_REPORTING` count where ours are not set.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, SettingsError> {
        let (mut left, mut caf) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in variables {
            if let Some(name) = name.strip_prefix(PREFIX) {
                left.insert(name.to_owned(), value);
            } else if let Some(name) = name.strip_prefix(CAF_PREFIX) {
                caf.insert(name.to_owned(), value);
            }
        }
        let mut settings = Self::new(left.remove("NAME").unwrap_or_else(|| "worker".to_owned()));
        set(&mut left, "INPUT_PIPE", &mut settings.input)?;
        set(&mut left, "INVALID_PIPE", &mut settings.invalid)?;
        set(&mut left, "REJECT_PIPE", &mut settings.reject)?;
        set(&mut left, "ROUTE", &mut settings.route)?;
        set(&mut left, "VERSION", &mut settings.version)?;
        if let Some(disabled) = caf.remove("DISABLE_ZERO_PROGRESS_REPORTING") {
            // As CAF reads it: anything else is false.
            settings.zero_progress = !disabled.eq_ignore_ascii_case("true");
        }
        set(&mut left, "ZERO_PROGRESS", &mut settings.zero_progress)?;
        set(&mut left, "CONCURRENCY", &mut settings.concurrency)?;
        set(&mut left, "PREFETCH", &mut settings.prefetch)?;
        settings.output = left.remove("OUTPUT_PIPE");
        if let Some(pipe) = left.remove("PAUSED_PIPE").or(caf.remove("PAUSED_QUEUE")) {
            settings.paused = Some(pipe).filter(|pipe| !pipe.is_empty());
        }
        settings.listen = left.remove("LISTEN").map(|value| parse("LISTEN", &value)).transpose()?;
        if settings.concurrency == 0 || settings.prefetch == 0 {
            return Err(SettingsError { name: format!("{PREFIX}CONCURRENCY and {PREFIX}PREFETCH"), flaw: "must be at least 1".to_owned() });
        }
        // Read by whoever connects to the broker, and by the log.
        for elsewhere in ["BROKER", "QUEUE_TYPE", "MAX_PRIORITY", "LOG"] {
            left.remove(elsewhere);
        }
        match left.into_keys().next() {
            None => Ok(settings),
            Some(name) => Err(SettingsError::new(&name, "is no setting of a worker")),
        }
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
    /// A flaw of the variable with this name, the prefix left out.
    pub(crate) fn new(name: &str, flaw: impl Into<String>) -> Self {
        Self { name: format!("{PREFIX}{name}"), flaw: flaw.into() }
    }
}

pub(crate) const PREFIX: &str = "BATCHWRIGHT_";
/// The variables of CAF's workers. A few are understood, so that all workers of a system can be told the same.
const CAF_PREFIX: &str = "CAF_WORKER_";

fn set<T: FromStr<Err: std::fmt::Display>>(left: &mut BTreeMap<String, String>, name: &str, field: &mut T) -> Result<(), SettingsError> {
    if let Some(value) = left.remove(name) {
        *field = parse(name, &value)?;
    }
    Ok(())
}

fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, SettingsError> {
    value.parse().map_err(|error| SettingsError::new(name, format!("is {value:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::from_variables(owned).map_err(|error| error.to_string())
    }

    #[test]
    fn pipes_follow_from_the_name_unless_they_are_named() {
        let settings = read(&[("BATCHWRIGHT_NAME", "worker-x"), ("BATCHWRIGHT_OUTPUT_PIPE", "out"), ("HOME", "/")]).unwrap();
        assert_eq!((settings.input.as_str(), settings.reject.as_str()), ("worker-x-in", "worker-x-reject"));
        assert_eq!(settings.output.as_deref(), Some("out"));
    }

    #[test]
    fn the_paused_pipe_is_shared_by_all_unless_one_is_told_another_or_none() {
        let paused = |variables: &[(&str, &str)]| read(variables).unwrap().paused;
        assert_eq!(paused(&[]).as_deref(), Some("worker-paused-in"));
        assert_eq!(paused(&[("CAF_WORKER_PAUSED_QUEUE", "caf")]).as_deref(), Some("caf"));
        assert_eq!(paused(&[("CAF_WORKER_PAUSED_QUEUE", "caf"), ("BATCHWRIGHT_PAUSED_PIPE", "own")]).as_deref(), Some("own"));
        assert_eq!(paused(&[("BATCHWRIGHT_PAUSED_PIPE", "")]), None);
    }

    #[test]
    fn zero_percent_is_not_reported_unless_that_is_asked_for_in_our_words_or_in_cafs() {
        const CAF: &str = "CAF_WORKER_DISABLE_ZERO_PROGRESS_REPORTING";
        for (variables, expected) in [
            (&[][..], false),
            (&[("BATCHWRIGHT_ZERO_PROGRESS", "true")], true),
            (&[(CAF, "true")], false),
            (&[(CAF, "false")], true),
            (&[(CAF, "false"), ("BATCHWRIGHT_ZERO_PROGRESS", "false")], false),
        ] {
            assert_eq!(read(variables).unwrap().zero_progress, expected, "{variables:?}");
        }
    }

    #[test]
    fn a_bad_or_unknown_variable_stops_start_up_by_its_name() {
        for (name, value, text) in [
            ("BATCHWRIGHT_PREFETCH", "many", "the variable BATCHWRIGHT_PREFETCH is \"many\": invalid digit found in string"),
            ("BATCHWRIGHT_ROUTE", "up", "the variable BATCHWRIGHT_ROUTE is \"up\": \"up\" is no route; write direct or reroute"),
            ("BATCHWRIGHT_PREFECHT", "1", "the variable BATCHWRIGHT_PREFECHT is no setting of a worker"),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err(), text);
        }
        assert!(read(&[("BATCHWRIGHT_CONCURRENCY", "0")]).unwrap_err().contains("at least 1"));
    }
}
