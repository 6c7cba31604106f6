//! The storage of the broker in memory.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::ops::Bound::{Excluded, Included};

use crate::broker::local::pipe::{Id, Message, rows_of};
use crate::broker::local::storage::{Batch, Delayed, Storage};

/// What a file would contain.
#[derive(Default)]
pub struct Volatile {
    messages: BTreeMap<Id, Message>,
    delayed: BTreeMap<i64, Delayed>,
}

impl Storage for Volatile {
    type Error = Infallible;

    fn commit(&mut self, batch: &mut Batch) -> Result<(), Infallible> {
        for message in batch.messages.iter().chain(&batch.returned) {
            self.messages.insert(message.id, message.clone());
        }
        for id in &batch.settled {
            self.messages.remove(id);
        }
        for delayed in &batch.delayed {
            self.delayed.insert(delayed.id, delayed.clone());
        }
        for id in &batch.released {
            self.delayed.remove(id);
        }
        Ok(())
    }

    fn page(
        &self,
        number: i64,
        after: Id,
        messages: usize,
        bytes: usize,
    ) -> Result<Vec<Message>, Infallible> {
        let rows = (Excluded(after), Included(rows_of(number).1));
        let page = self.messages.range(rows).map(|(_, message)| message);
        let page = up_to(page, bytes, |message| message.body.len());
        Ok(page.take(messages).collect())
    }

    fn due(&self, now: i64, limit: usize, bytes: usize) -> Result<Vec<Delayed>, Infallible> {
        let due = self.delayed.values().filter(|it| it.due.at <= now);
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|it| it.due.at);
        let due = up_to(due.into_iter(), bytes, |it| it.body.len());
        Ok(due.take(limit).collect())
    }

    fn next_due(&self) -> Result<Option<i64>, Infallible> {
        Ok(self.delayed.values().map(|it| it.due.at).min())
    }

    fn count_delayed(&self, _: i64) -> Result<Option<HashMap<i64, u64>>, Infallible> {
        let mut counted = HashMap::new();
        for delayed in self.delayed.values() {
            *counted.entry(delayed.pipe).or_default() += 1;
        }
        Ok(Some(counted))
    }

    fn reason(error: &Infallible) -> String {
        match *error {}
    }
}

/// Ends after the item with which all have this number of bytes.
fn up_to<'a, T: Clone + 'a>(
    items: impl Iterator<Item = &'a T>,
    bytes: usize,
    size: impl Fn(&T) -> usize,
) -> impl Iterator<Item = T> {
    let mut read = 0;
    items.cloned().take_while(move |item| {
        let fits = read < bytes;
        read += size(item);
        fits
    })
}
