//! The servers of a system under faults: servers of its own, given ones, or none because it is
//! embedded.

use anyhow::{Context as _, ensure};
use faults::{Postgres, PostgresServer, Proxy, RabbitServer, create_database, drop_database};
use reqwest::Url;
use tokio::process::Command;

/// What a system stands on.
#[derive(Debug)]
pub enum Ground {
    /// One process, whose broker and database are in a folder.
    Embedded,
    /// Servers that this process has started.
    Own(Servers),
    /// Servers that run already.
    Given(Given),
}

/// Servers that this process has started. They end with it.
#[derive(Debug)]
pub struct Servers {
    /// The database.
    pub postgres: PostgresServer,
    /// The broker.
    pub rabbitmq: RabbitServer,
}

/// Servers that run already.
#[derive(Debug)]
pub struct Given {
    /// The URL of the broker.
    pub broker: String,
    /// The URL of a database server on which a database may be created.
    pub database: String,
    /// The command that restarts the broker.
    pub restart_broker: Option<String>,
    /// The command that restarts the database.
    pub restart_database: Option<String>,
}

/// The addresses of the servers of one system, directly and through a network that can fail.
#[derive(Debug)]
pub struct Addresses {
    /// The database of this system.
    pub database: Postgres,
    /// The broker.
    pub broker: String,
    /// The ways that the processes take.
    pub to_database: Way,
    /// As `to_database`.
    pub to_broker: Way,
}

/// A way to a server.
#[derive(Debug)]
pub struct Way {
    /// The URL for the processes.
    pub url: String,
    /// The network in between; `None` if the connection is encrypted, because the certificate names
    /// the server.
    pub proxy: Option<Proxy>,
}

impl Servers {
    /// Starts both servers, which takes some ten seconds.
    pub async fn start() -> anyhow::Result<Self> {
        let (postgres, rabbitmq) =
            tokio::try_join!(PostgresServer::start(), RabbitServer::start())?;
        Ok(Self { postgres, rabbitmq })
    }
}

impl Given {
    /// Runs a command that restarts a server.
    pub async fn restart(command: Option<&String>) -> anyhow::Result<()> {
        let command = command.context("there is no command that restarts the server")?;
        let status = Command::new("sh")
            .args(["-c", command])
            .kill_on_drop(true)
            .status()
            .await?;
        ensure!(status.success(), "the command {command:?} failed: {status}");
        Ok(())
    }
}

impl Ground {
    /// Creates a database for one system and the ways to it; `None` if the system is embedded. The
    /// broker's connections have a heartbeat of this number of seconds.
    pub async fn addresses(&self, heartbeat: u32) -> anyhow::Result<Option<Addresses>> {
        let (server, broker) = match self {
            Self::Embedded => return Ok(None),
            Self::Own(servers) => (servers.postgres.url("postgres"), servers.rabbitmq.url()),
            Self::Given(given) => (given.database.clone(), given.broker.clone()),
        };
        let to_broker = Way::to(&broker, 5672, |url| {
            if !url.query_pairs().any(|(name, _)| name == "heartbeat") {
                url.query_pairs_mut()
                    .append_pair("heartbeat", &heartbeat.to_string());
            }
        });
        let to_broker = to_broker.await.context("--broker")?;
        let database = create_database(&server).await?;
        let to_database = Way::to(&database.url, 5432, |_| {})
            .await
            .context("--database")?;
        Ok(Some(Addresses {
            database,
            broker,
            to_database,
            to_broker,
        }))
    }

    /// Removes the database of a system from a given server; an own server ends with all of its
    /// data.
    pub async fn forget(&self, addresses: &Addresses) -> anyhow::Result<()> {
        match self {
            Self::Given(given) => drop_database(&given.database, &addresses.database).await,
            Self::Own(_) | Self::Embedded => Ok(()),
        }
    }
}

impl Way {
    async fn to(
        url: &str,
        default_port: u16,
        change: impl FnOnce(&mut Url),
    ) -> anyhow::Result<Self> {
        let mut url = Url::parse(url).context("is not a URL")?;
        change(&mut url);
        if is_encrypted(&url) {
            return Ok(Self {
                url: url.into(),
                proxy: None,
            });
        }
        let host = url
            .host_str()
            .context("names no host")?
            .trim_matches(['[', ']']);
        let port = url.port().unwrap_or(default_port);
        let mut addresses = tokio::net::lookup_host((host.to_owned(), port)).await?;
        let address = addresses.next().context("its host has no address")?;
        let proxy = Proxy::start(address).await?;
        url.set_host(Some("127.0.0.1"))
            .context("has a host that cannot be replaced")?;
        url.set_port(Some(proxy.address().port()))
            .map_err(|()| anyhow::anyhow!("has no port"))?;
        Ok(Self {
            url: url.into(),
            proxy: Some(proxy),
        })
    }
}

/// Returns whether connections to this URL may check the name of the server.
fn is_encrypted(url: &Url) -> bool {
    url.scheme() == "amqps"
        || url.query_pairs().any(|(name, value)| {
            name == "sslmode" && !["disable", "allow", "prefer"].contains(&&*value)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn way_leads_through_the_network_unless_the_connection_is_encrypted() {
        for (given, before, after) in [
            (
                "amqp://u:p%40@localhost:5673/%2f",
                "amqp://u:p%40@127.0.0.1:",
                "/%2f",
            ),
            (
                "postgres://u@127.0.0.1/app?sslmode=prefer",
                "postgres://u@127.0.0.1:",
                "/app?sslmode=prefer",
            ),
        ] {
            let way = Way::to(given, 1, |_| {}).await.unwrap();
            let port = way.proxy.unwrap().address().port();
            assert_eq!(way.url, format!("{before}{port}{after}"));
        }
        for encrypted in [
            "amqps://localhost:5671/%2f",
            "postgres://localhost/app?sslmode=verify-full",
        ] {
            let way = Way::to(encrypted, 1, |_| {}).await.unwrap();
            assert_eq!((&*way.url, way.proxy.is_none()), (encrypted, true));
        }
    }
}
