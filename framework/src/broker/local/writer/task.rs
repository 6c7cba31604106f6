//! The writer as a task, while the storage is at work on a thread of its own.

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{ACK_PATIENCE, BATCH_MESSAGES, SOURCE, Writer};
use crate::broker::BrokerState;
use crate::broker::local::Command;
use crate::broker::local::storage::Storage;
use crate::broker::local::thread::Thread;
use crate::broker::local::work::{Running, begin, begin_after, finish};
use crate::supervision::LastWill;

impl Writer {
    /// Runs until the broker is closed, then closes the file.
    pub async fn run<S: Storage>(
        mut self,
        thread: Thread,
        disk: S,
        mut commands: mpsc::UnboundedReceiver<Command>,
        end: CancellationToken,
    ) {
        let health = self.health.clone();
        let _last_will = LastWill {
            health: &health,
            name: SOURCE,
        };
        let mut idle = Some(disk);
        let mut running: Option<Running<S>> = None;
        let mut received = Vec::new();
        loop {
            if let Some(disk) = idle.take() {
                match self.work(ACK_PATIENCE) {
                    Some(work) => running = Some(begin(&thread, disk, work)),
                    None if self.closing => {
                        thread.run(|| disk.close()).await;
                        break;
                    }
                    None => idle = Some(disk),
                }
            }
            // The disk is at work meanwhile.
            let has_delivered = self.deliver();
            self.confirm();
            if has_delivered && idle.is_some() {
                // The consumers may want more from the disk.
                continue;
            }
            let wake = self.wake();
            tokio::select! {
                biased;
                (disk, work, done) = finish(&mut running), if running.is_some() => {
                    running = None;
                    match done {
                        Ok(read) => {
                            self.finished(work, read);
                            idle = Some(disk);
                        }
                        Err(error) => {
                            let Some((work, delay)) = self.refused(work, S::reason(&error)) else {
                                thread.run(|| disk.close()).await;
                                break;
                            };
                            running = Some(begin_after(delay, &thread, disk, work));
                        }
                    }
                }
                count = commands.recv_many(&mut received, BATCH_MESSAGES), if !self.closing && !self.is_full() => {
                    if count == 0 {
                        self.close();
                    }
                    self.receive(&mut received);
                    if idle.is_some() {
                        // Let the tasks that were woken by the last commit send more commands for
                        // this batch.
                        tokio::task::yield_now().await;
                        while let Ok(command) = commands.try_recv() {
                            self.take(command);
                            if self.is_full() {
                                break;
                            }
                        }
                    }
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if running.is_none() && wake.is_some() => {}
                () = end.cancelled(), if !self.closing => self.close(),
            }
        }
        self.confirm();
        // Commands are no longer received; the state shows why.
        self.state.send_replace(BrokerState::Closed);
    }

    fn receive(&mut self, commands: &mut Vec<Command>) {
        commands.drain(..).for_each(|command| self.take(command));
    }
}
