//! Blobs as files: `FOLDER/owner/group/name`.
//!
//! What must stay true: a file gets its name when its content is on the disk, and the name is on the disk when the write returns.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::fs::{self, File};
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
        self.check_room(&group, content.len() as u64)?;
        let unfinished = group.join(format!("{}{UNFINISHED}", name.name));
        let written = write_file(&unfinished, content).await;
        if let Err(error) = written {
            // It may hold the last of the space.
            let _ = fs::remove_file(&unfinished).await;
            return Err(error);
        }
        fs::rename(&unfinished, group.join(&name.name)).await?;
        sync_folder(&group).await
    }

    /// Refuses a blob that leaves less than the reserve free. What is not known does not count.
    fn check_room(&self, group: &Path, bytes: u64) -> io::Result<()> {
        if self.reserve == 0 {
            return Ok(());
        }
        let Ok(system) = rustix::fs::statvfs(group) else {
            return Ok(());
        };
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        if free.saturating_sub(bytes) >= self.reserve {
            return Ok(());
        }
        let (free, reserve) = (free >> 20, self.reserve >> 20);
        Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("the disk has {free} MiB free, and {reserve} MiB must stay free"),
        ))
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

async fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path).await?;
    file.write_all(content).await?;
    file.flush().await?;
    file.sync_data().await
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
