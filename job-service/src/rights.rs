//! Who calls, and what they may do.
//!
//! The gate stands before every route: it finds the subject of the request, and compares what the
//! route needs, by the table in `operations`, with what the subject may do.
//!
//! What must stay true:
//! - A route without a row in the table is for those who may do everything.
//! - What somebody may not see is answered as what is not there.
//! - What workers ask about a living job is never answered with 404 or 429 for lack of rights,
//!   because they would discard its tasks.
//! - No secret of a token is stored, shown a second time, or logged.

mod gate;
mod known_tokens;
mod operations;
pub mod page;
mod proxy;
pub mod routes;
mod secret;
mod subject;

use std::sync::Arc;

pub use self::gate::layer;
pub use self::known_tokens::KnownTokens;
pub use self::operations::responses_of_rights;
pub use self::proxy::{GroupAccess, ProxyOptions};
pub use self::secret::{SecretHash, TokenSecret};
pub use self::subject::{Known, Subject};

/// Who may call the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Nobody has decided: everybody who reaches the service may do everything, so it should listen
    /// on a loopback address only.
    #[default]
    Undecided,
    /// Everybody who reaches the service may do everything.
    None,
    /// Whoever is known may do what that allows: by a token, or because the proxy says so.
    Needed(Arc<Callers>),
}

/// Whom the service knows, beside those with a token of the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Callers {
    /// The hash of a token that may do everything.
    pub admin: Option<SecretHash>,
    /// The proxy that names those who call.
    pub proxy: Option<ProxyOptions>,
}

impl Authentication {
    /// Returns whom the service knows, if callers must be known.
    pub fn callers(&self) -> Option<&Callers> {
        match self {
            Self::Needed(callers) => Some(callers),
            Self::Undecided | Self::None => None,
        }
    }
}
