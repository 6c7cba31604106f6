//! The commands that the operator defines: what runs, for which items, and within which limits. The
//! file is YAML or JSON.
//!
//! What must stay true: whatever is wrong with a definition is said when the worker starts. An item
//! is one argument, or a part of one, and none that the program takes for an option.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The variables of a command, by their names.
type Environment = BTreeMap<String, String>;

/// The longest item that is standard input, in bytes.
pub const LONGEST_INPUT: u64 = 8 * 1024 * 1024;
/// What stands for the item in an argument.
const PLACE: &str = "{item}";
/// The folders in which programs are found, unless the operator names others.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The longest item in an argument, in bytes. Linux accepts arguments of 128 KiB.
const LONGEST_ARGUMENT: usize = 64 * 1024;
/// The most bytes and arguments of a command that a job brings.
const LONGEST_ARGV: usize = 64 * 1024;
const MOST_ARGUMENTS: usize = 1000;

/// The commands of a worker, by name.
#[derive(Debug, Clone, Default)]
pub struct Commands {
    named: BTreeMap<String, Command>,
    /// The variable `PATH` of the commands that jobs bring; `None` if they may bring none.
    any: Option<String>,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The path of the program.
    pub program: PathBuf,
    /// Its arguments, with places for the item.
    pub arguments: Vec<String>,
    /// Where the item goes.
    pub item: ItemPlace,
    /// An item may begin with `-` although no `--` stands before it.
    pub dash_allowed: bool,
    /// All variables of the command but `HOME` and `TMPDIR`, which are its folder unless they are
    /// here.
    pub environment: Environment,
    /// The longest time that it may take.
    pub time_limit: Duration,
    /// The most bytes that it may write to standard output.
    pub max_output: usize,
    /// The bytes of its error text that are kept, from the end.
    pub max_error_text: usize,
    /// The most bytes of memory of each of its processes.
    pub memory: Option<u64>,
    /// The exit codes that mean success.
    pub success: BTreeSet<i32>,
    /// After which ends the task runs again.
    pub retry: BTreeSet<Retry>,
}

/// Where the item of a task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemPlace {
    /// Into the arguments, where they say `{item}`.
    Argument,
    /// To standard input, which is empty otherwise.
    Stdin,
    /// Nowhere.
    None,
}

/// An end of a command after which its task runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// This exit code.
    Code(i32),
    /// A signal has ended it.
    Signal,
    /// It has exceeded its time limit.
    TimeLimit,
}

/// Why there is no command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CommandsError(String);

impl Commands {
    /// Reads the definitions in a file. `variable` returns a variable of this process.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file, the command and the remedy.
    pub fn read(
        path: &Path,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CommandsError> {
        let problem = |problem: String| {
            let path = path.display();
            CommandsError(format!("the commands in {path} cannot be read: {problem}"))
        };
        let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
        Self::parse(&text, variable).map_err(|error| problem(error.0))
    }

    /// Reads definitions: YAML or JSON.
    ///
    /// # Errors
    ///
    /// Returns an error that names the place or the command, and the remedy.
    pub fn parse(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CommandsError> {
        let mut named = BTreeMap::new();
        for (name, definition) in file::parse(text).map_err(CommandsError)? {
            let command = definition.check(&variable).map_err(|problem| {
                CommandsError(format!("the command '{name}' is not valid: {problem}"))
            })?;
            named.insert(name, command);
        }
        Ok(Self { named, any: None })
    }

    /// Lets jobs bring commands of their own, whose programs are found by this `PATH`.
    #[must_use]
    pub fn allow_any(mut self, path: Option<String>) -> Self {
        self.any = Some(path.unwrap_or_else(|| PATH.to_owned()));
        self
    }

    /// Returns the command of this name.
    pub(crate) fn named(&self, name: Option<&str>) -> Result<&Command, CommandsError> {
        let known = || match self.named.keys().map(String::as_str).collect::<Vec<_>>() {
            names if names.is_empty() => {
                "this worker has none; its operator defines them in the file of --commands"
                    .to_owned()
            }
            names => format!("this worker has {}", names.join(", ")),
        };
        let Some(name) = name else {
            return Err(CommandsError(format!(
                "the task names no command: add the parameter `command` to its batch, e.g. `submit --command NAME`; {}",
                known()
            )));
        };
        self.named
            .get(name)
            .ok_or_else(|| CommandsError(format!("there is no command {name:?}; {}", known())))
    }

    /// Returns a command that a job brings, a JSON array, and its name for people.
    pub(crate) fn of_job(&self, argv: &str) -> Result<(String, Command), CommandsError> {
        let Some(path) = &self.any else {
            return Err(CommandsError(
                "the job brings a command of its own, and this worker runs only those of its operator: name one of them (`submit --command \
                 NAME`), or start `batchwright up` with --allow-any-command"
                    .to_owned(),
            ));
        };
        let invalid = |problem: String| {
            CommandsError(format!(
                "the command that the job brings is not valid: {problem}"
            ))
        };
        if argv.len() > LONGEST_ARGV {
            let size = argv.len();
            return Err(invalid(format!(
                "it has {size} bytes; at most {LONGEST_ARGV} are possible"
            )));
        }
        let run: Vec<String> = serde_json::from_str(argv)
            .map_err(|error| invalid(format!("it is not a JSON array of texts: {error}")))?;
        let definition = file::Definition {
            environment: [("PATH".to_owned(), path.clone())].into(),
            leading_dash: file::LeadingDash::Allowed,
            ..file::Definition::of(run)
        };
        let name = definition.run.join(" ");
        let command = definition.check(&|_: &str| None).map_err(invalid)?;
        let end = name.floor_char_boundary(100);
        Ok((name[..end].to_owned(), command))
    }
}

impl Command {
    /// Returns the arguments for an item.
    pub(crate) fn arguments(&self, item: &str) -> Result<Vec<String>, String> {
        if self.item == ItemPlace::Argument && item.contains('\0') {
            return Err(
                "the item contains the character U+0000, which arguments cannot contain; `item: stdin` in the definition of the command lets it \
                 read such items"
                    .to_owned(),
            );
        }
        let (bytes, most) = match self.item {
            ItemPlace::Argument => (item.len() as u64, LONGEST_ARGUMENT as u64),
            ItemPlace::Stdin | ItemPlace::None => (item.len() as u64, LONGEST_INPUT),
        };
        if bytes > most {
            let remedy = match self.item {
                ItemPlace::Argument => {
                    "; `item: stdin` in the definition of the command lets it read longer ones"
                }
                ItemPlace::Stdin | ItemPlace::None => "",
            };
            return Err(format!(
                "the item has {bytes} bytes; at most {most} are possible{remedy}"
            ));
        }
        let mut options_ended = self.dash_allowed;
        let fill = |argument: &String| {
            if argument.starts_with(PLACE) && item.starts_with('-') && !options_ended {
                return Err(
                    "the item begins with `-`, and the program could take it for an option. The operator of the worker can write \"--\" \
                     before {item} if the program knows that, or `leadingDash: allowed`"
                        .to_owned(),
                );
            }
            options_ended |= argument == "--";
            Ok(argument.replace(PLACE, item))
        };
        self.arguments.iter().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Command, String> {
        let variable = |name: &str| (name == "TOKEN").then(|| "secret".to_owned());
        let commands = Commands::parse(text, variable).map_err(|error| error.to_string())?;
        Ok(commands.named(Some("c")).unwrap().clone())
    }

    #[test]
    fn definition_is_a_list_or_says_more_in_yaml_and_json() {
        let short = parsed("c: [sh, -c, 'echo \"$1\"', --, '{item}']").unwrap();
        assert_eq!(
            short,
            parsed(r#"{"c": ["sh", "-c", "echo \"$1\"", "--", "{item}"]}"#).unwrap()
        );
        assert!(short.program.ends_with("sh") && short.program.is_absolute());
        assert_eq!(
            short.arguments("a b").unwrap(),
            ["-c", "echo \"$1\"", "--", "a b"]
        );
        assert_eq!(
            short.environment,
            [("PATH".to_owned(), PATH.to_owned())].into()
        );
        assert_eq!(short.success, [0].into());
        let long = parsed(
            "c:\n  run: [cat]\n  item: stdin\n  environment: {LANG: C.UTF-8}\n  passEnvironment: [TOKEN]\n  timeLimit: 5\n  maxOutput: 10\n  \
             memory: 64\n  success: [0, 1]\n  retryOn: [75, signal, timeLimit]\n",
        )
        .unwrap();
        assert_eq!(
            (long.item, long.time_limit),
            (ItemPlace::Stdin, Duration::from_secs(5))
        );
        assert_eq!((long.max_output, long.memory), (10, Some(64 << 20)));
        assert_eq!(long.environment["TOKEN"], "secret");
        assert_eq!(
            long.retry,
            [Retry::Code(75), Retry::Signal, Retry::TimeLimit].into()
        );
    }

    #[test]
    fn what_is_wrong_with_a_definition_is_said_with_its_remedy() {
        let mut wrong = Vec::new();
        for (text, problem) in [
            (
                "c: curl {item}",
                "expected a list such as [curl, -sf, --, \"{item}\"], or a map with `run`",
            ),
            (
                "c: [sh, {item}]",
                "expected string scalar at line 1, column 9",
            ),
            (
                "c: {run: [sh, '{item}'], tmie: 3}",
                "unknown field `tmie`, expected one of run, item",
            ),
            (
                "c: []",
                "the command 'c' is not valid: `run` is empty; it begins with the program",
            ),
            (
                "c: [cat]",
                "no argument has a place for the item: write {item} in one, or say `item: stdin` or `item: none`",
            ),
            (
                "c: {run: [sh, '{item}'], item: stdin}",
                "an argument has the place {item}, but the item goes to standard input",
            ),
            (
                "c: ['{item}', a]",
                "the program is the item; a job would say what runs",
            ),
            (
                "c: [nosuchprogram, '{item}']",
                "the program nosuchprogram is not in /usr/local/bin:/usr/bin:/bin; write its absolute path, or set PATH",
            ),
            (
                "c: [/etc/passwd, '{item}']",
                "/etc/passwd is not a program that this process may run",
            ),
            (
                "c: [bin/x, '{item}']",
                "bin/x is a relative path; write an absolute one",
            ),
            (
                "c: {run: [sh, '{item}'], passEnvironment: [NOPE]}",
                "passEnvironment names NOPE, which this process does not have",
            ),
            (
                "c: {run: [sh, '{item}'], environment: {'A=B': c}}",
                "\"A=B\" is not the name of a variable",
            ),
            (
                "c: {run: [sh, '{item}'], timeLimit: 0}",
                "timeLimit is 0; it is from 1 to 86400 (seconds)",
            ),
            (
                "c: {run: [sh, '{item}'], maxOutput: 99999999}",
                "maxOutput is 99999999; it is from 0 to 8388608 (bytes)",
            ),
            ("c: {run: [sh, '{item}'], retryOn: [never]}", "retryOn"),
            (
                "c: {run: [sh, '{item}'], success: [256]}",
                "256 is not an exit code; those are 0 to 255",
            ),
            (
                "c: {run: [sh, '{item}'], success: []}",
                "`success` is empty",
            ),
            (
                "c: {run: [sh, '{item}'], success: [0, 7], retryOn: [7]}",
                "7 is in `success` and in `retryOn`",
            ),
            ("- a", "expected a map of names to commands"),
            ("", "there are no commands"),
            (
                "c d: [sh, '{item}']",
                "\"c d\" is not a name: 1 to 64 letters, digits, - and _",
            ),
        ] {
            let found = parsed(text).unwrap_err();
            if !found.contains(problem) {
                wrong.push(format!("{text}\n{found}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn item_is_no_option_unless_the_operator_says_so() {
        for (text, item, expected) in [
            ("c: [sh, --, '{item}']", "--help", Ok("-- --help")),
            ("c: [sh, '{item}']", "--help", Err("begins with `-`")),
            ("c: [sh, '{item}.txt', --]", "-x", Err("begins with `-`")),
            ("c: [sh, '--file={item}']", "-x", Ok("--file=-x")),
            (
                "c: {run: [sh, '{item}'], leadingDash: allowed}",
                "-5",
                Ok("-5"),
            ),
            ("c: [sh, '{item}']", "a\0b", Err("U+0000")),
            ("c: {run: [cat], item: stdin}", "a\0b", Ok("")),
            (
                "c: [sh, '{item}']",
                &"x".repeat(65_537),
                Err("has 65537 bytes; at most 65536"),
            ),
        ] {
            let arguments = parsed(text).unwrap().arguments(item);
            match expected {
                Ok(expected) => assert_eq!(arguments.unwrap().join(" "), expected),
                Err(problem) => assert!(arguments.unwrap_err().contains(problem), "{text}"),
            }
        }
    }

    #[test]
    fn job_brings_a_command_only_where_that_is_allowed() {
        let argv = r#"["sh", "-c", "echo", "{item}"]"#;
        let refused = Commands::default().of_job(argv).unwrap_err().to_string();
        assert!(refused.contains("--allow-any-command"), "{refused}");
        let commands = Commands::default().allow_any(Some(PATH.to_owned()));
        let (name, command) = commands.of_job(argv).unwrap();
        assert_eq!(name, "sh -c echo {item}");
        assert_eq!(command.arguments("-n").unwrap(), ["-c", "echo", "-n"]);
        for (argv, problem) in [
            ("{}", "not a JSON array of texts"),
            (r#"["sh"]"#, "no argument has a place for the item"),
            (r#"["nosuchprogram", "{item}"]"#, "nosuchprogram is not in"),
        ] {
            let found = commands.of_job(argv).unwrap_err().to_string();
            assert!(found.contains(problem), "{found}");
        }
        let unknown = commands.named(Some("x")).unwrap_err().to_string();
        assert!(unknown.contains("this worker has none"), "{unknown}");
    }

    proptest! {
        #[test]
        fn no_text_is_a_command_that_lets_a_job_say_what_runs(text in ".{0,200}", item in ".{0,50}") {
            if let Ok(commands) = Commands::parse(&text, |_| None) {
                for command in commands.named.values() {
                    prop_assert!(command.program.is_absolute());
                    if let Ok(arguments) = command.arguments(&item) {
                        prop_assert_eq!(arguments.len(), command.arguments.len());
                    }
                }
            }
        }
    }
}
