//! The `RabbitMQ` of a test process. Tests keep apart by the names of their queues.

use faults::RabbitServer;
use tokio::sync::OnceCell;

/// A running node.
#[derive(Debug, Clone)]
pub struct Amqp {
    /// `amqp://guest:guest@127.0.0.1:port/%2f`
    pub url: String,
}

/// Returns the node that all tests of this process share: that of `AMQP_URL`, else a private one.
pub async fn rabbitmq() -> anyhow::Result<Amqp> {
    static SHARED: OnceCell<RabbitServer> = OnceCell::const_new();

    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no `main` that could pass it"
    )]
    match std::env::var("AMQP_URL") {
        Ok(url) if !url.is_empty() => Ok(Amqp { url }),
        _ => Ok(Amqp {
            url: SHARED.get_or_try_init(RabbitServer::start).await?.url(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_tests_share_one_node() -> anyhow::Result<()> {
        let (one, other) = tokio::try_join!(rabbitmq(), rabbitmq())?;
        assert_eq!(one.url, other.url);
        assert!(one.url.starts_with("amqp"), "{}", one.url);
        Ok(())
    }
}
