//! Starts deliveries as slots become free, keeps track of those that run, and ends them in two
//! steps at shutdown.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::broker::Delivery;
use crate::config::Settings;
use crate::handler::BatchHandler;
use crate::pipeline::Pipeline;
use crate::pipeline::byte_window::ByteWindow;
use crate::pipeline::intake::Intake;
use crate::pipeline::settling::Road;
use crate::pipeline::waiting::Waiting;
use crate::pipeline::window::{SHRINKS_EVERY, TaskTimes, Window};
use crate::steps::open_deliveries::KeptOpen;

/// The smallest number of deliveries that the consumer is asked for at a time, even if a batch is
/// smaller.
const BURST: usize = 128;
/// How long a turn takes deliveries.
const TURN: Duration = Duration::from_millis(1);
/// How many deliveries a turn takes at most.
const TURN_DELIVERIES: usize = 128;
/// How often [`InFlight::exclusive_when_idle`] looks whether anything runs.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// The deliveries that are being processed. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InFlight {
    pub tasks: TaskTracker,
    /// One permit per delivery, or batch of deliveries, that may run at the same time.
    slots: Arc<Semaphore>,
    concurrency: u32,
    /// Cancelled to drop whatever still runs. The broker then delivers it again.
    pub abort: CancellationToken,
}

/// What a slot does before it is free again.
struct Turn {
    first: (Delivery, KeptOpen),
    /// Where the others come from.
    received: Arc<Waiting>,
    /// Where the time of each is noted, if the window follows it.
    times: Option<Arc<TaskTimes>>,
    /// Why the turn takes no other one.
    unavailable: watch::Receiver<Option<String>>,
}

/// The intake of a worker, and the deliveries that it has received and that are not started. They
/// outlive a panic of the loop.
pub(crate) struct Taken {
    intake: Intake,
    /// Dropped after the intake, which would take again what goes back.
    received: Owned,
    /// Where the intake puts deliveries that arrive together.
    burst: Vec<Delivery>,
    window: Windows,
}

/// The deliveries that wait go back when this is dropped.
#[derive(Default)]
struct Owned(Arc<Waiting>);

/// How many deliveries a worker holds.
pub(crate) enum Windows {
    /// Always as many.
    Fixed(u32),
    /// By the time that tasks take, and by the bytes of the deliveries.
    ByTime(Window),
    /// By the bytes of the deliveries alone.
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

impl Windows {
    /// Takes note of deliveries that have arrived. Returns the new size if they are too large for
    /// this one.
    fn receive(&mut self, deliveries: &[Delivery]) -> Option<u32> {
        let Self::ByTime(window) = self else {
            return None;
        };
        let bytes = deliveries.iter().map(|delivery| delivery.bytes() as u64);
        let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        window.receive(count, bytes.sum(), Instant::now())
    }

    /// Returns where to note how long tasks take.
    fn times(&self) -> Option<Arc<TaskTimes>> {
        match self {
            Self::ByTime(window) => Some(window.times()),
            _ => None,
        }
    }
}

impl Taken {
    pub fn by(intake: Intake, window: Windows) -> Self {
        Self {
            intake,
            received: Owned::default(),
            burst: Vec::new(),
            window,
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A turn that still runs begins no other one.
        self.0.clear();
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

    /// Receives deliveries and starts them as slots become free. Returns when the broker is closed.
    /// The window adapts the number of deliveries that the consumer holds, unless that is fixed.
    pub async fn consume<H: BatchHandler>(
        &self,
        pipeline: &Arc<Pipeline<H>>,
        Taken {
            intake,
            received: Owned(received),
            burst,
            window,
        }: &mut Taken,
        mut unavailable: watch::Receiver<Option<String>>,
    ) {
        let max_batch = pipeline.handler.max_batch();
        let max_bytes = pipeline.handler.max_bytes().unwrap_or(usize::MAX);
        loop {
            pipeline.open.set_window(window.size());
            if received.len() == 0 {
                let limit = max_batch.max(BURST);
                let rests = intake.rests_from_bundles();
                let count = tokio::select! {
                    count = receive(intake, burst, limit, window) => count,
                    // Not for a delivery, but because bundles are taken again if there is one.
                    Some(_) = self.slot(&mut unavailable), if rests => {
                        intake.take_bundles_again();
                        continue;
                    }
                };
                if count == 0 {
                    return;
                }
                let_wait(pipeline, received, burst, window, intake);
            }
            // Take the slot only when there is a delivery for it. A slot held while waiting would
            // block a quarantined message.
            let waits_until = received.waits_until();
            let slot = tokio::select! {
                biased;
                slot = self.slot(&mut unavailable) => slot,
                () = until(waits_until) => {
                    pipeline.open.remove(received.send_on());
                    intake.rest_from_bundles();
                    continue;
                }
                // The members of a bundle wait no longer because single deliveries wait before
                // them.
                _ = intake.next_bundle(burst), if waits_until.is_none() => {
                    let_wait(pipeline, received, burst, window, intake);
                    continue;
                }
            };
            let Some(slot) = slot else { return };
            intake.take_bundles_again();
            let adapted = if max_batch == 1 {
                let Some(first) = received.next(&pipeline.open) else {
                    continue;
                };
                let turn = Turn {
                    first: (first, kept_open(pipeline)),
                    received: Arc::clone(received),
                    times: window.times(),
                    unavailable: unavailable.clone(),
                };
                Self::start_turn(pipeline, turn, slot);
                match window {
                    Windows::ByTime(window) => window.adapt(Instant::now()),
                    _ => None,
                }
            } else {
                let room = max_batch.saturating_sub(received.len());
                intake.take_waiting(burst, room);
                let_wait(pipeline, received, burst, window, intake);
                let batch = received.batch(max_batch, max_bytes, &pipeline.open);
                if batch.is_empty() {
                    continue;
                }
                let bytes = batch.iter().map(|delivery| delivery.bytes() as u64);
                let (count, bytes) = (batch.len(), bytes.sum());
                Self::start(pipeline, batch, slot);
                match window {
                    Windows::ByBytes(window) => {
                        window.adapt(u32::try_from(count).unwrap_or(u32::MAX), bytes)
                    }
                    _ => None,
                }
            };
            if let Some(size) = adapted {
                intake.resize(size);
            }
        }
    }

    /// Waits for a slot while the worker's dependencies are available. They may fail while it waits
    /// for the slot.
    async fn slot(
        &self,
        unavailable: &mut watch::Receiver<Option<String>>,
    ) -> Option<OwnedSemaphorePermit> {
        loop {
            // An error means that the sender is gone, because this handler can never be
            // unavailable.
            let _ = unavailable.wait_for(Option::is_none).await;
            let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            if unavailable.borrow().is_none() {
                return Some(slot);
            }
        }
    }

    /// Starts a turn: one delivery after the other in the same slot, until none waits or the turn
    /// has taken as long as it may. So short tasks do not pay for a start each, and what waits for
    /// a slot waits no longer than for one long task.
    fn start_turn<H: BatchHandler>(
        pipeline: &Arc<Pipeline<H>>,
        turn: Turn,
        slot: OwnedSemaphorePermit,
    ) {
        let turning = Arc::clone(pipeline);
        pipeline.spawn(async move {
            let (_slot, pipeline) = (slot, turning);
            let mut road = Road::new(&pipeline);
            let (mut delivery, mut open) = turn.first;
            let mut now = Instant::now();
            let ends = now + TURN;
            for taken in 1.. {
                let decided = pipeline.decide([delivery], open, None).await;
                let before = std::mem::replace(&mut now, Instant::now());
                if let Some(times) = &turn.times {
                    times.add(now - before);
                }
                // Others are handled in this slot while the outputs of this one are published.
                for decided in decided {
                    road.take(decided).await;
                }
                let is_over = taken == TURN_DELIVERIES || now >= ends;
                if is_over || turn.unavailable.borrow().is_some() {
                    return;
                }
                match turn.received.next(&pipeline.open) {
                    Some(next) => (delivery, open) = (next, kept_open(&pipeline)),
                    None => return,
                }
            }
        });
    }

    fn start<H: BatchHandler>(
        pipeline: &Arc<Pipeline<H>>,
        deliveries: Vec<Delivery>,
        slot: OwnedSemaphorePermit,
    ) {
        let pipeline = Arc::clone(pipeline);
        let open = pipeline
            .open
            .keep(deliveries.len(), pipeline.counters.begun.now());
        let batch = Arc::clone(&pipeline);
        pipeline.spawn(async move {
            let mut road = Road::new(&batch);
            for decided in batch.decide(deliveries, open, Some(slot)).await {
                road.take(decided).await;
            }
        });
    }

    /// Waits until nothing runs. Holds new deliveries back meanwhile, and until the permit is
    /// dropped.
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

    /// Processes one isolated delivery. It runs to its end even if this future is dropped: only the
    /// pipeline stops it, on `abort`, and publishes it again.
    pub async fn run_isolated<H: BatchHandler>(
        &self,
        pipeline: &Arc<Pipeline<H>>,
        delivery: Delivery,
    ) {
        let pipeline = Arc::clone(pipeline);
        let run = self.tasks.spawn(async move {
            let open = kept_open(&pipeline);
            let mut road = Road::new(&pipeline);
            for decided in pipeline.decide([delivery], open, None).await {
                road.take(decided).await;
            }
        });
        // An error means that it panicked outside of the steps for the delivery, and that the
        // delivery comes again.
        if let Err(error) = run.await {
            error!(%error, "processing a quarantined message has panicked; it comes again");
        }
    }

    /// Ends all running deliveries: waits for them, then cancels them through `shutdown`, then
    /// drops them.
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

/// Lets deliveries that have arrived wait for a slot. They may be so large that fewer of them are
/// held from now on.
fn let_wait<H: BatchHandler>(
    pipeline: &Pipeline<H>,
    received: &Waiting,
    burst: &mut Vec<Delivery>,
    window: &mut Windows,
    intake: &mut Intake,
) {
    pipeline.open.add(burst.len());
    if let Some(size) = window.receive(burst) {
        intake.resize(size);
    }
    received.add(burst);
}

/// Keeps a delivery open that begins now.
fn kept_open<H>(pipeline: &Pipeline<H>) -> KeptOpen {
    pipeline.open.keep(1, pipeline.counters.begun.now())
}

/// Waits until this time; for ever without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Waits for deliveries and appends them to `into`, at most `limit`. Returns how many; 0 once the
/// broker is closed. Makes the window small while none arrive.
async fn receive(
    intake: &mut Intake,
    into: &mut Vec<Delivery>,
    limit: usize,
    window: &mut Windows,
) -> usize {
    while !matches!(window, Windows::Fixed(_)) {
        let times = window.times();
        let measured = async {
            match times {
                Some(times) => times.measured_all().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            count = intake.next_many(into, limit) => return count,
            () = measured => {
                if let Windows::ByTime(window) = window
                    && let Some(size) = window.adapt(Instant::now())
                {
                    intake.resize(size);
                }
            }
            () = sleep(SHRINKS_EVERY) => break,
        }
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

    // Each slot, and each delivery with a task of its own, takes this memory, and each copy of it
    // takes time. An async function that is given a future has room for it twice.
    #[test]
    fn processing_a_delivery_takes_little_memory() {
        type Steps = &'static Arc<Pipeline<TaskExecutor<NoOp>>>;
        let decide = |steps: Steps, delivery, open| steps.decide([delivery], open, None);
        let carry_out = |steps: Steps, decided, ()| steps.carry_out(decided);
        let sizes = (size_of_result(&decide), size_of_result(&carry_out));
        assert!(sizes.0 < 9 * 1024 && sizes.1 < 3 * 1024, "{sizes:?} bytes");
    }
}
