//! The bundles that a process knows: those that it has taken apart, and the latest ones that the
//! broker has taken back.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use contract::headers::RETURNED_HEADER;
use contract::{Bundle, BundleMember, TaskMessage};
use parking_lot::{Mutex, MutexGuard};

use super::Unpacked;
use crate::broker::Delivery;

/// Of how many bundles that the broker has taken back it is remembered which members had ended.
const MOST_GONE: usize = 100;

/// The bundles that this process has, and the latest ones that it had when the broker took them
/// back.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownBundles(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    held: Vec<Weak<Unpacked>>,
    gone: VecDeque<GoneBundle>,
}

#[derive(Debug)]
pub(super) struct GoneBundle {
    pub bundle: Arc<Bundle>,
    pub body: Bytes,
    pub members: Vec<MemberState>,
}

/// What has become of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberState {
    /// It waits or runs.
    Open,
    /// It was acknowledged or rejected.
    Ended,
    /// It goes on as a message of its own.
    Sent,
    /// It was given back while the broker had taken the bundle back.
    GivenBack,
}

impl KnownBundles {
    pub(super) fn hold(&self, bundle: &Arc<Unpacked>) {
        let mut known = self.lock();
        if known.held.len() == known.held.capacity() {
            known.held.retain(|held| held.strong_count() > 0);
        }
        known.held.push(Arc::downgrade(bundle));
    }

    pub(super) fn remember(&self, gone: GoneBundle) {
        let mut known = self.lock();
        known.gone.truncate(MOST_GONE - 1);
        known.gone.push_front(gone);
    }

    /// Returns what had become of the members of a bundle with this body when it went back, and
    /// forgets it.
    pub(super) fn take(&self, body: &Bytes) -> Option<Vec<MemberState>> {
        let mut known = self.lock();
        let gone = &mut known.gone;
        let index = gone.iter().position(|gone| gone.body == body)?;
        gone.remove(index).map(|gone| gone.members)
    }

    /// Removes the messages from `deliveries`, from this index on, that another process has sent
    /// because it received a bundle that this process had. If the member still runs here, the
    /// message waits for it and is settled with it; if it has ended, the message is acknowledged.
    /// Only those with [`RETURNED_HEADER`]: one that this process has sent itself, e.g. to try the
    /// task again, is not the member any more.
    pub fn join(&self, deliveries: &mut Vec<Delivery>, from: usize) {
        let is_returned = |delivery: &mut Delivery| delivery.headers.get(RETURNED_HEADER).is_some();
        let returned: Vec<_> = deliveries.extract_if(from.., is_returned).collect();
        if returned.is_empty() {
            return;
        }
        let known = self.lock();
        let held: Vec<_> = known.held.iter().filter_map(Weak::upgrade).collect();
        for delivery in returned {
            let Ok(message) = TaskMessage::decode(&delivery.body()) else {
                deliveries.push(delivery);
                continue;
            };
            let has_ended = |gone: &GoneBundle| {
                let index = index_of(&message, &gone.bundle, &gone.body);
                index.is_some_and(|index| gone.members.get(index) == Some(&MemberState::Ended))
            };
            if known.gone.iter().any(has_ended) {
                delivery.ack();
                continue;
            }
            let join = |delivery, held: &Arc<Unpacked>| held.join(&message, delivery);
            deliveries.extend(held.iter().try_fold(delivery, join));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}

/// Returns the index of the member that this message is. It is the same task if its ids and its
/// data are the same.
pub(super) fn index_of(message: &TaskMessage, bundle: &Bundle, body: &Bytes) -> Option<usize> {
    let job_task_id = |message: &TaskMessage| message.tracking.as_ref()?.job_task_id.clone();
    let number = message.task_id.rsplit_once('.')?.1.parse().ok();
    let is_it = |member: &BundleMember| Some(member.number) == number;
    let index = bundle.members.iter().position(is_it)?;
    let member = bundle.message(index, body)?;
    let is_same = member.task_id == message.task_id
        && member.task_data == message.task_data
        && job_task_id(&member) == job_task_id(message);
    is_same.then_some(index)
}
