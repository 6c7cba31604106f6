//! Where the store of a test is: in memory, in a file of its own, in a database of its own.

/// Makes three tests of each function, one per store: in memory, on `SQLite`, on `PostgreSQL`.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        suite!(@ memory, $($test),*);
        suite!(@ sqlite, $($test),*);
        suite!(@ postgres, $($test),*);
    };
    (@ $kind:ident, $($test:ident),*) => {
        mod $kind {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(super::World::open(stringify!($kind)).await).await;
                }
            )*
        }
    };
}

/// The store's URL, good for as long as this is kept.
pub struct Place {
    pub url: String,
    _home: Home,
}

#[expect(dead_code, reason = "kept for as long as the store is used")]
enum Home {
    Nothing,
    Folder(tempfile::TempDir),
    Database(harness::Postgres),
}

impl Place {
    pub async fn of(kind: &str) -> Self {
        let (url, home) = match kind {
            "sqlite" => {
                let folder = tempfile::tempdir().unwrap();
                (
                    format!("sqlite:{}", folder.path().join("jobs.db").display()),
                    Home::Folder(folder),
                )
            }
            "postgres" => {
                let database = harness::postgres().await.expect("PostgreSQL for the test");
                (database.url.clone(), Home::Database(database))
            }
            _ => ("memory:".to_owned(), Home::Nothing),
        };
        Self { url, _home: home }
    }
}
