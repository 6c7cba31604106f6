//! Faults that happen at counted steps, and the broker that commits them.
//!
//! A process crashes by losing its broker for good: its deliveries return to their pipes,
//! everything that it publishes or settles afterwards has no effect, and it is started again. Its
//! remaining futures may continue, as in a process that has lost its connection and does not know
//! it yet; what they commit counts.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use contract::headers::BLOCKS_HEADER;
use contract::{PAUSED_PIPE, TaskMessage, is_tracking_pipe};
use framework::broker::memory::Memory;
use framework::broker::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Delivery, HeaderValue,
    Outgoing, PipeState, PublishError, Settlement, Settler,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use store::{ConditionPhase, FaultPoint};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::blocks::is_looking;
use crate::checks::{Checked, Checks};
use crate::disk::{Disk, Kill};
use crate::tracking::TRACKING_IN;

/// The role that makes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Service,
    Batch,
    Items,
    Tracking,
    Outputs,
}

/// A fault, or an action of a client or a supervisor. It happens once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// At the nth message that a role publishes, from 1.
    Publish(Who, u32, PublishFault),
    /// At the nth acknowledgement of a role, from 1.
    Ack(Who, u32, AckFault),
    /// When the store passes this point for the nth time, and this many times more.
    Store(FaultPoint, u32, u32),
    /// The tracking workers crash when the store passes this point for the nth time.
    CrashTracking(FaultPoint, u32),
    /// The embedded system is killed when it passes this point for the nth time. Its processes are
    /// started again.
    Kill(Kill, u32),
    /// What the items say of themselves in this time after the start reaches its tracking pipe at
    /// the end of it. The job may be in a later round by then.
    HoldReports(Duration, Duration),
    /// All processes of a role are asked to stop, this long after the start, and started again.
    Restart(Who, Duration),
    /// A client does something with the job, this long after the start.
    Client(Action, Duration),
}

impl Op {
    /// Returns when the operation happens, in simulated time; `None` if it happens at a step
    /// instead.
    pub const fn moment(self) -> Option<Duration> {
        match self {
            Self::Restart(_, at) | Self::Client(_, at) => Some(at),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishFault {
    CrashBefore,
    /// Between the publish and the confirm.
    CrashAfter,
    Twice,
    /// A copy arrives this much later.
    Again(Duration),
    /// The message is overtaken by others.
    Late(Duration),
    ConfirmedLate(Duration),
    Refused,
    /// The broker has the message, but says that it has not.
    TakenAndRefused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckFault {
    CrashBefore,
    CrashAfter,
}

impl PublishFault {
    /// All faults but the copy that arrives late, with such a delay where there is one.
    pub const fn all(delay: Duration) -> [Self; 7] {
        use PublishFault::{
            ConfirmedLate, CrashAfter, CrashBefore, Late, Refused, TakenAndRefused, Twice,
        };
        [
            CrashBefore,
            CrashAfter,
            Twice,
            Late(delay),
            ConfirmedLate(delay),
            Refused,
            TakenAndRefused,
        ]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Cancel,
    /// Takes the job up again, with its dependents, if it has failed or was cancelled.
    Retry,
    Delete,
    Pause,
    Resume,
    /// Sends the dead letters again.
    Replay,
    /// Puts the condition that items wait for into this phase.
    Condition(ConditionPhase),
    /// Delete, and create again with so many items.
    PutAgain(u64),
}

/// The faults of one run, and how often each step has been made.
#[derive(Debug)]
pub struct Faults {
    ops: Vec<Op>,
    /// What the embedded system writes to.
    pub disk: Option<Disk>,
    start: Instant,
    steps: Mutex<Steps>,
    processes: Mutex<Vec<FaultyBroker>>,
    /// How often the service has sent a task that has waited, by its id and the number of its
    /// block.
    sent: Mutex<BTreeMap<(String, i64), u32>>,
}

#[derive(Debug, Default)]
struct Steps {
    published: BTreeMap<Who, u32>,
    acknowledged: BTreeMap<Who, u32>,
    passed: [u32; 4],
    groups: u32,
    happened: usize,
}

impl Faults {
    /// `pace` is how long the embedded system gathers what it writes.
    pub fn new(ops: &[Op], pace: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            ops: ops.to_vec(),
            disk: pace.map(Disk::new),
            start: Instant::now(),
            steps: Mutex::default(),
            processes: Mutex::default(),
            sent: Mutex::default(),
        })
    }

    /// Whether the store fails at this point, now.
    pub fn fails(&self, point: FaultPoint) -> bool {
        if is_looking() {
            return false;
        }
        let n = {
            let passed = &mut lock(&self.steps).passed[point as usize];
            *passed += 1;
            *passed
        };
        let mut fails = false;
        for op in &self.ops {
            match *op {
                Op::Store(at, nth, more) if at == point => fails |= (nth..=nth + more).contains(&n),
                Op::CrashTracking(at, nth) if at == point && nth == n => {
                    // The crashed process sees an error as well; a retry of it does no harm.
                    fails = true;
                    self.crash(Who::Tracking);
                }
                Op::Kill(Kill::Store(at), nth) if at == point && nth == n => {
                    fails = true;
                    self.kill();
                }
                _ => {}
            }
        }
        lock(&self.steps).happened += usize::from(fails);
        fails
    }

    /// Returns the number of the group that the disk writes next.
    pub fn next_group(&self) -> u32 {
        let mut steps = lock(&self.steps);
        steps.groups += 1;
        steps.groups
    }

    /// Kills the system if this is planned here, at the nth group. Returns whether it was killed.
    pub fn kills(&self, at: Kill, nth: u32) -> bool {
        let is_killed = self.ops.contains(&Op::Kill(at, nth));
        if is_killed {
            self.kill();
        }
        lock(&self.steps).happened += usize::from(is_killed);
        is_killed
    }

    /// Crashes the processes of a role. The embedded system has one process for all roles.
    fn crash(&self, role: Who) {
        if self.disk.is_some() {
            return self.kill();
        }
        for process in self.processes(|who| who == role) {
            process.end();
        }
    }

    /// Ends all processes, and loses what the disk has not written.
    fn kill(&self) {
        for process in self.processes(|_| true) {
            process.end();
        }
        if let Some(disk) = &self.disk {
            disk.lose();
        }
    }

    /// Forgets the processes, which hold these faults, so that both can be dropped.
    pub fn forget_processes(&self) {
        lock(&self.processes).clear();
    }

    /// Takes out the processes of some roles.
    fn processes(&self, which: impl Fn(Who) -> bool) -> Vec<FaultyBroker> {
        let mut processes = lock(&self.processes);
        processes
            .extract_if(.., |process| which(process.role))
            .collect()
    }

    /// How many faults have happened.
    pub fn happened(&self) -> usize {
        lock(&self.steps).happened
    }

    fn publishes(&self, role: Who) -> Option<PublishFault> {
        let n = count(&mut lock(&self.steps).published, role);
        let planned = self.ops.iter().find_map(|op| match *op {
            Op::Publish(who, nth, fault) if who == role && nth == n => Some(fault),
            _ => None,
        });
        lock(&self.steps).happened += usize::from(planned.is_some());
        planned
    }

    /// Returns how long a message to a tracking pipe is held.
    fn holds(&self) -> Option<Duration> {
        let now = self.start.elapsed();
        self.ops.iter().find_map(|op| match *op {
            Op::HoldReports(from, until) if (from..until).contains(&now) => {
                Some(until.saturating_sub(now))
            }
            _ => None,
        })
    }

    fn note_sent(&self, message: &Outgoing) {
        if let Some(HeaderValue::Integer(number)) = message.headers.get(BLOCKS_HEADER)
            && let Ok(task) = TaskMessage::decode(&message.body)
        {
            *lock(&self.sent).entry((task.task_id, *number)).or_default() += 1;
        }
    }

    /// Returns the tasks that the service has sent more than once after the same block.
    pub fn sent_twice(&self) -> Option<String> {
        let mut sent = lock(&self.sent).clone();
        sent.retain(|_, times| *times > 1);
        (!sent.is_empty())
            .then(|| format!("tasks were sent more than once after a block: {sent:?}"))
    }

    fn acknowledges(&self, role: Who) -> Option<AckFault> {
        let n = count(&mut lock(&self.steps).acknowledged, role);
        let planned = self.ops.iter().find_map(|op| match *op {
            Op::Ack(who, nth, fault) if who == role && nth == n => Some(fault),
            _ => None,
        });
        lock(&self.steps).happened += usize::from(planned.is_some());
        planned
    }
}

fn count(steps: &mut BTreeMap<Who, u32>, role: Who) -> u32 {
    let n = steps.entry(role).or_default();
    *n += 1;
    *n
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The broker of one process, which fails as planned. Clones are the same process.
#[derive(Clone)]
pub struct FaultyBroker {
    pub inner: Memory,
    role: Who,
    pub faults: Arc<Faults>,
    pub tasks: TaskTracker,
    checks: Arc<Checks>,
    crashed: CancellationToken,
}

impl FaultyBroker {
    /// The broker of a new process of this role, whose status checks are these.
    pub fn start(
        pipes: &Memory,
        role: Who,
        faults: &Arc<Faults>,
        tasks: &TaskTracker,
        checks: Checks,
    ) -> Self {
        let broker = Self {
            inner: pipes.process(),
            role,
            faults: Arc::clone(faults),
            tasks: tasks.clone(),
            checks: Arc::new(checks),
            crashed: CancellationToken::new(),
        };
        lock(&faults.processes).push(broker.clone());
        broker
    }

    /// Crashes the process. The embedded system has no other one.
    fn crash(&self) {
        self.end();
        if self.faults.disk.is_some() {
            self.faults.kill();
        }
    }

    /// Ends this process alone, without a word to its broker.
    pub fn end(&self) {
        self.crashed.cancel();
        self.inner.crash();
    }

    /// Trips when the process crashes.
    pub fn crashed(&self) -> &CancellationToken {
        &self.crashed
    }

    /// Sends tasks of a paused job, which came in one delivery, to the paused pipe, and
    /// acknowledges it once they are confirmed.
    async fn hand_over(&self, bodies: Vec<Vec<u8>>, delivery: Delivery) {
        for body in bodies {
            let handed_over = Outgoing {
                headers: delivery.headers.clone(),
                ..Outgoing::new(PAUSED_PIPE, body)
            };
            if self.publish(handed_over).await.is_err() {
                return delivery.requeue();
            }
        }
        delivery.ack();
    }

    fn confirm_later(&self, confirm: Confirm, delay: Duration) -> Confirm {
        let (confirmer, later) = Confirm::pair();
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            confirmer.resolve(confirm.await);
        });
        later
    }
}

impl Broker for FaultyBroker {
    fn publish(&self, mut message: Outgoing) -> Confirm {
        if self.role == Who::Items
            && is_tracking_pipe(TRACKING_IN, &message.pipe)
            && let Some(time) = self.faults.holds()
        {
            message.delay = Some(message.delay.unwrap_or_default() + time);
        }
        if self.role == Who::Service {
            self.faults.note_sent(&message);
        }
        let refused = |pipe: &str| Confirm::ready(Err(PublishError::refused(pipe, "as planned")));
        match self.faults.publishes(self.role) {
            None => self.send(message),
            Some(PublishFault::CrashBefore) => {
                self.crash();
                self.send(message)
            }
            Some(PublishFault::CrashAfter) => {
                drop(self.send(message.clone()));
                self.crash();
                // The broker takes nothing from a crashed process.
                self.send(message)
            }
            Some(PublishFault::Twice) => {
                drop(self.send(message.clone()));
                self.send(message)
            }
            Some(PublishFault::Again(delay)) => {
                drop(self.send(Outgoing {
                    delay: Some(message.delay.unwrap_or_default() + delay),
                    ..message.clone()
                }));
                self.send(message)
            }
            Some(PublishFault::Late(delay)) => self.send(Outgoing {
                delay: Some(message.delay.unwrap_or_default() + delay),
                ..message
            }),
            Some(PublishFault::ConfirmedLate(delay)) => {
                self.confirm_later(self.send(message), delay)
            }
            Some(PublishFault::Refused) => refused(&message.pipe),
            Some(PublishFault::TakenAndRefused) => {
                let confirm = refused(&message.pipe);
                drop(self.send(message));
                confirm
            }
        }
    }

    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        async move {
            let mut inner = self.inner.consume(pipe, prefetch).await?;
            let (sender, receiver) = mpsc::channel(usize::try_from(prefetch).unwrap_or(1).max(1));
            let settler = Arc::new(Settles {
                broker: self.clone(),
                held: Mutex::default(),
            });
            self.tasks.spawn(async move {
                loop {
                    let delivery = tokio::select! {
                        biased;
                        () = sender.closed() => return,
                        () = settler.broker.crashed.cancelled() => return,
                        delivery = inner.next() => delivery,
                    };
                    let Some(delivery) = delivery else { return };
                    match settler
                        .broker
                        .checks
                        .check(settler.broker.role, &delivery)
                        .await
                    {
                        Checked::Admitted => {}
                        Checked::Discarded => {
                            settler.broker.settle(delivery, Settlement::Reject);
                            continue;
                        }
                        Checked::Paused(bodies) => {
                            let delivery = settler.wrap(delivery);
                            settler.broker.hand_over(bodies, delivery).await;
                            continue;
                        }
                    }
                    if sender.send(settler.wrap(delivery)).await.is_err() {
                        return;
                    }
                }
            });
            Ok(Consumer::new(receiver))
        }
        .boxed()
    }

    fn announce(&self, body: Bytes) -> Confirm {
        self.inner.announce(body)
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        self.inner.announcements()
    }

    fn exists<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<bool, BrokerError>> {
        self.inner.exists(pipe)
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.inner.depth(pipe)
    }

    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        self.inner.look(pipe)
    }

    fn state(&self) -> BrokerState {
        self.inner.state()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }

    fn kind(&self) -> &'static str {
        "faulty"
    }
}

impl fmt::Debug for FaultyBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyBroker({:?} of {:?})", self.inner, self.role)
    }
}

/// Keeps the deliveries of the inner broker while the process has their copies.
struct Settles {
    broker: FaultyBroker,
    held: Mutex<(u64, HashMap<u64, Delivery>)>,
}

impl Settles {
    fn wrap(self: &Arc<Self>, delivery: Delivery) -> Delivery {
        let settler = Arc::clone(self) as Arc<dyn Settler>;
        let mut held = lock(&self.held);
        held.0 += 1;
        let tag = held.0;
        let double = Delivery::new(
            Arc::clone(&delivery.pipe),
            delivery.body(),
            delivery.headers.clone(),
            delivery.delivery_count,
            tag,
            settler,
        );
        held.1.insert(tag, delivery);
        double
    }
}

impl Settler for Settles {
    fn settle(&self, tag: u64, settlement: Settlement) {
        let held = lock(&self.held).1.remove(&tag);
        let Some(delivery) = held else { return };
        let planned = match settlement {
            Settlement::Ack => self.broker.faults.acknowledges(self.broker.role),
            Settlement::Requeue | Settlement::Reject => None,
        };
        if planned == Some(AckFault::CrashBefore) {
            self.broker.crash();
        }
        self.broker.settle(delivery, settlement);
        if planned == Some(AckFault::CrashAfter) {
            self.broker.crash();
        }
    }
}
