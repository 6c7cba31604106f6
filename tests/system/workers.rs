//! The workers of the stories: a closure that does an item, and a gate that holds items back.

use std::sync::Arc;
use std::time::Duration;

use contract::RangeItem;
use framework::{Context, Reply, TaskError, Worker};
use tokio::sync::Semaphore;

/// Does each item as a closure says, which is given a clone of what it needs.
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

/// Answers each item with itself.
pub fn echo() -> impl Worker {
    Each((), async |(), item, _| Ok(Reply::send(item)))
}

/// Answers each item with itself when the gate has let it through.
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

    /// Lets so many items through.
    pub fn admit(&self, items: usize) {
        self.0.add_permits(items);
    }

    /// Lets every item through from now on.
    pub fn open(&self) {
        self.0.close();
    }

    /// Waits to be let through, or until nobody wants the item any more.
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
