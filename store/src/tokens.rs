//! Who may do what: the tokens of the service, of which only hashes are kept, and whose the jobs
//! are.
//!
//! What must stay true: who remembers a token learns within moments that it was revoked
//! ([`Store::token_signal`]).

use contract::{JobId, PartitionId};
use tokio::sync::watch;

use crate::db::run_tx::End;
pub use crate::db::sql::tokens::TokenRow;
use crate::db::{Signal, sql};
use crate::{Result, Store};

impl Store {
    /// The largest number of tokens.
    pub const MOST_TOKENS: u32 = 1000;

    /// Keeps a new token, and deletes those that are not valid any more. Its time of creation is
    /// set. Returns `None` if there are as many as may be.
    pub async fn create_token(&self, token: TokenRow) -> Result<Option<TokenRow>> {
        let token = &token;
        self.run_tx("create_token", |tx| {
            Box::pin(async move {
                let now = tx.now();
                sql::tokens::delete_expired(tx, now).await?;
                let known = sql::tokens::all(tx, Self::MOST_TOKENS).await?;
                if known.len() >= Self::MOST_TOKENS as usize {
                    return Ok(End::Rollback(None));
                }
                let token = TokenRow {
                    created_time: now,
                    ..token.clone()
                };
                sql::tokens::insert(tx, &token).await?;
                Ok(End::Commit(Some(token)))
            })
        })
        .await
    }

    /// Returns a token.
    pub async fn token(&self, id: &str) -> Result<Option<TokenRow>> {
        Ok(sql::tokens::find(&mut self.database.reader().await?, id).await?)
    }

    /// Returns all tokens, the oldest first.
    pub async fn tokens(&self) -> Result<Vec<TokenRow>> {
        let mut reader = self.database.reader().await?;
        Ok(sql::tokens::all(&mut reader, Self::MOST_TOKENS).await?)
    }

    /// Notes that a token is used now.
    pub async fn use_token(&self, id: &str) -> Result<()> {
        self.run_tx("use_token", |tx| {
            Box::pin(async move {
                let now = tx.now();
                sql::tokens::touch(tx, id, now).await?;
                Ok(End::Commit(()))
            })
        })
        .await
    }

    /// Deletes a token. Returns whether there was one.
    pub async fn revoke_token(&self, id: &str) -> Result<bool> {
        self.run_tx("revoke_token", |tx| {
            Box::pin(async move {
                if !sql::tokens::delete(tx, id).await? {
                    return Ok(End::Rollback(false));
                }
                tx.notify(Signal::Tokens);
                Ok(End::Commit(true))
            })
        })
        .await
    }

    /// Returns the owner of a job, which may have none; `None` if there is no such job.
    pub async fn owner(
        &self,
        partition: &PartitionId,
        job: &JobId,
    ) -> Result<Option<Option<String>>> {
        let mut reader = self.database.reader().await?;
        Ok(sql::jobs::owner(&mut reader, partition.as_str(), job.as_str()).await?)
    }

    /// Returns a receiver that changes whenever a token was revoked, in this process or another. A
    /// new receiver counts as changed.
    pub fn token_signal(&self) -> watch::Receiver<u64> {
        self.database.signals().receiver(Signal::Tokens)
    }
}
