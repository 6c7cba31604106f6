//! What the documentation says of commands, for the tests that compare it with a program: the
//! tables of the reference, and the commands that a reader copies.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Arg, Command, CommandFactory as _};

use crate::cli::Cli;
use crate::config::SERVING;

/// The pages with commands, besides those in `docs`.
const BESIDE: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

/// Records its arguments, each with a zero behind it, and a mark behind the last one.
const STAND_IN: &str =
    "#!/bin/sh\n{ printf '%s\\0' \"${0##*/}\" \"$@\"; printf '\\001\\0'; } >>\"$CALLS\"\n";

/// A call of the program in the documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Where it stands.
    pub page: PathBuf,
    /// The name of the program and its arguments.
    pub words: Vec<String>,
}

/// Returns all calls of `batchwright` in the documentation. A shell reads them as the shell of a
/// reader does, but finds nothing except what records their arguments.
pub fn calls() -> io::Result<Vec<Call>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = tempfile::tempdir()?;
    let (programs, record) = (folder.path().join("programs"), folder.path().join("calls"));
    fs::create_dir(&programs)?;
    let stand_in = programs.join("batchwright");
    fs::write(&stand_in, STAND_IN)?;
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755))?;
    let mut pages = BESIDE.map(|page| root.join(page)).to_vec();
    find_pages(&root.join("docs"), &mut pages)?;
    let mut calls = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page)?;
        let blocks = text.split("\n```sh\n").skip(1);
        for block in blocks.map(|rest| rest.split("\n```").next().unwrap_or_default()) {
            let mut shell = Process::new("/bin/sh");
            shell.arg("-c").arg(block).current_dir(folder.path());
            shell
                .env_clear()
                .env("PATH", &programs)
                .env("CALLS", &record);
            shell.output()?;
        }
        let recorded = fs::read_to_string(&record).unwrap_or_default();
        let _ = fs::remove_file(&record);
        let recorded = recorded.split_terminator("\u{1}\0");
        calls.extend(recorded.map(|call| Call {
            page: page.clone(),
            words: call.split_terminator('\0').map(str::to_owned).collect(),
        }));
    }
    Ok(calls)
}

fn find_pages(folder: &Path, pages: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            find_pages(&path, pages)?;
        } else if path.extension().is_some_and(|it| it == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// Returns a section for each command of a program, as it is below `batchwright`. A command that
/// passes `--help` on to another program is a section of that one.
pub fn sections(whole: &Command) -> String {
    let program = Cli::command();
    let shared = program.find_subcommand("get").map(headings);
    let shared = shared.unwrap_or_default();
    let mut text = String::new();
    for command in whole
        .get_subcommands()
        .filter(|it| !it.is_hide_set() && !it.is_disable_help_flag_set())
    {
        section(&mut text, command, &shared);
        let is_shown = |it: &&Command| !it.is_hide_set() && it.get_name() != "help";
        for below in command.get_subcommands().filter(is_shown) {
            let name = format!("{} {}", command.get_name(), below.get_name());
            let below = below.clone().name(name);
            section(&mut text, &below, &shared);
        }
    }
    text
}

/// Returns the headings of the flags of a command, in their order.
pub fn headings(command: &Command) -> Vec<&str> {
    let mut headings = Vec::new();
    for heading in command.get_arguments().filter_map(Arg::get_help_heading) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings
}

/// Appends the section of a command, without the flags below headings that commands share.
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
pub fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
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
