//! The table `token`.

use super::session::{Session, columns};
use crate::db::Result;

const COLUMNS: &str = TokenRow::COLUMNS;

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// The beginning of the token, which is no secret.
    pub id: String,
    /// The SHA-256 of the token.
    pub hash: String,
    /// Whose it is.
    pub name: String,
    /// What its bearer may do, as JSON.
    pub access: String,
    /// Who has created it.
    pub created_by: Option<String>,
    /// When it was created.
    pub created_time: i64,
    /// From when on it is not valid any more.
    pub expire_time: Option<i64>,
    /// When it was last used, about.
    pub used_time: Option<i64>,
}

columns! {
    TokenRow { id, hash, name, access, created_by, created_time, expire_time, used_time }
}

pub async fn find(db: &mut Session, id: &str) -> Result<Option<TokenRow>> {
    let statement = db.statement(format!("select {COLUMNS} from token where id = $1"));
    db.fetch_first(statement.bind(id), TokenRow::read).await
}

/// Returns all tokens, oldest first.
pub async fn all(db: &mut Session, limit: u32) -> Result<Vec<TokenRow>> {
    let statement = db.statement(format!(
        "select {COLUMNS} from token order by created_time, id limit $1"
    ));
    db.fetch(statement.bind(i64::from(limit)), TokenRow::read)
        .await
}

pub async fn insert(db: &mut Session, token: &TokenRow) -> Result<()> {
    let statement = db
        .statement(
            "insert into token (id, hash, name, access, created_by, created_time, expire_time) values ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(token.id.as_str())
        .bind(token.hash.as_str())
        .bind(token.name.as_str())
        .bind(token.access.as_str())
        .bind(token.created_by.as_deref())
        .bind(token.created_time)
        .bind(token.expire_time);
    db.run(statement).await?;
    Ok(())
}

/// Notes that a token is used.
pub async fn touch(db: &mut Session, id: &str, time: i64) -> Result<()> {
    let statement = db.statement("update token set used_time = $2 where id = $1");
    db.run(statement.bind(id).bind(time)).await?;
    Ok(())
}

/// Deletes the tokens that are not valid any more.
pub async fn delete_expired(db: &mut Session, now: i64) -> Result<()> {
    let statement = db.statement("delete from token where expire_time <= $1");
    db.run(statement.bind(now)).await
}

/// Deletes a token. Returns whether there was one.
pub async fn delete(db: &mut Session, id: &str) -> Result<bool> {
    let statement = db.statement("delete from token where id = $1 returning 1");
    db.finds(statement.bind(id)).await
}
