//! Measures how many messages per second a broker publishes, delivers and acknowledges. Prints one
//! line.
//!
//! `cargo run --release -p batchwright-framework --example broker_speed -- [messages] [window]
//! [folder or amqp URL]`
//!
//! The folder of an embedded broker is created below the system's temporary folder, and deleted at
//! the end.

extern crate batchwright_framework as framework;

use std::sync::Arc;
use std::time::{Duration, Instant};

use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::embedded::Embedded;
use framework::broker::{Broker, Outgoing};
use futures_util::future::{join_all, try_join};

const BODY: usize = 500;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let messages: u32 = arguments
        .first()
        .map_or(Ok(1_000_000), |text| text.parse())?;
    let window: u32 = arguments.get(1).map_or(Ok(1000), |text| text.parse())?;
    let place = arguments
        .get(2)
        .cloned()
        .unwrap_or_else(|| format!("broker-speed-{}", std::process::id()));
    let broker: Box<dyn Broker> = if place.starts_with("amqp") {
        let amqp = Amqp::connect(AmqpOptions::new(&place))?;
        amqp.connected(Duration::from_secs(10)).await?;
        Box::new(amqp)
    } else {
        Box::new(Embedded::open(&std::env::temp_dir().join(&place)).await?)
    };
    let pipe: Arc<str> = "speed".into();
    let body = bytes::Bytes::from(vec![b'x'; BODY]);
    let mut consumer = broker.consume(&pipe, window).await?;
    let started = Instant::now();
    let publishing = async {
        // The window has two halves: one is being collected while the other is being written.
        let half = (window / 2).max(1);
        let mut before = Vec::new();
        let mut published = 0;
        while published < messages {
            let now: Vec<_> = (0..half)
                .map(|_| broker.publish(Outgoing::new(Arc::clone(&pipe), body.clone())))
                .collect();
            published += half;
            for confirm in join_all(std::mem::replace(&mut before, now)).await {
                confirm?;
            }
        }
        for confirm in join_all(before).await {
            confirm?;
        }
        anyhow::Ok(published)
    };
    let consuming = async {
        let (mut taken, mut batch) = (0, Vec::new());
        while taken < messages {
            taken += u32::try_from(consumer.next_many(&mut batch, 1000).await)?;
            batch.drain(..).for_each(framework::broker::Delivery::ack);
        }
        anyhow::Ok(())
    };
    let (published, ()) = try_join(publishing, consuming).await?;
    let elapsed = started.elapsed();
    broker.close().await;
    if broker.kind() == "embedded" {
        std::fs::remove_dir_all(std::env::temp_dir().join(&place))?;
    }
    let rate = f64::from(published) / elapsed.as_secs_f64();
    let kind = broker.kind();
    println!(
        "{kind}: {published} messages of {BODY} bytes, window {window}: {rate:.0} messages/s through ({elapsed:.2?})"
    );
    Ok(())
}
