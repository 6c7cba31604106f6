//! Whether a PostgreSQL database of somebody else answers.

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::error::Cause;

/// Connects to a database and asks for a constant. The caller bounds the time.
///
/// # Errors
/// Why it does not answer; never with the password.
pub async fn answers(url: &str) -> Result<(), String> {
    let text = |error: sqlx::Error| Cause::from(error).to_string();
    let options: PgConnectOptions = url.parse().map_err(text)?;
    let mut connection = options
        .application_name("batchwright condition")
        .connect()
        .await
        .map_err(text)?;
    sqlx::query("select 1")
        .execute(&mut connection)
        .await
        .map_err(text)?;
    // The answer is what matters.
    let _ = sqlx::Connection::close(connection).await;
    Ok(())
}
