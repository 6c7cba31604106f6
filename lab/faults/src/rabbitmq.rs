//! Starts, stops and kills a private node of `RabbitMQ`.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::free_port;
use crate::supervisor::{Home, Order, Supervisor, program, run};

const MISSING: &str = "RabbitMQ is not installed: `apt-get install rabbitmq-server` (its service is not needed and may stay \
                       off), or name a running node (a test: AMQP_URL; `batchwright chaos`: --broker)";

/// The Erlang port mapper is a daemon that any node starts and none stops. This one has its own
/// port, belongs to the process group of the node, and ends with it.
const START: &str = r#"epmd -address 127.0.0.1 & exec "$1""#;

/// A node to stop, kill and start again. Dropping it stops the node and removes its data.
#[derive(Debug)]
pub struct RabbitServer {
    supervisor: Supervisor,
    port: u16,
    /// The port of its Erlang port mapper.
    mapper: u16,
}

impl RabbitServer {
    /// Starts a node, which takes some ten seconds.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with("").await
    }

    /// Starts a node with these further lines in its `rabbitmq.conf`.
    pub async fn start_with(settings: &str) -> anyhow::Result<Self> {
        let script = program("rabbitmq-server", &[PathBuf::from("/usr/lib/rabbitmq/bin")])
            .context(MISSING)?;
        let home = Home::new(&["rabbitmq", "nobody"])?;
        let (port, distribution, mapper) = (free_port(), free_port(), free_port());
        let inside = |name: &str| home.path().join(name);
        std::fs::write(
            inside("rabbitmq.conf"),
            format!(
                "listeners.tcp.default = 127.0.0.1:{port}\nloopback_users.guest = true\n{settings}"
            ),
        )?;
        std::fs::write(inside("enabled_plugins"), "[].\n")?;

        let mut node = Command::new("sh");
        node.args(["-c", START, "batchwright-rabbitmq"]).arg(script);
        node.env("HOME", home.path()) // for the cookie
            .env("ERL_EPMD_PORT", mapper.to_string())
            .env("RABBITMQ_NODENAME", node_name(port))
            .env("RABBITMQ_NODE_PORT", port.to_string())
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", inside("none"))
            .env("RABBITMQ_CONFIG_FILE", inside("rabbitmq"))
            .env("RABBITMQ_CONFIG_FILES", inside("conf.d"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", inside("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", inside("enabled_plugins"))
            .env("RABBITMQ_MNESIA_BASE", inside("mnesia"))
            .env("RABBITMQ_LOG_BASE", inside("logs"))
            .env("RABBITMQ_PID_FILE", inside("pid"))
            // Makes the script replace itself by the node, so that signals and the end of the node
            // are the node's own.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            // Idle schedulers that spin take the processor from the tests.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+sbwt none +sbwtdcpu none +sbwtdio none",
            );
        let server = Self {
            supervisor: home.supervise("RabbitMQ", "TERM", &node)?,
            port,
            mapper,
        };
        server.start_again().await?;
        Ok(server)
    }

    /// Shuts the node down. Durable queues and their persistent messages stay.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.supervisor.tell(Order::Stop).await.map(drop)
    }

    /// Leaves the folder where it is when the server ends, and returns its path.
    pub async fn keep(&self) -> anyhow::Result<&Path> {
        self.supervisor.tell(Order::Keep).await?;
        Ok(&self.supervisor.folder)
    }

    /// Kills the node as `kill -9` does.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.supervisor.tell(Order::Kill).await.map(drop)
    }

    /// Starts the stopped node again, with the same port and data. Returns when it accepts
    /// connections.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        self.supervisor
            .start(async || {
                let port = self.port;
                tokio::task::spawn_blocking(move || greet(port)).await?
            })
            .await
    }

    /// Makes the node block publishers as if it were short of memory, or unblock them.
    pub async fn run_short_of_memory(&self, short: bool) -> anyhow::Result<()> {
        self.control(&[
            "set_vm_memory_high_watermark",
            if short { "0" } else { "0.8" },
        ])
        .await
        .map(drop)
    }

    /// Runs `rabbitmqctl` and returns what it prints.
    pub async fn control(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let script =
            program("rabbitmqctl", &[PathBuf::from("/usr/lib/rabbitmq/bin")]).context(MISSING)?;
        let cookie = std::fs::read_to_string(self.supervisor.folder.join(".erlang.cookie"))
            .context("the node has no cookie")?;
        let mut command = Command::new(script);
        command
            .args([
                "--quiet",
                "--node",
                &node_name(self.port),
                "--erlang-cookie",
                cookie.trim(),
            ])
            .args(arguments);
        command
            .env("HOME", &self.supervisor.folder)
            .env("ERL_EPMD_PORT", self.mapper.to_string());
        run(command).await
    }

    /// Returns how often clients have asked for a queue that does not exist, whose name contains
    /// this text. Each time the node closed a channel and logged an error.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn questions_for_missing(&self, queue: &str) -> anyhow::Result<usize> {
        let mut questions = 0;
        for file in std::fs::read_dir(self.supervisor.folder.join("logs"))? {
            let log = std::fs::read(file?.path())?;
            questions += String::from_utf8_lossy(&log)
                .lines()
                .filter(|line| line.contains("no queue '") && line.contains(queue))
                .count();
        }
        Ok(questions)
    }

    /// Returns the address on which the node listens.
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.port)
    }

    /// Returns the URL of the node's default virtual host.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }
}

fn node_name(port: u16) -> String {
    format!("batchwright-{port}@localhost")
}

/// A listening port is not enough: the node must answer AMQP's greeting with a method frame
/// (`Connection.Start`).
fn greet(port: u16) -> anyhow::Result<()> {
    let mut node = TcpStream::connect(("127.0.0.1", port))?;
    node.set_read_timeout(Some(Duration::from_secs(5)))?;
    node.write_all(b"AMQP\x00\x00\x09\x01")?;
    let mut frame = [0];
    node.read_exact(&mut frame)?;
    ensure!(
        frame == [1],
        "the node answers {frame:?} to AMQP's greeting"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stopped_node_restarts_and_a_killed_one_is_gone() -> anyhow::Result<()> {
        let server = RabbitServer::start().await?;
        server.stop().await?;
        assert!(
            greet(server.port).is_err(),
            "it accepts connections after a stop"
        );
        server.start_again().await?;
        greet(server.port)?;
        // That it starts again after a kill is shown by the stories of chaos; each start takes ten
        // seconds.
        server.kill().await?;
        assert!(
            greet(server.port).is_err(),
            "it accepts connections after a kill"
        );
        Ok(())
    }
}
