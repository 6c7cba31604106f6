//! The pipes that the service knows, and what waits in them.
//!
//! `RabbitMQ` does not tell which queues exist. There, the service knows its own pipes, those of
//! the workers that tell of themselves, and those of the jobs that have not ended. The embedded
//! broker tells all.
//!
//! The items that wait for a pipe are not only its messages: many small items travel in one
//! message, and a pipe is kept short while its batches wait elsewhere. What the jobs have announced
//! counts, too.
//!
//! What must stay true: the broker is asked about a bounded number of pipes, and rarely about those
//! that do not exist, because `RabbitMQ` logs each such question as an error.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use contract::rest::ErrorCode;
use contract::{
    BesideKind, Pipe, PipeBeside, Pipes, bundle_pipe, is_bundle_pipe, is_delay_pipe,
    quarantine_pipe,
};
use framework::broker::{BrokerError, PipeState};
use framework::pipe_message::of_parts;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use crate::http::{ApiError, ApiResult};
use crate::pipes::known_pipes::PipesOfJobs;
use crate::pipes::measured_pipes::PipeWork;
use crate::pipes::seen_workers::WorkerPipes;
use crate::state::AppState;

/// The most pipes of a list.
const MOST: usize = 500;
/// How many questions the broker gets at the same time.
const AT_A_TIME: usize = 8;
/// How long the broker may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The bytes after which no further message is shown.
const PEEKED_BYTES: usize = 1024 * 1024;

impl AppState {
    /// Returns the pipes that the service knows.
    ///
    /// # Errors
    /// Returns 503 if the broker or the database cannot be asked.
    pub async fn pipes(&self) -> ApiResult<Pipes> {
        let workers = self.pipes.workers.pipes();
        let all = in_time(self.broker.look_at_all()).await?;
        let of_jobs = self.pipes_of_jobs().await?;
        let mut names = self.names(&workers).await?;
        names.extend(of_jobs.names().cloned());
        names.extend(of_jobs.items.keys().filter_map(|pipe| bundle_pipe(pipe)));
        names.remove("");
        names.extend(all.iter().flat_map(|all| all.keys().cloned()));
        names.retain(|name| !is_delay_pipe(name) && !is_quarantine(name));
        let complete = all.is_some() && names.len() <= MOST;
        let names: Vec<String> = names.into_iter().take(MOST).collect();
        let knows_all = all.is_some();
        let states = if let Some(all) = all {
            all
        } else {
            let inputs = workers.iter().filter_map(|it| it.input.as_ref());
            let inputs: BTreeSet<&String> = inputs.chain(of_jobs.names()).collect();
            let quarantines = inputs.into_iter().map(|pipe| quarantine_pipe(pipe));
            let asked: Vec<String> = names.iter().cloned().chain(quarantines).collect();
            in_time(self.look_at_each(&asked)).await?
        };
        let pipes = names
            .iter()
            // Not every worker is sent bundles.
            .filter(|name| !is_bundle_pipe(name) || states.contains_key(*name))
            .map(|name| self.pipe_of(name, &states, (&workers, &of_jobs), knows_all))
            .collect();
        Ok(Pipes { pipes, complete })
    }

    /// Returns one pipe, with its first messages if there is a number of them.
    ///
    /// # Errors
    /// Returns 404 if there is no such pipe, 403 or 409 if its messages cannot be shown, and 503 if
    /// the broker cannot be asked.
    pub async fn pipe(&self, name: &str, peeked: Option<usize>) -> ApiResult<Pipe> {
        if peeked.is_some() {
            self.check_pipe_access()?;
        }
        let workers = self.pipes.workers.pipes();
        let of_pipe: BTreeSet<WorkerPipes> = workers
            .into_iter()
            .filter(|worker| worker.input.as_deref() == Some(name))
            .collect();
        let beside = pipes_beside(&[name].into(), &of_pipe);
        let beside = beside.into_iter().map(|beside| beside.name);
        let names: Vec<String> = beside.chain(bundle_pipe(name)).collect();
        let Some(own) = in_time(self.broker.look(name)).await? else {
            let message = format!("There is no pipe '{name}'.");
            return Err(ApiError::NotFound(ErrorCode::PipeNotFound, message));
        };
        let mut states = in_time(self.look_at_each(&names)).await?;
        states.insert(name.to_owned(), own);
        let of_jobs = self.pipes_of_jobs().await?;
        let mut pipe = self.pipe_of(name, &states, (&of_pipe, &of_jobs), true);
        if let Some(limit) = peeked {
            let messages = in_time(self.broker.peek(name, limit, PEEKED_BYTES)).await?;
            let messages = messages.ok_or_else(|| {
                ApiError::Conflict(
                    ErrorCode::PipeNotPeekable,
                    format!(
                        "The messages of the pipe '{name}' cannot be shown without taking them: RabbitMQ would count that as a failed \
                         delivery of each, which ends in the quarantine. Take them with 'giveBack' if that does no harm."
                    ),
                )
            })?;
            let messages = messages.iter();
            pipe.peeked = Some(messages.map(|it| of_parts(&it.headers, &it.body)).collect());
        }
        Ok(pipe)
    }

    /// Returns how many items wait for each pipe to which tasks of unfinished jobs go, or from
    /// which workers take messages, and how many seconds of work that is.
    ///
    /// # Errors
    /// Returns 503 if the broker or the database cannot be asked.
    pub async fn waiting_items(&self) -> ApiResult<BTreeMap<String, PipeWork>> {
        let (of_jobs, workers) = (self.pipes_of_jobs().await?, self.pipes.workers.pipes());
        let inputs = workers.into_iter().filter_map(|worker| worker.input);
        let names: BTreeSet<String> = of_jobs.names().cloned().chain(inputs).collect();
        let names: Vec<String> = names.into_iter().take(MOST).collect();
        let states = if let Some(all) = in_time(self.broker.look_at_all()).await? {
            all
        } else {
            let bundles = names.iter().filter_map(|pipe| bundle_pipe(pipe));
            let asked: Vec<String> = names.iter().cloned().chain(bundles).collect();
            in_time(self.look_at_each(&asked)).await?
        };
        let items = |pipe: String| {
            let items = self.items_of(&pipe, &states, &of_jobs);
            let seconds = self.seconds_of(&pipe, items);
            (pipe, PipeWork { items, seconds })
        };
        Ok(names.into_iter().map(items).collect())
    }

    /// Returns how many items wait for a pipe.
    fn items_of(
        &self,
        pipe: &str,
        states: &BTreeMap<String, PipeState>,
        of_jobs: &PipesOfJobs,
    ) -> u64 {
        let messages = |pipe: &str| states.get(pipe).map_or(0, |state| state.messages);
        let bundles = bundle_pipe(pipe).map_or(0, |bundles| messages(&bundles));
        let announced = of_jobs.items.get(pipe).copied().unwrap_or_default();
        let open = announced.saturating_sub(self.pipes.workers.running_of(pipe));
        let held = of_jobs.held.get(pipe).copied().unwrap_or_default();
        open.max(messages(pipe) + bundles + held)
    }

    /// Returns how many seconds of work these items of a pipe are, if anybody has told how fast its
    /// workers are.
    pub fn seconds_of(&self, pipe: &str, items: u64) -> Option<f64> {
        let speed = self.pipes.workers.speed_of(pipe)?;
        #[expect(clippy::cast_precision_loss, reason = "about so many")]
        Some((items as f64 / speed as f64 * 10.0).round() / 10.0)
    }

    /// Returns the names of the pipes that the service knows without the broker.
    async fn names(&self, workers: &BTreeSet<WorkerPipes>) -> ApiResult<BTreeSet<String>> {
        let options = &self.options;
        let own = [&options.paused_pipe, &options.outputs.pipe];
        let tracking = self.tracking_pipes().await?;
        let of_workers = workers.iter().flat_map(|worker| {
            let WorkerPipes {
                input,
                output,
                reject,
                invalid,
                ..
            } = worker.clone();
            let bundles = [&input, &output].map(|pipe| bundle_pipe(pipe.as_deref()?));
            [input, output, reject, invalid]
                .into_iter()
                .chain(bundles)
                .flatten()
        });
        let own = own.into_iter().cloned().chain(tracking);
        Ok(own.chain(of_workers).collect())
    }

    /// Returns the pipes of unfinished jobs.
    async fn pipes_of_jobs(&self) -> ApiResult<Arc<PipesOfJobs>> {
        if let Some(pipes) = self.pipes.known.of_jobs() {
            return Ok(pipes);
        }
        let begun = Instant::now();
        let most = u32::try_from(MOST).unwrap_or(u32::MAX);
        let (first, items, held) = tokio::try_join!(
            self.store.task_pipes(most),
            self.store.waiting_items(most),
            self.store.count_held(most)
        )?;
        let (items, held) = (items.into_iter().collect(), held.into_iter().collect());
        let pipes = Arc::new(PipesOfJobs { first, items, held });
        self.pipes.known.set_of_jobs(&pipes, begun.elapsed());
        Ok(pipes)
    }

    /// Asks the broker about these pipes, unless it did not know them a moment ago. Returns those
    /// that exist.
    pub async fn look_at_each(
        &self,
        names: &[String],
    ) -> Result<BTreeMap<String, PipeState>, BrokerError> {
        let asked: BTreeSet<String> = names.iter().cloned().collect();
        let asked = self.pipes.known.not_missing(asked);
        let mut states = BTreeMap::new();
        for some in asked.chunks(AT_A_TIME) {
            let looks = join_all(some.iter().map(|name| self.broker.look(name))).await;
            for (name, looked) in some.iter().zip(looks) {
                match looked? {
                    Some(state) => drop(states.insert(name.clone(), state)),
                    None => self.pipes.known.miss(name).await,
                }
            }
        }
        Ok(states)
    }

    /// Describes a pipe by what the broker has told. `knows_quarantine` says that it has told of
    /// the quarantine, too, although no worker consumes the pipe.
    fn pipe_of(
        &self,
        name: &str,
        states: &BTreeMap<String, PipeState>,
        (workers, of_jobs): (&BTreeSet<WorkerPipes>, &PipesOfJobs),
        knows_quarantine: bool,
    ) -> Pipe {
        let consumed_by: Vec<&WorkerPipes> = workers
            .iter()
            .filter(|worker| worker.input.as_deref() == Some(name))
            .collect();
        let messages_in = |pipe: &str| states.get(pipe).map_or(0, |state| state.messages);
        let mut beside = pipes_beside(&[name].into(), workers);
        for beside in &mut beside {
            beside.messages = messages_in(&beside.name);
        }
        let sum = |kind: BesideKind| {
            let mut of_kind = beside.iter().filter(|it| it.kind == kind).peekable();
            let is_any = of_kind.peek().is_some();
            is_any.then(|| of_kind.map(|it| it.messages).sum::<u64>())
        };
        let state = states.get(name).copied();
        let (exists, state) = (state.is_some(), state.unwrap_or_default());
        let rates = state
            .flow
            .and_then(|flow| self.pipes.known.rates(name, flow));
        let workers: BTreeSet<&String> = consumed_by.iter().map(|it| &it.worker).collect();
        let items = self.items_of(name, states, of_jobs);
        Pipe {
            name: name.to_owned(),
            exists,
            items,
            seconds: self.seconds_of(name, items),
            messages: state.messages,
            held: of_jobs.held.get(name).copied().unwrap_or_default(),
            consumers: state.consumers,
            delayed: state.delayed,
            in_per_second: rates.map(|(came, _)| came),
            out_per_second: rates.map(|(_, left)| left),
            quarantined: sum(BesideKind::Quarantine).filter(|_| {
                let is_input = !consumed_by.is_empty() || of_jobs.names().any(|pipe| pipe == name);
                knows_quarantine || is_input
            }),
            invalid: sum(BesideKind::Invalid),
            rejected: sum(BesideKind::Reject),
            aside: beside.into_iter().filter(|it| it.messages > 0).collect(),
            workers: workers.into_iter().cloned().collect(),
            peeked: None,
        }
    }
}

/// Returns the quarantines of these pipes, and the invalid and reject pipes of the workers that
/// consume them, with no messages yet.
pub fn pipes_beside(pipes: &BTreeSet<&str>, workers: &BTreeSet<WorkerPipes>) -> Vec<PipeBeside> {
    let quarantines = pipes
        .iter()
        .map(|pipe| (quarantine_pipe(pipe), BesideKind::Quarantine));
    let is_consumer = |worker: &&WorkerPipes| {
        let input = worker.input.as_deref();
        input.is_some_and(|input| pipes.contains(input))
    };
    let of_workers = workers.iter().filter(is_consumer).flat_map(|worker| {
        let invalid = worker
            .invalid
            .clone()
            .map(|pipe| (pipe, BesideKind::Invalid));
        let reject = worker.reject.clone().map(|pipe| (pipe, BesideKind::Reject));
        invalid.into_iter().chain(reject)
    });
    let mut names = BTreeSet::new();
    let beside = quarantines.chain(of_workers);
    let beside = beside.filter(|(name, _)| names.insert(name.clone()));
    beside
        .map(|(name, kind)| PipeBeside {
            name,
            kind,
            messages: 0,
        })
        .collect()
}

fn is_quarantine(pipe: &str) -> bool {
    pipe.strip_suffix(quarantine_pipe("").as_str()).is_some()
}

async fn in_time<T>(asked: impl Future<Output = Result<T, BrokerError>>) -> ApiResult<T> {
    timeout(LIMIT, asked)
        .await
        .map_err(|_| ApiError::broker_unavailable("it does not respond"))?
        .map_err(ApiError::broker_unavailable)
}
