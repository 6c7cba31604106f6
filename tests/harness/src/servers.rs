//! Both servers, for commands that run many test processes.

use crate::{PostgresServer, RabbitServer};

/// A `PostgreSQL` and a `RabbitMQ` for the processes that a command starts. A server that is
/// already named by `DATABASE_URL` or `AMQP_URL` is not started. Dropping this value stops the
/// others.
#[derive(Debug)]
pub struct Servers {
    postgres: Option<PostgresServer>,
    rabbitmq: Option<RabbitServer>,
}

impl Servers {
    /// Starts the servers, both at the same time.
    pub async fn start() -> anyhow::Result<Self> {
        let is_set =
            |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        let postgres = async {
            if is_set("DATABASE_URL") {
                Ok(None)
            } else {
                PostgresServer::start().await.map(Some)
            }
        };
        let rabbitmq = async {
            if is_set("AMQP_URL") {
                Ok(None)
            } else {
                RabbitServer::start().await.map(Some)
            }
        };
        let (postgres, rabbitmq) = tokio::try_join!(postgres, rabbitmq)?;
        Ok(Self { postgres, rabbitmq })
    }

    /// Returns the variables that name the started servers; the others are in the environment
    /// already.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let postgres = self.postgres.as_ref();
        let rabbitmq = self.rabbitmq.as_ref();
        let database = postgres.map(|server| ("DATABASE_URL", server.url("postgres")));
        let broker = rabbitmq.map(|node| ("AMQP_URL", node.url()));
        database.into_iter().chain(broker).collect()
    }
}
