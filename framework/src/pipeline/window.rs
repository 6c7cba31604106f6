//! How many deliveries a worker holds: enough that its slots never wait for the broker, and not so
//! many that other processes have nothing to do.
//!
//! While a delivery is settled and the next one is on its way, its place in the window is not at
//! work. Short tasks need many such places, long tasks none. So the window holds one delivery for
//! each slot, and in addition what the slots handle within [`COVER`], unless that is less than half
//! a delivery for each: a long task that waits here while another process has a free slot would
//! delay its job by as long as it takes. The window follows the measured times of the tasks.
//!
//! Large deliveries that wait would fill the memory. So if deliveries are large, the window holds
//! about [`WAITING_BYTES`] of them in addition to one for each slot. It knows their size from those
//! that have arrived.
//!
//! Pure: it does no I/O and reads no clock.
//!
//! What must stay true:
//! - A window grows fourfold at most, and only when a whole window of tasks was measured: a few
//!   short tasks among long ones must not make a process take hundreds of long ones.
//! - A window shrinks at most once in [`SHRINKS_EVERY`], or at once if the deliveries are too large
//!   for it. Those that the worker holds then are not given back.
//! - What counts is the mean size of the deliveries: a few large ones among many small ones do not
//!   make the window small, wherever they stand. After it has become small, it stays so for
//!   [`SHRINKS_EVERY`]: each change costs the broker something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How much work waits in the process in addition to what runs: about as much as is done until a
/// delivery is settled and the next one arrives, which takes some confirms and the patience of the
/// acknowledgements.
const COVER: Duration = Duration::from_millis(100);
/// How many bytes of deliveries wait in the process in addition to what runs.
const WAITING_BYTES: u64 = 16 << 20;
const GROWTH: u32 = 4;
pub(crate) const SHRINKS_EVERY: Duration = Duration::from_mins(1);

/// The window of one worker.
#[derive(Debug)]
pub(crate) struct Window {
    slots: u32,
    /// The largest size, unless there are more slots.
    largest: u32,
    /// How many deliveries of the usual size may wait in addition to one for each slot.
    fitting: u32,
    /// What was received lately.
    received: Received,
    size: u32,
    changed: Option<Instant>,
    times: Arc<TaskTimes>,
    /// What was measured until the last look at it.
    seen: Measured,
}

/// How long the tasks of a worker take, all together.
#[derive(Debug, Default)]
pub(crate) struct TaskTimes {
    tasks: AtomicU64,
    nanos: AtomicU64,
    /// After how many tasks the window may grow.
    awaited: AtomicU64,
    are_measured: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    tasks: u64,
    nanos: u64,
}

/// What was received since the last look at it, and half of what was known then.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    deliveries: u64,
    bytes: u64,
    /// How many deliveries are new.
    new: u32,
}

impl Window {
    /// Returns the window of a worker with this number of slots before its first task: it may be a
    /// long one. The window grows to `largest` at most.
    pub fn new(slots: u32, largest: u32) -> Self {
        let slots = slots.max(1);
        let window = Self {
            slots,
            largest,
            fitting: u32::MAX,
            received: Received::default(),
            size: slots,
            changed: None,
            times: Arc::default(),
            seen: Measured::default(),
        };
        window.await_all();
        window
    }

    /// Returns how many deliveries the worker may hold.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Returns where to note how long tasks take.
    pub fn times(&self) -> Arc<TaskTimes> {
        Arc::clone(&self.times)
    }

    /// Takes note of deliveries of this many bytes. Returns the new size if they are too large for
    /// this one.
    pub fn receive(&mut self, deliveries: u32, bytes: u64, now: Instant) -> Option<u32> {
        let received = &mut self.received;
        received.new = received.new.saturating_add(deliveries);
        received.deliveries = received.deliveries.saturating_add(deliveries.into());
        received.bytes = received.bytes.saturating_add(bytes);
        // Waits for a whole window of them, unless they are too many bytes already.
        if received.new < self.size && received.bytes < WAITING_BYTES {
            return None;
        }
        let mean = received.bytes / received.deliveries.max(1);
        let fitting = u32::try_from(WAITING_BYTES / mean.max(1)).unwrap_or(u32::MAX);
        *received = Received {
            deliveries: received.deliveries / 2,
            bytes: received.bytes / 2,
            new: 0,
        };
        if fitting < self.fitting || !self.rests(now) {
            self.fitting = fitting;
        }
        let most = self.most();
        if !self.is_too_large_for(most) {
            return None;
        }
        self.seen = self.times.measured();
        self.resize(most, now)
    }

    /// Returns whether the window has changed lately.
    fn rests(&self, now: Instant) -> bool {
        self.changed
            .is_some_and(|changed| now.duration_since(changed) < SHRINKS_EVERY)
    }

    /// Returns the largest size for deliveries as large as the last ones.
    fn most(&self) -> u32 {
        let fitting = self.slots.saturating_add(self.fitting);
        fitting.min(self.largest.max(self.slots))
    }

    /// Returns whether the window is so much larger than this that it shrinks.
    const fn is_too_large_for(&self, wanted: u32) -> bool {
        wanted < self.size && (wanted <= self.size / 2 || wanted == self.slots)
    }

    /// Returns the new size if the measured tasks demand another one.
    pub fn adapt(&mut self, now: Instant) -> Option<u32> {
        let tasks = self.times.tasks.load(Ordering::Relaxed) - self.seen.tasks;
        if tasks < u64::from(self.slots) {
            return None;
        }
        let measured = self.times.measured();
        let mean = Duration::from_nanos((measured.nanos - self.seen.nanos) / tasks);
        let wanted = size_for(self.slots, mean, self.most());
        if wanted > self.size.saturating_add(self.size / 2) {
            // Measures until a whole window has been handled.
            let size = (tasks >= u64::from(self.size))
                .then(|| wanted.min(self.size.saturating_mul(GROWTH)))?;
            self.seen = measured;
            return self.resize(size, now);
        }
        self.seen = measured;
        if self.is_too_large_for(wanted) && !self.rests(now) {
            return self.resize(wanted, now);
        }
        None
    }

    /// Returns the new size after a time without tasks. Nothing is known about the next ones.
    pub fn rest(&mut self, now: Instant) -> Option<u32> {
        self.seen = self.times.measured();
        (self.fitting, self.received) = (u32::MAX, Received::default());
        self.resize(self.slots, now)
    }

    fn resize(&mut self, size: u32, now: Instant) -> Option<u32> {
        let is_new = size != self.size;
        self.size = size;
        self.changed = Some(now);
        self.await_all();
        is_new.then_some(size)
    }

    /// Lets [`TaskTimes::measured_all`] return once a whole window has been handled.
    fn await_all(&self) {
        let awaited = self.seen.tasks + u64::from(self.size);
        self.times.awaited.store(awaited, Ordering::Relaxed);
    }
}

/// Returns the size of the window for tasks that take this long.
fn size_for(slots: u32, mean: Duration, largest: u32) -> u32 {
    let extra = u128::from(slots) * COVER.as_nanos() / mean.as_nanos().max(1);
    let extra = u32::try_from(extra).unwrap_or(u32::MAX);
    let extra = if extra > slots / 2 { extra } else { 0 };
    slots.saturating_add(extra).min(largest.max(slots))
}

impl TaskTimes {
    fn measured(&self) -> Measured {
        Measured {
            tasks: self.tasks.load(Ordering::Relaxed),
            nanos: self.nanos.load(Ordering::Relaxed),
        }
    }

    /// Notes how long a task has taken.
    pub fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        let tasks = self.tasks.fetch_add(1, Ordering::Relaxed) + 1;
        if tasks == self.awaited.load(Ordering::Relaxed) {
            self.are_measured.notify_one();
        }
    }

    /// Waits until a whole window of tasks has been measured since the last change, which may be
    /// before the next delivery arrives.
    pub async fn measured_all(&self) {
        self.are_measured.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const LARGEST: u32 = 1000;

    /// Measures this many tasks and returns the size after them.
    fn after(window: &mut Window, tasks: u32, time: Duration, now: Instant) -> u32 {
        for _ in 0..tasks {
            window.times.add(time);
            window.adapt(now);
        }
        window.size()
    }

    #[test]
    fn size_is_one_per_slot_and_for_short_tasks_what_the_slots_do_in_a_tenth_of_a_second() {
        let sizes = |slots| {
            [10_000_000, 1000, 200, 150, 100, 10, 1, 0]
                .map(|millis| size_for(slots, MILLI * millis, LARGEST))
        };
        assert_eq!(sizes(8), [8, 8, 8, 13, 16, 88, 808, 1000]);
        assert_eq!(sizes(1), [1, 1, 1, 1, 2, 11, 101, 1000]);
        assert_eq!(sizes(2000), [2000; 8]);
        assert_eq!(size_for(u32::MAX, MILLI, LARGEST), u32::MAX);
    }

    #[test]
    fn window_is_small_until_whole_windows_of_tasks_were_short() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        assert_eq!(window.size(), 8);
        assert_eq!(after(&mut window, 7, Duration::ZERO, now), 8);
        assert_eq!(after(&mut window, 1, Duration::ZERO, now), 32);
        assert_eq!(after(&mut window, 31, Duration::ZERO, now), 32);
        assert_eq!(after(&mut window, 1, Duration::ZERO, now), 128);
        assert_eq!(after(&mut window, 800, Duration::ZERO, now), 1000);
    }

    // A worker of short tasks waits for deliveries as long as the window is small.
    #[test]
    fn window_need_not_wait_for_another_delivery_to_grow() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        let is_measured = |window: &Window| window.times.measured_all().now_or_never().is_some();
        for size in [8, 32] {
            assert_eq!(window.size(), size);
            (1..size).for_each(|_| window.times.add(Duration::ZERO));
            assert!(!is_measured(&window));
            window.times.add(Duration::ZERO);
            assert!(is_measured(&window));
            window.adapt(now);
        }
    }

    #[test]
    fn one_long_task_among_short_ones_keeps_the_window_small() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        window.times.add(SHRINKS_EVERY);
        assert_eq!(after(&mut window, 7, Duration::ZERO, now), 8);
    }

    #[test]
    fn window_shrinks_when_tasks_become_long_at_most_once_a_minute() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        assert_eq!(after(&mut window, 850, Duration::ZERO, now), 1000);
        let long = Duration::from_secs(1);
        let early = now + SHRINKS_EVERY - MILLI;
        assert_eq!(after(&mut window, 16, long, early), 1000);
        assert_eq!(after(&mut window, 8, long, now + SHRINKS_EVERY), 8);
    }

    #[test]
    fn long_tasks_get_one_place_per_slot_again_however_little_the_window_has_grown() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        assert_eq!(after(&mut window, 8, MILLI * 150, now), 13);
        let later = now + SHRINKS_EVERY;
        assert_eq!(after(&mut window, 8, Duration::from_secs(1), later), 8);
    }

    #[test]
    fn large_deliveries_get_a_window_of_few_bytes_at_once_and_small_ones_the_whole_one_later() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        assert_eq!(after(&mut window, 850, Duration::ZERO, now), 1000);
        assert_eq!(window.receive(15, 15 << 20, now), None);
        assert_eq!(window.receive(1, 1 << 20, now), Some(8 + 16));
        let early = now + SHRINKS_EVERY - MILLI;
        for time in [now, early] {
            (0..100).for_each(|_| assert_eq!(window.receive(24, 24 << 10, time), None));
            assert_eq!(after(&mut window, 100, Duration::ZERO, time), 8 + 16);
        }
        let later = now + SHRINKS_EVERY;
        assert_eq!(window.receive(24, 24 << 10, later), None);
        assert_eq!(after(&mut window, 24, Duration::ZERO, later), 96);
        assert_eq!(window.receive(100, u64::MAX, later), Some(8));
        assert_eq!(window.receive(1, u64::MAX, later), None);
    }

    #[test]
    fn few_large_deliveries_among_small_ones_leave_the_window_as_it_is_wherever_they_stand() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        assert_eq!(after(&mut window, 850, Duration::ZERO, now), 1000);
        let small = |window: &mut Window, deliveries: u32| {
            let bytes = u64::from(deliveries) << 10;
            assert_eq!(window.receive(deliveries, bytes, now), None);
        };
        small(&mut window, 1000);
        for before in [0, 1, 500, 999, 1000] {
            small(&mut window, before);
            assert_eq!(window.receive(2, 8 << 20, now), None);
            small(&mut window, 2000 - before);
        }
    }

    proptest! {
        #[test]
        fn deliveries_of_mixed_sizes_change_the_window_a_few_times_a_minute(
            sizes in prop::collection::vec(prop_oneof![9 => 0..2000_u64, 1 => 0..(32_u64 << 20)], 500..3000),
        ) {
            let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
            let mut changes = 0;
            for bytes in sizes {
                let received = window.receive(1, bytes, now);
                window.times.add(Duration::ZERO);
                changes += u32::from(received.is_some()) + u32::from(window.adapt(now).is_some());
            }
            // It grows to its largest size in four steps, and may be halved seven times until there
            // is one for each slot.
            prop_assert!(changes <= 24, "{changes}");
        }
    }

    #[test]
    fn window_is_small_again_after_a_rest() {
        let (mut window, now) = (Window::new(8, LARGEST), Instant::now());
        assert_eq!(window.rest(now), None);
        after(&mut window, 850, Duration::ZERO, now);
        assert_eq!((window.rest(now), window.size()), (Some(8), 8));
    }

    proptest! {
        #[test]
        fn window_never_starves_a_slot_and_never_exceeds_its_limit(
            slots in 0..3000_u32,
            tasks in prop::collection::vec((0..u64::MAX / 4, 0..200_u64, any::<u32>(), any::<u64>()), 0..300),
        ) {
            let (mut window, mut now) = (Window::new(slots, LARGEST), Instant::now());
            for (nanos, seconds, deliveries, bytes) in tasks {
                now += Duration::from_secs(seconds);
                let before = window.size();
                let resized = window.receive(deliveries, bytes, now);
                prop_assert_eq!(resized.is_some(), window.size() < before);
                prop_assert!(window.size() >= slots.max(1));
                let before = window.size();
                window.times.nanos.store(0, Ordering::Relaxed);
                window.seen.nanos = 0;
                window.times.add(Duration::from_nanos(nanos));
                let adapted = window.adapt(now);
                prop_assert_eq!(adapted.is_some(), window.size() != before);
                prop_assert!(window.size() >= slots.max(1) && window.size() <= LARGEST.max(slots));
                prop_assert!(window.size() <= before.saturating_mul(GROWTH));
            }
        }
    }
}
