//! What waits in pipes, how fast workers take it, and how much more should wait there.
//!
//! A pipe that holds hours of work makes every later job wait for hours. One that is empty makes
//! workers wait. So those who dispatch keep about a second of work in each pipe: its *room*. How
//! much that is follows from what leaves the pipe while something waits in it; slots, bundles and
//! the workers of others need not be known.
//!
//! What must stay true:
//! - Others who dispatch to the same pipe make its speed look lower, never higher.
//! - Workers that wait for items do not wait for long: the room grows when the pipe is found empty
//!   while somebody has more for it.

use std::collections::HashMap;
use std::time::Duration;

use contract::PipeSpeed;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Broker, BrokerError};

/// How long a reading is used before the broker is asked again.
const MAX_AGE: Duration = Duration::from_millis(50);
/// The same for a pipe that is new to this process.
const LEARNING_AGE: Duration = Duration::from_millis(2);
/// How long a pipe is new, unless its speed is known before.
const LEARNING: Duration = Duration::from_millis(500);
/// The same for one that seems to be fast. Its speed is known by then.
const LEARNING_OF_FAST: Duration = Duration::from_secs(3);
/// How long the room of a fast pipe may grow fast after it has grown once.
const GROWING: Duration = Duration::from_millis(200);
/// How much of the work of a pipe should wait in it.
const WAIT: Duration = Duration::from_secs(1);
/// The number of items a second from which on bundles are worth while. Below, they save little, and
/// a task would wait behind all members of those before it.
const FAST: f64 = 1000.0;
/// The room from which on a pipe whose speed is not known counts as fast: its workers have taken
/// half as many items at once, one by one.
const MANY: f64 = 400.0;
/// By how much the room of a new pipe grows when it is found empty, and that of another one.
const GROWTH_OF_NEW: f64 = 3.0;
const GROWTH: f64 = 2.0;
/// The smallest room, in items.
const FLOOR: f64 = 16.0;
/// The largest room. Nothing above it counts for anybody.
const CEILING: f64 = 1e9;
/// The shortest time in which the speed of a pipe is measured.
const MEASURED_IN: Duration = Duration::from_millis(200);
/// The same at first, when workers may have begun together and end together, and while the pipe is
/// empty now and then. What its workers take at once, and hold, must not count for much then.
const FIRST_MEASURED_IN: Duration = Duration::from_secs(1);
/// The time after which a measured speed has mostly replaced those before it.
const SMOOTHED_OVER: Duration = Duration::from_secs(2);
/// The time in which a room that is too large shrinks by about two thirds of what is too much.
const SHRINKS_OVER: Duration = Duration::from_secs(3);
/// How long the speed of a pipe is told to others after somebody has asked about the pipe.
const TOLD: Duration = Duration::from_secs(30);
/// How long a pipe is remembered that nobody asks about.
const REMEMBERED: Duration = Duration::from_mins(5);
/// The largest number of pipes that are remembered.
const CAPACITY: usize = 1000;

/// The gauges of the pipes to which somebody dispatches.
#[derive(Debug, Default)]
pub struct Gauges(Mutex<HashMap<String, Gauge>>);

/// How much waits in a pipe, and how much should; see [`Context::room`](crate::Context::room).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub(crate) waiting: u64,
    pub(crate) size: u64,
    pub(crate) speed: Option<u64>,
    pub(crate) is_learning: bool,
}

impl Room {
    /// Returns a room of this size in which this many items wait, and whose workers take so many a
    /// second, for tests.
    pub const fn of(waiting: u64, size: u64, speed: Option<u64>) -> Self {
        Self {
            waiting,
            size,
            speed,
            is_learning: false,
        }
    }

    /// Returns how many items wait in the pipe. Those that run do not count.
    pub const fn waiting(self) -> u64 {
        self.waiting
    }

    /// Returns how many items should wait in the pipe at most: what its workers take in about a
    /// second.
    pub const fn size(self) -> u64 {
        self.size
    }

    /// Returns how many more items fit.
    pub const fn free(self) -> u64 {
        self.size.saturating_sub(self.waiting)
    }

    /// Returns the room for what the workers take in this time instead of a second, at most this
    /// many items.
    #[must_use]
    pub fn within(self, time: Duration, most: u64) -> Self {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let size = self.size.saturating_mul(millis) / 1000;
        Self {
            size: size.clamp(1, most.max(1)),
            ..self
        }
    }

    /// Returns a room of at least this size, as others have measured it.
    #[must_use]
    pub const fn at_least(self, size: u64) -> Self {
        Self {
            size: if size > self.size { size } else { self.size },
            ..self
        }
    }

    /// Returns how many items a second leave the pipe when its workers are busy; `None` as long as
    /// that has not been seen.
    pub const fn speed(self) -> Option<u64> {
        self.speed
    }

    /// Returns whether the pipe is so new to this process, or, if it is fast, was found empty so
    /// lately, that its room may grow within milliseconds.
    pub const fn is_learning(self) -> bool {
        self.is_learning
    }
}

#[derive(Debug)]
struct Gauge {
    /// When the broker was asked first.
    since: Instant,
    /// When the broker was asked last. While it has not answered, nobody else asks.
    asked: Instant,
    /// How many items this process had dispatched then since the question before.
    added_before: u64,
    /// When the last question was asked that is answered.
    at: Instant,
    /// How many items waited then.
    waiting: u64,
    /// How many items this process has dispatched since.
    added: u64,
    /// Whether it had dispatched some before the question before that.
    was_fed: bool,
    /// From when on a question counts what this process had dispatched before the last one; `None`:
    /// it has dispatched something since.
    sure_from: Option<Instant>,
    /// How many members the bundles of this process have lately had; `None` before the first.
    members: Option<f64>,
    /// Items a second that leave the pipe while something waits.
    speed: Option<f64>,
    /// Items a second that have left the pipe although it was empty meanwhile.
    at_least: f64,
    /// What the speed is measured from next.
    measured: Measurement,
    size: f64,
    /// When it grew last because the pipe was empty.
    grown: Option<Instant>,
    /// Somebody has dispatched to the pipe since then.
    is_used: bool,
    /// Somebody has had more for the pipe than fitted since the last reading.
    is_wanted: bool,
}

/// What has left a pipe in a time.
#[derive(Debug, Default)]
struct Measurement {
    time: Duration,
    gone: i64,
    /// The pipe was empty meanwhile, so that its workers could have done more.
    was_empty: bool,
}

impl Gauges {
    /// Returns the room of a pipe, from the last reading and what this process has dispatched
    /// since. Asks the broker if the reading is old. `bundles` returns how many bundles wait for
    /// the same workers, and the largest number of members of a bundle.
    ///
    /// # Errors
    /// The error of [`Broker::depth`].
    pub async fn room(
        &self,
        pipe: &str,
        broker: &dyn Broker,
        bundles: impl AsyncFnOnce() -> (u64, u32),
    ) -> Result<Room, BrokerError> {
        if let Some(known) = self.begin_to_ask(pipe) {
            return Ok(known);
        }
        let asked = Instant::now();
        let single = broker.depth(pipe).await?;
        let (bundles, most) = bundles().await;
        let mut gauges = self.gauges();
        let Some(gauge) = gauges.get_mut(pipe) else {
            // There are too many pipes to learn about this one.
            let room = Gauge::new(single, asked).room();
            return Ok(Room {
                is_learning: false,
                ..room
            });
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a number of items, far below 2^53"
        )]
        let in_bundles = (bundles as f64 * gauge.members.unwrap_or(most.into())) as u64;
        gauge.read(single.saturating_add(in_bundles), asked);
        Ok(gauge.room())
    }

    /// Returns what is known of a pipe, unless it is time to ask.
    fn begin_to_ask(&self, pipe: &str) -> Option<Room> {
        let (mut gauges, now) = (self.gauges(), Instant::now());
        let is_remembered = |gauge: &Gauge| now.duration_since(gauge.asked) < REMEMBERED;
        if let Some(gauge) = gauges.get_mut(pipe).filter(|gauge| is_remembered(gauge)) {
            if gauge.is_recent() {
                return Some(gauge.room());
            }
            (gauge.asked, gauge.added_before) = (now, gauge.added);
            gauge.sure_from.get_or_insert(now + MAX_AGE);
            return None;
        }
        if gauges.len() >= CAPACITY {
            gauges.retain(|_, gauge| is_remembered(gauge));
        }
        if gauges.len() < CAPACITY {
            gauges.insert(pipe.to_owned(), Gauge::new(0, now));
        }
        None
    }

    /// Returns how many items a second leave the pipes that somebody has asked about lately, the
    /// fastest first, at most so many.
    pub fn speeds(&self, most: usize) -> Vec<PipeSpeed> {
        let gauges = self.gauges();
        let recent = gauges
            .iter()
            .filter(|(_, gauge)| gauge.asked.elapsed() < TOLD);
        let speeds = recent.filter_map(|(pipe, gauge)| {
            Some(PipeSpeed {
                pipe: pipe.clone(),
                items: gauge.room().speed.filter(|speed| *speed > 0)?,
            })
        });
        let mut speeds: Vec<_> = speeds.collect();
        speeds.sort_by_key(|speed| std::cmp::Reverse(speed.items));
        speeds.truncate(most);
        speeds
    }

    /// Counts one item that this process dispatches to the pipe.
    pub fn add(&self, pipe: &str) {
        if let Some(gauge) = self.gauges().get_mut(pipe) {
            gauge.added += 1;
            gauge.sure_from = None;
        }
    }

    /// Notes that all that this process has dispatched to the pipe is there.
    pub(crate) fn settle(&self, pipe: &str) {
        if let Some(gauge) = self.gauges().get_mut(pipe) {
            gauge.sure_from = Some(Instant::now());
        }
    }

    /// Counts the members of a bundle that this process dispatches to the pipe.
    pub(crate) fn add_bundle(&self, pipe: &str, members: u32) {
        if let Some(gauge) = self.gauges().get_mut(pipe) {
            gauge.added += u64::from(members);
            gauge.sure_from = None;
            let (members, known) = (f64::from(members), gauge.members);
            gauge.members = Some(known.map_or(members, |known| known + (members - known) / 8.0));
        }
    }

    /// Notes that somebody has more for the pipe than fits.
    pub fn want(&self, pipe: &str) {
        if let Some(gauge) = self.gauges().get_mut(pipe) {
            gauge.is_wanted = true;
        }
    }

    /// Returns whether bundles save something for the pipe, as far as its speed is known. Workers
    /// take a bundle as soon as they take an item, so that a slow pipe whose items go in bundles
    /// looks like a fast one.
    pub(crate) fn is_fast(&self, pipe: &str) -> bool {
        let gauges = self.gauges();
        let Some(gauge) = gauges.get(pipe) else {
            return true;
        };
        let speed = gauge.speed.unwrap_or(gauge.at_least);
        speed >= FAST || gauge.speed.is_none() && gauge.size >= MANY
    }

    fn gauges(&self) -> MutexGuard<'_, HashMap<String, Gauge>> {
        self.0.lock()
    }
}

impl Gauge {
    fn new(waiting: u64, now: Instant) -> Self {
        Self {
            since: now,
            asked: now,
            added_before: 0,
            at: now,
            waiting,
            added: 0,
            was_fed: false,
            sure_from: Some(now),
            members: None,
            speed: None,
            at_least: 0.0,
            measured: Measurement::default(),
            size: FLOOR,
            grown: None,
            is_used: false,
            is_wanted: false,
        }
    }

    fn is_learning(&self) -> bool {
        let learning = if self.size >= MANY {
            LEARNING_OF_FAST
        } else {
            LEARNING
        };
        let is_new = self.speed.is_none() && self.since.elapsed() < learning;
        let is_growing = self.grown.is_some_and(|at| at.elapsed() < GROWING);
        // The slots of slow workers may all become free at once, which says little of their speed.
        is_new || is_growing && self.speed.is_none_or(|speed| speed >= FAST)
    }

    fn is_recent(&self) -> bool {
        let max_age = if self.is_learning() {
            LEARNING_AGE
        } else {
            MAX_AGE
        };
        self.asked.elapsed() < max_age
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between the floor and the ceiling"
    )]
    fn room(&self) -> Room {
        Room {
            waiting: self.waiting.saturating_add(self.added),
            size: self.size as u64,
            speed: self.speed.map(|speed| speed as u64),
            is_learning: self.is_learning(),
        }
    }

    /// Takes a reading that the broker was asked for at this time.
    fn read(&mut self, waiting: u64, asked: Instant) {
        let time = asked.duration_since(self.at);
        let gone = self.waiting.saturating_add(self.added_before);
        let gone = gone.cast_signed().saturating_sub(waiting.cast_signed());
        let is_idle = waiting == 0 && self.waiting == 0 && self.added_before == 0;
        let measured = &mut self.measured;
        measured.was_empty |= waiting == 0 || self.waiting == 0;
        // Nothing was there to do, which tells nothing about the workers.
        if !is_idle {
            measured.time += time;
            measured.gone = measured.gone.saturating_add(gone);
        }
        let enough = if measured.was_empty || self.speed.is_none() {
            FIRST_MEASURED_IN
        } else {
            MEASURED_IN
        };
        if measured.time >= enough {
            self.measure();
        }
        // What was dispatched a moment ago may not be there yet.
        let is_taken = self.was_fed && self.waiting == 0;
        let is_sure = self.sure_from.is_some_and(|from| asked >= from);
        self.is_used |= self.added_before > 0;
        if self.is_wanted && self.is_used && waiting == 0 && (is_taken || is_sure) {
            let is_new = self.is_learning();
            self.size *= if is_new { GROWTH_OF_NEW } else { GROWTH };
            (self.grown, self.is_used) = (Some(asked), false);
        }
        let least = self.size.max(self.at_least * WAIT.as_secs_f64());
        let wanted = self.speed.map_or(least, |speed| speed * WAIT.as_secs_f64());
        let share = (time.as_secs_f64() / SHRINKS_OVER.as_secs_f64()).min(1.0);
        self.size = wanted.max(self.size - (self.size - wanted) * share);
        self.size = self.size.clamp(FLOOR, CEILING);
        (self.at, self.waiting) = (asked, waiting);
        self.was_fed = self.added_before > 0;
        self.added = self.added.saturating_sub(self.added_before);
        self.added_before = 0;
        self.is_wanted = false;
    }

    /// Takes over the measured speed.
    fn measure(&mut self) {
        let Measurement {
            time,
            gone,
            was_empty,
        } = std::mem::take(&mut self.measured);
        #[expect(clippy::cast_precision_loss, reason = "a number of items")]
        let speed = gone.max(0) as f64 / time.as_secs_f64();
        let share = (time.as_secs_f64() / SMOOTHED_OVER.as_secs_f64()).min(1.0);
        self.speed = Some(match self.speed {
            // Its workers can do at least this much.
            Some(known) if was_empty => known.max(speed),
            Some(known) => known + (speed - known) * share,
            None if was_empty => {
                if self.since.elapsed() > 2 * FIRST_MEASURED_IN {
                    self.at_least = self.at_least.max(speed);
                }
                return;
            }
            None => speed,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Outgoing;
    use crate::broker::memory::Memory;

    #[tokio::test(start_paused = true)]
    async fn reading_counts_what_was_dispatched_since_until_it_is_old() {
        let (broker, gauges) = (Memory::new(), Gauges::default());
        let waiting = async || {
            let room = gauges.room("pipe", &broker, async || (0, 1)).await;
            room.unwrap().waiting()
        };
        broker.publish(Outgoing::new("pipe", "one")).await.unwrap();
        assert_eq!(waiting().await, 1);
        gauges.add("pipe");
        gauges.add("a pipe without a reading");
        assert_eq!(waiting().await, 2);
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(waiting().await, 1);
    }

    /// Lets workers take this many items every 50 ms from a pipe whose room somebody fills. Returns
    /// what waited at most in the last second, and for how many readings the pipe was empty.
    async fn filled(each: u64, seconds: u64) -> (u64, u32) {
        let mut gauge = Gauge::new(0, Instant::now());
        let (mut waiting, mut most, mut empty) = (0_u64, 0, 0);
        for step in 0..seconds * 20 {
            let free = gauge.room().free();
            (gauge.added, gauge.is_wanted) = (free, true);
            waiting += free;
            waiting = waiting.saturating_sub(each);
            tokio::time::advance(MAX_AGE).await;
            gauge.added_before = gauge.added;
            gauge.read(waiting, Instant::now());
            if step >= (seconds - 1) * 20 {
                most = most.max(gauge.room().size());
                empty += u32::from(waiting == 0);
            }
        }
        (most, empty)
    }

    #[tokio::test(start_paused = true)]
    async fn room_becomes_what_the_workers_take_in_a_second_whatever_their_speed() {
        for each in [1_u64, 40, 5_000] {
            let (most, empty) = filled(each, 30).await;
            let second = (each * 20).max(16);
            assert!(
                (second * 9 / 10..=second * 3 / 2).contains(&most),
                "{each}: {most}"
            );
            assert_eq!(empty, 0, "{each}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn speeds_that_are_known_are_told_the_fastest_first() {
        let gauges = Gauges::default();
        for (pipe, speed) in [
            ("slow", Some(5.0)),
            ("new", None),
            ("fast", Some(70.0)),
            ("still", Some(0.0)),
        ] {
            let gauge = Gauge {
                speed,
                ..Gauge::new(0, Instant::now())
            };
            gauges.gauges().insert(pipe.to_owned(), gauge);
        }
        let told = |most| -> Vec<_> {
            let speeds = gauges.speeds(most).into_iter();
            speeds.map(|speed| (speed.pipe, speed.items)).collect()
        };
        let (fast, slow) = (("fast".to_owned(), 70), ("slow".to_owned(), 5));
        assert_eq!(told(8), [fast.clone(), slow]);
        assert_eq!(told(1), [fast]);
        tokio::time::advance(TOLD).await;
        assert_eq!(told(8), []);
    }

    #[tokio::test(start_paused = true)]
    async fn speed_of_an_idle_pipe_is_not_known_and_that_of_one_without_workers_is_zero() {
        let mut gauge = Gauge::new(0, Instant::now());
        let mut read = async |waiting: u64| {
            tokio::time::advance(MAX_AGE).await;
            gauge.added_before = gauge.added;
            gauge.read(waiting, Instant::now());
            gauge.room()
        };
        for _ in 0..10 {
            assert_eq!(read(0).await.speed(), None);
        }
        for _ in 0..60 {
            read(5).await;
        }
        let room = read(5).await;
        assert_eq!((room.speed(), room.size()), (Some(0), 16));
    }
}
