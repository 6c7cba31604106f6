//! Blobs as files: `FOLDER/owner/group/name`.
//!
//! Each operation is one piece of work for a thread that may block: a piece for each call of the
//! system would keep many threads, and the memory that each of them holds.
//!
//! What must stay true:
//! - A file gets its name when its content is on the disk, and the name is on the disk when the
//!   write returns.
//! - Two never write one file at the same time: its content would be a mixture.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use rustix::fs::{Access, OFlags, access};
use tokio::io::BufReader;
use tokio::task::spawn_blocking;

use crate::{BlobError, BlobName, BlobReader, Listed};

/// The end of the name of a file that is being written.
const UNFINISHED: &str = ".part";
/// The bytes that are read at a time.
const BUFFER: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub struct Folder {
    path: Arc<PathBuf>,
    /// How many bytes of the disk stay free.
    pub reserve: u64,
}

impl Folder {
    pub fn new(folder: PathBuf, reserve: u64) -> Self {
        Self {
            path: Arc::new(folder),
            reserve,
        }
    }

    /// Checks that files can be made in the folder, and makes it if it is not there. A full disk is
    /// no error.
    pub async fn check(&self) -> Result<(), BlobError> {
        let path = Arc::clone(&self.path);
        let check = move || {
            make_folder(&path)?;
            Ok(access(&*path, Access::WRITE_OK | Access::EXEC_OK)?)
        };
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        let check = move || check().or_else(|error| if full(&error) { Ok(()) } else { Err(error) });
        self.run("written", check).await
    }

    pub async fn write(&self, name: &BlobName, content: Bytes) -> Result<(), BlobError> {
        let (reserve, group) = (self.reserve, self.group(&name.owner, name.group));
        let name = name.name.clone();
        let write = move || {
            let file = Unfinished::create_in(reserve, &group, &name)?;
            file.write(&content)?;
            file.finish()
        };
        self.run("written", write).await
    }

    /// Begins a file with this path below the folder.
    pub async fn create_file(&self, path: &str) -> Result<NewFile, BlobError> {
        let (folder, path) = (self.clone(), self.path.join(path));
        self.run("written", move || folder.try_create(&path)).await
    }

    fn try_create(&self, path: &Path) -> io::Result<NewFile> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
        else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        // Before a folder is made, what is there of the path must be inside.
        self.check_inside(folder)?;
        let file = Unfinished::create_in(self.reserve, folder, name)?;
        Ok(NewFile(Arc::new(file)))
    }

    /// Refuses a path below the folder that a link leads out of it, as far as the path is there.
    fn check_inside(&self, path: &Path) -> io::Result<()> {
        let mut known = path;
        while !known.try_exists()?
            && let Some(above) = known.parent().filter(|it| !it.as_os_str().is_empty())
        {
            known = above;
        }
        if known.starts_with(&*self.path)
            && !fs::canonicalize(known)?.starts_with(fs::canonicalize(&*self.path)?)
        {
            // Clients read it, who need not know where the folder is.
            let inside = known.strip_prefix(&*self.path).unwrap_or(known);
            let text = format!("{} leads out of it", inside.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    /// Opens the file with this path below the folder.
    pub async fn open_file(&self, path: &str) -> Result<BlobReader, BlobError> {
        let (folder, path) = (self.clone(), self.path.join(path));
        let open = move || {
            folder.check_inside(&path)?;
            File::open(path)
        };
        self.run("read", open).await.map(reader)
    }

    /// Deletes the file with this path below the folder. Of a link, only the link itself.
    pub async fn delete_file(&self, path: &str) -> Result<(), BlobError> {
        let (folder, path) = (self.clone(), self.path.join(path));
        let delete = move || {
            folder.check_inside(path.parent().unwrap_or(&path))?;
            or_missing(fs::remove_file(path))
        };
        self.run("changed", delete).await
    }

    pub async fn open(&self, name: &BlobName) -> Result<BlobReader, BlobError> {
        let file = self.file(name);
        self.run("read", || File::open(file)).await.map(reader)
    }

    pub async fn delete_all(&self, names: &[BlobName]) -> Result<(), BlobError> {
        let files: Vec<_> = names.iter().map(|name| self.file(name)).collect();
        let delete = || {
            let mut files = files.into_iter();
            files.try_for_each(|file| or_missing(fs::remove_file(file)))
        };
        self.run("changed", delete).await
    }

    pub async fn delete_group(&self, owner: &str, group: i64) -> Result<(), BlobError> {
        let group = self.group(owner, group);
        let delete = || or_missing(fs::remove_dir_all(group));
        self.run("changed", delete).await
    }

    pub async fn groups(&self, owner: &str) -> Result<Vec<i64>, BlobError> {
        let folder = self.path.join(owner);
        let names = self.run("read", move || names(&folder)).await?;
        // What is no number is not ours.
        Ok(names
            .iter()
            .filter_map(|(name, _)| name.parse().ok())
            .collect())
    }

    pub async fn list(&self, owner: &str, group: i64) -> Result<Vec<Listed>, BlobError> {
        let folder = self.group(owner, group);
        let names = self.run("read", move || names(&folder)).await?;
        let listed = |(name, written)| Listed {
            group,
            name,
            written,
        };
        Ok(names.into_iter().map(listed).collect())
    }

    fn group(&self, owner: &str, group: i64) -> PathBuf {
        self.path.join(owner).join(group.to_string())
    }

    fn file(&self, name: &BlobName) -> PathBuf {
        self.group(&name.owner, name.group).join(&name.name)
    }

    /// Runs work on the folder, on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, BlobError> {
        let done = blocking(work).await;
        done.map_err(|error| BlobError::new(self, action, &error))
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the folder {}", self.path.display())
    }
}

/// A file that gets its name when it is finished.
#[derive(Debug)]
pub struct NewFile(Arc<Unfinished>);

impl NewFile {
    pub async fn write(&self, content: Bytes) -> io::Result<()> {
        let file = Arc::clone(&self.0);
        blocking(move || file.write(&content)).await
    }

    pub async fn finish(&self) -> io::Result<()> {
        let file = Arc::clone(&self.0);
        blocking(move || file.finish()).await
    }

    /// Gives the file its name unless there is one of this name. Returns whether it did.
    pub async fn finish_new(&self) -> io::Result<bool> {
        let file = Arc::clone(&self.0);
        blocking(move || file.finish_new()).await
    }

    /// Removes what is written.
    pub async fn remove(&self) -> io::Result<()> {
        let file = Arc::clone(&self.0);
        let remove = move || {
            file.remove();
            Ok(())
        };
        blocking(remove).await
    }
}

/// A file that is being written.
#[derive(Debug)]
struct Unfinished {
    reserve: u64,
    folder: PathBuf,
    name: String,
    file: File,
}

impl Unfinished {
    /// Begins a file, which leaves this many bytes of the disk free. Makes the folder if it is
    /// missing.
    fn create_in(reserve: u64, folder: &Path, name: &str) -> io::Result<Self> {
        make_folder(folder)?;
        check_room(folder, 0, reserve)?;
        Ok(Self {
            reserve,
            folder: folder.to_owned(),
            name: name.to_owned(),
            file: create_alone(&folder.join(format!("{name}{UNFINISHED}")))?,
        })
    }

    fn write(&self, content: &[u8]) -> io::Result<()> {
        self.or_remove(|| {
            check_room(&self.folder, content.len() as u64, self.reserve)?;
            (&self.file).write_all(content)
        })
    }

    fn finish(&self) -> io::Result<()> {
        self.or_remove(|| self.file.sync_data())?;
        fs::rename(self.unfinished(), self.folder.join(&self.name))?;
        sync_folder(&self.folder)
    }

    fn finish_new(&self) -> io::Result<bool> {
        self.or_remove(|| self.file.sync_data())?;
        let named = self.folder.join(&self.name);
        let is_new = match fs::hard_link(self.unfinished(), &named) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            // Not every file system has two names for a file.
            Err(_) if !named.try_exists()? => {
                fs::rename(self.unfinished(), &named)?;
                true
            }
            Err(_) => false,
        };
        self.remove();
        sync_folder(&self.folder)?;
        Ok(is_new)
    }

    /// Removes what is written if this fails: it may hold the last of the space.
    fn or_remove<T>(&self, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let done = step();
        if done.is_err() {
            self.remove();
        }
        done
    }

    fn remove(&self) {
        let _ = fs::remove_file(self.unfinished());
    }

    fn unfinished(&self) -> PathBuf {
        self.folder.join(format!("{}{UNFINISHED}", self.name))
    }
}

/// Runs work on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(io::Error::other("the process stops")),
        },
    }
}

fn reader(file: File) -> BlobReader {
    Box::pin(BufReader::with_capacity(
        BUFFER,
        tokio::fs::File::from_std(file),
    ))
}

/// Creates a file, or empties one that a crash has left. Refuses one that somebody writes, in this
/// process or in another one.
fn create_alone(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        // A link may lead anywhere.
        let file = file.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = file.open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let name = path.file_name().unwrap_or_default();
                let text = format!("{} is being written already", name.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            // Not every file system has locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let locked = file.metadata()?.ino();
        match fs::metadata(path) {
            Ok(there) if there.ino() == locked => {
                file.set_len(0)?;
                return Ok(file);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // Who wrote it has finished it meanwhile.
            _ => {}
        }
    }
}

/// Refuses to write if less than the reserve would stay free. What is not known does not count.
fn check_room(folder: &Path, bytes: u64, reserve: u64) -> io::Result<()> {
    if reserve == 0 {
        return Ok(());
    }
    let Ok(system) = rustix::fs::statvfs(folder) else {
        return Ok(());
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free.saturating_sub(bytes) >= reserve {
        return Ok(());
    }
    let (free, reserve) = (free >> 20, reserve >> 20);
    Err(io::Error::new(
        io::ErrorKind::StorageFull,
        format!("the disk has {free} MiB free, and {reserve} MiB must stay free"),
    ))
}

/// Makes a folder and those above it that are missing. Each new name is on the disk when this
/// returns.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut above = Some(folder);
    while let Some(path) = above.filter(|path| !path.as_os_str().is_empty()) {
        if path.try_exists()? {
            break;
        }
        missing.push(path);
        above = path.parent();
    }
    for path in missing.into_iter().rev() {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        sync_folder(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the names in a folder, with the times of their last change. A folder that is not there
/// has none.
fn names(folder: &Path) -> io::Result<Vec<(String, SystemTime)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string() {
            let written = match entry.metadata() {
                // It was deleted just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?.modified()?,
            };
            names.push((name, written));
        }
    }
    Ok(names)
}

fn or_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_gets_no_name_before_its_content_is_on_the_disk() {
        type Finish = fn(&Unfinished) -> io::Result<()>;
        let finish: [Finish; 2] = [Unfinished::finish, |file| file.finish_new().map(drop)];
        for finish in finish {
            let folder = tempfile::tempdir().unwrap();
            let unfinished = Unfinished::create_in(0, folder.path(), "a").unwrap();
            // The system refuses to sync a device.
            let device = OpenOptions::new().write(true).open("/dev/null").unwrap();
            let file = Unfinished {
                file: device,
                ..unfinished
            };
            let refused = finish(&file).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
