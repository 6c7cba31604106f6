//! Makes the calls. Hides the library, which a program has only if it asks for it: its features become those of every part.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use framework::TaskError;
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Attempt, Policy};
use url::Url;

use super::{Allowed, Refused, is_public, private};

/// The most bytes of a response that are read.
const MOST_BYTES: u64 = 10 * 1024 * 1024;
/// The most redirects of a call.
const MOST_REDIRECTS: usize = 5;

/// Makes calls, with one client for all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller(Arc<OnceLock<Client>>);

impl Caller {
    /// Calls a URL that is allowed, and reads the response.
    pub async fn get(&self, allowed: &Arc<Allowed>, url: &Url) -> Result<(), TaskError> {
        let failed = |error: reqwest::Error| task_error(url, error);
        let response = self
            .client(allowed)?
            .get(url.clone())
            .send()
            .await
            .map_err(failed)?;
        let status = response.status();
        if status.is_client_error() {
            return Err(TaskError::failed(format!("{url} responds with {status}")));
        }
        if !status.is_success() {
            return Err(TaskError::retry(format!("{url} responds with {status}")));
        }
        read(response, url).await
    }

    fn client(&self, allowed: &Arc<Allowed>) -> Result<&Client, TaskError> {
        if let Some(client) = self.0.get() {
            return Ok(client);
        }
        let (allowed, private) = (Arc::clone(allowed), allowed.private);
        let redirect = move |attempt: Attempt<'_>| {
            if attempt.previous().len() > MOST_REDIRECTS {
                return attempt.error(Refused(format!(
                    "it redirects more than {MOST_REDIRECTS} times"
                )));
            }
            match allowed.check(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(refused),
            }
        };
        // There may be one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            // A proxy would resolve the name itself.
            .no_proxy()
            .redirect(Policy::custom(redirect))
            .dns_resolver(Arc::new(Checked { private }))
            .build()?;
        Ok(self.0.get_or_init(|| client))
    }
}

/// Resolves names to public addresses only, unless others are allowed.
struct Checked {
    private: bool,
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let allows_private = self.private;
        Box::pin(async move {
            let host = name.as_str();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            // One private address refuses all: who controls the name must not choose among them.
            if let Some(address) = found
                .iter()
                .find(|it| !allows_private && !is_public(it.ip()))
            {
                return Err(private(host, address.ip()).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Reads a response to its end, if it is not too large.
async fn read(mut response: reqwest::Response, url: &Url) -> Result<(), TaskError> {
    let mut bytes = 0;
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| task_error(url, error))?
    {
        bytes += chunk.len() as u64;
        if bytes > MOST_BYTES {
            return Err(TaskError::failed(format!(
                "the response of {url} has more than {MOST_BYTES} bytes"
            )));
        }
    }
    Ok(())
}

/// Returns what the error of a call means for its task: what is not allowed never will be, all else may go away.
fn task_error(url: &Url, error: reqwest::Error) -> TaskError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        let inner = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let refused = inner.and_then(|inner| inner.downcast_ref::<Refused>());
        if let Some(refused) = refused.or_else(|| cause.downcast_ref::<Refused>()) {
            return TaskError::failed(format!("{url}: {refused}"));
        }
        source = cause.source();
    }
    TaskError::retry(error)
}
