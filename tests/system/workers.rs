//! The workers of the stories: a closure that processes an item, and a gate that holds items back.

use std::sync::Arc;
use std::time::Duration;

use contract::RangeItem;
use framework::{Context, Reply, TaskError, Worker};
use tokio::sync::Semaphore;

/// Processes each item with a closure, which gets a clone of the state.
pub struct Each<S, F>(pub S, pub F);

impl<S, F, A> Worker for Each<S, F>
where
    S: Clone + Send + Sync + 'static,
    F: Fn(S, RangeItem, Context) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Reply<RangeItem>, TaskError>> + Send,
{
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        (self.1)(self.0.clone(), item, ctx).await
    }
}

/// Sends each item on unchanged.
pub fn echo() -> impl Worker {
    Each((), async |(), item, _| Ok(Reply::send(item)))
}

/// Sends each item on unchanged once the gate lets it through.
pub fn gated(gate: &Gate) -> impl Worker + use<> {
    Each(gate.clone(), async |gate: Gate, item, ctx| {
        gate.pass(&ctx).await?;
        Ok(Reply::send(item))
    })
}

/// Holds items back. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets this many more items through.
    pub fn admit(&self, items: usize) {
        self.0.add_permits(items);
    }

    /// Lets every item through from now on.
    pub fn open(&self) {
        self.0.close();
    }

    /// Waits until the gate lets the item through, or its job is cancelled.
    pub async fn pass(&self, ctx: &Context) -> Result<(), TaskError> {
        loop {
            ctx.check_cancelled()?;
            match tokio::time::timeout(Duration::from_millis(50), self.0.acquire()).await {
                Ok(Ok(permit)) => {
                    permit.forget();
                    return Ok(());
                }
                Ok(Err(_opened)) => return Ok(()),
                Err(_) => {}
            }
        }
    }
}
