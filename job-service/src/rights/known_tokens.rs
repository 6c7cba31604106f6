//! The tokens that this process has seen lately, so that a request seldom asks the database.
//!
//! What must stay true: a token that was revoked is refused after five seconds at the latest, in
//! every process.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use contract::rest::{Access, Token};
use framework::clock::Clock;
use moka::future::Cache;
use store::{Store, TokenRow};
use tokio::sync::watch;
use tokio::time::timeout;

use super::secret::{SecretHash, TokenSecret};
use super::subject::{Known, Subject};
use crate::http::connections::Peer;
use crate::http::{ApiError, ApiResult};

/// How long a process believes what it has read.
const BELIEVED: Duration = Duration::from_secs(5);
/// The largest number of tokens, real or not, that are remembered.
const CAPACITY: u64 = 10_000;
/// In which time, and after how many refused tokens, an address is told to wait.
const REFUSALS_WITHIN: Duration = Duration::from_mins(1);
const MOST_REFUSALS: u32 = 30;
/// How old the noted last use of a token is at the most, in milliseconds.
const USE_NOTED_EVERY: i64 = 60_000;
/// How long a request waits until it is noted.
const NOTING: Duration = Duration::from_millis(100);

/// The tokens that requests have shown lately.
#[derive(Debug)]
pub struct KnownTokens {
    store: Store,
    /// By their hashes, and how many revocations there had been.
    known: Cache<(SecretHash, u64), Option<Arc<ValidToken>>>,
    revocations: watch::Receiver<u64>,
    /// How many tokens were refused of an address lately.
    refusals: Cache<IpAddr, Arc<AtomicU32>>,
}

/// A token that is not revoked.
#[derive(Debug)]
struct ValidToken {
    subject: Arc<Subject>,
    expire_time: Option<i64>,
}

impl KnownTokens {
    pub fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            known: Cache::builder()
                .max_capacity(CAPACITY)
                .time_to_live(BELIEVED)
                .build(),
            revocations: store.token_signal(),
            refusals: Cache::builder()
                .max_capacity(CAPACITY)
                .time_to_live(REFUSALS_WITHIN)
                .build(),
        }
    }

    /// Counts a refused token of an address. Returns what that is told: why, or to wait. A valid
    /// token of the same address, which may be that of a proxy, goes on.
    pub async fn refuse(&self, peer: Option<Peer>, why: &'static str) -> ApiError {
        let Some(Peer(address)) = peer else {
            return ApiError::TokenNeeded(why);
        };
        let refusals = self
            .refusals
            .get_with(address, async { Arc::default() })
            .await;
        if refusals.fetch_add(1, Ordering::Relaxed) < MOST_REFUSALS {
            ApiError::TokenNeeded(why)
        } else {
            ApiError::TooManyRefused
        }
    }

    /// Returns the subject with this token, `None` if nobody has it.
    ///
    /// # Errors
    /// Returns 401 if the token has expired, and 503 if the database is not available.
    pub async fn subject(&self, token: &TokenSecret) -> ApiResult<Option<Arc<Subject>>> {
        let Some(id) = token.id() else {
            return Ok(None);
        };
        let hash = token.hash();
        let key = (hash, *self.revocations.borrow());
        let read = self.known.try_get_with(key, self.read(id, hash)).await;
        let Some(known) = read.map_err(|error| ApiError::Store((*error).clone()))? else {
            return Ok(None);
        };
        if known
            .expire_time
            .is_some_and(|time| Clock::system().now_millis() >= time)
        {
            return Err(ApiError::TokenNeeded("The token has expired."));
        }
        Ok(Some(Arc::clone(&known.subject)))
    }

    /// Waits until nobody has this token any more.
    pub async fn revoked(&self, token: &TokenSecret) {
        let mut revocations = self.revocations.clone();
        loop {
            // An unavailable database is no revocation.
            if matches!(
                self.subject(token).await,
                Ok(None) | Err(ApiError::TokenNeeded(_))
            ) {
                return;
            }
            if matches!(timeout(BELIEVED, revocations.changed()).await, Ok(Err(_))) {
                // The store is closed.
                return;
            }
        }
    }

    async fn read(&self, id: &str, hash: SecretHash) -> store::Result<Option<Arc<ValidToken>>> {
        let Some(row) = self.store.token(id).await?.filter(|row| hash.is(&row.hash)) else {
            return Ok(None);
        };
        let unnoted = Clock::system().now_millis() - USE_NOTED_EVERY;
        if row.used_time.is_none_or(|time| time < unnoted) {
            // A request does not wait for others that write.
            let noted = timeout(NOTING, self.store.use_token(id)).await;
            if !matches!(noted, Ok(Ok(()))) {
                tracing::debug!(token = id, "the use of a token is not noted");
            }
        }
        let expire_time = row.expire_time;
        let Token { name, access, .. } = shown(row);
        let subject = Arc::new(Subject::new(name, vec![access], Known::ByToken));
        Ok(Some(Arc::new(ValidToken {
            subject,
            expire_time,
        })))
    }
}

/// Returns a token as the API shows it. What a later version has written about its access, and this
/// one cannot read, gives no access.
pub fn shown(row: TokenRow) -> Token {
    let access: Access = serde_json::from_str(&row.access).unwrap_or_else(|error| {
        tracing::warn!(%error, token = row.id, "the access of a token cannot be read; it has none");
        Access::default()
    });
    Token {
        id: row.id,
        name: row.name,
        access,
        created_by: row.created_by,
        create_time: row.created_time,
        expire_time: row.expire_time,
        last_use_time: row.used_time,
    }
}
