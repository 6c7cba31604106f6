//! Tests that `docs/reference/cli.md` shows every command and flag, and that the commands in the
//! documentation exist.

use std::fmt::Write as _;

use clap::{CommandFactory as _, Parser as _};
use harness::check_page;

use crate::cli::Cli;
use crate::reference::{calls, headings, sections, table};

#[test]
fn page_shows_every_command_and_flag() {
    check_page("docs/reference/cli.md", "commands", &commands());
}

#[test]
fn commands_in_the_documentation_exist_with_their_flags() {
    let (calls, mut wrong) = (calls().unwrap(), String::new());
    for call in &calls {
        // It is no error to ask for help.
        if let Err(error) = Cli::try_parse_from(&call.words)
            && error.use_stderr()
        {
            let _ = writeln!(wrong, "{call:?}\n{error}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let checked = calls.len();
    assert!(checked > 30, "only {checked} commands were found");
}

/// Returns a section for each command, and the flags that commands share.
fn commands() -> String {
    let whole = Cli::command();
    let mut text = sections(&whole);
    // All commands that call the job service have the same flags below some headings.
    let client = whole.find_subcommand("get").unwrap();
    let _ = writeln!(
        text,
        "## Flags of every command\n\n{}",
        table(whole.get_arguments())
    );
    for heading in headings(client) {
        let of_heading = client
            .get_arguments()
            .filter(|arg| arg.get_help_heading() == Some(heading));
        let _ = writeln!(
            text,
            "## {heading}\n\nOf every command that calls the job service:\n\n{}",
            table(of_heading)
        );
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
