//! Encrypted connections: whom the client trusts, and how it identifies itself.
//!
//! The same files serve connections to the broker (`amqps://`) and to job services (`https://`).
//!
//! What must stay true: the server's certificate is always checked, its name included, against the
//! authorities of the system and those of [`TlsFiles::ca`]. Nothing turns this off.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The setting of [`TlsFiles::ca`].
pub const CA: &str = "BATCHWRIGHT_TLS_CA";
/// The setting of [`TlsFiles::certificate`].
pub const CERTIFICATE: &str = "BATCHWRIGHT_TLS_CERTIFICATE";
/// The setting of [`TlsFiles::key`].
pub const KEY: &str = "BATCHWRIGHT_TLS_KEY";

/// The files of encrypted connections, in PEM format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate authorities to trust in addition to those of the system.
    pub ca: Option<PathBuf>,
    /// The client's certificate, followed by the certificates of intermediate authorities.
    pub certificate: Option<PathBuf>,
    /// The private key of the client's certificate, unencrypted.
    pub key: Option<PathBuf>,
}

/// Whom encrypted connections trust, and the client's certificate. The default trusts the
/// authorities of the system and has no certificate. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tls(Arc<Loaded>);

#[derive(Default)]
struct Loaded {
    authorities: Vec<CertificateDer<'static>>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    authorities_pem: Vec<u8>,
    identity_pem: Vec<u8>,
}

/// A file that cannot be used, or a file that is missing beside another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the variable {setting} {problem}")]
pub struct TlsError {
    /// The name of the setting: [`CA`], [`CERTIFICATE`] or [`KEY`].
    pub setting: &'static str,
    /// What is wrong. Continues the sentence "the variable X …".
    pub problem: String,
}

impl TlsError {
    fn of(setting: &'static str, problem: String) -> Self {
        Self { setting, problem }
    }
}

impl Tls {
    /// Reads and checks the files.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting if a file cannot be read or is not what the setting
    /// demands, if one of certificate and key is missing, or if they do not belong together.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let mut loaded = Loaded::default();
        if let Some(file) = &files.ca {
            loaded.authorities_pem = read(CA, file)?;
            loaded.authorities = certificates(CA, file, &loaded.authorities_pem)?;
            let mut roots = RootCertStore::empty();
            for authority in &loaded.authorities {
                roots.add(authority.clone()).map_err(|error| {
                    let problem = format!(
                        "names {}, whose certificate is not valid: {error}",
                        file.display()
                    );
                    TlsError::of(CA, problem)
                })?;
            }
        }
        match (&files.certificate, &files.key) {
            (None, None) => {}
            (Some(certificate), Some(key)) => {
                let (chain_pem, key_pem) = (read(CERTIFICATE, certificate)?, read(KEY, key)?);
                let chain = certificates(CERTIFICATE, certificate, &chain_pem)?;
                let secret = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| {
                    let problem = format!(
                        "names {}, which contains no unencrypted private key in PEM format",
                        key.display()
                    );
                    TlsError::of(KEY, problem)
                })?;
                loaded.identity = Some((chain, secret));
                loaded.identity_pem = [key_pem, b"\n".to_vec(), chain_pem].concat();
                // Only the key and the certificate are checked here, so that the authorities of the
                // system are not read.
                loaded
                    .config_with(RootCertStore::empty())
                    .map_err(|error| {
                        let problem = format!(
                            "names {}, which is not the key of the certificate in {} ({error})",
                            key.display(),
                            certificate.display()
                        );
                        TlsError::of(KEY, problem)
                    })?;
            }
            (Some(_), None) => return Err(alone(CERTIFICATE, KEY)),
            (None, Some(_)) => return Err(alone(KEY, CERTIFICATE)),
        }
        Ok(Self(Arc::new(loaded)))
    }

    /// Returns the certificates of [`TlsFiles::ca`] in PEM format; empty without the file.
    pub fn authorities_pem(&self) -> &[u8] {
        &self.0.authorities_pem
    }

    /// Returns the client's key and certificates in PEM format; empty without them.
    pub fn identity_pem(&self) -> &[u8] {
        &self.0.identity_pem
    }

    /// Returns the configuration of a client's connections, with the authorities that the system
    /// has now. A system without any is no error: no certificate is trusted then.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, rustls::Error> {
        let mut roots = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        // The system may have certificates that cannot be used, and files that cannot be read.
        let (_, ignored) = roots.add_parsable_certificates(system.certs);
        if ignored > 0 || !system.errors.is_empty() {
            tracing::debug!(ignored, errors = ?system.errors, "some of the system's certificate authorities are not used");
        }
        for authority in &self.0.authorities {
            roots.add(authority.clone())?;
        }
        self.0.config_with(roots)
    }
}

impl Loaded {
    fn config_with(&self, roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        match &self.identity {
            Some((chain, key)) => config.with_client_auth_cert(chain.clone(), key.clone_key()),
            None => Ok(config.with_no_client_auth()),
        }
    }
}

/// Returns the implementation of the cryptography.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(setting: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| {
        let problem = format!("names {}, which cannot be read: {error}", file.display());
        TlsError::of(setting, problem)
    })
}

fn certificates(
    setting: &'static str,
    file: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => {
            let problem = format!(
                "names {}, which contains no certificate in PEM format",
                file.display()
            );
            Err(TlsError::of(setting, problem))
        }
    }
}

fn alone(set: &'static str, missing: &str) -> TlsError {
    TlsError::of(set, format!("is set without {missing}; set both"))
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        f.debug_struct("Tls")
            .field("authorities", &self.0.authorities.len())
            .field("has_certificate", &self.0.identity.is_some())
            .finish_non_exhaustive()
    }
}
