//! Collects dead letters: takes the messages out of the reject and invalid pipes that the operator
//! names, and keeps them in the store.
//!
//! Several services share the messages of a pipe, as consumers do.
//!
//! What must stay true:
//! - A message is acknowledged only after its letter is committed, or after it is confirmed in the
//!   overflow pipe. One that is delivered again is the same letter.
//! - While the store has no room for letters, no pipe is consumed: each message that is given back
//!   counts as a failed delivery.
//! - No message stops the collector. One that no store accepts goes to the overflow pipe.
//! - No message is lost because services crash while they hold it. One that came back is kept by
//!   itself, and published anew before the broker gives up on it.

use std::time::Duration;

use contract::metrics::{LETTERS_EXPIRED, LETTERS_KEPT, LETTERS_OVERFLOWED, LETTERS_REPLAYED};
use contract::overflow_pipe;
use contract::rest::LetterCause;
use framework::broker::{Broker, BrokerError, Consumer, Delivery, Outgoing, PublishError};
use framework::health::Health;
use framework::meters;
use futures_util::future::join_all;
use metrics::counter;
use store::{Keep, LetterCounts, NewLetter, Store, StoreError};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::letters::{Found, anew};
use crate::options::LetterOptions;
use crate::wakeup::{backoff, wait};

/// The number of deliveries of a pipe that are held at the same time, and of letters of one
/// transaction. Each may be as large as the broker allows.
const BATCH: u32 = 32;
/// The most bytes that a letter has beside its body.
const BESIDE: u64 = 128 * 1024;
/// The bytes of bodies after which a transaction takes no further letter.
const BATCH_BYTES: usize = 16 * 1024 * 1024;
/// How long a collector without room waits at the most before it looks again.
const FULL: Duration = Duration::from_mins(1);
/// The pause after an overflow pipe has refused a message.
const PAUSE: Duration = Duration::from_secs(1);
/// The degradation while there is no room.
const LETTERS: &str = "dead letters";

/// Runs until `shutdown` is cancelled.
pub async fn run(
    store: &Store,
    broker: &dyn Broker,
    options: &LetterOptions,
    health: &Health,
    shutdown: &CancellationToken,
) {
    // A letter takes a small part of the room for all.
    let part = usize::try_from(store.letter_limits().bytes / 4).unwrap_or(usize::MAX);
    let max_body = options.max_body.min(part);
    let collect = |pipe| {
        let collector = Collector {
            store,
            broker,
            max_body,
            pipe,
        };
        async move { collector.run(health, shutdown).await }
    };
    let pipes = options.pipes.iter().map(String::as_str);
    show_counters();
    join_all(pipes.map(collect)).await;
    // Without pipes there is nothing to do, and the loop has not ended.
    shutdown.cancelled().await;
}

/// Shows all counters from the beginning: an alert sees an increase from 0, and not from nothing.
fn show_counters() {
    meters::install();
    for cause in LetterCause::ALL {
        counter!(LETTERS_KEPT, "cause" => cause.name()).increment(0);
    }
    for name in [LETTERS_REPLAYED, LETTERS_OVERFLOWED, LETTERS_EXPIRED] {
        counter!(name).increment(0);
    }
}

/// Empties one pipe.
struct Collector<'a> {
    store: &'a Store,
    broker: &'a dyn Broker,
    max_body: usize,
    pipe: &'a str,
}

/// Why the collector stops to consume its pipe.
enum Stop {
    /// There is no room for letters.
    Full,
    /// The broker or the store cannot be used.
    Failed(String),
    /// The service stops.
    Shutdown,
}

impl Collector<'_> {
    async fn run(&self, health: &Health, shutdown: &CancellationToken) {
        let mut failures = 0;
        while !shutdown.is_cancelled() {
            if !self.has_room(health, shutdown).await {
                return;
            }
            let stopped = match self.broker.consume(self.pipe, BATCH).await {
                Ok(consumer) => self.consume(consumer, &mut failures, shutdown).await,
                Err(error) => Stop::Failed(error.to_string()),
            };
            match stopped {
                Stop::Shutdown => return,
                Stop::Full => {
                    // It is full, or there is no room for a letter of any size.
                    let mut signal = self.store.letter_signal();
                    signal.mark_unchanged();
                    if self.is_full().await
                        && !wait(&mut signal, Some(Instant::now() + FULL), shutdown).await
                    {
                        return;
                    }
                }
                Stop::Failed(reason) => {
                    if failures == 0 {
                        tracing::warn!(
                            pipe = self.pipe,
                            reason,
                            "cannot collect dead letters; trying again"
                        );
                    }
                    failures += 1;
                    let pause = sleep(backoff(failures));
                    shutdown.run_until_cancelled(pause).await;
                }
            }
        }
    }

    /// Waits until there is room for letters. Returns false if the service stops.
    async fn has_room(&self, health: &Health, shutdown: &CancellationToken) -> bool {
        let mut signal = self.store.letter_signal();
        let mut failures = 0;
        loop {
            signal.mark_unchanged();
            let pause = match self.store.count_letters().await {
                Ok(counts) if self.fits(counts) => {
                    health.recover(LETTERS, self.pipe);
                    return true;
                }
                Ok(counts) => {
                    let reason = format!(
                        "{} dead letters are kept ({} bytes), and no more may be; further ones wait in {}. Replay or delete some",
                        counts.letters, counts.bytes, self.pipe
                    );
                    health.degrade(LETTERS, self.pipe, reason);
                    FULL
                }
                Err(_) => {
                    failures += 1;
                    backoff(failures)
                }
            };
            if !wait(&mut signal, Some(Instant::now() + pause), shutdown).await {
                return false;
            }
        }
    }

    /// Returns whether the next letter fits, whatever its size.
    fn fits(&self, counts: LetterCounts) -> bool {
        let largest = self.max_body as u64 + BESIDE;
        let room = self
            .store
            .letter_limits()
            .bytes
            .saturating_sub(counts.bytes);
        !counts.full && (counts.letters == 0 || room >= largest)
    }

    async fn is_full(&self) -> bool {
        let counts = self.store.count_letters().await;
        counts.is_ok_and(|counts| !self.fits(counts))
    }

    async fn consume(
        &self,
        mut consumer: Consumer,
        failures: &mut u32,
        shutdown: &CancellationToken,
    ) -> Stop {
        let mut waiting = Vec::new();
        loop {
            if waiting.is_empty() {
                let received = consumer.next_many(&mut waiting, BATCH as usize);
                match shutdown.run_until_cancelled(received).await {
                    None => return Stop::Shutdown,
                    Some(0) => return Stop::Failed(BrokerError::Closed.to_string()),
                    Some(_) => self.publish_anew(&mut waiting).await,
                }
            }
            let mut bytes = 0;
            let few = waiting.iter().take_while(|delivery| {
                let fits = bytes < BATCH_BYTES && delivery.delivery_count == 0;
                bytes += delivery.bytes().min(self.max_body);
                fits
            });
            // One that came back is kept by itself, whatever else a process held when it died.
            let few = few.count().max(1).min(waiting.len());
            let batch = waiting.drain(..few).collect();
            if let Err(stop) = self.keep(batch, shutdown).await {
                return stop;
            }
            *failures = 0;
        }
    }

    /// Publishes those of these messages anew that came back often, and leaves the others.
    async fn publish_anew(&self, waiting: &mut Vec<Delivery>) {
        let often = waiting.extract_if(.., |delivery| delivery.came_back_often());
        // If their pipe is full, they are kept all the same.
        let (refused, _) = self.publish(often.collect(), anew).await;
        waiting.extend(refused);
    }

    /// Keeps messages and acknowledges them. Those that cannot be kept go back to the pipe.
    async fn keep(&self, batch: Vec<Delivery>, shutdown: &CancellationToken) -> Result<(), Stop> {
        if batch.is_empty() {
            return Ok(());
        }
        let letters: Vec<NewLetter> = batch
            .iter()
            .map(|delivery| Found::of_delivery(delivery).into_letter(self.max_body))
            .collect();
        let kept = match self.keep_letters(&letters, shutdown).await? {
            Some(kept) => kept,
            // One of them is the reason.
            None if batch.len() > 1 => {
                for delivery in batch {
                    Box::pin(self.keep(vec![delivery], shutdown)).await?;
                }
                return Ok(());
            }
            None => vec![Keep::AboveBoundOfJob],
        };
        let (mut is_full, mut above) = (false, Vec::new());
        for ((delivery, letter), kept) in batch.into_iter().zip(&letters).zip(kept) {
            match kept {
                Keep::Kept => {
                    counter!(LETTERS_KEPT, "cause" => letter.cause.name()).increment(1);
                    tell(letter);
                    delivery.ack();
                }
                Keep::Known => delivery.ack(),
                Keep::AboveBoundOfJob => above.push(delivery),
                Keep::Full => is_full = true,
            }
        }
        self.overflow(above).await?;
        if is_full { Err(Stop::Full) } else { Ok(()) }
    }

    /// Keeps letters. Tries again while the store is unavailable. Returns `None` if the store
    /// refuses them.
    async fn keep_letters(
        &self,
        letters: &[NewLetter],
        shutdown: &CancellationToken,
    ) -> Result<Option<Vec<Keep>>, Stop> {
        let mut failures = 0;
        loop {
            match self.store.keep_letters(letters).await {
                Ok(kept) => return Ok(Some(kept)),
                Err(error @ StoreError::Unavailable(_)) => {
                    if failures == 0 {
                        tracing::warn!(%error, code = error.code().as_str(), pipe = self.pipe, "cannot keep dead letters; trying again");
                    }
                    let pause = sleep(backoff(failures));
                    failures += 1;
                    if shutdown.run_until_cancelled(pause).await.is_none() {
                        return Err(Stop::Shutdown);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, code = error.code().as_str(), pipe = self.pipe, messages = letters.len(), "the store refuses dead letters");
                    return Ok(None);
                }
            }
        }
    }

    /// Moves messages to the overflow pipe.
    async fn overflow(&self, deliveries: Vec<Delivery>) -> Result<(), Stop> {
        let (pipe, all) = (overflow_pipe(self.pipe), deliveries.len());
        let message = |delivery: &Delivery| Outgoing {
            pipe: pipe.as_str().into(),
            ..delivery.anew()
        };
        let (refused, error) = self.publish(deliveries, message).await;
        counter!(LETTERS_OVERFLOWED).increment((all - refused.len()) as u64);
        let Some(error) = error else {
            return Ok(());
        };
        if !matches!(error, PublishError::Closed) {
            sleep(PAUSE).await;
        }
        Err(Stop::Failed(error.to_string()))
    }

    /// Publishes messages and acknowledges their deliveries. Returns those that the broker does not
    /// take, and why not.
    async fn publish(
        &self,
        deliveries: Vec<Delivery>,
        message: impl Fn(&Delivery) -> Outgoing,
    ) -> (Vec<Delivery>, Option<PublishError>) {
        let publish = |delivery: Delivery| {
            let confirm = self.broker.publish(message(&delivery));
            async move { (delivery, confirm.await) }
        };
        let (mut refused, mut reason) = (Vec::new(), None);
        for (delivery, confirmed) in join_all(deliveries.into_iter().map(publish)).await {
            match confirmed {
                Ok(()) => delivery.ack(),
                Err(error) => {
                    reason = Some(error);
                    refused.push(delivery);
                }
            }
        }
        (refused, reason)
    }
}

/// Logs a letter that is kept.
fn tell(letter: &NewLetter) {
    let task = letter.task.as_ref();
    let task = task.map(|task| format!("{}:{}.{}", task.partition, task.job, task.path));
    tracing::info!(
        pipe = letter.pipe,
        task,
        cause = letter.cause.name(),
        reason = letter.reason,
        "kept a dead letter"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use framework::broker::memory::Memory;
    use harness::wait_for;

    use super::*;
    use store::StoreOptions;

    #[tokio::test]
    async fn message_that_came_back_often_is_published_anew_and_is_one_letter() {
        let (memory, published) = (Memory::new(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&published);
        let broker = memory.clone().intercepting(move |message| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(message)
        });
        for number in ["1", "2"] {
            let message = Outgoing::new("w-reject", number);
            memory.publish(message).await.unwrap();
        }
        let mut consumer = memory.consume("w-reject", 1).await.unwrap();
        for _ in 0..5 {
            consumer.next().await.unwrap().requeue();
        }
        drop(consumer);
        let store = Store::temporary(StoreOptions::default());
        let options = LetterOptions {
            pipes: vec!["w-reject".to_owned()],
            max_body: 2000,
        };
        let (health, shutdown) = (Health::default(), CancellationToken::new());
        let kept = async {
            wait_for("both letters", async || {
                let letters = store.count_letters().await.unwrap().letters;
                (letters == 2)
                    .then_some(())
                    .ok_or_else(|| letters.to_string())
            })
            .await;
            shutdown.cancel();
        };
        let run = run(&store, &broker, &options, &health, &shutdown);
        tokio::join!(run, kept);
        assert_eq!(published.load(Ordering::Relaxed), 1);
        assert_eq!(memory.depth("w-reject").await.unwrap(), 0);
    }
}
