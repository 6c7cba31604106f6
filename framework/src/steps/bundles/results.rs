//! Bundles of results: many deliveries of a process end at about the same time, and their results
//! go to the same pipe.
//!
//! The results of tasks of one split share a message if its pipe has readers of bundles. One waits
//! for others for [`MAX_DELAY`], and not at all if every open delivery of the process waits for its
//! result.
//!
//! What must stay true: a result is confirmed when its bundle is. What no bundle takes, or the
//! broker does not take as a bundle, goes as a message of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contract::TaskMessage;
use contract::headers::{FIRST_TASK, LABEL_HEADER, TASK_HEADER};
use parking_lot::{Mutex, MutexGuard};
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::gathering::{Gathering, MAX_MEMBER_BYTES};
use super::headers_of_member;
use super::readers::PipeReaders;
use crate::broker::{Broker, HeaderValue, Headers, Outgoing};
use crate::steps::open_deliveries::OpenDeliveries;

/// The longest time that a result waits for others.
const MAX_DELAY: Duration = Duration::from_millis(5);
/// The largest number of bundles that are gathered at the same time. More splits than that send
/// their results one by one.
const MAX_GROUPS: usize = 64;

/// A result that is not encoded.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub pipe: Arc<str>,
    pub headers: Headers,
    /// With its task data.
    pub message: TaskMessage,
}

impl Unsent {
    /// Returns the message of its own.
    pub fn alone(self) -> Outgoing {
        Outgoing {
            headers: self.headers,
            ..Outgoing::new(self.pipe, self.message.encode())
        }
    }
}

/// Gathers the results of a process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Results(Arc<Inner>);

struct Inner {
    broker: Arc<dyn Broker>,
    open: Arc<OpenDeliveries>,
    readers: Arc<PipeReaders>,
    /// The largest number of members. Below 2 nothing goes in bundles.
    most: u32,
    tasks: TaskTracker,
    /// Cancelled when the runtime waits for no confirms.
    abort: CancellationToken,
    /// How many results wait here.
    waiting: AtomicUsize,
    groups: Mutex<Groups>,
}

#[derive(Default)]
struct Groups {
    open: Vec<Group>,
    next: u64,
}

/// The results of one split that wait for one another.
struct Group {
    number: u64,
    gathering: Gathering,
    waiting: Vec<oneshot::Sender<Fate>>,
}

/// What has become of a result that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The broker has confirmed the bundle.
    Confirmed,
    /// It goes by itself.
    Alone,
}

impl Results {
    pub fn new(
        broker: Arc<dyn Broker>,
        open: Arc<OpenDeliveries>,
        (readers, most): (Arc<PipeReaders>, u32),
        (tasks, abort): (TaskTracker, CancellationToken),
    ) -> Self {
        Self(Arc::new(Inner {
            broker,
            open,
            readers,
            most,
            tasks,
            abort,
            waiting: AtomicUsize::new(0),
            groups: Mutex::default(),
        }))
    }

    /// Sends a result with others, and waits until the broker has confirmed them. Returns the
    /// message of its own if it has to go by itself.
    pub async fn send(&self, result: Unsent) -> Result<(), Outgoing> {
        if self.may_share(&result) {
            // What it says counts for a while.
            self.0.readers.has(&result.pipe, &*self.0.broker).await;
        }
        self.begin(result)?.confirmed().await
    }

    /// Returns whether it is known whether the pipe of a result has readers of bundles, so that
    /// nobody must be asked.
    pub fn knows_readers(&self, result: &Unsent) -> bool {
        !self.may_share(result) || self.0.readers.known(&result.pipe).is_some()
    }

    /// Begins to send a result with others, as far as it is known who reads bundles. Returns the
    /// message of its own if it has to go by itself.
    pub fn begin(&self, result: Unsent) -> Result<InBundle, Outgoing> {
        let has_readers = || self.0.readers.known(&result.pipe) == Some(true);
        if !self.may_share(&result) || !has_readers() {
            return Err(result.alone());
        }
        let Some(number) = number_of(&result) else {
            return Err(result.alone());
        };
        let member = Box::new(Member::of(result, number));
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let waits = Waits(Arc::clone(&self.0));
        match self.add(&member) {
            Some(fate) => Ok(InBundle {
                member,
                fate,
                known: None,
                _waits: waits,
            }),
            None => Err(member.alone()),
        }
    }

    fn may_share(&self, result: &Unsent) -> bool {
        let data = result.message.task_data.as_ref().map_or(0, Vec::len);
        self.0.most > 1 && data <= MAX_MEMBER_BYTES && contract::has_bundle_pipe(&result.pipe)
    }

    /// Adds a result to those of its split. Returns what tells what becomes of it; `None` if there
    /// are too many splits.
    fn add(&self, member: &Member) -> Option<oneshot::Receiver<Fate>> {
        let mut groups = self.groups();
        let place = groups.place_for(member, self)?;
        let group = &mut groups.open[place];
        let (sender, fate) = oneshot::channel();
        group.waiting.push(sender);
        let (data, label) = (&member.data, member.label.as_deref());
        let full = group.gathering.add(member.number, data, label, self.0.most);
        if self.0.waiting.load(Ordering::Relaxed) >= self.0.open.count() {
            let all = std::mem::take(&mut groups.open);
            drop(groups);
            for group in all {
                self.publish(group);
            }
        } else if full {
            let group = groups.open.swap_remove(place);
            drop(groups);
            self.publish(group);
        }
        Some(fate)
    }

    /// Publishes what a group has gathered so far, if it has not been published.
    fn publish_in_time(&self, number: u64) {
        let mut groups = self.groups();
        let place = groups.open.iter().position(|group| group.number == number);
        let group = place.map(|place| groups.open.swap_remove(place));
        drop(groups);
        if let Some(group) = group {
            self.publish(group);
        }
    }

    fn publish(&self, group: Group) {
        let Group {
            gathering, waiting, ..
        } = group;
        if let [_] = &waiting[..] {
            return tell(waiting, Fate::Alone);
        }
        let pipe = gathering.pipe.clone();
        let confirm = self.0.broker.publish(gathering.message());
        let (abort, readers) = (self.0.abort.clone(), Arc::clone(&self.0.readers));
        self.0.tasks.spawn(async move {
            let fate = match abort.run_until_cancelled(confirm).await {
                Some(Ok(())) => Fate::Confirmed,
                Some(Err(reason)) => {
                    readers.not_taken(&pipe, &reason);
                    Fate::Alone
                }
                // The deliveries of the results are dropped.
                None => return,
            };
            tell(waiting, fate);
        });
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.0.groups.lock()
    }
}

impl Groups {
    /// Returns the place of the group for a result. Begins one if there is none, unless there are
    /// too many.
    fn place_for(&mut self, member: &Member, results: &Results) -> Option<usize> {
        let takes = |group: &Group| {
            group
                .gathering
                .takes_result(&member.pipe, &member.shared, &member.headers)
        };
        if let Some(place) = self.open.iter().position(takes) {
            return Some(place);
        }
        if self.open.len() >= MAX_GROUPS {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.open.push(Group {
            number,
            gathering: Gathering::new(
                member.pipe.to_string(),
                contract::bundle_pipe(&member.pipe)?,
                member.shared.clone(),
                member.headers.clone(),
            ),
            waiting: Vec::new(),
        });
        let results = results.clone();
        results.0.tasks.clone().spawn(async move {
            sleep(MAX_DELAY).await;
            results.publish_in_time(number);
        });
        Some(self.open.len() - 1)
    }
}

fn tell(waiting: Vec<oneshot::Sender<Fate>>, fate: Fate) {
    for one in waiting {
        // A delivery that no longer waits was dropped at shutdown.
        let _ = one.send(fate);
    }
}

/// A result that is on its way with others.
pub(crate) struct InBundle {
    member: Box<Member>,
    fate: oneshot::Receiver<Fate>,
    known: Option<Fate>,
    _waits: Waits,
}

impl InBundle {
    /// Returns the pipe of the result.
    pub const fn pipe(&self) -> &Arc<str> {
        &self.member.pipe
    }

    /// Waits until its bundle is confirmed, or the result has to go by itself.
    pub async fn wait(&mut self) {
        if self.known.is_none() {
            self.known = Some((&mut self.fate).await.unwrap_or(Fate::Alone));
        }
    }

    /// Waits until the broker has confirmed it. Returns the message of its own if it has to go by
    /// itself.
    pub async fn confirmed(mut self) -> Result<(), Outgoing> {
        self.wait().await;
        match self.known {
            Some(Fate::Confirmed) => Ok(()),
            _ => Err(self.member.alone()),
        }
    }
}

/// Counts a result as waiting until it is dropped.
struct Waits(Arc<Inner>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A result as the member of a bundle.
#[derive(Debug)]
struct Member {
    pipe: Arc<str>,
    /// What it shares with the other results of its split; with the ids of the split.
    shared: TaskMessage,
    headers: Headers,
    number: u32,
    data: Vec<u8>,
    label: Option<SmolStr>,
}

impl Member {
    /// Takes a result apart whose task has this number in its split.
    fn of(result: Unsent, number: u32) -> Self {
        let Unsent {
            pipe,
            mut headers,
            message: mut shared,
        } = result;
        let suffix = format_smolstr!(".{number}");
        let cut = |id: &mut String| id.truncate(id.len() - suffix.len());
        cut(&mut shared.task_id);
        if let Some(id) = shared
            .tracking
            .as_mut()
            .and_then(|it| it.job_task_id.as_mut())
        {
            cut(id);
        }
        if let Some(path) = text(&headers, TASK_HEADER) {
            let of_split = path.strip_suffix(&*suffix).unwrap_or(FIRST_TASK);
            let of_split = HeaderValue::Text(of_split.into());
            headers.set(TASK_HEADER, of_split);
        }
        let label = text(&headers, LABEL_HEADER).cloned();
        headers.remove(LABEL_HEADER);
        Self {
            pipe,
            data: shared.task_data.take().unwrap_or_default(),
            shared,
            headers,
            number,
            label,
        }
    }

    /// Returns the message of its own.
    fn alone(self) -> Outgoing {
        let message = contract::bundle_message(&self.shared, self.number, self.data);
        Outgoing {
            headers: headers_of_member(&self.headers, self.number, self.label.as_deref()),
            ..Outgoing::new(self.pipe, message.encode())
        }
    }
}

/// Returns the number of the task of a result in its split, if all its ids say the same.
fn number_of(result: &Unsent) -> Option<u32> {
    let (_, number) = result.message.task_id.rsplit_once('.')?;
    let parsed: u32 = number.parse().ok()?;
    // Unlike `+1` or `01`.
    let is_plain = number == "0" || number.starts_with(|first| matches!(first, '1'..='9'));
    let same = |id: &str| id.rsplit_once('.').is_some_and(|(_, last)| last == number);
    let tracked = result.message.job_task_id().is_none_or(same);
    let path = text(&result.headers, TASK_HEADER);
    let told = path.is_none_or(|path| path == number || same(path));
    (is_plain && tracked && told).then_some(parsed)
}

fn text<'a>(headers: &'a Headers, name: &str) -> Option<&'a SmolStr> {
    match headers.get(name)? {
        HeaderValue::Text(text) => Some(text),
        HeaderValue::Integer(_) => None,
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results")
            .field("most", &self.0.most)
            .finish_non_exhaustive()
    }
}
