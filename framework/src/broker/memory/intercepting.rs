//! A broker in memory that lets a test decide about each message that is published.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::Memory;
use crate::broker::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Outgoing, PipeState,
    Queries, Unanswered,
};

/// See [`Memory::intercepting`].
pub struct Intercepting<F> {
    memory: Memory,
    intercept: F,
}

impl Memory {
    /// Returns a broker with the same pipes whose messages go through this function first. It
    /// returns the message to publish it, or the confirm of one that it refuses or holds back.
    pub fn intercepting<F>(self, intercept: F) -> Intercepting<F>
    where
        F: Fn(Outgoing) -> Result<Outgoing, Confirm> + Send + Sync + 'static,
    {
        let memory = self;
        Intercepting { memory, intercept }
    }
}

impl<F: Fn(Outgoing) -> Result<Outgoing, Confirm> + Send + Sync + 'static> Broker
    for Intercepting<F>
{
    fn publish(&self, message: Outgoing) -> Confirm {
        match (self.intercept)(message) {
            Ok(message) => self.memory.publish(message),
            Err(confirm) => confirm,
        }
    }
    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        self.memory.consume(pipe, prefetch)
    }

    fn look<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Option<PipeState>, BrokerError>> {
        self.memory.look(pipe)
    }

    fn ask<'a>(
        &'a self,
        pipe: &'a str,
        question: Bytes,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Bytes, Unanswered>> {
        self.memory.ask(pipe, question, limit)
    }

    fn carries_queries(&self) -> bool {
        true
    }

    fn queries<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<Queries, BrokerError>> {
        self.memory.queries(pipe)
    }

    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.memory.depth(pipe)
    }
    fn announce(&self, body: Bytes) -> Confirm {
        self.memory.announce(body)
    }
    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        self.memory.announcements()
    }
    fn state(&self) -> BrokerState {
        self.memory.state()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.memory.close()
    }
    fn kind(&self) -> &'static str {
        self.memory.kind()
    }
}

impl<F> fmt::Debug for Intercepting<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.memory;
        f.debug_struct("Intercepting")
            .field("memory", memory)
            .finish_non_exhaustive()
    }
}
