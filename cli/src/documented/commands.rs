//! Tests that `docs/reference/cli.md` shows every command and flag, and that the commands in the
//! documentation exist.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Arg, Command, CommandFactory as _, Parser as _};
use harness::check_page;

use crate::cli::Cli;
use crate::config::SERVING;

/// The pages with commands, besides those in `docs`.
const BESIDE: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

/// Records its arguments, each with a zero behind it, and a mark behind the last one.
const STAND_IN: &str =
    "#!/bin/sh\n{ printf '%s\\0' \"${0##*/}\" \"$@\"; printf '\\001\\0'; } >>\"$CALLS\"\n";

#[test]
fn page_shows_every_command_and_flag() {
    check_page("docs/reference/cli.md", "commands", &commands());
}

/// A shell reads the commands as the shell of a reader does, but finds nothing except what records
/// their arguments.
#[test]
fn commands_in_the_documentation_exist_with_their_flags() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = tempfile::tempdir().unwrap();
    let (programs, calls) = (folder.path().join("programs"), folder.path().join("calls"));
    fs::create_dir(&programs).unwrap();
    let stand_in = programs.join("batchwright");
    fs::write(&stand_in, STAND_IN).unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    let mut pages = BESIDE.map(|page| root.join(page)).to_vec();
    find_pages(&root.join("docs"), &mut pages);
    let (mut checked, mut wrong) = (0, String::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("\n```sh\n").skip(1);
        for block in blocks.map(|rest| rest.split("\n```").next().unwrap_or_default()) {
            let mut shell = Process::new("/bin/sh");
            shell.arg("-c").arg(block).current_dir(folder.path());
            shell
                .env_clear()
                .env("PATH", &programs)
                .env("CALLS", &calls);
            shell.output().unwrap();
        }
        let recorded = fs::read_to_string(&calls).unwrap_or_default();
        let _ = fs::remove_file(&calls);
        for call in recorded.split_terminator("\u{1}\0") {
            checked += 1;
            if let Err(error) = Cli::try_parse_from(call.split_terminator('\0')) {
                // It is no error to ask for help.
                if error.use_stderr() {
                    let call = call.replace('\0', " ");
                    let _ = writeln!(wrong, "{}: {call}\n{error}", page.display());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(checked > 30, "only {checked} commands were found");
}

fn find_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            find_pages(&path, pages);
        } else if path.extension().is_some_and(|it| it == "md") {
            pages.push(path);
        }
    }
}

/// Returns a section for each command.
fn commands() -> String {
    let whole = Cli::command();
    let mut text = String::new();
    // All commands that call the job service have the same flags below some headings.
    let client = whole.find_subcommand("get").unwrap();
    let shared = headings(client);
    for command in whole.get_subcommands().filter(|it| !it.is_hide_set()) {
        section(&mut text, command, &shared);
        let is_shown = |it: &&Command| !it.is_hide_set() && it.get_name() != "help";
        for below in command.get_subcommands().filter(is_shown) {
            let name = format!("{} {}", command.get_name(), below.get_name());
            let below = below.clone().name(name);
            section(&mut text, &below, &shared);
        }
    }
    let _ = writeln!(
        text,
        "## Flags of every command\n\n{}",
        table(whole.get_arguments())
    );
    for heading in shared {
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

fn headings(command: &Command) -> Vec<&str> {
    let mut headings = Vec::new();
    for heading in command.get_arguments().filter_map(Arg::get_help_heading) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings
}

fn section(text: &mut String, command: &Command, shared: &[&str]) {
    let serves = SERVING.contains(&command.get_name());
    let mut shown = command
        .clone()
        .bin_name(format!("batchwright {}", command.get_name()));
    let usage = shown.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines();
    let usage: Vec<_> = usage.map(|line| format!("`{}`", line.trim())).collect();
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(
        text,
        "{} {}\n\n{}\n\n{}.\n",
        if command.get_name().contains(' ') {
            "###"
        } else {
            "##"
        },
        command.get_name(),
        usage.join(" or "),
        about.trim_end_matches('.')
    );
    let own = command.get_arguments().filter(|arg| {
        let is_shared = arg
            .get_help_heading()
            .is_some_and(|it| shared.contains(&it));
        // What can be set by a variable is on the page about variables.
        let has_own_page = serves && arg.get_env().is_some();
        !is_shared && !has_own_page
    });
    let table = table(own);
    if !table.is_empty() {
        let _ = writeln!(text, "{table}");
    }
    if serves {
        let _ = writeln!(
            text,
            "Further flags: [flags and variables](variables.md).\n"
        );
    }
}

/// Returns a table of these arguments; nothing if there are none.
fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut text = String::new();
    for arg in arguments
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version")
    {
        if text.is_empty() {
            text.push_str("| argument | default | |\n|---|---|---|\n");
        }
        let values = arg.get_value_names().unwrap_or_default();
        let value = values
            .iter()
            .map(|it| format!("<{it}>"))
            .collect::<Vec<_>>()
            .join(" ");
        let takes_value = arg.get_action().takes_values();
        let name = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long}"),
            (None, Some(long)) => format!("--{long}"),
            _ => String::new(),
        };
        let name = match (name.is_empty(), takes_value) {
            (true, _) => value,
            (false, true) => format!("{name} {value}"),
            (false, false) => name,
        };
        let default = arg
            .get_default_values()
            .first()
            .filter(|_| takes_value)
            .map_or_else(String::new, |value| {
                format!("`{}`", value.to_string_lossy())
            });
        let variable = arg.get_env().map_or_else(String::new, |name| {
            format!(" (`{}`)", name.to_string_lossy())
        });
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let [name, help] = [name, help].map(|it| it.replace('|', "\\|"));
        let _ = writeln!(text, "| `{name}` | {default} | {help}{variable} |");
    }
    text
}
