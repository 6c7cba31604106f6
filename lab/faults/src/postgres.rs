//! Starts, stops and kills a private `PostgreSQL` server, and creates databases on it or on another
//! one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::supervisor::{Home, Order, Supervisor, program, run};
use crate::{free_port, unique};

const MISSING: &str = "PostgreSQL is not installed: `apt-get install postgresql` (its service is not needed and may stay \
                       off), or name a server on which databases may be created (a test: DATABASE_URL; `batchwright chaos`: --database)";

/// The supervisor also creates the data folder, because its owner may be killed in the middle of
/// that. After a kill, it waits for the processes of the server, whose folder that is: a new server
/// refuses to start while one of them is left.
const START: &str = r#"
    initdb=$1 data=$4
    shift
    [ -e "$data" ] || "$initdb" -D "$data" --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync || exit
    is_used() {
        for folder in /proc/[0-9]*/cwd; do
            [ ! "$folder" -ef "$data" ] || return 0
        done
        return 1
    }
    while is_used; do sleep 0.01; done
    exec "$@"
"#;

/// A fresh, empty database.
#[derive(Debug, Clone)]
pub struct Postgres {
    /// `postgres://user@host:port/name`
    pub url: String,
}

impl Postgres {
    /// Returns the name of the database.
    pub fn name(&self) -> &str {
        let base = self
            .url
            .split_once('?')
            .map_or(&*self.url, |(base, _)| base);
        base.rsplit_once('/').map_or("", |(_, name)| name)
    }
}

/// A server to stop, kill and start again. Dropping it stops the server and removes its data.
#[derive(Debug)]
pub struct PostgresServer {
    supervisor: Supervisor,
    port: u16,
}

impl PostgresServer {
    /// Starts a server that does not wait for the disk: its commits survive a crash of the server,
    /// not of the machine.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(&["-c", "fsync=off", "-c", "full_page_writes=off"]).await
    }

    /// Starts a server with `PostgreSQL`'s default durability, for measurements.
    pub async fn start_durable() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    async fn start_with(settings: &[&str]) -> anyhow::Result<Self> {
        let (Some(initdb), Some(postgres)) =
            (postgres_program("initdb"), postgres_program("postgres"))
        else {
            bail!(MISSING)
        };
        let home = Home::new(&["postgres", "nobody"])?;
        let port = free_port();
        let mut server = Command::new("sh");
        server
            .args(["-c", START, "batchwright-postgresql"])
            .arg(initdb)
            .arg(postgres);
        server.arg("-D").arg(home.path().join("data")).args([
            "-p",
            &port.to_string(),
            "-h",
            "127.0.0.1",
            "-k",
            "",
        ]);
        server
            .args(["-c", "max_connections=200", "-c", "shared_buffers=64MB"])
            .args(settings);
        let server = Self {
            supervisor: home.supervise("PostgreSQL", "INT", &server)?,
            port,
        };
        server.start_again().await?;
        Ok(server)
    }

    /// Ends all sessions and shuts the server down. The data stay.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.supervisor.tell(Order::Stop).await.map(drop)
    }

    /// Leaves the folder where it is when the server ends, and returns its path.
    pub async fn keep(&self) -> anyhow::Result<&Path> {
        self.supervisor.tell(Order::Keep).await?;
        Ok(&self.supervisor.folder)
    }

    /// Kills the server as `kill -9` does: it must recover from its log when it starts again.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.supervisor.tell(Order::Kill).await.map(drop)
    }

    /// Starts the stopped server again, with the same port and data. Returns when it accepts
    /// queries.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        let url = self.url("postgres");
        self.supervisor
            .start(async || {
                // The port is tried first because that is cheap.
                TcpStream::connect(("127.0.0.1", self.port))?;
                psql(&url, &["select 1"]).await.map(drop)
            })
            .await
    }

    /// Returns the address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.port)
    }

    /// Returns the URL of a database of this server. The database `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Creates an empty database on this server.
    pub async fn create_database(&self) -> anyhow::Result<Postgres> {
        create_database(&self.url("postgres")).await
    }
}

/// Runs statements with `psql` and returns what it printed, unaligned and without headers.
pub async fn psql(url: &str, statements: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(postgres_program("psql").context(MISSING)?);
    command
        .args([
            "-X",
            "-q",
            "-w",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            url,
        ])
        .stdin(Stdio::null());
    for statement in statements {
        command.args(["-c", statement]);
    }
    run(command).await
}

/// A session that keeps locked what a statement has locked, until it is dropped.
#[derive(Debug)]
pub struct HeldLock {
    _session: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl HeldLock {
    /// Runs a statement in a transaction that stays open.
    pub async fn by(url: &str, statement: &str) -> anyhow::Result<Self> {
        let psql = postgres_program("psql").context(MISSING)?;
        let mut session = tokio::process::Command::new(psql)
            .args(["-X", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-d", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = session.stdin.take().context("it has an input")?;
        let output = session.stdout.take().context("it has an output")?;
        let mut held = Self {
            _session: session,
            input,
            output: BufReader::new(output).lines(),
        };
        held.run(&format!("begin; {statement}")).await?;
        Ok(held)
    }

    /// Ends the transaction.
    pub async fn let_go(mut self) -> anyhow::Result<()> {
        self.run("rollback").await
    }

    async fn run(&mut self, statement: &str) -> anyhow::Result<()> {
        let lines = format!("{statement};\n\\echo done\n");
        self.input.write_all(lines.as_bytes()).await?;
        while let Some(line) = self.output.next_line().await? {
            if line == "done" {
                return Ok(());
            }
        }
        bail!("psql has ended: {statement}")
    }
}

/// Creates an empty database on a server, whose URL names any database of it.
pub async fn create_database(server: &str) -> anyhow::Result<Postgres> {
    let name = unique("batchwright");
    psql(server, &[&format!("create database \"{name}\"")]).await?;
    Ok(Postgres {
        url: with_database(server, &name),
    })
}

/// Removes a database of a server, whose URL names another database of it, and ends all sessions in
/// it.
pub async fn drop_database(server: &str, database: &Postgres) -> anyhow::Result<()> {
    let name = database.name();
    psql(
        server,
        &[&format!("drop database if exists \"{name}\" with (force)")],
    )
    .await
    .map(drop)
}

/// Debian keeps several versions side by side, outside the search path; the newest is taken.
pub fn postgres_program(name: &str) -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<(u32, PathBuf)> = installed
        .filter_map(|version| {
            Some((
                version.file_name().to_str()?.parse().ok()?,
                version.path().join("bin"),
            ))
        })
        .collect();
    versions.sort();
    let folders: Vec<PathBuf> = versions
        .into_iter()
        .rev()
        .map(|(_, folder)| folder)
        .collect();
    program(name, &folders)
}

/// Returns the URL of another database on the same server, with the same user, port and options.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = url
        .split_once('?')
        .map_or((url, None), |(base, query)| (base, Some(query)));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..]
        .find('/')
        .map_or(base.len(), |at| authority + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", &base[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_keeps_user_port_and_options() {
        for (given, expected) in [
            ("postgres://u:p@h:5433/app", "postgres://u:p@h:5433/x"),
            ("postgres://u:p@h:5433", "postgres://u:p@h:5433/x"),
            (
                "postgresql://h/app?sslmode=require&host=/tmp",
                "postgresql://h/x?sslmode=require&host=/tmp",
            ),
        ] {
            assert_eq!(with_database(given, "x"), expected);
            let database = Postgres {
                url: expected.to_owned(),
            };
            assert_eq!(database.name(), "x");
        }
    }

    #[tokio::test]
    async fn a_stopped_or_killed_server_restarts_with_its_data() -> anyhow::Result<()> {
        let server = PostgresServer::start().await?;
        let database = server.create_database().await?;
        psql(&database.url, &["create table t (n int)"]).await?;

        server.stop().await?;
        assert!(
            psql(&database.url, &["select 1"]).await.is_err(),
            "it accepts queries after a stop"
        );
        server.start_again().await?;
        psql(&database.url, &["insert into t values (1)"]).await?;

        server.kill().await?;
        assert!(
            psql(&database.url, &["select 1"]).await.is_err(),
            "it accepts queries after a kill"
        );
        server.start_again().await?;
        assert_eq!(psql(&database.url, &["select count(*) from t"]).await?, "1");

        let folder = server.supervisor.folder.clone();
        drop(server);
        assert!(!folder.exists(), "{} is left", folder.display());
        Ok(())
    }

    #[tokio::test]
    async fn a_server_that_cannot_start_reports_its_log() -> anyhow::Result<()> {
        let error = PostgresServer::start_with(&["-c", "no_such_setting=1"])
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("PostgreSQL did not start: it has ended")
                && error.contains("no_such_setting"),
            "{error}"
        );
        Ok(())
    }
}
