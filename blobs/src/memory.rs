//! Blobs in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::{BlobError, BlobName, BlobReader, Listed};

#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<BTreeMap<BlobName, (Bytes, SystemTime)>>>);

impl Memory {
    fn blobs(&self) -> MutexGuard<'_, BTreeMap<BlobName, (Bytes, SystemTime)>> {
        self.0.lock()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "files have the system's time, too"
    )]
    pub fn write(&self, name: BlobName, content: Bytes) {
        self.blobs().insert(name, (content, SystemTime::now()));
    }

    pub fn open(&self, name: &BlobName) -> Result<BlobReader, BlobError> {
        let content = self.blobs().get(name).map(|(content, _)| content.clone());
        let missing = || BlobError::new("the memory", "read", &io::ErrorKind::NotFound.into());
        Ok(Box::pin(Cursor::new(content.ok_or_else(missing)?)))
    }

    pub fn delete(&self, name: &BlobName) {
        self.blobs().remove(name);
    }

    pub fn delete_group(&self, owner: &str, group: i64) {
        self.blobs()
            .retain(|name, _| name.owner != owner || name.group != group);
    }

    pub fn groups(&self, owner: &str) -> Vec<i64> {
        let blobs = self.blobs();
        let own = blobs.keys().filter(|name| name.owner == owner);
        let groups: BTreeSet<i64> = own.map(|name| name.group).collect();
        groups.into_iter().collect()
    }

    pub fn list(&self, owner: &str, group: i64) -> Vec<Listed> {
        let blobs = self.blobs();
        let own = blobs
            .iter()
            .filter(|(name, _)| name.owner == owner && name.group == group);
        own.map(|(name, (_, written))| Listed {
            group,
            name: name.name.clone(),
            written: *written,
        })
        .collect()
    }
}
