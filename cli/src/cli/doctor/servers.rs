//! Looks at RabbitMQ and at the database themselves, where their URLs are known.

use std::time::Duration;

use anyhow::Context as _;
use framework::broker::amqp::{Amqp, AmqpOptions, QueueType};
use framework::broker::{Broker as _, BrokerError};
use store::DatabaseLook;

use super::finding::{Finding, State, messages_wait};
use super::{DoctorArgs, management};
use crate::text::numbered;

/// How long RabbitMQ may take to accept a connection.
const BROKER_LIMIT: Duration = Duration::from_secs(10);
/// The name of RabbitMQ in findings.
const BROKER: &str = "rabbitmq";
/// The name of the database in findings.
const DATABASE: &str = "database itself";
/// The most queues that are looked at.
const MOST: usize = 200;
/// The share of the connections of a server that is worth a note, in percent.
const MANY_CONNECTIONS: i64 = 90;

/// Looks at RabbitMQ itself, if its URL is known.
///
/// `known` is what has been found, which is not told again.
pub async fn broker(
    args: &DoctorArgs,
    pipes: &[String],
    known: &[Finding],
) -> anyhow::Result<Vec<Finding>> {
    let Some(url) = &args.broker else {
        return Ok(Vec::new());
    };
    let amqp = Amqp::connect(AmqpOptions {
        queue_type: args.queues.queue_type,
        max_priority: args.queues.max_priority,
        tls: args.service.tls()?,
        name: "batchwright doctor".to_owned(),
        declare: false,
        ..AmqpOptions::new(url.as_str())
    })
    .context("the URL of RabbitMQ (--broker) is invalid")?;
    let mut found = Vec::new();
    if let Err(error) = amqp.connected(BROKER_LIMIT).await {
        let broken = Finding::new(State::Broken, BROKER, error.to_string());
        found.push(broken.remedy("start it, or correct --broker"));
    } else {
        found.push(Finding::new(State::Ok, BROKER, "accepts connections"));
        found.extend(exchanges(&amqp).await);
        for pipe in pipes.iter().take(MOST) {
            let is_noted = known
                .iter()
                .any(|it| it.of == *pipe && it.state == State::Note);
            found.extend(queue(&amqp, pipe, is_noted).await);
        }
        if pipes.len() > MOST {
            let what = format!("of {} queues, only {MOST} were looked at", pipes.len());
            found.push(Finding::new(State::Unseen, BROKER, what));
        }
        match &args.management {
            Some(management) => {
                let seen = &pipes[..pipes.len().min(MOST)];
                let tls = args.service.tls()?;
                found.extend(management::queues(management, url, &tls, seen).await);
            }
            None => found.push(policies(args.queues.queue_type)),
        }
    }
    amqp.close().await;
    Ok(found)
}

/// Says what no client sees over AMQP.
fn policies(queue_type: QueueType) -> Finding {
    let limit = match queue_type {
        QueueType::Quorum => {
            ", and none may have a delivery limit without a dead-letter exchange (RabbitMQ 4 has a limit of 20 by default)"
        }
        QueueType::Classic => "",
    };
    let what = format!(
        "policies cannot be seen over AMQP. None may drop messages of these queues: no message-ttl, no expires, and max-length only with \
         overflow reject-publish{limit}"
    );
    Finding::new(State::Unseen, BROKER, what)
        .remedy("--management URL asks the management API; rabbitmqctl list_policies lists them")
}

/// Looks whether the exchanges of announcements and signs of life are there.
async fn exchanges(amqp: &Amqp) -> Vec<Finding> {
    let mut found = Vec::new();
    for exchange in Amqp::EXCHANGES {
        let looked = amqp.look_at_exchange(exchange).await;
        let finding = |what| Finding::new(State::Note, exchange, what);
        match looked {
            Ok(true) => {}
            Ok(false) => found.push(
                finding("the exchange does not exist: no process of ours has connected".to_owned())
                    .remedy("start the job service, or let its user configure exchanges"),
            ),
            Err(error) => found.push(
                finding(format!("the exchange cannot be looked at: {error}"))
                    .remedy("let this user read and configure it"),
            ),
        }
    }
    found
}

/// Looks at the queue of a pipe: whether it exists, what waits, who takes it, and whether its
/// arguments are those expected.
async fn queue(amqp: &Amqp, pipe: &str, is_noted: bool) -> Vec<Finding> {
    let unseen = |error: BrokerError| {
        let what = format!("the queue cannot be looked at: {error}");
        vec![Finding::new(State::Broken, pipe, what)]
    };
    let state = match amqp.look(pipe).await {
        Err(error) => return unseen(error),
        Ok(None) => {
            let missing = "the queue does not exist: no worker has declared it";
            let missing = Finding::new(State::Note, pipe, missing);
            return vec![missing.remedy("start the worker of this pipe")];
        }
        Ok(Some(state)) => state,
    };
    let waiting = messages_wait(state.messages);
    let ok = |what: String| Finding::new(State::Ok, pipe, what);
    let mut found = vec![match state.consumers {
        Some(0) if state.messages > 0 && !is_noted => Finding::new(
            State::Note,
            pipe,
            format!("{waiting} in the queue, which nobody reads"),
        )
        .remedy("start the worker of this pipe"),
        Some(0) => ok(format!("{waiting} in the queue, which has no consumer")),
        Some(consumers) => ok(format!(
            "{waiting} in the queue, which has {}",
            numbered(consumers, "consumer")
        )),
        None => ok(format!("{waiting} in the queue")),
    }];
    match amqp.other_arguments(pipe).await {
        Err(error) => found.extend(unseen(error)),
        Ok(None) => {}
        Ok(Some(difference)) => found.push(
            Finding::new(
                State::Note,
                pipe,
                format!("the queue has other arguments than expected: {difference}"),
            )
            .remedy(
                "it is used as it is; to change it, stop its workers, empty it, delete it and let them declare it again, or set --queue-type",
            ),
        ),
    }
    found
}

/// Looks at the database itself, if its URL is known.
pub async fn database(url: Option<&str>) -> Vec<Finding> {
    let Some(url) = url else {
        return Vec::new();
    };
    match DatabaseLook::at(url).await {
        Ok(look) => about_database(&look),
        Err(error) => {
            let broken = Finding::new(State::Broken, DATABASE, error.to_string());
            vec![broken.remedy("start it, or correct --database")]
        }
    }
}

fn about_database(look: &DatabaseLook) -> Vec<Finding> {
    let megabytes = look.bytes >> 20;
    let connections = look.connections.map(|it| {
        let (seen, most) = (it.seen.max(0), it.most.max(1));
        (seen, most, seen * 100 / most >= MANY_CONNECTIONS)
    });
    let told = connections.map(|(seen, most, _)| format!(", {seen} of {most} connections"));
    let what = format!(
        "{}, {megabytes} MiB{}",
        look.version,
        told.unwrap_or_default()
    );
    let mut found = vec![Finding::new(State::Ok, DATABASE, what)];
    if look.connections.is_some_and(|it| !it.are_all_seen) {
        let what = "this user sees only its own connections: the server may have many more";
        found.push(
            Finding::new(State::Unseen, DATABASE, what)
                .remedy("GRANT pg_read_all_stats TO the user of --database"),
        );
    }
    if connections.is_some_and(|(_, _, many)| many) {
        let what = "almost all connections of the server are taken";
        found.push(
            Finding::new(State::Note, DATABASE, what)
                .remedy("raise max_connections; each process of ours needs up to nine"),
        );
    }
    match &look.missing {
        None => found.push(
            Finding::new(State::Note, DATABASE, "it has no tables of a job service")
                .remedy("the job service makes them when it starts; or correct --database"),
        ),
        Some(missing) if !missing.is_empty() => found.push(
            Finding::new(
                State::Note,
                DATABASE,
                format!(
                    "its tables are of an earlier version, with {} less",
                    numbered(missing.len() as u64, "migration")
                ),
            )
            .remedy("the next process of this version that starts applies them"),
        ),
        Some(_) => {}
    }
    if let Some(jobs) = look.jobs_without_key.filter(|jobs| *jobs > 0) {
        let what = format!(
            "{} created before there were keys: anybody who reaches the service may ask what workers ask about them",
            numbered(jobs.unsigned_abs(), "unfinished job")
        );
        found.push(
            Finding::new(State::Note, DATABASE, what)
                .remedy("nothing; each goes on without a key until it is deleted"),
        );
    }
    if !look.newer.is_empty() {
        let what = format!(
            "its tables are of a later version, with {} more; this version works on with them",
            numbered(look.newer.len() as u64, "migration")
        );
        found.push(Finding::new(State::Note, DATABASE, what));
    }
    found
}

#[cfg(test)]
mod tests {
    use store::Connections;

    use super::*;

    fn connections(seen: i64) -> Connections {
        Connections {
            seen,
            most: 100,
            are_all_seen: true,
        }
    }

    #[test]
    fn database_that_is_old_new_empty_or_full_is_noted() {
        let look = DatabaseLook {
            version: "PostgreSQL 16".to_owned(),
            bytes: 5 << 20,
            connections: Some(connections(8)),
            missing: Some(Vec::new()),
            newer: Vec::new(),
            jobs_without_key: Some(0),
        };
        let notes = |look: &DatabaseLook| {
            let found = about_database(look);
            let note = |it: &Finding| (it.state == State::Note).then(|| it.what.clone());
            found.iter().filter_map(note).collect::<Vec<_>>()
        };
        assert_eq!(
            about_database(&look)[0].what,
            "PostgreSQL 16, 5 MiB, 8 of 100 connections"
        );
        assert_eq!(notes(&look), [""; 0]);
        let hidden = Connections {
            are_all_seen: false,
            ..connections(8)
        };
        let of_others = DatabaseLook {
            connections: Some(hidden),
            ..look.clone()
        };
        let unseen = &about_database(&of_others)[1];
        assert!(unseen.state == State::Unseen && unseen.what.contains("only its own"));
        for (changed, text) in [
            (
                DatabaseLook {
                    connections: Some(connections(95)),
                    ..look.clone()
                },
                "almost all connections",
            ),
            (
                DatabaseLook {
                    missing: None,
                    ..look.clone()
                },
                "no tables of a job service",
            ),
            (
                DatabaseLook {
                    missing: Some(vec![7]),
                    ..look.clone()
                },
                "of an earlier version, with 1 migration less",
            ),
            (
                DatabaseLook {
                    newer: vec![7],
                    ..look.clone()
                },
                "of a later version",
            ),
            (
                DatabaseLook {
                    jobs_without_key: Some(3),
                    ..look.clone()
                },
                "3 unfinished jobs created before there were keys",
            ),
        ] {
            let notes = notes(&changed);
            assert!(notes.len() == 1 && notes[0].contains(text), "{notes:?}");
        }
    }
}
