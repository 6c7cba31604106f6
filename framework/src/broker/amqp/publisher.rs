//! The task that publishes.
//!
//! Messages are published in groups: the frames of a group are written together and its confirms
//! are awaited together. One message at a time costs the client five times as much.
//!
//! What must stay true:
//! - A publication leaves this task only with a result: confirmed, or refused for good. Whatever
//!   happens to a channel or a connection, unconfirmed messages are published again on the next
//!   one, in order, before any newer message.
//! - A message that makes the broker close the channel takes no other message with it: what was
//!   unconfirmed is published again in ever smaller groups, and only the message that is alone on a
//!   closed channel is refused.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _, OptionFuture};
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind, PublisherConfirm};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, ConnectionLost, ConnectionSupervisor};
use super::in_order::in_order;
use super::queues::{QueueError, Queues, delay_queue, is_soft, properties};
use crate::RetryPolicy;
use crate::broker::{Confirmer, Outgoing, PublishError};

/// How many messages are written together.
const GROUP: usize = 64;
/// The maximum number of unconfirmed messages. A larger number was measured to be no faster.
const WINDOW: usize = 4096;
/// How long the broker may take to confirm a group.
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);
/// Into how many groups messages are divided among which one makes the broker close the channel.
/// One by one would cost as many confirms as there are messages; halves would cost more channels.
const SUSPECT_GROUPS: usize = 16;
/// The delay before a refused message is published again, and before a new channel is opened after
/// one was closed.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a message that the broker refuses is published, and the delay in between. A quorum
/// queue refuses messages while it has no leader, for example right after it was declared.
const REFUSAL_POLICY: RetryPolicy = RetryPolicy::constant(PAUSE).attempts(5);

/// A message that is not confirmed yet.
pub struct Publication {
    message: Outgoing,
    confirmer: Confirmer,
    /// Whether the broker has returned the message once, because the queue did not exist.
    returned: bool,
    /// How often the broker has refused the message.
    refusals: u32,
    /// Set if the broker has closed a channel on which this message and others were unconfirmed.
    /// One of them is the cause, so this one is published again among at most this many of them,
    /// and nothing else at the same time.
    suspect_among: Option<usize>,
}

impl Publication {
    pub fn new(message: Outgoing, confirmer: Confirmer) -> Self {
        Self {
            message,
            confirmer,
            returned: false,
            refusals: 0,
            suspect_among: None,
        }
    }

    /// Returns the queue that receives the message: the pipe's own, or the one for its delay.
    fn queue(&self) -> Arc<str> {
        match self.message.delay {
            Some(delay) => delay_queue(&self.message.pipe, delay).into(),
            None => Arc::clone(&self.message.pipe),
        }
    }

    fn confirm(self) {
        self.confirmer.resolve(Ok(()));
    }

    fn impossible(self, reason: impl Into<Box<dyn Error + Send + Sync>>) {
        let error = PublishError::impossible(&*self.message.pipe, reason);
        self.confirmer.resolve(Err(error));
    }

    fn unacceptable(self, reason: impl Into<Box<dyn Error + Send + Sync>>) {
        let error = PublishError::unacceptable(&*self.message.pipe, reason);
        self.confirmer.resolve(Err(error));
    }

    fn unroutable(self, reason: impl Into<Box<dyn Error + Send + Sync>>) {
        let error = PublishError::unroutable(&*self.message.pipe, reason);
        self.confirmer.resolve(Err(error));
    }

    fn refused(self, reason: impl Into<Box<dyn Error + Send + Sync>>) {
        let error = PublishError::refused(&*self.message.pipe, reason);
        self.confirmer.resolve(Err(error));
    }

    /// Resolves a message that made the broker close the channel.
    fn closed_the_channel(self, error: lapin::Error) {
        if !never_taken(&error) {
            return self.refused(error);
        }
        let bytes = self.message.body.len();
        let reply = match error.kind() {
            ErrorKind::ProtocolError(error) => error.get_message().to_string(),
            _ => error.to_string(),
        };
        tracing::warn!(pipe = %self.message.pipe, bytes, reply, "the broker never takes this message");
        self.unacceptable(format!(
            "it has {bytes} bytes ({reply}); make it smaller, or raise the broker's limit"
        ));
    }
}

/// Publishes messages on one connection after another.
pub struct Publisher {
    supervisor: ConnectionSupervisor,
    queues: Arc<Queues>,
    received: mpsc::UnboundedReceiver<Publication>,
    /// Publications to send before those in `received`.
    first: VecDeque<Publication>,
    buffer: Vec<Publication>,
}

/// A group of publications and its outcome.
struct GroupResult {
    number: u64,
    publications: Vec<Publication>,
    outcome: Outcome,
}

enum Outcome {
    /// The broker's response to each publication.
    Responses(Vec<lapin::Result<Confirmation>>),
    /// The broker did not respond in time, or the connection was lost.
    NoResponse,
    /// The broker had refused these publications, and their delay is over: they are published
    /// again.
    RetryDue,
}

/// One channel and its unconfirmed publications.
pub struct Session {
    connection: Connection,
    channel: Channel,
    /// The queues that this session has declared, and whether as a delay queue. The name alone does
    /// not tell: a pipe can have the name of another pipe's delay queue.
    declared: HashMap<Arc<str>, bool>,
    groups: FuturesUnordered<BoxFuture<'static, GroupResult>>,
    next_group: u64,
    /// Publications without a result, including those whose delay is not over.
    unconfirmed: usize,
    /// Publications that are written and have no response.
    written: usize,
    /// Whether the written publications are suspects. Nothing else is written until the broker has
    /// responded.
    isolated: bool,
    /// Publications to be sent again on the next channel, by group.
    unsent: Vec<(u64, Vec<Publication>)>,
    /// Why the broker has closed the channel, if one of the publications made it do so.
    closed: Option<lapin::Error>,
}

impl Publisher {
    pub fn new(
        supervisor: ConnectionSupervisor,
        queues: Arc<Queues>,
        received: mpsc::UnboundedReceiver<Publication>,
    ) -> Self {
        Self {
            supervisor,
            queues,
            received,
            first: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Publishes until `closing` is cancelled and every publication has a result, or until `end` is
    /// cancelled.
    ///
    /// `open` has the session that is open. If this panics, it outlives that, and the next run
    /// publishes its unconfirmed publications again.
    pub async fn run(
        &mut self,
        open: &mut Option<Session>,
        closing: &CancellationToken,
        end: &CancellationToken,
    ) {
        end.run_until_cancelled(async {
            if let Some(panicked) = open.take() {
                self.take_back(panicked).await;
            }
            let supervisor = self.supervisor.clone();
            loop {
                let connection = tokio::select! {
                    connection = supervisor.connected() => connection,
                    () = self.closed_and_empty(closing) => return,
                };
                match self.session(connection, open, closing).await {
                    Ok(()) => return,
                    Err(reason) => {
                        tracing::warn!(%reason, "publishing was interrupted; continuing as soon as possible");
                    }
                }
                sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// Returns once the broker is being closed, if there is nothing to publish; never otherwise.
    async fn closed_and_empty(&mut self, closing: &CancellationToken) {
        closing.cancelled().await;
        self.received.close();
        while let Ok(publication) = self.received.try_recv() {
            self.first.push_back(publication);
        }
        if !self.first.is_empty() {
            std::future::pending::<()>().await;
        }
    }

    /// Publishes on one channel until it is lost or, when closing, until every publication has a
    /// result.
    async fn session(
        &mut self,
        connection: Connection,
        open: &mut Option<Session>,
        closing: &CancellationToken,
    ) -> Result<(), ConnectionLost> {
        let channel = connection.open_channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        connection.request("publisher confirms", select).await?;
        let session = open.insert(Session {
            connection,
            channel,
            declared: HashMap::new(),
            groups: FuturesUnordered::new(),
            next_group: 0,
            unconfirmed: 0,
            written: 0,
            isolated: false,
            unsent: Vec::new(),
            closed: None,
        });
        let result = self.publish_on(session, closing).await;
        if let Some(ended) = open.take() {
            self.take_back(ended).await;
        }
        result
    }

    async fn publish_on(
        &mut self,
        session: &mut Session,
        closing: &CancellationToken,
    ) -> Result<(), ConnectionLost> {
        loop {
            let drained = self.received.is_closed() && self.received.is_empty();
            if drained && self.first.is_empty() && session.groups.is_empty() {
                return Ok(());
            }
            let has_room = session.unconfirmed < WINDOW;
            tokio::select! {
                biased;
                Some(result) = session.groups.next() => self.resolve(session, result)?,
                () = session.connection.lost.cancelled() => return Err(ConnectionLost::Closed),
                () = closing.cancelled(), if !self.received.is_closed() => self.received.close(),
                _ = self.received.recv_many(&mut self.buffer, GROUP), if has_room && !drained && self.first.len() < GROUP => {
                    self.first.extend(self.buffer.drain(..));
                }
                // No more messages are ready, even after the tasks that can run now: send what
                // there is.
                () = yield_now(), if has_room && self.may_send(session) => self.send(session).await?,
            }
        }
    }

    /// Returns whether the next group may be written now: suspects only alone, and nothing beside
    /// suspects.
    fn may_send(&self, session: &Session) -> bool {
        self.first.front().is_some_and(|next| {
            session.written == 0 || (next.suspect_among.is_none() && !session.isolated)
        })
    }

    /// Writes one group, after declaring the queues that this session has not declared yet.
    async fn send(&mut self, session: &mut Session) -> Result<(), ConnectionLost> {
        let (publications, properties) = self.prepare_group(session).await?;
        let channel = &session.channel;
        let writing = in_order(publications.iter().zip(properties).map(
            |(publication, (queue, properties))| {
                let options = BasicPublishOptions {
                    mandatory: true,
                    ..BasicPublishOptions::default()
                };
                channel.basic_publish(
                    "".into(),
                    queue,
                    options,
                    &publication.message.body,
                    properties,
                )
            },
        ));
        // A broker that blocks publishers stops reading from them, so writing may take as long as a
        // confirm.
        let written = tokio::select! {
            written = timeout(CONFIRM_LIMIT, writing) => written.ok(),
            () = session.connection.lost.cancelled() => None,
        };
        let Some(written) = written else {
            session.keep_unsent(publications);
            return Err(session.connection.abandon("writing", CONFIRM_LIMIT));
        };
        session.unconfirmed += publications.len();
        session.written += publications.len();
        session.isolated = publications
            .iter()
            .any(|publication| publication.suspect_among.is_some());
        let number = session.number_group();
        let result = await_group(
            number,
            publications,
            written,
            session.connection.lost.clone(),
        );
        session.groups.push(result.boxed());
        Ok(())
    }

    /// Takes the publications of the next group, with their queues and properties. Publications
    /// that cannot be sent are resolved here. Suspects are groups of their own.
    async fn prepare_group(&mut self, session: &mut Session) -> Result<Group, ConnectionLost> {
        let (mut publications, mut properties) = (Vec::new(), Vec::new());
        let among = self.first.front().and_then(|next| next.suspect_among);
        while publications.len() < among.unwrap_or(GROUP)
            && let Some(publication) = self.first.pop_front_if(|next| next.suspect_among == among)
        {
            match session.prepare(&self.queues, &publication).await {
                Ok(prepared) => {
                    publications.push(publication);
                    properties.push(prepared);
                }
                Err(PrepareError::Impossible(reason)) => publication.impossible(reason),
                Err(PrepareError::Unacceptable(reason)) => publication.unacceptable(reason),
                Err(PrepareError::Unroutable(reason)) => publication.unroutable(reason),
                Err(PrepareError::Refused(reason)) => publication.refused(reason),
                Err(PrepareError::Lost(lost)) => {
                    publications.push(publication);
                    session.keep_unsent(publications);
                    return Err(lost);
                }
            }
        }
        Ok((publications, properties))
    }

    /// Resolves the publications of a group, or keeps them to be sent again.
    fn resolve(
        &mut self,
        session: &mut Session,
        result: GroupResult,
    ) -> Result<(), ConnectionLost> {
        let GroupResult {
            number,
            publications,
            outcome,
        } = result;
        session.unconfirmed -= publications.len();
        if !matches!(outcome, Outcome::RetryDue) {
            session.written -= publications.len();
        }
        let responses = match outcome {
            Outcome::Responses(responses) => responses,
            Outcome::NoResponse => {
                session.unsent.push((number, publications));
                return Err(session.connection.abandon("confirms", CONFIRM_LIMIT));
            }
            Outcome::RetryDue => {
                self.first.extend(publications);
                return Ok(());
            }
        };
        let (mut lost, mut unsent, mut refused) = (None, Vec::new(), Vec::new());
        for (mut publication, response) in publications.into_iter().zip(responses) {
            match response {
                Ok(Confirmation::Ack(None) | Confirmation::NotRequested) => publication.confirm(),
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
                    let retry = REFUSAL_POLICY.delay_after(publication.refusals, Duration::ZERO);
                    if retry.is_some() {
                        refused.push(publication);
                    } else {
                        publication.refused("the queue may be full");
                    }
                }
                Err(error) => {
                    if error.is_amqp_soft_error() {
                        session.closed = Some(error.clone());
                    }
                    unsent.push(publication);
                    lost = Some(error);
                }
            }
        }
        if !refused.is_empty() {
            session.publish_later(refused);
        }
        let Some(lost) = lost else {
            return Ok(());
        };
        session.unsent.push((number, unsent));
        Err(lost.into())
    }

    /// Puts the unconfirmed publications before all others, in the order in which they were sent.
    /// If one of them made the broker close the channel, it is refused if it was the only one;
    /// otherwise all become suspects.
    async fn take_back(&mut self, mut session: Session) {
        if session.groups.is_empty() && session.unsent.is_empty() {
            return;
        }
        // The channel must not be used again. Closing it ends the wait for outstanding confirms.
        if !session.connection.is_lost() {
            drop(timeout(PAUSE, session.channel.close(200, "interrupted".into())).await);
        }
        while let Ok(Some(result)) = timeout(CONFIRM_LIMIT, session.groups.next()).await {
            // The reason is logged already.
            drop(self.resolve(&mut session, result));
        }
        session.unsent.sort_by_key(|(number, _)| *number);
        let mut unsent: Vec<Publication> = session
            .unsent
            .into_iter()
            .flat_map(|(_, publications)| publications)
            .collect();
        if let Some(error) = session.closed {
            if unsent.len() == 1 {
                unsent
                    .drain(..)
                    .for_each(|cause| cause.closed_the_channel(error.clone()));
            }
            let among = (unsent.len() / SUSPECT_GROUPS).clamp(1, GROUP);
            for publication in &mut unsent {
                publication.suspect_among = Some(among);
            }
        }
        self.first = unsent
            .into_iter()
            .chain(std::mem::take(&mut self.first))
            .collect();
    }
}

/// The publications of a group, and the queue and the properties of each.
type Group = (Vec<Publication>, Vec<(ShortString, BasicProperties)>);

/// Why a message cannot be written.
enum PrepareError {
    Impossible(Box<dyn Error + Send + Sync>),
    Unacceptable(Box<dyn Error + Send + Sync>),
    Unroutable(Box<dyn Error + Send + Sync>),
    Refused(Box<dyn Error + Send + Sync>),
    Lost(ConnectionLost),
}

impl Session {
    /// Declares the publication's queue, unless this session has done so, and returns its name and
    /// the properties.
    async fn prepare(
        &mut self,
        queues: &Queues,
        publication: &Publication,
    ) -> Result<(ShortString, BasicProperties), PrepareError> {
        let queue = publication.queue();
        let name = ShortString::try_new(&*queue)
            .map_err(|error| PrepareError::Impossible(error.into()))?;
        let properties = properties(
            &publication.message.headers,
            publication.message.delay,
            self.connection.max_frame_bytes(),
        )
        .map_err(|reason| PrepareError::Unacceptable(reason.into()))?;
        let Outgoing { pipe, delay, .. } = &publication.message;
        if self.declared.get(&queue) != Some(&delay.is_some()) {
            queues
                .declare(&self.connection, pipe, *delay)
                .await
                .map_err(|error| match error {
                    QueueError::Impossible(reason) => PrepareError::Impossible(reason),
                    QueueError::Refused(reason) => PrepareError::Unroutable(reason),
                    QueueError::NotFound(reason) => PrepareError::Refused(reason.into()),
                    error @ QueueError::Unusable { .. } => PrepareError::Refused(error.into()),
                    QueueError::Lost(lost) => PrepareError::Lost(lost),
                })?;
            self.declared.insert(queue, delay.is_some());
        }
        Ok((name, properties))
    }

    /// Publishes refused messages again after a delay.
    fn publish_later(&mut self, publications: Vec<Publication>) {
        self.unconfirmed += publications.len();
        let (number, lost) = (self.number_group(), self.connection.lost.clone());
        let waiting = async move {
            lost.run_until_cancelled(sleep(PAUSE)).await;
            GroupResult {
                number,
                publications,
                outcome: Outcome::RetryDue,
            }
        };
        self.groups.push(waiting.boxed());
    }

    fn keep_unsent(&mut self, publications: Vec<Publication>) {
        let number = self.number_group();
        self.unsent.push((number, publications));
    }

    fn number_group(&mut self) -> u64 {
        let number = self.next_group;
        self.next_group += 1;
        number
    }
}

/// Returns whether this reason for closing a channel is about the message itself, so that it holds
/// every time.
fn never_taken(error: &lapin::Error) -> bool {
    [
        AMQPSoftError::PRECONDITIONFAILED,
        AMQPSoftError::CONTENTTOOLARGE,
    ]
    .into_iter()
    .any(|soft| is_soft(error, soft))
}

async fn await_group(
    number: u64,
    publications: Vec<Publication>,
    written: Vec<lapin::Result<PublisherConfirm>>,
    lost: CancellationToken,
) -> GroupResult {
    let outcome = tokio::select! {
        responses = timeout(CONFIRM_LIMIT, responses(written)) => responses.map_or(Outcome::NoResponse, Outcome::Responses),
        () = lost.cancelled() => Outcome::NoResponse,
    };
    GroupResult {
        number,
        publications,
        outcome,
    }
}

/// Returns the broker's response to each publication. The last one is awaited first: it comes last,
/// so that the group wakes its task once. Unlike what [`in_order`] takes, confirms need nobody to
/// begin them, so they wait without a future on the heap for each.
async fn responses(
    mut written: Vec<lapin::Result<PublisherConfirm>>,
) -> Vec<lapin::Result<Confirmation>> {
    async fn response(written: lapin::Result<PublisherConfirm>) -> lapin::Result<Confirmation> {
        written?.await
    }
    let last = OptionFuture::from(written.pop().map(response)).await;
    let mut responses = Vec::with_capacity(written.len() + 1);
    for written in written {
        responses.push(response(written).await);
    }
    responses.extend(last);
    responses
}
