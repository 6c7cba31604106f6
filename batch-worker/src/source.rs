//! Files and folders below a root, and what they looked like when a batch was made.
//!
//! What must stay true: no definition makes the worker read a file outside of the root, or a hidden
//! file below it, even if another process changes the folders at the same time. Symbolic links are
//! followed only to places below the root; the root itself may be one. A path is first resolved to
//! one without links, and then opened folder by folder. A link found while opening is newer than
//! the resolved path, and is an error.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use crate::SplitError;
use crate::reading::Reading;

/// The longest path or pattern, in bytes: what operating systems accept.
pub const LONGEST_PATH: usize = 4096;

/// How the last part of a path is opened. Opening a pipe or a device must not wait.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// How a folder on the way is opened. Linux does not need the right to list it.
#[cfg(target_os = "linux")]
const PASS: OFlags = READ.union(OFlags::DIRECTORY).union(OFlags::PATH);
#[cfg(not(target_os = "linux"))]
const PASS: OFlags = READ.union(OFlags::DIRECTORY);

/// The folder below which definitions name files. Definitions of [`Lines`](crate::Lines) and
/// [`Glob`](crate::Glob) cannot name others.
#[derive(Debug, Clone)]
pub struct Root {
    folder: PathBuf,
    /// Files and folders that nobody reads, wherever they are.
    hidden: Vec<PathBuf>,
}

/// What a file or folder looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub kind: Kind,
    /// The size in bytes. It has no meaning for a folder.
    pub size: u64,
    /// The time of the last change, in nanoseconds since 1970.
    pub modified: i64,
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
    /// A device, a named pipe, a socket, or, in a listing, a symbolic link.
    Other,
}

impl<P: Into<PathBuf>> From<P> for Root {
    fn from(folder: P) -> Self {
        Self::new(folder)
    }
}

/// What is the same for all paths of one file.
type Identity = (u64, u64);

impl Root {
    /// Returns a root without hidden files.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            hidden: Vec::new(),
        }
    }

    /// Hides these files and folders, with everything below them, from all definitions.
    #[must_use]
    pub fn hide(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.hidden.extend(paths);
        self
    }

    /// Returns what the path below the root looks like now.
    pub(crate) fn stamp(&self, path: &str) -> Result<Stamp, SplitError> {
        let (folder, name) = self.parent_of(path)?;
        let stat = match name {
            Some(name) => statat(&folder, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW),
            None => fstat(&folder),
        };
        let stat = stat.map_err(io::Error::from)?;
        check_visible(path, &stat, &self.hidden_now()?)?;
        stamp_of(&stat)
    }

    /// Opens a file below the root. Returns it and what it looks like.
    pub fn open(&self, path: &str) -> Result<(File, Stamp), SplitError> {
        let (fd, stat) = self.open_to_read(path)?;
        let stamp = stamp_of(&stat)?;
        if stamp.kind != Kind::File {
            return Err(SplitError::Definition(format!("{path:?} is not a file")));
        }
        Ok((File::from(fd), stamp))
    }

    /// Lists a folder below the root, in any order and without what is hidden. Does not follow
    /// links. Returns also what the folder looked like before. Ends early when nobody waits for the
    /// list any more.
    pub fn list(
        &self,
        path: &str,
        reading: &Reading,
    ) -> Result<(Stamp, Vec<(String, Stamp)>), SplitError> {
        let (fd, stat) = self.open_to_read(path)?;
        let stamp = stamp_of(&stat)?;
        if stamp.kind != Kind::Folder {
            return Err(SplitError::Definition(format!("{path:?} is not a folder")));
        }
        let hidden = self.hidden_now()?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&fd).map_err(io::Error::from)? {
            let entry = entry.map_err(io::Error::from)?;
            reading.check()?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(io::Error::from)?;
            if hidden.contains(&identity(&stat)) {
                continue;
            }
            let Ok(name) = entry.file_name().to_str() else {
                return Err(SplitError::Definition(format!(
                    "a name in the folder {path:?} is not UTF-8"
                )));
            };
            entries.push((name.to_owned(), stamp_of(&stat)?));
        }
        Ok((stamp, entries))
    }

    fn open_to_read(&self, path: &str) -> Result<(OwnedFd, Stat), SplitError> {
        let (folder, name) = self.parent_of(path)?;
        let name = name.as_deref().unwrap_or(Path::new("."));
        // Opening a device may have effects, so look first.
        let is_readable = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| matches!(kind_of(&stat), Kind::File | Kind::Folder));
        if !is_readable {
            return Err(SplitError::Definition(format!(
                "{path:?} is neither a file nor a folder"
            )));
        }
        let fd = openat(&folder, name, READ, Mode::empty()).map_err(io::Error::from)?;
        let stat = fstat(&fd).map_err(io::Error::from)?;
        check_visible(path, &stat, &self.hidden_now()?)?;
        Ok((fd, stat))
    }

    /// Opens the folder that contains the path, without following a link. Returns it with the last
    /// part of the path, which is not a link either; with none if the path is the root itself.
    fn parent_of(&self, path: &str) -> Result<(OwnedFd, Option<PathBuf>), SplitError> {
        check_path(path)?;
        let (root, below) = self.resolve(path)?;
        let hidden = self.hidden_now()?;
        let mut folder = pass(CWD, root.as_os_str(), path, &hidden)?;
        let mut parts: Vec<&OsStr> = below.iter().collect();
        let last = parts.pop();
        for part in parts {
            folder = pass(folder, part, path, &hidden)?;
        }
        Ok((folder, last.map(PathBuf::from)))
    }

    /// Returns the root and the path below it, both without links.
    fn resolve(&self, path: &str) -> Result<(PathBuf, PathBuf), SplitError> {
        let root = std::fs::canonicalize(&self.folder)?;
        let named = self.folder.join(path);
        let found = std::fs::canonicalize(&named);
        // A path that leads out says the same whether or not something is there.
        let reached = match &found {
            Ok(found) => found.clone(),
            Err(_) => named
                .ancestors()
                .find_map(|ancestor| std::fs::canonicalize(ancestor).ok())
                .unwrap_or_default(),
        };
        if !reached.starts_with(&root) {
            return Err(SplitError::Definition(format!(
                "{path:?} leads out of the root folder by a symbolic link; name a file below the root folder"
            )));
        }
        let found = found.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) => {
                SplitError::Missing(format!("there is no file {path:?}"))
            }
            Some(Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL) => {
                SplitError::Definition(format!("{path:?}: {error}"))
            }
            _ => SplitError::from(error),
        })?;
        let below = found.strip_prefix(&root)?.to_owned();
        Ok((root, below))
    }

    /// Returns the identities of what is hidden and exists now.
    fn hidden_now(&self) -> Result<Vec<Identity>, SplitError> {
        let mut identities = Vec::with_capacity(self.hidden.len());
        for path in &self.hidden {
            match statat(CWD, path, AtFlags::empty()) {
                Ok(stat) => identities.push(identity(&stat)),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(identities)
    }
}

/// Refuses a text that names nothing below a folder.
pub fn check_path(path: &str) -> Result<(), SplitError> {
    if path.len() > LONGEST_PATH {
        let (bytes, start) = (path.len(), &path[..path.floor_char_boundary(40)]);
        return Err(SplitError::Definition(format!(
            "the path {start:?}… has {bytes} bytes; the limit is {LONGEST_PATH}"
        )));
    }
    let stays = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays && !path.is_empty() && !path.contains('\0') {
        Ok(())
    } else {
        Err(SplitError::Definition(format!(
            "{path:?} is not a path below the root folder"
        )))
    }
}

/// Opens a folder on the way to a path.
fn pass(
    folder: impl AsFd,
    name: &OsStr,
    path: &str,
    hidden: &[Identity],
) -> Result<OwnedFd, SplitError> {
    let next = openat(folder, name, PASS, Mode::empty()).map_err(io::Error::from)?;
    let stat = fstat(&next).map_err(io::Error::from)?;
    check_visible(path, &stat, hidden)?;
    Ok(next)
}

fn check_visible(path: &str, stat: &Stat, hidden: &[Identity]) -> Result<(), SplitError> {
    if hidden.contains(&identity(stat)) {
        return Err(SplitError::Definition(format!(
            "{path:?} is part of the system's own data, which no job reads"
        )));
    }
    Ok(())
}

fn stamp_of(stat: &Stat) -> Result<Stamp, SplitError> {
    let (seconds, nanoseconds) = (i128::from(stat.st_mtime), i128::from(stat.st_mtime_nsec));
    let modified = (seconds * 1_000_000_000 + nanoseconds).max(0);
    Ok(Stamp {
        kind: kind_of(stat),
        size: u64::try_from(stat.st_size)?,
        modified: i64::try_from(modified).unwrap_or(i64::MAX),
    })
}

fn kind_of(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        _ => Kind::Other,
    }
}

#[expect(clippy::unnecessary_cast, reason = "other systems have other types")]
fn identity(stat: &Stat) -> Identity {
    (stat.st_dev as u64, stat.st_ino as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Returns a root with links of all kinds beside a folder with a secret, and with a hidden
    /// folder in it.
    fn tree() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("root/d")).unwrap();
        fs::create_dir_all(at("root/data")).unwrap();
        fs::create_dir_all(at("outside")).unwrap();
        fs::write(at("outside/secret"), "x").unwrap();
        fs::write(at("root/d/file"), "12").unwrap();
        fs::write(at("root/data/broker.db"), "x").unwrap();
        for (target, link) in [
            ("d", "root/inside"),
            ("d/file", "root/to-file"),
            ("../outside", "root/up"),
            ("../../outside/secret", "root/d/secret"),
            ("data", "root/other-name"),
            ("self", "root/self"),
            ("root", "linked-root"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("root/d"), at("root/absolute")).unwrap();
        symlink(at("outside"), at("root/absolute-out")).unwrap();
        let root = Root::new(at("linked-root"));
        let root = root.hide([at("root/data"), at("not-there-yet")]);
        (folder, root)
    }

    #[test]
    fn only_what_is_below_the_root_and_not_hidden_is_read() {
        let (_folder, root) = tree();
        let reading = Reading::default();
        for path in [
            "d/file",
            "./d//file",
            "to-file",
            "inside/file",
            "absolute/file",
        ] {
            let (file, stamp) = root.open(path).unwrap();
            assert_eq!(stamp, root.stamp(path).unwrap(), "{path}");
            assert_eq!(
                (stamp.kind, stamp.size, file.metadata().unwrap().len()),
                (Kind::File, 2, 2),
                "{path}"
            );
        }
        for (path, text) in [
            ("up/secret", "leads out of the root folder"),
            ("up/not-there", "leads out of the root folder"),
            ("d/secret", "leads out of the root folder"),
            ("absolute-out/secret", "leads out of the root folder"),
            ("up", "leads out of the root folder"),
            ("d/../d/file", "not a path below the root folder"),
            ("/etc/passwd", "not a path below the root folder"),
            ("d/file\0", "not a path below the root folder"),
            ("", "not a path below the root folder"),
            ("data/broker.db", "the system's own data"),
            ("data", "the system's own data"),
            ("other-name/broker.db", "the system's own data"),
            ("d/nothing", "there is no file"),
            ("d/file/x", "there is no file"),
            ("self", "symbolic link"),
            (&"d/".repeat(3000), "the limit is 4096"),
            (&"n".repeat(300), "too long"),
        ] {
            for error in [
                root.stamp(path).map(drop).unwrap_err(),
                root.open(path).map(drop).unwrap_err(),
                root.list(path, &reading).map(drop).unwrap_err(),
            ] {
                let text_of = match &error {
                    SplitError::Definition(text) | SplitError::Missing(text) => text.to_lowercase(),
                    SplitError::Temporary(error) => panic!("{path} is retried: {error}"),
                };
                assert!(text_of.contains(text), "{path}: {error:?}");
            }
        }
    }

    #[test]
    fn a_list_shows_neither_what_is_hidden_nor_where_links_lead() {
        let (_folder, root) = tree();
        let reading = Reading::default();
        let names = |path| {
            let (_, entries) = root.list(path, &reading).unwrap();
            let mut names: Vec<_> = entries
                .into_iter()
                .filter(|(_, stamp)| stamp.kind != Kind::Other)
                .map(|(name, _)| name)
                .collect();
            names.sort();
            names
        };
        assert_eq!(names("."), ["d"]);
        assert_eq!(names("absolute"), ["file"]);
        reading.end();
        let ended = root.list("d", &reading).unwrap_err();
        assert!(matches!(ended, SplitError::Temporary(_)), "{ended:?}");
    }

    #[test]
    fn a_link_that_replaces_a_folder_meanwhile_is_not_followed() {
        let (folder, _) = tree();
        let root = fs::canonicalize(folder.path().join("root")).unwrap();
        // As if `up` had been a folder when the path was resolved.
        let at = pass(CWD, root.as_os_str(), "up/secret", &[]).unwrap();
        assert!(pass(at, OsStr::new("up"), "up/secret", &[]).is_err());
    }
}
