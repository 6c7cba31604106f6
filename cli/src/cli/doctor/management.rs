//! Looks at the settings of queues over the management API of RabbitMQ: what policies say is seen
//! nowhere else.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use contract::is_delay_pipe;
use framework::tls::Tls;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Certificate, Client, Identity, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;

use super::finding::{Finding, State};

const LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of the description of a queue.
const MOST_BYTES: usize = 1024 * 1024;
/// The name in findings.
const MANAGEMENT: &str = "management";

/// A queue, as the management API describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Queue {
    name: String,
    policy: Option<String>,
    arguments: Value,
    effective_policy_definition: Value,
}

/// Says which of these queues may drop messages, and why.
pub async fn queues(url: &str, broker: &str, tls: &Tls, pipes: &[String]) -> Vec<Finding> {
    match look(url, broker, tls, pipes).await {
        Ok(found) => found,
        Err(error) => {
            let failed = Finding::new(State::Broken, MANAGEMENT, format!("{error:#}"));
            vec![failed.remedy(
                "rabbitmq-plugins enable rabbitmq_management; --management http://user:password@host:15672",
            )]
        }
    }
}

async fn look(
    url: &str,
    broker: &str,
    tls: &Tls,
    pipes: &[String],
) -> anyhow::Result<Vec<Finding>> {
    let mut base = Url::parse(url).context("the URL of --management is invalid")?;
    // What follows is relative to the whole path: the API may be behind a prefix.
    let prefix = format!("{}/", base.path().trim_end_matches('/'));
    base.set_path(&prefix);
    let vhost = vhost(broker);
    let http = client(tls)?;
    let (mut found, mut looked) = (Vec::new(), 0);
    for pipe in pipes {
        let name = utf8_percent_encode(pipe, NON_ALPHANUMERIC);
        let queue = base.join(&format!("api/queues/{vhost}/{name}"))?;
        // The error must not show the password in the URL.
        let response = http.get(queue).send().await;
        let response = response.map_err(reqwest::Error::without_url)?;
        match response.status() {
            StatusCode::NOT_FOUND => continue,
            status if status.is_success() => {}
            status => bail!("the management API returns {status}"),
        }
        let queue: Queue = serde_json::from_slice(&body(response).await?)
            .context("the management API does not describe a queue")?;
        looked += 1;
        found.extend(about(&queue));
    }
    if looked == 0 && !pipes.is_empty() {
        let what =
            "the management API knows none of these queues, so their policies cannot be seen";
        found.push(
            Finding::new(State::Unseen, MANAGEMENT, what)
                .remedy("if they exist, correct --management, or the virtual host in --broker"),
        );
    } else if found.is_empty() {
        let what = format!("no setting drops messages; queues looked at: {looked}");
        found.push(Finding::new(State::Ok, MANAGEMENT, what));
    }
    Ok(found)
}

/// Returns the body of a response, unless it is too long.
async fn body(mut response: Response) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(reqwest::Error::without_url)?
    {
        body.extend_from_slice(&chunk);
        if body.len() > MOST_BYTES {
            bail!("the management API describes a queue with more than {MOST_BYTES} bytes");
        }
    }
    Ok(body)
}

fn client(tls: &Tls) -> anyhow::Result<Client> {
    // Fails if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder().timeout(LIMIT);
    if !tls.authorities_pem().is_empty() {
        client = client.tls_certs_merge(Certificate::from_pem_bundle(tls.authorities_pem())?);
    }
    if !tls.identity_pem().is_empty() {
        client = client.identity(Identity::from_pem(tls.identity_pem())?);
    }
    Ok(client.build()?)
}

/// Returns the virtual host in the URL of the broker, as it stands in a path.
fn vhost(broker: &str) -> String {
    let url = Url::parse(broker).ok();
    let path = url.as_ref().map(|url| url.path().trim_start_matches('/'));
    match path {
        Some(path) if !path.is_empty() => path.to_owned(),
        _ => "%2F".to_owned(),
    }
}

impl Queue {
    /// Returns the settings that can drop messages, by their names in policies. Of two, the one of
    /// the queue itself is told.
    fn settings(&self) -> BTreeMap<&str, &Value> {
        let of_policy = self.effective_policy_definition.as_object();
        let of_policy = of_policy.into_iter().flatten();
        let own = self.arguments.as_object().into_iter().flatten();
        let own = own.filter_map(|(name, value)| Some((name.strip_prefix("x-")?, value)));
        let all = of_policy.map(|(name, value)| (name.as_str(), value));
        all.chain(own).collect()
    }
}

/// Says how a queue may drop messages.
fn about(queue: &Queue) -> Vec<Finding> {
    let settings = queue.settings();
    let number = |name: &str| settings.get(name).and_then(|value| value.as_i64());
    let text = |name: &str| settings.get(name).and_then(|value| value.as_str());
    let exchange = text("dead-letter-exchange");
    let gone = exchange.map_or_else(
        || "dropped".to_owned(),
        |exchange| format!("sent to the exchange {exchange:?}"),
    );
    let by = match &queue.policy {
        Some(policy) if !policy.is_empty() => format!(" (policy {policy})"),
        _ => String::new(),
    };
    let mut found = Vec::new();
    let mut add = |state, what: String, remedy: &str| {
        found.push(Finding::new(state, &queue.name, format!("{what}{by}")).remedy(remedy));
    };
    // Of a delay queue, that is its purpose.
    if let Some(time) = number("message-ttl").filter(|_| !is_delay_pipe(&queue.name)) {
        add(
            State::Broken,
            format!("messages that wait for more than {time} ms are {gone}"),
            "remove message-ttl for this queue: its tasks are lost",
        );
    }
    if let Some(time) = number("expires") {
        add(
            State::Broken,
            format!("the queue is deleted when nobody uses it for {time} ms"),
            "remove expires for this queue: its tasks are lost",
        );
    }
    let refuses = text("overflow").is_some_and(|how| how.starts_with("reject-publish"));
    for (name, what) in [("max-length", "messages"), ("max-length-bytes", "bytes")] {
        if let Some(most) = number(name).filter(|_| !refuses) {
            add(
                State::Broken,
                format!("when more than {most} {what} wait, the oldest messages are {gone}"),
                "set overflow to reject-publish, so that publishers wait instead; or remove the limit",
            );
        }
    }
    if let Some(most) = number("delivery-limit").filter(|most| *most >= 0 && exchange.is_none()) {
        add(
            State::Note,
            format!("a message that comes back {most} times is dropped"),
            "give the queue a dead-letter-exchange, or a delivery-limit of -1; the quarantine keeps such tasks",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wiremock::matchers::{basic_auth, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    fn found(queue: &Value) -> Vec<(State, String)> {
        let queue: Queue = serde_json::from_value(queue.clone()).unwrap();
        about(&queue)
            .into_iter()
            .map(|it| (it.state, it.what))
            .collect()
    }

    #[test]
    fn settings_that_lose_tasks_are_named_with_their_policy() {
        let arguments = json!({"x-queue-type": "quorum"});
        assert_eq!(
            found(
                &json!({"name": "in", "arguments": arguments, "effective_policy_definition": []})
            ),
            []
        );
        let policy = json!({"message-ttl": 5000, "max-length": 10, "delivery-limit": 20});
        let queue = json!({"name": "in", "policy": "all", "arguments": arguments, "effective_policy_definition": policy});
        assert_eq!(
            found(&queue),
            [
                (
                    State::Broken,
                    "messages that wait for more than 5000 ms are dropped (policy all)".to_owned()
                ),
                (
                    State::Broken,
                    "when more than 10 messages wait, the oldest messages are dropped (policy all)"
                        .to_owned()
                ),
                (
                    State::Note,
                    "a message that comes back 20 times is dropped (policy all)".to_owned()
                ),
            ]
        );
        let harmless = json!({"max-length": 10, "overflow": "reject-publish", "delivery-limit": 20, "dead-letter-exchange": "dead"});
        assert_eq!(
            found(&json!({"name": "in", "effective_policy_definition": harmless})),
            []
        );
        let delays = json!({"x-message-ttl": 400});
        assert_eq!(
            found(&json!({"name": "in.delay.400", "arguments": delays})),
            []
        );
        let own = json!({"x-expires": 7});
        assert_eq!(found(&json!({"name": "in", "arguments": own})).len(), 1);
    }

    #[tokio::test]
    async fn queues_are_asked_for_in_the_virtual_host_of_the_broker() {
        let server = MockServer::start().await;
        let policy = json!({"name": "a.in", "policy": "short", "effective_policy_definition": {"expires": 7}});
        Mock::given(method("GET"))
            .and(path("/api/queues/jobs/a%2Ein"))
            .and(basic_auth("ann", "secret"))
            .respond_with(ResponseTemplate::new(200).set_body_json(&policy))
            .mount(&server)
            .await;
        let url = format!("http://ann:secret@{}", server.address());
        let pipes = ["a.in", "missing"].map(str::to_owned);
        let tls = Tls::default();
        let seen = queues(&url, "amqp://host/jobs", &tls, &pipes).await;
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(
            (seen[0].state, seen[0].of.as_str()),
            (State::Broken, "a.in")
        );
        // Behind a proxy, or with RabbitMQ's `management.path_prefix`.
        for end in ["", "/"] {
            Mock::given(method("GET"))
                .and(path("/rabbit/api/queues/jobs/a%2Ein"))
                .respond_with(ResponseTemplate::new(200).set_body_json(&policy))
                .mount(&server)
                .await;
            let url = format!("http://{}/rabbit{end}", server.address());
            let seen = queues(&url, "amqp://host/jobs", &tls, &pipes).await;
            assert_eq!(seen[0].of, "a.in", "{seen:?}");
        }
        let none = queues(&url, "amqp://host/jobs", &tls, &pipes[1..]).await;
        assert_eq!(none[0].state, State::Unseen, "{none:?}");
        let away = queues("http://ann:secret@127.0.0.1:1", "amqp://host", &tls, &pipes).await;
        assert_eq!(away[0].state, State::Broken);
        assert!(!away[0].what.contains("secret"), "{away:?}");
        assert_eq!(vhost("amqp://host"), "%2F");
        assert_eq!(vhost("amqp://user:p@host:5672/%2f"), "%2f");
    }
}
