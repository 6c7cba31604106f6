//! The flags of encrypted connections, which commands with servers and commands of a client share.

use std::path::PathBuf;

use clap::Args;
use framework::tls::{self, Tls, TlsError, TlsFiles};

/// The files of encrypted connections: `amqps://` and `https://`. Those of the database are in its
/// URL.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Encrypted connections")]
pub struct TlsArgs {
    /// File (PEM) of certificate authorities to trust besides the system's, for `amqps://` and
    /// `https://`, endpoints of buckets included.
    #[arg(long = "tls-ca", id = "tls-ca", env = tls::CA, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// File (PEM) of the client certificate, followed by intermediate ones, for `amqps://` and
    /// `https://`.
    #[arg(long = "tls-certificate", id = "tls-certificate", env = tls::CERTIFICATE, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// File (PEM) of the key of the client certificate, not encrypted.
    #[arg(long = "tls-key", id = "tls-key", env = tls::KEY, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl TlsArgs {
    /// Reads and checks the files.
    pub fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(&self.files())
    }

    /// Returns the files.
    pub fn files(&self) -> TlsFiles {
        TlsFiles {
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
}
