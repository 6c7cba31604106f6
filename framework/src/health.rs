//! What this process can do at the moment. The health checks read it; everything that the process
//! runs writes to it.
//!
//! There are two kinds of trouble, because their remedies differ:
//! - An *outage*: the process cannot do a part of its work, for example because a loop begins again
//!   after a panic. It is not ready meanwhile.
//! - A *degradation*: the process works, but something grows or lags, and a person should look
//!   before it becomes an outage. The process stays ready, and says so.
//!
//! What must stay true: trouble is removed by what has reported it, as soon as it is over.

mod waiting;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use contract::metrics::DEGRADED;
use futures_util::FutureExt as _;
use futures_util::future::ready;
use metrics::gauge;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

pub use self::waiting::{PieceOfWork, Waiting};
use crate::meters::{self, Measurement, on_scrape};

/// What this process can do at the moment. Clones share their state: give the same one to
/// everything in a process.
#[derive(Clone, Default)]
pub struct Health(Arc<Shared>);

/// One trouble of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The loop, the part or the kind of trouble, for example `outbox`.
    pub name: String,
    /// What is wrong, for people.
    pub reason: String,
}

/// Ends an outage when it is dropped.
#[must_use = "the outage ends when this is dropped"]
pub struct Outage {
    health: Health,
    number: u64,
}

/// Removes a source of outages when it is dropped.
#[must_use = "the source is removed when this is dropped"]
pub struct Source {
    health: Health,
    number: u64,
}

type Ask = Arc<dyn Fn() -> Option<Trouble> + Send + Sync>;

/// Looks for a degradation until this is dropped.
#[must_use = "the degradation is looked for until this is dropped"]
pub struct Watch {
    health: Health,
    number: u64,
    /// Looks at each scrape, so that the metric is right although nobody asks for the health.
    _at_scrapes: Measurement,
}

/// Something that may grow or lag.
struct Watched {
    name: &'static str,
    source: String,
    ask: Box<dyn Fn() -> Option<String> + Send + Sync>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    given_up: watch::Sender<Option<String>>,
    #[cfg(any(test, feature = "internals"))]
    plan: planned::Plan,
}

#[derive(Default)]
struct State {
    last_number: u64,
    outages: BTreeMap<u64, Trouble>,
    sources: BTreeMap<u64, Ask>,
    watched: BTreeMap<u64, Arc<Watched>>,
    /// By their name and by what has reported them.
    degradations: BTreeMap<(&'static str, String), String>,
}

impl Health {
    /// Returns what this process cannot do. It is ready if there is nothing.
    pub fn outages(&self) -> Vec<Trouble> {
        let (mut outages, sources): (Vec<_>, Vec<_>) = {
            let state = self.lock();
            (
                state.outages.values().cloned().collect(),
                state.sources.values().cloned().collect(),
            )
        };
        outages.extend(sources.iter().filter_map(|ask| ask()));
        outages.extend(self.given_up_now().map(|reason| Trouble {
            name: "process".to_owned(),
            reason,
        }));
        outages
    }

    /// Returns what grows or lags while this process works.
    pub fn degradations(&self) -> Vec<Trouble> {
        self.look();
        let state = self.lock();
        let degradations = state.degradations.iter();
        degradations
            .map(|((name, _), reason)| Trouble {
                name: (*name).to_owned(),
                reason: reason.clone(),
            })
            .collect()
    }

    /// Begins an outage. It lasts until the returned value is dropped.
    pub fn outage(&self, name: impl Into<String>, reason: impl Into<String>) -> Outage {
        let trouble = Trouble {
            name: name.into(),
            reason: reason.into(),
        };
        let mut state = self.lock();
        let number = state.next_number();
        state.outages.insert(number, trouble);
        drop(state);
        Outage {
            health: self.clone(),
            number,
        }
    }

    /// Adds a source that returns its outage, if it has one, whenever the health is read.
    pub fn ask(&self, source: impl Fn() -> Option<Trouble> + Send + Sync + 'static) -> Source {
        let mut state = self.lock();
        let number = state.next_number();
        state.sources.insert(number, Arc::new(source));
        drop(state);
        Source {
            health: self.clone(),
            number,
        }
    }

    /// Records that something grows or lags, until [`Self::recover`] is called with the same name
    /// and source. The name, for example `outbox`, is the label of the metric
    /// `batchwright_degraded`; the source tells apart what reports it.
    pub fn degrade(&self, name: &'static str, source: &str, reason: impl Into<String>) {
        self.lock().set(name, source, Some(reason.into()));
    }

    /// Looks for a degradation ([`Self::degrade`]) whenever the health or the metrics are read:
    /// `ask` returns the reason.
    pub fn watch(
        &self,
        name: &'static str,
        source: impl Into<String>,
        ask: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Watch {
        let watched = Arc::new(Watched {
            name,
            source: source.into(),
            ask: Box::new(ask),
        });
        let mut state = self.lock();
        let number = state.next_number();
        state.watched.insert(number, watched);
        drop(state);
        let health = self.clone();
        Watch {
            health: self.clone(),
            number,
            _at_scrapes: on_scrape(move || {
                health.look();
                ready(()).boxed()
            }),
        }
    }

    /// Asks what is watched.
    fn look(&self) {
        let watched = self.lock().watched.clone();
        for (number, watched) in watched {
            let reason = (watched.ask)();
            let mut state = self.lock();
            // It may have ended meanwhile.
            if state.watched.contains_key(&number) {
                state.set(watched.name, &watched.source, reason);
            }
        }
    }

    /// Records that a degradation is over.
    pub fn recover(&self, name: &'static str, source: &str) {
        self.lock().set(name, source, None);
    }

    /// Records that this process cannot go on. It must end, so that a supervisor starts it again.
    pub fn give_up(&self, reason: impl Into<String>) {
        // The first reason is the cause of the others.
        self.0.given_up.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| reason.into());
            is_first
        });
    }

    /// Returns why this process cannot go on, if it cannot.
    pub fn given_up_now(&self) -> Option<String> {
        self.0.given_up.borrow().clone()
    }

    /// Returns once this process cannot go on, and why.
    pub async fn given_up(&self) -> String {
        let mut given_up = self.0.given_up.subscribe();
        let reason = given_up.wait_for(Option::is_some).await;
        let reason = reason.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // The sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Records a degradation, or that it is over.
    fn set(&mut self, name: &'static str, source: &str, reason: Option<String>) {
        // Most calls find nothing, and must cost next to nothing.
        if reason.is_none() && self.degradations.is_empty() {
            return;
        }
        let key = (name, source.to_owned());
        let (is_degraded, before) = match reason {
            Some(reason) => (true, self.degradations.insert(key, reason)),
            None => (false, self.degradations.remove(&key)),
        };
        if is_degraded != before.is_some() {
            self.show(name);
        }
    }

    /// Shows in the metric how many sources report a degradation of this name.
    fn show(&self, name: &'static str) {
        let sources = self.degradations.keys().filter(|(known, _)| *known == name);
        let count = u32::try_from(sources.count()).unwrap_or(u32::MAX);
        meters::install();
        gauge!(DEGRADED, "reason" => name).set(count);
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.health.lock().outages.remove(&self.number);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // What the source captures may have a destructor that needs the lock.
        let source = self.health.lock().sources.remove(&self.number);
        drop(source);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // What is asked may have a destructor that needs the lock.
        let watched = self.health.lock().watched.remove(&self.number);
        if let Some(watched) = watched {
            self.health.recover(watched.name, &watched.source);
        }
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}

impl fmt::Debug for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outage")
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// Panics that a test plans for the supervised loops of this process.
#[cfg(any(test, feature = "internals"))]
mod planned {
    use std::collections::{BTreeMap, BTreeSet};

    use parking_lot::{Mutex, MutexGuard};
    use tokio::sync::Notify;

    use super::Health;

    #[derive(Default)]
    pub(super) struct Plan {
        state: Mutex<State>,
        changed: Notify,
    }

    #[derive(Default)]
    struct State {
        /// How often each supervised loop has begun.
        begun: BTreeMap<String, u32>,
        panics: BTreeSet<String>,
    }

    impl Health {
        /// Makes the supervised loop of this name panic once, now if it runs, otherwise when it
        /// begins.
        pub fn plan_panic(&self, name: &str) {
            self.plan().panics.insert(name.to_owned());
            self.0.plan.changed.notify_waiters();
        }

        /// Returns how often each supervised loop of this process has begun.
        pub fn loops(&self) -> BTreeMap<String, u32> {
            self.plan().begun.clone()
        }

        pub(crate) fn begins(&self, name: &str) {
            *self.plan().begun.entry(name.to_owned()).or_default() += 1;
        }

        /// Returns once a panic is planned for this loop.
        pub(crate) async fn planned_panic(&self, name: &str) {
            loop {
                let changed = self.0.plan.changed.notified();
                if self.plan().panics.remove(name) {
                    return;
                }
                changed.await;
            }
        }

        fn plan(&self) -> MutexGuard<'_, State> {
            self.0.plan.state.lock()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn names(troubles: &[Trouble]) -> Vec<&str> {
        troubles
            .iter()
            .map(|trouble| trouble.name.as_str())
            .collect()
    }

    #[test]
    fn trouble_is_told_until_it_is_over_and_a_degradation_is_no_outage() {
        let health = Health::default();
        let (outage, source) = (
            health.outage("relay", "it panicked"),
            health.ask(|| {
                Some(Trouble {
                    name: "worker".into(),
                    reason: "the disk is full".into(),
                })
            }),
        );
        health.degrade("outbox", "relay", "10 messages wait");
        health.degrade("outbox", "other relay", "20 messages wait");
        assert_eq!(names(&health.outages()), ["relay", "worker"]);
        assert_eq!(names(&health.degradations()), ["outbox", "outbox"]);
        drop((outage, source));
        health.recover("outbox", "relay");
        assert_eq!(health.outages(), []);
        assert_eq!(health.degradations()[0].reason, "20 messages wait");
    }

    #[test]
    fn what_is_watched_is_asked_whenever_the_health_is_read() {
        let health = Health::default();
        let lags = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&lags);
        let watch = health.watch("old-delivery", "worker", move || {
            seen.load(Ordering::Relaxed).then(|| "1500 s".to_owned())
        });
        assert_eq!(names(&health.degradations()), ["old-delivery"]);
        lags.store(false, Ordering::Relaxed);
        assert_eq!(health.degradations(), []);
        lags.store(true, Ordering::Relaxed);
        assert_eq!(names(&health.degradations()), ["old-delivery"]);
        drop(watch);
        assert_eq!(health.degradations(), []);
    }

    #[test]
    fn a_process_that_gives_up_is_not_ready_and_keeps_the_first_reason() {
        let health = Health::default();
        health.give_up("the writer panicked");
        health.give_up("the broker is closed");
        assert_eq!(
            health.given_up_now().as_deref(),
            Some("the writer panicked")
        );
        assert_eq!(health.outages()[0].reason, "the writer panicked");
    }
}
