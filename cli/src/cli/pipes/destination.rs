//! Where taken messages are written: standard output, or the end of a file.
//!
//! What must stay true: what [`Destination::write`] has returned from is safe, because the messages
//! are acknowledged then; a file never ends within a line.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::print::{self, say};

/// Where taken messages go.
#[derive(Debug)]
pub enum Destination {
    Stdout,
    File(File, PathBuf),
}

impl Destination {
    /// Opens the file, at its end, or standard output if there is none or it is called `-`.
    pub fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(name) = file.filter(|name| name.as_os_str() != "-") else {
            return Ok(Self::Stdout);
        };
        let cannot = || format!("cannot write {}", name.display());
        ensure!(
            !name.exists() || name.is_file(),
            "{} is not a file; without --file, the messages are written to standard output",
            name.display()
        );
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create(true);
        let mut file = options.open(name).with_context(cannot)?;
        let length = file.seek(SeekFrom::End(0)).with_context(cannot)?;
        if length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1)).with_context(cannot)?;
            file.read_exact(&mut last).with_context(cannot)?;
            ensure!(
                last == *b"\n",
                "{} ends within a line; complete or remove this line, or name another file",
                name.display()
            );
        }
        Ok(Self::File(file, name.to_owned()))
    }

    /// Writes lines, each with its end. Returns when they are safe; if that is impossible, a file
    /// is as before.
    pub fn write(&mut self, lines: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => Ok(print::bytes(lines.as_bytes())?),
            Self::File(file, name) => {
                let before = file.metadata()?.len();
                let written = file.write_all(lines.as_bytes());
                let written = written.and_then(|()| file.sync_data());
                written
                    .or_else(|error| {
                        file.set_len(before)?;
                        Err(error)
                    })
                    .with_context(|| format!("cannot write {}", name.display()))
            }
        }
    }

    /// Says how many messages were written, where that is not among them.
    pub fn end(&self, messages: u64) -> anyhow::Result<()> {
        if let Self::File(_, name) = self {
            let noun = if messages == 1 { "message" } else { "messages" };
            say!("{messages} {noun} written to {}", name.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_appended_and_a_file_never_ends_within_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("taken");
        for lines in ["1\n2\n", "3\n"] {
            let mut file = Destination::open(Some(&name)).unwrap();
            file.write(lines).unwrap();
        }
        assert_eq!(std::fs::read(&name).unwrap(), b"1\n2\n3\n");
        std::fs::write(&name, "1\n2").unwrap();
        let refused = Destination::open(Some(&name)).unwrap_err().to_string();
        assert!(refused.contains("taken ends within a line; "), "{refused}");
        let refused = Destination::open(Some(folder.path())).unwrap_err();
        assert!(refused.to_string().contains("is not a file"), "{refused}");
        let missing = folder.path().join("no/folder");
        let refused = format!("{:#}", Destination::open(Some(&missing)).unwrap_err());
        assert!(refused.starts_with("cannot write "), "{refused}");
        assert!(matches!(
            Destination::open(Some(Path::new("-"))).unwrap(),
            Destination::Stdout
        ));
    }
}
