//! The task that publishes.
//!
//! Messages go out in groups, whose frames are written together and whose confirms are awaited together: one message at a
//! time costs the client five times as much.
//!
//! What must stay true:
//! - A publication leaves this task only by an answer: confirmed, or refused for good. Whatever happens to a channel or a
//!   connection, what is not confirmed is published again on the next one, in order, before anything newer.
//! - A message that kills channels does not do so for ever.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{Line, Live, Lost};
use super::queues::{Queues, Undeclared, delay_queue, properties};
use crate::broker::{Confirmer, Outgoing, PublishError};

/// How many messages are written together.
const GROUP: usize = 64;
/// How many messages are unconfirmed at most; measured, more gain nothing.
const WINDOW: usize = 4096;
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);
/// How many channels a message may see die before it is taken for the cause.
const CHANNELS: u32 = 5;
/// How often a message is published that the broker refuses: a quorum queue does so while it has no leader, which is also
/// when it has just been declared.
const REFUSALS: u32 = 5;
/// How long a refused message waits, and a new channel after one has died.
const PAUSE: Duration = Duration::from_millis(200);

/// A message on its way, and whom to answer.
pub struct Publication {
    message: Outgoing,
    confirmer: Confirmer,
    /// It came back once, because there was no queue.
    returned: bool,
    /// How often the broker has refused it, and how many channels have died under it.
    refusals: u32,
    channels: u32,
}

impl Publication {
    pub fn new(message: Outgoing, confirmer: Confirmer) -> Self {
        Self {
            message,
            confirmer,
            returned: false,
            refusals: 0,
            channels: 0,
        }
    }

    /// The queue where it physically goes.
    fn queue(&self) -> Arc<str> {
        match self.message.delay {
            Some(delay) => delay_queue(&self.message.pipe, delay).into(),
            None => Arc::clone(&self.message.pipe),
        }
    }

    fn answer(self, answer: Result<(), PublishError>) {
        // Whoever does not wait for the answer does not want it.
        drop(self.confirmer.send(answer));
    }

    fn unroutable(self, reason: String) {
        let pipe = self.message.pipe.to_string();
        self.answer(Err(PublishError::Unroutable { pipe, reason }));
    }

    fn refused(self, reason: String) {
        let pipe = self.message.pipe.to_string();
        self.answer(Err(PublishError::Refused { pipe, reason }));
    }
}

pub struct Publisher {
    line: Line,
    queues: Arc<Queues>,
    received: mpsc::UnboundedReceiver<Publication>,
    /// To be published before what is received.
    first: VecDeque<Publication>,
    buffer: Vec<Publication>,
}

/// What became of a group.
struct Answered {
    number: u64,
    publications: Vec<Publication>,
    answers: Answers,
}

enum Answers {
    /// For each publication.
    Given(Vec<lapin::Result<Confirmation>>),
    /// The broker said nothing in time.
    Missing,
    /// These had been refused and have waited; they are to be published again.
    Again,
}

/// One channel and what is unconfirmed on it.
struct Session {
    live: Live,
    channel: Channel,
    declared: HashSet<Arc<str>>,
    groups: FuturesUnordered<BoxFuture<'static, Answered>>,
    number: u64,
    unconfirmed: usize,
    /// Unanswered publications of groups whose channel has died, by group.
    left: Vec<(u64, Vec<Publication>)>,
}

impl Publisher {
    pub fn new(
        line: Line,
        queues: Arc<Queues>,
        received: mpsc::UnboundedReceiver<Publication>,
    ) -> Self {
        Self {
            line,
            queues,
            received,
            first: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Until `closing` and everything is answered, or until `end`.
    pub async fn run(mut self, closing: CancellationToken, end: CancellationToken) {
        end.run_until_cancelled(async {
            let connection = self.line.clone();
            loop {
                let live = tokio::select! {
                    live = connection.up() => live,
                    () = self.idle_close(&closing) => return,
                };
                match self.session(live, &closing).await {
                    Ok(()) => return,
                    Err(lost) => tracing::warn!(reason = %lost, "publishing was interrupted; going on as soon as possible"),
                }
                sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// Ends when the broker is closed and there is nothing to publish.
    async fn idle_close(&mut self, closing: &CancellationToken) {
        closing.cancelled().await;
        self.received.close();
        while let Ok(publication) = self.received.try_recv() {
            self.first.push_back(publication);
        }
        if !self.first.is_empty() {
            std::future::pending::<()>().await;
        }
    }

    /// Publishes on one channel until it is lost or, when closing, until everything is answered.
    async fn session(&mut self, live: Live, closing: &CancellationToken) -> Result<(), Lost> {
        let channel = live.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        live.within_limit("publisher confirms", select)
            .await?
            .map_err(|error| Lost(error.to_string()))?;
        let mut session = Session {
            live,
            channel,
            declared: HashSet::new(),
            groups: FuturesUnordered::new(),
            number: 0,
            unconfirmed: 0,
            left: Vec::new(),
        };
        let result = self.publish_on(&mut session, closing).await;
        self.take_back(session).await;
        result
    }

    async fn publish_on(
        &mut self,
        session: &mut Session,
        closing: &CancellationToken,
    ) -> Result<(), Lost> {
        loop {
            let drained = self.received.is_closed() && self.received.is_empty();
            if drained && self.first.is_empty() && session.groups.is_empty() {
                return Ok(());
            }
            let has_room = session.unconfirmed < WINDOW;
            tokio::select! {
                biased;
                Some(answered) = session.groups.next() => self.answered(session, answered)?,
                () = session.live.lost.cancelled() => return Err(Lost("the connection is lost".into())),
                () = closing.cancelled(), if !self.received.is_closed() => self.received.close(),
                _ = self.received.recv_many(&mut self.buffer, GROUP), if has_room && !drained && self.first.len() < GROUP => {
                    self.first.extend(self.buffer.drain(..));
                }
                // Nothing more is there right now: what there is goes out.
                () = std::future::ready(()), if has_room && !self.first.is_empty() => self.send(session).await?,
            }
        }
    }

    /// Declares what is not declared and writes a group.
    async fn send(&mut self, session: &mut Session) -> Result<(), Lost> {
        let mut sent = Vec::with_capacity(GROUP);
        while sent.len() < GROUP
            && let Some(publication) = self.first.pop_front()
        {
            match session.prepare(&self.queues, &publication).await {
                Ok(prepared) => sent.push((publication, prepared)),
                Err(Trouble::Unroutable(reason)) => publication.unroutable(reason),
                Err(Trouble::Refused(reason)) => publication.refused(reason),
                Err(Trouble::Lost(lost)) => {
                    let unsent = sent
                        .into_iter()
                        .map(|(publication, _)| publication)
                        .chain([publication]);
                    session.left.push((session.number, unsent.collect()));
                    session.number += 1;
                    return Err(lost);
                }
            }
        }
        let channel = &session.channel;
        let writing = join_all(sent.iter().map(|(publication, (queue, properties))| {
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            channel.basic_publish(
                "".into(),
                queue.clone(),
                options,
                &publication.message.body,
                properties.clone(),
            )
        }));
        // A broker that blocks publishers stops reading from them, so this may take as long as a confirm.
        let written = tokio::select! {
            written = timeout(CONFIRM_LIMIT, writing) => written.ok(),
            () = session.live.lost.cancelled() => None,
        };
        let publications: Vec<Publication> = sent
            .into_iter()
            .map(|(publication, _)| publication)
            .collect();
        let Some(written) = written else {
            session.left.push((session.number, publications));
            session.number += 1;
            return Err(session.live.give_up("writing", CONFIRM_LIMIT));
        };
        session.unconfirmed += publications.len();
        let answered = await_group(
            session.number,
            publications,
            written,
            session.live.lost.clone(),
        );
        session.groups.push(answered.boxed());
        session.number += 1;
        Ok(())
    }

    /// Answers the publishers of a group.
    fn answered(&mut self, session: &mut Session, answered: Answered) -> Result<(), Lost> {
        let Answered {
            number,
            publications,
            answers,
        } = answered;
        session.unconfirmed -= publications.len();
        let answers = match answers {
            Answers::Given(answers) => answers,
            Answers::Missing => {
                session.left.push((number, publications));
                return Err(session.live.give_up("confirms", CONFIRM_LIMIT));
            }
            Answers::Again => {
                self.first.extend(publications);
                return Ok(());
            }
        };
        let (mut trouble, mut left, mut refused) = (None, Vec::new(), Vec::new());
        for (mut publication, answer) in publications.into_iter().zip(answers) {
            match answer {
                Ok(Confirmation::Ack(None) | Confirmation::NotRequested) => {
                    publication.answer(Ok(()));
                }
                Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
                    session.declared.remove(&publication.queue());
                    if publication.returned {
                        publication.unroutable(returned.reply_text.to_string());
                    } else {
                        publication.returned = true;
                        self.first.push_back(publication);
                    }
                }
                Ok(Confirmation::Nack(None)) => {
                    publication.refusals += 1;
                    if publication.refusals < REFUSALS {
                        refused.push(publication);
                    } else {
                        publication.refused("it was not taken; the queue may be full".into());
                    }
                }
                Err(error) => {
                    if error.is_amqp_soft_error() {
                        publication.channels += 1;
                    }
                    trouble = Some(error.to_string());
                    if publication.channels < CHANNELS {
                        left.push(publication);
                    } else {
                        publication.refused(error.to_string());
                    }
                }
            }
        }
        if !refused.is_empty() {
            session.publish_later(refused);
        }
        let Some(trouble) = trouble else {
            return Ok(());
        };
        session.left.push((number, left));
        Err(Lost(trouble))
    }

    /// Puts what was not confirmed before everything else, in the order in which it was sent.
    async fn take_back(&mut self, mut session: Session) {
        if session.groups.is_empty() && session.left.is_empty() {
            return;
        }
        // The channel is not to be used again; without it the confirms of its groups will not come.
        if session.live_is_up() {
            drop(timeout(PAUSE, session.channel.close(200, "interrupted".into())).await);
        }
        while let Ok(Some(answered)) = timeout(CONFIRM_LIMIT, session.groups.next()).await {
            // What went wrong is known already.
            drop(self.answered(&mut session, answered));
        }
        session.left.sort_by_key(|(number, _)| *number);
        let left = session
            .left
            .into_iter()
            .flat_map(|(_, publications)| publications);
        self.first = left.chain(std::mem::take(&mut self.first)).collect();
    }
}

impl Session {
    async fn prepare(
        &mut self,
        queues: &Queues,
        publication: &Publication,
    ) -> Result<(ShortString, BasicProperties), Trouble> {
        let queue = publication.queue();
        let name = ShortString::try_new(&*queue)
            .map_err(|error| Trouble::Unroutable(error.to_string()))?;
        let properties = properties(&publication.message.headers).map_err(Trouble::Refused)?;
        if !self.declared.contains(&queue) {
            let Outgoing { pipe, delay, .. } = &publication.message;
            queues
                .declare(&self.live, pipe, *delay)
                .await
                .map_err(|error| match error {
                    Undeclared::Refused(reason) => Trouble::Unroutable(reason),
                    Undeclared::Away(reason) => Trouble::Refused(reason),
                    Undeclared::Lost(lost) => Trouble::Lost(lost),
                })?;
            self.declared.insert(queue);
        }
        Ok((name, properties))
    }

    fn publish_later(&mut self, publications: Vec<Publication>) {
        self.unconfirmed += publications.len();
        let (number, lost) = (self.number, self.live.lost.clone());
        self.number += 1;
        let waiting = async move {
            lost.run_until_cancelled(sleep(PAUSE)).await;
            Answered {
                number,
                publications,
                answers: Answers::Again,
            }
        };
        self.groups.push(waiting.boxed());
    }

    fn live_is_up(&self) -> bool {
        !self.live.lost.is_cancelled()
    }
}

/// Why a message cannot be written.
enum Trouble {
    Unroutable(String),
    Refused(String),
    Lost(Lost),
}

async fn await_group(
    number: u64,
    publications: Vec<Publication>,
    written: Vec<lapin::Result<PublisherConfirm>>,
    lost: CancellationToken,
) -> Answered {
    let confirms = join_all(written.into_iter().map(|written| async { written?.await }));
    let answers = tokio::select! {
        answers = timeout(CONFIRM_LIMIT, confirms) => answers.map_or(Answers::Missing, Answers::Given),
        () = lost.cancelled() => Answers::Missing,
    };
    Answered {
        number,
        publications,
        answers,
    }
}
