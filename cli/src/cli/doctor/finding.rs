//! What `doctor` has found, and how it prints that.

use serde::Serialize;

use crate::cli::connect::Output;
use crate::columns;
use crate::print::{self, say};
use crate::text::{Field, escaped};

pub const COLUMNS: &[Field<[String; 3]>] = columns!(|it, now| {
    text("STATE") => it[0].clone();
    text("OF") => it[1].clone();
    text("WHAT") => it[2].clone();
});
/// A cell in which nothing is missing.
const BLANK: &str = " ";

/// Returns how many messages wait, for people.
pub fn messages_wait(count: u64) -> String {
    match count {
        1 => "1 message waits".to_owned(),
        count => format!("{count} messages wait"),
    }
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub state: State,
    /// What it is about: a part of the system, a pipe or a job.
    pub of: String,
    pub what: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// It works, and somebody should look at it; or it waits for something.
    Note,
    /// It cannot be seen from here.
    Unseen,
    Broken,
}

impl Finding {
    pub fn new(state: State, of: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            state,
            of: of.into(),
            what: what.into(),
            remedy: None,
        }
    }

    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

pub fn print(found: &[Finding], output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json => say!("{}", serde_json::to_string(found)?),
        Output::Ndjson => {
            for finding in found {
                say!("{}", serde_json::to_string(finding)?);
            }
        }
        Output::Name => {
            for finding in found
                .iter()
                .filter(|it| !matches!(it.state, State::Ok | State::Unseen))
            {
                say!("{}", escaped(&finding.of));
            }
        }
        Output::Table | Output::Wide => {
            // Nothing is cut: what is wrong must be read.
            let rows: Vec<_> = found.iter().flat_map(rows).collect();
            print::table(COLUMNS, &rows, true)?;
        }
    }
    Ok(())
}

/// Returns the rows of a finding: what was found, and what to do.
pub fn rows(finding: &Finding) -> Vec<[String; 3]> {
    let Finding {
        state,
        of,
        what,
        remedy,
    } = finding;
    let state = match state {
        State::Ok => "ok",
        State::Note => "note",
        State::Unseen => "unseen",
        State::Broken => "BROKEN",
    };
    let found = [state.to_owned(), of.clone(), what.clone()];
    let remedy = remedy.as_ref();
    let remedy = remedy.map(|it| [BLANK.to_owned(), BLANK.to_owned(), format!("→ {it}")]);
    std::iter::once(found).chain(remedy).collect()
}
