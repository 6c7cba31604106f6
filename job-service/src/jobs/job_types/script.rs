//! The script of a job type: a jq filter, compiled once and run for every request. Hides the jq
//! library.
//!
//! What must stay true:
//! - A script can access only its input, neither the environment nor files, and it cannot end the
//!   process.
//! - `error(…)` is a message from the definition to the client. Every other failure is an error in
//!   the definition.

use std::cell::RefCell;
use std::fmt;

use jaq_core::compile::Undefined;
use jaq_core::data::HasLut;
use jaq_core::load::parse::Def;
use jaq_core::load::{self, Arena, File, Loader};
use jaq_core::native::{Fun, bome, run, v};
use jaq_core::{Ctx, DataT, Lut, RunPtr, Vars};
use jaq_json::Val;
use serde::{Deserialize, Serialize};

/// The functions that access more than the input: `env` reads the environment, the others write to
/// standard error or end the process.
const WITHHELD: [&str; 5] = ["env", "halt", "halt_error", "stderr", "stderr_empty"];

/// A compiled script. Many threads may run it concurrently.
pub struct Script(jaq_core::Filter<Jq>);

/// Why a run returned no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScriptError {
    /// The script called `error(…)` with this message.
    Refused(String),
    /// The script failed in another way.
    Failed(String),
}

/// Defines for the jq library which types the values and the data of a run have.
struct Jq;

/// The data of one run.
#[derive(Clone)]
struct Run<'a> {
    lut: &'a Lut<Jq>,
    /// The argument of the last call of `error`.
    last_error: &'a RefCell<Option<Val>>,
}

impl DataT for Jq {
    type V<'a> = Val;
    type Data<'a> = Run<'a>;
}

impl<'a> HasLut<'a, Jq> for Run<'a> {
    fn lut(&self) -> &'a Lut<Jq> {
        self.lut
    }
}

impl Script {
    /// Compiles a script. The error is `LINE:COLUMN: what is wrong`.
    pub fn compile(code: &str) -> Result<Self, String> {
        let arena = Arena::default();
        let modules = Loader::new(definitions())
            .load(&arena, File { code, path: () })
            .map_err(|errors| first_error(code, &errors, describe_load_error))?;
        let filter = jaq_core::Compiler::default()
            .with_funs(functions())
            .compile(modules)
            .map_err(|errors| {
                first_error(code, &errors, |names| {
                    names
                        .first()
                        .map(|(name, what)| (*name, undefined(name, what)))
                })
            })?;
        Ok(Self(filter))
    }

    /// Runs the script on a JSON text and returns its value as JSON. The script must return exactly
    /// one value. There is no time limit.
    pub fn run(&self, input: &[u8]) -> Result<String, ScriptError> {
        let input = jaq_json::read::parse_single(input)
            .map_err(|error| ScriptError::Failed(format!("its input is not JSON: {error}")))?;
        let last_error = RefCell::new(None);
        let context = Ctx::<Jq>::new(
            Run {
                lut: &self.0.lut,
                last_error: &last_error,
            },
            Vars::new([]),
        );
        let mut values = self.0.id.run((context, input));
        let mut next = || {
            values
                .next()
                .transpose()
                .map_err(|exception| match exception.get_err() {
                    Ok(error) => failure(&error, last_error.take()),
                    Err(_) => ScriptError::Failed("it ended by itself".to_owned()),
                })
        };
        let value =
            next()?.ok_or_else(|| ScriptError::Failed("it returned no value".to_owned()))?;
        match next()? {
            None => Ok(value.to_string()),
            Some(_) => Err(ScriptError::Failed(
                "it returned more than one value".to_owned(),
            )),
        }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

/// Distinguishes a call of `error` that ended the run from every other failure.
fn failure(error: &jaq_json::Error, last_error: Option<Val>) -> ScriptError {
    match last_error {
        Some(value) if *error == jaq_json::Error::new(value.clone()) => {
            ScriptError::Refused(match value {
                Val::TStr(text) => String::from_utf8_lossy(&text).into_owned(),
                other => other.to_string(),
            })
        }
        _ => ScriptError::Failed(error.to_string()),
    }
}

/// The jq standard library without the withheld definitions.
fn definitions() -> impl Iterator<Item = Def<&'static str>> {
    jaq_core::defs()
        .chain(jaq_std::defs())
        .chain(jaq_json::defs())
        .filter(|def| !WITHHELD.contains(&def.name))
}

/// The native functions without the withheld ones, and with an `error` that records its argument.
fn functions() -> impl Iterator<Item = Fun<Jq>> {
    let error: RunPtr<Jq> = |cv| {
        cv.0.data().last_error.replace(Some(cv.1.clone()));
        bome(Err(jaq_json::Error::new(cv.1)))
    };
    let all = jaq_core::funs()
        .chain(jaq_std::funs())
        .chain(jaq_json::funs());
    let kept = all.filter(|(name, ..)| *name != "error_empty" && !WITHHELD.contains(name));
    kept.chain([run::<Jq>(("error_empty", v(0), error))])
}

/// Returns the first error of a compilation with its line and column. `read` returns the position
/// of an error as a slice of the script, and a description of the error.
fn first_error<'s, E>(
    code: &'s str,
    errors: &[(File<&'s str, ()>, E)],
    read: impl Fn(&E) -> Option<(&'s str, String)>,
) -> String {
    let Some((at, description)) = errors.iter().find_map(|(_, error)| read(error)) else {
        return "it is not valid".to_owned();
    };
    let offset = load::span(code, at).start;
    let before = code.get(..offset).unwrap_or(code);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("{line}:{column}: {description}")
}

fn describe_load_error<'s>(error: &load::Error<&'s str>) -> Option<(&'s str, String)> {
    let found = |at: &str| {
        let word: String = at
            .chars()
            .take_while(|c| !c.is_whitespace())
            .take(20)
            .collect();
        if word.is_empty() {
            "the end".to_owned()
        } else {
            format!("'{word}'")
        }
    };
    match error {
        load::Error::Io(errors) => errors
            .first()
            .map(|(at, error)| (*at, format!("the module {at} cannot be used: {error}"))),
        load::Error::Lex(errors) => errors.first().map(|(expected, at)| {
            (
                *at,
                format!("expected {}, found {}", expected.as_str(), found(at)),
            )
        }),
        load::Error::Parse(errors) => errors.first().map(|(expected, at)| {
            (
                *at,
                format!("expected {}, found {}", expected.as_str(), found(at)),
            )
        }),
    }
}

fn undefined(name: &str, what: &Undefined) -> String {
    match what {
        Undefined::Filter(arity) => format!("there is no function {name}/{arity}"),
        other => format!("there is no {} {name}", other.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(code: &str, input: &str) -> Result<String, ScriptError> {
        Script::compile(code).unwrap().run(input.as_bytes())
    }

    #[test]
    fn a_compile_error_has_its_line_and_column() {
        for (code, error) in [
            ("{a: .b", "1:7: expected closing brace, found the end"),
            (".a |", "1:5: expected term, found the end"),
            ("{\n  a: nosuch(1)\n}", "2:6: there is no function nosuch/1"),
            (".a as $x | $y", "1:12: there is no variable $y"),
            (
                "include \"x\"; .",
                "1:10: the module x cannot be used: module loading not supported",
            ),
        ] {
            assert_eq!(Script::compile(code).unwrap_err(), error, "{code}");
        }
    }

    #[test]
    fn a_script_can_access_only_its_input() {
        for code in [
            "env",
            "$ENV",
            "halt",
            "halt(3)",
            "\"x\" | halt_error",
            "stderr",
            "input",
        ] {
            assert!(
                Script::compile(code).unwrap_err().contains("there is no"),
                "{code}"
            );
        }
    }

    #[test]
    fn a_call_of_error_differs_from_every_other_failure() {
        let refused = |text: &str| Err(ScriptError::Refused(text.to_owned()));
        assert_eq!(run("error(\"no \\(.a)\")", r#"{"a":1}"#), refused("no 1"));
        assert_eq!(
            run("error({code: .a})", r#"{"a":1}"#),
            refused(r#"{"code":1}"#)
        );
        assert_eq!(
            run("try error(\"x\") catch error(\"again \" + .)", "null"),
            refused("again x")
        );
        for code in [
            ".a.b",
            "try error(\"x\") catch (1 | .a)",
            "empty",
            "1, 2",
            "1 + {}",
            "last(range(3) | if . == 2 then {} + 1 else . end)",
        ] {
            assert!(
                matches!(run(code, r#"{"a":1}"#), Err(ScriptError::Failed(_))),
                "{code}"
            );
        }
        assert_eq!(
            run("try error(\"x\") catch .", "null"),
            Ok("\"x\"".to_owned())
        );
    }

    #[test]
    fn numbers_keep_their_notation() {
        assert_eq!(
            run("{a}", r#"{"a":[123456789012345678901234567890,1.10]}"#),
            Ok(r#"{"a":[123456789012345678901234567890,1.10]}"#.to_owned())
        );
    }
}
