//! The definitions as they stand in the file, and their checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::{
    Command, Environment, ItemPlace, LONGEST_ARGUMENT, MOST_ARGUMENTS, PATH, PLACE, Retry,
};

/// The defaults and limits: seconds, bytes, bytes, MiB.
const TIME_LIMIT: u64 = 600;
const LONGEST_TIME: u64 = 86_400;
const MAX_OUTPUT: u64 = 1024 * 1024;
const LARGEST_OUTPUT: u64 = 8 * 1024 * 1024;
const MAX_ERROR_TEXT: u64 = 16 * 1024;
const LARGEST_ERROR_TEXT: u64 = 1024 * 1024;
const LARGEST_MEMORY: u64 = 1024 * 1024;

/// A command as the operator writes it.
#[derive(Debug, Clone)]
pub struct Definition {
    pub run: Vec<String>,
    pub item: Option<Place>,
    pub leading_dash: LeadingDash,
    pub environment: Environment,
    pub pass_environment: Vec<String>,
    pub time_limit: u64,
    pub max_output: u64,
    pub max_error_text: u64,
    pub memory: Option<u64>,
    pub success: Vec<i64>,
    pub retry_on: Vec<RetryOn>,
}

/// The long form of a definition.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    run: Vec<String>,
    item: Option<Place>,
    #[serde(default)]
    leading_dash: LeadingDash,
    #[serde(default)]
    environment: Environment,
    #[serde(default)]
    pass_environment: Vec<String>,
    time_limit: Option<u64>,
    max_output: Option<u64>,
    max_error_text: Option<u64>,
    memory: Option<u64>,
    success: Option<Vec<i64>>,
    #[serde(default)]
    retry_on: Vec<RetryOn>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    Argument,
    Stdin,
    None,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeadingDash {
    #[default]
    Refused,
    Allowed,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "an entry of retryOn is an exit code, `signal` or `timeLimit`"
)]
pub enum RetryOn {
    Code(i64),
    Event(Event),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    Signal,
    TimeLimit,
}

/// Parses a file.
pub fn parse(text: &str) -> Result<BTreeMap<String, Definition>, String> {
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(is_blank) {
        return Err(
            "there are no commands; define one, e.g. fetch: [curl, -sf, --, \"{item}\"]".to_owned(),
        );
    }
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let All(all) =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    let is_name = |name: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        !name.is_empty() && name.len() <= 64 && name.chars().all(allowed)
    };
    match all.keys().find(|name| !is_name(name)) {
        Some(name) => Err(format!(
            "{name:?} is not a name: 1 to 64 letters, digits, - and _"
        )),
        None => Ok(all),
    }
}

struct All(BTreeMap<String, Definition>);

impl<'de> Deserialize<'de> for All {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = BTreeMap<String, Definition>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of names to commands")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(Names).map(Self)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Definition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list such as [curl, -sf, --, \"{item}\"], or a map with `run`")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Definition, A::Error> {
                let run = Deserialize::deserialize(SeqAccessDeserializer::new(seq))?;
                Ok(Definition::of(run))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Definition, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Definition::from(fields))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl From<Fields> for Definition {
    fn from(fields: Fields) -> Self {
        let defaults = Self::of(fields.run);
        Self {
            item: fields.item,
            leading_dash: fields.leading_dash,
            environment: fields.environment,
            pass_environment: fields.pass_environment,
            time_limit: fields.time_limit.unwrap_or(defaults.time_limit),
            max_output: fields.max_output.unwrap_or(defaults.max_output),
            max_error_text: fields.max_error_text.unwrap_or(defaults.max_error_text),
            memory: fields.memory,
            success: fields.success.unwrap_or_else(|| defaults.success.clone()),
            retry_on: fields.retry_on,
            ..defaults
        }
    }
}

impl Definition {
    /// Returns the definition of this vector, with all defaults.
    pub fn of(run: Vec<String>) -> Self {
        Self {
            run,
            item: None,
            leading_dash: LeadingDash::Refused,
            environment: Environment::new(),
            pass_environment: Vec::new(),
            time_limit: TIME_LIMIT,
            max_output: MAX_OUTPUT,
            max_error_text: MAX_ERROR_TEXT,
            memory: None,
            success: vec![0],
            retry_on: Vec::new(),
        }
    }

    /// Returns the command, or what is wrong with it.
    pub fn check(self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Command, String> {
        check_vector(&self.run)?;
        let item = self.place()?;
        let environment = self.variables(variable)?;
        let path = environment.get("PATH").map_or(PATH, String::as_str);
        let program = find(&self.run[0], path)?;
        within("timeLimit", self.time_limit, 1, LONGEST_TIME, "seconds")?;
        within("maxOutput", self.max_output, 0, LARGEST_OUTPUT, "bytes")?;
        within(
            "maxErrorText",
            self.max_error_text,
            0,
            LARGEST_ERROR_TEXT,
            "bytes",
        )?;
        if let Some(memory) = self.memory {
            within("memory", memory, 1, LARGEST_MEMORY, "MiB")?;
        }
        let (success, retry) = self.ends()?;
        let bytes = |bytes: u64| usize::try_from(bytes).map_err(|error| error.to_string());
        Ok(Command {
            program,
            arguments: self.run[1..].to_vec(),
            item,
            dash_allowed: self.leading_dash == LeadingDash::Allowed,
            environment,
            time_limit: Duration::from_secs(self.time_limit),
            max_output: bytes(self.max_output)?,
            max_error_text: bytes(self.max_error_text)?,
            memory: self.memory.map(|mib| mib << 20),
            success,
            retry,
        })
    }

    fn place(&self) -> Result<ItemPlace, String> {
        let has_place = self.run.iter().any(|argument| argument.contains(PLACE));
        match (self.item, has_place) {
            (None | Some(Place::Argument), true) => Ok(ItemPlace::Argument),
            (Some(Place::Stdin), false) => Ok(ItemPlace::Stdin),
            (Some(Place::None), false) => Ok(ItemPlace::None),
            (None | Some(Place::Argument), false) => Err(format!(
                "no argument has a place for the item: write {PLACE} in one, or say `item: stdin` or `item: none`"
            )),
            (Some(Place::Stdin), true) => Err(format!(
                "an argument has the place {PLACE}, but the item goes to standard input; leave one of both out"
            )),
            (Some(Place::None), true) => Err(format!(
                "an argument has the place {PLACE}, but the item goes nowhere; leave one of both out"
            )),
        }
    }

    /// Returns the variables of the command.
    fn variables(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Environment, String> {
        let mut all = Environment::from([("PATH".to_owned(), PATH.to_owned())]);
        for name in &self.pass_environment {
            let value = variable(name).ok_or_else(|| {
                format!("passEnvironment names {name}, which this process does not have; set it, or leave it out")
            })?;
            all.insert(name.clone(), value);
        }
        all.extend(self.environment.clone());
        for (name, value) in &all {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!(
                    "{name:?} is not the name of a variable, or its value contains U+0000"
                ));
            }
        }
        Ok(all)
    }

    /// Returns the exit codes of success, and the ends after which the task runs again.
    fn ends(&self) -> Result<(BTreeSet<i32>, BTreeSet<Retry>), String> {
        let code = |code: i64| match u8::try_from(code) {
            Ok(code) => Ok(i32::from(code)),
            Err(_) => Err(format!("{code} is not an exit code; those are 0 to 255")),
        };
        if self.success.is_empty() {
            return Err(
                "`success` is empty: no exit code means success; leave it out for [0]".to_owned(),
            );
        }
        let success = self
            .success
            .iter()
            .map(|&it| code(it))
            .collect::<Result<BTreeSet<_>, _>>()?;
        let retry = |on: &RetryOn| match on {
            RetryOn::Code(it) => code(*it).map(Retry::Code),
            RetryOn::Event(Event::Signal) => Ok(Retry::Signal),
            RetryOn::Event(Event::TimeLimit) => Ok(Retry::TimeLimit),
        };
        let retry = self
            .retry_on
            .iter()
            .map(retry)
            .collect::<Result<BTreeSet<_>, _>>()?;
        match success
            .iter()
            .find(|code| retry.contains(&Retry::Code(**code)))
        {
            Some(code) => Err(format!(
                "{code} is in `success` and in `retryOn`; leave it out of one"
            )),
            None => Ok((success, retry)),
        }
    }
}

fn check_vector(run: &[String]) -> Result<(), String> {
    let Some(program) = run.first() else {
        return Err("`run` is empty; it begins with the program".to_owned());
    };
    if program.contains(PLACE) {
        return Err("the program is the item; a job would say what runs".to_owned());
    }
    if run.len() > MOST_ARGUMENTS {
        let count = run.len();
        return Err(format!(
            "it has {count} arguments; at most {MOST_ARGUMENTS} are possible"
        ));
    }
    if run
        .iter()
        .any(|argument| argument.contains('\0') || argument.len() > LONGEST_ARGUMENT)
    {
        return Err(format!(
            "an argument contains U+0000, or has more than {LONGEST_ARGUMENT} bytes"
        ));
    }
    Ok(())
}

fn within(name: &str, number: u64, least: u64, most: u64, unit: &str) -> Result<(), String> {
    if (least..=most).contains(&number) {
        return Ok(());
    }
    Err(format!(
        "{name} is {number}; it is from {least} to {most} ({unit})"
    ))
}

/// Returns the path of a program.
fn find(program: &str, path: &str) -> Result<PathBuf, String> {
    if program.contains('/') {
        if !program.starts_with('/') {
            return Err(format!(
                "{program} is a relative path; write an absolute one"
            ));
        }
        return is_program(Path::new(program))
            .then(|| program.into())
            .ok_or_else(|| format!("{program} is not a program that this process may run; correct the path, or its rights"));
    }
    let folders = path.split(':').filter(|folder| folder.starts_with('/'));
    folders
        .map(|folder| Path::new(folder).join(program))
        .find(|file| is_program(file))
        .ok_or_else(|| format!("the program {program} is not in {path}; write its absolute path, or set PATH in `environment`"))
}

fn is_program(file: &Path) -> bool {
    std::fs::metadata(file)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
