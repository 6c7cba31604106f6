//! The `PostgreSQL` of a test process, with a fresh database for every test.

use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::Context;
use faults::{Postgres, PostgresServer, create_database};
use tokio::sync::OnceCell;

/// Creates a database on the server that all tests of this process share: that of `DATABASE_URL`,
/// else a private one.
pub async fn postgres() -> anyhow::Result<Postgres> {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED
        .get_or_try_init(Shared::find)
        .await?
        .create_database()
        .await
}

/// The server on which this process creates its databases.
enum Shared {
    Own(PostgresServer),
    Given { url: String, leftovers: Leftovers },
}

impl Shared {
    async fn find() -> anyhow::Result<Self> {
        #[expect(
            clippy::disallowed_methods,
            reason = "a test has no `main` that could pass it"
        )]
        match std::env::var("DATABASE_URL") {
            Ok(url) if !url.is_empty() => Ok(Self::Given {
                leftovers: Leftovers::of(&url)?,
                url,
            }),
            _ => Ok(Self::Own(PostgresServer::start().await?)),
        }
    }

    async fn create_database(&self) -> anyhow::Result<Postgres> {
        match self {
            Self::Own(server) => server.create_database().await,
            Self::Given { url, leftovers } => {
                let database = create_database(url)
                    .await
                    .context("DATABASE_URL is set, but no database can be created there")?;
                leftovers.remember(&database)?;
                Ok(database)
            }
        }
    }
}

/// The databases on a server that is not ours. A shell drops them when this process has ended.
struct Leftovers(Mutex<std::process::ChildStdin>);

impl Leftovers {
    fn of(server: &str) -> anyhow::Result<Self> {
        use std::os::unix::process::CommandExt;

        let psql = faults::postgres_program("psql").context("psql is not installed")?;
        let script = r#"trap : HUP INT TERM
            psql=$1 server=$2
            set --
            while read -r name; do set -- "$@" -c "drop database if exists \"$name\" with (force)"; done
            [ $# -eq 0 ] || exec "$psql" -X -q -w -d "$server" "$@""#;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, "batchwright-leftovers"])
            .arg(psql)
            .arg(server)
            .process_group(0);
        let mut shell = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(Mutex::new(
            shell.stdin.take().context("the shell's input is a pipe")?,
        )))
    }

    fn remember(&self, database: &Postgres) -> anyhow::Result<()> {
        use std::io::Write;

        let mut names = self
            .0
            .lock()
            .map_err(|_| anyhow::anyhow!("an earlier test panicked while it took a database"))?;
        writeln!(names, "{}", database.name())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use faults::psql;

    use super::*;

    #[tokio::test]
    async fn every_call_creates_an_empty_database() -> anyhow::Result<()> {
        let (one, other) = tokio::try_join!(postgres(), postgres())?;
        assert_ne!(one.url, other.url);
        psql(
            &one.url,
            &["create table t (n int)", "insert into t values (1)"],
        )
        .await?;
        assert_eq!(psql(&one.url, &["select count(*) from t"]).await?, "1");
        assert_eq!(
            psql(
                &other.url,
                &["select count(*) from pg_tables where schemaname = 'public'"]
            )
            .await?,
            "0"
        );
        Ok(())
    }
}
