//! Opens the database: the first connection, the schema and the migrations.
//!
//! A database that is unavailable is tried again until it responds. One that can never be used is
//! an error at once, or ends the attempts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contract::rest::ErrorCode;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{CONNECT_LIMIT, SCHEMA, encryption};
use crate::db::{DbError, Result, migrations};
use crate::error::{Cause, StoreError};
use crate::{Availability, masked};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The database, as the sessions and the listener share it.
#[derive(Debug)]
pub struct Database {
    pub options: PgConnectOptions,
    pub pool: PgPool,
    location: String,
    is_open: AtomicBool,
    availability: watch::Sender<Availability>,
}

impl Database {
    /// Returns a database that is not open yet.
    pub fn new(url: &str, options: PgConnectOptions, pool: PgPool) -> Self {
        let availability = watch::Sender::new(Availability::Unavailable(
            "it has not been opened yet".to_owned(),
        ));
        Self {
            options,
            pool,
            location: masked(url),
            is_open: AtomicBool::new(false),
            availability,
        }
    }

    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// Returns an error unless the database is open. Before that its tables may be of another
    /// version.
    pub fn check_open(&self) -> Result<()> {
        if self.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.away())
    }

    pub fn is_away(&self) -> bool {
        *self.availability.borrow() != Availability::Available
    }

    /// Returns the error of an operation while the database cannot be used.
    pub fn away(&self) -> DbError {
        match &*self.availability.borrow() {
            Availability::Unusable(error) => DbError::Refused(error.to_string().into()),
            Availability::Unavailable(reason) => DbError::Unavailable(reason.as_str().into()),
            Availability::Available => DbError::Unavailable("no response".into()),
        }
    }

    /// Connects, creates the schema if it is missing, and applies migrations.
    pub async fn open(&self) -> Result<(), StoreError> {
        self.first_connection().await?;
        self.make_schema().await?;
        migrations::postgres()
            .run(&self.pool)
            .await
            .map_err(|error| match error {
                sqlx::migrate::MigrateError::Execute(error) => self.opening(error),
                error => StoreError::unusable(&self.location, error),
            })?;
        self.is_open.store(true, Ordering::Release);
        self.available();
        Ok(())
    }

    /// Opens the database as soon as it responds. Returns false if it can never be used.
    pub async fn open_when_possible(&self, mut error: StoreError) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            match error {
                StoreError::Unavailable(reason) => self.unavailable(&reason.to_string()),
                error => {
                    // Not logged here: `Store::unusable` and every operation return the error.
                    self.availability
                        .send_replace(Availability::Unusable(error));
                    return false;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.open().await {
                Ok(()) => return true,
                Err(again) => error = again,
            }
        }
    }

    /// Publishes that the database is unavailable. Logs it once, however often it is found.
    pub fn unavailable(&self, reason: &str) {
        let is_news = self
            .availability
            .send_if_modified(|availability| match availability {
                Availability::Unusable(_) => false,
                Availability::Unavailable(known) if known == reason => false,
                _ => {
                    *availability = Availability::Unavailable(reason.to_owned());
                    true
                }
            });
        if is_news {
            tracing::warn!(
                database = self.location,
                reason,
                code = ErrorCode::DatabaseUnavailable.as_str(),
                "the database is not available; trying again until it is"
            );
        }
    }

    /// Publishes that the database can never be used by this process.
    pub fn give_up(&self, reason: &str) {
        let error = StoreError::unusable(&self.location, reason);
        self.availability
            .send_replace(Availability::Unusable(error));
    }

    pub fn available(&self) {
        let was = self.availability.send_replace(Availability::Available);
        if was != Availability::Available {
            tracing::info!(database = self.location, "connected to the database");
        }
    }

    /// Connects once without the pool, whose only error is that it has no connection.
    async fn first_connection(&self) -> Result<(), StoreError> {
        let Ok(connected) = timeout(CONNECT_LIMIT, self.options.connect()).await else {
            return Err(StoreError::Unavailable(
                format!(
                    "{}: no response within {} s",
                    self.location,
                    CONNECT_LIMIT.as_secs()
                )
                .into(),
            ));
        };
        let connection = connected.map_err(|error| self.opening(error))?;
        connection
            .close()
            .await
            .map_err(|error| self.opening(error))
    }

    /// Creates the schema if it is missing. An administrator may have created it for a user who has
    /// no right to.
    async fn make_schema(&self) -> Result<(), StoreError> {
        let opening = |error| self.opening(error);
        let is_there = async || {
            let find =
                sqlx::query_scalar("select exists (select from pg_namespace where nspname = $1)")
                    .bind(SCHEMA);
            find.fetch_one(&self.pool).await.map_err(opening)
        };
        if is_there().await? {
            return Ok(());
        }
        match sqlx::query(AssertSqlSafe(format!(
            "create schema if not exists {SCHEMA}"
        )))
        .execute(&self.pool)
        .await
        {
            Ok(_) => Ok(()),
            // Another process may have made it at the same moment.
            Err(_) if is_there().await? => Ok(()),
            Err(error)
                if error
                    .as_database_error()
                    .and_then(DatabaseError::code)
                    .as_deref()
                    == Some("42501") =>
            {
                let user = self.options.get_username();
                let reason = format!(
                    "{error}; an administrator can make it: create schema {SCHEMA} authorization {user}"
                );
                let reason = Cause::from(error).with_message(reason);
                Err(StoreError::unusable(&self.location, reason))
            }
            Err(error) => Err(opening(error)),
        }
    }

    fn opening(&self, error: sqlx::Error) -> StoreError {
        let location = &self.location;
        match DbError::from(error) {
            DbError::Refused(cause) => StoreError::unusable(location, with_remedy(cause)),
            DbError::Contention(cause) | DbError::Locked(cause) | DbError::Unavailable(cause) => {
                let cause = with_remedy(cause);
                let text = cause.to_string();
                let message = match encryption::remedy(&text) {
                    Some(remedy) => format!("{location}: {remedy} ({text})"),
                    None => format!("{location}: {text}"),
                };
                StoreError::Unavailable(cause.with_message(message))
            }
        }
    }
}

/// Adds to the reason why a server lets nobody in what can be done about it.
fn with_remedy(cause: Cause) -> Cause {
    let text = cause.to_string();
    match remedy(cause.code(), &text) {
        Some(remedy) => cause.with_message(format!("{text}; {remedy}")),
        None => cause,
    }
}

fn remedy(code: Option<&str>, text: &str) -> Option<&'static str> {
    match code {
        Some("28000" | "28P01") => Some("check the user name and the password in its URL"),
        Some("3D000") => {
            Some("correct the name at the end of its URL, or make the database: createdb NAME")
        }
        None if text.contains("Connection refused") => {
            Some("start the database, or correct host and port in its URL")
        }
        None if text.contains("failed to lookup address") => Some("correct the host in its URL"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_why_a_server_lets_nobody_in_has_a_remedy() {
        for (code, text, expected) in [
            (Some("28P01"), "password authentication failed", "password"),
            (Some("28000"), "role \"ann\" does not exist", "user name"),
            (
                Some("3D000"),
                "database \"jobs\" does not exist",
                "createdb NAME",
            ),
            (
                None,
                "Connection refused (os error 111)",
                "start the database",
            ),
            (
                None,
                "failed to lookup address information",
                "correct the host",
            ),
        ] {
            assert!(remedy(code, text).unwrap().contains(expected), "{text}");
        }
        assert_eq!(remedy(Some("40001"), "Connection refused"), None);
        assert_eq!(remedy(None, "the connection broke"), None);
    }
}
