//! A fresh database for one test, of each kind that the store supports.

use crate::postgres::postgres;

/// The kind of database in which a test keeps its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    Sqlite,
    Postgres,
}

impl Backend {
    /// Returns the name by which the store calls this kind: `sqlite` or `postgres`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// An empty database that one test owns. Dropping it removes an `SQLite` file.
#[derive(Debug)]
pub struct Database {
    /// The URL for the store: `sqlite:PATH` or `postgres://…`.
    pub url: String,
    _folder: Option<tempfile::TempDir>,
}

impl Database {
    /// Creates a database.
    ///
    /// # Panics
    /// If the folder cannot be created or `PostgreSQL` cannot be reached; the message says what to
    /// install.
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub async fn create(backend: Backend) -> Self {
        match backend {
            Backend::Sqlite => {
                let folder = tempfile::tempdir()
                    .unwrap_or_else(|error| panic!("cannot create a temporary folder: {error}"));
                Self {
                    url: format!("sqlite:{}", folder.path().join("jobs.db").display()),
                    _folder: Some(folder),
                }
            }
            Backend::Postgres => Self {
                url: postgres()
                    .await
                    .unwrap_or_else(|error| panic!("{error:#}"))
                    .url,
                _folder: None,
            },
        }
    }
}
