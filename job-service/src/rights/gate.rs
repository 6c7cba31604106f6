//! The layer before every route: finds out who calls, and refuses what they may not do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use contract::rest::AccessRole;
use contract::{JobId, PartitionId};
use futures_util::StreamExt as _;

use super::Authentication;
use super::operations::Need;
use super::page::{session_of, sign_in_url};
use super::secret::TokenSecret;
use super::subject::Subject;
use crate::http::current_request::CurrentRequest;
use crate::http::{ApiError, ApiResult};
use crate::options::BASE_PATH;
use crate::state::AppState;

/// What precedes a token in the header `Authorization`.
const BEARER: &str = "Bearer ";
/// The parameters by which a token might be put into a URL, where logs and histories keep it.
const IN_URLS: [&str; 2] = ["access_token", "token"];

/// The layer.
pub async fn layer(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let Some(callers) = state.options.authentication.callers() else {
        let subject = match state.options.authentication {
            Authentication::None => Subject::everybody(),
            _ => Subject::anybody(),
        };
        return subject.scope(next.run(request)).await;
    };
    let route = request.extensions().get::<MatchedPath>();
    let need = match (route, request.method()) {
        // There is nothing, or a browser asks what it may send.
        (None, _) | (_, &Method::OPTIONS) => Need::Nothing,
        (Some(route), method) => {
            let full = Need::Everywhere(AccessRole::Admin);
            Need::of(method.as_str(), route.as_str()).unwrap_or(full)
        }
    };
    let peer = request.extensions().get().copied();
    let proxy = callers.proxy.as_ref();
    let named = proxy.and_then(|proxy| proxy.subject(peer, request.headers()));
    // A proxy may pass on tokens of others.
    let shown = match named {
        Some(_) => Ok(None),
        None => token_of(&request),
    };
    // A browser shows its session by itself.
    let is_sent = request.headers().contains_key(header::AUTHORIZATION) || shown.is_err();
    let subject = match (named, &shown) {
        (Some(subject), _) => Ok(Arc::new(subject)),
        (None, Ok(_)) if need == Need::Nothing => Ok(Subject::nobody()),
        (None, Ok(token)) => state.subject_of(token.as_ref()).await,
        (None, Err(why)) => Err(ApiError::TokenNeeded(why)),
    };
    let subject = match subject {
        Ok(subject) => subject,
        // The key decides, whatever a proxy adds.
        Err(ApiError::TokenNeeded(_)) if need == Need::Worker => Subject::nobody(),
        Err(ApiError::TokenNeeded(why)) if is_sent => {
            return refusal(state.tokens.refuse(peer, why).await, &request);
        }
        Err(error) => return refusal(error, &request),
    };
    if let Err(error) = state.check(need, &subject).await {
        return refusal(error, &request);
    }
    let response = subject.scope(next.run(request)).await;
    match shown {
        Ok(Some(token)) if is_stream(&response) => until_revoked(response, state, token),
        _ => response,
    }
}

impl AppState {
    /// Returns who has this token; without one, nobody.
    pub(super) async fn subject_of(&self, token: Option<&TokenSecret>) -> ApiResult<Arc<Subject>> {
        let Some(token) = token else {
            return Ok(Subject::nobody());
        };
        if self.is_of_operator(token) {
            return Ok(Arc::clone(&self.administrator));
        }
        let found = self.tokens.subject(token).await?;
        found.ok_or(ApiError::TokenNeeded("The token is not valid."))
    }

    /// Returns whether this is the token that the operator has chosen.
    fn is_of_operator(&self, token: &TokenSecret) -> bool {
        let callers = self.options.authentication.callers();
        let admin = callers.and_then(|callers| callers.admin);
        admin.is_some_and(|admin| admin.is(&token.hash().to_string()))
    }

    /// Compares what an operation needs with what the subject may do.
    async fn check(&self, need: Need, subject: &Subject) -> ApiResult<()> {
        let is_open = match need {
            Need::Nothing | Need::Worker => true,
            Need::Installation(AccessRole::Metrics) => self.options.open_metrics,
            _ => false,
        };
        if is_open {
            return Ok(());
        }
        if subject.name().is_none() {
            return Err(ApiError::TokenNeeded("The service needs a token."));
        }
        let of_installation = |role: AccessRole| {
            ApiError::RoleNeeded(format!("This needs the role '{role}' of the installation."))
        };
        let CurrentRequest { partition, job, .. } = CurrentRequest::get();
        // The handler says what is wrong with an id.
        let partition = partition.and_then(|partition| PartitionId::parse(&partition).ok());
        match (need, partition) {
            (Need::Installation(role), _) if subject.has(role) => Ok(()),
            // Whoever operates the installation may measure it.
            (Need::Installation(AccessRole::Metrics), _) if subject.is_operator() => Ok(()),
            (Need::Installation(role), _) => Err(of_installation(role)),
            (Need::Everywhere(role), _) if subject.has_everywhere(role) => Ok(()),
            (Need::Everywhere(role), _) => Err(ApiError::RoleNeeded(format!(
                "This needs the role '{role}' in all partitions."
            ))),
            (Need::InPartition(role), Some(partition)) => subject.needs(role, &partition),
            (Need::OwnJob, Some(partition)) => {
                let job = job.and_then(|job| JobId::parse(&job).ok());
                self.check_own(subject, &partition, job.as_ref()).await
            }
            (Need::Nothing | Need::Worker | Need::Somebody, _)
            | (Need::InPartition(_) | Need::OwnJob, None) => Ok(()),
        }
    }

    /// Requires that the subject may steer a job: all of its partition, or this one because it is
    /// its own. The handler says that there is no such job.
    pub async fn check_own(
        &self,
        subject: &Subject,
        partition: &PartitionId,
        job: Option<&JobId>,
    ) -> ApiResult<()> {
        let Err(refused) = subject.needs(AccessRole::Operate, partition) else {
            return Ok(());
        };
        if !subject.has_in(AccessRole::Submit, partition) {
            return Err(refused);
        }
        let Some(job) = job else { return Ok(()) };
        match self.store.owner(partition, job).await? {
            None => Ok(()),
            Some(owner) if owner.as_deref() == subject.name() => Ok(()),
            Some(_) => Err(ApiError::RoleNeeded(format!(
                "The job belongs to somebody else. This needs the role 'operate' in the partition '{partition}'."
            ))),
        }
    }
}

/// Returns the token of a request: that of its header, or for the page that of its session.
///
/// # Errors
/// Says what is wrong.
fn token_of(request: &Request) -> Result<Option<TokenSecret>, &'static str> {
    if has_token_in_url(request) {
        return Err(
            "A token does not belong into a URL, because logs keep it. Revoke it, and send another in the header 'Authorization'.",
        );
    }
    let headers = request.headers();
    if headers.contains_key(header::AUTHORIZATION) {
        return bearer(headers).map(Some);
    }
    // No page of somebody else can use the session for the API, which programs call.
    let is_page = !request.uri().path().starts_with(BASE_PATH);
    Ok(session_of(headers).filter(|_| is_page))
}

fn has_token_in_url(request: &Request) -> bool {
    request.uri().query().is_some_and(|query| {
        let mut names = query
            .split('&')
            .map(|it| it.split('=').next().unwrap_or(it));
        names.any(|name| IN_URLS.contains(&name))
    })
}

fn bearer(headers: &HeaderMap) -> Result<TokenSecret, &'static str> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (sent.next(), sent.next()) else {
        return Err("The request has more than one header 'Authorization'.");
    };
    let text = only.to_str().unwrap_or_default();
    let is_bearer = |scheme: &str| scheme.eq_ignore_ascii_case(BEARER);
    let token = match text.split_at_checked(BEARER.len()) {
        Some((scheme, token)) if is_bearer(scheme) => TokenSecret::sent(token.trim()),
        _ => None,
    };
    token.ok_or("The header 'Authorization' must be 'Bearer' and a token.")
}

/// Returns the response to what is refused: a person without a token is asked for one.
fn refusal(error: ApiError, request: &Request) -> Response {
    let asks = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_page = asks && !has_token_in_url(request) && CurrentRequest::get().wants_page;
    if matches!(error, ApiError::TokenNeeded(_)) && is_page {
        return Redirect::to(&sign_in_url(request.uri())).into_response();
    }
    error.into_response()
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kinds: [&[u8]; 2] = [b"text/event-stream", b"application/x-ndjson"];
    kind.is_some_and(|kind| {
        kinds
            .iter()
            .any(|stream| kind.as_bytes().starts_with(stream))
    })
}

/// Ends a stream when its token is revoked or has expired.
fn until_revoked(response: Response, state: Arc<AppState>, token: TokenSecret) -> Response {
    if state.is_of_operator(&token) {
        return response;
    }
    let revoked = async move { state.tokens.revoked(&token).await };
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(revoked))))
}
