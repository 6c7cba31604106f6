//! Errors of publishing and of opening or using a broker.
//!
//! The texts of these errors are shown on their own (in failure reports, health checks and headers), so they include
//! the text of their reason. For the same reason they return no `source`: printing the chain would repeat it. The reason
//! itself is kept in a field.

use std::error::Error;
use std::sync::Arc;

/// Why a message was not published.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The broker was closed before it confirmed the message. It may or may not have stored it.
    #[error("the broker was closed before it confirmed the message")]
    Closed,
    /// The pipe does not exist and cannot be declared, or its name is invalid. Publishing again does not help.
    #[error("the pipe {pipe} does not take messages: {reason}")]
    Unroutable {
        /// The name of the pipe.
        pipe: String,
        /// What the broker reported.
        reason: Arc<dyn Error + Send + Sync>,
    },
    /// The broker refused the message, e.g. because the pipe is full. Publishing it again may succeed.
    #[error("the broker refused a message for the pipe {pipe}: {reason}")]
    Refused {
        /// The name of the pipe.
        pipe: String,
        /// What the broker reported.
        reason: Arc<dyn Error + Send + Sync>,
    },
}

impl PublishError {
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

/// Why a broker could not be opened or used.
#[derive(Debug, thiserror::Error)]
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
