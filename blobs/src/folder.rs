//! Blobs as files: `FOLDER/owner/group/name`.
//!
//! What must stay true:
//! - A file gets its name when its content is on the disk, and the name is on the disk when the write returns.
//! - Two never write one file at the same time: its content would be a mixture.

use std::ffi::OsStr;
use std::fmt;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::OFlags;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncWriteExt as _, BufReader};

use crate::{BlobError, BlobName, BlobReader, Listed};

/// The end of the name of a file that is being written.
const UNFINISHED: &str = ".part";
/// The bytes that are read at a time.
const BUFFER: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub struct Folder {
    path: Arc<PathBuf>,
    /// How many bytes of the disk stay free.
    reserve: u64,
}

impl Folder {
    pub fn new(folder: PathBuf) -> Self {
        Self {
            path: Arc::new(folder),
            reserve: 0,
        }
    }

    /// Leaves this many bytes of the disk free.
    pub fn leaving(self, reserve: u64) -> Self {
        Self { reserve, ..self }
    }

    fn group(&self, owner: &str, group: i64) -> PathBuf {
        self.path.join(owner).join(group.to_string())
    }

    fn file(&self, name: &BlobName) -> PathBuf {
        self.group(&name.owner, name.group).join(&name.name)
    }

    fn error(&self, action: &'static str) -> impl Fn(io::Error) -> BlobError {
        move |error| BlobError::new(self, action, &error)
    }

    pub async fn write(&self, name: &BlobName, content: &[u8]) -> Result<(), BlobError> {
        self.try_write(name, content)
            .await
            .map_err(self.error("written"))
    }

    async fn try_write(&self, name: &BlobName, content: &[u8]) -> io::Result<()> {
        let group = self.group(&name.owner, name.group);
        if !fs::try_exists(&group).await? {
            make_folder(&group).await?;
        }
        let mut file = NewFile::create(self.reserve, &group, &name.name).await?;
        file.write(content).await?;
        file.finish().await
    }

    /// Begins a file with this path below the folder.
    pub async fn create_file(&self, path: &str) -> Result<NewFile, BlobError> {
        self.try_create(path).await.map_err(self.error("written"))
    }

    async fn try_create(&self, path: &str) -> io::Result<NewFile> {
        let path = self.path.join(path);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
        else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        // Before a folder is made, what is there of the path must be inside.
        self.check_inside(folder).await?;
        make_folder(folder).await?;
        NewFile::create(self.reserve, folder, name).await
    }

    /// Refuses a path below the folder that a link leads out of it, as far as the path is there.
    async fn check_inside(&self, path: &Path) -> io::Result<()> {
        let mut known = path;
        while !fs::try_exists(known).await?
            && let Some(above) = known.parent().filter(|it| !it.as_os_str().is_empty())
        {
            known = above;
        }
        if known.starts_with(&*self.path)
            && !fs::canonicalize(known)
                .await?
                .starts_with(fs::canonicalize(&*self.path).await?)
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
        let opened = async {
            let path = self.path.join(path);
            self.check_inside(&path).await?;
            File::open(path).await
        };
        let file = opened.await.map_err(self.error("read"))?;
        Ok(Box::pin(BufReader::with_capacity(BUFFER, file)))
    }

    /// Deletes the file with this path below the folder. Of a link, only the link itself.
    pub async fn delete_file(&self, path: &str) -> Result<(), BlobError> {
        let deleted = async {
            let path = self.path.join(path);
            self.check_inside(path.parent().unwrap_or(&path)).await?;
            or_missing(fs::remove_file(path).await)
        };
        deleted.await.map_err(self.error("changed"))
    }

    pub async fn open(&self, name: &BlobName) -> Result<BlobReader, BlobError> {
        let file = File::open(self.file(name)).await;
        let file = file.map_err(self.error("read"))?;
        Ok(Box::pin(BufReader::with_capacity(BUFFER, file)))
    }

    pub async fn delete(&self, name: &BlobName) -> Result<(), BlobError> {
        or_missing(fs::remove_file(self.file(name)).await).map_err(self.error("changed"))
    }

    pub async fn delete_group(&self, owner: &str, group: i64) -> Result<(), BlobError> {
        or_missing(fs::remove_dir_all(self.group(owner, group)).await)
            .map_err(self.error("changed"))
    }

    pub async fn groups(&self, owner: &str) -> Result<Vec<i64>, BlobError> {
        let names = names(&self.path.join(owner)).await;
        let names = names.map_err(self.error("read"))?;
        // What is no number is not ours.
        Ok(names
            .iter()
            .filter_map(|(name, _)| name.parse().ok())
            .collect())
    }

    pub async fn list(&self, owner: &str, group: i64) -> Result<Vec<Listed>, BlobError> {
        let names = names(&self.group(owner, group)).await;
        let names = names.map_err(self.error("read"))?;
        let listed = |(name, written)| Listed {
            group,
            name,
            written,
        };
        Ok(names.into_iter().map(listed).collect())
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the folder {}", self.path.display())
    }
}

/// A file that gets its name when it is finished.
#[derive(Debug)]
pub struct NewFile {
    reserve: u64,
    folder: PathBuf,
    name: String,
    file: File,
}

impl NewFile {
    /// Begins a file, which leaves this many bytes of the disk free.
    async fn create(reserve: u64, folder: &Path, name: &str) -> io::Result<Self> {
        check_room(folder, 0, reserve)?;
        Ok(Self {
            reserve,
            folder: folder.to_owned(),
            name: name.to_owned(),
            file: create_alone(&folder.join(format!("{name}{UNFINISHED}"))).await?,
        })
    }

    pub async fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let written = async {
            check_room(&self.folder, content.len() as u64, self.reserve)?;
            self.file.write_all(content).await
        };
        match written.await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.remove().await;
                Err(error)
            }
        }
    }

    pub async fn finish(&mut self) -> io::Result<()> {
        self.sync().await?;
        fs::rename(self.unfinished(), self.folder.join(&self.name)).await?;
        sync_folder(&self.folder).await
    }

    /// Gives the file its name unless there is one of this name. Returns whether it did.
    pub async fn finish_new(&mut self) -> io::Result<bool> {
        self.sync().await?;
        let named = self.folder.join(&self.name);
        let is_new = match fs::hard_link(self.unfinished(), &named).await {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            // Not every file system has two names for a file.
            Err(_) if !fs::try_exists(&named).await? => {
                fs::rename(self.unfinished(), &named).await?;
                true
            }
            Err(_) => false,
        };
        self.remove().await;
        sync_folder(&self.folder).await?;
        Ok(is_new)
    }

    async fn sync(&mut self) -> io::Result<()> {
        let written = async {
            self.file.flush().await?;
            self.file.sync_data().await
        };
        let synced = written.await;
        if synced.is_err() {
            self.remove().await;
        }
        synced
    }

    /// Removes what is written: it may hold the last of the space.
    pub async fn remove(&self) {
        let _ = fs::remove_file(self.unfinished()).await;
    }

    fn unfinished(&self) -> PathBuf {
        self.folder.join(format!("{}{UNFINISHED}", self.name))
    }
}

/// Creates a file, or empties one that a crash has left. Refuses one that somebody writes, in this process or in another one.
async fn create_alone(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        // A link may lead anywhere.
        let file = file.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = file.open(path).await?.into_std().await;
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
        match fs::metadata(path).await {
            Ok(there) if there.ino() == locked => {
                file.set_len(0)?;
                return Ok(File::from_std(file));
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

/// Makes a folder and those above it that are missing. Each new name is on the disk when this returns.
async fn make_folder(folder: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut above = Some(folder);
    while let Some(path) = above.filter(|path| !path.as_os_str().is_empty()) {
        if fs::try_exists(path).await? {
            break;
        }
        missing.push(path);
        above = path.parent();
    }
    for path in missing.into_iter().rev() {
        match fs::create_dir(path).await {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        sync_folder(above.unwrap_or(Path::new("."))).await?;
    }
    Ok(())
}

async fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder).await?.sync_all().await
}

/// Returns the names in a folder, with the times of their last change. A folder that is not there has none.
async fn names(folder: &Path) -> io::Result<Vec<(String, SystemTime)>> {
    let mut entries = match fs::read_dir(folder).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        if let Ok(name) = entry.file_name().into_string() {
            let written = match entry.metadata().await {
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
