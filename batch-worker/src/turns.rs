//! Whose turn it is: how many items of a batch may go to their pipe now.
//!
//! A pipe has room for what its workers take in about a second ([`Room`]). Below half of that,
//! everybody may fill it up. Above, only those may who have had less than others: each partition
//! has a virtual time for each pipe, the number of its items that were dispatched, and each job one
//! within its partition, which divides that by the job's share. Who comes new begins at the lowest
//! time of those who wait. A new job gets a few items through at once although the pipe is full;
//! one of a partition that does not wait even when other new jobs have filled that place, too.
//!
//! Several batch workers need no agreement: they compete for the batches of all jobs, so each is
//! fair by itself.
//!
//! What must stay true:
//! - Nobody who waits is passed over for ever: those who are behind are served first, and a few
//!   items get through a pipe that others keep full.
//! - However many jobs are new, their first items fill a pipe to twice its room at most.
//! - What is remembered is bounded.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use contract::JobShare;
use framework::Room;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long somebody counts as waiting after being told to.
const WAITS_FOR: Duration = Duration::from_secs(1);
/// How long somebody is remembered who dispatches nothing. Longer than a batch waits.
const REMEMBERED: Duration = Duration::from_mins(2);
/// How long a job gets nothing before a few of its items go although they do not fit.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often that happens in a pipe.
const FORCED_EVERY: Duration = Duration::from_secs(1);
/// The largest number of jobs that are remembered.
const JOBS: usize = 10_000;
/// The smallest number of items that it is worth coming back for.
const FEW: u64 = 10;

/// The virtual time of a usual job for each of its items.
const PER_ITEM: u64 = 10;

/// The turns of the batches of a process.
#[derive(Debug, Default)]
pub struct Turns(Mutex<Known>);

/// Whose items go where.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The pipe of the items.
    pub pipe: &'a str,
    /// The partition of the job.
    pub partition: &'a str,
    /// The id of the job.
    pub job: &'a str,
}

#[derive(Debug, Default)]
struct Known {
    /// By pipe.
    pipes: HashMap<String, Pipe>,
    /// How many jobs there are in them.
    jobs: usize,
    /// When those were last forgotten who have not been here for long.
    pruned: Option<Instant>,
}

#[derive(Debug)]
struct Pipe {
    /// The partitions that dispatch to the pipe.
    partitions: Group<Partition>,
    /// When an item was last let through although it did not fit.
    forced: Instant,
}

#[derive(Debug)]
struct Partition {
    account: Account,
    jobs: Group<Account>,
}

/// Those who take turns.
#[derive(Debug)]
struct Group<M> {
    /// By name.
    members: HashMap<String, M>,
    /// The names of those that were told to wait lately. Most of many never are.
    waiting: HashSet<String>,
    /// The time of the one that was served last.
    clock: u64,
}

/// What somebody has had of a pipe.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// The virtual time: [`PER_ITEM`] for each item at the usual share, less at a larger one,
    /// counted on from where others were.
    time: u64,
    share: JobShare,
    /// When somebody last got something, or came.
    served: Instant,
    /// Whether somebody has been told to wait, or got something.
    is_known: bool,
    /// When it was last told to wait.
    waits: Option<Instant>,
}

impl Account {
    const fn begun_at(time: u64, now: Instant) -> Self {
        Self {
            time,
            share: JobShare::USUAL,
            served: now,
            is_known: false,
            waits: None,
        }
    }

    fn is_waiting(&self, now: Instant) -> bool {
        self.waits.is_some_and(|at| now < at + WAITS_FOR)
    }

    fn is_recent(&self, now: Instant) -> bool {
        now < self.served.max(self.waits.unwrap_or(self.served)) + REMEMBERED
    }

    /// Counts on from where those are who wait, or who were served last, if this one does not wait:
    /// what it did not want it does not get later. Returns whether it is ahead of them.
    fn catch_up(&mut self, others: u64, few: u64, now: Instant) -> bool {
        if !self.is_waiting(now) {
            self.time = self.time.max(others);
        }
        self.time > others.saturating_add(few * PER_ITEM)
    }

    fn dispatch(&mut self, items: u64, is_all: bool, now: Instant) {
        let usual = u64::from(JobShare::USUAL.weight()) * PER_ITEM;
        let time = items.saturating_mul(usual) / u64::from(self.share.weight());
        self.time = self.time.saturating_add(time);
        self.is_known = true;
        if items > 0 {
            self.served = now;
        }
        if !is_all {
            self.waits = Some(now);
        }
    }
}

impl AsMut<Self> for Account {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl AsMut<Account> for Partition {
    fn as_mut(&mut self) -> &mut Account {
        &mut self.account
    }
}

impl<M> Default for Group<M> {
    fn default() -> Self {
        Self {
            members: HashMap::new(),
            waiting: HashSet::new(),
            clock: 0,
        }
    }
}

impl<M: AsMut<Account>> Group<M> {
    /// Returns the lowest time of those who wait.
    fn lowest(&mut self, now: Instant) -> Option<u64> {
        let (members, mut lowest) = (&mut self.members, None);
        self.waiting.retain(|name| {
            let account = members.get_mut(name).map(AsMut::as_mut);
            let Some(account) = account.filter(|account| account.is_waiting(now)) else {
                return false;
            };
            lowest = Some(lowest.map_or(account.time, |time| account.time.min(time)));
            true
        });
        lowest
    }

    /// Counts what a member has got, and returns it.
    fn dispatch(&mut self, name: &str, items: u64, is_all: bool, now: Instant) -> Option<&mut M> {
        let member = self.members.get_mut(name)?;
        let account = member.as_mut();
        if items > 0 {
            self.clock = self.clock.max(account.time);
        }
        account.dispatch(items, is_all, now);
        if !is_all && !self.waiting.contains(name) {
            self.waiting.insert(name.to_owned());
        }
        Some(member)
    }
}

/// How far ahead of those who wait somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Ahead,
    Behind,
    /// It has not been here before.
    NewJob,
    /// Nor does anybody of its partition wait, while others do.
    NewPartition,
}

impl Turns {
    /// Returns whether a part of a batch may be dispatched now. It may be asked before it is known
    /// how many items that has.
    pub fn has_turn(&self, claim: Claim<'_>, room: Room) -> bool {
        let now = Instant::now();
        let mut known = self.0.lock();
        let (pipe, place) = known.open(claim, few_of(room), now);
        let has_turn = pipe.grants(claim, place, few_of(room), room, now) > 0;
        if !has_turn {
            pipe.dispatch(claim, 0, false, now);
        }
        has_turn
    }

    /// Returns how many of this number of items may be dispatched now.
    pub fn grant(&self, claim: Claim<'_>, items: u64, room: Room) -> u64 {
        let now = Instant::now();
        let mut known = self.0.lock();
        let (pipe, place) = known.open(claim, few_of(room), now);
        let granted = pipe.grants(claim, place, items, room, now);
        if granted > 0 && fitting(place, items, room) == 0 {
            pipe.forced = now;
        }
        pipe.dispatch(claim, granted, granted == items, now);
        granted
    }

    /// Gives a job that was told to wait this share from now on.
    pub fn weigh(&self, claim: Claim<'_>, share: JobShare) {
        let mut known = self.0.lock();
        let pipe = known.pipes.get_mut(claim.pipe);
        let partition = pipe.and_then(|pipe| pipe.partitions.members.get_mut(claim.partition));
        if let Some(job) = partition.and_then(|it| it.jobs.members.get_mut(claim.job)) {
            job.share = share;
        }
    }
}

/// Returns how many items make a difference for a pipe.
fn few_of(room: Room) -> u64 {
    (room.size() / 8).max(FEW.min(room.size()))
}

/// Returns how many of the items fit.
fn fitting(place: Place, items: u64, room: Room) -> u64 {
    let (waiting, size) = (room.waiting(), room.size());
    let few = few_of(room);
    let up_to = |limit: u64| limit.saturating_sub(waiting);
    let free = match place {
        Place::Ahead if waiting >= size / 2 => 0,
        Place::Ahead | Place::Behind => up_to(size),
        Place::NewJob => up_to(size).max(few.min(up_to(size + size / 2))),
        Place::NewPartition => up_to(size).max(few.min(up_to(2 * size))),
    };
    if free >= few.min(items) {
        items.min(free)
    } else {
        0
    }
}

impl Pipe {
    /// Returns how many of the items may go. Those of a job that has waited for long may go
    /// although they do not fit: others fill the pipe, who do not ask for room, or new jobs.
    fn grants(&self, claim: Claim<'_>, place: Place, items: u64, room: Room, now: Instant) -> u64 {
        let fitting = fitting(place, items, room);
        let job = self.partitions.members.get(claim.partition);
        let job = job.and_then(|partition| partition.jobs.members.get(claim.job));
        let is_starved = fitting == 0
            && job.is_some_and(|job| now >= job.served + PATIENCE)
            && now >= self.forced + FORCED_EVERY;
        if is_starved {
            few_of(room).min(items)
        } else {
            fitting
        }
    }

    /// Counts what a job has got.
    fn dispatch(&mut self, claim: Claim<'_>, items: u64, is_all: bool, now: Instant) {
        let partition = self
            .partitions
            .dispatch(claim.partition, items, is_all, now);
        if let Some(partition) = partition {
            partition.jobs.dispatch(claim.job, items, is_all, now);
        }
    }
}

impl Known {
    /// Returns the pipe, and how a job stands there.
    fn open(&mut self, claim: Claim<'_>, few: u64, now: Instant) -> (&mut Pipe, Place) {
        self.make_room(now);
        let pipe = self.pipes.entry(claim.pipe.to_owned());
        let pipe = pipe.or_insert_with(|| Pipe {
            partitions: Group::default(),
            forced: now,
        });
        let waiting = pipe.partitions.lowest(now);
        let others = waiting.unwrap_or(pipe.partitions.clock);
        let partition = pipe.partitions.members.entry(claim.partition.to_owned());
        let partition = partition.or_insert_with(|| Partition {
            account: Account::begun_at(others, now),
            jobs: Group::default(),
        });
        let is_idle = !partition.account.is_waiting(now);
        let is_partition_ahead = partition.account.catch_up(others, few, now);
        let other_jobs = partition.jobs.lowest(now);
        let other_jobs = other_jobs.unwrap_or(partition.jobs.clock);
        let job = partition.jobs.members.entry(claim.job.to_owned());
        let job = job.or_insert_with(|| {
            self.jobs += 1;
            Account::begun_at(other_jobs, now)
        });
        let is_new = !job.is_known || !job.is_recent(now);
        let is_ahead = job.catch_up(other_jobs, few, now) || is_partition_ahead;
        let place = match (is_ahead, is_new) {
            (true, _) => Place::Ahead,
            (false, true) if is_idle && waiting.is_some() => Place::NewPartition,
            (false, true) => Place::NewJob,
            (false, false) => Place::Behind,
        };
        (pipe, place)
    }

    /// If there are too many to remember, forgets those who do not wait, or everybody: then all
    /// begin anew.
    fn make_room(&mut self, now: Instant) {
        if self.pruned.is_none_or(|at| now >= at + REMEMBERED) {
            self.pruned = Some(now);
            self.retain(|account| account.is_recent(now));
        }
        if self.jobs >= JOBS {
            self.retain(|account| account.is_waiting(now));
        }
        if self.jobs >= JOBS {
            (self.pipes, self.jobs) = (HashMap::new(), 0);
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Account) -> bool) {
        self.jobs = 0;
        self.pipes.retain(|_, Pipe { partitions, .. }| {
            partitions.members.retain(|_, Partition { jobs, .. }| {
                jobs.members.retain(|_, account| is_kept(account));
                self.jobs += jobs.members.len();
                !jobs.members.is_empty()
            });
            !partitions.members.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 800;

    /// A pipe whose workers take its whole room in a second.
    #[derive(Default)]
    struct Busy {
        turns: Turns,
        waiting: u64,
        had: HashMap<(String, String), u64>,
    }

    impl Busy {
        fn ask(&mut self, partition: &str, job: &str, items: u64) -> u64 {
            let claim = Claim {
                pipe: "in",
                partition,
                job,
            };
            let granted = self
                .turns
                .grant(claim, items, Room::of(self.waiting, SIZE, Some(SIZE)));
            self.waiting += granted;
            let job = (partition.to_owned(), job.to_owned());
            *self.had.entry(job).or_default() += granted;
            granted
        }

        /// Lets these jobs ask again and again, each every 100 ms.
        async fn compete(&mut self, jobs: &[(&str, &str)], seconds: u64) {
            for _ in 0..seconds * 10 {
                for (partition, job) in jobs {
                    self.ask(partition, job, 1000);
                }
                tokio::time::advance(Duration::from_millis(100)).await;
                assert!(self.waiting >= SIZE / 10, "the workers have nothing to do");
                self.waiting -= SIZE / 10;
            }
        }

        fn had(&self, partition: &str) -> u64 {
            let of_it = self.had.iter().filter(|((it, _), _)| it == partition);
            of_it.map(|(_, items)| items).sum()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn partitions_share_a_pipe_whatever_the_number_of_their_jobs() {
        let mut pipe = Busy::default();
        let names: Vec<String> = (0..9).map(|job| job.to_string()).collect();
        let mut jobs: Vec<_> = names.iter().map(|job| ("many", job.as_str())).collect();
        jobs.push(("one", "j"));
        pipe.compete(&jobs, 5).await;
        // Who came first has filled an empty pipe.
        pipe.had.clear();
        pipe.compete(&jobs, 60).await;
        let (many, one) = (pipe.had("many"), pipe.had("one"));
        assert!(many.abs_diff(one) <= SIZE / 2, "{many} {one}");
        let each = || pipe.had.iter().filter(|((it, _), _)| it == "many");
        let (most, least) = (each().map(|it| it.1).max(), each().map(|it| it.1).min());
        assert!(most.unwrap() - least.unwrap() <= SIZE / 2, "{:?}", pipe.had);
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_of_a_partition_get_as_much_as_their_shares_say() {
        let mut pipe = Busy::default();
        let jobs = [("p", "small"), ("p", "large"), ("another", "j")];
        pipe.compete(&jobs, 5).await;
        for (partition, job) in [("p", "large"), ("another", "j")] {
            let claim = Claim {
                pipe: "in",
                partition,
                job,
            };
            pipe.turns.weigh(claim, JobShare::of(300).unwrap());
        }
        pipe.had.clear();
        pipe.compete(&jobs, 60).await;
        let of = |job: &str| pipe.had[&("p".into(), job.into())];
        let (small, large) = (of("small"), of("large"));
        assert!(
            large * 10 >= small * 27 && large * 10 <= small * 33,
            "{small} {large}"
        );
        let (p, another) = (pipe.had("p"), pipe.had("another"));
        assert!(p.abs_diff(another) <= SIZE / 2, "{p} {another}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn every_job_with_work_to_do_goes_on_whatever_the_shares(
            jobs in vec((0..3_u8, 1..=JobShare::MOST, 1..3000_u64), 1..8),
        ) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            let least = runtime.block_on(async {
                let mut pipe = Busy::default();
                let mut least = u64::MAX;
                for _ in 0..5 {
                    pipe.had.clear();
                    for _ in 0..200 {
                        for (job, (partition, share, items)) in jobs.iter().enumerate() {
                            let (partition, job) = (partition.to_string(), job.to_string());
                            pipe.ask(&partition, &job, *items);
                            let claim = Claim { pipe: "in", partition: &partition, job: &job };
                            pipe.turns.weigh(claim, JobShare::of(*share).unwrap());
                        }
                        tokio::time::advance(Duration::from_millis(100)).await;
                        pipe.waiting = pipe.waiting.saturating_sub(SIZE / 10);
                    }
                    let had = pipe.had.values().copied().min();
                    least = least.min(had.unwrap_or_default());
                }
                least
            });
            prop_assert!(least > 0, "a job got nothing in 20 seconds");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_job_alone_fills_the_room_and_keeps_the_workers_busy() {
        let mut pipe = Busy::default();
        pipe.compete(&[("p", "j")], 10).await;
        assert!(pipe.had("p") >= SIZE * 10);
    }

    #[tokio::test(start_paused = true)]
    async fn pipe_that_others_keep_full_takes_a_few_items_now_and_then() {
        let mut pipe = Busy::default();
        pipe.ask("p", "j", 10);
        pipe.waiting = 100 * SIZE;
        let mut had = 0;
        for _ in 0..60 {
            had += pipe.ask("p", "j", 1000);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(had, 11 * SIZE / 8);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_away_gets_nothing_for_that_time() {
        let mut pipe = Busy::default();
        pipe.compete(&[("p", "a"), ("p", "b")], 10).await;
        pipe.compete(&[("p", "a")], 60).await;
        let before = pipe.had[&("p".into(), "b".into())];
        pipe.compete(&[("p", "a"), ("p", "b")], 10).await;
        let had = pipe.had[&("p".into(), "b".into())] - before;
        assert!((3 * SIZE..=7 * SIZE).contains(&had), "{had}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_came_earlier_and_had_much_is_not_behind_those_who_come_later() {
        let mut pipe = Busy::default();
        pipe.compete(&[("early", "large")], 600).await;
        tokio::time::advance(Duration::from_secs(2)).await;
        pipe.waiting = 0;
        pipe.compete(&[("late", "large")], 5).await;
        assert_eq!(pipe.ask("early", "new", 10), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn new_job_begins_at_once_although_ten_thousand_of_another_partition_came_before() {
        let mut pipe = Busy::default();
        pipe.compete(&[("p", "large")], 5).await;
        assert_eq!(pipe.ask("p", "new", 10), 10, "of the same partition");
        for job in 0..10_000 {
            pipe.ask("p", &job.to_string(), 10);
            assert!(pipe.waiting <= SIZE * 3 / 2, "{}", pipe.waiting);
        }
        assert_eq!(pipe.ask("p", "last", 10), 0);
        assert_eq!(pipe.ask("another", "j", 10), 10);
        for partition in 0..1000 {
            pipe.ask(&partition.to_string(), "j", 1000);
        }
        assert!(pipe.waiting <= SIZE * 2, "{}", pipe.waiting);
        let known = pipe.turns.0.lock();
        assert!(known.jobs <= JOBS, "{}", known.jobs);
    }
}
