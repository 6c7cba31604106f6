//! The configuration of the program: flags, then our variables, then CAF's variables, then
//! defaults.
//!
//! clap reads flags and our variables. The values of CAF's variables and of secret files become
//! clap's defaults, so that clap keeps the order and checks every value in the same way.
//!
//! What must stay true: no secret is logged, and `docs/reference/variables.md` documents exactly
//! what is read here (a test compares both).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};
use framework::SettingsError;
use framework::config::caf::{self, Reader};
use framework::config::env::{self, EnvValue, UrlParts, Variables, url_encoded};
use framework::config::{DEFAULT_CONCURRENCY, PREFIX, VARIABLES};

use crate::contexts::{self, TOKEN};
use crate::role_help::with_roles;

/// The commands that read CAF's variables.
pub(crate) const SERVING: [&str; 2] = ["up", "run"];
/// The settings whose value can come from a file; `<name>_FILE` is its path.
pub(crate) const SECRET: [&str; 4] = [
    TOKEN,
    "BATCHWRIGHT_DATABASE",
    "BATCHWRIGHT_BROKER",
    "BATCHWRIGHT_CONDITION_DATABASES",
];

/// The flag that names a context.
const CONTEXT: &str = "context";

/// The flag that says how a command prints its results.
const OUTPUT: &str = "output";

/// The origin of a setting that is not set.
const DEFAULT: &str = "default";

/// The settings in effect, each with its origin.
#[derive(Debug, Default)]
pub struct Configuration {
    pub(crate) settings: Vec<Setting>,
    /// The variables that are set and that only a worker program reads; for a command that serves.
    pub(crate) unused: Vec<String>,
    /// In which form the command prints its results; `None` if there is only one.
    pub(crate) output: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Setting {
    pub name: String,
    /// The value, with passwords masked.
    pub value: String,
    /// The flag or variable that the value comes from, or `default`.
    pub from: String,
}

/// Why the program does not run a command.
#[derive(Debug)]
pub enum Refusal {
    /// An invalid command line or value, with the variable that the value comes from; also a
    /// request for help.
    CommandLine(Box<clap::Error>, Option<String>),
    /// An invalid or unknown variable.
    Variable(SettingsError),
    /// A context that cannot be had, and why.
    Context(String),
}

/// Parses the command line and the variables.
pub fn read<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    variables: &Variables,
) -> Result<(P, Configuration), Refusal> {
    read_beside(arguments, variables, &P::command())
}

/// Parses the command line and the variables of a program that is used beside another one, whose
/// variables are no mistake.
pub fn read_beside<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    variables: &Variables,
    other: &Command,
) -> Result<(P, Configuration), Refusal> {
    let fallbacks = fallbacks(variables);
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut command = with_defaults(
        with_roles(P::command(), &arguments),
        fallbacks.as_ref().unwrap_or(&BTreeMap::new()),
        variables,
    );
    // `origin` needs the names that the arguments have only in a built command.
    command.build();
    let refusal = |mut error: clap::Error, fallbacks: &BTreeMap<String, EnvValue>| {
        let from = origin(&error, &command, &arguments, variables, fallbacks);
        say_what_is_expected(&mut error, &command);
        Refusal::CommandLine(Box::new(error), from)
    };
    let found = fallbacks.as_ref().cloned().unwrap_or_default();
    let mut matches = command
        .clone()
        .try_get_matches_from(&arguments)
        .map_err(|error| refusal(error, &found))?;
    if let Some(context) = context(&matches, variables).map_err(Refusal::Context)? {
        matches = with_context(command.clone(), &matches, &context)
            .try_get_matches_from(&arguments)
            .map_err(|error| refusal(error, &found))?;
    }
    let parsed = P::from_arg_matches(&matches).map_err(|error| refusal(error, &found))?;
    // Invalid variables are reported only here, so that `--help` works in spite of them.
    let found = fallbacks.map_err(Refusal::Variable)?;
    let known = [known(&command), known(other)].concat();
    variables
        .refuse_unknown(&known, "batchwright")
        .map_err(Refusal::Variable)?;
    let mut configuration = Configuration::of(&command, &matches, &found);
    if matches
        .subcommand_name()
        .is_some_and(|name| SERVING.contains(&name))
    {
        configuration.unused = unused(&command, variables);
    }
    Ok((parsed, configuration))
}

/// Returns the values from secret files and CAF's variables, by the name of our variable.
fn fallbacks(variables: &Variables) -> Result<BTreeMap<String, EnvValue>, SettingsError> {
    let mut fallbacks = BTreeMap::new();
    for name in SECRET {
        if let Some(found) = variables.secret(name)?.filter(|found| found.from != name) {
            fallbacks.insert(name.to_owned(), found);
        }
    }
    let own = variables.first(&["BATCHWRIGHT_CONCURRENCY", "CAF_WORKER_THREADS"]);
    let concurrency = own
        .and_then(|found| found.value.parse().ok())
        .unwrap_or(DEFAULT_CONCURRENCY);
    for setting in caf::settings(Reader::Program) {
        let name = format!("{PREFIX}{}", setting.own);
        let found = match setting.own {
            _ if fallbacks.contains_key(&name) || variables.get(&name).is_some() => None,
            "DATABASE" => database(variables)?,
            "BROKER" => caf::broker_url(variables, "localhost")?,
            _ => caf::value(variables, setting.caf, concurrency)?,
        };
        fallbacks.extend(found.map(|found| (name, found)));
    }
    Ok(fallbacks)
}

/// Returns the URL of the database from CAF's variables and CAF's defaults.
fn database(variables: &Variables) -> Result<Option<EnvValue>, SettingsError> {
    let name = url_encoded(
        variables
            .get("JOB_SERVICE_DATABASE_NAME")
            .unwrap_or("jobservice"),
    );
    let application = variables
        .get("JOB_SERVICE_DATABASE_APPNAME")
        .map(|name| format!("?application_name={}", url_encoded(name)));
    variables.url(UrlParts {
        prefix: "JOB_SERVICE_DATABASE_",
        also: &["NAME"],
        scheme: "postgres",
        host: "localhost",
        port: 5432,
        username: "postgres",
        password: "password",
        path: &format!("/{name}{}", application.unwrap_or_default()),
    })
}

/// Returns `command` with the fallback values as defaults, and without our variables that are
/// empty.
fn with_defaults(
    command: Command,
    fallbacks: &BTreeMap<String, EnvValue>,
    variables: &Variables,
) -> Command {
    let serving = SERVING.contains(&command.get_name()) || command.get_name() == "batchwright";
    let command = command.mut_args(|arg| {
        let Some(name) = own_name(&arg) else {
            return arg;
        };
        let arg = if variables.is_blank(&name) {
            arg.env(Resettable::Reset)
        } else {
            arg
        };
        match fallbacks.get(&name) {
            // Secret files are for every command; CAF's variables are not.
            Some(found) if serving || found.from.ends_with("_FILE") => {
                let hidden = arg.is_hide_env_values_set();
                arg.default_value(found.value.clone())
                    .hide_default_value(hidden)
            }
            _ => arg,
        }
    });
    command.mut_subcommands(|sub| with_defaults(sub, fallbacks, variables))
}

/// Returns the settings of the context that a command of a client is to use.
fn context(
    matches: &ArgMatches,
    variables: &Variables,
) -> Result<Option<contexts::Settings>, String> {
    let mut of_command = matches;
    while let Some((_, below)) = of_command.subcommand() {
        of_command = below;
    }
    // A command that calls no job service has no such flag.
    match of_command.try_get_one::<String>(CONTEXT) {
        Ok(name) => contexts::settings(name.map(String::as_str), variables),
        Err(_) => Ok(None),
    }
}

/// Returns `command` with the settings of a context: before variables if the command line names it,
/// otherwise after them.
fn with_context(command: Command, matches: &ArgMatches, context: &contexts::Settings) -> Command {
    if let Some((name, below)) = matches.subcommand() {
        return command.mut_subcommand(name, |sub| with_context(sub, below, context));
    }
    let is_named = matches.value_source(CONTEXT) == Some(ValueSource::CommandLine);
    let has_its_url = match matches.value_source("url") {
        Some(ValueSource::CommandLine) => false,
        Some(ValueSource::EnvVariable) => is_named,
        _ => true,
    };
    command.mut_args(|arg| {
        let name = own_name(&arg);
        // No other service gets the token of this one.
        let name = name.filter(|name| has_its_url || name != TOKEN);
        let Some(setting) = name.and_then(|name| context.get(name.as_str())) else {
            return arg;
        };
        let arg = if is_named {
            arg.env(Resettable::Reset)
        } else {
            arg
        };
        arg.default_value(setting.value.clone())
    })
}

/// Returns the name of the variable of an argument.
pub(crate) fn own_name(arg: &Arg) -> Option<String> {
    arg.get_env()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
}

/// Returns the arguments of a command and of all its subcommands.
fn all_arguments(command: &Command) -> Vec<&Arg> {
    let below = command.get_subcommands().flat_map(all_arguments);
    command.get_arguments().chain(below).collect()
}

/// Returns the names of our variables that the program or a worker reads.
pub(crate) fn known(command: &Command) -> Vec<String> {
    let arguments = all_arguments(command);
    let mut known: Vec<String> = arguments.into_iter().filter_map(own_name).collect();
    known.extend(SECRET.map(|name| format!("{name}_FILE")));
    known.push(contexts::FILE.to_owned());
    known.extend(
        VARIABLES
            .iter()
            .flat_map(framework::config::Variable::own_names),
    );
    known.sort();
    known.dedup();
    known
}

/// Returns the variables that are set and that only a worker program reads.
fn unused(command: &Command, variables: &Variables) -> Vec<String> {
    let arguments = all_arguments(command);
    let own: Vec<String> = arguments.into_iter().filter_map(own_name).collect();
    VARIABLES
        .iter()
        .map(|variable| format!("{PREFIX}{}", variable.name))
        .filter(|name| variables.get(name).is_some() && !own.contains(name))
        .collect()
}

/// Returns the variable that an invalid value comes from, or `None` if it comes from the command
/// line.
fn origin(
    error: &clap::Error,
    command: &Command,
    arguments: &[OsString],
    variables: &Variables,
    fallbacks: &BTreeMap<String, EnvValue>,
) -> Option<String> {
    let arg = refused(error, command)?;
    let flag = format!("--{}", arg.get_long()?);
    if arguments
        .iter()
        .any(|argument| argument.to_string_lossy().split('=').next() == Some(&flag))
    {
        return None;
    }
    let name = own_name(arg)?;
    if variables.get(&name).is_some() {
        Some(name)
    } else {
        fallbacks.get(&name).map(|value| value.from.clone())
    }
}

/// Adds what a flag means to an error that says only what is wrong with its value.
fn say_what_is_expected(error: &mut clap::Error, command: &Command) {
    if error.kind() != ErrorKind::ValueValidation || error.to_string().contains("expected") {
        return;
    }
    let Some(arg) = refused(error, command) else {
        return;
    };
    let Some(help) = arg.get_help() else { return };
    let default = match arg.get_default_values() {
        [default] => format!(" (by default {})", default.display()),
        _ => String::new(),
    };
    let meaning = format!("set it to: {help}{default}");
    let tips = vec![StyledStr::from(meaning)];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
}

/// Returns the flag whose value an error refuses.
fn refused<'a>(error: &clap::Error, command: &'a Command) -> Option<&'a Arg> {
    let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let mut all = all_arguments(command).into_iter();
    all.find(|arg| arg.to_string() == *refused)
}

impl Configuration {
    fn of(command: &Command, matches: &ArgMatches, fallbacks: &BTreeMap<String, EnvValue>) -> Self {
        let mut settings = Vec::new();
        let (mut command, mut matches) = (command, matches);
        loop {
            for arg in command.get_arguments() {
                // A flag of all commands is one of each, too.
                if let Some(setting) = Setting::of(arg, matches, fallbacks)
                    && settings
                        .iter()
                        .all(|known: &Setting| known.name != setting.name)
                {
                    settings.push(setting);
                }
            }
            let Some((name, below)) = matches.subcommand() else {
                break;
            };
            let Some(next) = command.find_subcommand(name) else {
                break;
            };
            (command, matches) = (next, below);
        }
        let output = matches.try_get_raw(OUTPUT).ok().flatten();
        let output = output.and_then(|mut values| values.next());
        Self {
            settings,
            unused: Vec::new(),
            output: output.map(|value| value.to_string_lossy().into_owned()),
        }
    }

    /// Logs the settings of `command` that differ from the defaults, and each variable without an
    /// effect.
    pub fn log(&self, command: &str) {
        let changed: Vec<String> = self
            .settings
            .iter()
            .filter(|setting| setting.from != DEFAULT)
            .map(ToString::to_string)
            .collect();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            settings = env::listed(&changed),
            "starting {command}; these settings differ from the defaults"
        );
        for setting in &self.settings {
            tracing::debug!("setting {setting}");
        }
        for name in &self.unused {
            tracing::warn!("{name} has no effect here; only a worker program of your own reads it");
        }
    }
}

impl Setting {
    fn of(arg: &Arg, matches: &ArgMatches, fallbacks: &BTreeMap<String, EnvValue>) -> Option<Self> {
        let (id, variable) = (arg.get_id().as_str(), own_name(arg)?);
        let values = matches.try_get_raw(id).ok().flatten()?;
        let value = values
            .map(|value| value.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        let from = match matches.value_source(id)? {
            ValueSource::CommandLine => format!("--{}", arg.get_long()?),
            ValueSource::EnvVariable => variable,
            _ => fallbacks
                .get(&variable)
                .filter(|found| found.value == value)
                .map_or_else(|| DEFAULT.to_owned(), |found| found.from.clone()),
        };
        let value = if own_name(arg).is_some_and(|name| name == TOKEN) {
            "…".to_owned()
        } else if arg.is_hide_env_values_set() {
            store::masked(&value)
        } else {
            env::masked(&value)
        };
        Some(Self {
            name: arg.get_long().unwrap_or(id).to_owned(),
            value,
            from,
        })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} ({})", self.name, self.value, self.from)
    }
}

impl Refusal {
    /// Prints the error or the help, and returns the exit code.
    pub fn print(self) -> ExitCode {
        match self {
            Self::CommandLine(error, from) => {
                let _ = error.print();
                if let Some(from) = from {
                    crate::print::remark!("The value comes from the variable {from}.");
                }
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            }
            Self::Variable(error) => {
                crate::print::remark!("batchwright: {error}");
                ExitCode::from(2)
            }
            Self::Context(problem) => {
                crate::print::remark!("batchwright: {problem}");
                ExitCode::from(2)
            }
        }
    }
}
