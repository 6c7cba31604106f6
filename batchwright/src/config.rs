//! How a program of the binary is set up: flags, then variables of our own, then CAF's, then defaults.
//!
//! Flags and our variables are clap's business. What CAF's variables and files of secrets say is given to it as the defaults, so
//! that the order holds by itself and every value passes the same checks.
//!
//! What must stay true: no secret is logged, and `docs/configuration.md` tells exactly what is read here (a test compares).

#[cfg(test)]
mod documented;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};
use framework::SettingsError;
use framework::config::caf::{self, Reader};
use framework::config::env::{EnvValue, UrlParts, Variables, url_encoded};
use framework::config::{DEFAULT_CONCURRENCY, PREFIX, VARIABLES};

/// The commands that CAF's variables are for.
const SERVING: [&str; 2] = ["up", "run"];
/// Settings that may be in a file that `<name>_FILE` names.
const SECRET: [&str; 2] = ["BATCHWRIGHT_DATABASE", "BATCHWRIGHT_BROKER"];
/// The settings in effect, with where each comes from.
#[derive(Debug, Default)]
pub struct Configuration(Vec<Setting>);

#[derive(Debug)]
struct Setting {
    name: String,
    value: String,
    from: String,
}

/// Why a program does not begin.
#[derive(Debug)]
pub enum Refusal {
    /// The command line, with the variable that the value comes from; also the help.
    CommandLine(Box<clap::Error>, Option<String>),
    Variable(SettingsError),
}

/// Reads the command line and the variables.
pub fn read<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    variables: &Variables,
) -> Result<(P, Configuration), Refusal> {
    let provided = provided(variables);
    let mut command = with_defaults(
        P::command(),
        provided.as_ref().unwrap_or(&BTreeMap::new()),
        variables,
    );
    // Else its arguments cannot be named.
    command.build();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let told = |error: clap::Error, found: &BTreeMap<String, EnvValue>| {
        let from = origin(&error, &command, &arguments, variables, found);
        Refusal::CommandLine(Box::new(error), from)
    };
    let found = provided.as_ref().cloned().unwrap_or_default();
    let matches = command
        .clone()
        .try_get_matches_from(&arguments)
        .map_err(|error| told(error, &found))?;
    let parsed = P::from_arg_matches(&matches).map_err(|error| told(error, &found))?;
    // Only now: whoever asks for help gets it.
    let found = provided.map_err(Refusal::Variable)?;
    variables
        .refuse_unknown(&known(&command), "batchwright")
        .map_err(Refusal::Variable)?;
    Ok((parsed, Configuration::of(&command, &matches, &found)))
}

/// What files of secrets and CAF's variables say, by the variable of ours that it stands for.
fn provided(variables: &Variables) -> Result<BTreeMap<String, EnvValue>, SettingsError> {
    let mut provided = BTreeMap::new();
    for name in SECRET {
        if let Some(found) = variables.secret(name)?.filter(|found| found.from != name) {
            provided.insert(name.to_owned(), found);
        }
    }
    let own = variables.first(&["BATCHWRIGHT_CONCURRENCY", "CAF_WORKER_THREADS"]);
    let concurrency = own
        .and_then(|found| found.value.parse().ok())
        .unwrap_or(DEFAULT_CONCURRENCY);
    for setting in caf::settings(Reader::Program) {
        let name = format!("{PREFIX}{}", setting.own);
        let found = match setting.own {
            _ if provided.contains_key(&name) || variables.get(&name).is_some() => None,
            "DATABASE" => database(variables)?,
            "BROKER" => caf::broker_url(variables, "localhost")?,
            _ => caf::value(variables, setting.caf, concurrency)?,
        };
        provided.extend(found.map(|found| (name, found)));
    }
    Ok(provided)
}

/// The URL of the database by CAF's variables, with CAF's defaults.
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

fn with_defaults(
    command: Command,
    found: &BTreeMap<String, EnvValue>,
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
        match found.get(&name) {
            // A secret in a file is one for every command.
            Some(found) if serving || found.from.ends_with("_FILE") => {
                let hidden = arg.is_hide_env_values_set();
                arg.default_value(found.value.clone())
                    .hide_default_value(hidden)
            }
            _ => arg,
        }
    });
    command.mut_subcommands(|sub| with_defaults(sub, found, variables))
}

fn own_name(arg: &Arg) -> Option<String> {
    arg.get_env()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
}

/// Every variable that the program or a worker reads.
fn known(command: &Command) -> Vec<String> {
    let mut known: Vec<String> = command.get_arguments().filter_map(own_name).collect();
    known.extend(command.get_subcommands().flat_map(known_of));
    known.extend(SECRET.map(|name| format!("{name}_FILE")));
    known.extend(
        VARIABLES
            .iter()
            .flat_map(framework::config::Variable::own_names),
    );
    known.sort();
    known.dedup();
    known
}

fn known_of(command: &Command) -> Vec<String> {
    command.get_arguments().filter_map(own_name).collect()
}

/// The variable that the refused value comes from, where it is not from the command line.
fn origin(
    error: &clap::Error,
    command: &Command,
    arguments: &[OsString],
    variables: &Variables,
    found: &BTreeMap<String, EnvValue>,
) -> Option<String> {
    let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let all = command
        .get_arguments()
        .chain(command.get_subcommands().flat_map(Command::get_arguments));
    let arg = all.into_iter().find(|arg| arg.to_string() == *refused)?;
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
        found.get(&name).map(|found| found.from.clone())
    }
}

impl Configuration {
    fn of(command: &Command, matches: &ArgMatches, found: &BTreeMap<String, EnvValue>) -> Self {
        let mut settings = Vec::new();
        let (mut command, mut matches) = (command, matches);
        loop {
            settings.extend(
                command
                    .get_arguments()
                    .filter_map(|arg| Setting::of(arg, matches, found)),
            );
            let Some((name, below)) = matches.subcommand() else {
                break;
            };
            let Some(next) = command.find_subcommand(name) else {
                break;
            };
            (command, matches) = (next, below);
        }
        Self(settings)
    }

    /// Tells the log what is in effect.
    pub fn log(&self) {
        for Setting { name, value, from } in &self.0 {
            tracing::info!(value, from, "{name}");
        }
    }
}

impl Setting {
    fn of(arg: &Arg, matches: &ArgMatches, found: &BTreeMap<String, EnvValue>) -> Option<Self> {
        let (id, variable) = (arg.get_id().as_str(), own_name(arg)?);
        let values = matches.try_get_raw(id).ok().flatten()?;
        let value = values
            .map(|value| value.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        let from = match matches.value_source(id)? {
            ValueSource::CommandLine => format!("--{}", arg.get_long()?),
            ValueSource::EnvVariable => variable,
            _ => found
                .get(&variable)
                .filter(|found| found.value == value)
                .map_or_else(|| "default".to_owned(), |found| found.from.clone()),
        };
        let value = if arg.is_hide_env_values_set() {
            store::masked(&value)
        } else {
            value
        };
        Some(Self {
            name: arg.get_long().unwrap_or(id).to_owned(),
            value,
            from,
        })
    }
}

impl Refusal {
    /// Tells it to whoever has called the program.
    pub fn print(self) -> ExitCode {
        match self {
            Self::CommandLine(error, from) => {
                let _ = error.print();
                if let Some(from) = from {
                    eprintln!("The value comes from the variable {from}.");
                }
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            }
            Self::Variable(flaw) => {
                eprintln!("batchwright: {flaw}");
                ExitCode::from(2)
            }
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|Setting { name, value, from }| writeln!(f, "{name}={value} ({from})"))
    }
}
