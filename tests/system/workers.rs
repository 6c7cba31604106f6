//! The workers of the stories: a closure that does an item, and a gate that holds items back.

use std::sync::Arc;
use std::time::Duration;

use contract::RangeItem;
use framework::{Context, Reply, TaskError, Worker};
use tokio::sync::Semaphore;

/// Does each item as a closure says.
pub struct Each<F>(pub F);

impl<F, A> Worker for Each<F>
where
    F: Fn(RangeItem, Context) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Reply<RangeItem>, TaskError>> + Send,
{
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        (self.0)(item, ctx).await
    }
}

/// Answers each item with itself.
pub fn echo() -> impl Worker {
    Each(async |item, _| Ok(Reply::send(item)))
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
                Ok(Ok(permit)) => return Ok(permit.forget()),
                Ok(Err(_opened)) => return Ok(()),
                Err(_) => {}
            }
        }
    }
}
