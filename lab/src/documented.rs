//! Tests that `docs/reference/cli.md` shows every command and flag of the laboratory, and that its
//! commands in the documentation exist.

use std::fmt::Write as _;

use batchwright_cli::reference::{calls, sections};
use clap::{CommandFactory as _, Parser as _};
use harness::check_page;

use crate::cli::Cli;

#[test]
fn page_shows_every_command_and_flag() {
    let sections = sections(&Cli::command());
    let text = format!("{}\n", sections.trim_end());
    check_page("docs/reference/cli.md", "laboratory", &text);
}

#[test]
fn commands_in_the_documentation_exist_with_their_flags() {
    let calls = calls().unwrap().into_iter();
    let calls: Vec<_> = calls
        .filter(|call| {
            let command = call.words.get(1);
            command.is_some_and(|name| ["bench", "chaos"].contains(&name.as_str()))
        })
        .collect();
    let mut wrong = String::new();
    for call in &calls {
        if let Err(error) = Cli::try_parse_from(&call.words) {
            let _ = writeln!(wrong, "{call:?}\n{error}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let checked = calls.len();
    assert!(checked > 10, "only {checked} commands were found");
}
