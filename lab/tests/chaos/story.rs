//! A story: a system of the product on servers that the stories share, and its end.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use batchwright_lab::chaos::{Ground, ItemOptions, Server, Servers, System, SystemOptions};
use contract::TrackingShards;
use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker as _, Outgoing};
use futures_util::FutureExt as _;
use harness::{HttpClient, Proxy, Scrape, in_time};
use parking_lot::Mutex;
use reqwest::Method;
use tokio::sync::MutexGuard;

use crate::{LABORATORY, SIZE};

/// How long a story waits for progress, in addition to the duration of its faults.
const PATIENCE: Duration = Duration::from_mins(3);

/// The servers, which all stories share. A story that fails does not return them.
static SERVERS: tokio::sync::Mutex<Option<Servers>> = tokio::sync::Mutex::const_new(None);

/// A system, and its turn on the servers.
pub struct Story {
    system: System,
    /// How long the job paused after each fault.
    pauses: Mutex<Vec<String>>,
    turn: MutexGuard<'static, Option<Servers>>,
}

/// Runs a whole story: starts a job, runs `faults` beside it, and checks its end.
pub async fn story(name: &str, faults: impl AsyncFnOnce(&Story)) {
    let story = Story::begin(SIZE.items, max_depth()).await;
    story.start_all().unwrap();
    story.runs(faults(&story)).await;
    story.end(name).await;
}

/// Returns a small depth, so that batches are split throughout the story and not all at the
/// beginning.
pub fn max_depth() -> u64 {
    (SIZE.items / 20).max(50)
}

/// Puts a message into the pipe of the outputs, as an earlier job may have left one. It counts for
/// no story.
async fn leave_an_output(servers: &Servers) {
    let broker = Amqp::connect(AmqpOptions::new(servers.rabbitmq.url())).unwrap();
    broker.connected(PATIENCE).await.unwrap();
    let left = Outgoing::new("chaos-items-out", "left".as_bytes().to_vec());
    broker.publish(left).await.unwrap();
    broker.close().await;
}

impl Story {
    /// Waits for the turn of this story and prepares servers and processes, without starting a
    /// process. Batches are not split while more than `max_depth` items wait.
    pub async fn begin(items: u64, max_depth: u64) -> Self {
        Self::prepare(items, max_depth, false).await
    }

    /// As [`begin`](Self::begin). The service keeps the outputs of the items.
    pub async fn keeping_outputs() -> Self {
        Self::prepare(SIZE.items, max_depth(), true).await
    }

    async fn prepare(items: u64, max_depth: u64, keep_outputs: bool) -> Self {
        let mut turn = SERVERS.lock().await;
        let servers = match turn.take() {
            Some(servers) => servers,
            None => Servers::start().await.unwrap(),
        };
        leave_an_output(&servers).await;
        let is_short = items < 20_000;
        let options = SystemOptions {
            product: SIZE.product.clone(),
            laboratory: LABORATORY.into(),
            items,
            workers: 1,
            work: ItemOptions {
                // A short job takes long enough for its faults.
                work: if is_short { 2 } else { 0 },
                concurrency: 2,
                prefetch: is_short.then_some(100),
                blocked: 0,
                given_up: 0,
                tracking_shards: TrackingShards::ONE,
                keep_outputs,
            },
            pipes: "chaos".to_owned(),
            // A short story cannot wait as long as an experiment until a client notices a lost
            // network.
            heartbeat: if SIZE.hole < Duration::from_secs(30) {
                2
            } else {
                60
            },
            patience: PATIENCE + SIZE.outage + SIZE.hole,
            max_depth,
            keep: false,
        };
        let system = System::begin(Ground::Own(servers), options).await.unwrap();
        Self {
            system,
            pauses: Mutex::default(),
            turn,
        }
    }

    /// Runs the job with these faults, until it has ended. If it does not, or a fault panics,
    /// prints what the roles have logged.
    pub async fn runs(&self, faults: impl Future<Output = ()>) {
        let job = async {
            self.submit().await?;
            let faults = AssertUnwindSafe(faults).catch_unwind();
            faults.await.unwrap_or_else(|panic| {
                eprintln!("{}", self.all_logs());
                resume_unwind(panic)
            });
            self.system.ended().await.map(drop)
        };
        let ended = tokio::select! {
            ended = job => ended,
            stalled = self.follow() => stalled,
        };
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", self.all_logs()));
    }

    /// Waits until this share of the job is done. The job must not have ended by then.
    pub async fn reached(&self, share: f64) {
        let runs = self.system.reached(share).await.unwrap();
        assert!(runs, "the job ended before its fault");
    }

    /// Waits until the job makes progress, and records how long that took.
    pub async fn resumes(&self, after: &str) {
        let pause = self.system.resumes(after).await.unwrap().as_secs_f64();
        self.pauses.lock().push(format!("{after} {pause:.1} s"));
    }

    /// Kills a role as `kill -9` does and starts it again at once, as a supervisor does.
    pub async fn kill_and_start(&self, role: &str) {
        self.system
            .kill_and_start(role, Duration::ZERO)
            .await
            .unwrap();
        self.resumes(&format!("{role} killed")).await;
    }

    /// Returns the servers.
    pub fn servers(&self) -> &Servers {
        match self.ground() {
            Ground::Own(servers) => servers,
            other => panic!("a story has servers, not {other:?}"),
        }
    }

    /// Returns the network in front of a server.
    pub fn network(&self, server: Server) -> &Proxy {
        self.proxy(server).unwrap()
    }

    /// Asks a role for its health check `kind`, ALIVE or READY. Returns the status code and the
    /// body.
    pub async fn health(&self, role: &str, kind: &str) -> Result<(u16, String), String> {
        let http = HttpClient::new(format!("http://{}", self.address(role).unwrap()));
        let path = format!("/health-check?name=all&type={kind}");
        let asked = http.request(Method::GET, &path).send();
        let answer = in_time("a health check", asked)
            .await
            .map_err(|error| error.to_string())?;
        let code = answer.status().as_u16();
        let body = answer.text().await.map_err(|error| error.to_string())?;
        Ok((code, body))
    }

    /// Reads the metrics of a role.
    pub async fn scrape(&self, role: &str) -> Scrape {
        let http = HttpClient::new(format!("http://{}", self.address(role).unwrap()));
        Scrape::read(&http.get("/metrics").await.is(200).body)
    }

    /// Stops the system and checks that the faults cost nothing.
    pub async fn end(self, name: &str) {
        let Self {
            system,
            pauses,
            mut turn,
        } = self;
        let (outcome, ground) = system.finish(true).await.unwrap();
        let pauses = pauses.into_inner().join(", ");
        let outcome_text = serde_json::to_string(&outcome).unwrap();
        eprintln!("{name}: {outcome_text}; resumed after: {pauses}");
        assert!(outcome.is_exact(), "{name}: {outcome_text}");
        if let Ground::Own(servers) = ground {
            *turn = Some(servers);
        }
    }
}

impl Deref for Story {
    type Target = System;

    fn deref(&self) -> &System {
        &self.system
    }
}
