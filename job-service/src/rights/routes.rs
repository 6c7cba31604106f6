//! `…/tokens`: creates, lists and revokes tokens of the service.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use contract::rest::{
    Access, AccessRole, CreatedToken, ErrorBody, ErrorCode, NewToken, Token, Tokens,
};
use serde_json::json;
use store::{Store, TokenRow};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::known_tokens::shown;
use super::secret::TokenSecret;
use super::subject::Subject;
use crate::http::{ApiError, ApiResult, BadBody, RequestBody, StoreErrors};
use crate::state::AppState;

/// The longest name of a token, in characters.
const MAX_NAME: usize = 100;

/// The names of nobody else: whoever has the operator's token, and in filters whoever asks.
const RESERVED: [&str; 2] = ["administrator", "me"];

pub fn routes() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::new()
        .routes(routes!(create_token, list_tokens))
        .routes(routes!(revoke_token))
}

/// Create a token
///
/// Returns the token with its secret, which nobody can read again. An administrator gives no more
/// than it may do itself: roles in its partitions, and the roles for the installation that it has.
///
/// Whoever sends the token in the header `Authorization: Bearer …` may do what its roles say:
/// `view`, `submit`, `operate` and `admin` in its partitions, each of which contains those before
/// it; `operator` and `metrics` for the installation.
#[utoipa::path(
    post,
    path = "/tokens",
    operation_id = "createToken",
    tag = "tokens",
    request_body(content = NewToken, description = "The token", content_type = "application/json", example = json!({
        "name": "nightly reports", "roles": ["submit"], "partitions": ["reports-*"], "expireTime": 1_798_761_600_000_i64
    })),
    responses(
        (status = 201, description = "The token, with its secret", body = CreatedToken, example = json!({
            "secret": "bw_0d3a506323d3_…", "id": "bw_0d3a506323d3", "name": "nightly reports", "roles": ["submit"], "partitions": ["reports-*"],
            "createdBy": "administrator", "createTime": 1_767_225_600_000_i64, "expireTime": 1_798_761_600_000_i64
        })),
        (status = 400, description = "The token cannot be created like this", body = ErrorBody,
            example = json!({"message": "The role 'submit' holds in partitions, and none are named."})),
        (status = 403, description = "Whoever creates the token may not do that itself", body = ErrorBody,
            example = json!({"message": "You may not give this access: you are no administrator of all these partitions, or lack a role for the installation yourself."})),
        (status = 409, description = "There are as many tokens as there may be", body = ErrorBody,
            example = json!({"message": "There are 1000 tokens, as many as there may be. Revoke one first."})),
        BadBody, StoreErrors
    )
)]
async fn create_token(
    State(state): State<Arc<AppState>>,
    body: RequestBody,
) -> ApiResult<(StatusCode, Json<CreatedToken>)> {
    let creator = administrator()?;
    let invalid = |message: String| ApiError::bad_request(ErrorCode::InvalidToken, message);
    let new: NewToken = body.parsed()?;
    let secret = TokenSecret::random();
    let row = new_row(new, &secret, creator.name()).map_err(invalid)?;
    let token = shown(row.clone());
    if !creator.may_give(&token.access) {
        let message = "You may not give this access: you are no administrator of all these partitions, or lack a role for the installation \
                       yourself.";
        return Err(ApiError::RoleNeeded(message.to_owned()));
    }
    let Some(row) = state.store.create_token(row).await? else {
        let most = Store::MOST_TOKENS;
        return Err(ApiError::Conflict(
            ErrorCode::InvalidToken,
            format!("There are {most} tokens, as many as there may be. Revoke one first."),
        ));
    };
    tracing::info!(
        token = row.id,
        name = row.name,
        by = creator.name(),
        "created a token"
    );
    let created = CreatedToken {
        secret: secret.into_text(),
        token: shown(row),
    };
    Ok((StatusCode::CREATED, Json(created)))
}

/// List tokens
///
/// Returns the tokens without their secrets, the oldest first: those that give no more than whoever
/// asks may give.
#[utoipa::path(
    get,
    path = "/tokens",
    operation_id = "listTokens",
    tag = "tokens",
    responses(
        (status = 200, description = "The tokens", body = Tokens, example = json!({"tokens": [{
            "id": "bw_0d3a506323d3", "name": "nightly reports", "roles": ["submit"], "partitions": ["reports-*"],
            "createdBy": "administrator", "createTime": 1_767_225_600_000_i64, "lastUseTime": 1_767_225_660_000_i64
        }]})),
        StoreErrors
    )
)]
async fn list_tokens(State(state): State<Arc<AppState>>) -> ApiResult<Json<Tokens>> {
    let subject = administrator()?;
    let tokens = state.store.tokens().await?.into_iter().map(shown);
    let tokens = tokens.filter(|token| subject.may_give(&token.access));
    Ok(Json(Tokens {
        tokens: tokens.collect(),
    }))
}

/// Revoke a token
///
/// Every process refuses the token within five seconds, and its event streams end.
#[utoipa::path(
    delete,
    path = "/tokens/{id}",
    operation_id = "revokeToken",
    tag = "tokens",
    params(("id" = String, Path, description = "The id of the token, which is its beginning", example = "bw_0d3a506323d3")),
    responses(
        (status = 204, description = "The token is revoked"),
        (status = 404, description = "There is no such token", body = ErrorBody,
            example = json!({"message": "There is no token 'bw_0d3a506323d3'."})),
        StoreErrors
    )
)]
async fn revoke_token(
    State(state): State<Arc<AppState>>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let subject = administrator()?;
    // What somebody may not see is not there.
    let is_seen = |row: &TokenRow| subject.may_give(&shown(row.clone()).access);
    let id: String = id
        .chars()
        .take(MAX_NAME)
        .filter(|char| *char != '\0')
        .collect();
    let found = state.store.token(&id).await?.filter(is_seen);
    if found.is_none() || !state.store.revoke_token(&id).await? {
        let message = format!("There is no token '{id}'.");
        return Err(ApiError::NotFound(ErrorCode::TokenNotFound, message));
    }
    tracing::info!(token = id, by = subject.name(), "revoked a token");
    Ok(StatusCode::NO_CONTENT)
}

/// Returns whoever calls, if it is an administrator.
fn administrator() -> ApiResult<Arc<Subject>> {
    let subject = Subject::current();
    if subject.has(AccessRole::Admin) {
        return Ok(subject);
    }
    let message = "This needs the role 'admin' in some partition.";
    Err(ApiError::RoleNeeded(message.to_owned()))
}

/// Returns the row of a new token.
///
/// # Errors
/// Says what is wrong with it.
pub fn new_row(
    new: NewToken,
    secret: &TokenSecret,
    created_by: Option<&str>,
) -> Result<TokenRow, String> {
    let NewToken {
        name,
        mut roles,
        mut partitions,
        expire_time,
    } = new;
    let name = name.trim();
    let is_named = !name.is_empty() && name.chars().count() <= MAX_NAME;
    if !is_named || name.contains(char::is_control) {
        return Err(format!(
            "The name of a token has 1 to {MAX_NAME} characters, and no control characters."
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("The name '{name}' stands for somebody else."));
    }
    roles.sort_unstable();
    roles.dedup();
    partitions.sort_unstable();
    partitions.dedup();
    let access = Access { roles, partitions };
    access.check()?;
    Ok(TokenRow {
        id: secret.id().unwrap_or_default().to_owned(),
        hash: secret.hash().to_string(),
        name: name.to_owned(),
        access: json!(access).to_string(),
        created_by: created_by.map(str::to_owned),
        created_time: 0,
        expire_time,
        used_time: None,
    })
}

/// Creates a token for whoever has access to the database: the first administrator.
///
/// # Errors
/// Says what is wrong with the token, or with the database.
pub async fn create_in(store: &Store, new: NewToken) -> Result<(String, Token), String> {
    let secret = TokenSecret::random();
    let row = new_row(new, &secret, None)?;
    let created = store
        .create_token(row)
        .await
        .map_err(|error| error.to_string())?;
    let row = created.ok_or_else(|| format!("there are {} tokens already", Store::MOST_TOKENS))?;
    Ok((secret.into_text(), shown(row)))
}
