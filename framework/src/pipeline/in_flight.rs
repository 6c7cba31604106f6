//! Starts deliveries as slots become free, keeps track of those that run, and ends them in two steps at shutdown.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::broker::Delivery;
use crate::config::Settings;
use crate::handler::BatchHandler;
use crate::pipeline::Pipeline;
use crate::pipeline::byte_window::{ByteWindow, batch_size};
use crate::pipeline::intake::{Intake, waits_until};
use crate::pipeline::window::{SHRINKS_EVERY, Window};

/// The smallest number of deliveries that the consumer is asked for at a time, even if a batch is smaller.
const BURST: usize = 128;
/// How often [`InFlight::exclusive_when_idle`] looks whether anything runs.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// The deliveries that are being processed.
pub(crate) struct InFlight {
    pub tasks: TaskTracker,
    /// One permit per delivery, or batch of deliveries, that may run at the same time.
    slots: Arc<Semaphore>,
    concurrency: u32,
    /// Cancelled to drop whatever still runs. The broker then delivers it again.
    pub abort: CancellationToken,
}

/// The intake of a worker, and the deliveries that it has received and that are not started. They outlive a panic of the loop.
pub(crate) struct Taken {
    intake: Intake,
    received: VecDeque<Delivery>,
    /// Where the intake puts deliveries that arrive together.
    burst: Vec<Delivery>,
    window: Windows,
}

/// How many deliveries a worker holds.
pub(crate) enum Windows {
    /// Always as many.
    Fixed(u32),
    /// By the time that tasks take.
    ByTime(Window),
    /// By the bytes of the deliveries.
    ByBytes(ByteWindow),
}

impl Windows {
    pub const fn size(&self) -> u32 {
        match self {
            Self::Fixed(size) => *size,
            Self::ByTime(window) => window.size(),
            Self::ByBytes(window) => window.size(),
        }
    }
}

impl Taken {
    pub const fn by(intake: Intake, window: Windows) -> Self {
        Self {
            intake,
            received: VecDeque::new(),
            burst: Vec::new(),
            window,
        }
    }
}

impl InFlight {
    pub fn new(concurrency: usize) -> Self {
        let concurrency = u32::try_from(concurrency).unwrap_or(u32::MAX).max(1);
        let slots = Arc::new(Semaphore::new(concurrency as usize));
        Self {
            tasks: TaskTracker::new(),
            slots,
            concurrency,
            abort: CancellationToken::new(),
        }
    }

    /// Returns the slots, and their number.
    pub fn slots(&self) -> (Arc<Semaphore>, u32) {
        (Arc::clone(&self.slots), self.concurrency)
    }

    /// Receives deliveries and starts them as slots become free. Returns when the broker is closed. The window adapts the
    /// number of deliveries that the consumer holds, unless that is fixed.
    pub async fn consume<H: BatchHandler>(
        &self,
        pipeline: &Arc<Pipeline<H>>,
        Taken {
            intake,
            received,
            burst,
            window,
        }: &mut Taken,
        mut unavailable: watch::Receiver<Option<String>>,
    ) {
        let max_batch = pipeline.handler.max_batch();
        let max_bytes = pipeline.handler.max_bytes().unwrap_or(usize::MAX);
        received.reserve(max_batch.max(BURST));
        loop {
            if received.is_empty() {
                let limit = max_batch.max(BURST);
                let count = receive(intake, burst, limit, window).await;
                if count == 0 {
                    return;
                }
                received.extend(burst.drain(..));
                pipeline.open.add(count);
            }
            // Take the slot only when there is a delivery for it. A slot held while waiting would block a quarantined
            // message.
            let slot = tokio::select! {
                biased;
                slot = self.slot(&mut unavailable) => slot,
                () = overdue(received) => {
                    pipeline.open.remove(send_on(received));
                    continue;
                }
                // The members of a bundle wait no longer because single deliveries wait before them.
                count = intake.next_bundle(burst), if waits_until(&*received).is_none() => {
                    received.extend(burst.drain(..));
                    pipeline.open.add(count);
                    continue;
                }
            };
            let Some(slot) = slot else { return };
            let room = max_batch.saturating_sub(received.len());
            pipeline.open.add(intake.take_waiting(burst, room));
            received.extend(burst.drain(..));
            let sizes = received.iter().map(Delivery::bytes);
            let count = batch_size(sizes, max_batch, max_bytes).min(received.len());
            let next = received.drain(..count);
            // What the broker has taken back comes again. If it began now, it would run beside its redelivery.
            let batch: Vec<_> = next.filter(|delivery| !delivery.is_gone()).collect();
            if batch.len() < count {
                pipeline.open.remove(count - batch.len());
            }
            if batch.is_empty() {
                continue;
            }
            let adapted = match window {
                Windows::Fixed(_) => {
                    self.start(pipeline, batch, slot);
                    None
                }
                Windows::ByTime(window) => {
                    let now = Instant::now();
                    self.start(pipeline, batch, window.measure(slot, now));
                    window.adapt(now)
                }
                Windows::ByBytes(window) => {
                    let bytes = batch.iter().map(|delivery| delivery.bytes() as u64);
                    let (count, bytes) = (batch.len(), bytes.sum());
                    self.start(pipeline, batch, slot);
                    window.adapt(u32::try_from(count).unwrap_or(u32::MAX), bytes)
                }
            };
            if let Some(size) = adapted {
                intake.resize(size);
            }
        }
    }

    /// Waits for a slot while the worker's dependencies are available. They may fail while it waits for the slot.
    async fn slot(
        &self,
        unavailable: &mut watch::Receiver<Option<String>>,
    ) -> Option<OwnedSemaphorePermit> {
        loop {
            // An error means that the sender is gone, because this handler can never be unavailable.
            let _ = unavailable.wait_for(Option::is_none).await;
            let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            if unavailable.borrow().is_none() {
                return Some(slot);
            }
        }
    }

    fn start<H: BatchHandler>(
        &self,
        pipeline: &Arc<Pipeline<H>>,
        deliveries: Vec<Delivery>,
        slot: impl Send + 'static,
    ) {
        let (pipeline, abort) = (Arc::clone(pipeline), self.abort.clone());
        let open = pipeline
            .open
            .keep(deliveries.len(), pipeline.counters.begun.now());
        // In a box, because the tracker and the runtime move it several times.
        self.tasks.spawn(Box::pin(async move {
            tokio::select! {
                biased;
                () = abort.cancelled() => {}
                () = pipeline.process(deliveries, open, slot) => {}
            }
        }));
    }

    /// Waits until nothing runs. Holds new deliveries back meanwhile, and until the permit is dropped.
    pub async fn exclusive(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots)
            .acquire_many_owned(self.concurrency)
            .await
            .ok()
    }

    /// Waits for a moment in which nothing runs, without holding anything back before it.
    pub async fn exclusive_when_idle(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(exclusive) = Arc::clone(&self.slots).try_acquire_many_owned(self.concurrency)
            {
                return Some(exclusive);
            }
            tokio::time::sleep(IDLE_INTERVAL).await;
        }
    }

    /// Processes one isolated delivery. It runs to its end even if this future is dropped: only the pipeline stops it, on
    /// `abort`, and publishes it again.
    pub async fn run_isolated<H: BatchHandler>(
        &self,
        pipeline: &Arc<Pipeline<H>>,
        delivery: Delivery,
    ) {
        let pipeline = Arc::clone(pipeline);
        let run = self.tasks.spawn(async move {
            let open = pipeline.open.keep(1, pipeline.counters.begun.now());
            pipeline.process(vec![delivery], open, ()).await;
        });
        // An error means that it panicked outside of the steps for the delivery, and that the delivery comes again.
        if let Err(error) = run.await {
            error!(%error, "processing a quarantined message has panicked; it comes again");
        }
    }

    /// Ends all running deliveries: waits for them, then cancels them through `shutdown`, then drops them.
    pub async fn drain(&self, settings: &Settings, shutdown: &CancellationToken) {
        self.tasks.close();
        if self.ended_within(settings.drain).await {
            return;
        }
        self.warn(settings, "tasks still run; they are cancelled");
        shutdown.cancel();
        if self.ended_within(settings.abort).await {
            return;
        }
        self.warn(settings, "tasks do not end; their deliveries are returned");
        self.abort.cancel();
        if !self.ended_within(settings.abort).await {
            // A task that never awaits cannot be dropped. It ends with the process.
            self.warn(settings, "tasks cannot be dropped; they are left behind");
        }
    }

    async fn ended_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.tasks.wait()).await.is_ok()
    }

    fn warn(&self, settings: &Settings, text: &str) {
        warn!(worker = settings.name, tasks = self.tasks.len(), "{text}");
    }
}

/// Waits until a member of a bundle has waited for a slot for too long. Never ends without such members.
async fn overdue(received: &VecDeque<Delivery>) {
    match waits_until(received) {
        Some(until) => sleep_until(until).await,
        None => pending().await,
    }
}

/// Sends the members of bundles on that have waited for too long: to whoever has a slot for them. Returns how many.
fn send_on(received: &mut VecDeque<Delivery>) -> usize {
    let (now, before) = (Instant::now(), received.len());
    // A member that is dropped goes on as a message of its own.
    received.retain(|delivery| delivery.waits_until().is_none_or(|until| until > now));
    before - received.len()
}

/// Waits for deliveries and appends them to `into`, at most `limit`. Returns how many; 0 once the broker is closed. Makes
/// the window small while none arrive.
async fn receive(
    intake: &mut Intake,
    into: &mut Vec<Delivery>,
    limit: usize,
    window: &mut Windows,
) -> usize {
    if !matches!(window, Windows::Fixed(_))
        && let Ok(count) = timeout(SHRINKS_EVERY, intake.next_many(into, limit)).await
    {
        return count;
    }
    let rested = match window {
        Windows::Fixed(_) => None,
        Windows::ByTime(window) => window.rest(Instant::now()),
        Windows::ByBytes(window) => window.rest(),
    };
    if let Some(size) = rested {
        intake.resize(size);
    }
    intake.next_many(into, limit).await
}

#[cfg(test)]
mod tests {
    use contract::BatchTask;

    use super::*;
    use crate::pipeline::executor::TaskExecutor;
    use crate::{Context, NoOutput, Reply, TaskError, Worker};

    struct NoOp;

    impl Worker for NoOp {
        type Input = BatchTask;
        type Output = NoOutput;

        async fn run(&self, _: BatchTask, _: Context) -> Result<Reply<NoOutput>, TaskError> {
            Ok(Reply::none())
        }
    }

    /// Returns the size of what a function of these parameters returns.
    const fn size_of_result<A, B, C, R>(_: &impl Fn(A, B, C) -> R) -> usize {
        size_of::<R>()
    }

    // Each delivery takes this memory, and each copy of it takes time. An async function that is given a future has room
    // for it twice.
    #[test]
    fn processing_a_delivery_takes_little_memory() {
        type Steps = &'static Arc<Pipeline<TaskExecutor<NoOp>>>;
        let process = |steps: Steps, deliveries, open| steps.process(deliveries, open, ());
        let size = size_of_result(&process);
        assert!(size < 8 * 1024, "{size} bytes");
    }
}
