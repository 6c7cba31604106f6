//! Errors of publishing and of opening or using a broker.
//!
//! The texts of these errors are shown on their own (in failure reports, health checks and
//! headers), so they include the text of their reason. For the same reason they return no `source`:
//! printing the chain would repeat it. The reason itself is kept in a field.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use contract::MAX_PIPE_BYTES;

/// Why a message was not published.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The broker was closed before it confirmed the message. It may or may not have stored it.
    #[error("the broker was closed before it confirmed the message")]
    Closed,
    /// No pipe can have this name. Publishing again never helps.
    #[error("the pipe {pipe} cannot exist: {reason}", pipe = shown(pipe))]
    Impossible {
        /// The name of the pipe.
        pipe: String,
        /// What is wrong with it.
        reason: Arc<dyn Error + Send + Sync>,
    },
    /// The broker never takes this message, because it is too large. The pipe takes others.
    #[error("the broker never takes this message for the pipe {pipe}: {reason}", pipe = shown(pipe))]
    Unacceptable {
        /// The name of the pipe.
        pipe: String,
        /// What the broker reported.
        reason: Arc<dyn Error + Send + Sync>,
    },
    /// The pipe does not exist and cannot be declared. Publishing again does not help until
    /// somebody makes the pipe, or lets this program make it.
    #[error("the pipe {pipe} does not take messages: {reason}", pipe = shown(pipe))]
    Unroutable {
        /// The name of the pipe.
        pipe: String,
        /// What the broker reported.
        reason: Arc<dyn Error + Send + Sync>,
    },
    /// The broker refused the message, e.g. because the pipe is full. Publishing it again may
    /// succeed.
    #[error("the broker refused a message for the pipe {pipe}: {reason}", pipe = shown(pipe))]
    Refused {
        /// The name of the pipe.
        pipe: String,
        /// What the broker reported.
        reason: Arc<dyn Error + Send + Sync>,
    },
}

impl PublishError {
    /// Returns an [`Impossible`](Self::Impossible) error. The reason is an error or a text.
    pub fn impossible(
        pipe: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Impossible {
            pipe: pipe.into(),
            reason: reason.into().into(),
        }
    }

    /// Returns an [`Unacceptable`](Self::Unacceptable) error. The reason is an error or a text.
    pub fn unacceptable(
        pipe: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unacceptable {
            pipe: pipe.into(),
            reason: reason.into().into(),
        }
    }

    /// Returns whether publishing the same message again can never succeed.
    pub const fn is_permanent(&self) -> bool {
        matches!(self, Self::Impossible { .. } | Self::Unacceptable { .. })
    }

    /// Returns the error of publishing to a pipe of this name, if no pipe can have it.
    pub(super) fn of_name(pipe: &str) -> Option<Self> {
        let reason = match pipe.len() {
            0 => "a pipe needs a name".to_owned(),
            bytes if bytes > MAX_PIPE_BYTES => {
                format!("the name has {bytes} bytes; the limit is {MAX_PIPE_BYTES}")
            }
            _ => return None,
        };
        Some(Self::impossible(pipe, reason))
    }

    /// Returns an [`Unroutable`](Self::Unroutable) error. The reason is an error or a text.
    pub fn unroutable(
        pipe: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unroutable {
            pipe: pipe.into(),
            reason: reason.into().into(),
        }
    }

    /// Returns a [`Refused`](Self::Refused) error. The reason is an error or a text.
    pub fn refused(
        pipe: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Refused {
            pipe: pipe.into(),
            reason: reason.into().into(),
        }
    }
}

/// Returns the start of a name that may come from a message and be of any length.
fn shown(pipe: &str) -> &str {
    &pipe[..pipe.floor_char_boundary(MAX_PIPE_BYTES)]
}

/// Why a broker could not be opened or used. Its `Debug` is the sentence for people, too.
#[derive(thiserror::Error)]
pub enum BrokerError {
    /// The server or the files cannot be used.
    #[error("the broker at {location} cannot be used: {reason}")]
    Unusable {
        /// Which broker: `host:port` of a server, or the folder of an embedded broker.
        location: String,
        /// What went wrong.
        reason: Box<dyn Error + Send + Sync>,
    },
    /// Another process has opened the folder of an embedded broker.
    #[error(
        "the folder {folder} is in use by the process {pid}; stop it, or choose another folder"
    )]
    FolderInUse {
        /// The folder.
        folder: String,
        /// The id of the other process.
        pid: String,
    },
    /// The broker was closed.
    #[error("the broker is closed")]
    Closed,
}

impl fmt::Debug for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl BrokerError {
    #[cfg(any(feature = "amqp", feature = "embedded"))]
    pub(super) fn unusable(
        location: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unusable {
            location: location.into(),
            reason: reason.into(),
        }
    }
}
