//! Runs a worker or a batch handler: connects it to its pipes, and stops it in two steps.

use std::fmt;
#[cfg(feature = "amqp")]
use std::str::FromStr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::Worker;
use crate::broker::{Broker, BrokerError, RESIZABLE_TO};
#[cfg(feature = "amqp")]
use crate::config::env::{EnvValue, Variables};
use crate::config::{MAX_BUNDLE, Settings, SettingsError};
use crate::context::{Bundling, Shared};
use crate::handler::BatchHandler;
use crate::health::{Source, Trouble, Watch};
use crate::job_service::JobServiceClient;
use crate::log;
#[cfg(feature = "amqp")]
use crate::log::{LogFilter, LogFormat};
use crate::meters::{self, Begun, Counters};
use crate::pipeline::breaker::CircuitBreaker;
use crate::pipeline::byte_window::ByteWindow;
use crate::pipeline::executor::{TaskExecutor, WorkerPipes};
use crate::pipeline::in_flight::{InFlight, Taken, Windows};
use crate::pipeline::intake::{Bundles, Intake, consume_bundles};
use crate::pipeline::unpacked::OnTheirOwn;
use crate::pipeline::window::Window;
use crate::pipeline::{Pipeline, Pipes, quarantine_loop};
use crate::process_name::ProcessName;
use crate::queries::{Answerer, Questions};
use crate::signs::Teller;
use crate::steps::bundles::results::Results;
use crate::steps::discards::Discards;
use crate::steps::full_pipe::full_pipes;
use crate::steps::open_deliveries::OpenDeliveries;
use crate::steps::output::WorkerIdentity;
use crate::steps::quarantine::Quarantine;
use crate::steps::report_buffer::ReportBuffer;
use crate::supervision::supervise;
use crate::telemetry::{self, Checks, Endpoint};
use crate::trace;

/// Settings and a broker. Add a worker or a handler to get a [`WorkerService`].
#[derive(Debug)]
pub struct Runtime {
    pub(crate) settings: Settings,
    pub(crate) broker: Arc<dyn Broker>,
    /// The broker was opened for this runtime alone, and is closed with it.
    pub(crate) owns_broker: bool,
}

/// A worker that is ready to run.
#[must_use = "a worker does nothing until it is run"]
pub struct WorkerService<H> {
    runtime: Runtime,
    make_handler: Box<dyn FnOnce(Shared) -> H + Send>,
    /// Why the worker's dependencies are unavailable, while they are.
    unavailable: watch::Receiver<Option<String>>,
    /// What answers questions about tasks.
    answerer: Option<Arc<dyn Answerer>>,
}

/// Why a runtime does not start. Its `Debug` is the sentence for people, too, because that is what
/// a `main` prints that returns it.
#[derive(thiserror::Error)]
pub enum RuntimeError {
    /// A variable has a bad value or an unknown name.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The broker cannot be used.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The address for health checks and metrics cannot be bound.
    #[error("{0}")]
    Listen(String),
    /// The process cannot go on, for example because one of its loops panics again and again.
    #[error("{0}")]
    GaveUp(String),
}

impl fmt::Debug for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Runtime {
    /// Returns a runtime on a broker that others may share.
    pub fn new(settings: Settings, broker: Arc<dyn Broker>) -> Self {
        Self {
            settings,
            broker,
            owns_broker: false,
        }
    }

    /// Returns a runtime on RabbitMQ with the settings of the environment; see
    /// [`crate::config::VARIABLES`].
    ///
    /// Also sets up logging to standard error, unless the program has done so already. Call it
    /// once, in `main`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable if one has a bad value, or begins with
    /// `BATCHWRIGHT_` and is unknown.
    #[cfg(feature = "amqp")]
    pub fn from_env() -> Result<Self, RuntimeError> {
        let variables = Variables::new(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }));
        let format = parsed(&variables, "LOG_FORMAT", LogFormat::default().name())?;
        let filter: LogFilter = parsed(&variables, "LOG", "info")?;
        log::set_up(filter.as_str(), format);
        Self::from_variables(&variables)
    }

    #[cfg(feature = "amqp")]
    fn from_variables(variables: &Variables) -> Result<Self, RuntimeError> {
        use crate::broker::amqp::{Amqp, AmqpOptions};

        let queue_type = parsed(variables, "QUEUE_TYPE", "quorum")?;
        let max_priority = parsed(variables, "MAX_PRIORITY", "0")?;
        let ratio = parsed(variables, "OTLP_RATIO", "1")?;
        let settings = Settings::from_variables(variables)?;
        info!(
            worker = settings.name,
            settings = Settings::changed(variables)?,
            "starting; these settings differ from the defaults"
        );
        let without_effect = Settings::without_effect(variables);
        if !without_effect.is_empty() {
            info!(
                variables = without_effect.join(", "),
                "these variables have no effect here; other programs read them"
            );
        }
        if let Some(found) = Settings::find(variables, "OTLP_ENDPOINT")? {
            let export = trace::Export {
                endpoint: &found.value,
                service: &settings.name,
                ratio,
                tls: &settings.tls,
            };
            trace::set_up(&export)
                .map_err(|error| SettingsError::of(&found.from, format!("is refused: {error}")))?;
        }
        let url = value(variables, "BROKER", "amqp://guest:guest@127.0.0.1:5672/%2f")?;
        let options = AmqpOptions {
            queue_type,
            max_priority,
            tls: settings.tls.clone(),
            name: settings.name.clone(),
            health: settings.health.clone(),
            ..AmqpOptions::new(url.value.clone())
        };
        let broker = Amqp::connect(options).map_err(|error| match error {
            BrokerError::Unusable { reason, .. } => {
                let reason = reason.to_string();
                SettingsError::invalid("BROKER", &url.from, &url.value, &reason).into()
            }
            error => RuntimeError::from(error),
        })?;
        Ok(Self {
            settings,
            broker: Arc::new(broker),
            owns_broker: true,
        })
    }

    /// Changes settings.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Adds the worker to run: one delivery at a time per slot, [`Settings::concurrency`] slots.
    pub fn worker<W: Worker>(self, worker: W) -> WorkerService<impl BatchHandler> {
        let (unavailable, unavailable_now) = watch::channel(None);
        let pipes = WorkerPipes {
            input: self.settings.input.clone(),
            output: self.settings.output.clone(),
            reject: self.settings.reject.clone(),
        };
        let (time_limit, stuck_task) = (self.settings.time_limit, self.settings.stuck_task);
        let (name, tries) = (&self.settings.name, self.settings.circuit_breaker);
        let breaker = tries.map(|tries| CircuitBreaker::of(name, tries.get()));
        if breaker.is_none() {
            drop(meters::circuit(name));
        }
        let answerer = worker.answerer();
        let make_handler = move |shared| TaskExecutor {
            worker,
            shared: Arc::new(shared),
            pipes,
            time_limit,
            stuck_task,
            breaker,
            unavailable,
        };
        WorkerService {
            runtime: self,
            make_handler: Box::new(make_handler),
            unavailable: unavailable_now,
            answerer,
        }
    }

    /// Adds the batch handler to run.
    pub fn handler<H: BatchHandler>(self, handler: H) -> WorkerService<H> {
        // Without its sender, the channel says forever that nothing is unavailable.
        let (_, never_unavailable) = watch::channel(None);
        WorkerService {
            runtime: self,
            make_handler: Box::new(|_| handler),
            unavailable: never_unavailable,
            answerer: None,
        }
    }

    fn shared(
        &self,
        open: &Arc<OpenDeliveries>,
        tasks: &TaskTracker,
        abort: &CancellationToken,
    ) -> Shared {
        let Settings {
            name,
            version,
            service_path,
            route,
            zero_progress,
            tls,
            status_check_limit,
            status_origins,
            retry,
            clock,
            health,
            bundle,
            ..
        } = self.settings.clone();
        let counters = Counters::of(&name);
        let job_service = JobServiceClient::new(status_check_limit, &tls, clock, tasks)
            .beside(self.settings.own_service.as_deref(), &tls)
            .with_origins(status_origins, meters::refused_status_checks(&name))
            .with_health(health.clone(), &name);
        let reports = ReportBuffer::start(
            Arc::clone(&self.broker),
            Arc::clone(open),
            (tasks, abort),
            health,
            format!("{name}: reports"),
        );
        Shared {
            identity: Arc::new(WorkerIdentity {
                name: name.into(),
                version: version.into(),
                service_path,
                route,
                zero_progress,
                clock,
                process: ProcessName::of_this_process(),
            }),
            broker: Arc::clone(&self.broker),
            reports,
            job_service,
            gauges: Arc::default(),
            bundling: Arc::new(Bundling {
                most: bundle.min(MAX_BUNDLE),
                tasks: tasks.clone(),
                ..Bundling::default()
            }),
            reserved: Arc::new(self.settings.all_reserved_pipes()),
            has_paused_pipe: self.settings.paused.is_some(),
            retry,
            counters,
            running: Arc::default(),
            memos: None,
            shutdown: CancellationToken::new(),
        }
    }
}

impl<H: BatchHandler> WorkerService<H> {
    /// Runs until the process is asked to stop (`SIGTERM` or Ctrl-C), then stops as
    /// [`Self::run_until`] does.
    pub async fn run(self) -> Result<(), RuntimeError> {
        let stop = CancellationToken::new();
        let asked = async {
            stop_signal().await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.run_until(stop.clone()) => ended,
            () = asked => Ok(()),
        }
    }

    /// Runs until `stop` is cancelled or the broker is closed, then stops in two steps.
    ///
    /// First it takes no new deliveries and waits [`Settings::drain`] for the running tasks. Then
    /// it cancels them and waits [`Settings::abort`]. Deliveries that are unsettled after that go
    /// back to the broker.
    ///
    /// # Errors
    ///
    /// Returns an error if the runtime cannot start, because the broker or the address to listen on
    /// cannot be used, and if the process gives up ([`Settings::health`]).
    pub async fn run_until(self, stop: CancellationToken) -> Result<(), RuntimeError> {
        let Self {
            runtime,
            make_handler,
            unavailable,
            answerer,
        } = self;
        let (tasks, open) = (TaskTracker::new(), Arc::<OpenDeliveries>::default());
        let in_flight = InFlight::new(runtime.settings.concurrency);
        let shared = runtime.shared(&open, &tasks, &in_flight.abort);
        let Runtime {
            settings,
            broker,
            owns_broker,
        } = runtime;
        let listener = match settings.listen {
            Some(address) => Some(
                telemetry::bind(address)
                    .await
                    .map_err(RuntimeError::Listen)?,
            ),
            None => None,
        };
        let handler = make_handler(shared.clone());
        let window = windows(&handler, &settings, &*broker);
        let single = broker.consume(&settings.input, window.size()).await?;
        let bundles = if handler.takes_bundles() {
            consume_bundles(&*broker, &settings, window.size()).await?
        } else {
            None
        };
        info!(
            worker = settings.name,
            input = settings.input,
            output = settings.output,
            broker = broker.kind(),
            "taking deliveries"
        );
        let _measured = telemetry::measure(
            &settings,
            shared.counters.clone(),
            Arc::clone(&open),
            Arc::clone(&broker),
            in_flight.slots(),
        );
        let teller = Teller::of(
            &settings,
            &shared,
            Arc::clone(&open),
            in_flight.slots(),
            unavailable.clone(),
        );
        let shutdown = shared.shutdown.clone();
        let pipeline = Arc::new(pipeline(handler, &settings, shared, open, &in_flight));
        let (consuming, is_consuming) = watch::channel(true);
        // Ends the side tasks, which work until the last delivery is settled.
        let end = CancellationToken::new();
        let unready = tell_unready(&pipeline, &settings);
        let _watched = watch_for_lags(&settings, Arc::clone(&pipeline.counters.begun));
        if let Some(listener) = listener {
            serve_health(&pipeline, &settings, listener, is_consuming, &end, &tasks);
        }
        listen_to_announcements(&pipeline, &settings, &end, &tasks);
        tell_of_worker(teller, &settings, &end, &tasks);
        answer_questions(answerer, &pipeline, &settings, &stop, &tasks);
        let bundles = bundles
            .map(|consumer| Bundles::new(consumer, OnTheirOwn::of(&pipeline), window.size()));
        let taken = Taken::by(Intake::of(single, bundles), window);
        let taking = take_deliveries(&pipeline, &in_flight, taken, unavailable, &settings, &stop);
        let given_up = tokio::select! {
            // First, because a broker that gives up also ends the taking of deliveries.
            biased;
            reason = settings.health.given_up() => Some(reason),
            _ = stop.run_until_cancelled(taking) => settings.health.given_up_now(),
        };
        consuming.send_replace(false);
        drop((pipeline, unready));
        in_flight.drain(&settings, &shutdown).await;
        end.cancel();
        tasks.close();
        let _ = tokio::time::timeout(settings.abort, tasks.wait()).await;
        if owns_broker {
            broker.close().await;
            trace::flush().await;
        }
        log::flush();
        given_up
            .or_else(|| settings.health.given_up_now())
            .map_or(Ok(()), |reason| Err(RuntimeError::GaveUp(reason)))
    }
}

/// Returns the value of a setting, or its default.
#[cfg(feature = "amqp")]
fn value(variables: &Variables, name: &str, default: &str) -> Result<EnvValue, SettingsError> {
    let found = Settings::find(variables, name)?;
    Ok(found.unwrap_or_else(|| EnvValue {
        value: default.to_owned(),
        from: "the default".to_owned(),
    }))
}

#[cfg(feature = "amqp")]
fn parsed<T: FromStr<Err: fmt::Display>>(
    variables: &Variables,
    name: &str,
    default: &str,
) -> Result<T, SettingsError> {
    let EnvValue { value, from } = value(variables, name, default)?;
    let parsed = value.parse();
    parsed.map_err(|error: T::Err| SettingsError::invalid(name, &from, &value, &error.to_string()))
}

/// Takes deliveries, and quarantined messages beside them, until the broker is closed.
async fn take_deliveries<H: BatchHandler>(
    pipeline: &Arc<Pipeline<H>>,
    in_flight: &InFlight,
    taken: Taken,
    unavailable: watch::Receiver<Option<String>>,
    settings: &Settings,
    stop: &CancellationToken,
) {
    let (health, name) = (&settings.health, &settings.name);
    let (deliveries, quarantine) = (format!("{name}: deliveries"), format!("{name}: quarantine"));
    let taken = Mutex::new(taken);
    let take = || async {
        let mut taken = taken.lock().await;
        in_flight
            .consume(pipeline, &mut taken, unavailable.clone())
            .await;
    };
    let isolate = || quarantine_loop::run(pipeline, in_flight);
    tokio::select! {
        _ = supervise(health, &deliveries, stop, take) => {}
        _ = supervise(health, &quarantine, stop, isolate) => {}
    }
}

/// Returns how many deliveries of this broker the handler holds.
fn windows(handler: &impl BatchHandler, settings: &Settings, broker: &dyn Broker) -> Windows {
    let slots = u32::try_from(settings.concurrency).unwrap_or(u32::MAX);
    let most = settings.prefetch.unwrap_or(RESIZABLE_TO);
    match (settings.prefetch, handler.max_bytes()) {
        // While a batch is handled, the next one arrives.
        (_, Some(bytes)) => Windows::ByBytes(ByteWindow::new(bytes.saturating_mul(2), most)),
        (None, None) if handler.max_batch() == 1 => {
            Windows::ByTime(Window::new(slots, broker.largest_prefetch()))
        }
        // A handler of batches takes what there is.
        _ => Windows::Fixed(most),
    }
}

/// Tells the health checks of the whole process why the handler cannot work, while it cannot.
fn tell_unready<H: BatchHandler>(pipeline: &Arc<Pipeline<H>>, settings: &Settings) -> Source {
    // Weak: the end of the pipeline is the end of the report buffer.
    let (weak, name) = (Arc::downgrade(pipeline), settings.name.clone());
    settings.health.ask(move || {
        let reason = weak.upgrade()?.handler.unready_reason()?;
        let name = name.clone();
        Some(Trouble { name, reason })
    })
}

/// Tells health checks and metrics what lags: deliveries that are open for long, and full pipes.
fn watch_for_lags(settings: &Settings, begun: Arc<Begun>) -> [Watch; 2] {
    let Settings {
        health,
        name,
        old_delivery: limit,
        ..
    } = settings.clone();
    let worker = name.clone();
    let old = health.watch("old-delivery", name, move || {
        let age = begun.oldest();
        (!age.is_zero() && age >= limit).then(|| {
            let (age, limit) = (age.as_secs(), limit.as_secs());
            format!("{worker} has worked on a delivery for {age} s (the limit is {limit} s); look whether its task hangs")
        })
    });
    [old, health.watch("full-pipe", "broker", full_pipes)]
}

fn pipeline<H: BatchHandler>(
    handler: H,
    settings: &Settings,
    shared: Shared,
    open: Arc<OpenDeliveries>,
    in_flight: &InFlight,
) -> Pipeline<H> {
    Pipeline {
        quarantine: Quarantine::of(&settings.input, handler.gives_up()),
        handler,
        pipes: Pipes {
            input: settings.input.clone(),
            invalid: settings.invalid.clone(),
            paused: settings.paused.clone(),
        },
        identity: shared.identity,
        max_body: settings.max_body,
        reserved: shared.reserved,
        job_service: shared.job_service,
        reports: shared.reports,
        results: Results::new(
            Arc::clone(&shared.broker),
            Arc::clone(&open),
            (Arc::clone(&shared.bundling.readers), shared.bundling.most),
            (in_flight.tasks.clone(), in_flight.abort.clone()),
        ),
        broker: shared.broker,
        open,
        retry: shared.retry,
        counters: shared.counters,
        discards: Discards::of(&settings.name),
        running: in_flight.tasks.clone(),
        shutdown: shared.shutdown,
        abort: in_flight.abort.clone(),
    }
}

fn serve_health<H>(
    pipeline: &Pipeline<H>,
    settings: &Settings,
    listener: TcpListener,
    is_consuming: watch::Receiver<bool>,
    end: &CancellationToken,
    tasks: &TaskTracker,
) {
    let health = settings.health.clone();
    let endpoint = Endpoint {
        listener: Arc::new(listener),
        checks: Checks {
            worker: settings.name.clone(),
            broker: Arc::clone(&pipeline.broker),
            health: health.clone(),
            is_consuming,
        },
    };
    let (name, end) = (format!("{}: health endpoint", settings.name), end.clone());
    tasks.spawn(
        async move { supervise(&health, &name, &end, || endpoint.serve(end.clone())).await },
    );
}

fn listen_to_announcements<H>(
    pipeline: &Pipeline<H>,
    settings: &Settings,
    end: &CancellationToken,
    tasks: &TaskTracker,
) {
    let (client, broker) = (pipeline.job_service.clone(), Arc::clone(&pipeline.broker));
    let (health, end) = (settings.health.clone(), end.clone());
    let name = format!("{}: announcements", settings.name);
    tasks.spawn(
        async move { supervise(&health, &name, &end, || client.listen(&*broker, &end)).await },
    );
}

/// Tells the job services of this worker, if the broker can.
fn tell_of_worker(
    teller: Teller,
    settings: &Settings,
    end: &CancellationToken,
    tasks: &TaskTracker,
) {
    if !teller.can_tell() {
        return;
    }
    let (health, end) = (settings.health.clone(), end.clone());
    let name = format!("{}: signs of life", settings.name);
    tasks.spawn(async move { supervise(&health, &name, &end, || teller.run(&end)).await });
}

/// Answers questions about tasks of the worker, if it answers any and the broker carries them. It
/// ends with the taking of deliveries.
fn answer_questions<H>(
    answerer: Option<Arc<dyn Answerer>>,
    pipeline: &Pipeline<H>,
    settings: &Settings,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) {
    let Some(answerer) = answerer.filter(|_| pipeline.broker.carries_queries()) else {
        return;
    };
    let (health, stop) = (settings.health.clone(), stop.clone());
    let name = format!("{}: questions", settings.name);
    let questions = Questions {
        broker: Arc::clone(&pipeline.broker),
        input: settings.input.clone(),
        answerer,
        reserved: Arc::clone(&pipeline.reserved),
        health: health.clone(),
        name: format!("{}: an answer", settings.name).into(),
    };
    tasks.spawn(async move { supervise(&health, &name, &stop, || questions.run(&stop)).await });
}

/// Waits until the process is asked to stop: `SIGTERM` or Ctrl-C.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminate => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

impl<H> fmt::Debug for WorkerService<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerService")
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "amqp"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn main_prints_what_is_wrong_at_the_start_as_a_sentence_with_the_remedy() {
        for (name, value, text) in [
            (
                "BROKER",
                "http://rabbit",
                "is \"http://rabbit\": Invalid AMQP scheme: http; expected a URL like amqp://user:password@host:5672/%2f",
            ),
            (
                "BROKER",
                "amqp://ann:secret@ho st",
                "is \"amqp://ann:***@ho st\": invalid domain character; expected a URL like amqp://user:password@host:5672/%2f",
            ),
            (
                "QUEUE_TYPE",
                "fast",
                "is \"fast\": \"fast\" is not a queue type; expected quorum or classic",
            ),
            (
                "MAX_PRIORITY",
                "256",
                "is \"256\": number too large to fit in target type; set it to x-max-priority of classic queues, if others declare them with \
                 it; 0 to 255",
            ),
            (
                "OTLP_ENDPOINT",
                "nowhere",
                "is refused: it is not the URL of a collector; expected one like http://localhost:4318",
            ),
            (
                "NAEM",
                "w",
                "is not a setting of a worker; did you mean BATCHWRIGHT_NAME?",
            ),
            (
                "TLS_CA",
                "/no/such",
                "names /no/such, which cannot be read: No such file or directory (os error 2)",
            ),
        ] {
            let name = format!("BATCHWRIGHT_{name}");
            let variables = Variables::new([(name.clone(), value.to_owned())]);
            let error = Runtime::from_variables(&variables).unwrap_err();
            assert_eq!(format!("{error:?}"), format!("the variable {name} {text}"));
            let boxed: Box<dyn std::error::Error> = error.into();
            assert!(format!("{boxed:?}").starts_with("the variable "));
        }
        let listen = telemetry::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let taken = listen.local_addr().unwrap();
        let error = RuntimeError::Listen(telemetry::bind(taken).await.unwrap_err());
        let expected = format!(
            "cannot listen on {taken}: Address already in use (os error 98); stop the process that uses the port, or choose another address \
             (BATCHWRIGHT_LISTEN)"
        );
        assert_eq!(format!("{error:?}"), expected);
    }
}
