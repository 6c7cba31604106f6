//! Files that are not below the root folder, or cannot be read from any place: at URLs, in stores,
//! and packed.

mod copies;
mod store;
mod web;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use framework::http::confined::{AllowedOrigins, ConfinedClient};
use framework::tls::Tls;

pub use self::copies::Copied;
use self::copies::Copies;
pub use self::store::Store;
use self::web::Web;
use super::{Files, Packing, Pin, Place};
use crate::SplitError;
use crate::reading::Reading;

/// What definitions may name beside files below the root folder. The default is nothing; packed
/// files below the root folder can be read.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    web: Option<Web>,
    stores: BTreeMap<String, Store>,
    copies: Arc<Copies>,
}

impl Sources {
    /// The default of the size of all copies together.
    pub const DEFAULT_COPIES: u64 = 20 << 30;

    /// Allows URLs of these origins, at servers that these authorities vouch for.
    #[must_use]
    pub fn urls(self, allowed: AllowedOrigins, tls: &Tls) -> Self {
        Self {
            web: Some(Web::new(ConfinedClient::new(allowed, tls))),
            ..self
        }
    }

    /// Allows the files in a store, which definitions name `store://name/path`.
    #[must_use]
    pub fn store(mut self, name: impl Into<String>, store: Store) -> Self {
        self.stores.insert(name.into(), store);
        self
    }

    /// Hides these files and folders, with everything below them, in all stores that are folders.
    #[must_use]
    pub fn hide(mut self, paths: &[PathBuf]) -> Self {
        for store in self.stores.values_mut() {
            store.hide(paths);
        }
        self
    }

    /// Makes copies in this folder, of at most so many bytes in all. They have no names, and are
    /// gone with the process.
    #[must_use]
    pub fn copies(self, folder: PathBuf, most_bytes: u64) -> Self {
        Self {
            copies: Arc::new(Copies::new(folder, most_bytes)),
            ..self
        }
    }
}

/// Files elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Places(Arc<Sources>);

impl From<Sources> for Places {
    fn from(sources: Sources) -> Self {
        Self(Arc::new(sources))
    }
}

impl Places {
    /// Returns what a file looks like now.
    pub fn look(&self, name: &str, place: Place<'_>, reading: &Reading) -> Result<Pin, SplitError> {
        match place {
            Place::Store(store, path) => self.store(store)?.look(name, path, reading),
            Place::Web | Place::BelowRoot | Place::Upload(_) => self.web(name)?.look(name, reading),
        }
    }

    /// Opens a range of a file, or all of one that can only be read as a whole.
    pub fn open(
        &self,
        name: &str,
        place: Place<'_>,
        pin: &Pin,
        range: (u64, u64),
        reading: &Reading,
    ) -> Result<Box<dyn Read + Send>, SplitError> {
        match place {
            Place::Store(store, path) => self.store(store)?.open(name, path, pin, range, reading),
            Place::Web | Place::BelowRoot | Place::Upload(_) if pin.whole => {
                self.web(name)?.open_whole(name, pin, reading)
            }
            Place::Web | Place::BelowRoot | Place::Upload(_) => {
                self.web(name)?.open(name, pin, range, reading)
            }
        }
    }

    /// Returns the files below a folder, by their paths in its store, at most so many.
    pub fn list(
        &self,
        name: &str,
        place: Place<'_>,
        most: usize,
        reading: &Reading,
    ) -> Result<Vec<(String, Pin)>, SplitError> {
        match place {
            Place::Store(store, path) => self.store(store)?.list(name, path, most, reading),
            Place::Web | Place::BelowRoot | Place::Upload(_) => {
                Err(SplitError::Definition(format!(
                    "{:?} is no folder: the files of a web server cannot be listed; name them",
                    super::shown(name)
                )))
            }
        }
    }

    /// Refuses what is no folder that can be listed.
    pub fn check_folder(
        &self,
        name: &str,
        place: Place<'_>,
        reading: &Reading,
    ) -> Result<(), SplitError> {
        match place {
            Place::Store(store, path) => self.store(store)?.check_folder(name, path, reading),
            Place::Web | Place::BelowRoot | Place::Upload(_) => {
                self.list(name, place, 0, reading).map(drop)
            }
        }
    }

    /// Returns a copy of what is in a file that can only be read as a whole. Makes one if there is
    /// none.
    pub fn copied(
        &self,
        files: &Files,
        name: &str,
        pin: &Pin,
        packing: Packing,
    ) -> Result<Copied, SplitError> {
        let Pin {
            size,
            modified,
            tag,
            ..
        } = pin;
        let key = format!("{name}\n{size} {modified} {tag:?} {packing:?}");
        self.0.copies.get(key, name, packing, &files.reading, || {
            files.open_raw(name, pin, 0, *size)
        })
    }

    fn web(&self, name: &str) -> Result<&Web, SplitError> {
        self.0.web.as_ref().ok_or_else(|| {
            SplitError::Definition(format!(
                "{:?} is not read: the operator allows no URLs (--source-origin)",
                super::shown(name)
            ))
        })
    }

    fn store(&self, name: &str) -> Result<&Store, SplitError> {
        self.0.stores.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.0.stores.keys().map(String::as_str).collect();
            let known = match &names[..] {
                [] => "the operator has named none".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            SplitError::Definition(format!(
                "there is no store {name:?}; {known} (--source-store NAME=PLACE)"
            ))
        })
    }
}
