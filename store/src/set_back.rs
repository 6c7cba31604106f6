//! What happens when the clock was set back while the store is open: times that are further away
//! than they can be are brought back.
//!
//! Each operation that looks at what is due does it first. A file that is opened does it, too.
//!
//! What must stay true: a clock that is set back makes no delay longer than about twice its
//! length.

use crate::db::run_tx::End;
use crate::db::{Signal, sql};
use crate::{Result, Store};

impl Store {
    /// Brings back the times of the outbox and of conditions if the clock was set back since this
    /// was done last.
    pub(crate) async fn bring_times_back(&self) -> Result<()> {
        let clock = self.database.clock();
        if !clock.was_set_back() {
            return Ok(());
        }
        let (messages, conditions) = self
            .run_tx("bring_times_back", |tx| {
                Box::pin(async move {
                    let messages = sql::outbox::bring_back(tx).await?;
                    let conditions = sql::conditions::bring_back(tx).await?;
                    tx.notify(Signal::Outbox);
                    tx.notify(Signal::Announcements);
                    tx.notify(Signal::Conditions);
                    Ok(End::Commit((messages, conditions)))
                })
            })
            .await?;
        clock.accept();
        if messages > 0 {
            tracing::warn!(
                messages,
                "the clock was set back; delayed starts wait for their delay from now"
            );
        }
        if conditions > 0 {
            tracing::warn!(
                conditions,
                "the clock was set back; conditions are tested now, and their limits count from now"
            );
        }
        Ok(())
    }
}
