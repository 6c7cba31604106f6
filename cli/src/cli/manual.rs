//! `batchwright completions SHELL` and `batchwright man`: made from the definition of the command
//! line, so that they always fit it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;
use crate::print;

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for a page of each command, `batchwright-list.1` and so on; without it, the page of
    /// the program is printed.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Prints what a shell reads to complete the command line.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let (mut command, mut script) = (without_hidden(&Cli::command()), Vec::new());
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    print::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page of the program, or writes the pages of all commands.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let command = Cli::command();
    let Some(folder) = &args.out else {
        print::bytes(&page(command)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    write(folder, command.get_name(), &command)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the same command line without its hidden commands, which the scripts of some shells
/// would offer.
fn without_hidden(whole: &Command) -> Command {
    let subcommands = whole.get_subcommands().filter(|sub| !sub.is_hide_set());
    Command::new(whole.get_name().to_owned())
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .args(whole.get_arguments())
        .subcommands(subcommands.cloned())
}

/// Writes the page of a command and those of its subcommands. `typed` is what a person types for
/// the command.
fn write(folder: &Path, typed: &str, command: &Command) -> anyhow::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write(folder, &format!("{typed} {}", sub.get_name()), sub)?;
    }
    let name = typed.replace(' ', "-");
    let file = folder.join(format!("{name}.1"));
    let command = command.clone().display_name(name).bin_name(typed);
    fs::write(&file, page(command)?).with_context(|| format!("cannot write {}", file.display()))
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
