//! Does what follows a commit: tells the pipes, delivers messages, and confirms what is stored.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Delayed, Delivery, Message, PendingBatch, Read, Work, Writer, index_of, pipe_of, size,
};

impl Writer {
    /// Applies completed work: informs the pipes. [`deliver`](Self::deliver) delivers what they may
    /// deliver now.
    pub(super) fn finished(&mut self, work: Work, read: Read) {
        let Work {
            pending,
            touched,
            give_back,
            ..
        } = work;
        let PendingBatch {
            batch,
            bytes,
            confirmers,
            delayed_confirmers,
        } = pending;
        for mark in batch.marks {
            self.pipes[index_of(mark.number)].marked(mark);
        }
        for message in batch.messages {
            self.pipes[index_of(pipe_of(message.id))].stored(message);
        }
        for message in batch.returned {
            self.pipes[index_of(pipe_of(message.id))].requeue(message);
        }
        for (page, messages) in read.pages {
            self.pipes[index_of(page.number)].loaded(page.after, messages);
        }
        self.deliverable.extend(&touched);
        self.stored.extend(confirmers.into_iter().flatten());
        self.stored.extend(delayed_confirmers);
        self.touched.extend(touched);
        self.release(read.due, read.next_due);
        self.space.stored(bytes as u64);
        self.use_space(read.free);
        if give_back.is_some() {
            self.give_back_at = read.more_to_give_back.then(Instant::now);
        }
    }

    /// Delivers what was committed. Returns whether there was any pipe to look at.
    pub(super) fn deliver(&mut self) -> bool {
        let deliverable = std::mem::take(&mut self.deliverable);
        for index in &deliverable {
            self.hand_out(*index);
        }
        !deliverable.is_empty()
    }

    /// Confirms what is stored.
    pub(super) fn confirm(&mut self) {
        for confirmer in self.stored.drain(..) {
            confirmer.resolve(Ok(()));
        }
    }

    /// Appends the delayed messages whose delay is over to their pipes.
    fn release(&mut self, due: Vec<Delayed>, next_due: Option<i64>) {
        self.next_due = self.next_due.into_iter().chain(next_due).min();
        for Delayed {
            id,
            pipe,
            headers,
            body,
            ..
        } in due
        {
            self.next.batch.released.push(id);
            self.next.bytes += size(&body);
            self.next.confirmers.push(None);
            self.append(index_of(pipe), headers, body);
        }
    }

    /// Delivers messages of a pipe, as far as the watermark and the consumers allow it.
    fn hand_out(&mut self, index: usize) {
        let pipe = &mut self.pipes[index];
        while let Some((key, message)) = pipe.hand_out() {
            let Message {
                id,
                delivery_count,
                sent,
                headers,
                body,
            } = message;
            // Each consumer of a pipe has its receiver here.
            let receiver = &self.consumers[&key];
            let delivery = Delivery::new(
                Arc::clone(&pipe.name),
                body,
                headers,
                delivery_count,
                id.cast_unsigned(),
                Arc::clone(&receiver.settler),
            )
            .sent_at(Some(sent));
            // The channel has room, because its capacity is the prefetch. If the consumer was just
            // dropped, dropping the delivery here requeues it by a command.
            if receiver.deliveries.try_send(delivery).is_err() {
                self.consumers.remove(&key);
                pipe.retain_consumers(|other| other != key);
            }
        }
    }
}
