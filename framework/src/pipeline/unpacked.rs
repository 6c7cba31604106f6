//! A bundle that was taken apart: each member is a delivery of its own, and the last one that is settled settles the bundle.
//!
//! What must stay true: a bundle that comes back to a process that still has it changes nothing. The broker's connection joins
//! both deliveries ([`Delivery::is_gone`]): members that run go on, those that have ended do not run again, and the settlement
//! of the first delivery settles the second one. A member that is given back while the bundle is gone waits until the bundle is
//! there again: another process that receives the bundle sends the member as well.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use contract::{Bundle, BundleError, TaskMessage};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::{Pipeline, REDELIVERY_DELAY};
use crate::RetryPolicy;
use crate::broker::{
    Broker, Delivery, Headers, Members, Outgoing, PublishError, Settlement, Settler,
};
use crate::steps::bundles::headers_of_member;
use crate::steps::publish::{PendingPublish, await_confirms};

/// How long a member waits for a slot before it goes on as a message of its own.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// The pause before a member is published again which the broker refuses for longer than the retry policy tells.
const PAUSE: Duration = Duration::from_secs(1);
/// Of how many bundles that went back it is remembered which members had ended.
const MOST_ENDED: usize = 100;

/// Publishes members as messages of their own.
#[derive(Debug, Clone)]
pub(crate) struct OnTheirOwn {
    pub broker: Arc<dyn Broker>,
    /// The pipe that the members are for.
    pub input: Arc<str>,
    pub retry: RetryPolicy,
    /// What the runtime waits for when it stops.
    pub tasks: TaskTracker,
    /// Runs them, because a delivery may be dropped on a thread that is none of the runtime's.
    pub runtime: Handle,
    /// Cancelled when the runtime stops waiting for members that the broker refuses.
    pub shutdown: CancellationToken,
    /// Cancelled when the runtime stops waiting for confirms, too.
    pub abort: CancellationToken,
    pub ended: Ended,
}

/// The latest bundles that went back although some of their members had ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended(Arc<Mutex<VecDeque<GoneBack>>>);

#[derive(Debug)]
struct GoneBack {
    body: Bytes,
    /// The members that had ended.
    ended: BTreeSet<usize>,
}

impl Ended {
    fn remember(&self, body: &Bytes, ended: BTreeSet<usize>) {
        let (body, mut all) = (body.clone(), self.all());
        all.truncate(MOST_ENDED - 1);
        all.push_front(GoneBack { body, ended });
    }

    /// Returns the members of a bundle that had ended when it went back, and forgets them.
    fn take(&self, body: &Bytes) -> BTreeSet<usize> {
        let mut all = self.all();
        let index = all.iter().position(|known| known.body == body);
        let found = index.and_then(|index| all.remove(index));
        found.map_or_else(BTreeSet::new, |known| known.ended)
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<GoneBack>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bundle whose members are deliveries.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Itself, for what outlives a settlement.
    me: Weak<Self>,
    bundle: Bundle,
    body: Bytes,
    headers: Headers,
    /// When the process took it up.
    arrived: Instant,
    /// How long a member stays away that goes on by itself. If the bundle has come back, that gives it time to be acknowledged: a member
    /// that kills this process before would be sent once more with it, and again with each death.
    delay: Option<Duration>,
    on_their_own: OnTheirOwn,
    open: Mutex<Open>,
}

/// What is open of a bundle.
#[derive(Debug)]
struct Open {
    /// The bundle; `None` once it is settled.
    delivery: Option<Delivery>,
    /// How many members are neither settled nor confirmed as messages of their own.
    members: usize,
    /// The members that go on by themselves and whose confirms nobody awaits yet.
    published: Vec<PendingPublish>,
    /// Something awaits their confirms.
    is_awaited: bool,
    /// The members that were given back while the broker had taken the bundle back.
    given_back: BTreeSet<usize>,
    /// A member could not be published, because the broker is closed or the runtime stops.
    is_lost: bool,
}

impl Unpacked {
    /// Takes a bundle apart, and returns its members to be handled here. There are none if the bundle has come back: then they are on their way
    /// as messages of their own. Returns a delivery that is no bundle, and why.
    pub fn take_apart(
        delivery: Delivery,
        on_their_own: &OnTheirOwn,
    ) -> Result<Vec<Delivery>, Box<(Delivery, BundleError)>> {
        let body = delivery.body();
        let bundle = match Bundle::decode(&body) {
            Ok(bundle) => bundle,
            Err(error) => return Err(Box::new((delivery, error))),
        };
        let (members, sent) = (bundle.members.len(), delivery.sent);
        let came_back = delivery.delivery_count > 0;
        let unpacked = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            bundle,
            body,
            headers: delivery.headers.clone(),
            arrived: Instant::now(),
            delay: came_back.then_some(REDELIVERY_DELAY),
            on_their_own: on_their_own.clone(),
            open: Mutex::new(Open {
                delivery: Some(delivery),
                members,
                published: Vec::new(),
                is_awaited: false,
                given_back: BTreeSet::new(),
                is_lost: false,
            }),
        });
        if members == 0 {
            unpacked.settled(unpacked.open(), 0);
        }
        let pipe = &on_their_own.input;
        let of_member = |index| {
            let headers = unpacked.headers_of(index);
            Delivery::of_member(
                Arc::clone(pipe),
                headers,
                Arc::<Self>::clone(&unpacked),
                index,
            )
            .sent_at(sent)
        };
        let deliveries: Vec<Delivery> = (0..members).map(of_member).collect();
        if came_back {
            let ended = on_their_own.ended.take(&unpacked.body);
            for (index, delivery) in deliveries.into_iter().enumerate() {
                if ended.contains(&index) {
                    delivery.ack();
                } else {
                    // It goes on by itself.
                    delivery.requeue();
                }
            }
            return Ok(Vec::new());
        }
        Ok(deliveries)
    }

    fn headers_of(&self, index: usize) -> Headers {
        let member = self.bundle.members.get(index);
        let label = member.and_then(|member| member.label.as_deref());
        let number = member.map_or(0, |member| member.number);
        headers_of_member(&self.headers, number, label)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a member as a message of its own. It is settled when that is confirmed, whether or not others still run.
    fn send_on(&self, open: &mut Open, index: usize, message: &TaskMessage) {
        let OnTheirOwn { broker, input, .. } = &self.on_their_own;
        let message = Outgoing {
            headers: self.headers_of(index),
            delay: self.delay,
            ..Outgoing::new(Arc::clone(input), message.encode())
        };
        open.published.push(PendingPublish::new(&**broker, message));
        if open.is_awaited {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        open.is_awaited = true;
        let (to, abort) = (&self.on_their_own, self.on_their_own.abort.clone());
        // Dropped on `abort`, the bundle goes back to the broker.
        let settled = async move { abort.run_until_cancelled(me.await_confirms()).await };
        to.tasks.spawn_on(settled, &to.runtime);
    }

    /// Takes the members whose confirms nobody awaits yet, for the one that does from now on. If there are none, nobody does.
    fn take_published(&self) -> Option<Vec<PendingPublish>> {
        let mut open = self.open();
        open.is_awaited = !open.published.is_empty();
        open.is_awaited.then(|| std::mem::take(&mut open.published))
    }

    /// Awaits the confirms of the members that are published, until there are no more.
    async fn await_confirms(self: Arc<Self>) {
        while let Some(mut published) = self.take_published() {
            let members = published.len();
            for member in &mut published {
                member.at_once_if_refused(&*self.on_their_own.broker).await;
            }
            let taken = self.on_their_own.until_taken(published).await;
            let mut open = self.open();
            open.is_lost |= taken.is_err();
            self.settled(open, members);
        }
    }

    /// Counts so many members of the bundle as settled. The last one settles the bundle.
    fn settled(&self, mut open: MutexGuard<'_, Open>, members: usize) {
        open.members = open.members.saturating_sub(members);
        if !open.given_back.is_empty() && !is_gone(&open) {
            for index in std::mem::take(&mut open.given_back) {
                if let Some(message) = self.message(index) {
                    self.send_on(&mut open, index, &message);
                }
            }
        }
        if open.members > open.given_back.len() {
            return;
        }
        let (delivery, is_lost) = (open.delivery.take(), open.is_lost);
        let given_back = std::mem::take(&mut open.given_back);
        drop(open);
        match delivery {
            Some(delivery) if is_lost => delivery.requeue(),
            Some(delivery) if !given_back.is_empty() => {
                let all = 0..self.bundle.members.len();
                let ended = all.filter(|index| !given_back.contains(index)).collect();
                self.on_their_own.ended.remember(&self.body, ended);
                delivery.requeue();
            }
            Some(delivery) => delivery.ack(),
            None => {}
        }
    }
}

/// Returns whether the broker has taken the bundle back.
fn is_gone(open: &Open) -> bool {
    open.delivery.as_ref().is_none_or(Delivery::is_gone)
}

impl OnTheirOwn {
    /// Returns how the members of bundles for a worker are sent.
    pub fn of<H>(pipeline: &Pipeline<H>) -> Self {
        Self {
            broker: Arc::clone(&pipeline.broker),
            input: pipeline.pipes.input.as_str().into(),
            retry: pipeline.retry.clone(),
            tasks: pipeline.running.clone(),
            runtime: Handle::current(),
            shutdown: pipeline.shutdown.clone(),
            abort: pipeline.abort.clone(),
            ended: Ended::default(),
        }
    }

    /// Waits until the broker has taken these members. Those that it refuses are published again until the runtime stops: if the bundle came
    /// back instead, all others would be sent twice. Returns an error if the broker is closed, or the runtime stops.
    async fn until_taken(&self, mut published: Vec<PendingPublish>) -> Result<(), PublishError> {
        loop {
            let confirmed =
                await_confirms(&mut published, &*self.broker, &self.retry, &self.shutdown);
            let reason = match confirmed.await {
                Ok(()) => return Ok(()),
                Err(closed @ PublishError::Closed) => return Err(closed),
                Err(reason) => reason,
            };
            warn!(pipe = %self.input, members = published.len(), %reason, "members of a bundle cannot be sent one by one; they are sent again");
            let pause = tokio::time::sleep(PAUSE);
            if self.shutdown.run_until_cancelled(pause).await.is_none() {
                return Err(PublishError::Closed);
            }
            for member in &mut published {
                member.anew_if_not_taken(&*self.broker);
            }
        }
    }
}

impl Members for Unpacked {
    fn message(&self, index: usize) -> Option<TaskMessage> {
        self.bundle.message(index, &self.body)
    }

    fn bytes(&self, index: usize) -> usize {
        let member = self.bundle.members.get(index);
        member.map_or(0, |member| member.data.len())
    }

    fn waits_until(&self) -> Instant {
        self.arrived + PATIENCE
    }
}

impl Settler for Unpacked {
    fn settle(&self, tag: u64, settlement: Settlement) {
        let index = usize::try_from(tag).unwrap_or(usize::MAX);
        let mut open = self.open();
        let is_given_back = settlement == Settlement::Requeue;
        let message = is_given_back.then(|| self.message(index)).flatten();
        match message {
            None => self.settled(open, 1),
            Some(_) if is_gone(&open) => {
                open.given_back.insert(index);
                self.settled(open, 0);
            }
            Some(message) => self.send_on(&mut open, index, &message),
        }
    }

    fn is_gone(&self, _: u64) -> bool {
        is_gone(&self.open())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use contract::{BatchTask, BundleWriter};

    use super::*;
    use crate::broker::memory::Memory;
    use crate::broker::{Confirm, Consumer};

    struct Bench {
        pipes: Memory,
        bundles: Consumer,
        on_their_own: OnTheirOwn,
    }

    impl Bench {
        async fn with(members: u32) -> Self {
            let pipes = Memory::new();
            let mut writer = BundleWriter::default();
            for number in 1..=members {
                writer.add(number, b"{}", Some("label"));
            }
            let shared = TaskMessage::new("T", "in", &BatchTask::default()).unwrap();
            let bundle = Outgoing::new("in.bundles", writer.encode(shared));
            pipes.publish(bundle).await.unwrap();
            let broker = Arc::new(pipes.process());
            Self {
                bundles: broker.consume("in.bundles", 1).await.unwrap(),
                on_their_own: OnTheirOwn {
                    broker,
                    input: "in".into(),
                    retry: RetryPolicy::default(),
                    tasks: TaskTracker::new(),
                    runtime: Handle::current(),
                    shutdown: CancellationToken::new(),
                    abort: CancellationToken::new(),
                    ended: Ended::default(),
                },
                pipes,
            }
        }

        async fn members(&mut self) -> Vec<Delivery> {
            let bundle = self.bundles.next().await.unwrap();
            Unpacked::take_apart(bundle, &self.on_their_own).unwrap()
        }

        /// Returns how often the bundle has come back; `None` if it was acknowledged.
        async fn came_back(mut self) -> Option<u32> {
            self.on_their_own.tasks.close();
            self.on_their_own.tasks.wait().await;
            drop((self.bundles, self.on_their_own));
            if self.pipes.depth("in.bundles").await.unwrap() == 0 {
                return None;
            }
            self.bundles = self.pipes.consume("in.bundles", 1).await.unwrap();
            Some(self.bundles.next().await.unwrap().delivery_count)
        }

        /// Returns the ids of the tasks that were sent by themselves.
        async fn single(&self) -> Vec<String> {
            let mut ids = Vec::new();
            let waiting = self.pipes.depth("in").await.unwrap();
            let mut single = self.pipes.consume("in", 100).await.unwrap();
            for _ in 0..waiting {
                let delivery = single.next().await.unwrap();
                assert_eq!(
                    crate::steps::output::label_in(&delivery.headers),
                    Some("label")
                );
                ids.push(TaskMessage::decode(&delivery.body()).unwrap().task_id);
                delivery.ack();
            }
            ids
        }
    }

    #[tokio::test]
    async fn bundle_is_acknowledged_with_its_last_member() {
        for settled in [1, 2] {
            let mut bench = Bench::with(2).await;
            let mut members = bench.members().await.into_iter();
            members.by_ref().take(settled).for_each(Delivery::ack);
            let rest: Vec<Delivery> = members.collect();
            bench.on_their_own.broker.close().await;
            drop(rest);
            let came_back = bench.came_back().await;
            assert_eq!(came_back.is_none(), settled == 2, "{settled} settled");
        }
    }

    #[tokio::test]
    async fn member_that_is_given_back_goes_by_itself_and_then_the_bundle_is_acknowledged() {
        let mut bench = Bench::with(3).await;
        let mut members = bench.members().await.into_iter();
        members.next().unwrap().ack();
        members.next().unwrap().requeue();
        assert_eq!(bench.single().await, ["T.2"]);
        drop(members);
        assert_eq!(bench.single().await, ["T.3"]);
        assert_eq!(bench.came_back().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn member_that_the_broker_refuses_is_sent_again_while_another_one_runs() {
        let mut bench = Bench::with(3).await;
        let refusals = Mutex::new(6);
        let refusing = bench.pipes.process().intercepting(move |message| {
            let mut left = refusals.lock().unwrap();
            if *left == 0 {
                return Ok(message);
            }
            *left -= 1;
            Err(Confirm::ready(Err(PublishError::refused("in", "full"))))
        });
        bench.on_their_own.broker = Arc::new(refusing);
        let mut members = bench.members().await.into_iter();
        let running = members.next().unwrap();
        drop(members);
        let mut single = bench.pipes.consume("in", 100).await.unwrap();
        let mut ids = std::collections::BTreeSet::new();
        for _ in 0..2 {
            let in_time = tokio::time::timeout(Duration::from_hours(1), single.next());
            let delivery = in_time.await.unwrap().unwrap();
            ids.insert(TaskMessage::decode(&delivery.body()).unwrap().task_id);
            delivery.ack();
        }
        assert_eq!(ids, ["T.2", "T.3"].map(str::to_owned).into());
        running.ack();
        drop(single);
        assert_eq!(bench.came_back().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn bundle_that_comes_back_is_taken_apart_and_acknowledged_before_its_members_return() {
        let mut bench = Bench::with(2).await;
        bench.bundles.next().await.unwrap().requeue();
        assert!(bench.members().await.is_empty());
        let pipes = bench.pipes.clone();
        let mut single = pipes.consume("in", 100).await.unwrap();
        let began = Instant::now();
        assert_eq!(bench.came_back().await, None);
        assert!(began.elapsed() < REDELIVERY_DELAY);
        for id in ["T.1", "T.2"] {
            let delivery = single.next().await.unwrap();
            assert!(began.elapsed() >= REDELIVERY_DELAY);
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            assert_eq!(message.task_id, id);
            delivery.ack();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn member_whose_delay_the_broker_refuses_returns_at_once() {
        let mut bench = Bench::with(1).await;
        bench.bundles.next().await.unwrap().requeue();
        let refusing = bench.pipes.process().intercepting(|message| {
            if message.delay.is_none() {
                return Ok(message);
            }
            let refused = PublishError::refused("in", "the delay queue has other arguments");
            Err(Confirm::ready(Err(refused)))
        });
        bench.on_their_own.broker = Arc::new(refusing);
        assert!(bench.members().await.is_empty());
        let mut single = bench.pipes.consume("in", 100).await.unwrap();
        let in_time = tokio::time::timeout(REDELIVERY_DELAY / 2, single.next());
        in_time.await.unwrap().unwrap().ack();
        drop(single);
        assert_eq!(bench.came_back().await, None);
    }

    /// A broker that takes its deliveries back, and delivers them again.
    #[derive(Default)]
    struct Unsteady {
        is_gone: AtomicBool,
        settled: Mutex<Vec<Settlement>>,
    }

    impl Settler for Unsteady {
        fn settle(&self, _: u64, settlement: Settlement) {
            self.settled.lock().unwrap().push(settlement);
        }

        fn is_gone(&self, _: u64) -> bool {
            self.is_gone.load(Ordering::Relaxed)
        }
    }

    impl Bench {
        /// Takes the bundle apart, as it comes from the settler, and has come back so often.
        async fn members_by(&mut self, settler: &Arc<Unsteady>, count: u32) -> Vec<Delivery> {
            // Dropped, it goes back, and is there for the next time.
            let body = self.bundles.next().await.unwrap().body();
            let (pipe, headers) = ("in.bundles".into(), Headers::default());
            let settler = Arc::clone(settler) as Arc<dyn Settler>;
            let bundle = Delivery::new(pipe, body, headers, count, 1, settler);
            Unpacked::take_apart(bundle, &self.on_their_own).unwrap()
        }

        async fn sent(&self) -> Vec<String> {
            self.on_their_own.tasks.close();
            self.on_their_own.tasks.wait().await;
            self.single().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bundle_that_comes_back_while_members_run_is_settled_with_them() {
        let (mut bench, broker) = (Bench::with(3).await, Arc::new(Unsteady::default()));
        let mut members = bench.members_by(&broker, 0).await.into_iter();
        let [running, given_back, ended] = [(); 3].map(|()| members.next().unwrap());
        ended.ack();
        broker.is_gone.store(true, Ordering::Relaxed);
        assert!(running.is_gone());
        drop(given_back);
        assert_eq!(
            bench.sent().await,
            [""; 0],
            "another process may have the bundle"
        );
        broker.is_gone.store(false, Ordering::Relaxed);
        assert!(!running.is_gone());
        running.ack();
        assert_eq!(bench.sent().await, ["T.2"]);
        assert_eq!(*broker.settled.lock().unwrap(), [Settlement::Ack]);
    }

    #[tokio::test(start_paused = true)]
    async fn members_that_had_ended_before_the_bundle_went_back_do_not_run_again() {
        let (mut bench, broker) = (Bench::with(3).await, Arc::new(Unsteady::default()));
        let mut members = bench.members_by(&broker, 0).await.into_iter();
        members.next().unwrap().ack();
        broker.is_gone.store(true, Ordering::Relaxed);
        drop(members);
        assert_eq!(*broker.settled.lock().unwrap(), [Settlement::Requeue]);
        broker.is_gone.store(false, Ordering::Relaxed);
        assert!(bench.members_by(&broker, 1).await.is_empty());
        tokio::time::sleep(REDELIVERY_DELAY * 2).await;
        assert_eq!(bench.sent().await, ["T.2", "T.3"]);
        let settled = [Settlement::Requeue, Settlement::Ack];
        assert_eq!(*broker.settled.lock().unwrap(), settled);
    }

    #[tokio::test]
    async fn bundle_without_members_is_acknowledged() {
        let mut bench = Bench::with(0).await;
        assert!(bench.members().await.is_empty());
        assert_eq!(bench.came_back().await, None);
    }
}
